"""Do parallel workers measure every point once, whichever of them fails or dies?"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.store import StoreError
from profiler.sweep.failures import DIED, FAILED, FAULT, MEMORY, REFUSED, Failure
from profiler.sweep.points import Block, Point
from profiler.sweep.workers import Deal, Note, Outcome, Team, Worker
from tests import sweeping
from tests.sweeping import ENVIRONMENT, Thread, grid, points_of


def nothing(point: Point, what: str) -> None:
    """Nobody is told."""


def all_of(team: Team, blocks: Sequence[Block], note: Note = nothing) -> list[Outcome]:
    """Every outcome, in the order in which they come."""
    with closing(team.outcomes(blocks, note)) as found:
        return list(found)


def team(workers: Mapping[str, Callable[[], Worker]], **more: Any) -> Team:
    """A team that wants every point."""
    return Team(workers, **{"wanted": lambda point: True} | more)


def test_every_point_is_measured_once_and_blocks_stay_on_one_worker() -> None:
    blocks = grid(range(2, 12))
    found = all_of(team(dict.fromkeys("abc", Thread)), blocks)
    assert sorted(o.point.key for o in found) == sorted(p.key for p in points_of(blocks))
    for block in blocks:
        own = [o for o in found if o.point in block.points]
        assert [o.point for o in own] == list(block.points)
        assert len({o.worker for o in own}) == 1


def test_workers_measure_at_the_same_time() -> None:
    """Two points that wait for each other."""
    meeting = threading.Barrier(2, timeout=60)

    def measured(asked: Any, **_: Any) -> Measurement:
        meeting.wait()
        return sweeping.record_of(asked)

    blocks = grid((2, 3), rounds=1)
    starts = {name: lambda: Thread(measured) for name in "ab"}
    found = all_of(team(starts), blocks)
    assert all(isinstance(o.found, Measurement) for o in found) and len(found) == 6


def test_a_worker_waits_until_its_outcome_is_handled() -> None:
    begun: list[Point] = []
    blocks = grid((2,))
    with closing(
        team({"a": Thread}).outcomes(blocks, lambda point, what: begun.append(point))
    ) as found:
        for number, _ in enumerate(found, start=1):
            assert len(begun) == number


def test_each_way_to_fail_is_an_outcome_and_the_next_point_follows() -> None:
    kinds = {
        sweeping.MEMORY: MEMORY, sweeping.REFUSED: REFUSED, sweeping.FAILED: FAILED,
        sweeping.KILLED: DIED, sweeping.FAULT: FAULT,
    }  # fmt: skip
    found = all_of(team({"a": Thread}), grid((2, *kinds), rounds=1))
    assert len(found) == 3 * (1 + len(kinds))
    for outcome in found:
        length = outcome.point.request.sizes["l"]
        assert outcome.environment == ENVIRONMENT and outcome.worker == "a"
        if length == 2:
            assert isinstance(outcome.found, Measurement)
        else:
            assert isinstance(outcome.found, Failure) and outcome.found.kind == kinds[length]
    memory = next(o.found for o in found if o.point.request.sizes["l"] == sweeping.MEMORY)
    assert isinstance(memory, Failure)
    assert memory.details == {"requested": "20.00 GiB", "free": "3.20 GiB"}
    fault = next(o.found for o in found if o.point.request.sizes["l"] == sweeping.FAULT)
    assert isinstance(fault, Failure) and fault.sentence == "TypeError: expected a number"


def test_after_a_death_another_process_begins() -> None:
    made: list[Thread] = []

    def start() -> Thread:
        made.append(Thread())
        return made[-1]

    all_of(team({"a": start}), grid((2, sweeping.KILLED), rounds=1))
    assert len(made) in (3, 4)  # three deaths; the last one may be the end
    assert all(worker.stopped for worker in made)


def test_what_is_not_wanted_any_more_is_left_out() -> None:
    blocks = grid((2, 3), rounds=1)
    first = blocks[0].points[0]
    found = all_of(team({"a": Thread}, wanted=lambda point: point is first), blocks)
    assert [o.point for o in found] == [first]


def test_a_worker_that_cannot_begin_leaves_its_points_to_others() -> None:
    told: list[str] = []
    blocks = grid(range(2, 8))
    starts = {"a": Thread, "b": lambda: Thread(unfit="the GPU is lost")}
    found = all_of(team(starts, tell=told.append), blocks)
    assert {o.point.key for o in found} == {p.key for p in points_of(blocks)}
    assert {o.worker for o in found} == {"a"} and told in ([], ["b: the GPU is lost"])


def test_without_a_worker_there_is_one_sentence() -> None:
    starts = {"a": lambda: Thread(unfit="the GPU is lost")}
    with pytest.raises(MeasureError, match="a: the GPU is lost"):
        all_of(team(starts), grid())


def test_an_environment_that_is_not_accepted_ends_everything() -> None:
    def accept(environment: Mapping[str, Any]) -> None:
        raise StoreError("mixed")

    made = Thread()
    with pytest.raises(StoreError, match="mixed"):
        all_of(team({"a": lambda: made, "b": Thread}, accept=accept), grid())
    assert made.stopped


def test_an_interrupt_that_no_wait_hears_of_ends_it_all_the_same() -> None:
    """A signal that comes just before the main thread begins to wait is marked, and ends no wait;
    so is one that `interrupt_main` only marks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = threading.Event()
    heard: list[bool] = []

    class Stoppable(Thread):
        def stop(self) -> None:
            stopped.set()

    def measured(asked: Any, **_: Any) -> Measurement:
        time.sleep(0.3)  # until the main thread waits
        _thread.interrupt_main()
        heard.append(stopped.wait(20))
        return sweeping.record_of(asked)

    try:
        with pytest.raises(KeyboardInterrupt):
            all_of(team({"a": lambda: Stoppable(measured)}), grid((2,)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [True]


def test_closing_early_stops_every_worker() -> None:
    made = {name: Thread() for name in "ab"}
    starts: dict[str, Callable[[], Worker]] = {
        "a": lambda: made["a"], "b": lambda: made["b"],
    }  # fmt: skip
    with closing(team(starts).outcomes(grid(range(2, 12)), nothing)) as found:
        next(found)
    assert made["a"].stopped or made["b"].stopped
    assert [t for t in threading.enumerate() if "(_work)" in t.name] == []


def test_a_block_that_was_begun_goes_to_the_worker_that_began_it() -> None:
    blocks = grid((2, 3, 5))
    homes = dict(zip((block.name for block in blocks), ("b", "a", "gone"), strict=True))
    deal = Deal(blocks, ["a", "b"], lambda block: homes[block.name])
    assert deal.next_for("a") == blocks[1]
    assert deal.next_for("a") == blocks[2]  # the worker that began it is not here
    assert deal.next_for("a") is None
    assert deal.next_for("b") == blocks[0]
    assert deal.next_for("b") is None


def test_the_blocks_of_a_lost_worker_go_to_others() -> None:
    blocks = grid((2, 3))
    deal = Deal(blocks, ["a", "b"], lambda block: "b")
    assert deal.next_for("a") is None
    taken = deal.next_for("b")
    assert taken is not None
    deal.lose("b", taken)
    assert [deal.next_for("a"), deal.next_for("a"), deal.next_for("a")] == [*blocks, None]
