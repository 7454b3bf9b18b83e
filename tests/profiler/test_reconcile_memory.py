"""Does the list of tensors name the equations' arrays and all other tensors?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

import costmodel as cm
from costmodel.questions.subject import system_of
from profiler.mixers.extractor import MeToeplitz
from profiler.modules import Implementation, implementations
from profiler.modules.described import description_of
from profiler.reconcile.arrays import Arrays, listed_tensor
from profiler.reconcile.derived import NOTHING_KEPT, derived
from profiler.reconcile.levels import HeldMemory
from profiler.reconcile.live_sets import APART, live_set
from profiler.reconcile.memory import NO_LIST, memory
from profiler.records.measurement import Measurement, divide
from profiler.run.measure import activation_bytes, peak_of_call, tensors_at_peak
from profiler.run.prepare import prepare
from profiler.run.request import Request
from tests.recorded import live
from tests.small import complete

SIZES = {"b": 3, "l": 7, "d": 10, "n": 2}
"""h = 5: extents from which the arrays of attention can be told."""


def test_what_is_held_once_is_held_once_for_a_whole_batch() -> None:
    """HE by FFT at l = 7, padded to 8: the transform of the kernel, 2 d (8 + 1), is of no sequence;
    of each sequence d l + 4 d (8 + 1) numbers are there, of which the input's d l were there
    before."""
    he = cm.mixer("he")
    does = description_of(he, implementations(he)["fft"], "training")
    sizes = complete(he, {"l": 7, "d": 10})
    for b in (1, 3):
        assert live_set(he, does, "training", sizes | {"b": b}).at(sizes) == b * 360 + 180


def recorded(chosen: Implementation, phase: str, dtype: str = "fp32") -> Measurement:
    """The memory of one call, as a record has it."""
    token = {"t": SIZES["l"]} if phase == "inference" else {}
    known = complete(cm.mixer(chosen.mixer), SIZES) | token
    request = Request(cm.mixer(chosen.mixer), chosen, known, phase, dtype)
    work = prepare(request)
    found = {
        "activations": activation_bytes(work, request),
        "tensors_at_peak": tensors_at_peak(work, request),
        "peak_memory": peak_of_call(work, "cpu"),
    }
    readings, reasons = divide(found)
    return Measurement(
        mixer=chosen.mixer,
        implementation=chosen.name,
        form=chosen.form,
        sizes=known,
        dtype=dtype,
        phase=phase,
        device="cpu",
        readings=readings,
        reasons=reasons,
    )


def held(record: Measurement, chosen: Implementation) -> dict[str, HeldMemory]:
    """The memory of a record beside the equations'."""
    read = Measurement.from_json(record.to_json())
    return memory(read, derived(read, cm.mixer(chosen.mixer), chosen))


@cache
def of(mixer: str, name: str, phase: str, dtype: str = "fp32") -> dict[str, HeldMemory]:
    """That of an implementation by name."""
    chosen = implementations(mixer)[name]
    return held(recorded(chosen, phase, dtype), chosen)


def test_rounds_with_one_list_share_its_tensors() -> None:
    chosen, mixer = implementations("self-attention")["explicit"], cm.mixer("self-attention")
    record = recorded(chosen, "training")
    rounds = [Measurement.from_json(record.to_json()).compact(()) for _ in range(2)]
    one, two = (memory(each, derived(each, mixer, chosen))["peak"].listed for each in rounds)
    assert one is two
    assert one == held(record, chosen)["peak"].listed


def lines(found: HeldMemory) -> list[tuple[str, str, str, int]]:
    """Operation, arrays, cause and bytes of each tensor; they add up to what was measured."""
    assert found.listed is not None
    rows = [(t.operation, t.array, t.cause, t.bytes * t.number) for t in found.listed]
    assert found.measured == found.watched == sum(row[3] for row in rows) - found.released
    assert found.unexplained == found.difference == 0
    return rows


def test_the_tensors_of_attention_are_its_arrays() -> None:
    """(b, l, d) is 840 B, (b, n, l, l) 1,176 B and dense: the equations have l (l + 1) / 2."""
    found = of("self-attention", "explicit", "training")["peak"]
    assert lines(found) == [
        ("mm", "Q or K or V or R or y", "", 3 * 840),
        ("triu", "", "mask", 49),
        ("masked_fill", "Z or A.exp or A", "copy", 1176),
        ("_softmax", "Z or A.exp or A", "dense", 1176),
        ("clone", "Q or K or V", "copy", 840),
        ("bmm", "Q or K or V", "", 840),
    ]


def test_gradients_of_parameters_have_their_own_names() -> None:
    rows = lines(of("she", "direct", "training-step")["peak"])
    assert ("mm (MmBackward0)", "W_out.grad", "", 400) in rows
    assert all(".grad" in array for made, array, cause, _ in rows if "Backward" in made and array)


def test_what_is_kept_begins_with_the_equations_activations() -> None:
    """Fused attention keeps what its equations keep: x, Q, K, V, its result and a row's sums."""
    found = of("self-attention", "sdpa", "training-step")["activations"]
    assert found.derived == found.measured == 4 * (5 * 210 + 42)
    assert [(array, size) for _, array, _, size in lines(found)] == [
        ("x", 840),
        ("Q or K or V or R or y", 3 * 840),
        ("A.max or A.sum or A.log", 168),
        ("Q or K or V or R or y", 840),
    ]


def test_the_derived_peak_is_the_live_set_of_scaling() -> None:
    """me: x, M and y; x was there before."""
    found = of("me", "toeplitz", "training")["peak"]
    assert found.derived == 4 * cm.peak(cm.mixer("me"), "training").at(**SIZES) - 840


def test_workspace_is_named_by_its_operation() -> None:
    rows = lines(of("she", "conv", "training")["peak"])
    assert any(cause == "workspace inside convolution" for _, _, cause, _ in rows)


def test_half_precision_takes_half_the_bytes() -> None:
    whole, half = (of("me", "toeplitz", "training", dtype)["peak"] for dtype in ("fp32", "bf16"))
    assert lines(half) and whole.derived == 2 * (half.derived or 0)


@pytest.mark.parametrize(("phase", "reason"), APART.items())
def test_a_peak_that_is_not_compared_says_why(phase: str, reason: str) -> None:
    found = of("me", "toeplitz", phase)
    assert found["peak"] == HeldMemory(reason=reason)
    if phase == "inference":
        assert found["activations"].reason == NOTHING_KEPT


def test_what_was_not_measured_has_its_reason() -> None:
    chosen = implementations("me")["toeplitz"]
    bare = structs.replace(
        recorded(chosen, "training-step"), readings={}, reasons={"activations": "why"}
    )
    found = held(bare, chosen)
    assert found["activations"].reason == "why" and found["activations"].derived
    assert found["peak"].unexplained is None
    assert found["peak"].reason == "peak_memory was not measured"


def test_records_of_earlier_versions_have_no_list() -> None:
    chosen = implementations("me")["toeplitz"]
    record = recorded(chosen, "training-step")
    old = {
        name: structs.replace(found, details={"classes": {"values": 1}, "unseen": 0})
        for name, found in record.readings.items()
    }
    for found in held(structs.replace(record, readings=old), chosen).values():
        assert found.reason == NO_LIST and found.listed is None
        assert found.derived is not None and found.measured is not None


class Doctored(MeToeplitz):
    """Holds on to what it was given, moved."""

    def mix(self, x: Tensor) -> Tensor:
        self.again = torch.cos(x.detach())
        return super().mix(x)


def test_what_a_module_holds_besides_surfaces_with_its_operation() -> None:
    chosen = implementations("me")["toeplitz"]
    plain, held_on = (
        held(recorded(replace(chosen, made=kind), "training-step"), chosen)
        for kind in (MeToeplitz, Doctored)
    )
    for name in ("activations", "peak"):
        more = [row for row in lines(held_on[name]) if row[0] == "cos"]
        assert [size for *_, size in more] == [840]
        assert all(row[0] != "cos" for row in lines(plain[name]))


# Arrays by shape


@cache
def attention(phase: str = "training-step") -> Arrays:
    mixer = cm.mixer("self-attention")
    return Arrays(system_of(mixer, None, (), phase), complete(mixer, SIZES))


@pytest.mark.parametrize(
    ("row", "array", "cause"),
    [
        (live("mm", [21, 10], 840), "", ""),
        (live("mm", [21, 10], 840, views=[[3, 7, 10]]), "R or y", ""),
        (live("mm", [3, 7, 10], 840, name="result"), "y", ""),
        (live("mm", [10, 10], 400, node="MmBackward0", name="W_K.grad"), "W_K.grad", ""),
        (live("clone", [10, 10], 400, "copy"), "W_Q or W_K or W_V or W_out", "copy"),
        (live("exp", [3, 2, 7, 7], 1176), "Z or A.exp or A", "dense"),
        (live("exp", [3, 2, 7], 168), "A.sum", ""),
        (live("gt", [3, 2, 7, 7], 294, "mask", dtype="bool"), "", "mask"),
        (live("mm", None, 40, "workspace", dtype=None), "", "workspace inside mm"),
        (live("mm", [3, 2, 5], 120), "part of Q or part of K or part of V", ""),
    ],
)
def test_arrays_are_told_by_extents(row: Mapping[str, Any], array: str, cause: str) -> None:
    found = listed_tensor(row, attention())
    assert (found.array, found.cause) == (array, cause)


def test_a_forward_pass_makes_no_gradient_and_a_backward_pass_no_array() -> None:
    forward = listed_tensor(live("mm", [3, 7, 10], 840), attention()).array
    backward = listed_tensor(live("mm", [3, 7, 10], 840, node="N"), attention()).array
    assert not {*forward.split(" or ")} & {*backward.split(" or ")}
    assert "x.grad" in backward and "y" in forward.split(" or ")


def test_without_equations_tensors_are_listed_all_the_same() -> None:
    found = listed_tensor(live("mm", [3, 7, 10], 840), None)
    assert (found.operation, found.shape, found.array) == ("mm", (3, 7, 10), "")
