"""Is a module compared by quotient and remainder where equations hold floors?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

import costmodel as cm
from costmodel import Mixer
from costmodel.symbolic.constraints import Constraints, floor_div
from costmodel.symbolic.polynomial import Fn, Poly, call
from costmodel.symbolic.printing import conditions_words
from profiler.modules import implementations
from profiler.tracing.cases import SizeCase, Traces
from profiler.tracing.compare_equations import by_case, compare_passes
from profiler.tracing.divisions import (
    Division,
    asked_conditions,
    asked_formula,
    division_cases,
    floor_free_cases,
    floors_in,
)
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.observe import observe
from profiler.tracing.meta_run.target import Target, TraceError, parse_variables
from profiler.tracing.result import Break, Trace
from profiler.tracing.trace import trace_case

L, C, W, K = map(Poly.atom, "lCwk")
OVER = L // C
MULTIPLE, BEYOND = Division("l", C, 0), Division("l", C, None)

SHORT, WHOLE, FEW = "l > C*floor(l/C) and floor(l/C) >= 1", "l = C*floor(l/C)", "l < C"

# The letters.


def test_a_size_is_a_multiple_and_a_remainder() -> None:
    assert MULTIPLE.letters == ("floor(l/C)",)
    assert BEYOND.letters == ("floor(l/C)", "(-C*floor(l/C) + l)")
    sizes = BEYOND.over(parse_variables("l,C", "d=l+1"))
    assert list(sizes.over) == [*BEYOND.letters, "C"]
    assert sizes.sizes({"floor(l/C)": 4, "(-C*floor(l/C) + l)": 3, "C": 5})["d"] == 24
    assert asked_formula(BEYOND.value**2, (BEYOND,)) == L**2
    assert conditions_words(asked_conditions(BEYOND.bounds, (BEYOND,))) == SHORT


def test_the_cases_of_a_division_are_disjoint_and_cover_all_sizes() -> None:
    """Of l over C, and of k over 6: halves and thirds at once."""
    sizes = parse_variables("l,C,k", "d=2")

    def parts(*over: Poly) -> list[Constraints]:
        found = division_cases(frozenset(), sizes, floors_in(over))
        return [asked_conditions(region, (way,) if way else ()) for region, way in found]

    by_size, by_number = parts(OVER), parts(K // 2, (K + 1) // 3)
    assert [conditions_words(region) for region in by_size] == [FEW, WHOLE, SHORT]
    assert len(by_number) == 6
    for found in (by_size, by_number):
        for l, c, k in product(range(1, 9), range(1, 5), range(1, 14)):
            point = {"l": l, "C": c, "k": k}
            holding = [all(one.rational(point) >= 0 for one in region) for region in found]
            assert holding.count(True) == 1, point


def test_a_floor_with_few_values_is_told_by_its_bounds() -> None:
    """floor((l - 1)/C) = 0 and floor(l/C) >= 1 is l = C."""
    region = frozenset((-((L - 1) // C), OVER - 1))
    assert floor_free_cases(region) == [frozenset((L - C, C - L))]
    r = Poly.atom("r")
    halves = floor_free_cases(frozenset((C - 1 - r, (r * 2) // C + r - 3)))
    assert len(halves) == 2 and not any(floors_in(case) for case in halves)


def test_a_size_over_two_others_is_refused() -> None:
    both = floors_in([OVER + L // W])
    with pytest.raises(
        TraceError, match="divide l by C and by w, and formulas have quotients by one size"
    ):
        division_cases(frozenset(), parse_variables("l,C,w", "d=2"), both)
    with pytest.raises(
        TraceError, match=r"by 5 and by 7, with 35 remainders, and at most 16 .*--over l:35"
    ):
        division_cases(frozenset(), parse_variables("l,C,w", "d=2"), floors_in([L // 5 + L // 7]))


# Equations with chunks.


def blocks() -> Mixer:
    """The weighted sum up to each row within its chunk of C, of which the last may be short."""
    m = Mixer("blocks")
    l, d, c = m.sizes("l d C")
    x, w, y = m.input("x", l, d), m.parameter("w", c), m.output("y", l, d)
    with m.form("direct") as f:
        q, a = f.index("q", 1, l // c + 1), f.index("a", 1, d)
        e = f.index("e", 1, cm.min_(c, l - (q - 1) * c))
        s = f.index("s", 1, e)
        y[(q - 1) * c + e, a] = cm.sum_(x[(q - 1) * c + s, a] * w[s], over=s)
    return m


class Blocks(nn.Module):
    """One sum after the other; `doctor` adds a function to the last one of each chunk (an
    exponential to complete ones, else a logarithm), or of the only one."""

    def __init__(self, *, l: int, d: int, C: int, doctor: str = "") -> None:
        super().__init__()
        self.w, self.C, self.doctor = nn.Parameter(torch.empty(C)), C, doctor

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for start in range(0, x.shape[1], self.C):
            part = x[:, start : start + self.C]
            for e in range(1, part.shape[1] + 1):
                rows.append((part[:, :e] * self.w[:e, None]).sum(1))
            if self.doctor == "all" or (self.doctor == "single" and x.shape[1] == self.C):
                rows[-1] = rows[-1].exp() if part.shape[1] == self.C else rows[-1].log()
        return torch.stack(rows, 1)


@dataclass
class Untraced:
    """A module of which nothing is known at all sizes: each case is traced by itself."""

    make: Callable[..., nn.Module]
    over: str
    let: Mapping[str, str]

    @property
    def trace(self) -> Trace:
        sizes, target = parse_variables(self.over, self.let), Target("module", self.make)
        broken = Break({}, "", "0", 1)
        return Trace(
            "module", "math", sizes, {(p, "mul"): broken for p in ("forward", "backward")},
            [], [], {}, {}, within=partial(trace_case, target, sizes, "math"),
        )  # fmt: skip


def test_chunks_are_compared_by_quotient_and_remainder() -> None:
    """All but what is injected is explained: an exponential for every complete chunk, and a
    logarithm for the last, short one."""
    traces = Traces(Untraced(partial(Blocks, doctor="all"), "l,C", {"d": "1"}).trace)
    found = {one.case: one for one in by_case(traces, blocks(), "forward", SizeCase())}
    assert {case: one.unexplained for case, one in found.items()} == {
        SHORT: {"exp": OVER, "log": Poly.of(1)},
        WHOLE: {"exp": OVER},
        FEW: {"log": Poly.of(1)},
    }
    for one in found.values():
        assert len(one.proven) >= 3, (one.case, one.reason)
        for point in one.proven:
            assert all(condition.rational(point) >= 0 for condition in one.region)
    counts, rest = found[SHORT].equations, L - C * OVER
    pairs = (OVER * C * (C + 1) + rest * (rest + 1)) * Fraction(1, 2)
    assert counts["mul"] == pairs and counts["add"] == pairs - L


def test_a_case_that_a_division_leaves_as_it_is_is_not_split() -> None:
    """Where l < C, l over C is 0 and l + 1 over C is 0 or 1, and l is no multiple of C."""
    (over,) = (atom for atom in floor_div(L + 1, C).atoms if isinstance(atom, Fn))
    shorter = SizeCase(frozenset({C - 1 - L}))
    assert Traces(Untraced(Blocks, "l,C", {}).trace).parts(shorter, [over]) == []


def test_a_divisor_that_was_not_given_is_told_in_a_sentence() -> None:
    found = Untraced(partial(Blocks, C=3), "l,d", {}).trace
    with pytest.raises(TraceError, match="give C with --over or --let"):
        compare_passes(found, blocks())


def test_what_holds_from_two_chunks_on_alone_is_a_case_of_its_own() -> None:
    """An exponential more where the sequence is one chunk."""
    target, way = Untraced(partial(Blocks, doctor="single"), "l,C", {"d": "1"}), (MULTIPLE,)
    found = by_case(Traces(target.trace), blocks(), "forward", SizeCase(divisions=way))
    assert {one.case: one.unexplained for one in found} == {
        f"{WHOLE} and floor(l/C) >= 2": {},
        "l = C": {"exp": Poly.of(1)},
    }


# Halves, on the lines that no run of consecutive sizes lies on.


def test_a_line_of_even_or_odd_sizes_is_compared() -> None:
    """A centred convolution of k taps whose last tap reaches just l rows ahead."""
    module = implementations("convolution-same")["conv"].module
    traces = Traces(Untraced(module, "l,k", {"d": "2"}).trace)
    ahead = call("floor_div", K + 1, 2)
    line = SizeCase(frozenset((ahead + L - K, K - ahead - L)))
    found = list(by_case(traces, cm.mixer("convolution-same"), "backward", line))
    assert {one.case for one in found} == {
        "k = 2*floor(k/2) and l = floor(k/2)",
        "k + 1 = 2*floor((k + 1)/2) and l + 1 = floor((k + 1)/2)",
    }
    for one in found:
        assert one.explained
        assert {point["k"] % 2 for point in one.proven} == {int("k + 1 = 2" in one.case)}
        assert all(point["l"] == point["k"] // 2 for point in one.proven)


# Modules at random.


def scanned(x: Tensor, C: int) -> Tensor:
    """Each chunk reads the products of the complete ones before it."""
    held: Tensor | None = None
    rows = []
    for start in range(0, x.shape[1], C):
        part = x[:, start : start + C]
        rows.append(part if held is None else part + part @ held)
        if part.shape[1] == C:
            product = part.transpose(1, 2) @ part
            held = product if held is None else held + product
    return torch.cat(rows, 1)


def paired(x: Tensor, C: int) -> Tensor:
    """All pairs within each chunk."""
    parts = [x[:, start : start + C] for start in range(0, x.shape[1], C)]
    return torch.cat([(part @ part.transpose(1, 2)) @ part for part in parts], 1)


def summed(x: Tensor, C: int) -> Tensor:
    """The sum up to each row within its chunk, row by row."""
    rows = []
    for start in range(0, x.shape[1], C):
        part = x[:, start : start + C]
        rows += [part[:, :e].sum(1, keepdim=True) for e in range(1, part.shape[1] + 1)]
    return torch.cat(rows, 1)


def filled_up(x: Tensor, C: int) -> Tensor:
    """All pairs within each chunk, the last one padded."""
    b, l, d = x.shape
    parts = F.pad(x, (0, 0, 0, -l % C)).view(b, -1, C, d)
    return ((parts @ parts.transpose(-1, -2)) @ parts).reshape(b, -1, d)[:, :l]


def over_means(x: Tensor, C: int) -> Tensor:
    """Every row attends to the means of the complete chunks."""
    b, l, d = x.shape
    whole = l // C * C
    means = x[:, :whole].reshape(b, -1, C, d).mean(2) if whole else x
    return torch.softmax(x @ means.transpose(1, 2), -1) @ means


PARTS = (scanned, paired, summed, filled_up, over_means)


class Random(nn.Module):
    """Some of the parts one after the other; without a seed none, but an exponential where the
    remainder is large."""

    def __init__(self, *, l: int, d: int, C: int, seed: int = 0) -> None:
        super().__init__()
        generator = random.Random(seed)
        self.parts = generator.sample(PARTS, generator.randint(1, 2)) if seed else []
        self.scale, self.C = nn.Parameter(torch.empty(d)), C

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for part in self.parts:
            x = part(x, self.C)
        return x if self.parts or 2 * (x.shape[1] % self.C) <= self.C else x.exp()


@pytest.mark.grid(4)
@pytest.mark.parametrize("seed", range(1, 5))
def test_formulas_of_random_chunks_hold_at_other_sizes(seed: int) -> None:
    target, sizes = Target("Random", partial(Random, seed=seed)), parse_variables("l,C", {"d": "2"})
    generator = random.Random(seed)
    for way in (MULTIPLE, BEYOND):
        found = trace_case(target, sizes, "math", way.bounds, (way,))
        least = [found.since[letter] for letter in way.letters]
        for _ in range(14):
            c = generator.randint(4, 17)
            rest = 0 if way.rest is None else generator.randint(least[1], c - 1)
            point = {"l": generator.randint(least[0], 9) * c + rest, "C": c}
            seen = observe(target, sizes.sizes(point), BACKENDS["math"]).quantities
            for phase in ("forward", "backward"):
                for class_, poly in found.classes(phase).items():
                    assert isinstance(poly, Poly)
                    assert asked_formula(poly, (way,)).rational(point) == seen.get(
                        (phase, class_), 0
                    )


def test_a_branch_on_the_remainder_has_no_formula() -> None:
    target = Target("Random", Random)
    found = trace_case(target, parse_variables("l,C", {"d": "2"}), "math", BEYOND.bounds, (BEYOND,))
    assert isinstance(found.quantities["forward", "exp"], Break)
