"""What would another tool count for these equations?

A peer counts multiply-adds of contractions. The contraction of an equation is its reductions over
products: the products, and the additions that sum them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel.errors import Unanswered
from costmodel.language.equations import Mixer, System
from costmodel.language.nodes import Add, Mul, Node, Reduce, Sub, walk
from costmodel.program.conventions import PEERS
from costmodel.program.phases import TRAINING_STEP, iteration_domains
from costmodel.program.trip_count import Points
from costmodel.questions.counting.counts import Counts
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Contraction:
    """The reductions over products of one equation: for one sequence, and done once."""

    multiplications: Exact = Exact()
    additions: Exact = Exact()
    once_multiplications: Exact = Exact()
    once_additions: Exact = Exact()

    def __add__(self, other: Contraction) -> Contraction:
        return Contraction(
            self.multiplications + other.multiplications,
            self.additions + other.additions,
            self.once_multiplications + other.once_multiplications,
            self.once_additions + other.once_additions,
        )

    def products(self, sizes: Mapping[str, int]) -> int:
        """Real multiplications at integer sizes."""
        batch = sizes.get("b", 1)
        return batch * self.multiplications.at(sizes) + self.once_multiplications.at(sizes)

    def operations(self, sizes: Mapping[str, int]) -> int:
        """Multiplications and additions at integer sizes, R-1 additions for R terms."""
        batch = sizes.get("b", 1)
        added = batch * self.additions.at(sizes) + self.once_additions.at(sizes)
        return self.products(sizes) + added


def contraction_counts(system: System, phase: str) -> Mapping[str, Contraction]:
    """The contraction of each equation, as the file writes it; equations without one left out."""
    found: dict[str, Contraction] = {}
    for part in iteration_domains(system, phase):
        points = Points(part.equation, part.variables, part.constraints, "strict")
        products, sums = Exact(), Exact()
        for name, number in _inside(part.equation.value, points):
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


def _inside(node: Node, points: Points) -> Iterator[tuple[str, Exact]]:
    """The operations of reductions over products."""
    products = (
        isinstance(node, Reduce)
        and node.kind == "sum"
        and any(isinstance(inside, Mul) for inside, _ in walk(node.body))
    )
    if products:
        yield "add", points.number(points.present(node)) * -1
    for child, inner in points.under(node):
        if products:
            yield "add", inner.number(inner.present(child))
        yield from (_terms if products else _inside)(child, inner)


def _terms(node: Node, points: Points) -> Iterator[tuple[str, Exact]]:
    """Products and the additions between them, inside one reduction."""
    if isinstance(node, Reduce):
        yield from _inside(node, points)
        return
    if isinstance(node, Mul):
        yield "mul", points.number(points.carried_out(node))
    elif isinstance(node, (Add, Sub)):
        yield "add", points.number(points.carried_out(node))
    for child in node.children:
        yield from _terms(child, points)


def no_backward(peer: str) -> str:
    """Why a peer has no count of gradients: which kernels carry them is the implementation's."""
    return f"what {peer} counts of a backward pass is measured, not derived"


def peer_equations(mixer: Mixer, phase: str, form: str | None, peer: str) -> Mapping[str, Counts]:
    """The operations that a peer counts for each equation, every contraction dense in one kernel.

    Multiplications, and as many additions where the peer counts a multiply-add as two; it counts
    nothing else, which is not a zero: tables show a dash.
    """
    if phase in TRAINING_STEP:
        raise Unanswered(no_backward(peer))
    system = system_of(mixer, form, ("dense",), phase)
    kernels = {equation.part_of: equation.array.kernel for equation in system.equations}
    found: dict[str, Counts] = {}
    for name, part in contraction_counts(system, phase).items():
        per_product = PEERS[peer].rule(kernels[name], "cpu").per_product or 0
        share = Poly.of(Fraction(per_product) / (2 if PEERS[peer].additions else 1))
        once = part.once_multiplications * share
        apart = Counts({} if once.is_zero else _seen(once, peer), peer=peer)
        found[name] = Counts(_seen(part.multiplications * share, peer), apart, peer)
    return found


def _seen(number: Exact, peer: str) -> dict[str, Exact]:
    """Multiply-adds under the classes that a peer counts."""
    return {"mul": number, "add": number} if PEERS[peer].additions else {"mul": number}


def peer_count(mixer: Mixer, phase: str, form: str | None, peer: str) -> Counts:
    """The operations that a peer counts for a form: the sum of `peer_equations`."""
    macs, once = Exact(), Exact()
    for part in peer_equations(mixer, phase, form, peer).values():
        macs = macs + part.exact("mul")
        once = once + part.once.exact("mul") if part.once else once
    return Counts(_seen(macs, peer), Counts(_seen(once, peer), peer=peer), peer)
