"""What are the equations of a part's gradients, with the entries that it reads by number?

A table whose rows are named by tokens hands its gradient back to rows that depend on the values: a
scatter, counted by the entries that are handed back. An entry that is read by number, as the score
of the target is, gets its gradient where the forward pass has read it, and no other entry does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from costmodel.adjoint import adjoint
from costmodel.adjoint.stored import active, extent
from costmodel.constraints import Unsupported
from costmodel.domains import total
from costmodel.equations import TRAINED, Equation, Form, Mixer, System, gradient_name
from costmodel.exact import Exact
from costmodel.expressions import (
    Array,
    First,
    Gather,
    Node,
    Reduce,
    Ref,
    moved,
    names_in,
    position_value,
    rebuilt,
    walk,
)
from costmodel.indices import Index, outer_first
from costmodel.loops import references
from costmodel.phases import system_of
from costmodel.polynomial import Poly

ONE = Poly.of(1)


@dataclass(frozen=True, eq=False)
class Gradients:
    """The equations of a part and of its gradients.

    `scattered` holds, by parameter array, how many entries one sequence hands to rows that its
    values name. What is added to these rows is not among the equations.
    """

    system: System
    scattered: Mapping[str, Exact]

    @property
    def summed(self) -> dict[str, Exact]:
        """Of each parameter, the entries of a gradient that is added up over a batch."""
        return {
            name: number
            for name, array in self.system.mixer.arrays.items()
            if array.role == "parameter" and (number := self._entries(gradient_name(array)))
        }

    def _entries(self, name: str) -> Exact | None:
        equations = [e for e in self.system.backward if e.name == name]
        return _points(equations) if equations else None


@cache
def gradients(
    mixer: Mixer, form: str, rewrites: tuple[str, ...] = (), unwanted: frozenset[str] = frozenset()
) -> Gradients:
    """The equations of a part's gradients.

    Args:
        unwanted: inputs whose gradient nothing needs; what only it takes is left out.

    Raises:
        Unsupported: an equation whose gradient is not derived.
    """
    system = system_of(mixer, form, rewrites, "training")
    reader = _Reader(system)
    found = reader.restored(adjoint(reader.without_numbers()))
    found = _needed(found, {f"{name}.grad" for name in unwanted})
    handed = {
        table: _points([e for e in found.backward if e.name == gradient_name(rows)])
        for rows, table in reader.rows.items()
    }
    scattered: dict[str, Exact] = {}
    for table, number in handed.items():
        scattered[table.name] = scattered.get(table.name, Exact()) + number
    return Gradients(found, scattered)


def _points(equations: list[Equation]) -> Exact:
    result = Exact()
    for equation in equations:
        atoms = tuple(index.atom for index in equation.indices)
        result = result + total(atoms, equation.domain, ONE)
    return result


def _needed(system: System, unwanted: set[str]) -> System:
    """The same without the equations of gradients that only unwanted ones read."""
    ends = {gradient_name(a) for a in system.mixer.arrays.values() if a.role in TRAINED}
    needed = {e.array for e in system.backward if e.name in ends - unwanted}
    while True:
        more = {
            ref.array for e in system.backward if e.array in needed for ref in references(e)
        } - needed
        if not more:
            break
        needed |= more
    kept = {e: kind for e, kind in system.backward.items() if e.array in needed}
    equations = tuple(e for e in system.equations if e not in system.backward or e in kept)
    return replace(system, equations=equations, backward=kept)


@dataclass(frozen=True)
class _Pick:
    """An array for what is read by number, and the entry that is read."""

    array: Array
    indices: tuple[str, ...]
    read: Ref
    axis: int

    @property
    def numbers(self) -> Ref:
        """The entry that says which one is read."""
        gather = self.read.positions[self.axis]
        assert isinstance(gather, Gather)
        return gather.at


class _Reader:
    """A system without reads by number, and the way back to it.

    Rows of a parameter become a second sequence that is given. An entry of what is computed is, to
    a gradient, what a maximum is: one of a range gets it. So it stands as one while the gradients
    are derived, and `restored` writes down which entry it is.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.rows: dict[Array, Array] = {}
        self.picks: dict[Array, _Pick] = {}
        self.mixer: Mixer = copy.copy(system.mixer)
        self.mixer.arrays = dict(system.mixer.arrays)
        self.active = active(system)

    def without_numbers(self) -> System:
        """The system with rows that are given, and maxima for entries that are chosen."""
        equations: list[Equation] = []
        for equation in self.system.equations:
            by_ref = {
                entry: outer_first([*equation.indices, *over])
                for entry, over in walk(equation.value)
                if isinstance(entry, Ref) and self._chosen(entry)
            }
            changed: dict[Ref, Ref] = {}
            for ref, around in by_ref.items():
                changed[ref], more = self._replaced(equation, ref, around)
                equations += more
            value = _with_refs(equation.value, changed) if changed else equation.value
            equations.append(replace(equation, value=value))
        form = self.mixer.forms[self.system.form]
        self.mixer.forms = {
            form.name: Form(self.mixer, form.name, form.indices, form.arrays, form.equations)
        }
        return System(self.mixer, self.system.form, tuple(equations))

    def _chosen(self, ref: Ref) -> bool:
        return ref.array in self.active and any(isinstance(p, Gather) for p in ref.positions)

    def _replaced(
        self, equation: Equation, ref: Ref, around: list[Index]
    ) -> tuple[Ref, list[Equation]]:
        named = {*names_in(ref.positions)}
        indices = tuple(index for index in around if index.atom in named)
        shape = tuple(extent(index, around) for index in indices)
        at = tuple(index.as_poly() for index in indices)
        parameter = ref.array.role == "parameter"
        what = "rows" if parameter else "picked"
        made = {*self.rows, *self.picks}
        number = 1 + sum(array.name.startswith(f"{ref.array.name}.{what}") for array in made)
        name = f"{ref.array.name}.{what}" + (f".{number}" if number > 1 else "")
        role = "context" if parameter else "intermediate"
        array = Array(name, role, shape, self.mixer)
        if parameter:
            self.rows[array] = ref.array
            self.mixer.arrays[name] = array
            return Ref(array, at), []
        axes = [k for k, p in enumerate(ref.positions) if isinstance(p, Gather)]
        if len(axes) > 1:
            raise Unsupported(f"the gradient of {ref.array.name}: two axes are read by number")
        self.picks[array] = _Pick(array, tuple(i.atom for i in indices), ref, axes[0])
        largest = Reduce("max", *self._range(ref, axes[0], around))
        return Ref(array, at), [Equation(array, at, largest, indices, equation.part_of)]

    def _range(self, ref: Ref, axis: int, around: list[Index]) -> tuple[Node, tuple[Index, ...]]:
        """Every entry on an axis, and the index that runs over it."""
        taken = {index.name for index in around}
        name = next(n for n in ("c", "e", "z", "number") if n not in taken)
        index = Index(name, (ONE,), (ref.array.shape[axis],))
        positions = tuple(index.as_poly() if k == axis else p for k, p in enumerate(ref.positions))
        return Ref(ref.array, positions), (index,)

    def restored(self, system: System) -> System:
        """The equations with entries read by number again, and their gradients at these entries."""
        if not self.picks:
            return system
        mixer = system.mixer
        changed: dict[Equation, Equation] = {}
        for equation in system.equations:
            pick = self.picks.get(equation.array)
            if pick is not None and equation not in system.backward:
                changed[equation] = replace(equation, value=pick.read)
            else:
                changed[equation] = replace(equation, value=self._first(equation.value, mixer))
        return system.with_equations(changed)

    def _first(self, node: Node, mixer: Mixer) -> Node:
        if isinstance(node, First) and node.largest.array in self.picks:
            pick = self.picks[node.largest.array]
            at = {
                name: position_value(where)
                for name, where in zip(pick.indices, node.largest.positions, strict=True)
            }
            wanted = Ref(pick.numbers.array, tuple(moved(p, at) for p in pick.numbers.positions))
            here = Ref(_counted(mixer, pick), (node.entry.positions[pick.axis],))
            return First(self._first(node.body, mixer), here, wanted, node.over)
        return _mapped(node, lambda child: self._first(child, mixer))


def _counted(mixer: Mixer, pick: _Pick) -> Array:
    """A constant table of the numbers 1, 2, ... on the axis that is read by number."""
    shape = (pick.read.array.shape[pick.axis],)
    name = f"{pick.read.array.name}.numbers"
    return mixer.arrays.setdefault(name, Array(name, "buffer", shape, mixer, below=shape[0]))


def _with_refs(node: Node, changed: Mapping[Ref, Ref]) -> Node:
    return rebuilt(node, lambda ref: changed.get(ref, ref), lambda index: index)


def _mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node with every expression inside it changed; references stay as they are."""
    if isinstance(node, Ref):
        return node
    found: dict[str, Any] = {}
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, Node):
            found[part.name] = change(value)
    return replace(node, **found) if found else node
