"""In tiles of which size does a kernel compute a matrix product?

A kernel computes whole tiles: beyond the edge of a matrix it multiplies zeros. The names of cuBLAS
and CUTLASS kernels contain the tile: rows and columns of the result in the library's column-major
order, and the number of terms per step of the summation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Tile = tuple[int, int, int]
"""Rows, columns and summed terms of a tile."""

NAMED = (
    re.compile(r"tilesize(\d+)x(\d+)x(\d+)"),
    re.compile(r"_(\d+)x(\d+)_(\d+)x\d+_"),
    re.compile(r"_(\d+)x(\d+)_\w*stages_(\d+)x\d+"),
)
"""Tiles in kernel names: `_128x64_..._stages_32x6` has tile (128, 64, 32) and 6 pipeline stages."""


def tile_of(name: str) -> Tile | None:
    """The tile in a kernel's name; None if the name contains no tile.

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
        """The number of multiplications: one per term of each entry of the results."""
        return self.batch * self.rows * self.columns * self.terms

    def padded(self, tile: Tile) -> Product:
        """A copy of the matrix product with its extents rounded up to whole tiles. A tile is of a
        column-major result, so that its rows lie along the columns of torch's row-major result.

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
    """The multiplications beyond the edges of the matrices, summed over products, the k-th of which
    is computed in the k-th of `tiles`; ValueError if their numbers differ."""
    return sum(
        product.padded(tile).multiplications - product.multiplications
        for product, tile in zip(products, tiles, strict=True)
    )
