"""What is a tensor that software reserves, and what do all of them take?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from costmodel.errors import Unanswered
from costmodel.program.element_types import QUANTISED, Dtypes, entry_bytes


def refuse_blocks(engine: str, dtypes: Dtypes) -> None:
    """Raise Unanswered for a cache whose type has blocks (`QUANTISED`), which the engine lacks."""
    if (name := dtypes.name_of("cache")) in QUANTISED:
        raise Unanswered(
            f"{engine} has no cache of type {name}: choose an unquantised type, such as bf16"
        )


@dataclass(frozen=True)
class Tensor:
    """Equal tensors of several layers, one a layer.

    Args:
        part: the name of the network's part; "" for what belongs to none.
        name: the tensor's name in the engine.
        shape: the shape of one layer's tensor.
        dtype: the element type, or "byte".
    """

    part: str
    name: str
    layers: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The bytes of all layers' tensors, whose rows fill their blocks in a quantised type."""
        return (size_of(self.dtype) * prod(self.shape) * self.layers).numerator


def size_of(dtype: str) -> Fraction:
    """The bytes of an element of a type, or of a byte."""
    return Fraction(1) if dtype == "byte" else Fraction(entry_bytes(dtype))


@dataclass(frozen=True)
class Reserved:
    """The tensors that an engine reserves for a batch of sequences.

    Args:
        token: bytes that one more token of a sequence takes: of a page, or of cells for several
            tokens, its share; 0 where all layers have windows that are full.
        says: sentences for a reader, on element types, pages, cells and windows.
    """

    tensors: tuple[Tensor, ...]
    token: int
    says: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)
