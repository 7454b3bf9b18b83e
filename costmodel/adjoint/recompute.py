"""Recomputation: the backward pass computes forward values again instead of keeping them.

The equations of these arrays join those of the gradients, under new names: `S.again` is S. An array
is recomputed just before the first gradient that needs it, and stays live until its last reader.
How often an equation is executed is `SEQUENCE` (for each sequence of a batch), `JOINED` (likewise,
with the results summed over the batch) or `STEP` (once per training step, for work on weights).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.adjoint.transpose import guarded_ranges
from costmodel.errors import EquationError
from costmodel.language.equations import SEQUENCE, STEP, Equation, System
from costmodel.language.nodes import AGAIN, Array, derived, reading
from costmodel.program.recurrences import blocks, in_order, references
from costmodel.program.tokens import tokens
from costmodel.symbolic.printing import identifier

ALL = "all"
"""Stands for every array of the forward pass."""


Copies = Mapping[Array, Array]
"""Array of the forward pass -> the array that holds the recomputed values."""


def recomputed(
    system: System, names: Sequence[str], *, defined: System, also: frozenset[Array]
) -> System:
    """The training step in which the backward pass recomputes arrays of the forward pass, each
    once, from kept values: inputs, contexts, parameters, and arrays that are neither named nor in
    `also`. Arrays that no gradient needs are not recomputed.

    Args:
        names: arrays as the file calls them, together with the steps their equations are lowered to
            (`P` of a softmax means `P.exp`, `P.sum` and `P`); a single step by its own name; or
            `all`.
        defined: the equations to recompute by: the forward pass, or a system that gives the same
            values.
        also: further arrays to recompute, because rewrites of the backward pass do.

    Raises:
        EquationError: a name that the forward pass does not compute.
    """
    chosen = _chosen(system.forward, names) | also
    if not chosen:
        return system
    needed = _closure(defined, chosen, read_by(system.backward))
    copies = {array: _copy(system, array) for array in defined.defining if array in needed}
    backward = dict(_backward_with_copies(system, defined, copies))
    return replace(system, equations=(*system.forward.equations, *backward), backward=backward)


def _chosen(forward: System, names: Sequence[str]) -> frozenset[Array]:
    """The arrays with the given names: `P` of a softmax means `P.exp`, `P.sum` and `P`, `all` every
    array. EquationError for a name of no array."""
    found: set[Array] = set()
    for name in names:
        meant = {e.array for e in forward.equations if name in (ALL, e.part_of, e.name)}
        if not meant:
            known = dict.fromkeys(n for e in forward.equations for n in (e.part_of, e.name))
            raise EquationError(
                f"form '{forward.form}' of {forward.mixer.name} computes no array '{name}' that "
                f"could be recomputed: expected {ALL}, or some of {', '.join(known)}"
            )
        found |= meant
    return frozenset(found)


def read_by(equations: Iterable[Equation]) -> set[Array]:
    """The arrays that the equations read."""
    return {ref.array for equation in equations for ref in references(equation)}


def _closure(forward: System, chosen: frozenset[Array], wanted: set[Array]) -> set[Array]:
    """The arrays of `chosen` that are in `wanted` or, in turn, that the recomputation of such an
    array reads: with b = f(a), c = g(b), chosen {b, c} and wanted {c}, both b and c."""
    found: set[Array] = set()
    while more := (wanted & chosen) - found:
        found |= more
        wanted = read_by(e for e in forward.equations if e.array in more)
    return found


def _copy(system: System, array: Array) -> Array:
    """A new array, `x.again` for x, for the recomputed values of an array."""
    tilde = rf"\tilde{{{array.latex or identifier(array.name)}}}"
    return derived(
        array, AGAIN, owner=system.mixer, latex=tilde, kernel=array.kernel, below=array.below
    )


def _backward_with_copies(
    system: System, forward: System, copies: Copies
) -> Iterator[tuple[Equation, str]]:
    """Yield the equations of the backward pass as (equation, how often it is executed): those of
    the gradients in `system`, which read the arrays' copies (`copies`: array -> copy), each after
    the copies' own equations, those of `forward`, that it (or its loop) is the first to need."""
    waiting = frozenset(copies)
    loops = {
        e: block.equations for block in blocks(system) if block.is_loop for e in block.equations
    }
    for equation, kind in system.backward.items():
        needed = _closure(forward, waiting, read_by(loops.get(equation, (equation,))))
        waiting -= {*needed}
        again = {
            copy: how
            for value in forward.equations
            if value.array in needed
            for copy, how in _copies(forward, value, copies)
        }
        for copy in in_order(replace(forward, equations=tuple(again))):
            yield copy, again[copy]
        yield replace(equation, value=reading(equation.value, copies)), kind


def _copies(forward: System, equation: Equation, copies: Copies) -> Iterator[tuple[Equation, str]]:
    """Yield the equations that recompute the array of an equation of `forward`, from copies where
    `copies` has them, as (equation, how often it is executed): one for the points that depend on
    the sequence, one for the points that depend on weights alone; none without such points."""
    array, value = copies[equation.array], reading(equation.value, copies)
    whole = copies.get(equation.whole, array)
    for around, sequence in tokens(forward).dependent(equation):
        indices = equation.indices
        if around != equation.domain:
            indices = guarded_ranges(around, [i.atom for i in indices], equation.name)
        copy = Equation(array, equation.positions, value, indices, whole)
        yield copy, SEQUENCE if sequence else STEP
