"""Which kernel class carries an expression of an equation, of the forward pass or of a gradient?

The description of an implementation names the kernel class of the arrays that the file defines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Node, Reduce, Ref, gradient_name, walk

ONE_KERNEL = "softmax"
"""The kernel class that computes all that a composite is written out as."""

FUSED = "fused-attention"
"""The kernel class of several arrays of which the last alone is written."""

RUNNING = "running-sum"
"""The kernel class that computes all rows of a sum at once."""

PRODUCT = "contraction"
"""The kernel class that writes no product which it sums up."""

IN_PLACE = "recurrent-layer"
"""The kernel class of the layers of PyTorch that go through rows: it adds a bias to a product at
once, takes the gates one by one, and writes results over what stands on the way to them
(aten/native/RNN.cpp)."""

MULTIPLIED = (PRODUCT, IN_PLACE)
"""Kernel classes that take products with matrices of all rows at once, where these are there."""

WHOLE = (ONE_KERNEL, FUSED, "complex-contraction", "complex-elementwise", "fft")
"""Kernel classes that compute a whole right side, and write its result alone."""

ALL_AT_ONCE = (FUSED, "convolution")
"""Kernel classes whose gradients come out of one operation."""

ENTRY_BY_ENTRY = ("elementwise", "complex-elementwise", "reduction", RUNNING)
"""Kernel classes whose products are written before they are summed up."""


@dataclass(frozen=True, eq=False)
class Carriers:
    """The kernel classes of a system: that of what is computed or, backward, of what was computed
    from the array whose gradient the expression hands on."""

    system: System
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Array of the file -> kernel class."""

    @cached_property
    def _computed(self) -> dict[Equation, str]:
        return {e: e.part_of for e in self.system.forward.equations}

    @cached_property
    def _parts(self) -> dict[str, str]:
        """Gradient -> the array of the file that its array belongs to."""
        return {gradient_name(e.array): e.part_of for e in self.system.forward.equations}

    @cached_property
    def _gradients(self) -> dict[Array, str]:
        """A gradient, or an array on the way from it -> the gradient."""
        given = {array: array.name for array in self.system.mixer.arrays.values()}
        found = given | {e.array: e.part_of for e in self.system.backward}
        return {array: name for array, name in found.items() if name in self._parts}

    @cached_property
    def _of_sums(self) -> set[str]:
        """The gradients of arrays whose equations sum up."""
        return {
            gradient_name(e.array)
            for e in self.system.forward.equations
            if any(isinstance(node, Reduce) for node, _ in walk(e.value))
        }

    def gradient(self, node: Node) -> str | None:
        """The gradient that an expression hands on; None where it hands on none."""
        read = (n.array for n, _ in walk(node) if isinstance(n, Ref))
        return next((self._gradients[array] for array in read if array in self._gradients), None)

    def part(self, equation: Equation, node: Node) -> str | None:
        """The array of the file that an expression of an equation belongs to."""
        if equation in self._computed:
            return self._computed[equation]
        gradient = self.gradient(node)
        return None if gradient is None else self._parts[gradient]

    def of(self, equation: Equation, node: Node) -> str | None:
        """The kernel class; None where none is named. What sums nothing up is no matrix product,
        although it may stand under the name of one."""
        kernel = self.kernels.get(self.part(equation, node) or "")
        if kernel != PRODUCT or equation in self._computed:
            return kernel
        return kernel if self.gradient(node) in self._of_sums else "elementwise"
