"""What would another tool (a peer) count for these equations?

A peer counts the multiply-adds of contractions. The contraction of an equation consists of its
sums over products of arrays: their multiplications, and the additions that sum up the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from costmodel.errors import Unanswered
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import (
    Add,
    Array,
    Binary,
    Call,
    Composite,
    Div,
    Fft,
    Maximum,
    Mul,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    walk,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.program.conventions import PEERS
from costmodel.program.phases import TRAINING_STEP, iteration_domains
from costmodel.program.trip_count import Points
from costmodel.questions.counting.counts import Counts
from costmodel.questions.counting.executed import RULES as EXECUTED
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Contraction:
    """The operations of one equation's contraction per sequence; `once_...`: for all sequences."""

    multiplications: Exact = Exact()
    additions: Exact = Exact()
    once_multiplications: Exact = Exact()
    once_additions: Exact = Exact()

    def __add__(self, other: Contraction) -> Contraction:
        """The operations of both contractions."""
        return Contraction(
            self.multiplications + other.multiplications,
            self.additions + other.additions,
            self.once_multiplications + other.once_multiplications,
            self.once_additions + other.once_additions,
        )

    def products(self, sizes: Mapping[str, int]) -> int:
        """The multiplications at integer sizes, for b sequences."""
        batch = sizes.get("b", 1)
        return batch * self.multiplications.at(sizes) + self.once_multiplications.at(sizes)

    def operations(self, sizes: Mapping[str, int]) -> int:
        """Multiplications and additions (R - 1 for R terms) at integer sizes, for b sequences."""
        batch = sizes.get("b", 1)
        added = batch * self.additions.at(sizes) + self.once_additions.at(sizes)
        return self.products(sizes) + added


Products = Callable[[Equation, Mul], int]
"""(equation, product) -> how many times the multiplications of the product are counted."""


@cache
def contraction_counts(system: System, phase: str) -> Mapping[str, Contraction]:
    """Array as the mixer's author wrote it -> its contraction; arrays without one left out."""
    return contractions(system, phase, lambda equation, node: 1)


def contractions(system: System, phase: str, products_of: Products) -> Mapping[str, Contraction]:
    """Array as the mixer's author wrote it -> the multiplications and additions of the sums over
    products in its equation, d**2*l and d**2*l - d*l of x W_Q for x (l, d) and W_Q (d, d); arrays
    without a counted product are left out.

    Args:
        products_of: function of an equation and one of its products: how often the product is
            counted, such as 2 for a matrix product both of whose factors get a gradient.
    """
    found: dict[str, Contraction] = {}
    for part in iteration_domains(system, phase):
        points = Points(part.equation, part.variables, part.constraints, "strict")
        products, sums = Exact(), Exact()
        for name, number in _inside(part.equation.value, points, products_of):
            if name == "mul":
                products = products + number
            else:
                sums = sums + number
        if products.is_zero:
            continue
        none = Exact()
        own = (none, none, products, sums) if part.once else (products, sums, none, none)
        name = part.equation.part_of
        found[name] = found.get(name, Contraction()) + Contraction(*own)
    return found


def gradient_contractions(system: System) -> Mapping[str, Contraction]:
    """Array -> the multiplications and additions that the sums over products of its equation add to
    the backward pass.

    Each product of an equation that the output depends on is counted once per factor that gets a
    gradient: the gradients of a matrix product A*B are two matrix products of the same size.
    """
    # the arrays that the output depends on
    reached: set[Array] = {system.mixer.role("output")}
    while (
        read := {a for e in system.equations if e.array in reached for a in e.value.arrays}
        - reached
    ):
        reached |= read

    def factors(equation: Equation, node: Mul) -> int:
        flows = (not system.active.isdisjoint(child.arrays) for child in node.children)
        return sum(flows) if equation.array in reached else 0

    return contractions(system, "training", factors)


def _inside(node: Node, points: Points, products_of: Products) -> Iterator[tuple[str, Exact]]:
    """Yield the operations of the sums over products (such as matrix products) in an expression, as
    pairs (class, number in the sizes): R - 1 additions for R terms, and the operations within the
    terms: at a point ("add", -1), ("add", d), ("mul", d) of d products. Any other node is searched
    for such sums.

    Args:
        points: the equation that holds the expression, and the values of its indices at which the
            expression is evaluated.
        products_of: function of the equation and a product in it: how often the product is counted.
    """
    # a sum, and no maximum: `TERMS` has the rule `_inside` for reductions alone
    sums = TERMS[type(node)] is _inside and node.names == ("sum",)
    products = sums and any(_joins_arrays(inside) for inside, _ in walk(node))
    if products:
        yield "add", points.number(points.present(node)) * -1
    for child, inner in points.under(node):
        if products:
            yield "add", inner.number(inner.present(child))
        yield from (_terms if products else _inside)(child, inner, products_of)


def _joins_arrays(node: Node) -> bool:
    """Whether a node is a product whose factors both contain arrays (no constant times array)."""
    return TERMS[type(node)] is _product and all(child.arrays for child in node.children)


def _terms(node: Node, points: Points, products_of: Products) -> Iterator[tuple[str, Exact]]:
    """Yield the operations of a term of a sum over products, as (class, number) pairs: products,
    and the additions and subtractions between them. Of a[j]*(b[j] + c[j]) a mul and an add."""
    yield from TERMS[type(node)](node, points, products_of)


def _operands(node: Node, points: Points, products_of: Products) -> Iterator[tuple[str, Exact]]:
    """Yield the operations of the operands of a node whose own operation a peer does not count."""
    for child in node.children:
        yield from _terms(child, points, products_of)


def _product(node: Mul, points: Points, products_of: Products) -> Iterator[tuple[str, Exact]]:
    """Yield one multiplication per point, counted `products_of` times, and the operations of the
    operands."""
    yield "mul", points.number(points.carried_out(node)) * products_of(points.equation, node)
    yield from _operands(node, points, products_of)


def _sum(node: Binary, points: Points, products_of: Products) -> Iterator[tuple[str, Exact]]:
    yield "add", points.number(points.carried_out(node))
    yield from _operands(node, points, products_of)


TERMS: Rules[Callable[..., Iterator[tuple[str, Exact]]]] = Rules.like(
    "what peers count",
    EXECUTED,
    {
        **dict.fromkeys((Ref, Div, Maximum, Call, Fft, Scan, Select), _operands),
        Add: _sum,
        Mul: _product,
        Reduce: _inside,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the operations of a term that a peer counts. Kinds that share a rule in the table
of executed operations share one here."""


def peer_counts(forward: System, phase: str, peer: str) -> Mapping[str, Counts]:
    """Array as the mixer's author wrote it -> the operations that a peer (the counter of another
    tool) counts for the equation in a phase (`training`: the forward pass; `backward`: the
    gradients; `training-step`: both), if every contraction is one dense kernel on a CPU.

    The peer counts multiplications, and as many additions if it counts a multiply-add as two
    operations. Its counts of other classes are unknown, not 0: tables show a dash.

    Args:
        forward: the equations of a forward pass, or of one new token.

    Raises:
        Unanswered: gradients, for a peer that counts forward passes only.
    """
    passes = []
    if phase != "backward":
        passes.append(
            contraction_counts(forward, "inference" if phase == "inference" else "training")
        )
    if phase in TRAINING_STEP:
        if not PEERS[peer].gradients:
            raise Unanswered(f"{peer} counts forward passes only: ask for phase training")
        passes.append(gradient_contractions(forward))
    kernels = {equation.part_of: equation.array.kernel for equation in forward.equations}
    found: dict[str, Counts] = {}
    for counted in passes:
        for name, part in counted.items():
            # None, the peer does not count this class of kernels, gives its contraction 0
            per_product = PEERS[peer].rule(kernels[name], "cpu").per_product or 0
            # of a multiply-add that counts 2, one is a mul and one an add (`_by_class`)
            each = Poly.of(Fraction(per_product) / (2 if PEERS[peer].additions else 1))
            once = part.once_multiplications * each
            apart = Counts({} if once.is_zero else _by_class(once, peer), peer=peer)
            own = Counts(_by_class(part.multiplications * each, peer), apart, peer)
            found[name] = added(found[name], own) if name in found else own
    return found


def added(one: Counts, two: Counts) -> Counts:
    """The sum of a peer's counts of two passes; `Counts.__add__` alone drops the peer."""
    once = (one.once or Counts({})) + (two.once or Counts({}))
    return replace(one + two, once=replace(once, peer=one.peer), peer=one.peer)


def _by_class(number: Exact, peer: str) -> dict[str, Exact]:
    """A number of multiply-adds by class: as mul, and as add too if the peer counts additions."""
    return {"mul": number, "add": number} if PEERS[peer].additions else {"mul": number}


def summed(equations: Mapping[str, Counts], peer: str) -> Counts:
    """The sum over all equations of the operations that a peer (the counter of another tool)
    counts, in the classes that the peer counts: its multiplications and, if it counts additions, as
    many additions."""
    macs, once = Exact(), Exact()
    for part in equations.values():
        macs = macs + part.exact("mul")
        once = once + part.once.exact("mul") if part.once else once
    return Counts(_by_class(macs, peer), Counts(_by_class(once, peer), peer=peer), peer)
