"""Memory traffic: how many elements must move at least, and if no equations are fused?

*Compulsory*: inputs, weights that are used and state are read once, outputs and new state written
once. *Unfused*: every equation reads its distinct operand entries and writes its results; an input
that later tokens read is also written to the state. Gathers read one entry per position value, at
most all entries that they may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.language.nodes import Array, Gather, Position, Ref, derived
from costmodel.program.conventions import Convention
from costmodel.program.dependence import after_token, anywhere, reads, up_to_token
from costmodel.program.element_types import Dtypes
from costmodel.program.owners import owners
from costmodel.program.phases import (
    TRAINING_STEP,
    IterationDomain,
    T,
    by_equation,
    iteration_domains,
    phase_name,
)
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import axes_of, region, whole
from costmodel.questions.question import (
    BATCH,
    Answers,
    Case,
    Figure,
    Question,
    Share,
    Tally,
    in_bytes,
    over_parts,
)
from costmodel.questions.state import ROLES, entries, gathered, held, role, row_of, variables_in
from costmodel.questions.subject import Training, about_mixer, asked, system_of
from costmodel.symbolic.at_sizes import at_sizes
from costmodel.symbolic.constraints import Constraints, infeasible, outside
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total, union_size
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sympy_form import Symbolic

if TYPE_CHECKING:
    import sympy

ONE = Poly.of(1)
KINDS = ("activations", "weights", "rows", *ROLES)
"""Kinds of entries: weights depend on no input, the state (in its roles `cache` and `state`) was
computed by earlier tokens or from a context, activations are the rest. In networks, rows are
weights that data choose, as rows of an embedding and experts: at most one for each position value
of the b sequences, and at most all."""

ONCE = ("weights", "rows")
"""The kinds whose numbers are for all sequences together."""


@dataclass(frozen=True)
class Elements(Symbolic):
    """Kind -> the number of distinct entries moved, for one sequence (`ONCE`: for all)."""

    kinds: Mapping[str, Exact] = field(default_factory=dict)
    rows: Mapping[Poly, Exact] = field(default_factory=dict)
    """Of "cache": width of a row of a head or token (`row_of`) -> entries in all rows as wide."""

    @classmethod
    def of(cls, kind: str, array: Array, number: Exact) -> Elements:
        """`number` entries of an array, of a `kind` in `KINDS`."""
        return cls({kind: number}, {row_of(array): number} if kind == "cache" else {})

    def __add__(self, other: Elements) -> Elements:
        return Elements(_merged(self.kinds, other.kinds), _merged(self.rows, other.rows))

    def in_network(self, share: Share[Traffic], once: Poly) -> Elements:
        """The entries that a part moves in a network, from these of one run, in sizes of the
        network: all times the part's runs, but kinds in `ONCE` times `once`, the copies of its
        weights if these are read once, else its runs."""

        def times(number: Exact, kind: str) -> Exact:
            return number.substitute(share.sizes) * (once if kind in ONCE else share.runs)

        rows: dict[Poly, Exact] = {}
        for width, number in self.rows.items():
            rows = _merged(rows, {width.substitute(share.sizes): times(number, "cache")})
        return Elements({kind: times(n, kind) for kind, n in self.kinds.items()}, rows)

    def in_bytes(self, types: Dtypes, sizes: Mapping[str, Poly]) -> Exact:
        """The bytes of b sequences, a formula. A row of the cache takes whole blocks of a quantised
        type, and an entry its share: 136/100 B in a row of 100 of q8_0 (4 blocks of 34 B). `sizes`:
        letter -> value, used in widths of rows only. Weights are counted as if rows filled blocks.
        Raises Unanswered for a quantised row whose width is a sum of letters."""
        found = Exact()
        for kind, number in self.kinds.items():
            if kind != "cache":
                times = ONE if kind in ONCE else BATCH
                found = found + number * (times * types.bytes_of(kind))
        for width, number in self.rows.items():
            entry_bytes = types.bytes_in_rows("cache", width.substitute(sizes))
            found = found + number * (BATCH * entry_bytes)
        return found

    @property
    def exact(self) -> Exact:
        """The number of entries of all kinds together for b sequences."""
        result = Exact()
        for kind, number in self.kinds.items():
            result = result + (number if kind in ONCE else number * BATCH)
        return result

    @property
    def expr(self) -> sympy.Expr:
        """The number of entries of all kinds together for one sequence, as a sympy expression."""
        result = Exact()
        for number in self.kinds.values():
            result = result + number
        return result.expr

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> dict[str, int]:  # type: ignore[override]  # by kind
        """Kind -> number of entries at these sizes, for `b` sequences together, which share the
        weights."""
        return {
            kind: number.at({**sizes, "b": b}) * (1 if kind in ONCE else b)
            for kind, number in self.kinds.items()
        }


K = TypeVar("K")


def _merged(one: Mapping[K, Exact], two: Mapping[K, Exact]) -> dict[K, Exact]:
    """The sums of the numbers of both, by key."""
    found = {**one}
    for key, number in two.items():
        found[key] = found[key] + number if key in found else number
    return found


@dataclass(frozen=True)
class Traffic:
    """The entries moved at least (`compulsory`), and without fusion (`unfused`); exact. `kept`: of
    the compulsory entries of a backward pass, those that the forward pass computed."""

    compulsory: Elements
    unfused: Elements
    kept: Elements = field(default_factory=Elements)

    @property
    def least(self) -> Elements:
        """The compulsory entries without the kept ones, which a backward pass may compute anew from
        inputs and weights: no implementation moves fewer."""
        less = {kind: number * -1 for kind, number in self.kept.kinds.items()}
        return self.compulsory + Elements(less)

    def _repr_latex_(self) -> str:
        """LaTeX for notebooks, in two lines: the elements moved at least, and without fusion."""
        import sympy

        parts = (("compulsory", self.compulsory), ("unfused", self.unfused))
        body = r" \\ ".join(
            rf"\text{{{name} elements}} &= {sympy.latex(elements.expr)}" for name, elements in parts
        )
        return rf"$\begin{{aligned}} {body} \end{{aligned}}$"

    @at_sizes
    def at(
        self,
        *,
        dtype: str = "fp32",
        state_dtype: str | None = None,
        cache_dtype: str | None = None,
        weight_dtype: str | None = None,
        **sizes: int,
    ) -> dict[str, int]:
        """Bytes at integer sizes: {"compulsory": the least, "unfused": without fusion}.

        Args:
            dtype: the element type, of which the other types are by default.
            state_dtype: the type of recurrent arrays of the state.
            cache_dtype: the type of rows of tokens in the state.
            weight_dtype: the type of weights.
        """
        types = Dtypes(dtype, state_dtype, weight_dtype, cache_dtype)
        given = {"b": 1, **sizes}
        known = {letter: Poly.of(size) for letter, size in given.items()}
        return {
            name: ceil(elements.in_bytes(types, known).rational(given))
            for name, elements in (("compulsory", self.compulsory), ("unfused", self.unfused))
        }


Region = tuple[Array, Constraints]


@dataclass(frozen=True)
class Touched:
    """A region of entries of a `kind` (`KINDS`) that a reference reads or a gather may read."""

    kind: str
    array: Array
    region: Constraints
    named: Region | None = None
    """For a gather: an array and region with one entry for each entry that is read."""


@cache
def _regions_read(
    system: System, phase: str, ref: Ref, around: Constraints, variables: frozenset[str]
) -> Sequence[tuple[str, Region]]:
    """The regions of the entries that a reference reads (constraints on the axes of an array), as
    (kind, (array, region)), of which `_distinct` counts the union. The kind is "weights",
    "activations", or in one-token inference "cache" (kept rows of tokens) or "state" (kept
    recurrent entries). Entries that no equation defines are zeros and left out.

    Args:
        around: the constraints on the indices around the reference, `variables`.
    """
    found = _by_kind(system, phase, ref, around, variables)
    if not system.beyond or ref.array not in system.defining:
        return [*found]
    there = _written_entries(system, phase, ref.array)
    return [
        (kind, (array, part))
        for kind, (array, region) in found
        for part in (_within(region, there) if outside(region, there) else [region])
    ]


def _within(region: Constraints, parts: Sequence[Constraints]) -> Iterator[Constraints]:
    """Yield the points of a region that lie in one of several regions, as disjoint regions."""
    for k, part in enumerate(parts):
        if not infeasible(region | part):
            yield from outside(region | part, parts[:k])


@cache
def _written_entries(system: System, phase: str, array: Array) -> Sequence[Constraints]:
    """The regions of an array's entries that equations define, one per equation (in `inference` in
    a sequence without end); all other entries are zeros, which move nothing."""
    known = owners(system) if phase == "inference" else None
    return [
        found
        for e in system.defining[array]
        if (found := region(
            array, e.positions, known.unbounded(e) if known else e.domain,
            [i.atom for i in e.indices],
        )) is not None
    ]  # fmt: skip


def _by_kind(
    system: System, phase: str, ref: Ref, around: Constraints, variables: frozenset[str]
) -> Iterator[tuple[str, Region]]:
    """Yield the regions of the entries that a reference reads, as (kind, (array, region)); `around`
    are the constraints on the indices `variables` around the reference. In a pass over all tokens,
    entries that depend on an input or a context are activations. For one token, entries of earlier
    tokens and of contexts are state (in the array's role, "cache" for rows of tokens or "state"),
    those of its own are activations. Gradients are activations, those of weights are weights;
    entries that depend on weights alone are weights."""
    if ref.array in system.defining and ref.array not in system.forward.defining:
        kind = "weights" if ref.array in system.shared_gradients else "activations"
        if (region := entries(ref, around, variables, ends=True)) is not None:
            yield kind, (ref.array, region)
        return
    terms = owners(system).at(ref) if phase == "inference" else ()
    known = tokens(system.forward)
    if phase != "inference" or ref.array not in known.from_inputs:  # depends on no token
        kind = "activations" if phase != "inference" else role(system, ref.array)
        for part, given in known.dependent_entries(ref, around, ends=phase != "inference"):
            region = entries(ref, part, variables, ends=True)
            if region is not None:
                yield (kind if given else "weights"), (ref.array, region)
        return
    # entries of tokens up to t - 1, then those of the new token t
    for before in up_to_token(around, terms, T - 1):
        for part, given in known.dependent_entries(ref, before, ends=False):
            earlier = entries(ref, part, variables, ends=False)
            if earlier is not None:
                yield (role(system, ref.array) if given else "weights"), (ref.array, earlier)
    for now in after_token(around, terms, T - 1):
        fresh = entries(ref, now, variables, ends=False)
        if fresh is not None:
            yield "activations", (ref.array, fresh)


def _read(
    system: System,
    phase: str,
    part: IterationDomain,
    without: frozenset[Array] = frozenset(),
    *,
    rows: bool = False,
) -> Iterator[Touched]:
    """Yield the entries that an equation reads at the points of its indices that the phase executes
    (`part` has both), as regions with their kind ("weights", "activations", "cache", "state",
    "rows"), without those of arrays in `without`.

    Args:
        rows: weights that data choose (a gather by an index array without values of its own) are of
            kind "rows", one entry for each position value.

    Raises:
        Unsupported: the number of distinct entries depends on values: of a gather in one-token
            inference, unless `rows` and the token's own entries are chosen; or, unless `rows`, of
            weights, which all sequences share.
    """
    for read in reads(part.equation):
        if read.ref.array in without:
            continue
        every = anywhere(system, read)
        around = part.constraints | every.constraints
        variables = variables_in(part.equation, every.over)
        touched = _regions_read(system, phase, every.ref, around, variables)
        if (gather := gathered(read.ref)) is None:
            yield from (Touched(kind, *region) for kind, region in touched)
            continue
        # a gather has a number of entries if it chooses among weights, under `rows`; or among other
        # entries, in a pass over all tokens or, under `rows`, among those of the token itself
        kinds = {kind for kind, _ in touched}
        chosen = rows and kinds <= {"weights"}
        own = phase != "inference" or (rows and kinds <= {"activations"})
        if not chosen and (not own or "weights" in kinds):
            raise Unsupported(
                f"which entries of {read.ref.array.name} are read depends on the values of "
                f"{gather.at.array.name}, so that the traffic has no formula"
            )
        name, variables = _naming(read.ref), variables_in(part.equation, read.over)
        ends = phase != "inference"
        names = entries(name, part.constraints | read.constraints, variables, ends=ends)
        if names is not None:
            for kind, region in touched:
                by_data = chosen and gather.at.array.value is None
                yield Touched("rows" if by_data else kind, *region, (name.array, names))


def _naming(ref: Ref) -> Ref:
    """A reference to an array `named` with one entry for each value of the positions by which `ref`
    reads, so that distinct values are counted as distinct entries: v[g[i, k], j] becomes named[i,
    k, inner, j]. Instead of the gather it has the positions in the index array and the place within
    the gathered block (1 for blocks of 1)."""
    positions, extents = zip(*_places(ref), strict=True)
    by = tuple(p.at.array for p in ref.positions if isinstance(p, Gather))
    return Ref(_named_array(ref.array, by, extents), positions)


def _places(ref: Ref) -> Iterator[tuple[Position, Poly]]:
    """Yield the (position, extent) of each axis of a reference; in place of a gathered axis, those
    of each axis of the index array, then the place, from 1, in the block of rows that an index
    names, and the block's rows: of v[g[i], j], g (m), v (r, d) the pairs (i, m), (1, 1), (j, d)."""
    for position, extent in zip(ref.positions, ref.array.shape, strict=True):
        if isinstance(position, Gather):
            yield from _places(position.at)
            yield position.inner, position.extent
        else:
            yield position, extent


@cache
def _named_array(array: Array, by: tuple[Array, ...], shape: tuple[Poly, ...]) -> Array:
    """The array `named` of `_naming`, one for all gathers of `array` through the arrays `by`."""
    return derived(array, "named", shape=shape)


def _written(part: IterationDomain) -> Exact:
    """The number of entries that an equation writes at the points of a part: one per point."""
    return total(part.variables, part.constraints, ONE)


def _distinct(touched: Iterable[Touched]) -> Elements:
    """Kind -> the number of distinct entries in these regions, exact in sizes. Gathers add to the
    entries that other references read (`placed`) the smaller of two numbers: one entry per position
    value (`named`), and the entries outside of `placed` that they may select (`others`)."""
    by_array: dict[tuple[str, Array], list[Touched]] = {}
    for one in touched:
        by_array.setdefault((one.kind, one.array), []).append(one)
    result = Elements()
    for (kind, array), several in by_array.items():
        axes, placed = axes_of(array), [one.region for one in several if one.named is None]
        others: list[Constraints] = []
        # array of position values -> regions, with an entry for each entry that a gather reads
        names: dict[Array, list[Constraints]] = {}
        for one in several:
            if one.named is not None:
                others += outside(one.region, placed)
                names.setdefault(one.named[0], []).append(one.named[1])
        named = Exact()
        for name, numbers in names.items():
            named = named + union_size(axes_of(name), numbers, ONE)
        if kind == "rows":  # rows of weights that each sequence of the batch chooses
            named = named * BATCH
        number = union_size(axes, placed, ONE) + union_size(axes, others, ONE).least(named)
        result = result + Elements.of(kind, array, number)
    return result


@cache
def _unfused(system: System, phase: str, *, rows: bool = False) -> Elements:
    """Kind -> the number of entries moved without fusion: for each equation of the author (with the
    steps of its composites), the distinct entries read and each entry written; in one-token
    inference also the input's rows that later tokens read, which are written to the state.

    Args:
        rows: weights that data choose (a gather by an index array without values of its own) are of
            kind "rows", one entry for each position value.
    """
    result = Elements()
    domains = by_equation(iteration_domains(system, phase))
    for written in system.written:
        parts = [p for e in dict.fromkeys(written) for p in domains.get(e, ())]
        touched = (t for part in parts for t in _read(system, phase, part, rows=rows))
        result = result + _distinct(touched)
        for part in parts:
            kind = "weights" if part.once or part.joined else "activations"
            result = result + Elements({kind: _written(part)})
    kept = {*system.inputs}
    return result + (_new_state(system, kept) if phase == "inference" else Elements())


@cache
def _compulsory(system: System, phase: str, *, rows: bool = False) -> Elements:
    """Kind -> the number of entries moved at least: the distinct entries read that the phase does
    not compute, the phase's results, and new entries of the state. In one-token inference an array
    may be computed in part: its entries of earlier tokens are read as state, its entries of weights
    alone as weights.

    Args:
        rows: weights that data choose (a gather by an index array without values of its own) are of
            kind "rows", one entry for each position value.
    """
    parts = iteration_domains(system, phase)
    computed = {p.equation.array for p in parts}
    # arrays of which nothing is read from memory: all that a pass over all tokens computes
    written = frozenset(computed if phase != "inference" else ())
    # in memory before the phase: state, inputs, rows, and arrays or weights not computed by it
    touched = [
        one
        for part in parts
        for one in _read(system, phase, part, written, rows=rows)
        if one.kind in ROLES
        or one.array.role == "input"
        or one.array not in computed
        or one.kind == "rows"
        or (one.kind == "weights" and phase == "inference")
    ]
    result = _distinct(touched)
    for part in parts:
        if part.equation.array in system.results(phase):
            of_weights = part.equation.array.role != "output" and (part.once or part.joined)
            kind = "weights" if of_weights else "activations"
            result = result + Elements({kind: _written(part)})
    kept = set(held(system)) if phase == "inference" else set()
    return result + _new_state(system, kept)


@cache
def _kept(system: System, phase: str, *, rows: bool = False) -> Elements:
    """Kind -> the number of distinct entries that a backward pass reads of arrays which the forward
    pass computed; none in other phases.

    Args:
        rows: weights that data choose are of kind "rows", one entry for each position value.
    """
    if phase != "backward":
        return Elements()
    parts = iteration_domains(system, phase)
    computed = frozenset(part.equation.array for part in parts)
    return _distinct(
        one
        for part in parts
        for one in _read(system, phase, part, computed, rows=rows)
        if one.array in system.forward.defining and one.kind != "rows"
    )


@cache
def moved_by(system: System, phase: str, names: tuple[str, ...]) -> Elements:
    """The entries that one kernel moves which executes the equations of the named arrays, from
    which its seconds are predicted: the distinct entries that other equations or earlier tokens
    made, and the results that other equations or later tokens read. Other entries of the kernel's
    own arrays move nothing.

    Args:
        names: arrays as the mixer's author wrote them, one equation each.

    Raises:
        Unanswered: the phase executes no equation of one of these arrays.
    """
    parts = iteration_domains(system, phase)
    inside = [part for part in parts if part.equation.part_of in names]
    for name in names:
        if not any(part.equation.part_of == name for part in inside):
            raise Unanswered(f"no equation of '{name}' is executed in {phase}")
    own = {part.equation.array for part in inside}
    result = _distinct(
        one
        for part in inside
        for one in _read(system, phase, part)
        if one.kind in ROLES or one.array not in own
    )
    left = {read.ref.array for part in parts if part not in inside for read in reads(part.equation)}
    for part in inside:
        if part.equation.array in left or part.equation.array in system.results(phase):
            result = result + Elements({"activations": _written(part)})
    return result + (_new_state(system, own) if phase == "inference" else Elements())


@cache
def _weights(system: System, phase: str) -> Exact:
    """The number of weights (entries) that a phase reads, exact in the sizes: the entries in the
    union of the regions that references read, summed over the arrays that depend on no input or
    context and that the phase does not compute, such as parameters."""
    parts = iteration_domains(system, phase)
    computed = {p.equation.array for p in parts}
    known = tokens(system.forward)
    regions: dict[Array, list[Constraints]] = {}
    for part in parts:
        for read in reads(part.equation):
            array = read.ref.array
            # once a reference reads the whole array, no other adds an entry
            everything = whole(array) in regions.get(array, ())
            of_a_sequence = array in known.from_inputs_or_contexts
            if of_a_sequence or array in computed or everything:
                continue
            around = part.constraints | read.constraints
            variables = variables_in(part.equation, read.over)
            region = entries(read.ref, around, variables, ends=True)
            if region is not None:
                regions.setdefault(array, []).append(region)
    result = Exact()
    for array, found in regions.items():
        result = result + union_size(axes_of(array), found, ONE)
    return result


def _new_state(system: System, arrays: set[Array]) -> Elements:
    """Kind -> the number of entries of all `arrays` that token t of one sequence computes and later
    tokens read, each written once: "cache" for rows of tokens, "state" for a recurrence."""
    result = Elements()
    for array, found in held(system).items() if arrays else ():
        if array not in arrays:
            continue
        regions = [x for _, r in found for x in after_token(r, owners(system).of(array), T - 1)]
        number = union_size(axes_of(array), regions, ONE)
        result = result + Elements.of(role(system, array), array, number)
    return result


def weights_read(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Exact:
    """The number of weights that a phase reads, in elements, as an exact expression in the sizes:
    the distinct entries that depend on no input or context and that the phase does not compute.
    They are the weights in the compulsory traffic, once for all sequences.

    Args:
        phase: `training` (the forward pass), `inference`, `backward` or `training-step`.
        form: the form's name; the default form if None.
        convention: `strict` or `mac` (how sums are counted, no effect here) and rewrites.
        training: options of a backward pass, as in `count`.

    Raises:
        Unanswered: inference of a form that has none.
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return _weights(system, phase)


@about_mixer
def traffic(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Traffic:
    """The numbers of entries that a phase moves, by kind (weights, activations, state), exact in
    the sizes: `compulsory` at least, `unfused` if every equation reads and writes memory.

    Args:
        phase, form, convention, training: as in `count`; "training" is the forward pass.

    Raises:
        Unanswered: inference of a form that has none.
        Unsupported: the number of distinct entries that an equation moves has no formula.
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return Traffic(_compulsory(system, phase), _unfused(system, phase), _kept(system, phase))


def of_part(system: System, phase: str) -> Traffic:
    """The traffic of a part of a network, whose weights data may choose: rows of an embedding by
    tokens, experts by a router."""
    found = (answer(system, phase, rows=True) for answer in (_compulsory, _unfused, _kept))
    return Traffic(*found)


def weights_of_part(system: System, phase: str) -> Exact:
    """The number of weights that a part of a network reads, of kinds "weights" and "rows". Weights
    that data choose ("rows" of a table) count one entry for each position value, at most all."""
    parts = iteration_domains(system, phase)
    computed = frozenset(part.equation.array for part in parts)
    read = (one for part in parts for one in _read(system, phase, part, computed, rows=True))
    found = _distinct(one for one in read if one.kind in ONCE)
    return sum(found.kinds.values(), Exact())


@cache
def read_together(
    system: System, phase: str, shared: frozenset[str] = frozenset()
) -> Mapping[Array, Exact]:
    """A dict: array -> the number of its entries that a part of a network reads, exact in the
    sizes, for the weights that all copies of the part have in common, so that a network counts them
    once: parameters named in `shared`, and constant tables whose entries the mixer gives, as the
    cosines of a rotary embedding."""
    found: dict[Array, list[Touched]] = {}
    for part in iteration_domains(system, phase):
        for one in _read(system, phase, part, rows=True):
            together = one.array.value is not None or one.array.name in shared
            if together and one.kind == "weights":
                found.setdefault(one.array, []).append(one)
    return {array: _distinct(touched).kinds["weights"] for array, touched in found.items()}


def _counted_too_often(shares: Sequence[Share[Any]]) -> Exact:
    """The number of entries of tables in common (`Share.common`) that a sum over all copies of all
    parts counts too often: a table of n entries in 3 copies counts 3n, and should count n."""
    found, once = Exact(), dict[object, Exact]()
    for share in shares:
        for key, number in share.common.items():
            once[key] = number.substitute(share.sizes)
            found = found + once[key] * share.copies
    return found + sum(once.values(), Exact()) * -1


def _of_parts(shares: Sequence[Share[Traffic]]) -> Traffic:
    """The traffic of a network from the answers of its parts (`shares`). At least, weights move
    once for each set, tables in common once, and other entries once a run; unfused, every run moves
    its weights. The network adds `kept`."""
    compulsory, unfused = Elements(), Elements()
    for share in shares:
        compulsory = compulsory + share.answer.compulsory.in_network(share, share.copies)
        unfused = unfused + share.answer.unfused.in_network(share, share.runs)
    return Traffic(compulsory + Elements({"weights": _counted_too_often(shares) * -1}), unfused)


@over_parts(_of_parts)
def traffic_of(about: Answers) -> Traffic:
    """The traffic of a form in a phase under a convention."""
    return traffic(about.mixer, about.phase, about.form, about.convention)


def _of_weights(shares: Sequence[Share[Exact]]) -> Exact:
    """The weights that a network reads: each set once, tables in common once."""
    every = sum((x.answer.substitute(x.sizes) * x.copies for x in shares), Exact())
    return every + _counted_too_often(shares) * -1


@over_parts(_of_weights)
def weights_of(about: Answers) -> Exact:
    """The weights that a form reads in a phase under a convention."""
    return weights_read(about.mixer, about.phase, about.form, about.convention)


def moved(case: Case, kind: str) -> Exact:
    """The traffic of b sequences in bytes, or in elements where the case has no types. `kind` is
    `compulsory`, `unfused` or `least`."""
    elements: Elements = getattr(case.about.of(traffic_of), kind)
    return elements.in_bytes(case.dtypes, case.known) if case.dtypes else elements.exact


def _tallied(kind: str) -> Callable[[Answers, Mapping[str, int]], object]:
    """A function of (answers, sizes) that gives the traffic `kind` (`compulsory` or `unfused`), to
    compare with an instrumented execution: kind of entries -> elements, zeros left out, where
    "cache" and "state" are added up as "state"; in phases with gradients the sum of all kinds."""

    def derived(about: Answers, sizes: Mapping[str, int]) -> object:
        """The elements that the traffic `kind` moves at given sizes: in phases without gradients a
        dict, kind of entries -> number, without zeros; else the sum of all kinds."""
        elements: Elements = getattr(about.of(traffic_of), kind)
        found: dict[str, int] = {}
        for name, number in elements.at(**sizes).items():
            shown = "state" if name in ROLES else name  # "cache" and "state" together
            found[shown] = found.get(shown, 0) + number
        found = {name: number for name, number in sorted(found.items()) if number}
        return sum(found.values()) if about.phase in TRAINING_STEP else found

    return derived


def _for_one_token(cases: Sequence[Case]) -> bool:
    """`Figure.usual` of a column that default tables of one-token inference show."""
    return all(case.phase == "inference" for case in cases)


def gather_notes(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table of traffic: how entries that data choose are counted, if a case
    has any. `shown` (the columns) is not used: all notes take it."""
    if any(case.phase != "inference" and case.gathers for case in cases):
        yield (
            "traffic: a gather moves one entry per position, at most every entry that may be "
            "selected"
        )


OF_TABLES = (
    "weights read: with entries of tables that are no parameters, such as the cosines and sines of "
    "a rotary embedding"
)


def _of_tables(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the note below a table with weights if a case reads entries of a buffer. `shown` (the
    columns) is not used: all notes take it."""
    parts = [part for case in cases for part in getattr(case.about, "parts", (case.about,))]
    if any(part.mixer.buffers for part in parts):
        yield OF_TABLES


TRAFFIC = Question(
    "traffic",
    "Memory traffic",
    (
        Figure(
            "weights",
            "each distinct weight once for all sequences",
            lambda case: case.about.of(weights_of),
            header="weights read\n(elements)",
            key="weights_elements",
            unit="elements",
            usual=_for_one_token,
            notes=(_of_tables,),
        ),
        Figure(
            "weights_bytes",
            "the weights that are read, in bytes",
            lambda case: in_bytes(case, "weights", case.about.of(weights_of)),
            header="weights\nread (B)",
            heading="weights read (bytes)",
            unit="bytes",
            within="weights",
            notes=(_of_tables,),
        ),
        Figure(
            "traffic",
            "inputs, weights and state read once, results and new state written once",
            lambda case: moved(case, "compulsory"),
            header="compulsory\ntraffic (B)",
            heading="compulsory traffic (bytes)",
            key="traffic.compulsory",
            unit="bytes",
            per_token=True,
            claimed=True,
            notes=(gather_notes,),
        ),
        Figure(
            "unfused",
            "every equation reading its operands and writing its result",
            lambda case: moved(case, "unfused"),
            header="unfused\ntraffic (B)",
            heading="unfused traffic (bytes)",
            key="traffic.unfused",
            unit="bytes",
            per_token=True,
            claimed=True,
            notes=(gather_notes,),
        ),
    ),
    traffic,
    (
        Tally("compulsory traffic", _tallied("compulsory")),
        Tally("unfused traffic", _tallied("unfused")),
    ),
)
