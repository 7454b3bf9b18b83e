"""Alternative forms of a softmax's gradient, with other row sums, scale, or recomputed weights.

These are the forms of kernels that never store attention weights: Dao 2023, arXiv 2307.08691,
Algorithm 2 (for the scale: Dao et al. 2022, arXiv 2205.14135, Algorithm 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from costmodel.adjoint.recompute import read_by
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    MASKED,
    Add,
    Array,
    Call,
    Div,
    Mul,
    Node,
    Position,
    Reduce,
    Ref,
    Sub,
    derived,
    substitute,
)
from costmodel.program.recurrences import references
from costmodel.symbolic.constraints import implied
from costmodel.symbolic.polynomial import Poly, index_atom


def softmax_of(system: System, equation: Equation) -> Ref | None:
    """The scores of an equation that divides the exponentials of a softmax by their sum. None for
    any other equation, and for a softmax whose sum has further terms (a sink), whose exponentials
    belong to several equations, or whose scores are no array."""
    value = equation.value
    if not (
        isinstance(value, Div) and isinstance(value.left, Ref) and isinstance(value.right, Ref)
    ):
        return None
    powers, made = system.defining.get(value.left.array, ()), value.left.array.origin
    if made is None or (made.how, made.step) != ("softmax", "exp"):
        return None
    if {power.whole for power in powers} != {equation.array}:
        return None
    if len({power.written for power in powers}) != 1:
        return None
    if not all(isinstance(e.value, Reduce) for e in system.defining[value.right.array]):
        return None
    return _exponent(system, equation)[0]


def _exponent(system: System, equation: Equation) -> tuple[Ref | None, Node | None]:
    """(scores, the row's maximum) in the argument of a softmax's exponentials, scores - maximum;
    (scores, None) without a maximum, (None, None) if the scores are no array."""
    assert isinstance(equation.value, Div) and isinstance(equation.value.left, Ref)
    powers, *_ = system.defining[equation.value.left.array]
    assert isinstance(powers.value, Call)
    match powers.value.body:
        case Sub(Ref() as scores, largest):
            return scores, largest
        case Ref() as scores:
            return scores, None
        case _:
            return None, None


def softmaxes(system: System) -> Iterator[tuple[Equation, Ref]]:
    """Yield (equation, its scores) for each equation that is a complete softmax."""
    for equation in system.equations:
        if (scores := softmax_of(system, equation)) is not None:
            yield equation, scores


def scored(system: System, found: Iterable[tuple[Equation, Ref]]) -> frozenset[Array]:
    """The arrays of scores of the softmaxes `found` (equation, reference to its scores): the arrays
    that the softmaxes read and, for sums of scores and a mask, the arrays summed."""
    read = {scores.array for _, scores in found}
    masked = {a for a in read if a.origin and (a.origin.how, a.origin.step) == ("softmax", MASKED)}
    below = {ref.array for a in masked for e in system.defining[a] for ref in references(e)}
    return frozenset(read | below)


# row sums


def weighted_sum(
    system: System, softmax: Equation, row: Equation
) -> tuple[Equation, Ref, tuple[Index, ...]] | None:
    """The weighted sum o that is the only reader of a softmax A, from which kernels take the row
    sums of A's gradient: if o[i, c] = sum over j of A[i, j] v[j, c] is all that reads A, and g_o is
    the gradient of o, then sum over j of g[i, j] A[i, j] = sum over c of g_o[i, c] o[i, c].

    Args:
        softmax: the equation of A in `system`; `row`: that of its sums, whose indices number rows.

    Returns:
        (equation of o, reference to its entries at a row, indices that tell these entries apart);
            None if A has other readers, or if o is no such sum or lacks a row of A.
    """
    reads = [(e, ref) for e in system.equations for ref in references(e)]
    reads = [(e, ref) for e, ref in reads if ref.array is softmax.array]
    if len(reads) != 1 or len(system.defining[softmax.array]) != 1:
        return None
    ((reader, ref),) = reads
    if not _is_weighted_sum(reader.value, ref):
        return None
    free: dict[Position, Index] = {index.as_poly(): index for index in reader.indices}
    at: dict[str, Poly] = {}
    # o must read A at a free index in place of each row index, and sum over the others
    for mine, theirs in zip(softmax.positions, ref.positions, strict=True):
        if mine in [index.as_poly() for index in row.indices]:
            index = free.get(theirs)
            if index is None or not isinstance(mine, Poly):
                return None
            at[index.atom] = mine
        elif theirs in free:
            return None
    if not all(
        implied(row.domain, c.substitute(at)) for i in at for c in _constraints_of(reader, i)
    ):
        return None
    left = [index for index in reader.indices if index.atom not in at]
    at |= _renamed(left, row.indices)
    return reader, Ref(reader.array, substitute(reader.positions, at)), substitute(tuple(left), at)


def _is_weighted_sum(value: Node, weight: Ref) -> bool:
    """Whether a value is the sum of products with `weight` over one index, in one range, that is a
    position of the weight: the sum over j of A[i, j] v[j, c] for A[i, j]."""
    if not (isinstance(value, Reduce) and value.kind == "sum" and len(value.over) == 1):
        return False
    if len(value.parts) > 1:
        return False
    body = value.body
    if not (isinstance(body, Mul) and weight in body.children):
        return False
    return value.over[0].as_poly() in weight.positions


def _constraints_of(equation: Equation, atom: str) -> Iterator[Poly]:
    """Yield the constraints (polynomials >= 0) of the index `atom` of an equation."""
    for index in equation.indices:
        if index.atom == atom:
            yield from index.constraints


def _renamed(left: list[Index], rows: tuple[Index, ...]) -> Mapping[str, Poly]:
    """A dict: atom of an index in `left` -> an index with an unused name, for the indices whose
    name `rows` has too: `@i` -> i2 where `rows` has an index i."""
    taken = {index.name for index in (*left, *rows)}
    found: dict[str, Poly] = {}
    for index in left:
        if index.name in {row.name for row in rows}:
            new = next(n for k in range(2, 100) if (n := f"{index.name}{k}") not in taken)
            taken.add(new)
            found[index.atom] = Poly.atom(index_atom(new))
    return found


# recomputed weights


def from_logarithms(step: System) -> tuple[System, System, frozenset[Array]]:
    """(training step that keeps the logarithms L, equations to recompute by, arrays to recompute)
    for a backward pass that recomputes the weights of every softmax that the pass reads.

    The forward pass keeps L = m + log(sum of exp(s - m)) of each row, m being the subtracted
    maximum (0 without one); the weights are then exp(s - L), and their scores s are recomputed too.
    Without such a softmax, the step and its forward pass are returned unchanged.
    """
    forward, read = step.forward, read_by(step.backward)
    found = [(e, scores) for e, scores in softmaxes(forward) if e.array in read]
    if not found:
        return step, forward, frozenset()
    sums = {softmax: _sums(forward, softmax) for softmax, _ in found}
    logarithms = {of: _logarithm(forward, softmax, of) for softmax, of in sums.items()}
    kept = [part for e in forward.equations for part in (e, *filter(None, [logarithms.get(e)]))]
    again = {
        softmax: replace(softmax, value=Call("exp", Sub(scores, _entry(logarithms[sums[softmax]]))))
        for softmax, scores in found
    }
    chosen = frozenset(e.array for e, _ in found) | scored(forward, found)
    defined = replace(forward, equations=tuple(again.get(e, e) for e in kept))
    step = replace(step, equations=(*kept, *step.backward))
    return step, defined, chosen & {*forward.defining}


def _sums(system: System, softmax: Equation) -> Equation:
    """The equation of a softmax's row sums."""
    assert isinstance(softmax.value, Div) and isinstance(softmax.value.right, Ref)
    (found,) = system.defining[softmax.value.right.array]
    return found


def _logarithm(system: System, softmax: Equation, sums: Equation) -> Equation:
    """The equation of L, the logarithm of the sum of exponentials (plus the subtracted maximum),
    for every row of a softmax with the row sums `sums`."""
    _, largest = _exponent(system, softmax)
    value: Node = Call("log", _entry(sums))
    if largest is not None:
        value = Add(largest, value)
    array = derived(softmax.array, "logarithm", "log", shape=sums.array.shape)
    return replace(sums, array=array, value=value)


def _entry(equation: Equation) -> Ref:
    """A reference to the entry that an equation defines."""
    return Ref(equation.array, equation.positions)
