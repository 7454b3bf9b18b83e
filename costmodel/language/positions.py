"""Which expressions are positions on an axis, and which bounds may the range of an index have?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from typing import Any

from costmodel.errors import EquationError, WrongKind, described
from costmodel.language.indices import Extremum, Index
from costmodel.language.nodes import Add, Constant, Mul, Node, Ref, Sub
from costmodel.symbolic.polynomial import Fn, Poly, atom_name, axis_atom, is_index
from costmodel.symbolic.refused_operators import Written


@cache
def no_position(poly: Poly) -> str:
    """The reason why a polynomial is no position on an axis, to follow its name in a message. ""
    for an affine position, and for a product of indices and sizes, which may be a flattening
    (j-1)*h + c."""
    if any(n % 1 for m, n in poly.terms.items() if all(is_index(atom) for atom, _ in m)):
        return "is no whole number"
    if squared := [a for m in poly.terms for a, power in m if is_index(a) and power > 1]:
        return f"is not affine: index {atom_name(squared[0])} is multiplied by itself"
    if any(Poly.atom(atom).variables - {atom} and not chunk_of(atom) for atom in poly.atoms):
        return (
            "is not affine: an index stands inside a function; the chunk of row i, counted from "
            "0, is (i - 1)//C"
        )
    return ""


@cache
def factors_of_indices(poly: Poly) -> Sequence[tuple[str, Poly]]:
    """Pairs (index, factor) for the indices of a position whose factor is a size and no number,
    such as (j, h) in (j-1)*h + c."""
    return tuple(
        (v, c)
        for v in sorted(a for a in poly.atoms if is_index(a))
        if (c := poly.coefficient(v)).constant() is None
    )


def in_block(part: Node) -> tuple[Ref, Poly, Poly] | None:
    """(P, B, e) for an expression (P - 1)*B + e with an array entry P; else, or if B is 1, None."""
    entry, extent, rest = _linear(part) or (None, Poly(), Poly())
    return None if entry is None or extent == 1 else (entry, extent, rest + extent)


def _linear(part: Node) -> tuple[Ref | None, Poly, Poly] | None:
    """An expression read as factor*entry + rest, with an array entry (a `Ref`) and polynomials:
    (entry, factor, rest); (None, 0, rest) for a constant. None for any other expression. (P[i] -
    1)*B + e gives (P[i], B, e - B)."""
    match part:
        case Ref():
            return part, Poly.of(1), Poly()
        case Constant(base):
            return None, Poly(), base
        case Add(one, other) | Mul(one, other):
            left, right = _linear(one), _linear(other)
        case Sub(one, other):
            left, right = _linear(one), _linear(Mul(Constant(Poly.of(-1)), other))
        case _:
            return None
    if left is None or right is None or not (left[0] is None or right[0] is None):
        return None
    of, by = (right, left) if left[0] is None else (left, right)
    match part:
        case Mul():
            return of[0], of[1] * by[2], of[2] * by[2]
        case _:
            return of[0], of[1], of[2] + by[2]


def largest_position(name: str, below: Any, shape: Sequence[Poly]) -> Poly | None:
    """The largest position that each entry of an array may hold, as a polynomial in sizes and in
    the entry's own positions on the axes of `shape`: #0 for below=lambda i: i. None for an array of
    numbers, without `below`. Raises WrongKind: `below` is no size, number or function of the
    entry's positions."""
    if callable(below) and not isinstance(below, Written):
        axes = [Poly.atom(axis_atom(axis)) for axis in range(len(shape))]
        said = f"below= of {name} is a function of an entry's positions, {len(axes)} of them"
        check_takes(below, axes, said)
        below = below(*axes)
    try:
        return None if below is None else Poly.of(below)
    except WrongKind as error:
        raise WrongKind(f"below= of {name}: {error}") from None


def check_takes(function: Callable[..., Any], arguments: Sequence[Any], said: str) -> None:
    """Raise WrongKind with the message `said` if a function cannot be called with these
    arguments."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        raise WrongKind(said) from None
    except ValueError:  # a function in C may have no signature
        return


def chunk_of(atom: str) -> tuple[str, Poly] | None:
    """(index i, C) for the atoms (i - 1)//C and (i - 1)//C + 1, the number of row i's chunk of C
    rows counted from 0 or 1; None for any other atom."""
    if isinstance(atom, Fn) and atom.function == "floor_div":
        above, below = atom.args
        for row in (above + 1, above + 1 - below):
            name = min(row.variables, default="")
            if not below.variables and row == Poly.atom(name):
                return name, below
    return None


def one_range(name: str, lower: Any, upper: Any) -> Index:
    """An index over one range.

    Raises:
        WrongKind: a bound that is no expression in sizes and indices.
        EquationError: a `min_` of several bounds as lower bound or a `max_` of several as upper
            bound, a number that is not whole, or a bound that rounds an index other than as the
            chunk of a row.
    """
    try:
        low, up = (b.of if isinstance(b, Extremum) else (Poly.of(b),) for b in (lower, upper))
    except WrongKind as error:
        raise WrongKind(f"a bound of index {name}: {error}") from None
    for side, bound, kind in (("lower", lower, "max"), ("upper", upper, "min")):
        if isinstance(bound, Extremum) and bound.kind != kind and len(bound.of) > 1:
            raise EquationError(
                f"the {side} bound of index {name} is {described(bound)}: expected {kind}_, as an "
                "index satisfies all of its bounds"
            )
    for end in (*low, *up):
        if not end.letters and not isinstance(end.rational({}), int):
            raise EquationError(f"a bound of index {name} is {end}: expected a whole number")
        rounded = [atom for atom in end.atoms if not chunk_of(atom)]
        if inside := {v for atom in rounded for v in Poly.atom(atom).variables - {atom}}:
            row = atom_name(min(inside))
            raise EquationError(
                f"index {name} is bounded by {end}, which rounds {row}: bound {name} by "
                f"({row} - 1)//C, the chunk of {row} counted from 0, where C is the number of rows "
                "in a chunk"
            )
    return Index(name, low, up)
