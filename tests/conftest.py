"""Which tests are fast, which cases of a grid run, which examples does hypothesis draw, which tests
need a GPU, how many threads does torch use, and when does the garbage collector run?"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil
import pytest
import typer
import typer.testing
from hypothesis import HealthCheck, settings

from tests.stand_ins import Instead, substitute

pytest.register_assert_rewrite("tests.goldens", "tests.published.verdicts")  # to show differences

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")


LARGE, MORE = 2 * 2**30, 2**29
"""Bytes of a process above which the derived answers of earlier files are dropped, and bytes by
which the process grows before they are dropped again: not all of its memory is theirs."""

limits = [LARGE]


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory() -> None:
    """Keep a process of the suite below a few gigabytes: cached answers grow from file to file."""
    from tests.caches import clear_all

    process = psutil.Process()
    if process.memory_info().rss > limits[-1]:
        clear_all()
        gc.collect()
        limits.append(process.memory_info().rss + MORE)


SMALL_CACHE = 2**20
"""Bytes of the last-level cache that tests flush: some processors have half a gigabyte of it, and a
flush before every cold call would take most of the time of a measurement."""


@pytest.fixture(autouse=True, scope="session")
def _small_caches() -> Iterator[None]:
    """A cold call in this process is timed after a flush of a small cache."""
    if "torch" not in sys.modules:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        known = (SMALL_CACHE, "assumed by the tests")
        substitute(patch, last_level_bytes=lambda: known)
        yield


@pytest.fixture(autouse=True, scope="session")
def _kept_parsers() -> Iterator[None]:
    """`CliRunner` makes the parser of a set of commands once: making it takes longer than most
    commands, and `cli.command_line` keeps its own."""
    made: dict[tuple[typer.Typer, int], object] = {}

    def parser(app: typer.Typer) -> object:
        key = app, len(app.registered_commands)
        if key not in made:
            made[key] = typer.main.get_command(app)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", parser)
        yield


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Puts stand-ins in the places of what they are named for (`tests/stand_ins.py`)."""
    return partial(substitute, monkeypatch)


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real calls are timed as if nobody else used the processor, however busy it is."""
    nobody_else(monkeypatch)


@pytest.fixture
def mutated(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A patch of rules: what is derived under the patch is forgotten with it."""
    from tests.caches import clear_all

    clear_all()
    yield monkeypatch
    monkeypatch.undo()
    clear_all()


def nobody_else(patch: pytest.MonkeyPatch) -> None:
    """No call waits for a processor as far as any watch sees."""
    substitute(patch, switches_and_faults=lambda: (0, 0), thread_times=dict)


FEW_COLLECTIONS = 100_000
"""New objects between two searches for cycles: derivations make many small ones, and no cycles."""


SLOW = Path(__file__).with_name("slow.txt")
"""Names the test functions whose first case costs more than a tenth of a second."""

LONG_S = 1
"""A fast test that takes longer is named at the end: it is not fast on a busy machine either."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--grid`."""
    parser.addoption("--grid", action="store_true", help="run every case, and draw every example")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers. What is compiled is kept, whatever the environment says: processes that
    tests start read it, and so does the next run."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["COSTMODEL_CACHE"] = "0"  # tests derive
    os.environ.pop("COLUMNS", None)  # pipes keep lines whole
    os.unsetenv("COLUMNS")  # readline, which pytest imports, sets it behind os.environ
    if config.getoption("--grid"):
        os.environ["COSTMODEL_GRID"] = "1"  # tests draw all their random examples
    sys.dont_write_bytecode = False
    gc.set_threshold(FEW_COLLECTIONS)
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped with a reason without")
    config.addinivalue_line(
        "markers", "grid(every): one case of so many runs, without a number none; all with --grid"
    )
    config.addinivalue_line("markers", "fast: the first case of a function that slow.txt lacks")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each process a contiguous part of the tests, so that a file's derivations are cached in
    one process; a process without tests left takes some of another's."""
    from xdist.scheduler import (  # type: ignore[import-untyped]  # xdist ships no types
        WorkStealingScheduling,
    )

    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of grids, and mark what is fast. Skip what needs a GPU where there is none;
    torch is imported only if anything asks."""
    if not config.getoption("--grid") and not any("[" in word for word in config.args):
        kept = _thinned(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    # what a patch of rules makes forget is not derived again for later tests
    items.sort(key=lambda item: "mutated" in getattr(item, "fixturenames", ()))
    for item in _first_cases(items, without=set(SLOW.read_text().splitlines())):
        item.add_marker(pytest.mark.fast)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    for item in wanting:  # torch says so once, of threads of its own in a backward pass
        item.add_marker(pytest.mark.filterwarnings("ignore:Attempting to run cu(BLAS|FFT)"))
    reason = _why_no_gpu() if wanting else None
    if reason is not None:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what is marked fast and was not; a setup counts, it is done for the first that asks."""
    stats = terminalreporter.stats
    reports = [r for r in (*stats.get("passed", ()), *stats.get("", ())) if r.when != "teardown"]
    slow = {_function(r.nodeid) for r in reports if "fast" in r.keywords and r.duration > LONG_S}
    if slow:
        terminalreporter.section("marked fast, but slow: lines for tests/slow.txt")
        terminalreporter.write_line("\n".join(sorted(slow)))


def pytest_collection_finish() -> None:
    """Leave what is there for good (torch, the tests, what tests leave in caches) out of every
    further search for cycles: whatever measures memory starts one. torch keeps to one thread."""
    gc.callbacks.append(_keep_what_is_left)
    gc.collect()
    if torch := sys.modules.get("torch"):  # a process a core is busy with its own tests already
        torch.set_num_threads(1)


def _keep_what_is_left(phase: str, search: dict[str, int]) -> None:
    """Leave what a whole search for cycles found alive out of the next ones."""
    if phase == "stop" and search["generation"] == 2:
        gc.freeze()


def _thinned(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests without a grid; of a grid(every), the cases whose places in the lists of parameters
    add up to a number of the test modulo `every`: of `every` values of one parameter one for each
    of the others, and other ones in another test. Of a grid without a number, no case.
    """
    kept: set[pytest.Item] = set()
    places: dict[tuple[str, str], dict[int, int]] = {}  # test and parameter -> value -> place
    for item in items:
        marker, call = item.get_closest_marker("grid"), getattr(item, "callspec", None)
        if marker is None:
            kept.add(item)
            continue
        if call is None or not marker.args:
            continue
        test = _function(item.nodeid)
        total = crc32(test.encode())
        for name, value in call.params.items():
            known = places.setdefault((test, name), {})
            total += known.setdefault(id(value), len(known))
        if total % marker.args[0] == 0:
            kept.add(item)
    return kept


def _first_cases(items: Iterable[pytest.Item], without: set[str]) -> list[pytest.Item]:
    """The first case of each test function, but of those to do without."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(_function(item.nodeid), item)
    return [item for name, item in first.items() if name not in without]


def _function(nodeid: str) -> str:
    """A test without its case."""
    return nodeid.partition("[")[0]


def _why_no_gpu() -> str | None:
    try:
        import torch
    except ImportError as error:
        return f"torch: {error}"
    if not torch.cuda.is_available():
        return "torch.cuda: no CUDA device is available"
    if "PYTEST_XDIST_WORKER" in os.environ:  # others would work on the GPU meanwhile
        return "beside other tests nothing is measured on a GPU: run pytest -m gpu"
    return None
