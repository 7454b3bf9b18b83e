"""Do the recorded runs still replay, each with its environment and nothing unexplained?"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.data import data_dir
from costmodel.networks.presets import presets
from profiler.reconcile.ladder import ladders
from profiler.records.grades import GRAPH_GAIN
from profiler.run.caveats import idleness, variation
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
    """Latent attention of 2048 tokens on an H100 takes 1.05 times as long as its CUDA graph."""
    path = data_dir("measured") / "h100_sxm" / "shipped.jsonl"
    bound = []
    for record in recorded([path])[0]:
        hot, replayed = (record.readings[name].value for name in ("latency", "latency_graph"))
        bound.append(hot > GRAPH_GAIN * replayed)
        launches = "not comparable: launch-bound, the device waits for the host most of the time; "
        said = f"{launches}compare the replays" if bound[-1] else ""
        assert idleness(record) == said
        if not bound[-1]:
            assert "other programs" not in variation(record)
    assert 0 < sum(bound) < len(bound)
