"""Does each of hot, cold and graph measure its own kind of time, on a known queue and on a real
CPU?"""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.meters.caches import (
    LEAST_GPU_BYTES,
    CacheError,
    Flush,
    bytes_of,
    cpu_flush,
    l2_bytes,
    last_level_bytes,
)
from profiler.meters.cuda_graph import (
    ContextLost,
    GraphError,
    capture,
    refusing_waits,
    tensors_close,
)
from profiler.meters.latency import (
    ONE,
    QUEUE_FULL,
    SEVERAL,
    STATIC,
    latency,
    latency_cold,
    latency_graph,
    latency_readings,
    with_launches_labelled,
)
from profiler.meters.sampler import LatencyLimits
from profiler.meters.timers import AheadTimer, ClockTimer, CudaTimer
from profiler.records.grades import GRAPH_DIFFERS, time_words
from profiler.records.reading import Measured, Reading, Unavailable
from tests.fake_devices import (
    MS,
    UNWATCHED,
    US,
    Clock,
    Gpu,
    ScriptedGraphs,
    Work,
    read,
    refused,
)
from tests.profiler.test_latency import Shared
from tests.stand_ins import Instead

BRIEF = LatencyLimits(max_seconds=0.05, warmup_seconds=0.05)
SAME: dict[str, Any] = {"watch": UNWATCHED, "pause": lambda seconds: None}


def hot_on(gpu: Gpu, fn: Any, **changes: Any) -> Reading:
    return read(latency(fn, timer=CudaTimer(gpu), **(SAME | changes)))


def cold_on(gpu: Gpu, fn: Any, **changes: Any) -> Reading:
    flush = Flush(gpu.flush, 2**28, 2**26, "invented")
    return read(latency_cold(fn, timer=AheadTimer(gpu), flush=flush, **(SAME | changes)))


# Hot


def test_hot_is_what_the_gpu_takes_and_its_queue_never_runs_dry() -> None:
    gpu = Gpu()
    found = hot_on(gpu, gpu.kernels(device_ns=200 * US))
    assert found.value == pytest.approx(200e-6)
    assert found.details["block"] == 5  # 1 ms of calls between two events
    assert found.details["enqueue_s"] == pytest.approx(20e-6)
    assert (found.details["launch_bound"], found.details["labels"]) == (False, [])
    calls = found.details["block"] * found.details["n"]
    began = found.details["warmup"] * 20 * US  # the warm-up waits for each of its calls
    assert gpu.idle_ns < began + calls * US


def test_one_call_per_synchronisation_would_have_left_the_queue_dry() -> None:
    """The same, waiting for each region: what the queue of several regions is for."""
    gpu = Gpu()
    timer, call = CudaTimer(gpu), gpu.kernels(device_ns=200 * US)
    for _ in range(100):
        timer.elapsed_s(call)
    waiting, gpu.idle_ns = gpu.idle_ns, 0
    timer.several_s(call, 100, lambda: False)
    assert waiting == 100 * 20 * US
    assert gpu.idle_ns == 20 * US


def test_launch_bound_work_is_labelled() -> None:
    gpu = Gpu()
    found = hot_on(gpu, gpu.kernels(device_ns=5 * US))
    assert found.value == pytest.approx(20e-6, rel=0.01)  # the host's launches, one after another
    assert (found.details["launch_bound"], found.details["labels"]) == (True, ["launch-bound"])


@pytest.mark.parametrize(("device_us", "bound"), [(25, True), (27, False)])
def test_launch_bound_is_less_than_one_and_a_third_of_enqueueing(
    device_us: int, bound: bool
) -> None:
    gpu = Gpu()
    assert hot_on(gpu, gpu.kernels(device_ns=device_us * US)).details["launch_bound"] is bound


@pytest.mark.parametrize(("launches", "label"), [(0, "launch-bound"), (5000, QUEUE_FULL)])
def test_waiting_for_a_full_queue_is_no_launching(launches: int, label: str) -> None:
    """The host takes 5 us for a launch of 50 us: without the number it seems to take 40."""
    gpu = Gpu(holds=1000)
    found = hot_on(gpu, gpu.kernels(5000, host_ns=5 * US, device_ns=50 * US), launches=launches)
    assert found.value == pytest.approx(0.25, rel=0.01)
    assert found.details["enqueue_s"] == pytest.approx(0.2, rel=0.01)
    assert found.details["labels"] == [label]
    assert found.details["launch_bound"] is (not launches)


def test_making_events_is_no_launching() -> None:
    """The host takes 4 us to launch a kernel of 12 us, and 5 us for each event around it."""
    gpu = Gpu(event_ns=5 * US)
    found = hot_on(gpu, gpu.kernels(host_ns=4 * US, device_ns=12 * US))
    assert found.details["enqueue_s"] == pytest.approx(4e-6)
    assert (found.details["launch_bound"], found.details["labels"]) == (False, [])


def test_a_gpu_warms_up_for_a_second() -> None:
    gpu = Gpu()
    found = hot_on(gpu, gpu.kernels(device_ns=10 * MS))
    assert found.details["warmup"] == 100
    cpu = Clock()
    short = read(latency(Work(cpu, 10 * MS), clock=cpu, **SAME))
    assert short.details["warmup"] == 3


def test_a_reset_that_works_on_the_gpu_lies_between_regions() -> None:
    gpu = Gpu()
    reset = gpu.kernels(device_ns=500 * US)
    found = hot_on(gpu, gpu.kernels(device_ns=100 * US), reset=reset)
    assert found.value == pytest.approx(100e-6)
    assert (found.details["block"], found.details["reset"]) == (1, "outside")


# Cold


def test_cold_is_a_call_after_a_flush_with_its_launches_queued_ahead() -> None:
    """Three launches of 5 us, 20 us of host time each, the first one 30 us longer when cold."""
    gpu = Gpu()
    found = cold_on(gpu, gpu.kernels(3, device_ns=5 * US, cold_ns=30 * US))
    assert found.name == "latency_cold"
    assert found.value == pytest.approx(45e-6)
    assert found.details["queued_ahead"] == 1
    assert found.details["labels"] == []
    assert found.details["flushed_bytes"] == 2**28
    assert (found.details["cache_bytes"], found.details["cache_source"]) == (2**26, "invented")
    assert (found.details["cache"], found.details["block"]) == ("cold", 1)


def test_hot_does_not_see_the_cold_caches() -> None:
    gpu = Gpu()
    found = hot_on(gpu, gpu.kernels(device_ns=50 * US, cold_ns=30 * US))
    assert found.value == pytest.approx(50e-6)


def test_the_gpu_sleeps_for_longer_than_enqueueing_takes() -> None:
    gpu = Gpu(cycle_ns=0.5)
    cold_on(gpu, gpu.kernels(3, device_ns=5 * US))
    # sleep and flush take the host 5 us each, three launches 20 us each: 70 us, slept twice
    assert gpu.slept[-1] * gpu.cycle_ns == pytest.approx(2 * 70 * US + 50 * US)


def test_a_sleep_calibrated_at_the_clocks_of_an_idle_gpu_is_calibrated_anew() -> None:
    """At 1980 MHz a cycle is 5.7 times as short as at 345 MHz."""
    gpu = Gpu(cycle_ns=2.9)
    timer = AheadTimer(gpu)
    gpu.cycle_ns = 0.505
    flush = Flush(lambda: None, 2**28, 2**26, "invented")
    work = gpu.kernels(3, device_ns=20 * US)
    found = read(latency_cold(work, timer=timer, flush=flush, **SAME))
    assert found.details["queued_ahead"] == 1 and found.details["labels"] == []


def test_without_the_private_sleep_the_reason_is_kept_and_launch_gaps_are_labelled() -> None:
    gpu = Gpu(sleeps=False)
    found = cold_on(gpu, gpu.kernels(8, device_ns=5 * US))
    assert "torch.cuda._sleep cannot be used" in found.details["no_sleep"]
    # the flush keeps the GPU busy for 100 us only: it waits for the last of eight launches
    assert found.value > 40e-6
    gpu = Gpu()
    assert cold_on(gpu, gpu.kernels(8, device_ns=5 * US)).value == pytest.approx(40e-6)


def test_a_call_that_waits_for_the_gpu_itself_is_not_queued_ahead() -> None:
    gpu = Gpu()

    def waiting() -> None:
        gpu.kernels(device_ns=5 * US)()
        gpu.wait()
        gpu.kernels(device_ns=5 * US)()

    found = cold_on(gpu, waiting)
    assert found.details["queued_ahead"] == 0
    assert found.details["labels"] == ["not queued ahead"]


def test_cold_counts_the_flushes_among_the_half_second() -> None:
    """A call of 10 us after a flush of 10 ms: three a block of 25 ms, not 2,500."""
    clock = Clock()
    flush = Flush(Work(clock, 10 * MS), 64, 32, "invented")
    work = Work(clock, 10 * US)
    found = read(latency_cold(work, timer=ClockTimer(clock), flush=flush, **SAME))
    assert found.value == pytest.approx(10e-6)
    assert found.details["blocks"] == [3] * 20
    assert found.details["stop_rule"] == "median settled"


def test_a_cold_call_near_the_step_of_the_clock_is_labelled() -> None:
    clock = Clock()
    flush = Flush(Work(clock, MS), 64, 32, "invented")
    found = read(latency_cold(Work(clock, 10), timer=ClockTimer(clock), flush=flush, **SAME))
    assert found.details["labels"] == ["near the clock's step"]


def test_the_order_is_reset_flush_call() -> None:
    clock = Clock()
    order: list[str] = []

    def noting(name: str) -> None:
        order.append(name)
        clock.ns += MS

    flush = Flush(partial(noting, "flush"), 64, 32, "invented")
    latency_cold(
        partial(noting, "call"),
        reset=partial(noting, "reset"),
        timer=ClockTimer(clock),
        flush=flush,
        **SAME,
    )
    assert order == ["reset", "flush", "call"] * (len(order) // 3)


def test_cold_on_a_real_cpu_flushes_twice_its_last_level_cache(
    instead: Instead,
) -> None:
    instead(last_level_bytes=last_level_bytes)
    try:
        held, _ = last_level_bytes()
    except CacheError as error:
        pytest.skip(str(error))
    found = read(latency_cold(lambda: torch.ones(8) + 1, limits=BRIEF))
    assert found.value > 0
    assert found.details["flushed_bytes"] >= 2 * held
    assert "level" in found.details["cache_source"]


def test_flushing_reads_the_whole_buffer_and_leaves_nothing_to_be_written_back() -> None:
    flush = cpu_flush((1024, "invented"))
    assert (flush.size, flush.cache_bytes, flush.source) == (2048, 1024, "invented")
    held = inspect.getclosurevars(flush.act).nonlocals
    flush()
    assert float(held["total"]) == 512
    assert held["buffer"].numel() == 512 and bool((held["buffer"] == 1).all())


def test_unknown_caches_are_a_reason(tmp_path: Path, instead: Instead) -> None:
    instead(flush_for=lambda place: cpu_flush(last_level_bytes(tmp_path)))
    assert refused(latency_cold(lambda: None)).startswith(
        "caches cannot be flushed: expected the sizes of the processors' caches in"
    )


def cache(root: Path, cpu: int, index: int, level: int, size: str, shared: str, kind: str) -> None:
    place = root / f"cpu{cpu}" / "cache" / f"index{index}"
    place.mkdir(parents=True)
    for name, text in {
        "level": str(level), "size": size, "shared_cpu_list": shared, "type": kind
    }.items():  # fmt: skip
        (place / name).write_text(text + "\n")


def test_caches_that_processors_share_count_once(tmp_path: Path) -> None:
    """Four processors, two of them to a last-level cache of 32 MiB."""
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        cache(tmp_path, cpu, 0, 1, "48K", str(cpu), "Data")
        cache(tmp_path, cpu, 1, 1, "32K", str(cpu), "Instruction")
        cache(tmp_path, cpu, 3, 3, "32768K", pair, "Unified")
    (tmp_path / "cpu0" / "cache" / "index9").mkdir()  # one that says nothing
    size, source = last_level_bytes(tmp_path)
    assert size == 2 * 32 * 2**20
    assert source.endswith("2 of level 3")


def test_a_last_level_of_unknown_size_is_no_smaller_level(tmp_path: Path) -> None:
    """The kernel lists caches whose size the firmware leaves out: their `size` is missing."""
    cache(tmp_path, 0, 2, 2, "1024K", "0", "Unified")
    cache(tmp_path, 0, 3, 3, "", "0", "Unified")
    (tmp_path / "cpu0" / "cache" / "index3" / "size").unlink()
    with pytest.raises(CacheError, match=r"found none of level 3$"):
        last_level_bytes(tmp_path)


def test_caches_of_unknown_sharing_have_no_sum(tmp_path: Path) -> None:
    """Without the list of processors, two caches of one level may be one."""
    for cpu in range(2):
        cache(tmp_path, cpu, 3, 3, "32768K", str(cpu), "Unified")
        (tmp_path / f"cpu{cpu}" / "cache" / "index3" / "shared_cpu_list").unlink()
    with pytest.raises(CacheError, match=r"found none of level 3$"):
        last_level_bytes(tmp_path)


def test_sizes_of_caches_are_read() -> None:
    assert [bytes_of(text) for text in ("48K", "2M", "1G", "512")] == [49152, 2**21, 2**30, 512]
    with pytest.raises(ValueError, match="invalid literal"):
        bytes_of("many")


def test_the_l2_of_a_gpu_is_what_torch_tells() -> None:
    class Told:
        L2_cache_size = 50 * 2**20

    assert l2_bytes(Told()) == 50 * 2**20
    assert l2_bytes(object()) is None  # an older torch: 256 MiB are flushed all the same
    assert LEAST_GPU_BYTES == 256 * 2**20


# Graph


def graphed(graphs: ScriptedGraphs, **changes: Any) -> Any:
    return latency_graph(
        lambda: None,
        device="cuda",
        capturing=lambda fn, place: capture(fn, place, graphs),
        **(SAME | changes),
    )


def test_graph_times_replays_and_gives_the_graph_back() -> None:
    gpu, y = Gpu(), torch.tensor([1.0, 2.0])
    graphs = ScriptedGraphs(gpu.kernels(host_ns=2 * US, device_ns=40 * US), results=[y])
    found = read(graphed(graphs, timer=CudaTimer(gpu)))
    assert found.name == "latency_graph"
    assert found.value == pytest.approx(40e-6)
    assert found.details["graph_agrees"] is True
    assert (found.details["input_sets"], found.details["one_set"]) == (1, STATIC)
    assert found.details["labels"] == []
    assert graphs.released


def test_graph_that_gives_something_else_is_labelled() -> None:
    gpu = Gpu()
    results = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])]
    found = read(
        graphed(
            ScriptedGraphs(gpu.kernels(device_ns=40 * US), results=results), timer=CudaTimer(gpu)
        )
    )
    assert found.details["graph_agrees"] is False
    assert found.details["labels"] == [GRAPH_DIFFERS]


def test_a_recurrence_whose_state_each_call_changes_is_not_compared_with_its_graph() -> None:
    gpu = Gpu()
    results = [torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([0.25])]
    graphs = ScriptedGraphs(gpu.kernels(device_ns=40 * US), results=results)
    found = read(graphed(graphs, timer=CudaTimer(gpu)))
    assert found.details["graph_agrees"] is None
    assert found.details["labels"] == []


def test_a_graph_as_short_as_its_own_launch_says_so() -> None:
    """Replays of 2 us that the host launches every 6 us: what is timed is the launching."""
    gpu, y = Gpu(), torch.tensor([1.0])
    graphs = ScriptedGraphs(gpu.kernels(host_ns=6 * US, device_ns=2 * US), results=[y])
    found = read(graphed(graphs, timer=CudaTimer(gpu)))
    assert found.value == pytest.approx(6e-6, rel=0.01)
    assert found.details["labels"] == ["bound by the graph's launch"]


def test_results_of_half_precision_agree_within_its_rounding() -> None:
    one = torch.ones(4, dtype=torch.bfloat16)
    assert tensors_close(one, one + 2**-7)  # the step of bfloat16 at 1
    assert not tensors_close(torch.ones(4), torch.ones(4) * 1.01)
    assert not tensors_close(torch.ones(4), torch.full((4,), float("nan")))
    assert not tensors_close(torch.ones(4), torch.ones(3))


def test_a_replay_repeats_what_is_not_finite_in_a_result() -> None:
    """A NaN in the result of a call, as of logarithms below zero, is no fault of the graph."""
    nan, inf = float("nan"), float("inf")
    expected = torch.tensor([nan, inf, 1.0])
    assert tensors_close(expected, torch.tensor([nan, inf, 1.0 + 1e-5]))
    assert not tensors_close(expected, torch.tensor([nan, inf, 1.1]))
    assert not tensors_close(expected, torch.tensor([nan, nan, 1.0]))
    assert tensors_close(torch.full((2,), nan), torch.full((2,), nan))


def test_results_of_every_type_are_compared() -> None:
    """Numbers beyond those of float32, and a type of 8 bits, in which torch compares nothing."""
    large = torch.tensor([1e300], dtype=torch.float64)
    assert tensors_close(large, large) and not tensors_close(large, large / 2)
    one, two = (torch.full((2,), x).to(torch.float8_e4m3fn) for x in (1.0, 2.0))
    assert tensors_close(one, one) and not tensors_close(one, two)


def test_graph_capture_fails_of_a_call_that_waits_for_the_gpu() -> None:
    error = RuntimeError("called a synchronizing CUDA operation")
    assert refused(graphed(ScriptedGraphs(rehearsal=error))) == (
        "the call cannot be captured as a CUDA graph: called a synchronizing CUDA operation"
    )


def test_graph_capture_fails_and_the_first_error_is_the_reason() -> None:
    """Ending a broken capture raises another error, which says nothing."""
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = RuntimeError("operation not permitted when stream is capturing")
    assert refused(graphed(ScriptedGraphs(capture=error))) == (
        "the call failed while a CUDA graph was captured: operation not permitted when stream is "
        "capturing"
    )


def test_graph_capture_that_poisons_the_context_is_noticed() -> None:
    graphs = ScriptedGraphs(capture=RuntimeError("capture invalidated"), lost=True)
    with pytest.raises(ContextLost, match="cannot be used by this process any more") as caught:
        graphed(graphs)
    assert "capture invalidated" in str(caught.value)
    assert not isinstance(caught.value, GraphError)


def test_a_replay_that_breaks_the_device_is_noticed() -> None:
    with pytest.raises(ContextLost, match="illegal memory access"):
        graphed(ScriptedGraphs(lambda: None, lost=True))


def test_the_warning_of_refusing_waits_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sets the mode, and then warns once of it: where warnings are errors, that raises."""
    mode: list[int | str] = [0]

    def switch(wanted: int | str) -> None:
        mode.append(wanted)
        if len(mode) == 2:
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switch)
    with refusing_waits():
        pass
    assert mode == [0, "error", 0]


def test_no_graph_on_a_cpu() -> None:
    assert refused(latency_graph(lambda: None)) == (
        "a CUDA graph needs an NVIDIA GPU, and the device is cpu"
    )


def test_no_graph_where_work_comes_before_each_call() -> None:
    reason = refused(graphed(ScriptedGraphs(), reset=lambda: None))
    assert "the graph would include the work before every call" in reason


def test_eager_over_graph_beyond_a_fifth_is_launch_bound() -> None:
    def found(eager: float, graph: float, labelled: bool = False) -> Any:
        labels = ["power-capped"] + ["launch-bound"] * labelled
        before = {"labels": labels, "launch_bound": labelled}
        hot = Reading("latency", eager, "s", (), before)
        return with_launches_labelled(
            {"latency": hot, "latency_graph": Reading("latency_graph", graph, "s")}
        )["latency"]

    bound = found(1.3, 1.0).details
    assert bound["labels"] == ["power-capped", "launch-bound"]
    assert (bound["launch_bound"], bound["graph_gain"]) == (True, pytest.approx(1.3))
    assert found(1.1, 1.0).details["labels"] == ["power-capped"]
    # large kernels fill the queue: enqueueing them takes as long as the call, the graph too
    full = found(1.04, 1.0, labelled=True).details
    assert full["labels"] == ["power-capped"] and not full["launch_bound"]


def test_without_a_graph_nothing_is_compared() -> None:
    hot = Reading("latency", 1.0, "s")
    given: dict[str, Measured] = {"latency": hot, "latency_graph": Unavailable("no GPU")}
    assert with_launches_labelled(given) == given


# All three


@pytest.mark.parametrize(
    ("labels", "tried"),
    [
        (["1 sample"], (SEVERAL, ONE)),
        (["preempted"], (SEVERAL, ONE)),
        (["preempted", "one thread"], (ONE,)),
    ],
)
def test_only_a_hot_time_of_one_thread_limits_the_threads_of_the_cold_time(
    instead: Instead, labels: list[str], tried: tuple[str, ...]
) -> None:
    hot = Reading("latency", 1.0, "s", (1.0,), {"grade": "busy", "labels": labels})
    given: list[Any] = []
    instead(latency=lambda *_, **__: hot)
    instead(latency_cold=lambda *_, tried, **__: given.append(tried))
    latency_readings(lambda: None, limits=BRIEF)
    assert given == [tried]


@pytest.mark.parametrize(
    ("cold_ms", "words"), [(149, "≈ 300 µs (busy, one thread)"), (0, "≈ 200 µs (busy)")]
)
def test_a_cold_time_whose_threads_wait_for_one_another_is_taken_with_one_thread(
    cold_ms: int, words: str, instead: Instead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads: of calls back to back one in 20 waits for a slice, after a flush every call for
    `cold_ms`; one thread waits for none."""
    clock, threads = Clock(), [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: threads.__setitem__(0, n))
    spinning = Shared(clock, Work(clock, 200 * US), every=20)
    flushed = [False]

    def call() -> None:
        cold, flushed[0] = flushed[0], False
        if threads[0] == 2:
            spinning()
            clock.ns += cold * cold_ms * MS
            spinning.waited_ns += cold * cold_ms * MS
            return
        clock.ns += 300 * US
        spinning.ran_ns += 300 * US

    flush = Flush(lambda: flushed.__setitem__(0, True), 64, 32, "invented")
    instead(latency_timers=lambda *_: ClockTimer(clock), latency_watch=lambda *_: spinning)
    instead(flush_for=lambda *_: flush)
    found = latency_readings(call, limits=LatencyLimits.within(1))
    assert threads == [2]
    assert time_words(read(found["latency"])) == "≈ 200 µs (busy)"
    assert time_words(read(found["latency_cold"])) == words


def test_the_three_readings_by_name() -> None:
    x = torch.randn(16, 16)
    found = latency_readings(lambda: x @ x, limits=BRIEF)
    assert list(found) == ["latency", "latency_cold", "latency_graph"]
    assert read(found["latency"]).name == "latency"
    assert isinstance(found["latency_graph"], Unavailable)


@pytest.mark.gpu
def test_hot_cold_and_graph_on_a_gpu() -> None:
    """A product far from launch-bound: all three within a factor of two, cold the slowest."""
    x = torch.randn(4096, 4096, device="cuda")
    found = latency_readings(lambda: x @ x, device="cuda")
    hot, cold, graph = (read(found[name]) for name in found)
    assert hot.details["timer"] == "cuda events"
    assert hot.details["launch_bound"] is False
    assert 0.5 < graph.value / hot.value < 1.2
    assert 0.8 < cold.value / hot.value < 2
    assert cold.details["queued_ahead"] > 0.9
    assert cold.details["flushed_bytes"] >= 2**28
    assert graph.details["graph_agrees"] is True


@pytest.mark.gpu
def test_a_small_addition_is_launch_bound_on_a_gpu() -> None:
    x = torch.randn(8, device="cuda")
    found = latency_readings(lambda: x + x + x + x, device="cuda")
    assert "launch-bound" in read(found["latency"]).details["labels"]
    assert read(found["latency_graph"]).value < read(found["latency"]).value


@pytest.mark.gpu
def test_a_call_that_waits_cannot_be_captured_and_the_gpu_stays_usable() -> None:
    x = torch.randn(8, device="cuda")
    waiting = latency_graph(lambda: (x + x).sum().item(), device="cuda")
    assert "cannot be captured" in refused(waiting)
    assert float((torch.ones(2, device="cuda") * 2).sum()) == 4.0
    assert read(latency_graph(lambda: x + x, device="cuda")).value > 0
