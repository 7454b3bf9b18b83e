"""Macros: named combinations (softmax, norms, gates, positions), and how each is expanded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from costmodel.language.equations import Equation
from costmodel.language.macros import gates, norms, positions
from costmodel.language.macros.softmax import write_softmax
from costmodel.language.nodes import Composite

Writer = Callable[[Equation, Composite, Sequence[str]], list[Equation]]
"""Expands a composite to equations, under the given rewrites."""


def _under_any(write: Callable[[Equation, Composite], list[Equation]]) -> Writer:
    """A `Writer` that ignores the rewrites."""
    return lambda equation, composite, rewrites: write(equation, composite)


MACROS = {**norms.MACROS, **positions.MACROS, **gates.MACROS}
"""The composites whose expansion does not depend on rewrites."""


WRITTEN: Mapping[str, Writer] = {
    "softmax": write_softmax,
    **{name: _under_any(macro.write) for name, macro in MACROS.items()},
}
"""Composite -> its `Writer`; each composite is a whole right-hand side."""
