"""Which matrix products does a call dispatch?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from profiler.counting.call import bind
from profiler.counting.dispatch import product_shape
from profiler.counting.mode import DispatchMode, OperationKind
from profiler.hardware.tiles import Product


class Products(DispatchMode):
    """Records the shape of each matrix product, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of an operation; the shape of a matrix product is recorded."""
        result = super().see(kind, args, kwargs)
        if shape := product_shape(bind(kind.func, args, kwargs, result)):
            self.found.append(Product(*shape))
        return result


def products_of(call: Callable[[], Any]) -> Sequence[Product]:
    """The matrix products that a call dispatches, in the forward and the backward pass."""
    noting = Products()
    with noting:
        call()
    return noting.found
