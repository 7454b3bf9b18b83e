"""Are inputs suitable for timing, and do calls rotate through several sets where allowed?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import costmodel as cm
from costmodel.mixers import names
from profiler.counting.dispatch import count_dispatch
from profiler.meters.caches import CacheError, cache_bytes
from profiler.meters.latency import STATIC
from profiler.meters.sampler import LatencyLimits
from profiler.modules import implementations
from profiler.records.quantities import LATENCIES
from profiler.records.reading import Reading, Unavailable
from profiler.run.inputs import SETS, ConstantInput, refuse_constant, rotated, why_one_set
from profiler.run.measure import energies_of_work, latencies_of_work
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request
from tests.fake_devices import read
from tests.small import complete
from tests.stand_ins import Instead

BRIEF = LatencyLimits(max_seconds=0.05, warmup_seconds=0.05)
CPU = torch.device("cpu")


@pytest.mark.parametrize("value", [torch.zeros(2, 3), torch.full((4,), 0.5)])
def test_zeros_as_input_are_refused_with_what_to_do(value: torch.Tensor) -> None:
    with pytest.raises(ConstantInput, match=r"input 2, .* throughout: .* torch.randn"):
        refuse_constant([torch.randn(2), value])


def test_random_single_and_integer_inputs_are_let_through() -> None:
    refuse_constant([torch.randn(2, 3), torch.zeros(1), torch.zeros(5, dtype=torch.long), 3, None])
    refuse_constant([torch.tensor([1.0, float("nan")])])  # not constant; whatever else it is


def test_no_work_is_made_of_constant_inputs() -> None:
    def call(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(ConstantInput):
        PreparedCall(torch.nn.Identity(), call, (torch.zeros(2, 3),), None)
    with pytest.raises(ConstantInput):
        PreparedCall(torch.nn.Identity(), call, (torch.randn(3),), None, others=((torch.ones(3),),))


def test_inputs_take_turns() -> None:
    seen: list[float] = []
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    call = rotated(lambda x: seen.append(float(x[0])), [[a], [b]])
    for _ in range(5):
        call()
    assert seen == [1, 3, 1, 3, 1]


def test_rotation_refuses_what_is_none() -> None:
    x = torch.randn(3)
    with pytest.raises(ValueError, match="at least two sets of inputs to rotate, got 1"):
        rotated(lambda x: x, [[x]])
    with pytest.raises(ValueError, match="different shapes or types"):
        rotated(lambda x: x, [[x], [torch.randn(4)]])


# Several sets, where they fit into the cache


def holding(instead: Instead, size: int) -> None:
    """A device whose last-level cache holds so many bytes."""
    instead(cache_bytes=lambda device: (size, "invented"))


def test_two_sets_take_turns_where_they_fit_with_what_stays(
    instead: Instead,
) -> None:
    x, weight = torch.randn(3, 5), torch.randn(7)
    needed = 2 * 3 * 5 * 4 + 7 * 4  # two sets and the weight, 4 B an entry
    holding(instead, needed)
    assert why_one_set(CPU, [x], [weight]) == ""
    holding(instead, needed - 1)
    assert "take 148 B, more than the 147 B of the cache" in why_one_set(CPU, [x], [weight])


def test_a_cache_of_unknown_size_leaves_one_set(instead: Instead) -> None:
    def unknown(device: torch.device) -> tuple[int, str]:
        raise CacheError("nobody tells")

    instead(cache_bytes=unknown)
    assert why_one_set(CPU, [torch.randn(2)]).endswith("is unknown: nobody tells")


def test_the_cache_of_a_gpu_is_its_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        L2_cache_size = 50 * 2**20

    def told(device: torch.device) -> Any:
        return Properties()

    monkeypatch.setattr(torch.cuda, "get_device_properties", told)
    assert cache_bytes(torch.device("cuda"))[0] == 50 * 2**20
    del Properties.L2_cache_size
    with pytest.raises(CacheError, match="does not report the size"):
        cache_bytes(torch.device("cuda"))


def asked(phase: str) -> Request:
    """A mixer with a context, at small sizes."""
    mixer = cm.mixer("self-attention+cross")
    chosen = implementations(mixer)["explicit"]
    sizes = {"b": 2, "d": 6, "e": 3, "l": 5, "n": 2}
    return Request(mixer, chosen, sizes | ({"t": 4} if phase == "inference" else {}), phase)


@pytest.mark.parametrize("phase", ["training", "inference", "backward", "training-step"])
def test_every_phase_is_timed_with_two_sets_and_counted_with_one(
    monkeypatch: pytest.MonkeyPatch, instead: Instead, phase: str
) -> None:
    """Which x the module gets, call by call."""
    holding(instead, 2**30)
    work = prepare(asked(phase))
    got: list[Tensor] = []
    entered = "step" if phase == "inference" else "forward"
    plain = getattr(work.module, entered)

    def spied(x: Tensor, *rest: Any) -> Any:
        got.append(x)
        return plain(x, *rest)

    monkeypatch.setattr(work.module, entered, spied)
    assert len(work.others) == SETS - 1
    for _ in range(2):
        work.once()
    assert all(x is work.args[0] for x in got)
    got.clear()
    call, reset = work.timed()
    for _ in range(4):
        if reset is not None:
            reset()
        call()
    assert [x is work.args[0] for x in got] == [True, False, True, False]
    assert got[1] is work.others[0][0]
    assert not torch.equal(got[0], got[1])


IN_CHUNKS = [
    (name, kind) for name in names() for kind in implementations(name)
    if kind.startswith("chunked")
]  # fmt: skip


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "kind"), IN_CHUNKS)
def test_the_last_token_of_a_chunk_stays_finite_however_often_it_is_timed(
    name: str, kind: str
) -> None:
    """Each call adds the chunk to the sums once more, in a range of exponents like float32's."""
    mixer = cm.mixer(name)
    sizes = complete(mixer, {"b": 1, "l": 16, "t": 16, "d": 16, "n": 2, "C": 8, "k": 4})
    work = prepare(Request(mixer, implementations(name)[kind], sizes, "inference", "bf16"))
    call, reset = work.timed()
    assert reset is not None and work.state is not None
    for _ in range(150):
        reset()
        y = call()
    assert y.isfinite().all()
    assert all(array.isfinite().all() for array in work.state.arrays.values())


@pytest.mark.parametrize("phase", ["backward", "training-step"])
def test_turns_add_no_gradients_up(instead: Instead, phase: str) -> None:
    """The third call, on the first set again, leaves what the first one left."""
    holding(instead, 2**30)
    work = prepare(asked(phase))

    def left() -> list[Tensor]:
        grads = [tensor.grad for tensor in (*work.module.parameters(), *work.args)]
        return [grad.clone() for grad in grads if grad is not None]

    call, reset = work.timed()
    assert reset is not None
    found = []
    for _ in range(3):
        reset()
        call()
        found.append(left())
    assert len(found[0]) == len(found[2]) > len(found[1])  # the second set's own are its own
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True))


def test_where_two_sets_do_not_fit_the_call_is_as_it_was(instead: Instead) -> None:
    holding(instead, 1)
    work = prepare(asked("training"))
    assert work.timed() == (work.bare, work.reset)
    noted = work.noted(Reading("latency", 1.0, "s", (1.0,), {}))
    assert isinstance(noted, Reading)
    assert noted.details["input_sets"] == 1
    assert "evict one another" in noted.details["one_set"]


def test_readings_say_how_many_sets_took_turns(instead: Instead) -> None:
    """Hot and cold take two; the graph is given the call that keeps to one."""
    holding(instead, 2**30)
    given: list[Any] = []

    def graph(fn: Any, **_: Any) -> Reading:
        given.append(fn)
        return Reading("latency_graph", 1.0, "s", (1.0,), {"input_sets": 1, "one_set": STATIC})

    instead(latency_graph=graph)
    request = asked("training")
    work = prepare(request)
    found = latencies_of_work(work, request, count_dispatch(lambda: None), BRIEF)
    sets = {name: read(found[name]).details["input_sets"] for name in LATENCIES}
    assert sets == {"latency": SETS, "latency_cold": SETS, "latency_graph": 1}
    assert given == [work.bare]


def test_energy_is_measured_of_inputs_in_turn(instead: Instead) -> None:
    holding(instead, 2**30)
    got: list[Any] = []

    def metered(fn: Any, **_: Any) -> Unavailable:
        got.extend((fn(), fn()))
        return Unavailable("not now")

    instead(energy=metered)
    energies_of_work(prepare(asked("training")), asked("training"))
    assert not torch.equal(*got)
