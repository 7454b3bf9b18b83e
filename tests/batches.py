"""How does a test write a mixer for b sequences as one system, in which each array of a sequence
has a batch axis?

What depends on the input or on a context is there once a sequence; parameters, and what is computed
from them alone, are shared. The gradients of such a system are derived like those of any other:
they add up over the sequences what they add up over rows. No rule about batches is used.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from costmodel import Mixer
from costmodel.language.equations import Equation, Form, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Node, Ref, rewrite
from costmodel.oracle.execute import Execution
from costmodel.oracle.scalars import Entry, Instance
from costmodel.program.tokens import tokens
from costmodel.symbolic.polynomial import Poly

B = Poly.atom("b")
SEQUENCE = Index("sequence", (Poly.of(1),), (B,))


class Batch:
    """The forward pass of b sequences; `arrays` is array of one sequence -> array of all."""

    def __init__(self, system: System) -> None:
        self.mixer: Mixer = copy.copy(system.mixer)
        self.mixer.letters = (*system.mixer.letters, "b")
        given = tokens(system).from_inputs_or_contexts
        owned = [a for a in system.mixer.arrays.values() if a.role in ("input", "context")]
        self.arrays = {a: self._longer(a) for a in dict.fromkeys((*owned, *sorted_by_name(given)))}
        self.mixer.arrays = {
            name: self.arrays.get(array, array) for name, array in system.mixer.arrays.items()
        }
        form = system.mixer.forms[system.form]
        equations = list(map(self._of_all, system.equations))
        own = Form(self.mixer, form.name, form.indices, form.arrays, equations)
        self.mixer.forms = {form.name: own}
        fixed = frozenset(self.arrays[array] for array in system.fixed)
        self.system = System(self.mixer, system.form, tuple(equations), fixed=fixed)

    def _longer(self, array: Array) -> Array:
        return replace(array, shape=(*array.shape, B), owner=self.mixer)

    def _of_all(self, equation: Equation) -> Equation:
        value = self._value(equation.value)
        if equation.array not in self.arrays:
            return replace(equation, value=value)
        return replace(
            equation,
            array=self.arrays[equation.array],
            positions=(*equation.positions, SEQUENCE.as_poly()),
            value=value,
            indices=(*equation.indices, SEQUENCE),
        )

    def _value(self, node: Node) -> Node:
        return rewrite(node, self._entry)

    def _entry(self, node: Node) -> Node:
        if not (isinstance(node, Ref) and node.array in self.arrays):
            return node
        return Ref(self.arrays[node.array], (*node.positions, SEQUENCE.as_poly()))


def sorted_by_name(arrays: frozenset[Array]) -> list[Array]:
    """Arrays in an order that is the same at every run."""
    return sorted(arrays, key=lambda array: array.name)


def shared(done: Execution, entry: Entry) -> bool:
    """Whether an entry is that of another sequence too, though it was computed for each."""
    array, where = entry
    return array.shape[-1:] == (B,) and where[-1] > 1 and not done.trace.memory[entry].given


def instances(done: Execution) -> Iterator[Instance]:
    """What b sequences execute: work on weights alone once for all of them."""
    return (i for i in done.instances if not all(shared(done, entry) for entry in i.writes))


def operations(done: Execution) -> dict[str, int]:
    """Operations by class, those on weights alone among them."""
    total: Counter[str] = Counter()
    for instance in instances(done):
        total.update(instance.operations)
    return {name: number for name, number in sorted(total.items()) if number}


def moved(done: Execution, system: System, phase: str) -> int:
    """Entries that must move: what is read and not computed, and the results."""
    fresh = {entry for i in done.instances for entry in i.writes}
    read = {entry for i in done.instances for entry in i.reads}
    results = {entry for entry in fresh if entry[0] in system.results(phase)}
    return sum(not shared(done, entry) for entry in (read - fresh) | results)


def kept(done: Execution, given: Array) -> int:
    """Entries of the forward pass that its gradients read, without the one that is given."""
    return sum(entry[0] is not given and not shared(done, entry) for entry in done.kept())
