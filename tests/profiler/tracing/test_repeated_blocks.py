"""Is a deep module, run with fewer of its equal blocks, traced as it is when all of them run?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.tracing import repeated_blocks, size_samples as points_, trace
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.observe import PEAK, Quantity
from profiler.tracing.meta_run.target import Target, parse_variables
from profiler.tracing.repeated_blocks import Stack, stacks
from profiler.tracing.result import Break, Trace
from profiler.tracing.size_samples import SizeSamples
from profiler.tracing.trace import FormulaSearch
from tests.profiler.tracing import modules, test_proof


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module is one whose runs take long."""
    monkeypatch.setattr(points_, "SHORT", -1)
    monkeypatch.setattr(repeated_blocks, "SHORT", -1)


class Chain(nn.Module):
    """Blocks in turn; `between` maps the number of a block to what is done before it."""

    def __init__(
        self, blocks: list[nn.Module], between: Callable[[int, Tensor], Tensor] = lambda k, x: x
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        for k, block in enumerate(self.blocks):
            x = block(self.between(k, x))
        return x


class Block(nn.Module):
    """A step whose result is added to its input."""

    def __init__(self, d: int, wider: int = 2) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d, wider * d), nn.Linear(wider * d, d)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.up(x).relu())
        return y


def alike(d: int) -> nn.Module:
    """Ten equal blocks, one of another width before them and one after."""
    inner = [Block(d) for _ in range(10)]
    return Chain([Block(d, 3), *inner, Block(d, 5), nn.LayerNorm(d)])


def two_stacks(d: int) -> nn.Module:
    """Nine blocks, then twelve of another width, and a class that all of them see."""
    return nn.Sequential(
        nn.Sequential(*(Block(d) for _ in range(9))),
        nn.Softmax(-1),
        nn.Sequential(*(Block(d, 1) for _ in range(12))),
    )


def without_peak(found: Trace) -> dict[Quantity, Poly | Break]:
    """All formulas but that of the peak."""
    return {quantity: value for quantity, value in found.quantities.items() if quantity != PEAK}


def whole(make: Any, over: str, let: str | list[str], monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The trace with all blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(repeated_blocks, "LEAST", 10**6)
        return trace(make, over=over, let=let)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("make", "over", "let"),
    [
        (lambda d, n: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, n, 5, batch_first=True), 8, enable_nested_tensor=False
        ), "n", ["l=5", "d=3*n"]),
        (alike, "l,d", ""),
        (two_stacks, "b,l,d", ""),
        (lambda d: nn.Sequential(*(nn.Linear(d, d) for _ in range(8))), "l,d", ""),
    ],
)  # fmt: skip
def test_fewer_blocks_give_the_formulas_of_all(
    make: Any, over: str, let: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, expected = trace(make, over=over, let=let), whole(make, over, let, monkeypatch)
    assert "equal blocks" in found.notes[-1]
    assert not any("equal blocks" in note for note in expected.notes)
    assert without_peak(found) == without_peak(expected)
    for size in product((5, 8, 40, 1000), repeat=len(found.base)):
        sizes = dict(zip(found.base, size, strict=True))  # the larger of equal moments may be named
        peaks = [one.quantities[PEAK] for one in (found, expected)]
        assert len({peak.rational(sizes) for peak in peaks if isinstance(peak, Poly)}) == 1
    assert (found.sample, found.at_peak) == (expected.sample, expected.at_peak)
    assert (found.flops, found.since, found.doubts) == (
        expected.flops, expected.since, expected.doubts,
    )  # fmt: skip


def every_third(k: int, x: Tensor) -> Tensor:
    """Before every third block something is done beside."""
    return x.sin() if k % 3 == 2 else x


def only_late(k: int, x: Tensor) -> Tensor:
    """Before one block, which is among none that are kept, something is done beside."""
    return x.sin() if k == 7 else x


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("between", [every_third, only_late])
def test_what_a_block_does_by_its_place_is_seen(
    between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole module is run at all sizes then."""

    def make(d: int) -> nn.Module:
        return Chain([Block(d) for _ in range(9)], between)

    found, expected = trace(make, over="l", let="d=4"), whole(make, "l", "d=4", monkeypatch)
    assert found.quantities == expected.quantities
    assert not any("equal blocks" in note for note in found.notes)


def test_a_module_of_few_operations_is_run_whole() -> None:
    found = trace(
        lambda d: nn.Sequential(*(nn.Linear(d, d) for _ in range(8))), over="l", let="d=3"
    )
    assert not any("equal blocks" in note for note in found.notes)


def test_stacks_are_equal_blocks_in_a_row() -> None:
    assert stacks(alike(4)) == [Stack("blocks", 1, 10, 2)]
    assert stacks(two_stacks(4)) == [Stack("0", 0, 9, 0), Stack("2", 0, 12, 0)]
    within = nn.Sequential(*(two_stacks(4) for _ in range(8)))
    assert stacks(within) == [Stack("", 0, 8, 0)]
    assert stacks(nn.Sequential(*(Block(4, k) for k in range(1, 12)))) == []


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
