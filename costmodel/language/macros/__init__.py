"""Macros: named combinations (softmax, norms, gates, positions), and how each is expanded."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.macros import gates, norms, positions
from costmodel.language.macros.macro import Macro
from costmodel.language.macros.softmax import write_softmax

MACROS = {**norms.MACROS, **positions.MACROS, **gates.MACROS}
"""The composites that are printed by their names."""


WRITTEN: Mapping[str, Macro] = {
    "softmax": Macro(write_softmax, rewrites=("safe-softmax", "mask=add")),
    **MACROS,
}
"""Composite -> its macro; each composite is a whole right-hand side."""
