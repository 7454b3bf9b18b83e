"""Do the recorded runs still replay, each with its environment and nothing unexplained?"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import stdev

import pytest

import profiler
from costmodel.data import data_dir
from costmodel.networks.presets import presets
from profiler.reconcile.ladder import ladders
from profiler.records.grades import GRAPH_GAIN
from profiler.records.schema import Details
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
        kept = {name for reading in record.readings.values() for name in reading.details}
        assert kept <= Details.__annotations__.keys()
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


LIVE = ("meters/", "doctor/", "host/board_file.py", "sweep/session.py", "compare/in_turns.py")
"""Files that read details of measurements in progress alone, not of records."""


def test_every_detail_that_is_read_of_records_is_in_the_schema() -> None:
    """Commands hold no other details of records."""
    root = Path(profiler.__file__).parent
    files = {file.relative_to(root).as_posix(): file for file in root.rglob("*.py")}
    of_records = [file for name, file in files.items() if not name.startswith(LIVE)]
    read = re.compile(r'\bdetails(?:\.get\(|\[)"(\w+)"')
    found = {name for file in of_records for name in read.findall(file.read_text("utf-8"))}
    assert len(found) > 20
    assert found <= Details.__annotations__.keys()


def test_energies_of_an_h100_spread_as_the_readme_says() -> None:
    """Net energies of a call spread less between trials than gross ones do, as the host launches
    at another pace in each trial."""
    page = " ".join((data_dir("measured") / "README.md").read_text().split())
    found = recorded([data_dir("measured") / "h100_sxm" / "energy.jsonl"])[0]
    net, gross = (
        sorted(stdev(one.readings[kind].samples) / one.readings[kind].value for one in found)
        for kind in ("energy_net", "energy")
    )
    said = f"{net[0]:.1%} to {net[-1]:.1%}; gross energies {gross[0]:.1%} to {gross[-1]:.1%}"
    assert said.replace("%", " %") in page
    grouped = [one.readings for one in found if one.mixer == "self-attention+grouped"]
    for kind in ("energy_net", "energy"):
        first, second = (1e3 * each[kind].value for each in grouped)
        assert f"{first:.1f} and {second:.1f} mJ" in page
