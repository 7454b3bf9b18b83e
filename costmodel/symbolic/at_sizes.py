"""Evaluation of an answer at given sizes: integers, or arrays of integers, by letter.

An answer is a derived formula, its subject the mixer or network that it is about. Each size must be
a positive integer under a known letter, and the sizes must fit each other and the subject: n
divides d, for example. Arrays of sizes are broadcast and evaluated element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from costmodel.errors import SizeError
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.sizes import LETTERS, checked, is_letter
from costmodel.symbolic.sympy_form import LETTERS_OF, Symbolic

if TYPE_CHECKING:
    import sympy

A = TypeVar("A")
M = TypeVar("M", bound=Callable[..., Any])

LARGEST_INTEGER = 2**63 - 1
"""The largest int64; an array with a larger number holds Python integers (dtype object)."""


def at_sizes(method: M) -> M:
    """Decorate a method that takes sizes by letter and evaluates an answer: sizes are checked, and
    may be arrays, or the letter of another given size, as in `at(l=128, t="l")`. The method itself
    receives integers; results at the elements of arrays form arrays of the broadcast shape.

    Raises:
        SizeError: one sentence that names the size.
    """
    # the method's parameters that are no sizes, such as dtype
    options = (getattr(method, "__kwdefaults__", None) or {}).keys() - LETTERS.keys()

    @wraps(method)
    def asked(answer: object, /, **given: Any) -> Any:
        """The method's result at the sizes in `given` (a letter, t="l", stands for the value of l):
        a number, or an array where a size is an array. `options` are keyword arguments, no sizes,
        which are passed on."""
        rest = {name: given.pop(name) for name in options & given.keys()}

        def one(sizes: Mapping[str, int]) -> Any:
            # sizes are checked by the answer's mixer or network, if it has one (`held_to`)
            return method(answer, **getattr(answer, FITS, _of_a_part)(sizes), **rest)

        given = {x: given.get(size, size) if isinstance(size, str) else size
                 for x, size in given.items()}  # fmt: skip
        return each(one, given)

    return cast(M, asked)


FITS = "_fits"
"""The attribute of an answer that holds the function `fits` of `held_to`."""


def held_to(
    answer: A, fits: Callable[[Mapping[str, int]], Mapping[str, int]], letters: Collection[str] = ()
) -> A:
    """Mark an answer, and its parts, so that their `at` and `subs` check sizes against the answer's
    subject, such as a mixer whose own width is fixed; return the answer.

    Args:
        fits: given sizes -> the sizes to evaluate at, with those of the subject; raises SizeError
            for sizes that contradict the subject.
        letters: the letters of the subject's sizes.
    """
    parts = [part for part in vars(answer).values() if isinstance(part, Symbolic)]
    for one in (answer, *parts):
        object.__setattr__(one, FITS, fits)
        object.__setattr__(one, LETTERS_OF, letters)
    return answer


def nonzero(number: Any) -> bool:
    """Whether a number differs from 0, or any element of an array does."""
    return bool(number.any() if hasattr(number, "any") else number)


def exact_sum(numbers: Iterable[A]) -> A:
    """The exact sum of integers; of arrays of integers of one shape, element by element."""
    total: Any = sum(n.astype(object) if hasattr(n, "astype") else n for n in numbers)
    if hasattr(total, "ravel"):
        total = _exact_array(total.ravel().tolist(), total.shape)
    found: A = total
    return found


def _of_a_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of an answer without a subject: any letter; SizeError: a value not in 1..2**40."""
    return checked(sizes, [letter for letter in sizes if is_letter(letter)])


def refuse_other_head_width(sizes: Mapping[str, int]) -> None:
    """Raise SizeError for a size h that is not d/n, or is given without d and n."""
    if "h" in sizes and not ("n" in sizes and sizes["h"] * sizes["n"] == sizes.get("d", 0)):
        raise SizeError(f"size h is d/n: give d and n, not h = {sizes['h']}")


def each(one: Callable[[Mapping[str, int]], Any], sizes: Mapping[str, Any]) -> Any:
    """Call `one` (letter -> integer, to a result) at every element of the sizes, which are
    broadcast to one shape, and return the results as arrays of this shape, or a single result for
    the shape (). `one` gets Python's own numbers, not those of numpy. SizeError if the shapes do
    not fit together, or an array is empty."""
    if all(isinstance(size, int) for size in sizes.values()):
        return one(sizes)
    import numpy as np

    arrays = [array_of(letter, size) for letter, size in sizes.items()]
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(f"{x} of {a.shape}" for x, a in zip(sizes, arrays, strict=True))
        raise SizeError(f"arrays of sizes have shapes that do not broadcast: {shapes}") from None
    columns = [np.broadcast_to(array, shape).ravel().tolist() for array in arrays]
    found = [one(dict(zip(sizes, chosen, strict=True))) for chosen in zip(*columns, strict=True)]
    if not found:
        empty = " and ".join(x for x, array in zip(sizes, arrays, strict=True) if not array.size)
        raise SizeError(f"the array of size {empty} is empty: give at least one value")
    return _stacked(found, shape) if shape else found[0]


def array_of(letter: str, size: Any) -> Any:
    """The values given for a size as an array. SizeError for lists of different lengths, and for an
    array with masked entries."""
    import numpy as np

    if np.ma.is_masked(size):
        raise SizeError(f"size {letter}: expected an array without masked entries, got some masked")
    try:
        return np.asarray(size)
    except ValueError:
        raise SizeError(
            f"size {letter} must be a positive integer or an array of such, got lists of different "
            "lengths"
        ) from None


def _stacked(found: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Results of one type, one for each point, as arrays of shape `shape`: numbers as an array,
    mappings as a mapping of arrays (0 where a key is missing), records as a record whose mappings
    and records are stacked (its other fields, such as the name of a peer, are equal)."""
    first = found[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for one in found for name in one)
        return {name: _stacked([one.get(name, 0) for one in found], shape) for name in names}
    if is_dataclass(first) and not isinstance(first, type):
        parts = {f.name: [getattr(one, f.name) for one in found] for f in fields(first)}
        held = {k: p for k, p in parts.items() if isinstance(p[0], Mapping) or is_dataclass(p[0])}
        return replace(first, **{name: _stacked(part, shape) for name, part in held.items()})
    return _exact_array(found, shape)


def _exact_array(found: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Values of one type as an array of a shape; integers beyond int64 stay Python integers."""
    import numpy as np

    large = isinstance(found[0], int) and max(found) > LARGEST_INTEGER
    return np.array(found, dtype=object if large else None).reshape(shape)


class Amount(Symbolic):
    """An amount for each sequence of a batch (`each`), and an amount that a batch has once
    (`alone`), both exact.

    A subclass defines at least one of the two; the other is 0.
    """

    @property
    def each(self) -> Exact:
        """The amount per sequence."""
        return Exact()

    @property
    def alone(self) -> Exact:
        """The amount that all sequences of a batch share."""
        return Exact()

    @property
    def exact(self) -> Exact:
        """The amount for one sequence."""
        return self.each + self.alone

    @property
    def expr(self) -> sympy.Expr:
        """The amount for one sequence as a sympy expression in the size letters."""
        return self.exact.expr

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> int:
        """The amount at integer sizes, for `b` sequences."""
        return b * self.each.at(sizes) + self.alone.at(sizes)
