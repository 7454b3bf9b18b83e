"""What are the equations of a part's gradients, with the rows that it reads by number?

A table whose rows are named by tokens hands its gradient back to rows that depend on the values: a
scatter, counted by the entries that are handed back.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from costmodel.adjoint.gather_adjoint import Replaced, place_of, replaced
from costmodel.adjoint.reverse import adjoint
from costmodel.language.equations import TRAINED, Equation, Form, Mixer, System, gradient_name
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Ref
from costmodel.program.recurrences import references
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly

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
    found = adjoint(reader.without_numbers())
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


class _Reader:
    """A system whose rows of parameters that are read by number are a second sequence, given."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.rows: dict[Array, Array] = {}
        self.mixer: Mixer = copy.copy(system.mixer)
        self.mixer.arrays = dict(system.mixer.arrays)

    def without_numbers(self) -> System:
        """The system with rows that are given."""
        equations = replaced(self.system, _is_row, self._given)
        form = self.mixer.forms[self.system.form]
        self.mixer.forms = {
            form.name: Form(self.mixer, form.name, form.indices, form.arrays, form.equations)
        }
        return System(self.mixer, self.system.form, equations)

    def _given(self, equation: Equation, ref: Ref, around: list[Index]) -> Replaced:
        place = place_of(ref, around)
        taken = sum(array.name.startswith(f"{ref.array.name}.rows") for array in self.rows)
        name = f"{ref.array.name}.rows" + (f".{taken + 1}" if taken else "")
        array = Array(name, "context", place.shape, self.mixer)
        self.rows[array] = ref.array
        self.mixer.arrays[name] = array
        return Ref(array, place.positions), []


def _is_row(ref: Ref, around: list[Index]) -> bool:
    """Whether a reference reads a parameter by number."""
    return ref.array.role == "parameter" and any(isinstance(p, Gather) for p in ref.positions)
