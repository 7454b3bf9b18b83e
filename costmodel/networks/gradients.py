"""What are the equations of the gradients of a network's part, embeddings included?

Which rows of an embedding E get a gradient depends on the tokens: from `y[i, b] = E[tokens[i], b]`,
each token's gradient is added to the row of E that the token names. This scatter is no equation
here; it is counted by the entries that are added.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

from costmodel.adjoint.gather_adjoint import Replaced, place_of, replaced
from costmodel.adjoint.reverse import adjoint
from costmodel.language.equations import TRAINED, Equation, Form, Mixer, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Ref, derived, refs
from costmodel.program.conventions import OF_GRADIENTS
from costmodel.program.recurrences import references
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly

ONE = Poly.of(1)


@dataclass(frozen=True, eq=False)
class PartGradients:
    """The equations of a part and of its gradients.

    `scattered` holds, by parameter array, how many entries one sequence adds to rows that tokens
    name. These additions are not among the equations. `handed` holds the arrays whose entries are
    added to the rows of computed numbers, as those of chosen experts: each entry goes to its row
    once it is computed, and no array of all of them is held.
    """

    system: System
    scattered: Mapping[str, Exact]
    handed: frozenset[Array] = frozenset()

    @property
    def summed(self) -> dict[str, Exact]:
        """A dict: name of a parameter -> the number of entries of its gradient that equations give,
        of which each further sequence of a batch costs one addition an entry; without parameters
        that are read by token numbers alone: of gpt-2, the head's {"E": d*u}, the embedding's
        {}."""
        return {
            name: number
            for name, array in self.system.mixer.arrays.items()
            if array.role == "parameter" and (number := self._entries(array))
        }

    def _entries(self, array: Array) -> Exact | None:
        """The entries of an array's gradient that equations give; None if no equation gives one."""
        equations = [e for e in self.system.backward if e.array.gradient_of is array]
        return _number_of_points(equations) if equations else None


@cache
def gradients(
    mixer: Mixer, form: str, rewrites: tuple[str, ...] = (), unwanted: frozenset[str] = frozenset()
) -> PartGradients:
    """The equations of the gradients of a part, `mixer` in a form under rewrites; the gradients of
    a parameter's rows that are read by number are not among them, but counted as additions.

    Args:
        unwanted: inputs and parameters whose gradient nothing reads; equations that only these
            gradients need are left out.

    Raises:
        Unsupported: an equation whose gradient is not derived.
    """
    system = system_of(mixer, form, rewrites, "training")
    reader = _LookUps(system)  # `reader.rows`: array of rows, as E.rows -> its table E
    # with these arguments a part that reads no rows has the gradients that `system_of` gives it
    chosen = frozenset(OF_GRADIENTS).intersection(rewrites)
    found = adjoint(reader.without_numbers(), rewrites=chosen, trained=TRAINED, recompute=())
    unwanted_rows = {rows.name for rows, table in reader.rows.items() if table.name in unwanted}
    found = without_unwanted(found, unwanted | unwanted_rows)
    scattered: dict[str, Exact] = {}
    handed: set[Array] = set()
    for rows, table in reader.rows.items():
        equations = [e for e in found.backward if e.array.gradient_of is rows]
        if not equations:
            continue  # unwanted, or no gradient reaches the rows
        scattered[table.name] = scattered.get(table.name, Exact()) + _number_of_points(equations)
        if rows in reader.chosen:
            handed |= {e.array for e in equations}  # of rows of chosen experts: never held whole
    return PartGradients(found, scattered, frozenset(handed))


def _number_of_points(equations: list[Equation]) -> Exact:
    """The number of entries that the equations define, all together, as a formula in the sizes."""
    result = Exact()
    for equation in equations:
        atoms = tuple(index.atom for index in equation.indices)
        result = result + total(atoms, equation.domain, ONE)
    return result


def without_unwanted(system: System, unwanted: Collection[str]) -> System:
    """A copy of the system (equations of a forward and a backward pass) without the equations that
    only the gradients of `unwanted` (names of inputs and parameters) need; the system itself if
    other gradients need all equations."""
    of = ((e.array, e.array.gradient_of) for e in system.backward)
    needed = {g for g, a in of if a and a.role in TRAINED and a.name not in unwanted}
    while True:
        more = {
            ref.array for e in system.backward if e.array in needed for ref in references(e)
        } - needed
        if not more:
            break
        needed |= more
    kept = {e: kind for e, kind in system.backward.items() if e.array in needed}
    if len(kept) == len(system.backward):
        return system
    equations = tuple(e for e in system.equations if e not in system.backward or e in kept)
    return replace(system, equations=equations, backward=kept)


class _LookUps:
    """Replaces each read E[tokens[i], b] of a parameter's rows by number by a read of an array
    `E.rows` that is given as a second sequence."""

    def __init__(self, system: System) -> None:
        """Begin with a copy of the system's mixer, to which arrays of rows will be added. `rows`:
        array of rows -> the table that they are read from."""
        self.system = system
        self.rows: dict[Array, Array] = {}
        self.chosen: set[Array] = set()
        """The arrays of rows whose numbers are computed."""
        self.mixer: Mixer = copy.copy(system.mixer)
        self.mixer.arrays = dict(system.mixer.arrays)

    def without_numbers(self) -> System:
        """A copy of the system in which each read of rows by number, E[tokens[i], b], is a read of
        a new input `E.rows` that holds these rows: gradients are then derived for `E.rows`. The
        system itself if it reads no rows by number."""
        equations = replaced(self.system, _is_row, self._row_as_input)
        if not self.rows:
            return self.system
        form = self.mixer.forms[self.system.form]
        self.mixer.forms = {
            form.name: Form(self.mixer, form.name, form.indices, form.arrays, form.equations)
        }
        return System(self.mixer, self.system.form, equations)

    def _row_as_input(self, equation: Equation, ref: Ref, around: list[Index]) -> Replaced:
        """Replace `ref`, which reads rows of a parameter by number, as E[tokens[i], b]: add a new
        context array (an input) that holds these rows, and return the read of it, and [], no
        further equations. `equation` is not used: `replaced` calls this function with it."""
        place = place_of(ref, around)
        before = sum(ref.array in array.made_for for array in self.rows)
        step = "rows" + (f".{before + 1}" if before else "")  # E.rows, E.rows.2, ...
        array = derived(
            ref.array, "rows", step, role="context", shape=place.shape, owner=self.mixer, cite=""
        )
        self.rows[array] = ref.array
        if any(isinstance(p, Gather) and p.at.array.role == "intermediate" for p in ref.positions):
            self.chosen.add(array)
        self.mixer.arrays[array.name] = array
        return Ref(array, place.positions), []


def reads_rows(mixer: Mixer, name: str) -> bool:
    """Whether a part reads rows of the parameter `name` by their numbers, as an embedding does."""
    equations = mixer.forms[mixer.default_form].equations
    return any(
        ref.array.name == name and _is_row(ref, [])
        for equation in equations
        for ref, _ in refs(equation.value)
    )


def _is_row(ref: Ref, around: list[Index]) -> bool:
    """Whether a reference reads a row of a parameter by number, as E[tokens[i], b]. `around` is not
    used: `replaced` calls this function with it."""
    return ref.array.role == "parameter" and any(isinstance(p, Gather) for p in ref.positions)
