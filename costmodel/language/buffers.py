"""The values of buffers that an author gives, and the bounds of integer positions.

A buffer is a constant array. Its values are a table, or a function of an entry's positions (counted
from 1) and of the sizes; without values, entries are given with the input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from costmodel.errors import EquationError, described, words_of
from costmodel.language.nodes import Array
from costmodel.symbolic.constraints import variables_of
from costmodel.symbolic.polynomial import axis_atom

if TYPE_CHECKING:
    from numpy.typing import NDArray


def buffer_values(array: Array, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The entries, at these sizes, of a buffer with an author's values (a table, or a function, as
    lambda i, j, sizes: float(i == j)): int64 if the entries are positions, else float64.

    Raises:
        EquationError: a table of another shape, a function that fails or gives no number, or a
            position below 1 or above `below`.
    """
    import numpy as np

    shape = tuple(extent.at(sizes) for extent in array.shape)
    kind = np.float64 if array.below is None else np.int64
    if callable(array.value):
        places = product(*(range(1, extent + 1) for extent in shape))
        entries = np.array([_given(array, place, sizes) for place in places], kind).reshape(shape)
    else:
        entries = np.asarray(array.value, kind)
    if entries.shape != shape:
        raise EquationError(
            f"the table of {array.name} has shape {entries.shape}: expected {shape}, the extents "
            f"of {array.name} at these sizes"
        )
    check_positions(array, entries, sizes)
    return entries


def _given(array: Array, place: tuple[int, ...], sizes: Mapping[str, int]) -> Any:
    """The entry that an author's function gives at `place`, the entry's positions from 1 on.

    Raises:
        EquationError: the function fails, or the entry is no finite number (for an array of
            positions: no whole number); the message names the array, the place, and the
            function's file and line.
    """
    try:
        entry = array.value(*place, sizes)
        came = "" if is_number(entry, whole=array.below is not None) else described(entry)
    except Exception as error:  # the author's own code may raise anything
        came = f"the error {words_of(error)}"
    if came:
        code = getattr(array.value, "__code__", None)
        where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
        at = ", ".join(map(str, place))
        raise EquationError(
            f"the table of {array.name} has {came} at ({at}), expected {expected(array.below)}"
            f"{where}"
        )
    return entry


def check_table(name: str, table: Any, below: Any) -> None:
    """Raise EquationError unless an author's table of entries is rectangular and every entry a
    finite number; with `below`, the bound of an array of positions, a 64-bit whole number. Extents
    and the range 1..below are left to `buffer_values`, which knows the sizes."""
    import numpy as np

    try:
        entries = np.array(table, object)
    except ValueError:
        raise EquationError(
            f"the table of {name} has rows of different lengths: give all rows the same length"
        ) from None
    for place, entry in np.ndenumerate(entries):
        if isinstance(entry, (list, tuple, np.ndarray)):
            raise EquationError(
                f"the table of {name} has rows of different lengths: give all rows the same length"
            )
        if not is_number(entry, whole=below is not None):
            at = ", ".join(str(p + 1) for p in place)
            raise EquationError(
                f"the table of {name} has {described(entry)} at ({at}), expected {expected(below)}"
            )


def expected(below: Any) -> str:
    """The entries of a table in words, for messages: positions if `below` is given."""
    return "a finite number" if below is None else "a whole number below 2^63"


def is_number(entry: Any, *, whole: bool) -> bool:
    """Whether an entry is a finite real number; if `whole`, one that is also a whole number and,
    rounded to float64, lies between -2^63 and 2^63, both excluded.

    >>> is_number(1.5, whole=False), is_number(1.5, whole=True), is_number("1", whole=False)
    (True, False, False)
    """
    try:
        number = math.nan if isinstance(entry, (str, bytes)) else float(entry)
    except (TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(number) and (not whole or (number.is_integer() and abs(number) < 2**63))


def last_positions(array: Array, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The largest position that each entry of an array of positions may hold, in an array of the
    same shape: the value of `below`, which may depend on the entry's place ([1, 2, 3] for
    below=lambda i: i). A value below 1 allows no position."""
    import numpy as np

    assert array.below is not None
    shape = tuple(extent.at(sizes) for extent in array.shape)
    if not variables_of([array.below]):
        return np.full(shape, array.below.at(sizes))
    places = product(*(range(1, extent + 1) for extent in shape))
    named = ({axis_atom(k): p for k, p in enumerate(place)} for place in places)
    return np.array([array.below.at({**sizes, **at}) for at in named], np.int64).reshape(shape)


def check_positions(array: Array, values: NDArray[Any], sizes: Mapping[str, int]) -> None:
    """Raise EquationError unless every entry of an array of positions lies in 1..below, its bound.
    An entry whose range is empty (a bound below 1) is never read and may hold any value. An array
    that holds no positions passes."""
    import numpy as np

    if array.below is None:
        return
    last = last_positions(array, sizes)
    # last < 1: an empty range, as for the rows before row 1
    wrong = (last >= 1) & ~((values >= 1) & (values <= last) & (values == np.floor(values)))
    for where in np.argwhere(wrong)[:1]:
        place, at = ", ".join(str(p + 1) for p in where), tuple(where)
        raise EquationError(
            f"{array.name}[{place}] is {values[at]}: expected a position in 1..{last[at]}"
        )
