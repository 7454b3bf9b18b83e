"""Does a trace find the sizes at which a module changes its behaviour, and name what it cannot
follow?"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.tracing import trace
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.orders import splits
from profiler.tracing.report import document
from profiler.tracing.result import Break, Cases, Trace
from profiler.tracing.size_samples import SizeSamples
from tests.printing import printed
from tests.profiler.tracing.test_memory import Function
from tests.stand_ins import Instead

COSTS = {4096: 2, 8192: 3}


def traced(fn: Callable[[Tensor], Any]) -> Trace:
    return trace(lambda: Function(fn), over="l,d")


def shrunk(x: Tensor) -> Tensor:
    blocks = x.shape[1]
    blocks //= 64
    return x * 2 if blocks > 32 else x


class Inner(nn.Module):
    """A helper with a threshold of its own."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.size(1) >= self.longest else x


def last(x: Tensor) -> Tensor:
    """Of a long input the last 50 tokens."""
    if x.shape[1] > 50:
        x = x[:, -50:]
    return x * 2


def both(x: Tensor) -> Tensor:
    """A product more where both sizes are large."""
    return x * 2 * 3 if x.shape[1] > 50 and x.shape[2] > 20 else x * 2


def steps(x: Tensor) -> Tensor:
    """A product more from 41 tokens on, and another one from 101 on."""
    if x.shape[1] > 100:
        return x * 2 * 3 * 4
    return x * 2 * 3 if x.shape[1] > 40 else x * 2


@pytest.mark.grid(16)
@pytest.mark.parametrize(
    ("fn", "products"),
    [
        (last, lambda l, d: d * min(l, 50)),
        (both, lambda l, d: l * d * (1 + (l > 50 and d > 20))),
        (steps, lambda l, d: l * d * (1 + (l > 40) + (l > 100))),
        (lambda x: x * 2 if x.shape[1] > 20 else x, lambda l, d: l * d * (l > 20)),
        (lambda x: x * 2 if int(x.shape[1]) > 50 else x, lambda l, d: l * d * (l > 50)),
        (lambda x: x * 2 if 400 < x.shape[1] <= 500 else x, lambda l, d: l * d * (400 < l <= 500)),
        (lambda x: x * 2 if 4000 < x.shape[1] <= 5000 else x,
         lambda l, d: l * d * (4000 < l <= 5000)),
        (lambda x: x[:, -1500:] * 2, lambda l, d: d * min(l, 1500)),
        (lambda x: x * 2 if x.shape[1] > 2048 else x, lambda l, d: l * d * (l > 2048)),
        (lambda x: x[:, : min(x.shape[1], 1500)] * 2, lambda l, d: d * min(l, 1500)),
        (lambda x: torch.arange(max(x.shape[1], 1500)) * x[0, 0, 0], lambda l, d: max(l, 1500)),
        (lambda x: x * 2 if x.shape[1] > 100 * x.shape[2] else x,
         lambda l, d: l * d * (l > 100 * d)),
        (lambda x: x * 2 if x.size(1) % 500 == 0 else x, lambda l, d: l * d * (l % 500 == 0)),
        (lambda x: x * 2 if x.size(1) % 3000 > 1777 else x,
         lambda l, d: l * d * (l % 3000 > 1777)),
        (lambda x: nn.Sequential(Inner(10**6), Inner(3000))(x), lambda l, d: l * d * (l >= 3000)),
        (lambda x: x * 2 if x.numel() > 60000 else x, lambda l, d: l * d * (l * d > 60000)),
        (lambda x: x * 2 if x.shape[1] == 2048 else x, lambda l, d: l * d * (l == 2048)),
        (lambda x: x * 2 if len(x[0]) == 61 else x, lambda l, d: l * d * (l == 61)),
        (shrunk, lambda l, d: l * d * (l >= 33 * 64)),
    ],
)  # fmt: skip
def test_what_changes_far_away_has_a_formula_by_cases(
    fn: Callable[[Tensor], Any], products: Callable[[int, int], int]
) -> None:
    """At sizes beside each change and far from it."""
    found = traced(fn)
    assert not found.broken
    lengths = (5, 19, 20, 21, 49, 50, 51, 100, 101, 400, 401, 500, 501, 1499, 1501, 1777, 1778,
               2048, 2049, 2111, 2112, 3000, 4000, 4001, 4777, 4778, 5000, 5001, 6001)  # fmt: skip
    for l in lengths:
        for d in (3, 20, 21, 47):
            assert found.at("forward", l=l, d=d).mul == products(l, d), (l, d)


def test_a_change_at_a_single_shape_breaks_the_formula_there() -> None:
    found = traced(lambda x: x * 2 if x.shape == (1, 2500, 3) else x)
    assert "breaks at l=2500, d=3" in str(found.forward["mul"])


def halves(x: Tensor) -> Tensor:
    """Long inputs are viewed as two halves, so that an odd length fails."""
    if x.shape[1] > 50:
        return x.reshape(x.shape[0], 2, x.shape[1] // 2, x.shape[2]) * 2 * 3
    return x * 2


@pytest.mark.grid
def test_a_case_in_which_fewer_sizes_run_gives_no_formula() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        halves(torch.ones(1, 53, 4))
    found = traced(halves)
    with pytest.raises(TraceError, match="no formula: d\\*l breaks at"):
        found.at("forward", l=53, d=4)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "fn", [lambda x: x * 2 if x.shape[1] > 20 else x, lambda x: x * 2 if x.shape[1] > 50 else x]
)
def test_tensors_at_the_peak_have_the_shapes_of_the_sizes_in_the_title(
    fn: Callable[[Tensor], Any],
) -> None:
    found = traced(fn)
    (title,) = re.findall("Alive at the peak, at (.*)", printed(document(found), "markdown"))
    l, d = map(int, re.findall("[0-9]+", title))
    assert {one.shape for one in found.at_peak} == {(1, l, d)}
    listed = json.loads(printed(document(found), "json"))["at_peak"]
    assert listed["sizes"] == {"l": l, "d": d}


def test_formulas_of_bytes_hold_from_sizes_that_were_tested_in_each_case() -> None:
    """The case of many entries has no run with as few as 5 tokens or 3 channels; a case of many
    tokens has a run at its fewest."""
    area = traced(lambda x: x * 2 * 3 if x.numel() > 1000 else x * 2)
    many = frozenset({Poly.atom("l") * Poly.atom("d") - 1001})
    first = area.within(many).base
    assert all(area.base[letter] >= first[letter] for letter in ("l", "d"))
    assert traced(lambda x: x * 2 * 3 if x.shape[1] > 50 else x * 2).base["l"] == 5


def test_calls_by_cases_are_printed_and_leave_no_hint_of_multiples() -> None:
    found = traced(lambda x: torch.polygamma(2, x) if x.shape[1] > 50 else x * 2)
    (one,) = found.uncounted
    assert isinstance(one.calls, Cases)
    assert [one.calls.at({"l": l, "d": 3}) for l in (50, 51)] == [0, 1]
    text = printed(document(found), "markdown")
    assert "| 1 where l >= 51" in text and "| no formula" not in text and "--over" not in text


def test_a_split_at_a_failing_size_compares_each_letter_with_sizes_of_its_own() -> None:
    """Formulas that hold from d=65 on, and fail at l=70, ask for no split at l=65."""
    d, l = Poly.atom("d"), Poly.atom("l")
    found = replace(
        traced(lambda x: x * 2),
        quantities={("forward", "mul"): Break({"l": 70, "d": 65}, "", "", 0)},
        since={"l": 1, "d": 65},
    )
    cut = {poly for split in splits(found, ()) for case in split for poly in case.region}
    assert {l - 70, d - 65} <= cut and l - 65 not in cut


def test_sizes_beside_a_comparison_that_changes_nothing_are_proven() -> None:
    found = traced(lambda x: x * 2 if x.shape[1] > 2048 else 2 * x)
    assert found.complete and not found.doubts
    assert sorted(p["l"] for p in found.proven if p["l"] > 1021) == [2047, 2048, 2049]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x * 2 if len(x[0]) == 3000 else x, "the module uses l as a plain number ("),
        (
            lambda x: x * 2 if math.log2(x.shape[1]) > 11 else x,
            "the module uses l as a plain number (",
        ),
        (lambda x: x * float(np.arange(x.shape[1])[0]), "of an unknown kind on its sizes ("),
        (lambda x: x[:, : int(0.7 * x.shape[1])] * 2, "of an unknown kind on its sizes ("),
        (lambda x: x * 2 if not x.shape[1] & 511 else x, "of an unknown kind on its sizes ("),
        (
            lambda x: x * COSTS[x.shape[1]] if x.shape[1] in COSTS else x,
            "cannot be traced after",
        ),
        (lambda x: x * len(x.split(1500, dim=1)), "compares a size with ever more numbers"),
    ],
)
def test_what_cannot_be_followed_is_said(fn: Callable[[Tensor], Any], said: str) -> None:
    found = traced(fn)
    assert found.complete
    assert any(said in doubt for doubt in found.doubts), found.doubts
    assert "not proven beyond these: " in printed(document(found), "markdown")


def test_a_comparison_in_a_module_of_torch_has_its_place_there() -> None:
    """Not in the file that asks for the trace."""
    (said,) = trace(lambda d: nn.Unflatten(2, (1, d)), over="l,d").doubts
    assert re.search(r"the module uses d as a plain number \(\S+ in unflatten\), as a loop", said)


def test_a_change_where_runs_take_too_long_is_not_proven(instead: Instead) -> None:
    def affordable(samples: SizeSamples, base: Point, point: Point, part: float = 1.0) -> bool:
        return max(point) <= 2048

    instead(affordable_runs=affordable)
    found = traced(lambda x: x * 2 if x.shape[1] > 2048 else x)
    assert found.complete
    assert "changes at l=2049, d=3, where a run takes too long" in found.doubts[0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x @ x.transpose(1, 2) @ x,
        lambda x: x * x.shape[1],
        lambda x: torch.cat([x, x[:, 1:]], 1).softmax(-1),
    ],
)
def test_an_ordinary_module_leaves_no_doubt(fn: Callable[[Tensor], Any]) -> None:
    assert not traced(fn).doubts


CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "a product": lambda l, d: l * d > 1000,
    "a product less a constant": lambda l, d: l * (d - 4) > 100,
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_on_a_width_that_weights_share_holds_wherever_it_is_printed(name: str) -> None:
    class Threshold(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.first, self.second = (nn.Linear(d, d, bias=False) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            larger = CONDITIONS[name](x.shape[1], x.shape[2])
            return torch.Tensor(self.second(y) if larger else y)

    found = trace(Threshold, over="l,d")
    checked = 0
    for l, d in product((1, 2, 4, 9, 40, 290), (1, 2, 5, 6, 25, 201, 300)):
        if l >= found.since["l"] and d >= found.since["d"]:
            expected = l * d * d * (2 if CONDITIONS[name](l, d) else 1)
            assert found.at(l=l, d=d).mul == expected, (l, d)
            checked += 1
    assert checked >= (42 if name == "a product" else 4)


def unbound(x: Tensor) -> Tensor:
    return torch.stack(x.unbind(1), 1)


def test_a_size_that_torch_takes_as_a_number_is_told_with_the_modules_line() -> None:
    (said,) = traced(unbound).doubts
    line = unbound.__code__.co_firstlineno + 1
    assert f"test_breakpoints.py:{line} in unbound" in said


class ByArea(nn.Module):
    """Works twice as much where the square of the length exceeds 50 widths."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * x * x if x.shape[0] * x.shape[0] > 50 * y.shape[0] else x * x


def test_a_condition_on_the_square_of_a_size_divides_the_cases() -> None:
    def made(l: int, w: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        return ByArea(), (torch.empty(l), torch.empty(w))

    found = trace(made, over="l,w", grad="none", memory=False)
    assert str(found.forward["mul"]) == "2*l where l**2 > 50*w; l where l**2 <= 50*w"
