"""The state: which entries must be held after t tokens, so that later tokens can be computed?

An instance is one equation at one point of its indices; its owner is the token whose arrival
triggers the work (program/owners.py). The state is the entries owned by tokens 1..t that instances
owned by later tokens read, in a sequence without end; and the entries computed from a context alone
that such instances read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, Mixer, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Ref
from costmodel.program.conventions import Convention
from costmodel.program.dependence import Read, after_token, anywhere, reads, up_to_token
from costmodel.program.owners import owners
from costmodel.program.phases import T, without_inference
from costmodel.program.recurrences import recurrent
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import axes_of, region, whole
from costmodel.questions.question import (
    BATCH,
    Answers,
    Case,
    Figure,
    Missing,
    Name,
    Question,
    Said,
    Sentence,
    Share,
    Tally,
    always,
    over_parts,
)
from costmodel.questions.subject import about_mixer, asked, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Fn, Poly, axis_atom

ROLES = {"cache": "rows of tokens", "state": "carried by a recurrence"}
"""Role of an array in the state -> the role in words. Arrays of a loop are recurrent; other arrays
hold rows of tokens, such as keys, latents and the last rows that a convolution reads."""


def role(system: System, array: Array) -> str:
    """The role of an array in the state of a system, one of `ROLES`: element types may differ."""
    return "state" if array in recurrent(system.forward) else "cache"


@dataclass(frozen=True)
class State(Amount):
    """The elements held after t tokens, by array, for one sequence; exact."""

    arrays: Mapping[str, Exact]
    readers: Mapping[str, tuple[str, ...]]
    """Array -> the names of the equations by which later tokens read the array."""
    roles: Mapping[str, str]
    """Array -> its role in the state, one of `ROLES`."""
    rows: Mapping[str, Poly]
    """Array -> the entries of one row of a head or token, along which blocks of a quantised type
    lie: the extent of its last axis that is no axis of tokens."""

    @property
    def each(self) -> Exact:
        """The total number of elements, per sequence."""
        return sum(self.arrays.values(), Exact())


def entries(
    ref: Ref, constraints: Constraints, variables: frozenset[str], *, ends: bool
) -> Constraints | None:
    """The entries of an array that a reference reads while its indices satisfy the constraints, as
    constraints on the axes of the array: 1 <= #0 <= t for x[j] with 1 <= j <= i and i = t. None if
    there are none. Positions outside of the array are left out (the rewrite `dense` multiplies
    zeros there).

    Args:
        variables: the indices to eliminate.
        ends: whether the axes have upper ends; False for a sequence without end.

    Raises:
        Unsupported: the entries lie at a stride (every second row): no constraints describe them.
    """
    inside = {*whole(ref.array)} if ends else {Poly.atom(a) - 1 for a in axes_of(ref.array)}
    # rows split into chunks: the last chunk ends with the rows
    if ends and ref.array.rows:
        axis, rows = ref.array.rows
        chunk, place = (Poly.atom(axis_atom(k)) for k in (axis, axis + 1))
        inside.add(rows - (chunk - 1) * ref.array.shape[axis + 1] - place)
    return region(ref.array, ref.positions, constraints | inside, sorted(variables))


def numbers(regions: Mapping[Array, Sequence[Constraints]]) -> dict[str, Exact]:
    """Name of an array -> the number of entries in the union of its regions, exact in sizes: {v: t}
    for v with the region 1..t. Arrays of one name (steps of one composite) are added up."""
    found: dict[str, Exact] = {}
    for array, parts in regions.items():
        more = union_size(axes_of(array), parts, Poly.of(1))
        found[array.name] = found.get(array.name, Exact()) + more
    return found


def gathered(ref: Ref) -> Gather | None:
    """The first gather among the positions of a reference; None if there is none."""
    return next((p for p in ref.positions if isinstance(p, Gather)), None)


def variables_in(equation: Equation, over: tuple[Index, ...]) -> frozenset[str]:
    """The names of an equation's free indices and of the indices `over` of enclosing reductions."""
    return frozenset(index.atom for index in (*equation.indices, *over))


@cache
def held(system: System) -> Mapping[Array, Sequence[tuple[Equation, Constraints]]]:
    """Array -> the regions of the entries that must be held after t tokens for later tokens, as
    (equation that reads the region, constraints on the array's axes), which may overlap; a gather
    reads all entries that it may choose."""
    found: dict[Array, list[tuple[Equation, Constraints]]] = {}
    for equation in system.equations:
        for read in reads(equation):
            for touched in _held_of(system, equation, anywhere(system, read)):
                found.setdefault(read.ref.array, []).append((equation, touched))
    return found


def _held_of(system: System, equation: Equation, read: Read) -> Iterator[Constraints]:
    """Yield the regions (constraints on the axes of an array) of the entries that a reference reads
    at points executed by tokens after t, and that tokens up to t computed or that follow from a
    context alone: for y[i] = sum over j <= i of v[j], with v computed from the input, v[1..t]."""
    owner, dependence, ref = owners(system), tokens(system), read.ref
    if ref.array not in dependence.from_inputs_or_contexts:  # a weight, no state
        return
    names = variables_in(equation, read.over)
    ends = ref.array not in dependence.from_inputs  # of a context alone: it has all its rows
    for later in after_token(owner.unbounded(equation), owner.instance(equation), T):
        for before in up_to_token(later | read.constraints, owner.at(ref), T):
            for around, given in dependence.dependent_entries(ref, before, ends=False):
                touched = entries(ref, around, names, ends=ends) if given else None
                if touched is not None:
                    yield touched


@about_mixer
def state(
    mixer: Mixer, form: str | None = None, convention: str | tuple[str, ...] | Convention = "strict"
) -> State:
    """The number of elements that must be held after t tokens so that later tokens can be computed,
    by array; exact in the sizes. A rewrite of the convention may read more entries: under
    `zero-state`, the first rows of a recurrence multiply zeros.

    Raises:
        Unanswered: the form has no one-token inference.
        Unsupported: the work of a token depends on where the sequence ends.

    >>> import costmodel as cm
    >>> cm.state(cm.mixer("self-attention")).expr
    2*d*t
    """
    system = system_of(mixer, form, asked(convention, "inference", {}).rewrites, "inference")
    if refused := without_inference(system):
        raise refused
    if ending := owners(system).ending:
        raise Unsupported(ending)
    regions = held(system)
    readers: dict[str, tuple[str, ...]] = {}
    for array, found in regions.items():
        several = [*readers.get(array.name, ()), *(e.part_of for e, _ in found)]
        readers[array.name] = tuple(dict.fromkeys(several))
    held_numbers = numbers({a: [r for _, r in found] for a, found in regions.items()})
    roles = {a.name: role(system, a) for a in regions}
    return State(held_numbers, readers, roles, {a.name: row_of(a) for a in regions})


def row_of(array: Array) -> Poly:
    """The entries of one row of an array: its last extent that is no number of tokens, or 1."""
    tokens_axes = {Poly.atom("l"), Poly.atom("e")}
    extents = [extent for extent in array.shape if extent not in tokens_axes]
    return extents[-1] if extents else Poly.of(1)


def _of_parts(shares: Sequence[Share[State]]) -> State:
    """The state of a network, with keys `PART: ARRAY`: the elements of an array are those of the
    part's answer (in `shares`) times the runs of the part for one sequence."""
    arrays: dict[str, Exact] = {}
    readers: dict[str, tuple[str, ...]] = {}
    roles: dict[str, str] = {}
    rows: dict[str, Poly] = {}
    for share in shares:
        for array, number in share.answer.arrays.items():
            name = f"{share.name}: {array}"
            elements = number.substitute(share.sizes) * share.runs
            arrays[name] = arrays.get(name, Exact()) + elements
            readers[name], roles[name] = share.answer.readers[array], share.answer.roles[array]
            rows[name] = share.answer.rows[array].substitute(share.sizes)
    return State(arrays, readers, roles, rows)


@over_parts(_of_parts)
def state_of(about: Answers) -> State:
    """The state of one form under a convention."""
    return state(about.mixer, about.form, about.convention)


def _in_bytes(case: Case) -> Exact:
    """The bytes of the state of b sequences; elements where the case has no types. Unanswered for
    rows of a sum of sizes, such as d + n, in a type in blocks (q8_0)."""
    held = case.about.of(state_of)
    if case.dtypes is None:
        return held.exact * BATCH
    total = Exact()
    for name, number in held.arrays.items():
        row = held.rows[name].substitute(case.known)
        per_element = case.dtypes.bytes_in_rows(held.roles[name], row)
        total = total + number.substitute(case.known) * per_element
    return total * BATCH


LONGEST = 4096
"""The most tokens over which the largest state is looked for."""


def _over_a_period(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each mixer whose state has a period in t, as that of chunks, which a
    full chunk empties: the largest state over the period (at most `LONGEST`) that begins at t, if
    it exceeds the state at t. `shown` (the columns) is not used: all notes take it."""
    largest: dict[str, tuple[int, int]] = {}  # mixer -> (elements, token)
    for case in cases:
        if case.symbolic or case.blocked or isinstance(case.figure(STATE.figures[0]), Missing):
            continue
        state, sizes = case.about.of(state_of).exact, case.sizes
        if 0 < (period := _period(state, sizes)) <= LONGEST:
            t = sizes["t"]
            held = [state.at({**sizes, "t": u}) for u in range(t, t + period + 1)]
            most, name = max(held), case.mixer.name
            if held[-1] == held[0] < most and most > largest.get(name, (0, 0))[0]:
                largest[name] = most, t + held.index(most)
    for name, (most, t) in largest.items():
        yield f"state: {name} holds up to {most:,} elements of each sequence, at t = {t:,}"


def _period(number: Exact, sizes: Mapping[str, int]) -> int:
    """The period in t of floors in a number, the least common multiple of the floors' divisors: C
    for floor((t - 1)/C); 0 without a floor of t."""
    atoms = {atom for _, poly in number.pieces for term in poly.terms for atom, _ in term}
    floors = [a for a in atoms if isinstance(a, Fn) and a.function == "floor_div"]
    periods = [a.args[1].at(sizes) for a in floors if "t" in a.args[0].letters]
    return lcm(*map(int, periods)) if periods else 0


def _of_gathers(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield a note if some case reads entries that data or a table choose. `shown` (the columns) is
    not used: all notes take it."""
    if any(case.gathers for case in cases):
        yield "state: every entry that a gather may select is held"


def _explained(case: Case) -> Iterator[Sentence]:
    """Yield a sentence with the formula of the elements per sequence and the number for the batch,
    then an item for each array with its elements per sequence, its role and the equations by which
    later tokens read it; or one sentence that nothing must be held."""
    kept = case.about.of(state_of)
    if not kept.arrays:
        yield Sentence(("Nothing must be held: no token reads entries of earlier tokens.",))
        return
    number, b = kept.at(**case.sizes), case.sizes.get("b", 1)
    batch = f" for {b} sequences" if b > 1 else ""
    after = (
        f" elements must be held for each sequence, {number:,} at these sizes{batch}: the entries "
        "of these tokens that a later token reads."
    )
    yield Sentence(("After ", Poly.atom("t"), " tokens ", kept.exact, after))
    for name, entries in kept.arrays.items():
        readers: list[Said] = []
        for reader in kept.readers[name]:
            readers += [", " if readers else "", Name(reader, cited=True)]
        words = (Name(name), ": ", entries, f" elements, {ROLES[kept.roles[name]]}, read by the "
                 "equation of ", *readers)  # fmt: skip
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
            varies=frozenset({"form", "convention"}),
            usual=always,
            notes=(_over_a_period, _of_gathers),
            claimed=True,
            by_form=True,
        ),
        Figure(
            "state_bytes",
            "the state after t tokens, in bytes",
            _in_bytes,
            header="state\nkept (B)",
            heading="state kept (bytes)",
            unit="bytes",
            phases=("inference",),
            varies=frozenset({"form", "convention"}),
            notes=(_over_a_period, _of_gathers),
            within="state",
        ),
    ),
    state,
    (Tally("state", lambda about, sizes: about.of(state_of).at(**sizes)),),
    explained=_explained,
    place="end",
)
