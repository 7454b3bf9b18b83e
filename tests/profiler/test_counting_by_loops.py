"""Do counts that depend on windows, indices or types equal those of a loop?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.counting.dispatch import count_dispatch
from profiler.counting.operations import NOTHING, Operations


def counted(fn: Callable[[], Any]) -> Operations:
    """The operations of a call, all of which have a rule."""
    found = count_dispatch(fn)
    assert found.complete, found.unknown
    return found.operations


# sums into places: a loop over the entries of the target that the indices name

TARGET = (5, 7, 3)
ROWS, COLUMNS = torch.tensor([0, 4, 4]), torch.tensor([[6], [1]])
MASK = torch.arange(35).reshape(5, 7) % 3 == 0

INDICES: list[tuple[Tensor | None, ...]] = [
    (ROWS,),
    (None, COLUMNS),
    (ROWS, COLUMNS),
    (ROWS, None, torch.tensor([2, 0, 1])),
    (MASK,),
    (None, None, torch.tensor([True, False, True])),
]


@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_index_put_adds_once_for_each_named_entry(
    indices: tuple[Tensor, ...], accumulate: bool, whole: bool
) -> None:
    """However few values there are, each named entry is written once for each time it is named."""
    named = torch.zeros(TARGET)[tuple(slice(None) if i is None else i for i in indices)]
    values = torch.ones(named.shape if whole else ())
    adds = sum(1 for _ in named.flatten()) if accumulate else 0
    target = torch.zeros(TARGET)
    put = counted(lambda: torch.ops.aten.index_put_(target, indices, values, accumulate))
    assert put == Operations(add=adds)


SCATTERS: list[tuple[str, Callable[[Tensor, Tensor, Tensor], Any], dict[str, int]]] = [
    ("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), {"add": 1}),
    ("in place", lambda x, i, s: x.scatter_add_(0, i, s), {"add": 1}),
    ("sum", lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), {"add": 1}),
    ("product", lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), {"mul": 1}),
    ("largest", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), {"compare": 1}),
    ("add", lambda x, i, s: x.scatter(0, i, s, reduce="add"), {"add": 1}),
    ("add a number", lambda x, i, s: x.scatter(0, i, 2.0, reduce="add"), {"add": 1}),
    ("multiply", lambda x, i, s: x.scatter(0, i, s, reduce="multiply"), {"mul": 1}),
    ("write", lambda x, i, s: x.scatter(0, i, s), {}),
]


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize(("call", "each"), [s[1:] for s in SCATTERS], ids=[s[0] for s in SCATTERS])
def test_scatter_counts_each_named_entry_once(
    call: Callable[[Tensor, Tensor, Tensor], Any], each: dict[str, int]
) -> None:
    """The index is shorter than its source: what it does not name is not written."""
    index = torch.tensor([[0, 1], [3, 3], [2, 0]])
    entries = sum(1 for _ in product(*map(range, index.shape)))
    found = counted(lambda: call(torch.ones(5, 3), index, torch.ones(4, 3))).to_json()
    assert found.pop("other") | {k: n for k, n in found.items() if n} == {
        name: n * entries for name, n in each.items()
    }


def test_scatter_without_self_has_no_rule() -> None:
    """How many entries then have no term depends on values."""
    index = torch.tensor([0, 0, 1])
    found = count_dispatch(
        lambda: torch.ones(3).scatter_reduce(0, index, torch.ones(3), "sum", include_self=False)
    )
    assert list(found.unknown) == ["aten::scatter_reduce"]


def test_rows_of_padding_get_no_gradient() -> None:
    indices, grad = torch.tensor([[1, 0, 0], [2, 2, 0]]), torch.ones(2, 3, 5)
    adds = sum(5 for index in indices.flatten().tolist() if index != 0)
    found = counted(lambda: torch.ops.aten.embedding_dense_backward(grad, indices, 3, 0, False))
    assert found == Operations(add=adds)


# pooling: a loop over windows and their entries, positions of the padding left out


def window_entries(extent: int, window: dict[str, int], outputs: int) -> list[int]:
    """The entries of the input in the windows of one axis, window after window."""
    k, s, p, d = (window[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    every = (i * s + j * d - p for i in range(outputs) for j in range(k))
    return [entry for entry in every if 0 <= entry < extent]


def sums_into_zeros(*axes: list[int]) -> int:
    """The additions of a plain loop that sums one term into each entry of `axes`, and stores an
    entry's first term."""
    held: set[tuple[int, ...]] = set()
    adds = 0
    for entry in product(*axes):
        adds += entry in held
        held.add(entry)
    return adds


WINDOWS = [
    {"kernel_size": k, "stride": s, "padding": p, "dilation": d}
    for k, s, p, d in product((2, 3, 5), (1, 2, 3), (0, 1), (1, 2))
]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_counts_every_entry_of_each_window(kind: str, axes: int, ceil_mode: bool) -> None:
    """Forward and backward: each gradient goes to every entry of its window, of a maximum to one,
    and an entry's first gradient is stored, not added. Where windows of a maximum share entries,
    the numbers of first gradients depend on values, and every gradient is counted."""
    for window in WINDOWS:
        x = torch.rand(1, 2, *(11, 12, 13)[:axes], requires_grad=True)
        known = dict(window)
        if kind == "avg" and known.pop("dilation") != 1:
            continue
        pool = getattr(F, f"{kind}_pool{axes}d")
        y = pool(x, **known, ceil_mode=ceil_mode)
        shapes = zip(x.shape[2:], y.shape[2:], strict=True)
        along = [window_entries(n, window, m) for n, m in shapes]
        entries = 2 * prod(map(len, along))
        forward = counted(lambda: pool(x, **known, ceil_mode=ceil_mode))  # noqa: B023 - called here
        steps = entries - y.numel()
        backward = counted(partial(torch.autograd.grad, y, x, torch.ones_like(y)))
        if kind == "max":
            adds = y.numel() if sums_into_zeros(*along) else 0
            assert forward == Operations(other={"compare": steps}), window
            assert backward == Operations(add=adds), window
            continue
        assert forward == Operations(add=steps, div=y.numel()), window
        assert backward == Operations(add=2 * sums_into_zeros(*along), div=y.numel()), window


@pytest.mark.parametrize("outputs", [2, 3, 4, 11])
def test_adaptive_pooling_counts_every_entry_of_each_window(outputs: int) -> None:
    """Window i runs from floor(i n / m) to ceil((i + 1) n / m)."""
    entries = [
        j for i in range(outputs) for j in range(11)
        if i * 11 // outputs <= j < -(-(i + 1) * 11 // outputs)
    ]  # fmt: skip
    x = torch.rand(1, 3, 11, requires_grad=True)
    steps = 3 * (len(entries) - outputs)
    assert counted(lambda: F.adaptive_max_pool1d(x, outputs)) == Operations(
        other={"compare": steps}
    )
    assert counted(lambda: F.adaptive_avg_pool1d(x, outputs)) == Operations(
        add=steps, div=3 * outputs
    )
    y = F.adaptive_max_pool1d(x, outputs)
    assert counted(partial(torch.autograd.grad, y, x, torch.ones_like(y))) == Operations(
        add=3 * outputs if sums_into_zeros(entries) else 0
    )
    y = F.adaptive_avg_pool1d(x, outputs)
    assert counted(partial(torch.autograd.grad, y, x, torch.ones_like(y))) == Operations(
        add=3 * sums_into_zeros(entries), div=3 * outputs
    )


# copies: the places of the copied entries, read off a call on numbered entries

COPIES: list[tuple[str, tuple[int, ...], Callable[[Tensor], Tensor]]] = [
    *(
        (f"{mode} {options}", shape, partial(F.interpolate, mode=mode, **options))
        for mode in ("nearest", "nearest-exact")
        for shape in ((1, 2, 5), (1, 2, 5, 3))
        for options in (
            {"size": 7}, {"size": 2}, {"scale_factor": 2}, {"scale_factor": 1.3},
            {"scale_factor": 0.4},
        )
    ),
    ("cubes", (1, 1, 2, 3, 5), lambda x: F.interpolate(x, size=(3, 2, 11))),
    *(
        (f"{mode} {ends}", (1, 2, 5, 3)[: 2 + len(ends) // 2], partial(F.pad, pad=ends, mode=mode))
        for mode in ("reflect", "replicate")
        for ends in ((2, 1), (0, 0), (-1, 2), (-2, 3), (3, -2), (-5, 2), (-6, 3), (1, 2, 0, 3))
    ),
    ("padded cube", (1, 1, 2, 3, 5), lambda x: F.pad(x, (1, 2, 0, 1, 1, 0), "replicate")),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "copy"), [c[1:] for c in COPIES], ids=[c[0] for c in COPIES])
def test_first_gradients_of_copied_entries_are_stored(
    shape: tuple[int, ...], copy: Callable[[Tensor], Tensor]
) -> None:
    x = torch.arange(float(prod(shape))).reshape(shape).requires_grad_()
    y = copy(x)
    adds = sums_into_zeros([int(place) for place in y.flatten().tolist()])
    assert counted(partial(torch.autograd.grad, y, x, torch.ones_like(y))) == Operations(add=adds)


@pytest.mark.parametrize(("outputs", "corners"), [(7, False), (7, True), (2, False), (1, False)])
def test_first_gradients_of_interpolated_entries_are_stored(outputs: int, corners: bool) -> None:
    """Each gradient goes to the entries below and above its position, with a weight each."""
    x, places = torch.rand(1, 2, 5, requires_grad=True), []
    for i in range(outputs):
        below = int(i * 4 / (outputs - 1) if corners else max((i + 0.5) * 5 / outputs - 0.5, 0))
        places += [below, min(below + 1, 4)]
    y = F.interpolate(x, size=outputs, mode="linear", align_corners=corners)
    assert counted(partial(torch.autograd.grad, y, x, torch.ones_like(y))) == Operations(
        mul=2 * len(places), add=2 * sums_into_zeros(places)
    )


# types

SINGLE, DOUBLE = torch.ones(2, 3), torch.ones(3, dtype=torch.float64)
COMPLEX = torch.ones(2, 3, dtype=torch.complex64)
CONVERSIONS: list[tuple[str, Callable[[], Any], Operations]] = [
    ("product", lambda: SINGLE * DOUBLE, Operations(mul=6, other={"convert": 6})),
    ("sum", lambda: DOUBLE + SINGLE, Operations(add=6, other={"convert": 6})),
    ("quotient", lambda: DOUBLE / SINGLE, Operations(div=6, other={"convert": 6})),
    ("comparison", lambda: SINGLE > DOUBLE, Operations(other={"compare": 6, "convert": 6})),
    ("power", lambda: SINGLE**DOUBLE, Operations(other={"pow": 6, "convert": 6})),
    ("maximum", lambda: torch.maximum(SINGLE, DOUBLE),
     Operations(other={"compare": 6, "convert": 6})),
    ("rest", lambda: torch.fmod(SINGLE, DOUBLE), Operations(other={"fmod": 6, "convert": 6})),
    # in place the result is converted back
    ("in place", lambda: SINGLE.clone().add_(DOUBLE), Operations(add=6, other={"convert": 12})),
    ("joined", lambda: torch.cat((SINGLE, DOUBLE[None])), Operations(other={"convert": 6})),
    ("chosen", lambda: torch.where(SINGLE > 0, SINGLE, DOUBLE),
     Operations(other={"compare": 6, "convert": 6})),
    ("three operands", lambda: torch.addcmul(DOUBLE, SINGLE, DOUBLE),
     Operations(mul=6, add=6, other={"convert": 6})),
    # numbers take the type of the tensor, and so do tensors without an axis
    ("a number", lambda: SINGLE * 2.0, Operations(mul=6)),
    ("no axis", lambda: SINGLE * DOUBLE[0], Operations(mul=6)),
    ("the same type", lambda: SINGLE * SINGLE, Operations(mul=6)),
    ("integers", lambda: SINGLE * torch.ones(3, dtype=torch.long), Operations(mul=6)),
    # real and complex: two products, one sum of real parts
    ("complex number", lambda: SINGLE * (1 + 0j), Operations(mul=12)),
    ("complex tensor", lambda: SINGLE * torch.tensor(1 + 0j), Operations(mul=12)),
    ("real by complex", lambda: SINGLE * COMPLEX, Operations(mul=12)),
    ("complex by complex number", lambda: COMPLEX * (1 + 0j), Operations(mul=24, add=12)),
    ("real plus complex", lambda: SINGLE + COMPLEX, Operations(add=6)),
    ("wider real part", lambda: DOUBLE * COMPLEX,
     Operations(mul=12, other={"convert": 6})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "expected"), [c[1:] for c in CONVERSIONS], ids=[c[0] for c in CONVERSIONS]
)
def test_a_type_conversion_is_counted_once_for_each_entry(
    call: Callable[[], Any], expected: Operations
) -> None:
    """One conversion for each entry of an operand of another type than torch computes in."""
    assert counted(call) == expected


@pytest.mark.parametrize(
    ("call", "comparisons"),
    [
        (lambda x: x.isnan(), 1),
        (lambda x: x != x, 1),
        (lambda x: x.isinf(), 2),
        (lambda x: x.isposinf(), 1),
        (lambda x: x.isfinite(), 3),
        (lambda x: x.logical_not(), 1),
        (lambda x: torch.logical_and(x, x), 2),
        (lambda x: x.any(), 1),
        (lambda x: x.bool(), 1),
        (lambda x: x.nonzero(), 1),
    ],
)
def test_questions_about_numbers_are_comparisons(
    call: Callable[[Tensor], Any], comparisons: int
) -> None:
    assert counted(lambda: call(SINGLE)) == Operations(other={"compare": 6 * comparisons})
    booleans = torch.ones(2, 3, dtype=torch.bool)
    assert counted(lambda: booleans.any() & booleans.all()) == NOTHING


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int8])
def test_products_of_integer_matrices(kind: torch.dtype) -> None:
    a, b = torch.ones(2, 3, dtype=kind), torch.ones(3, 5, dtype=kind)
    products = sum(1 for _ in product(range(2), range(3), range(5)))
    sums = sum(2 for _ in product(range(2), range(5)))
    expected = Operations(mul=products, add=sums)
    assert counted(lambda: a @ b) == expected
    assert counted(lambda: torch.bmm(a[None], b[None])) == expected
    assert counted(lambda: F.conv1d(a.T[None].contiguous(), b.T[:, :, None])) == expected
    assert counted(lambda: torch._int_mm(*(t.to(torch.int8) for t in (a, b)))) == expected
