"""Which numbers does a buffer hold whose values stand with the equations?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from costmodel.errors import EquationError
from costmodel.language.nodes import Array

if TYPE_CHECKING:
    from numpy.typing import NDArray


def buffer_values(array: Array, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The entries of a buffer that has values of its own, at sizes.

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
    if array.below is not None and not ((found >= 1) & (found <= array.below.at(sizes))).all():
        raise EquationError(f"{array.name} holds positions in 1..{array.below}, its values do not")
    return found
