"""The gradient of a gather of one entry along one axis, such as the score of a target class.

One entry of the axis receives the gradient, as with a maximum. While gradients are derived, a
maximum over the axis stands in for the gather (a `Pick`): m[i] = max over c of v[i, c] for
v[i, p[i]]. `restored` puts the gather back, and compares positions with the gathered index, c with
p[i], where the gradient of the maximum compares values, v[i, c] with m[i]. This requires that no
two points of an equation read one entry: else the number of terms depends on the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from costmodel.adjoint.residuals import extent
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    Array,
    Bracket,
    Constant,
    Gather,
    Node,
    Reduce,
    Ref,
    derived,
    names_in,
    position_value,
    refs,
    rewrite,
    substitute,
    with_entries,
)
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import identifier

ONE = Poly.of(1)


@dataclass(frozen=True)
class Place:
    """The axes of a new array with a value for each value of a reference: one axis per index in the
    positions of the reference."""

    indices: tuple[Index, ...]
    shape: tuple[Poly, ...]

    @property
    def positions(self) -> tuple[Poly, ...]:
        """The positions of the entry for the current values of the indices."""
        return tuple(index.as_poly() for index in self.indices)


def place_of(ref: Ref, around: Iterable[Index]) -> Place:
    """The `Place` of a reference under the indices around it."""
    named = {*names_in(ref.positions)}
    indices = tuple(index for index in around if index.atom in named)
    return Place(indices, tuple(extent(index, around) for index in indices))


Replaced = tuple[Ref, list[Equation]]
"""(the reference that is read instead, the equations that define its array)."""


def replaced(
    system: System,
    chosen: Callable[[Ref, list[Index]], bool],
    made: Callable[[Equation, Ref, list[Index]], Replaced],
) -> tuple[Equation, ...]:
    """The equations of a system with some references replaced, and before each equation the
    equations that define the arrays that it reads instead.

    Args:
        chosen: (reference, indices around it) -> whether the reference is replaced.
        made: (equation, reference, indices around it) -> the replacement.
    """
    equations: list[Equation] = []
    for equation in system.equations:
        changed: dict[Ref, Ref] = {}
        for entry, over in refs(equation.value):
            around = outer_first([*equation.indices, *over])
            if entry not in changed and chosen(entry, around):
                changed[entry], more = made(equation, entry, around)
                equations += more
        if changed:
            equation = replace(equation, value=with_entries(equation.value, changed))
        equations.append(equation)
    return tuple(equations)


@dataclass(frozen=True)
class Pick:
    """A gathered reference for which a maximum stands in."""

    indices: tuple[Index, ...]
    """The indices of the array that holds the maximum."""
    read: Ref
    """The gathered reference."""
    axis: int
    """The axis along which it gathers."""

    def by_position(self, node: Bracket) -> Bracket:
        """The bracket `node` (a value under a condition) of the gradient with another condition:
        c = p[i], `position on the axis = gathered index`, in place of v[i, c] = m[i], `entry =
        maximum`. The gathered index is taken at the row i at which the bracket reads m."""
        gather = self.read.positions[self.axis]
        # the rule of a maximum compares an entry of the array with the entry of the maximum
        assert isinstance(gather, Gather) and isinstance(node.left, Ref)
        assert isinstance(node.right, Ref)
        at = {
            index.atom: position_value(where)
            for index, where in zip(self.indices, node.right.positions, strict=True)
        }
        here = Constant(position_value(node.left.positions[self.axis]))
        return replace(node, left=here, right=substitute(gather.at, at))


@dataclass
class Picked:
    """The gathers of a system, and the maxima that stand in for them."""

    system: System
    picks: dict[Array, Pick] = field(default_factory=dict)
    """Array that holds a maximum -> the gather that it stands in for."""

    def with_maxima(self) -> System:
        """The system with a maximum in place of each gather of one entry."""
        return replace(self.system, equations=replaced(self.system, self._chosen, self._made))

    def _chosen(self, ref: Ref, around: list[Index]) -> bool:
        """Whether a gathered reference is replaced: its array gets a gradient and is no parameter,
        one axis is gathered, and different points read different entries: v[i, p[i]], and not
        v[p[i]], where p may hold one position twice (a scatter, `Reversal.hand_to`)."""
        plain = [p for p in ref.positions if not isinstance(p, Gather)]
        alone = {*plain} >= {index.as_poly() for index in around}
        computed = ref.array in self.system.active and ref.array.role != "parameter"
        return computed and alone and len(plain) == len(ref.positions) - 1

    def _made(self, equation: Equation, ref: Ref, around: list[Index]) -> Replaced:
        """(reference that is read in place of a gather `ref`, [equation of its new array]): for
        v[i, p[i]] the array holds m[i] = max over c of v[i, c], which stands in for the gather
        while gradients are derived. `around` are all indices around the gather."""
        place = place_of(ref, around)
        taken = sum(ref.array in array.made_for for array in self.picks)  # earlier gathers
        step = "picked" + (f".{taken + 1}" if taken else "")
        of = ref.array.latex or identifier(ref.array.name)
        latex = rf"{{{of}}}^{{\mathrm{{picked}}{taken + 1 if taken else ''}}}"
        array = derived(ref.array, "picked", step, shape=place.shape, cite="", latex=latex)
        (axis,) = (k for k, p in enumerate(ref.positions) if isinstance(p, Gather))
        self.picks[array] = Pick(place.indices, ref, axis)
        entry = Ref(array, place.positions)
        largest = Reduce("max", *_every(ref, axis, around))
        defining = Equation(array, place.positions, largest, place.indices, equation.whole)
        return entry, [defining]

    def restored(self, step: System) -> System:
        """The system with gathers in place of the stand-in maxima, in values and in gradients."""
        if not self.picks:
            return step
        return step.with_equations({e: replace(e, value=self._value(e)) for e in step.equations})

    def _value(self, equation: Equation) -> Node:
        """The right-hand side of an equation with gathers in place of maxima: the gather itself for
        the array of a maximum; in gradients, comparisons with the gathered index."""
        if equation.array in self.picks:
            return self.picks[equation.array].read
        return rewrite(equation.value, self._by_position)

    def _by_position(self, node: Node) -> Node:
        """A node; if it is a bracket (a condition) on a maximum that stands in for a gather, with
        the gathered index compared in place of the maximum."""
        match node:
            case Bracket(right=Ref(array)) if pick := self.picks.get(array):
                return pick.by_position(node)
            case _:
                return node


def _every(ref: Ref, axis: int, around: Iterable[Index]) -> tuple[Node, tuple[Index, ...]]:
    """(reference like `ref` with a new index at `axis`, from 0, (that index,)), so that it reads
    all entries along the axis: (v[i, c], (c,)) for v[i, p[i]] and axis 1. The name of the new index
    is c, or another one if `around` has an index c."""
    taken = {index.name for index in around}
    own = ("c", "e", "z", *(f"c{k}" for k in range(len(taken))))
    name = next(n for n in own if n not in taken)
    index = Index(name, (ONE,), (ref.array.shape[axis],))
    positions = tuple(index.as_poly() if k == axis else p for k, p in enumerate(ref.positions))
    return Ref(ref.array, positions), (index,)
