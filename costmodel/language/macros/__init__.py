"""Which usual combinations (softmax, norms, gates, positions) are there, and what writes each?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from costmodel.language.equations import Equation
from costmodel.language.macros import gates, norms, positions
from costmodel.language.macros.softmax import write_softmax
from costmodel.language.nodes import Composite

Writer = Callable[[Equation, Composite, Sequence[str]], list[Equation]]
"""What writes a composite out, under the rewrites in force."""


def _under_any(write: Callable[[Equation, Composite], list[Equation]]) -> Writer:
    """What writes a composite out in the same way under all rewrites."""
    return lambda equation, composite, rewrites: write(equation, composite)


MACROS = {**norms.MACROS, **positions.MACROS, **gates.MACROS}
"""The composites of other files, which no rewrite changes."""


WRITTEN: Mapping[str, Writer] = {
    "softmax": write_softmax,
    **{name: _under_any(macro.write) for name, macro in MACROS.items()},
}
"""Composite -> what writes it out where it stands alone on a right side."""
