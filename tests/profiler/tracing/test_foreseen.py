"""Is what a slow module would do at sizes where it was not run what it does there?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiler.tracing import size_samples as points_, trace
from profiler.tracing.extrapolate import extrapolator
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.operation import TensorLayout
from profiler.tracing.meta_run.run_log import inner_axes, renumbered, whole_numbers
from profiler.tracing.meta_run.target import Target, parse_variables
from profiler.tracing.result import Break
from profiler.tracing.size_samples import Extrapolator, SizeSamples
from profiler.tracing.trace import FormulaSearch
from tests.profiler.tracing import modules, test_proof


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module is one whose runs take long."""
    monkeypatch.setattr(points_, "SHORT", -1)


def around(make: Any, over: str, let: str, base: Point) -> tuple[SizeSamples, Extrapolator | None]:
    """The runs of a module, and what they let foresee."""
    points = SizeSamples(Target("module", make), parse_variables(over, let), BACKENDS["math"])
    return points, extrapolator(points, base)


class Stacked(nn.Module):
    """Rows with a class before them, two projections, one of them of slices of a wider one."""

    def __init__(self, *, d: int, f: int) -> None:
        super().__init__()
        self.wide = nn.Linear(d, 2 * f)
        self.norm = nn.BatchNorm1d(f)
        self.first = nn.Parameter(torch.empty(1, 1, d))

    def forward(self, x: Tensor) -> Tensor:
        both = self.wide(torch.cat([self.first, x], 1))
        left, right = both.chunk(2, -1)
        scores = (left @ right.transpose(1, 2)).softmax(-1)
        normed: Tensor = self.norm((scores @ right).relu_().transpose(1, 2))
        return normed.mul_(2.0)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("make", "over", "let", "base", "others"),
    [
        (modules.encoder_layer, "l,h,n", "d=n*h", (5, 3, 2), [(7, 4, 5), (8, 3, 2), (13, 11, 7)]),
        (modules.deep, "l,h,n", "d=n*h", (5, 3, 2), [(6, 5, 4), (31, 2, 9)]),
        (modules.linear, "l,d", "", (5, 3), [(64, 17), (5, 1021)]),
        (Stacked, "l,d,f", "", (5, 3, 2), [(6, 4, 3), (9, 9, 9), (16, 8, 32)]),
    ],
)
def test_what_is_foreseen_is_what_happens(
    make: Any, over: str, let: str, base: Point, others: list[Point]
) -> None:
    """Every count, and the bytes alive at every moment."""
    points, foreseen = around(make, over, let, base)
    assert foreseen is not None
    assert not points.seen.keys() & set(others)
    for point in others:
        expected, found = foreseen(point), points.at(point)
        assert expected is not None
        assert expected.quantities == found.quantities
        assert (expected.alive, expected.names) == (found.alive, found.names)


def wider(*, l: int, d: int) -> tuple[nn.Module, Tensor]:
    """A width that grows as the square of a size."""
    return nn.Linear(d * d, 3), torch.empty(l, d * d)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("make", "over"),
    [
        (modules.lstm, "l,d"),  # other operations at other lengths
        (wider, "l,d"),  # shapes that do not go on evenly
        (modules.Needing, "l,d"),  # does not run at the next size
    ],
)
def test_what_is_not_alike_is_not_foreseen(make: Any, over: str) -> None:
    points, foreseen = around(make, over, "", (5, 4))
    assert foreseen is None
    assert all(seen.course is None for seen in points.seen.values())


@pytest.mark.usefixtures("slow")
def test_a_slow_module_may_do_nothing() -> None:
    assert trace(nn.Identity, over="l,d").complete


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("make", "over", "let"),
    [(test_proof.Windows, "l,w", "d=3"), (test_proof.larger, "l,d", ""), (modules.Odd, "l,d", "")],
)
def test_what_no_formula_gives_is_told_of_slow_modules_too(make: Any, over: str, let: str) -> None:
    """Not even their first search gives one, at few sizes."""
    points = SizeSamples(Target("module", make), parse_variables(over, let), BACKENDS["math"])
    found = FormulaSearch(points, "math", divided=False).attempt()
    assert isinstance(found.quantities["forward", "mul"], Break)


@pytest.mark.parametrize("doctor", ["add", "mul", "exp", "upcast", "hook"])
def test_slow_modules_hide_no_operation(doctor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctored(d: int) -> nn.Module:
        return modules.Doctored(d, doctor)

    plain = trace(doctored, over="l,d")
    monkeypatch.setattr(points_, "SHORT", -1)
    found = trace(doctored, over="l,d")
    assert found.quantities == plain.quantities
    assert all(point in plain.proven for point in found.proven)
    assert len(found.fitted) < len(plain.fitted)


def test_strides_are_counted_in_what_lies_within_them() -> None:
    # queries, keys and values of (1, l, d) side by side: l n h entries, 3 n h apart, heads first
    layout = TensorLayout((1, 2, 5, 3), (90, 3, 18, 1), torch.float32)
    assert [set(inner_axes(layout, axis)) for axis in range(4)] == [{1, 2, 3}, {3}, {1, 3}, set()]
    assert list(whole_numbers(layout)) == [1, 2, 5, 3, 3, 1, 3, 1]
    other = renumbered(layout, iter([1, 7, 4, 11, 3, 1, 3, 1]))
    assert other == TensorLayout((1, 7, 4, 11), (3 * 7 * 4 * 11, 11, 3 * 7 * 11, 1), torch.float32)
    expanded = TensorLayout((4, 5), (0, 1), torch.float32)
    assert renumbered(expanded, whole_numbers(expanded)) == expanded
