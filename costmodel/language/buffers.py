"""The values of buffers that an author gives, and the bounds of integer positions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from costmodel.errors import EquationError
from costmodel.language.nodes import Array
from costmodel.symbolic.constraints import variables_of
from costmodel.symbolic.polynomial import axis_atom

if TYPE_CHECKING:
    from numpy.typing import NDArray


def buffer_values(array: Array, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The entries of a buffer with given values, at sizes; integers if they are positions.

    Raises:
        EquationError: a table of another shape, or a position outside of 1..below.
    """
    import numpy as np

    shape = tuple(extent.at(sizes) for extent in array.shape)
    kind = np.float64 if array.below is None else np.int64
    if callable(array.value):
        places = product(*(range(1, extent + 1) for extent in shape))
        found = np.array([array.value(*place, sizes) for place in places], kind).reshape(shape)
    else:
        found = np.asarray(array.value, kind)
    if found.shape != shape:
        raise EquationError(
            f"the table of {array.name} has shape {found.shape}, its extents are {shape}"
        )
    check_positions(array, found, sizes)
    return found


def last_positions(array: Array, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The largest position that each entry of an index array may hold, as an array of its shape."""
    import numpy as np

    assert array.below is not None
    shape = tuple(extent.at(sizes) for extent in array.shape)
    if not variables_of([array.below]):
        return np.full(shape, array.below.at(sizes))
    places = product(*(range(1, extent + 1) for extent in shape))
    named = ({axis_atom(k): p for k, p in enumerate(place)} for place in places)
    return np.array([array.below.at({**sizes, **at}) for at in named], np.int64).reshape(shape)


def check_positions(array: Array, values: NDArray[Any], sizes: Mapping[str, int]) -> None:
    """Raise EquationError unless every entry of an index array lies in its range; entries with an
    empty range are never read."""
    import numpy as np

    if array.below is None:
        return
    last = last_positions(array, sizes)
    wrong = (last >= 1) & ~((values >= 1) & (values <= last) & (values == np.floor(values)))
    for where in np.argwhere(wrong)[:1]:
        place, at = ", ".join(str(p + 1) for p in where), tuple(where)
        raise EquationError(f"{array.name}[{place}] is {values[at]}, no position in 1..{last[at]}")
