"""What must be held after t tokens, so that every later token can be computed?

The number of entries with 1 <= own <= t that any instance with own > t reads, the sequence thought
to go on past t; and of what depends on a context alone, every entry that such an instance reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, Mixer, System
from costmodel.language.nodes import Array, Gather, Ref
from costmodel.program.dependence import Read, after_token, anywhere, reads, up_to_token
from costmodel.program.owners import owners
from costmodel.program.phases import T, without_inference
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import axes_of, region, whole
from costmodel.questions.question import (
    BATCH,
    Answers,
    Case,
    Figure,
    Name,
    Question,
    Said,
    Sentence,
    Tally,
    always,
    in_bytes,
)
from costmodel.questions.subject import about_mixer, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly, axis_atom


@dataclass(frozen=True)
class State(Amount):
    """Elements held after t tokens, per array, for one sequence; exact."""

    arrays: Mapping[str, Exact]
    readers: Mapping[str, tuple[str, ...]]
    """Array -> the equations in which later tokens read it."""

    @property
    def each(self) -> Exact:
        """The total number of elements, which every sequence holds."""
        return sum(self.arrays.values(), Exact())


def entries(
    ref: Ref, constraints: Constraints, variables: frozenset[str], *, ends: bool
) -> Constraints | None:
    """The entries that a reference touches while its indices satisfy the constraints.

    Nothing is read outside an array (`dense` multiplies zeros there); `ends` says that the array
    has an end, which a sequence thought to go on has not.
    """
    inside = {*whole(ref.array)} if ends else {Poly.atom(a) - 1 for a in axes_of(ref.array)}
    if ends and ref.array.rows:
        axis, rows = ref.array.rows
        chunk, place = (Poly.atom(axis_atom(k)) for k in (axis, axis + 1))
        inside.add(rows - (chunk - 1) * ref.array.shape[axis + 1] - place)
    return region(ref.array, ref.positions, constraints | inside, sorted(variables))


def numbers(regions: Mapping[Array, Sequence[Constraints]]) -> dict[str, Exact]:
    """How many entries lie in some regions, by the names of arrays: steps of a composite that
    several equations of one array stand for share theirs."""
    found: dict[str, Exact] = {}
    for array, parts in regions.items():
        more = union_size(axes_of(array), parts, Poly.of(1))
        found[array.name] = found.get(array.name, Exact()) + more
    return found


def gathered(ref: Ref) -> Gather | None:
    """The first position of a reference that depends on values, if there is one."""
    return next((p for p in ref.positions if isinstance(p, Gather)), None)


def variables_in(equation: Equation, over: tuple[object, ...]) -> frozenset[str]:
    """The atoms of an equation's free indices and of the reductions around a reference."""
    return frozenset(i.atom for i in equation.indices) | {
        i.atom  # type: ignore[attr-defined]
        for i in over
    }


@cache
def held(system: System) -> Mapping[Array, Sequence[tuple[Equation, Constraints]]]:
    """For each array, the regions of entries held after t tokens and who reads them, or may gather
    them."""
    found: dict[Array, list[tuple[Equation, Constraints]]] = {}
    for equation in system.equations:
        for read in reads(equation):
            for touched in _held_of(system, equation, anywhere(system, read)):
                found.setdefault(read.ref.array, []).append((equation, touched))
    return found


def _held_of(system: System, equation: Equation, read: Read) -> Iterator[Constraints]:
    """The entries held after t tokens that later ones read by a reference."""
    known, dependence, ref = owners(system), tokens(system), read.ref
    if ref.array not in dependence.given:
        return
    terms, names = known.at(ref), variables_in(equation, read.over)
    ends = ref.array not in dependence.dynamic
    for later in after_token(known.unbounded(equation), known.instance(equation), T):
        for before in up_to_token(later | read.constraints, terms, T):
            for around, given in dependence.dependent_entries(ref, before, ends=False):
                touched = entries(ref, around, names, ends=ends) if given else None
                if touched is not None:
                    yield touched


@about_mixer
def state(mixer: Mixer, form: str | None = None) -> State:
    """The state of a mixer after t tokens, in elements; exact.

    Raises:
        Unanswered: the form has no one-token inference, so there is nothing to hold.
        Unsupported: what belongs to a token depends on where the sequence ends.

    >>> import costmodel as cm
    >>> cm.state(cm.mixer("self-attention")).expr
    2*d*t
    """
    system = system_of(mixer, form, (), "inference")
    if refused := without_inference(system):
        raise refused
    if ending := owners(system).ending:
        raise Unsupported(ending)
    regions = held(system)
    readers: dict[str, tuple[str, ...]] = {}
    for array, found in regions.items():
        several = [*readers.get(array.name, ()), *(e.part_of for e, _ in found)]
        readers[array.name] = tuple(dict.fromkeys(several))
    return State(numbers({a: [r for _, r in found] for a, found in regions.items()}), readers)


def state_of(about: Answers) -> State:
    """The state of one form."""
    return state(about.mixer, about.form)


def _explained(case: Case) -> Iterator[Sentence]:
    kept = case.about.of(state_of)
    if not kept.arrays:
        yield Sentence(("Nothing need be held: no later token reads earlier ones.",))
        return
    number, b = kept.at(**case.sizes), case.sizes.get("b", 1)
    batch = f" for {b} sequences" if b > 1 else ""
    after = (
        f" elements must be held for each sequence, {number:,} at these sizes{batch}: the entries "
        "of tokens up to t that a later token reads."
    )
    yield Sentence(("After t tokens ", kept.exact, after))
    for name, entries in kept.arrays.items():
        readers: list[Said] = []
        for reader in kept.readers[name]:
            readers += [", " if readers else "", Name(reader, cited=True)]
        words = (Name(name), ": ", entries, " elements, read by the equation of ", *readers)
        yield Sentence((*words, " for every later token."), item=True)


STATE = Question(
    "state",
    "State",
    (
        Figure(
            "state",
            "held after t tokens",
            lambda case: case.about.of(state_of).exact * BATCH,
            header="state kept\n(elements)",
            key="state_elements",
            unit="elements",
            phases=("inference",),
            varies=frozenset({"form"}),
            usual=always,
            claim="state",
        ),
        Figure(
            "state_bytes",
            "the state after t tokens, in bytes",
            lambda case: in_bytes(case, "state", case.about.of(state_of).exact * BATCH),
            header="state\nkept (B)",
            heading="state kept (bytes)",
            unit="bytes",
            phases=("inference",),
            varies=frozenset({"form"}),
            within="state",
        ),
    ),
    state,
    (Tally("state", lambda about, sizes: about.of(state_of).at(**sizes)),),
    explained=_explained,
)
