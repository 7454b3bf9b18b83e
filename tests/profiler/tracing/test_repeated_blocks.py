"""Does a deep module, traced with fewer equal blocks, equal the trace of all blocks?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.tracing import trace
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.observe import PEAK, Quantity
from profiler.tracing.meta_run.target import Target, parse_variables
from profiler.tracing.repeated_blocks import NotStraight, Stack, common_moments, stacks
from profiler.tracing.result import Break, Cases, Trace, Value
from profiler.tracing.size_samples import SizeSamples
from profiler.tracing.trace import FormulaSearch
from tests.profiler.tracing import modules, test_proof
from tests.stand_ins import Instead, substitute


@pytest.fixture
def slow(instead: Instead) -> None:
    """Every module is one whose runs take long."""
    instead(short_run_s=-1, short_block_s=-1)


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


def by_blocks(found: Trace) -> bool:
    """Whether it was found from fewer blocks."""
    return any("equal blocks" in note for note in found.notes)


def without_peak(found: Trace) -> dict[Quantity, Value]:
    """All formulas but that of the peak."""
    return {quantity: value for quantity, value in found.quantities.items() if quantity != PEAK}


class Between(nn.Module):
    """Two stacks, and between them attention, where most bytes are alive at long sequences."""

    def __init__(self, d: int, numbers: tuple[int, int]) -> None:
        super().__init__()
        self.before, self.after = (
            nn.ModuleList(nn.Linear(d, d) for _ in range(number)) for number in numbers
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.before:
            x = layer(x)
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        for layer in self.after:
            x = layer(x)
        return x


def whole(make: Any, over: str, let: str | list[str], monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The trace with all blocks."""
    with monkeypatch.context() as patch:
        substitute(patch, least_blocks=10**6)
        return trace(make, over=over, let=let)


@pytest.mark.grid(6)
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("make", "over", "let"),
    [
        (lambda d, n: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, n, 5, batch_first=True), 8, enable_nested_tensor=False
        ), "n", ["l=5", "d=3*n"]),
        (alike, "l,d", ""),
        (two_stacks, "l,d", ""),
        (lambda d: Between(d, (8, 12)), "l,d", ""),
        (lambda d: Between(d, (9, 9)), "l,d", ""),
        (lambda d: nn.Sequential(*(nn.Linear(d, d) for _ in range(8))), "l,d", ""),
    ],
)  # fmt: skip
def test_fewer_blocks_give_the_formulas_of_all(
    make: Any, over: str, let: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, expected = trace(make, over=over, let=let), whole(make, over, let, monkeypatch)
    assert by_blocks(found)
    assert not by_blocks(expected)
    assert without_peak(found) == without_peak(expected)
    for size in product((5, 8, 40, 1000), repeat=len(found.base)):
        sizes = dict(zip(found.base, size, strict=True))  # the larger of equal moments may be named
        peaks = [one.quantities[PEAK] for one in (found, expected)]
        assert len({peak.rational(sizes) for peak in peaks if isinstance(peak, Poly)}) == 1
    assert (found.sample, found.at_peak) == (expected.sample, expected.at_peak)
    assert (found.flops, found.since) == (expected.flops, expected.since)
    assert [*expected.doubts] == [doubt for doubt in found.doubts if "equal blocks" not in doubt]
    assert len(found.doubts) == len(expected.doubts) + 1


def every_third(k: int, x: Tensor) -> Tensor:
    """Before every third block something is done beside."""
    return x.sin() if k % 3 == 2 else x


def only_late(k: int, x: Tensor) -> Tensor:
    """Before one block, which is among none that are kept, something is done beside."""
    return x.sin() if k == 7 else x


def only_when_long(k: int, x: Tensor) -> Tensor:
    """Before one such block, and at long sequences alone."""
    return x.sin() if k == 7 and x.shape[1] > 30 else x


@pytest.mark.grid(3)
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("between", [every_third, only_late, only_when_long])
def test_what_a_block_does_by_its_place_is_seen(
    between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole module is run at all sizes then."""

    def make(d: int) -> nn.Module:
        return Chain([nn.Linear(d, d) for _ in range(9)], between)

    found, expected = trace(make, over="l", let="d=4"), whole(make, "l", "d=4", monkeypatch)
    assert found.quantities == expected.quantities
    assert not by_blocks(found)


@pytest.mark.usefixtures("slow")
def test_a_number_of_blocks_that_depends_on_a_size_is_seen() -> None:
    """The whole module is traced, in a case for each side of 576."""

    def make(d: int) -> nn.Module:
        return nn.Sequential(nn.Linear(d, 2), *(nn.Linear(2, 2) for _ in range(max(8, d // 64))))

    found = trace(lambda d: (make(d), torch.empty(3, d)), over="d")
    assert not by_blocks(found)
    parameters = found.quantities["parameters", ""]
    assert isinstance(parameters, Cases)
    for d in (1, 100, 575, 576, 640, 1000):
        assert parameters.at({"d": d}) == sum(p.numel() for p in make(d).parameters())


@pytest.mark.usefixtures("slow")
def test_modules_that_are_copied_once_keep_to_themselves() -> None:
    """Each is a copy of another module, whose place in memory the next one may take."""

    def make(d: int) -> nn.Module:
        equal = [copy.deepcopy(nn.Linear(d, d)) for _ in range(12)]
        return nn.Sequential(
            *equal, copy.deepcopy(nn.Linear(d, 20)), copy.deepcopy(nn.Linear(20, d))
        )

    found = trace(make, over="l,d")
    assert by_blocks(found)
    assert str(found.parameters) == "12*d**2 + 53*d + 20"


def test_moments_are_found_from_either_end() -> None:
    """A stack of four blocks `ab` between p and q, then of five; what follows begins as a block
    does."""
    start, blocks, end = (
        [("forward p", 4)],
        [("forward a", 8), ("forward b", 0)],
        [("forward q", 2)],
    )
    short, long = (start + blocks * n + blocks[:1] + end for n in (4, 5))
    found = common_moments([short, long])
    assert {k for k, _ in found} == set(range(len(short)))
    assert (0, 0) in found
    assert (len(short) - 1, len(long) - 1) in found
    assert (9, 11) in found  # the a before q is no block
    assert (9, 9) not in found
    for other in ([*start, ("forward x", 0), *long[1:]], [*short, ("forward b", 0), *end]):
        with pytest.raises(NotStraight):
            common_moments([short, other])
    with pytest.raises(NotStraight):  # a fifth block, or something that looks like one?
        common_moments([start + blocks * n + end for n in (5, 6)])


def test_a_module_of_few_operations_is_run_whole() -> None:
    found = trace(
        lambda d: nn.Sequential(*(nn.Linear(d, d) for _ in range(8))), over="l", let="d=3"
    )
    assert not by_blocks(found)


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
    samples = SizeSamples(Target("module", make), parse_variables(over, let), BACKENDS["math"])
    found = FormulaSearch(samples, "math", divided=False).attempt()
    assert isinstance(found.quantities["forward", "mul"], Break)


@pytest.mark.grid(3)
@pytest.mark.parametrize("doctor", ["add", "mul", "exp", "upcast", "hook"])
def test_slow_modules_hide_no_operation(doctor: str, instead: Instead) -> None:
    def doctored(d: int) -> nn.Module:
        return modules.Doctored(d, doctor)

    plain = trace(doctored, over="l,d")
    instead(short_run_s=-1)
    found = trace(doctored, over="l,d")
    assert found.quantities == plain.quantities
    assert all(point in plain.proven for point in found.proven)
    assert len(found.fitted) < len(plain.fitted)
