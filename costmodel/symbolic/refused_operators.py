"""Python operators that equations do not support, with the advice that is given instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dis import opmap
from functools import partial
from typing import Any, Never, TypeVar

from costmodel.errors import USER, WrongKind, described

Operand = TypeVar("Operand")
T = TypeVar("T")

COMPARED = (
    "the range of an index, f.index('i', 1, l), chooses entries, and cm.maximum takes the "
    "larger of two"
)
BITS = "equations have no bits"

INSTEAD: Mapping[str, tuple[str, str]] = {
    "__lt__": ("<", COMPARED),
    "__le__": ("<=", COMPARED),
    "__gt__": (">", COMPARED),
    "__ge__": (">=", COMPARED),
    "__matmul__": ("@", "a product of matrices is cm.sum_(A[i, k] * B[k, j], over=k)"),
    "__mod__": ("%", "rows of chunks are (p - 1)*C + e, with an index p and an index e"),
    "__divmod__": ("divmod", "rows of chunks are (p - 1)*C + e, with an index p and an index e"),
    "__floordiv__": ("//", "it rounds sizes and indices alone"),
    "__truediv__": ("/", "it divides expressions and sizes; // rounds an index down, i // 2"),
    "__add__": ("+", "it adds entries, expressions, sizes and indices"),
    "__sub__": ("-", "it subtracts entries, expressions, sizes and indices"),
    "__mul__": ("*", "it multiplies entries, expressions, sizes and indices"),
    "__neg__": ("-", "it negates entries, expressions, sizes and indices"),
    "__pow__": ("**", "a square is x * x, a root cm.function('sqrt', x)"),
    "__and__": ("&", BITS),
    "__or__": ("|", BITS),
    "__xor__": ("^", BITS),
    "__lshift__": ("<<", BITS),
    "__rshift__": (">>", BITS),
    "__invert__": ("~", BITS),
    "__abs__": ("abs", "it is cm.maximum(x, -x)"),
    "__round__": ("round", "equations compute real numbers"),
    "__iter__": ("a loop, sum or unpacking", "a sum is cm.sum_(..., over=an index)"),
    "__len__": ("len", "the extents are sizes of the mixer"),
    "__getitem__": ("[...]", "an array is indexed once, x[i, a]"),
    "__setitem__": ("[...] =", "an equation defines an entry of an array, y[i, a] = ..."),
    "__delitem__": ("del", "an array has the entries that its equations define"),
    "__call__": ("a call", "functions are cm.exp(x) and cm.function('tanh', x)"),
    "__float__": ("float", "sizes have no values yet, and functions are cm.function('tanh', x)"),
    "__int__": ("int", "sizes have no values yet"),
    "__index__": ("range or a position in a list", "an index is f.index('i', 1, l)"),
    "__array_ufunc__": ("numpy", "functions are cm.exp(x) and cm.function('tanh', x)"),
    "__torch_function__": ("torch", "functions are cm.exp(x) and cm.function('tanh', x)"),
}
"""Python's name of an operator -> (its notation, the advice)."""

REFLECTED = ("__matmul__", "__mod__", "__divmod__", "__floordiv__", "__truediv__", "__add__",
             "__sub__", "__mul__", "__pow__", "__and__", "__or__", "__xor__", "__lshift__",
             "__rshift__")  # fmt: skip


class Written:
    """Base of objects in equations: an operator without a definition in a subclass raises WrongKind
    with advice, in place of Python's message about types."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """True, without a call of `len`, which is refused."""
        return True

    def operand(self, other: Any, make: Callable[[Any], Operand]) -> Operand:
        """`make` of the other operand of an operator; the WrongKind for an operand that `make`
        refuses names this object, too."""
        try:
            return make(other)
        except WrongKind as error:
            raise WrongKind(f"in an operation on {described(self)}: {error}") from None


def _refusing(typed: str, instead: str) -> Callable[..., Never]:
    """A method that raises WrongKind: the operator, in its notation `typed`, cannot be applied to
    the object; `instead` is the advice."""

    def refuse(self: Any, *_: Any, **__: Any) -> Never:
        raise WrongKind(f"{typed} cannot be applied to {described(self)}: {instead}")

    return refuse


refuse_truth = _refusing("a choice (and, or, not, if)", COMPARED)
"""`__bool__` of expressions, whose values Python does not know."""

_refuse_equality = _refusing("== or !=", COMPARED)


def compared_by_structure(kind: type[T]) -> type[T]:
    """Make a class of expressions or indices raise WrongKind where a user's file writes == or !=:
    values are unknown there. Sizes, other code, dictionaries and `in` compare the structure of the
    objects. Returns the class."""
    structural = kind.__eq__

    def equal(self: T, other: object) -> bool:
        """Whether both have the same structure; WrongKind for an operator == in a user's file."""
        frame = sys._getframe(1)
        if str(frame.f_globals.get("__name__")).startswith(USER):
            is_size = not getattr(self, "variables", True)  # a polynomial without indices
            if not is_size and frame.f_code.co_code[frame.f_lasti] == opmap["COMPARE_OP"]:
                _refuse_equality(self)
        if self is other:
            return True
        return structural(self, other)

    kind.__eq__ = equal  # type: ignore[assignment,method-assign]  # of a class
    return kind


for _name, (_typed, _instead) in INSTEAD.items():
    _refused: Any = _refusing(_typed, _instead)
    if _name == "__torch_function__":  # torch warns about a method that belongs to the object
        _refused = property(partial(partial, _refused))
    setattr(Written, _name, _refused)
    if _name in REFLECTED:
        setattr(Written, _name.replace("__", "__r", 1), _refusing(_typed, _instead))
