"""Is the measured call the one that its phase names, with equal numbers for equal seeds?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from profiler.counting.dispatch import count_dispatch
from profiler.host.device import DTYPES, default_device, device_name
from profiler.mixers.extractor import MeToeplitz
from profiler.modules import Implementation, State, implementations
from profiler.records.element_types import dtype_name
from profiler.records.reading import MeasureError
from profiler.run.prepare import prepare, trained_module
from profiler.run.request import Request
from tests.implementations import equations, every, label
from tests.small import complete

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def asked(mixer: str, implementation: str, **changes: Any) -> Request:
    """A request at small sizes, with changes."""
    known = cm.mixer(mixer)
    sizes = {"b": 2, "l": 5, "d": 6, "n": 2, "t": 4} | changes.pop("sizes", {})
    letters = (*known.letters, "b", *(("t",) if changes.get("phase") == "inference" else ()))
    kept = {letter: s for letter, s in complete(known, sizes).items() if letter in letters}
    made = Request(known, implementations(mixer)[implementation], kept, device="cpu")
    return replace(made, **changes)


# One new token


@pytest.mark.grid(2)
@pytest.mark.parametrize("chosen", [it for it in every() if it.step_form], ids=label)
def test_every_call_is_the_tth_token_on_a_filled_state(chosen: Implementation) -> None:
    """At t = 4: three tokens are held before, and what t needs to hold after."""
    work = prepare(asked(chosen.mixer, chosen.name, phase="inference"))
    state: State = inspect.getclosurevars(inspect.unwrap(work.fn)).nonlocals["state"]
    for _ in range(3):
        work.once()
        assert state.position == 4
    held = [state.held(name) for name in state.arrays]
    assert all(bool((rows != 0).all()) for rows in held)
    mixer = equations(chosen)
    sizes = complete(mixer, {"l": 5, "d": 6, "n": 2, "t": 4})
    assert state.elements == cm.state(mixer, chosen.step_form).at(**sizes)


# Gradients


class Ungraded(MeToeplitz):
    """Gives a result that no gradient flows back from."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x).detach()


def gradients(module: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    """All that a call has left."""
    found = [tensor.grad for tensor in (*module.parameters(), *given)]
    return [grad.clone() for grad in found if grad is not None]


@pytest.mark.parametrize("phase", ["backward", "training-step"])
def test_every_gradient_is_made_and_none_is_added_up(phase: str) -> None:
    """Of x, every context and every parameter; a second call gives the same, not the double."""
    work = prepare(asked("self-attention+cross", "explicit", phase=phase))
    work.once()
    first = gradients(work.module, work.args)
    assert len(first) == len([*work.module.parameters()]) + len(work.args)
    assert len(work.args) == 2
    work.once()
    for one, two in zip(first, gradients(work.module, work.args), strict=True):
        assert torch.equal(one, two) and bool(one.any())


def test_backward_and_training_step_give_the_same_gradients() -> None:
    def made(phase: str) -> list[Tensor]:
        work = prepare(asked("he", "fft", phase=phase))
        work.once()
        return gradients(work.module, work.args)

    for one, two in zip(made("backward"), made("training-step"), strict=True):
        assert torch.equal(one, two)


def test_the_forward_pass_is_no_part_of_a_backward_pass() -> None:
    """What is dispatched after `reset` and in the training step differs by the forward pass."""

    def dispatched(phase: str) -> dict[str, int]:
        work = prepare(asked("self-attention", "explicit", phase=phase))
        work.restore()
        counts = count_dispatch(work.bare).operations
        return {name: getattr(counts, name) for name in ("mul", "add", "div", "exp")}

    backward, step = dispatched("backward"), dispatched("training-step")
    forward = dispatched("training")
    assert forward["exp"] > 0 == backward["exp"]
    assert step == {name: n + forward[name] for name, n in backward.items()}


def test_modes_are_stated() -> None:
    for phase, mode in (("training", "eval"), ("inference", "eval"), ("backward", "train"),
                        ("training-step", "train")):  # fmt: skip
        work = prepare(asked("we", "toeplitz", phase=phase))
        assert work.details["mode"] == mode
        assert work.module.training == (mode == "train")
        assert work.trivial == (phase != "backward")
        assert (work.forward is None) == (mode == "eval")


def test_a_forward_pass_keeps_no_graph() -> None:
    assert not prepare(asked("me", "toeplitz")).once().requires_grad


def test_the_gradient_of_the_output_is_random_and_repeats() -> None:
    one, two = (trained_module(asked("me", "fft", phase="backward", seed=s)) for s in (1, 1))
    other = trained_module(asked("me", "fft", phase="backward", seed=2))
    (first,), (second,), (third,) = one.cotangents, two.cotangents, other.cotangents
    assert torch.equal(first, second)
    assert not torch.equal(first, third) and not torch.equal(first, one.given[0])


def test_a_result_without_gradients_is_refused() -> None:
    request = asked("me", "toeplitz", phase="backward")
    broken = replace(request, implementation=replace(request.implementation, made=Ungraded))
    with pytest.raises(MeasureError, match="no gradient flows back from what me toeplitz returns"):
        prepare(broken)


# Dtypes


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16"])
def test_a_dtype_that_is_there_is_never_cast(name: str) -> None:
    work = prepare(asked("self-attention", "explicit", dtype=name))
    assert {work.once().dtype, work.args[0].dtype} == {DTYPES[name]}
    assert {p.dtype for p in work.module.parameters()} == {DTYPES[name]}


# Names and seeds


def test_every_dtype_has_a_name() -> None:
    assert list(map(dtype_name, ("fp16", "float64", "bfloat16"))) == ["fp16", "fp64", "bf16"]
    with pytest.raises(MeasureError, match="unknown dtype 'int8': expected one of fp64, fp32"):
        dtype_name("int8")


@pytest.mark.parametrize("name", ["tpu", "", "mps", "meta"])
def test_a_device_that_is_not_measured(name: str) -> None:
    with pytest.raises(MeasureError, match="expected cpu, cuda or cuda:N"):
        device_name(name)


@NO_GPU
def test_a_gpu_that_is_not_there() -> None:
    assert default_device() == device_name(None) == device_name("cpu") == "cpu"
    with pytest.raises(MeasureError, match="torch finds no NVIDIA GPU: use cpu"):
        device_name("cuda")


def test_a_gpu_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_name("cuda:1") == "cuda:1"
    with pytest.raises(MeasureError, match="torch finds 2 GPUs: use cuda:0 or cuda:1"):
        device_name("cuda:2")


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_equal_seeds_give_equal_numbers(phase: str) -> None:
    def result(seed: int) -> Tensor:
        made: Callable[[], Tensor] = prepare(
            asked("self-attention", "sdpa", phase=phase, seed=seed)
        ).once
        return made()

    assert torch.equal(result(3), result(3))
    assert not torch.allclose(result(3), result(4))


def test_torchs_own_seed_is_left_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    prepare(asked("he", "fft"))
    assert torch.equal(before, torch.get_rng_state())
