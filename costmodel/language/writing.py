"""How does an author write sums, functions, transforms and selections?"""

from __future__ import annotations

from typing import Any

from costmodel.errors import EquationError
from costmodel.language.functions import TABLE
from costmodel.language.indices import Index, UnionIndex
from costmodel.language.nodes import Call, Fft, Maximum, Node, Reduce, Ref, Select, names_in, node
from costmodel.symbolic.polynomial import Poly


def indices_in(over: Any) -> tuple[Index, ...]:
    """One index, or several in a tuple or list, as a tuple."""
    found = tuple(over) if isinstance(over, (tuple, list)) else (over,)
    for index in found:
        if not isinstance(index, Index):
            raise EquationError(f"'over' takes indices of the form, got {index!r}")
    return found


def sum_(body: Any, over: Any) -> Node:
    """The sum of `body` over one index or a tuple of indices."""
    return Reduce("sum", node(body), indices_in(over))


def max_over(body: Any, over: Any) -> Node:
    """The maximum of `body` over one index or a tuple of indices."""
    return Reduce("max", node(body), indices_in(over))


def maximum(one: Any, other: Any) -> Node:
    """The larger of two expressions, entry by entry: one comparison. Its gradient goes to the
    larger one; of equal ones to the second, as that of `maximum(x, 0)` at 0 goes to none."""
    return Maximum(node(one), node(other))


def minimum(one: Any, other: Any) -> Node:
    """The smaller of two expressions, as the negative of a `maximum`: one comparison."""
    return -maximum(-node(one), -node(other))


def function(name: str, body: Any) -> Node:
    """A named scalar function (`exp`, `tanh`, `sigmoid`, ...) of an expression."""
    if name not in TABLE:
        raise EquationError(f"unknown function '{name}': expected one of {', '.join(TABLE)}")
    return Call(name, node(body))


def exp(body: Any) -> Node:
    """e to the power of an expression."""
    return Call("exp", node(body))


def rfft(body: Ref, over: Index, length: Any) -> Node:
    """The real Fourier transform of `body` along `over`, zero-padded to `length` points."""
    return Fft("rfft", body, _one_range("rfft", indices_in(over)), Poly.of(length))


def irfft(body: Ref, over: tuple[Index, Index], length: Any) -> Node:
    """The inverse of `rfft`: `over` is the (bin, part) pair of indices."""
    return Fft("irfft", body, _one_range("irfft", indices_in(over)), Poly.of(length))


def fft(body: Ref, over: tuple[Index, Index], length: Any) -> Node:
    """The Fourier transform of complex `body` along `over`, a (position, part) pair of indices,
    zero-padded to `length` points. Over two axes it is one transform after the other."""
    return Fft("fft", body, _one_range("fft", indices_in(over)), Poly.of(length))


def argmax(body: Ref, over: Index) -> Node:
    """The position of the largest entry of `body` along `over`, of equal ones the first.

    It stands alone on the right side of an array declared with `below=`, which may gather.
    """
    return _select("argmax", body, over)


def top_k(body: Ref, over: Index) -> Node:
    """The positions of the K largest entries of `body` along `over`, the largest first.

    The left side has one index more, in 1..K; K is at most the number of entries, so that an index
    over 1..min_(c, i) keeps c of i entries, or all of them where there are fewer.
    """
    return _select("top-k", body, over)


def sort(body: Ref, over: Index) -> Node:
    """The positions of all entries of `body` along `over`, the smallest first.

    The left side has one index more, which has as many values as there are entries.
    """
    return _select("sort", body, over)


def _select(kind: str, body: Ref, over: Index) -> Node:
    if not isinstance(body, Ref):
        raise EquationError(f"{kind} takes an array entry: define what it chooses from first")
    indices = _one_range(kind, indices_in(over))
    if len(indices) != 1:
        raise EquationError(f"{kind} runs over one index, got {len(indices)}")
    if indices[0].atom not in names_in(body.positions):
        raise EquationError(f"{kind} runs over {indices[0].name}, which its entry does not name")
    return Select(kind, body, indices)


def _one_range(kind: str, over: tuple[Index, ...]) -> tuple[Index, ...]:
    for index in over:
        if isinstance(index, UnionIndex):
            raise EquationError(f"{kind} runs over one range, and {index.name} is a union of them")
    return over
