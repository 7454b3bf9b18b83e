"""Which matrix products does a call dispatch, and in tiles of which size are they computed?

A kernel computes whole tiles: beyond the edge of a matrix it multiplies zeros. The kernels of
cuBLAS and CUTLASS carry their tile in their name: rows and columns of the result as the library
stores it, column by column, and the number of terms summed at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Tile = tuple[int, int, int]
"""Rows, columns, terms."""

NAMED = (
    re.compile(r"tilesize(\d+)x(\d+)x(\d+)"),
    re.compile(r"_(\d+)x(\d+)_(\d+)x\d+_"),
    re.compile(r"_(\d+)x(\d+)_\w*stages_(\d+)x\d+"),
)
"""How kernel names give a tile; a number after the terms is the number of stages."""


def tile_of(name: str) -> Tile | None:
    """The tile in a kernel's name; None where the name has none.

    >>> tile_of("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn")
    (128, 64, 32)
    """
    found = next(filter(None, (pattern.search(name) for pattern in NAMED)), None)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True)
class Product:
    """`batch` products of (rows, terms) by (terms, columns)."""

    batch: int
    rows: int
    columns: int
    terms: int

    @property
    def multiplications(self) -> int:
        """One per term of every entry."""
        return self.batch * self.rows * self.columns * self.terms

    def padded(self, tile: Tile) -> Product:
        """The product in whole tiles; the library's rows are torch's columns.

        >>> Product(2, 5, 7, 9).padded((8, 4, 16))
        Product(batch=2, rows=8, columns=8, terms=16)
        """
        down, across, deep = tile
        return Product(
            self.batch,
            whole_tiles(self.rows, across),
            whole_tiles(self.columns, down),
            whole_tiles(self.terms, deep),
        )


def whole_tiles(extent: int, tile: int) -> int:
    """The extent rounded up to whole tiles.

    >>> whole_tiles(5, 4), whole_tiles(8, 4)
    (8, 8)
    """
    return -(-extent // tile) * tile


def padding(products: Iterable[Product], tiles: Iterable[Tile]) -> int:
    """Multiplications beyond the edges of the matrices, each product in its kernel's tile."""
    return sum(
        product.padded(tile).multiplications - product.multiplications
        for product, tile in zip(products, tiles, strict=True)
    )


OPERANDS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Operation -> the positions of the two matrices among its arguments."""


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A dispatch mode that notes every matrix product, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.found: list[Product] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if places := OPERANDS.get(func._schema.name):
            self.found.append(product_shape(*(args[place] for place in places)))
        return func(*args, **(kwargs or {}))


def product_shape(left: Tensor, right: Tensor) -> Product:
    """The shape of a matrix product."""
    batch = left.shape[0] if left.dim() > 2 else 1
    return Product(batch, left.shape[-2], right.shape[-1], left.shape[-1])


def products_of(call: Callable[[], Any]) -> Sequence[Product]:
    """The matrix products that a call dispatches, those of gradients included."""
    noting = Products()
    with noting:
        call()
    return noting.found
