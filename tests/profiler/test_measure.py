"""Does one measurement hold every reading of a machine, and a reason for each missing one?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor, nn

import costmodel as cm
from costmodel.mixers import DEFAULT
from profiler.counting.other_counters import PeerCount, flop_counter_mode
from profiler.meters.compilation import Compiled
from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.sampler import LatencyLimits
from profiler.meters.torch_profile import OperationTimes
from profiler.mixers.extractor import MeToeplitz, SheDirect
from profiler.modules import Implementation, implementations
from profiler.records.measurement import Measurement
from profiler.records.quantities import QUANTITIES, read_by
from profiler.records.reading import MeasureError, Reading, Unavailable
from profiler.records.store import line_of
from profiler.run import called as called_file, measure as measure_file
from profiler.run.called import called_by, on_meta
from profiler.run.measure import (
    count as count_alone,
    failure,
    launch_estimate,
    measure,
    peer_json,
)
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request
from profiler.sweep.session import run
from tests import printing
from tests.profiler.test_work import NO_GPU, asked
from tests.stand_ins import Instead
from tests.user_mixers import written

BRIEF = LatencyLimits(
    min_blocks=3, max_blocks=3, max_seconds=0.02, warmup_calls=3, warmup_seconds=0.02
)


def doctored(module: type[nn.Module], mixer: str = "me", implementation: str = "toeplitz") -> Any:
    """A request for a class under the description of a built-in one."""
    request = asked(mixer, implementation)
    return replace(request, implementation=replace(request.implementation, made=module))


@pytest.fixture(scope="module")
def forward() -> Measurement:
    return measure(asked("self-attention", "explicit"), limits=BRIEF)


@pytest.fixture(scope="module")
def token() -> Measurement:
    return measure(asked("she", "direct", phase="inference"), limits=BRIEF)


def test_what_was_measured_is_named(forward: Measurement, token: Measurement) -> None:
    assert (forward.mixer, forward.implementation, forward.form) == (
        "self-attention", "explicit", "direct",
    )  # fmt: skip
    assert forward.sizes == {"b": 2, "l": 5, "d": 6, "n": 2}
    assert (forward.dtype, forward.phase, forward.device) == ("fp32", "training", "cpu")
    assert token.sizes == {"b": 2, "l": 5, "d": 6, "t": 4}
    assert token.phase == "inference"
    assert forward.counts["seed"] == 0
    assert forward.environment["torch"] == torch.__version__


def test_latency_keeps_its_samples(forward: Measurement) -> None:
    latency = forward.readings["latency"]
    assert latency.unit == "s"
    assert len(latency.samples) == latency.details["n"]
    assert len(latency.details["blocks"]) <= 3
    assert min(latency.samples) <= latency.value <= max(latency.samples)
    assert latency.details["p20"] <= latency.details["p80"]


def test_a_measurement_has_the_bytes_of_its_result_and_its_kernels(forward: Measurement) -> None:
    """Every call keeps its result, y: b l d numbers of 4 bytes."""
    memory = forward.readings["peak_memory"]
    assert (memory.unit, memory.details["kept"]) == ("B", 2 * 5 * 6 * 4)
    assert memory.value >= 2 * 5 * 6 * 4
    kernels = forward.readings["kernels"]
    assert kernels.value == forward.counts["dispatch"]["launched"] > 0
    assert kernels.details["method"] == "dispatched non-view operations"


def test_what_stands_in_memory_before_the_call(forward: Measurement, token: Measurement) -> None:
    weights = forward.readings["weights"]
    assert (weights.value, weights.unit) == (4 * 6 * 6 * 4, "B")
    assert forward.reasons["state"] == "a forward pass keeps no state between tokens"
    assert token.readings["weights"].value == cm.parameters(cm.mixer("she")).at(d=6, l=5) * 4
    state = token.readings["state"]
    assert state.value == cm.state(cm.mixer("she")).at(b=2, d=6, l=5, t=4) * 4
    assert state.details == {"allocated": state.value}


def test_every_reading_has_its_line_in_the_table(forward: Measurement, token: Measurement) -> None:
    for record in (forward, token):
        told = {*record.readings, *record.reasons}
        assert told >= {*read_by("clock", "memory", "profiler", "energy")}
        units = {name: reading.unit for name, reading in record.readings.items()}
        assert units == {name: QUANTITIES[name].unit for name in units}


def test_the_state_of_a_window_is_what_is_valid_of_it(tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, "window-early"))
    sizes = {"b": 2, "l": 7, "d": 3, "w": 6, "t": 2}
    request = Request(mixer, implementations(mixer)["direct"], sizes, "inference")
    state = measure(request, limits=BRIEF).readings["state"]
    assert (state.value, state.details["allocated"]) == (2 * 2 * 3 * 4, 2 * 5 * 3 * 4)


def test_dispatched_operations_are_the_equations_own(token: Measurement) -> None:
    """`direct` SHE does the triangular work and nothing else."""
    counted = cm.count(cm.mixer("she"), "inference").at(b=2, l=5, d=6, t=4)
    operations = token.counts["dispatch"]["operations"]
    assert operations == {
        "mul": counted.mul, "add": counted.add, "div": 0, "exp": 0, "other": {}
    }  # fmt: skip
    assert token.counts["dispatch"]["complete"] is True


def test_peers_say_what_they_left_out_and_its_share_of_the_time(forward: Measurement) -> None:
    for name, unit in (("torch", "flop"), ("fvcore", "mac")):
        peer = forward.counts["peers"][name]
        assert peer["unit"] == unit
        assert peer["total"] > 0
        assert any("softmax" in operation for operation in peer["uncounted"])
        assert 0 < peer["uncounted_time_share"] < 1


def test_the_share_is_unknown_where_times_are() -> None:
    peer = PeerCount("torch", 3, {"aten::mm": 3}, "flop", {"aten::add": 1})
    times = OperationTimes({("aten::add",): 1.0, ("aten::mm",): 3.0})
    assert peer_json(peer, times)["uncounted_time_share"] == 0.25
    assert peer_json(peer, Unavailable("no trace"))["uncounted_time_share"] is None


@NO_GPU
def test_energy_without_a_gpu_is_a_reason(forward: Measurement) -> None:
    for name in ("energy", "energy_net", "power"):
        assert name not in forward.readings
        assert "NVML" in forward.reasons[name]


def test_every_energy_is_missing_for_the_same_reason(instead: Instead) -> None:
    instead(energy=lambda *a, **k: Unavailable("NVML: forbidden"))
    request = asked("me", "fft")
    assert measure_file.energies_of_work(prepare(request), request) == dict.fromkeys(
        ("energy", "energy_net", "power"), Unavailable("NVML: forbidden")
    )


def test_energy_is_measured_within_the_limits_that_were_asked_for(
    instead: Instead,
) -> None:
    given: list[EnergyLimits] = []

    def metered(fn: object, *, limits: EnergyLimits, **_: object) -> Unavailable:
        given.append(limits)
        return Unavailable("not now")

    instead(energy=metered)
    request = asked("me", "fft")
    work = prepare(request)
    measure_file.energies_of_work(work, request)
    measure_file.energies_of_work(work, replace(request, energy_window_s=2.5, energy_trials=8))
    assert given == [EnergyLimits(), EnergyLimits(window_s=2.5, trials=8)]
    found = measure_file.energies_of_work(work, replace(request, energy=False))
    assert {each.reason for each in found.values() if isinstance(each, Unavailable)} == {
        "energy was not asked for (--energy)"
    }
    assert len(given) == 2


@pytest.mark.parametrize(("label", "shared"), [("1 sample", True), ("preempted", False)])
def test_a_time_of_one_sample_is_shared_out_and_a_disturbed_one_is_not(
    instead: Instead, label: str, shared: bool
) -> None:
    time = Reading("latency", 1e-3, "s", (1e-3,), {"grade": "busy", "labels": [label]})
    instead(latency_kinds=lambda *_, **__: {"latency": time})
    found = measure(asked("me", "toeplitz"), limits=BRIEF)
    assert ("launch_estimate" in found.readings) == shared
    share = found.counts["peers"]["torch"]["uncounted_time_share"]
    assert (share is not None) == shared


def test_a_peer_that_fails_is_a_reason(instead: Instead) -> None:
    instead(fvcore_count=lambda *a, **k: Unavailable("fvcore: broken"))
    found = measure(asked("me", "toeplitz"), limits=BRIEF)
    assert found.reasons["peer fvcore"] == "fvcore: broken"
    assert set(found.counts["peers"]) == {"torch"}


def test_a_measurement_is_a_line_of_json(forward: Measurement) -> None:
    assert line_of(forward).startswith('{"schema": 1, "id": "')


def test_what_happens_is_told_step_by_step() -> None:
    said: list[str] = []
    measure(asked("me", "toeplitz"), limits=BRIEF, note=said.append)
    assert said[0] == "building"
    assert said[-2:] == ["measuring energy", "sharing out the time"]  # a profiler slows launches
    assert "measuring latency" in said


def test_counting_alone_takes_the_peak_from_the_run_that_lists_its_tensors(
    instead: Instead,
) -> None:
    request = asked("self-attention", "explicit")
    measured = measure_file.peak_of_call(prepare(request), "cpu")
    instead(peak_memory=lambda *_, **__: pytest.fail("one more run"))
    found = measure_file.count(request).readings["peak_memory"]
    assert isinstance(measured, Reading) and found.value == measured.value
    assert found.details["runs"] == 1


class Remembers(MeToeplitz):
    """Keeps what its first call computes, and dispatches an operation that is counted by parts."""

    calls = 0
    kept: Tensor | None = None

    def mix(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        if self.kept is None:
            self.kept = torch.exp(torch.zeros(60_013))
        with torch.inference_mode():
            return super().mix(nn.functional.hardsigmoid(x))


def test_one_run_counts_for_both_counters_after_the_run_that_fills_caches() -> None:
    request = doctored(Remembers)
    work = prepare(request)
    work.once()
    alone, peer = called_file.dispatched_by(work), flop_counter_mode(work.bare)
    Remembers.calls = 0
    found = measure_file.count(request)
    assert found.readings["peak_memory"].value < 60_013
    assert Remembers.calls <= 4  # the list once more, the counters, the trace of fvcore
    assert found.counts["dispatch"] == alone.to_json()
    assert isinstance(peer, PeerCount)
    printed = found.counts["peers"]["torch"]
    assert printed == peer.to_json() | {"uncounted_time_share": None}


def test_a_training_step_runs_twice_for_its_counts() -> None:
    """Once for the counters, once for zeros and the names of the forward pass."""
    work = prepare(asked("we", "toeplitz", phase="training-step"))
    calls: list[nn.Module] = []
    work.module.register_forward_pre_hook(lambda module, _: calls.append(module))
    assert called_by(work).forward
    assert len(calls) == 2


@pytest.mark.grid(4)
@pytest.mark.parametrize("phase", ["training", "inference", "training-step"])
@pytest.mark.parametrize(
    ("mixer", "name"), [(mixer, name) for mixer in DEFAULT for name in implementations(mixer)]
)
def test_a_run_without_values_dispatches_what_a_run_does(mixer: str, name: str, phase: str) -> None:
    """Or is not taken: fused attention has another kernel on the meta device, and a transform's
    gradient for several sequences another layout."""
    token = {"t": 5} if phase == "inference" else {}
    request = asked(mixer, name, phase=phase, sizes={"b": 3, "l": 11, "d": 6, "n": 2, **token})
    work = prepare(request)
    work.once()
    run, meta = called_by(work), on_meta(request)
    if meta is None:
        assert name == "sdpa" or (name == "fft" and phase == "training-step")
        return
    expected = replace(run, peers={x: run.peers[x] for x in meta.peers}, details=meta.details)
    assert meta == expected and {*meta.peers} == {*run.peers}


@pytest.mark.parametrize(
    ("mixer", "name", "same"),
    [
        ("she", "direct", True),
        ("she", "fft", True),
        ("she", "conv", False),
        ("gla", "parallel", True),
    ],
)
def test_the_peak_of_a_long_call_is_that_of_a_run(
    mixer: str, name: str, same: bool, instead: Instead
) -> None:
    """From the meta device, unless a kernel allocates bytes for itself, as a convolution does: then
    from a run, which the longest calls do without."""
    request = asked(mixer, name, sizes={"b": 3, "l": 67, "d": 6, "n": 2})
    run = measure_file.count(request)
    instead(counted_many=0)
    long = measure_file.count(request)
    peaks = [found.readings["peak_memory"] for found in (run, long)]
    assert peaks[0].value == peaks[1].value
    assert ("meta device" in peaks[1].details["method"]) is same
    assert long.counts["peers"] == run.counts["peers"]
    if same:
        return
    instead(counted_most=0)
    longest = measure_file.count(request)
    without = {"peak_memory", "tensors_at_peak"}
    assert longest.counts == long.counts
    assert {*longest.readings} == {*long.readings} - without
    assert all(longest.reasons[x].endswith("leave out --counts-only") for x in without)


class ReadsValues(MeToeplitz):
    """Reads a value, so that the module has no run without values."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x + 1 if bool(x.sum() > 1e6) else x)


@pytest.mark.parametrize("module", [MeToeplitz, ReadsValues])
@pytest.mark.parametrize("limit", ["counted_long_s", "counted_large"])
def test_a_long_call_is_counted_without_values_where_that_counts_the_same(
    module: type[nn.Module], limit: str, instead: Instead
) -> None:
    """And the parameters of a large module are then not drawn."""
    request = doctored(module)
    instead(counted_long_s=float("inf"))  # on any machine
    short = measure_file.count(request)
    drawn: list[bool] = []

    def noted(asked: Request) -> PreparedCall:
        drawn.append(asked.drawn)
        return prepare(asked)

    instead(prepare=noted, **{limit: 0})
    long = measure_file.count(request)
    assert drawn[-1] == (module is ReadsValues or limit == "counted_long_s")
    told = long.counts["call"].pop("counted", "")
    assert told.startswith("on the meta device") == (module is MeToeplitz)
    assert long.counts == short.counts
    assert {x: r.value for x, r in long.readings.items()} == {
        x: r.value for x, r in short.readings.items()
    }


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_the_processor_time_of_a_call_decides_whether_it_is_counted_without_values(
    seconds: float, instead: Instead
) -> None:
    instead(processor_clock=partial(next, count(0.0, seconds)))
    counts = measure_file.count(doctored(MeToeplitz)).counts
    assert ("counted" in counts["call"]) == (seconds > 1)


def test_the_floor_grows_with_the_operations() -> None:
    floor = launch_estimate("cpu", 7, BRIEF)
    assert isinstance(floor, Reading)
    assert floor.value == 7 * floor.details["smallest_operation_s"] > 0


# One new token


def test_one_token_costs_what_the_history_makes_it_cost() -> None:
    def dispatched(t: int) -> int:
        request = asked("we", "toeplitz", phase="inference", sizes={"t": t})
        operations = measure(request, limits=BRIEF).counts["dispatch"]["operations"]
        return int(operations["mul"])

    for t in (1, 5):
        sizes = {"b": 2, "l": 5, "d": 6, "t": t}
        assert dispatched(t) == cm.count(cm.mixer("we"), "inference").at(**sizes).mul


def test_a_token_beyond_l_where_no_weight_ends_there() -> None:
    request = asked("self-attention", "explicit", phase="inference", sizes={"t": 9})
    found = measure(request, limits=BRIEF)
    assert found.sizes["t"] == 9


def test_a_token_beyond_the_weights_is_a_sentence() -> None:
    request = asked("we", "fft", phase="inference", sizes={"t": 9})
    with pytest.raises(MeasureError, match="length 9 is greater than l = 5, where the weights end"):
        measure(request, limits=BRIEF)


def test_no_step_no_token() -> None:
    request = asked("me", "toeplitz", phase="inference")
    stepless = replace(request.implementation, step_form=None)
    with pytest.raises(MeasureError, match=r"me toeplitz \(fp32\): it has no `step`"):
        measure(replace(request, implementation=stepless))


# What goes wrong


class Raises(MeToeplitz):
    """Fails in its own words."""

    def mix(self, x: Tensor) -> Tensor:
        raise RuntimeError("the fuse is blown\nat some frame")


class WrongKey(MeToeplitz):
    """Fails as only somebody's own code does."""

    def mix(self, x: Tensor) -> Tensor:
        return {"y": x}["z"]


class OutOfMemory(MeToeplitz):
    """Asks for more than there is, as CUDA says it."""

    def mix(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")


class TooLarge(MeToeplitz):
    """Asks for more than there is on a CPU."""

    def mix(self, x: Tensor) -> Tensor:
        return torch.empty(2**50, dtype=torch.float64)


class LaterOutOfMemory(MeToeplitz):
    """The first call fits; the next does not."""

    calls = 0

    def mix(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        if self.calls > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().mix(x)


class LaterWrongKey(MeToeplitz):
    """A call that finds what an earlier call left."""

    kept: bool

    def mix(self, x: Tensor) -> Tensor:
        if hasattr(self, "kept"):
            raise KeyError("z")
        self.kept = True
        return super().mix(x)


FAILURES: tuple[tuple[type[nn.Module], str], ...] = (
    (Raises, "me toeplitz (fp32): the call failed: the fuse is blown"),
    (WrongKey, "me toeplitz (fp32): the call failed: KeyError: 'z'"),
    (LaterWrongKey, "me toeplitz (fp32): the call failed: KeyError: 'z'"),
    (OutOfMemory, "me toeplitz (fp32): out of memory: 3 TiB could not be had; take smaller sizes, "
     "a smaller --b first"),
    (LaterOutOfMemory, "me toeplitz (fp32): out of memory: CUDA out of memory; take smaller"),
)  # fmt: skip


@pytest.mark.parametrize(("module", "sentence"), FAILURES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_module_that_fails_is_one_sentence(module: type[nn.Module], sentence: str) -> None:
    LaterOutOfMemory.calls = 0
    with pytest.raises(MeasureError) as failed:
        measure(doctored(module), limits=BRIEF)
    assert str(failed.value).startswith(sentence)
    assert "\n" not in str(failed.value)


class Leaves(MeToeplitz):
    """A call that ends the process."""

    def mix(self, x: Tensor) -> Tensor:
        raise SystemExit(3)


@pytest.mark.parametrize("take", [measure, count_alone])
def test_a_module_that_would_end_the_process_is_one_sentence(take: Any) -> None:
    with pytest.raises(MeasureError, match="the call failed: SystemExit: 3"):
        take(doctored(Leaves), limits=BRIEF)


def test_more_memory_than_there_is_on_a_cpu() -> None:
    with pytest.raises(MeasureError, match=r"out of memory: [0-9,]+ B could not be had; take sm"):
        measure(doctored(TooLarge), limits=BRIEF)
    assert failure(MemoryError()).startswith("out of memory: take smaller sizes, a")


def test_a_failure_stops_nothing_else() -> None:
    good = asked("me", "toeplitz")
    session = run([good, doctored(Raises), doctored(OutOfMemory), good], limits=BRIEF)
    assert [m.implementation for m in session.measurements] == ["toeplitz", "toeplitz"]
    why = [text.split(": ")[1] for text in session.failures]
    assert why == ["the call failed", "out of memory"]


class Fft16(SheDirect):
    """A transform in the dtype of its input."""

    def mix(self, x: Tensor) -> Tensor:
        mixed: Tensor = torch.fft.irfft(torch.fft.rfft(x, dim=1), x.shape[1], dim=1)
        return mixed


@pytest.mark.parametrize(("dtype", "reason"), [("bf16", "no transform"), ("fp16", "no complex")])
def test_a_dtype_that_the_device_lacks_is_a_sentence(dtype: str, reason: str) -> None:
    with pytest.raises(MeasureError) as failed:
        measure(asked("she", "fft", dtype=dtype), limits=BRIEF)
    assert str(failed.value).startswith(f"she fft ({dtype}): torch")
    assert reason in str(failed.value)


def test_a_dtype_that_torch_itself_refuses_is_a_sentence_too() -> None:
    request = replace(doctored(Fft16, "she", "direct"), dtype="bf16")
    with pytest.raises(MeasureError, match=r"she direct \(bf16\): "):
        measure(request, limits=BRIEF)


# Records


def test_a_mixer_of_ones_own_is_recorded_under_its_file(tmp_path: Path) -> None:
    name = written(tmp_path, "window-measured")
    mixer = cm.mixer(name)
    chosen: Implementation = implementations("window-measured")["direct"]
    sizes = {"b": 2, "l": 7, "d": 3, "w": 2}
    found = measure(Request(mixer, chosen, sizes), limits=BRIEF)
    assert found.mixer == name
    assert found.counts["dispatch"]["operations"]["mul"] == cm.count(mixer).at(**sizes).mul


@pytest.mark.gpu
def test_on_a_gpu_everything_is_a_reading() -> None:
    found = measure(asked("self-attention", "explicit", device="cuda:0"), limits=BRIEF)
    assert found.readings.keys() >= {"latency", "peak_memory", "kernels"}
    assert {"energy", "power"} <= found.readings.keys() | found.reasons.keys()
    assert found.readings["latency"].details["timer"] == "cuda events"


def test_what_a_compiler_makes_of_the_call_is_timed(instead: Instead) -> None:
    """By a stand-in for torch.compile, which is tested by itself."""
    calls = []

    def compiled(fn: Any, args: Any, **_: Any) -> Compiled:
        def made(*given: Tensor) -> Any:
            calls.append(len(given))
            return fn(*given)

        return Compiled(made, Reading("compile", 2.5, "s", (2.5,)))

    instead(compile_call=compiled, launch_estimate=lambda *_: calls.clear())
    request = replace(asked("me", "toeplitz"), compile=True)
    (found,) = run([request], limits=BRIEF).measurements
    assert found.readings["compile"].value == 2.5
    assert len(calls) >= found.readings["latency"].details["n"]
    assert found.sweep["options"] == {"compile": True}
    text = printing.measurements([found], "rich")
    assert "toeplitz, compiled" in text and "2.5 s" in text and "compiling" in text
    plain = structs.replace(found, sweep={}, readings={"latency": found.readings["latency"]})
    said = printing.measurements([plain], "rich")
    assert "toeplitz, compiled" not in said and "compiling" not in said
    assert "launches generated kernels" in found.reasons["launch_estimate"]


def test_a_call_that_does_not_compile_is_not_timed_uncompiled(
    instead: Instead,
) -> None:
    instead(compile_call=lambda *_, **__: Unavailable("no compiler"))
    found = measure(replace(asked("me", "toeplitz"), compile=True), limits=BRIEF)
    for name in ("compile", "latency", "latency_cold", "latency_graph", "energy"):
        assert name not in found.readings and found.reasons[name] == "no compiler"
    assert found.readings["peak_memory"].value > 0


@pytest.mark.parametrize("phase", ["backward", "training-step"])
def test_gradients_of_compiled_modules_are_refused(phase: str) -> None:
    with pytest.raises(MeasureError, match=f"leave out --compile, or --phase {phase}"):
        replace(asked("me", "toeplitz"), compile=True, phase=phase)
