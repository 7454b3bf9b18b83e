"""The functions with which authors write sums, scalar functions, transforms and selections."""

from __future__ import annotations

from typing import Any

from costmodel.errors import EquationError, WrongKind, described, shortened
from costmodel.language.arguments import checked
from costmodel.language.functions import TABLE
from costmodel.language.indices import Index, UnionIndex
from costmodel.language.nodes import (
    Call,
    Fft,
    Maximum,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    names_in,
    node,
)
from costmodel.symbolic.polynomial import Poly, atom_name


def indices_in(over: Any) -> tuple[Index, ...]:
    """The argument `over` (one index, or a tuple or list of distinct indices) as a tuple.

    Raises:
        WrongKind: an element is no index; EquationError: no element, or an index occurs twice.
    """
    found = tuple(over) if isinstance(over, (tuple, list)) else (over,)
    if not found:
        raise EquationError("'over' takes one index or more, got none")
    for index in found:
        if not isinstance(index, Index):
            raise WrongKind(f"'over' takes indices of the form, got {described(index)}")
        if found.count(index) > 1:
            raise EquationError(f"'over' names the index {index.name} twice")
    return found


@checked
def sum_(body: Any, over: Any) -> Node:
    """The sum of `body` over one index or a tuple of indices, 0 for empty ranges."""
    return Reduce("sum", node(body), indices_in(over))


@checked
def max_over(body: Any, over: Any) -> Node:
    """The maximum of `body` over one index or a tuple of indices, of one entry at least."""
    return Reduce("max", node(body), indices_in(over))


@checked
def maximum(one: Any, other: Any) -> Node:
    """The larger of two expressions, entry by entry: one comparison. The gradient goes to the
    larger operand; if both are equal, to `other` (for `maximum(x, 0)` at x = 0, x gets none)."""
    return Maximum(node(one), node(other))


@checked
def minimum(one: Any, other: Any) -> Node:
    """The smaller of two expressions, as the negative of a `maximum`: one comparison."""
    return -maximum(-node(one), -node(other))


@checked
def function(name: str, body: Any) -> Node:
    """The node of a scalar function of `functions.TABLE` (`exp`, `tanh`, `sigmoid`, ...) of an
    expression; EquationError for another name."""
    if name not in TABLE:
        raise EquationError(
            f"unknown function '{shortened(name)}': expected one of {', '.join(TABLE)}"
        )
    return Call(name, node(body))


@checked
def exp(body: Any) -> Node:
    """e to the power of an expression."""
    return Call("exp", node(body))


@checked
def rfft(body: Ref, over: Index, length: Any) -> Node:
    """The real Fourier transform of `body` along `over`, zero-padded to `length` points."""
    return _transform("rfft", body, over, length, 1)


@checked
def irfft(body: Ref, over: tuple[Index, Index], length: Any) -> Node:
    """The inverse of `rfft`: `over` is a pair of indices (bin, part), part 1 real, 2 imaginary."""
    return _transform("irfft", body, over, length, 2)


@checked
def fft(body: Ref, over: tuple[Index, Index], length: Any) -> Node:
    """The Fourier transform of complex `body` along `over`, a pair of indices (position, part),
    zero-padded to `length` points. A transform over two axes is two transforms in sequence."""
    return _transform("fft", body, over, length, 2)


def _transform(kind: str, body: Ref, over: Any, length: Any, number: int) -> Node:
    """The node of a transform (`kind`: fft, rfft, ...) with `length` points along `number` indices,
    1 or 2, which `over` names.

    Raises:
        EquationError: an operand that is no array entry; another number of indices; an index over a
            union of ranges, or that the operand does not name; a length that is neither a formula
            in sizes nor a whole number of 1 or more.
    """
    if not isinstance(body, Ref):
        raise EquationError(f"{kind} takes an array entry: define the operand as an array first")
    indices = _one_range(kind, indices_in(over))
    if len(indices) != number:
        takes = "one index" if number == 1 else "a pair of indices"
        raise EquationError(f"{kind} runs over {takes}, got {len(indices)} of them")
    for index in indices:
        if index.atom not in names_in(body.positions):
            raise EquationError(
                f"{kind} runs over {index.name}, which the entry does not name: choose an index of "
                "the entry"
            )
    points = Poly.of(length)
    fixed = points.constant()
    if points.variables or not (fixed is None or (isinstance(fixed, int) and fixed >= 1)):
        raise EquationError(
            f"the number of points of {kind} must be a size or a whole number of 1 or more, got "
            f"{points}"
        )
    return Fft(kind, body, indices, points)


@checked
def argmax(body: Ref, over: Index) -> Node:
    """The node of the position of the largest entry of `body` along `over`; of equal entries the
    first.

    It must be the whole right side of an equation for an array declared with `below=`.
    """
    return _select("argmax", body, over)


@checked
def top_k(body: Ref, over: Index) -> Node:
    """The node of the positions of the K largest entries of `body` along `over`, the largest first.

    The left side has a further index over 1..K, the rank. K is at most the number of entries: a
    rank over 1..min_(c, i) keeps c of i entries, or all i entries if i < c.
    """
    return _select("top-k", body, over)


@checked
def sort(body: Ref, over: Index) -> Node:
    """The node of the positions of all entries of `body` along `over`, the smallest first.

    The left side has a further index, the rank, with as many values as there are entries.
    """
    return _select("sort", body, over)


def _select(kind: str, body: Ref, over: Index) -> Node:
    """The node of a selection (`kind`: argmax, top-k or sort) of entries along one index `over`.

    Raises:
        EquationError: an operand that is no array entry, as x[j] is; several indices, an index over
            a union of ranges, or an index that the operand does not name.
    """
    if not isinstance(body, Ref):
        raise EquationError(f"{kind} takes an array entry: define the operand as an array first")
    indices = _one_range(kind, indices_in(over))
    if len(indices) != 1:
        raise EquationError(f"{kind} runs over one index, got {len(indices)} of them")
    if indices[0].atom not in names_in(body.positions):
        raise EquationError(
            f"{kind} runs over {indices[0].name}, which the entry does not name: choose an index "
            "of the entry"
        )
    return Select(kind, body, indices)


@checked
def scan(kept: Ref, added: Ref, over: Index) -> Node:
    """A linear recurrence by a parallel scan: with `S[i, c] = cm.scan(A[w, c], B[w, c], over=w)`,
    S[1, c] is B[1, c], and S[i, c] is A[i, c] S[i-1, c] + B[i, c].

    It must be a whole right side; the left side has an index i in place of w. Both run from 1 to a
    size. The indices of A are among those of B. The first row of A changes no result: let it be 0.
    Operations are those of Kogge and Stone's scan, or under the convention `scan=brent-kung`
    those of a scan with about 2P combinations, P: the size rounded up to a power of two, and about
    twice the rounds. EquationError for an operand that is no array entry, an index that B lacks, or
    another range.
    """
    for ref in (kept, added):
        if not isinstance(ref, Ref):
            raise EquationError(
                f"scan takes two entries of arrays, got {described(ref)}: define the operand as an "
                "array first"
            )
    for name in (over.atom, *names_in(kept.positions)):
        if name not in names_in(added.positions):
            raise EquationError(
                f"scan adds {added.array.name}, which does not name the index {atom_name(name)}: "
                f"index {added.array.name} by {atom_name(name)} too"
            )
    if over.lower != (Poly.of(1),) or len(over.upper) != 1 or over.upper[0].variables:
        raise EquationError(
            f"scan runs from 1 to a size, and {over.name} has another range: let {over.name} run "
            "from 1 to a size"
        )
    return Scan("kogge-stone", added, (over,), over.upper[0], kept)


def _one_range(kind: str, over: tuple[Index, ...]) -> tuple[Index, ...]:
    """The indices unchanged; EquationError if one runs over a union of ranges, which `kind`
    excludes."""
    for index in over:
        if isinstance(index, UnionIndex):
            raise EquationError(
                f"{kind} can run over one range only, and index {index.name} has several: declare "
                f"f.index('{index.name}', lower, upper)"
            )
    return over
