"""Do the recorded runs still replay, each with its environment and nothing unexplained?"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.data import data_dir
from costmodel.networks.presets import presets
from profiler.reconcile.ladder import ladders
from profiler.run.caveats import idleness
from profiler.sweep.recorded import recorded
from tests.recorded import RUNS

FILES = [RUNS, *sorted(data_dir("measured").glob("*/*.jsonl"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_recorded_run_replays(path: Path) -> None:
    records, problems = recorded([path])
    assert problems == []
    for record in records:
        assert record.environment["revision"]
        assert record.device.startswith("cuda") or path == RUNS
        assert len(record.readings["latency"].samples) == record.readings["latency"].details["n"]
    of_mixers = [record for record in records if record.mixer not in presets()]
    found, unknown = ladders(of_mixers)
    assert unknown == []
    assert [ladder for ladder in found if not ladder.explained] == []


def test_a_call_as_long_as_its_graph_is_not_bound_by_launches() -> None:
    """Latent attention of 2048 tokens on an H100 takes 1.04 times as long as its CUDA graph."""
    path = data_dir("measured") / "h100_sxm" / "shipped.jsonl"
    bound = {
        f"{record.mixer} {record.implementation} {record.phase}": idleness(record)
        for record in recorded([path])[0]
    }
    free = {
        name for name, words in bound.items() if not words.startswith("not comparable: launch-")
    }
    assert free == {"mla expanded training", "mla absorbed training"}
