"""What is the longest chain of dependent steps, in the papers' words?

A product is one multiplication, a reduction one cumulation (`sum`) however many indices it has.
Among chains with equally many steps the one with the larger span is shown, then the one whose
equations come first; how many tie is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from costmodel.conventions import Convention, convention as named_convention
from costmodel.domains import Constraints, Unsupported, projected
from costmodel.equations import Mixer, System
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Fft,
    Folded,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Sub,
)
from costmodel.functions import TABLE
from costmodel.polynomial import Poly, call
from costmodel.rules.span import Depths, depths_of, dominates, largest, terms_of
from costmodel.tokens import Instances, instances, phase_name, system_of

STEP_WORDS: Mapping[str, str] = {
    "mul": "multiplication",
    "sum": "cumulation",
    "add": "addition",
    "div": "division",
    "exp": "exponentiation",
    "max": "maximum",
    "compare": "comparison",
    "fft": "Fourier transform",
}
"""How papers say a step; a function is called by its name."""


@dataclass(frozen=True)
class Step:
    """One step and the equation that it stands in."""

    name: str
    equation: str


@dataclass(frozen=True)
class Chain:
    """A chain of steps with the levels that it takes in the worst case, and how many tie."""

    steps: tuple[Step, ...] = ()
    levels: Poly = Poly()
    ties: int = 1

    def then(self, equation: str, names: tuple[str, ...], levels: Poly) -> Chain:
        """The chain with steps at its end."""
        steps = self.steps + tuple(Step(name, equation) for name in names)
        return replace(self, steps=steps, levels=self.levels + levels)


@dataclass(frozen=True)
class CriticalPath:
    """The steps of the longest chain; `ties` counts the chains with as many steps."""

    chain: Chain

    @property
    def steps(self) -> tuple[str, ...]:
        """Step names: mul sum add div exp max compare, a function's name, fft."""
        return tuple(step.name for step in self.chain.steps)

    @property
    def equations(self) -> tuple[str, ...]:
        """The equation in which each step stands."""
        return tuple(step.equation for step in self.chain.steps)

    @property
    def ties(self) -> int:
        """How many chains have as many steps."""
        return self.chain.ties

    @property
    def words(self) -> str:
        """The path as papers print it."""
        return " - ".join(STEP_WORDS.get(name, name) for name in self.steps)

    def _repr_latex_(self) -> str:
        return r"$\text{" + self.words.replace(" - ", " -- ") + "}$"


Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Context:
    system: System
    depths: Depths
    sizes: Sizes | None
    arrays: dict[Array, Chain]

    def longer(self, first: Chain, second: Chain) -> Chain:
        """The chain with more steps, then the larger span, then the first."""
        if len(first.steps) != len(second.steps):
            return max(first, second, key=lambda c: len(c.steps))
        ties = first.ties + second.ties
        if self.sizes is None:
            larger = not dominates(frozenset(), first.levels, second.levels) and dominates(
                frozenset(), second.levels, first.levels
            )
        else:
            at = dict(self.sizes)
            larger = second.levels.at(at) > first.levels.at(at)
        return replace(second if larger else first, ties=ties)

    def chain(self, node: Node, part: Instances, around: Constraints) -> Chain:
        """The longest chain that ends in an expression."""
        try:
            rule = RULES[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in critical_path") from None
        return rule(self, node, part, around)


def _ready(context: _Context, node: Node, part: Instances, around: Constraints) -> Chain:
    return Chain()


def _ref(context: _Context, node: Ref, part: Instances, around: Constraints) -> Chain:
    known = context.arrays.get(node.array)
    return known if known is not None and context.depths.fresh(node, around) else Chain()


def _binary(name: str) -> Callable[[_Context, Binary, Instances, Constraints], Chain]:
    def rule(context: _Context, node: Binary, part: Instances, around: Constraints) -> Chain:
        left, right = (context.chain(child, part, around) for child in node.children)
        if not left.steps and not right.steps:
            return Chain().then(part.equation.part_of, (name,), Poly.of(1))
        return context.longer(left, right).then(part.equation.part_of, (name,), Poly.of(1))

    return rule


def _same(context: _Context, node: Neg | Folded, part: Instances, around: Constraints) -> Chain:
    return context.chain(node.body, part, around)


def _call(context: _Context, node: Call, part: Instances, around: Constraints) -> Chain:
    steps = TABLE[node.function].steps
    before = context.chain(node.body, part, around)
    return before.then(part.equation.part_of, steps, Poly.of(len(steps)))


def _reduce(context: _Context, node: Reduce, part: Instances, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = context.chain(node.body, part, inner)
    levels = call("ceil_log2", terms_of(node.over))
    levels = largest(levels, part.variables, part.constraints)
    return before.then(part.equation.part_of, (node.kind,), levels)


def _fft(context: _Context, node: Fft, part: Instances, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = context.chain(node.body, part, inner)
    return before.then(part.equation.part_of, ("fft",), call("ceil_log2", node.length) * 3)


RULES: Mapping[type[Node], Callable[..., Chain]] = {
    Constant: _ready,
    Ref: _ref,
    Neg: _same,
    Folded: _same,
    Add: _binary("add"),
    Sub: _binary("add"),
    Mul: _binary("mul"),
    Div: _binary("div"),
    Call: _call,
    Reduce: _reduce,
    Fft: _fft,
}


def _exists(part: Instances, sizes: Mapping[str, int]) -> bool:
    """Whether an equation has any point at these sizes."""
    conditions = projected(part.constraints, reversed(part.variables))
    return all(condition.rational(sizes) >= 0 for condition in conditions)


@cache
def _path(system: System, phase: str, sizes: Sizes | None) -> CriticalPath:
    context = _Context(system, depths_of(system, phase), sizes, {})
    longest = Chain()
    for part in instances(system, phase):
        if sizes is not None and not _exists(part, dict(sizes)):
            continue
        chain = context.chain(part.equation.value, part, part.constraints)
        known = context.arrays.get(part.equation.array)
        context.arrays[part.equation.array] = context.longer(known, chain) if known else chain
        if part.equation.array.role == "output":
            longest = context.arrays[part.equation.array]
    return CriticalPath(longest)


def critical_path(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    sizes: Mapping[str, int] | None = None,
) -> CriticalPath:
    """The longest chain of dependent steps to the output.

    Args:
        sizes: numbers that break ties by span; without them only proven differences do.

    Raises:
        Unanswered: inference of a form that has none.

    Source of the wording: Chen 2023, arXiv 2308.07661v1, section 7.

    >>> import costmodel as cm
    >>> cm.critical_path(cm.mixer("she")).steps
    ('mul', 'sum', 'mul', 'mul', 'sum')
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, named_convention(convention).rewrites, phase)
    return _path(system, phase, tuple(sorted(sizes.items())) if sizes else None)
