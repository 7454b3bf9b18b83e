"""Lowering: the equations that a form stands for, with composites expanded under the rewrites.

A composite is an operation of several steps, such as softmax. A file of equations names it; `lower`
expands it, so that a convention such as `safe-softmax` applies to every mixer. Each resulting index
runs over one range. Under `dense` and `dense=ROWS`, entries outside an array are zeros that are
multiplied; `padded` first copies the array between zeros: these moves are free in the forward pass,
and their gradients are computed and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import pairwise

from costmodel.errors import EquationError, Unsupported
from costmodel.language.equations import Equation, Form, System, at_its_line
from costmodel.language.indices import Index, UnionIndex, one_by_one, outer_first
from costmodel.language.macros import WRITTEN
from costmodel.language.macros.norms import MACROS as NORMS
from costmodel.language.nodes import (
    BRENT_KUNG,
    MERGE_SORT,
    Array,
    Composite,
    Constant,
    Div,
    Flat,
    FreeScale,
    Mul,
    Node,
    Position,
    Reduce,
    Ref,
    Scan,
    Select,
    derived,
    names_in,
    position_value,
    refs,
    rewrite,
    substitute,
    walk,
    with_entries,
)
from costmodel.program.chunks import by_chunk_and_place, reads_chunk_number, with_chunks
from costmodel.program.conventions import (
    DENSE,
    LISTED,
    ONLINE,
    REWRITES,
    SCALES,
    computes_masked,
    rows_of_block,
)
from costmodel.program.dependence import holes
from costmodel.program.online import in_blocks_of_keys
from costmodel.program.recurrences import Block, blocks, loops, row_axes
from costmodel.symbolic.constraints import Constraints, implied, nonnegative
from costmodel.symbolic.polynomial import Poly, call, is_index


@lru_cache(maxsize=1024)
def lower(form: Form, rewrites: tuple[str, ...] = ()) -> System:
    """The equations that a form stands for under the named rewrites: composites (operations of
    several steps, such as softmax) written out, scores scaled, chunk numbers of rows replaced by
    indices, and one equation per range of a union. Then the rewrites of whole systems apply:
    `dense` or `dense=ROWS`, `online=ROWS`, the paddings, `zero-state`, `unread-rows`.

    Raises:
        ValueError: an unknown rewrite, or two scales; the message lists the possible names.
        EquationError: a composite inside an expression, or the chunk number of a reduction index.
        Unsupported: a row's number of blocks (`online=ROWS`) has no formula.
    """
    for name in rewrites:
        if name not in REWRITES:
            raise ValueError(f"unknown rewrite '{name}': expected one of {LISTED}")
    _scale_name(rewrites)
    given = _by_each_head(form) if "repeated-rows" in rewrites else form.equations
    chunked = any(map(reads_chunk_number, given))
    axes = row_axes(System(form.mixer, form.name, tuple(given))) if chunked else {}
    written = (
        part
        for equation in given
        for part in _written_out(
            equation,
            equation.place,
            _rewrites_read(equation) & {*rewrites},
            axes.get(equation.array),
        )
    )
    masked = next((name for name in rewrites if computes_masked([name])), "")
    keys = max((rows_of_block(name, ONLINE) for name in rewrites), default=0)
    system = _one_by_one(
        form, tuple(written), masked, keys, from_zero=bool(keys) and "zero-state" in rewrites
    )
    if "padded" in rewrites or "padded-rows" in rewrites:
        system = padded(system, rows="padded-rows" in rewrites)
    system = _zero_state(system) if "zero-state" in rewrites else system
    return _zero_state(system, unread=True) if "unread-rows" in rewrites else system


@cache
def effective(form: Form) -> frozenset[str]:
    """The rewrites of a forward pass that may change an equation of a form, `zero-state` also where
    it changes one after `dense`; none if the form is not lowered. Paddings and numbers of ROWS are
    not tried. A claim that disagrees is tried under these rewrites alone."""
    found = frozenset[str]().union(*map(_rewrites_read, form.equations)) - {SCALES[0]}
    of_systems: list[tuple[str, ...]] = [
        ("dense",), ("zero-state",), ("dense", "zero-state"), ("repeated-rows",), ("unread-rows",),
    ]  # fmt: skip
    with suppress(EquationError, Unsupported):
        return found | {
            names[-1]
            for names in of_systems
            if lower(form, names).equations != lower(form, names[:-1]).equations
        }
    return frozenset()


@lru_cache(maxsize=1024)
def _one_by_one(
    form: Form, equations: tuple[Equation, ...], masked: str, keys: int = 0, from_zero: bool = False
) -> System:
    """The system of these equations of a form, one equation per range of a union, and with separate
    axes for chunk and place. `masked`, the rewrite `dense` or `dense=ROWS` or "", says how far
    every causal upper bound and every window is widened; `keys` is the number of keys in a block of
    a softmax, or 0; with `from_zero` its sums start from 0."""
    system = wide = System(form.mixer, form.name, equations)
    if masked:
        wide = _dense(system) if masked == DENSE else _in_blocks(system, rows_of_block(masked))
    wide = in_blocks_of_keys(wide, keys, from_zero=from_zero) if keys else wide
    if (masked or keys) and wide.equations == equations:  # one system, its answers cached once
        return _one_by_one(form, equations, "")
    return by_chunk_and_place(_range_by_range(wide))


@lru_cache(maxsize=4096)
def _rewrites_read(equation: Equation) -> frozenset[str]:
    """The names of the rewrites that may change what `_written_out` makes of an equation."""
    composites = [node for node, _ in walk(equation.value) if isinstance(node, Composite)]
    scales = SCALES if any(node.name == "scaled" for node in composites) else ()
    match equation.value:
        case Composite(name) if name in WRITTEN:
            return frozenset((*WRITTEN[name].rewrites, *scales))
        case Select(sorts=True):
            return frozenset(("sort=merge", *scales))
        case Scan():
            return frozenset(("scan=brent-kung", *scales))
        case _:
            return frozenset(scales)


@lru_cache(maxsize=4096)
def _written_out(
    equation: Equation, place: str, rewrites: frozenset[str], axis: int | None
) -> Sequence[Equation]:
    """The equations that an equation stands for: its composite (an operation of several steps, such
    as softmax) expanded, its scores scaled, its chunk numbers of rows replaced by indices.
    `rewrites`: those in `_rewrites_read`; `place`: the equation's file and line, so that the cache
    keeps equal equations at different lines apart; `axis`: the row axis of an equation of a loop.

    Raises:
        EquationError: a composite inside an expression that must be a whole right-hand side, or the
            chunk number of a reduction index.
    """
    match equation.value:
        case Composite(composite) as value if composite in WRITTEN:
            with at_its_line(equation):
                parts = WRITTEN[composite].write(equation, value, tuple(rewrites))
        case _:
            parts = [equation]
    for inner in (found for part in parts for found, _ in walk(part.value)):
        if isinstance(inner, Composite) and inner.name in WRITTEN:
            raise EquationError(
                f"{equation.name}: {inner.name} must be the whole right side: define its "
                "result as an array first"
            )
    name = _scale_name(rewrites)
    if name.startswith("scale=root"):
        each = name == "scale=root-each"
        parts = [one for part in parts for one in _with_scaled_sides(part, each=each)]
    scaled = partial(_with_scale, _SCALES[name])
    made = (replace(part, value=rewrite(part.value, scaled)) for part in parts)
    row = None if axis is None else equation.positions[axis]
    return [with_chunks(_by_algorithm(part, rewrites), row) for part in made]


def _by_each_head(form: Form) -> Sequence[Equation]:
    """The equations of a form under `repeated-rows`: an array of norms or scaled rows of g groups
    that every reader reads once per head gets one more axis, the n/g heads of a group. Q[j, i, p],
    which S[j, o, i] reads, j in 1..g and o in 1..n/g, becomes Q'[j, i, p, o]."""
    equations, waiting = [*form.equations], True
    while waiting:
        waiting = False
        for array in dict.fromkeys(e.array for e in equations if _norms_or_scales(e.value)):
            read = [
                (e, ref, _head_beside(e, ref))
                for e in equations
                for ref, _ in refs(e.value)
                if ref.array is array
            ]
            heads = [head for _, _, head in read if head is not None]
            if not heads or len(heads) < len(read):
                continue
            waiting, each = True, Index(f"{heads[0].name}'", (ONE,), heads[0].upper)
            made = derived(array, "repeated", "each", shape=(*array.shape, *each.upper))
            at: dict[Equation, dict[Ref, Ref]] = {}
            for e, ref, head in read:
                assert head is not None
                at.setdefault(e, {})[ref] = Ref(made, (*ref.positions, head.as_poly()))
            changed = []
            for e in equations:
                e_read = replace(e, value=with_entries(e.value, at[e])) if e in at else e
                if e.array is array:
                    e_read = replace(
                        e_read, array=made, positions=(*e.positions, each.as_poly()),
                        indices=(*e.indices, each),
                    )  # fmt: skip
                changed.append(e_read)
            equations = changed
    return equations


def _norms_or_scales(value: Node) -> bool:
    """Whether a right side is a norm of a row, or an entry of a row times a scale."""
    if not isinstance(value, Composite):
        return False
    return value.name in NORMS or (value.name == "scaled" and isinstance(value.body, Ref))


def _head_beside(equation: Equation, ref: Ref) -> Index | None:
    """The free index o in 1..n/g of an equation, which numbers the heads of a group, if a reference
    is read at the group's index j in 1..g and not at o: Q[j, i, p] by S[j, o, i]. Else None."""
    names = {*names_in(ref.positions)}
    for group in equation.indices:
        if group.as_poly() in ref.positions and len(group.upper) == 1:
            for head in equation.indices:
                own = head.atom not in names and len(head.upper) == 1
                if own and group.upper[0] * head.upper[0] == Poly.atom("n"):
                    return head
    return None


def _with_scaled_sides(equation: Equation, *, each: bool) -> Iterator[Equation]:
    """Yield, for scores Z[i, j], products Q[i, c] K[j, c] or their sum over c, divided by the root
    of a size `by`, equations of copies Q' and K' divided by the fourth root of `by`, then Z[i, j] =
    sum of Q'[i, c] K'[j, c]; any other equation unchanged. `each`: each query has its own copy of
    the keys, K'[i, j, c], as in torch token by token (`SCALES`)."""
    summed: Callable[[Node], Node]
    match equation.value:
        case Composite("scaled", Reduce(kind, Mul(Ref() as left, Ref() as right), over), by=by):
            summed = lambda product: Reduce(kind, product, over)  # noqa: E731  # one per case
        case Composite("scaled", Mul(Ref() as left, Ref() as right), by=by):
            summed = lambda product: product  # noqa: E731
        case _:
            yield equation
            return
    copies = []
    for step, side in (("left", left), ("right", right)):
        of = side.array
        indices: Sequence[Index] = [
            Index(f"p{k}", (ONE,), (extent,)) for k, extent in enumerate(of.shape)
        ]
        read = side.positions
        at: tuple[Position, ...] = tuple(index.as_poly() for index in indices)
        axes: Sequence[int] = ()
        if each and (own := _of_the_query(equation, left, right, side)):
            (axes, indices), at = own, read
        extents = tuple(equation.array.shape[axis] for axis in axes)
        queries = tuple(equation.positions[axis] for axis in axes)
        copy = derived(equation.array, "scaled", step, shape=(*extents, *of.shape))
        value = Mul(Ref(of, at), Constant(by, Fraction(-1, 2)))  # by**(-1/4)
        yield Equation(copy, (*queries, *at), value, tuple(indices), equation.whole, equation.place)
        copies.append(Ref(copy, (*queries, *read)))
    yield replace(equation, value=summed(Mul(*copies)))


def _of_the_query(
    scores: Equation, left: Ref, right: Ref, side: Ref
) -> tuple[Sequence[int], Sequence[Index]] | None:
    """For the keys of an equation of scores, Z[i, j] of Q[i, c] and K[j, c]: the axes of the scores
    that number queries alone (here the first), and the indices of a copy of the keys for each of
    them, (i, j, c). None if `side` (of `left` and `right`) holds the queries, whose own index
    stands first in the scores, or is read at positions that are no indices."""
    other = right if side is left else left
    (mine, others) = ({*names_in(ref.positions)} for ref in (side, other))
    lone = {index.as_poly(): index.atom for index in _all_indices(scores)}
    axes = [k for k, place in enumerate(scores.positions) if {*names_in([place])} <= others - mine]
    own = [k for k, place in enumerate(scores.positions) if {*names_in([place])} <= mine - others]
    if not axes or (own and own[0] < axes[0]) or not {*side.positions} <= {*lone}:
        return None
    names = {name for k in axes for name in names_in([scores.positions[k]])} | mine
    return axes, outer_first([index for index in _all_indices(scores) if index.atom in names])


def _by_algorithm(equation: Equation, rewrites: frozenset[str]) -> Equation:
    """The equation; one that sorts or scans, by the algorithm that the rewrites name."""
    match equation.value:
        case Select() as value if "sort=merge" in rewrites:
            return replace(equation, value=replace(value, kind=MERGE_SORT))
        case Scan() as value if "scan=brent-kung" in rewrites:
            return replace(equation, value=replace(value, kind=BRENT_KUNG))
        case _:
            return equation


def _scale_name(rewrites: Iterable[str]) -> str:
    """The name of the rewrite that says how scaled scores are computed: the one named in
    `rewrites`, else the first of `SCALES`; ValueError if several are named."""
    chosen = [name for name in rewrites if name in SCALES]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(map(repr, chosen))} exclude each other: choose one")
    return chosen[0] if chosen else SCALES[0]


_SCALES: Mapping[str, Callable[[Composite], Node]] = {
    "scale=per-score": lambda c: Div(c.body, Constant(c.by, 1)),
    "scale=mul": lambda c: Mul(c.body, Constant(c.by, -1)),
    "scale=folded": lambda c: FreeScale(c.body, Constant(c.by, -1)),
    # scores that are no products of two entries
    **dict.fromkeys(SCALES[-2:], lambda c: Mul(c.body, Constant(c.by, -1))),
}


def _with_scale(scale: Callable[[Composite], Node], node: Node) -> Node:
    """A node, with scores over the root of a size (`scaled`) expanded by `scale`."""
    match node:
        case Composite("scaled"):
            return scale(node)
        case _:
            return node


def _range_by_range(system: System) -> System:
    """The system with one equation per range, where a free index runs over a union of ranges."""
    return replace(
        system,
        equations=tuple(
            replace(equation, indices=indices)
            for equation in system.equations
            for indices in one_by_one(equation.indices)
        ),
    )


def _dense(system: System) -> System:
    """The system with every causal upper bound and every window widened to the full axis (j <= i
    becomes j <= l). An index over the places of a chunk (e in a flattened position (q-1)*C + e, or
    an index with the same upper bound as e) is widened to all rows of its chunk, of which the last
    may have fewer. A sum over rows of its own loop keeps its upper bounds. A gap between two ranges
    of a union is closed, unless the widened ranges still leave the gap between them."""
    every = {i.atom: i for equation in system.equations for i in _all_indices(equation)}
    by_atom = {
        atom: index.hull if isinstance(index, UnionIndex) else index
        for atom, index in every.items()
    }
    rows = _over_places(system, by_atom)
    together = {atom for i in every.values() if i.beside for atom in (i.atom, i.beside)}
    axes = [
        (position_value(position), extent)
        for equation in system.equations
        for position, extent in zip(equation.positions, equation.array.shape, strict=True)
    ]

    def widest(index: Index) -> Index:
        """The index in its wide range; if one range is widened, within the axes that it writes."""
        wide = _joined(index, [_widened(p, by_atom, rows) for p in index.pieces], together)
        if isinstance(index, UnionIndex) or wide.upper == index.upper:
            return wide
        ends = dict.fromkeys(extent for at, extent in axes if at == Poly.atom(index.atom))
        over = [e for e in ends if not any(nonnegative(e - up) for up in wide.upper)]
        return replace(wide, upper=(*wide.upper, *over)) if over else wide

    wide = {atom: widest(index) for atom, index in every.items()}
    own = dict(pair for loop in loops(system) for pair in _over_own_rows(loop, wide))

    def widened(equation: Equation) -> Equation:
        """The equation with each index in its wide range; in sums over rows of its own loop, an
        index keeps its upper bounds (`_over_own_rows`)."""
        kept = own.get(equation, {})
        return replace(
            equation,
            indices=tuple(wide[i.atom] for i in equation.indices),
            value=rewrite(equation.value, lambda n: n, lambda i: kept.get(i, wide[i.atom])),
        )

    return replace(system, equations=tuple(map(widened, system.equations)), beyond=True)


def _over_places(system: System, by_atom: Mapping[str, Index]) -> Set[str]:
    """The atoms of the indices over the places of a chunk: e of (q-1)*C + e, and those of `by_atom`
    (atom -> index) with the same upper bounds as such an index."""
    rows = {
        atom
        for equation in system.equations
        for positions in (equation.positions, *(ref.positions for ref, _ in refs(equation.value)))
        for position in positions
        if isinstance(position, Flat)
        for atom in position.inner.letters
    }
    ends = {by_atom[atom].upper for atom in rows if atom in by_atom}
    return rows | {atom for atom, index in by_atom.items() if index.upper in ends}


def _in_blocks(system: System, rows: int) -> System:
    """The system with every causal upper bound and every window widened to the ends of a block of
    `rows` rows: j <= i becomes j <= the last row of i's block, 16*((i - 1)//16) + 16, and j <= l.
    Loops, and indices over a union of ranges, keep their bounds."""
    in_loops = {equation for loop in loops(system) for equation in loop}

    def widened(equation: Equation) -> Equation:
        """The equation with each bound that names a free index i taken at the first or last row of
        i's block (`_to_ends_of_block`); an equation of a loop is unchanged."""
        if equation in in_loops:
            return equation
        free = {index.atom: index for index in equation.indices}
        wide = {
            index.atom: _to_ends_of_block(index, free, rows) for index in _all_indices(equation)
        }
        indices = tuple(wide[index.atom] for index in equation.indices)
        value = rewrite(equation.value, lambda node: node, lambda index: wide[index.atom])
        return with_chunks(replace(equation, indices=indices, value=value))

    return replace(system, equations=tuple(map(widened, system.equations)), beyond=True)


def _to_ends_of_block(index: Index, free: Mapping[str, Index], rows: int) -> Index:
    """The index with each bound that names one of the `free` indices (atom -> index), such as i,
    taken at the first or the last row of i's block of `rows` rows, whichever gives the wider range,
    and within the range of i: i - 7..i becomes 16*((i - 1)//16) - 6..min(16*((i - 1)//16) + 16, l).
    A union of ranges is unchanged."""
    if isinstance(index, UnionIndex):
        return index

    def ends(bound: Poly, *, upper: bool) -> list[Poly]:
        """The bounds in place of one: at the first row of the block, or at its last row and at the
        last row of all; the bound itself unless it names exactly one free index of one range."""
        named = [free[atom] for atom in bound.letters if atom in free]
        slope = bound.coefficient(named[0].atom).constant() if len(named) == 1 else None
        if not slope or isinstance(named[0], UnionIndex):
            return [bound]
        atom, row = named[0].atom, named[0].as_poly()
        before = call("floor_div", row - 1, Poly.of(rows)) * rows
        if (slope > 0) != upper:
            return [bound.substitute({atom: before + 1})]
        return [bound.substitute({atom: last}) for last in (before + rows, *named[0].upper)]

    lower = [end for bound in index.lower for end in ends(bound, upper=False)]
    upper = [end for bound in index.upper for end in ends(bound, upper=True)]
    return replace(index, lower=tuple(lower), upper=tuple(dict.fromkeys(upper)))


def _over_own_rows(
    loop: Sequence[Equation], wide: Mapping[str, Index]
) -> Iterator[tuple[Equation, Mapping[Index, Index]]]:
    """Yield each equation of a loop, as (equation, {index of a sum over the loop's rows: the index
    with its lower bounds in `wide`}). Its upper bounds stay, such as j <= i - 1, as later rows have
    not been computed."""
    arrays = {equation.array for equation in loop}
    for equation in loop:
        over = (
            index
            for ref, indices in refs(equation.value)
            if ref.array in arrays
            for index in indices
            if index.atom in names_in(ref.positions)
        )
        yield equation, {i: replace(i, lower=wide[i.atom].lower) for i in over}


@lru_cache(maxsize=1024)
def _zero_state(system: System, *, unread: bool = False) -> System:
    """The system without the equations for row 1 of every recurrence, and with those for later rows
    starting at row 1: of S[1] = x[1] and S[i] = g[i]*S[i-1] + x[i], the second, from i = 1. There
    it reads row 0, zeros outside the array (`System.beyond`). An array without row 1 that the
    recurrence reads at the row that it writes, such as the gate g, gets row 1. With `unread`, the
    recurrence keeps its equations: g[1] is computed, as by a module, and S[1] reads no gate."""
    started = {e: _from_row_1(block, e) for block in blocks(system) for e in block.equations}

    def so_far() -> System:
        """The system with `started[e]` in place of each equation e, without e where it is None."""
        kept = (started[equation] for equation in system.equations)
        return replace(system, equations=tuple(filter(None, kept)), beyond=True)

    # an array that gets a row 1 may read further arrays without row 1
    waiting = [(old, new) for old, new in started.items() if new is not None and new is not old]
    while waiting:
        old, new = waiting.pop()
        for gate, begun in _gates_of_row_1(so_far(), old, new):
            if started[gate] is gate and begun is not gate:
                started[gate] = begun
                waiting += [(gate, begun)] if begun else []
    if unread:
        started |= {e: e for loop in loops(system) for e in loop}
    if all(new is old for old, new in started.items()):
        return system
    return replace(so_far(), beyond=system.beyond) if unread else so_far()


def _from_row_1(block: Block, equation: Equation) -> Equation | None:
    """An equation of a loop over tokens, with row 1 added to its rows; None for an equation of row
    1 alone. An equation outside of loops over tokens is returned unchanged."""
    if not any("l" in last.letters for last in block.last_rows.values()):
        return equation
    return _begun_at(ONE, equation, block.row(equation))


def _begun_at(first: Poly, equation: Equation, row: Poly) -> Equation | None:
    """An equation whose `row` (a position on its left side) begins one after `first`, begun at
    `first`; None for an equation of the row `first` alone. An equation that begins at another row
    is returned unchanged."""
    if implied(equation.domain, first - row):
        return None

    def begun(index: Index) -> Index:
        # the value of the index at which `row` is `first`: 0 for row i + 1 and first 1
        start = index + first - row
        lower = tuple(start if bound == start + 1 else bound for bound in index.lower)
        return replace(index, lower=lower) if lower != index.lower else index

    indices = tuple(begun(i) if i.atom in row.letters else i for i in equation.indices)
    return replace(equation, indices=indices) if indices != equation.indices else equation


def _gates_of_row_1(
    system: System, old: Equation, new: Equation
) -> Iterator[tuple[Equation, Equation | None]]:
    """Yield (equation, changed equation) for the equations of the gates of `new`, which is `old`
    extended to row 1. A gate is an array that `new` reads at its own row (or chunk), such as g in
    S[i] = g[i]*S[i-1] + x[i], and that lacks entries that are read, here g[1]. A gate's equation
    from row 2 on begins at row 1; one of row 1 alone is then left out (None)."""
    (row,) = (i for i, before in zip(new.indices, old.indices, strict=True) if i != before)
    for ref, _ in refs(new.value):
        for axis, position in enumerate(ref.positions):
            if _row_or_chunk(position) == row.as_poly() and holes(system, ref.array):
                for equation in system.defining[ref.array]:
                    if (place := _row_or_chunk(equation.positions[axis])) is not None:
                        yield equation, _begun_at(row.lower[0], equation, place)


def _row_or_chunk(position: Position) -> Poly | None:
    """The number of a row, or of a chunk where a position is flattened; None for a gather."""
    if isinstance(position, Flat):
        return position.outer
    return position if isinstance(position, Poly) else None


def _all_indices(equation: Equation) -> Iterator[Index]:
    """Yield the free and the bound indices of an equation, each with all of its ranges."""
    yield from equation.indices
    for node, _ in walk(equation.value):
        yield from node.binders


def _widened(index: Index, by_atom: Mapping[str, Index], rows: Set[str]) -> Index:
    """The index without causal upper bound and without window: bounds that name an outer index are
    dropped where a bound in sizes alone remains. Without such a bound, each bound is taken at the
    end of the (widened) outer index where it leaves the wider range: j <= i becomes j <= l, and
    j <= l - i + 1 becomes j <= l. An index in `rows`, over the places of a chunk, keeps the bounds
    that name its chunk: the chunk's end. `by_atom`: atom -> index, of a union its hull."""
    among = {*(rows if index.atom in rows else by_atom)} & {*by_atom}

    def outward(bounds: Sequence[Poly], *, upper: bool) -> tuple[Poly, ...]:
        if alone := [bound for bound in bounds if not bound.letters & among]:
            return tuple(alone)
        return tuple(
            dict.fromkeys(end for b in bounds for end in taken(b, b.letters & among, upper))
        )

    def taken(bound: Poly, outer: Set[str], upper: bool) -> Sequence[Poly]:
        """The bounds in place of an upper bound (or, unless `upper`, a lower one), without the
        indices `outer`: each is replaced by the end of its wide range at which the bound leaves
        more values, the innermost first (the place of a row before its chunk)."""
        if not outer:
            return [bound]
        around = frozenset().union(*(end.letters for a in outer for end in by_atom[a].ends))
        atom = min(outer - around, default=min(outer))
        rises = not nonnegative(bound - bound.substitute({atom: Poly.atom(atom) + 1}))
        wide = _widened(by_atom[atom], by_atom, rows)
        ends = wide.upper if rises is upper else wide.lower
        without = (bound.substitute({atom: end}) for end in ends)
        return [end for one in without for end in taken(one, (outer - {atom}) & one.letters, upper)]

    lower, upper = outward(index.lower, upper=False), outward(index.upper, upper=True)
    return replace(index, lower=lower, upper=upper)


def _joined(index: Index, pieces: Sequence[Index], together: Set[str]) -> Index:
    """An index over its widened ranges. A union, if its ranges are paired with those of another
    index (then it is in `together`), or if it is proven that no two ranges overlap and not proven
    that all of them adjoin; else one range from the first lower to the last upper bound."""
    if index.atom in together:
        return UnionIndex(index.name, (), (), tuple(pieces), index.beside)
    # between two ranges, the number of values that each pair of their ends leaves out, if known
    spaces = [
        [(after - end - 1).constant() for end in one.upper for after in two.lower]
        for one, two in pairwise(pieces)
    ]
    apart = all(any(space is not None and space >= 0 for space in each) for each in spaces)
    if apart and any(each != [0] for each in spaces):
        return UnionIndex(index.name, (), (), tuple(pieces))
    return Index(index.name, pieces[0].lower, pieces[-1].upper)


ONE = Poly.of(1)


Window = tuple[int, Poly, Poly]
"""(axis, first position read, last position read), of reads that reach outside of an array."""


def padded(system: System, *, rows: bool = False) -> System:
    """The system with a padded copy of an array (the array between zeros) for each reference that
    reads outside of the array, so that each reference reads entries that exist.

    Args:
        rows: where a sum reads a weight outside its range, as a convolution does, pad the rows and
            not the weight: the sum is rewritten to run over the entries of the weight.
    """
    given = _depending_on_input(system) if rows else frozenset()
    equations = [_summing_over_weight(e, given) if rows else e for e in system.equations]
    pads = _Pads()
    changed = []
    for equation in equations:
        value = _between_zeros(equation, pads)
        changed += [*pads.new(), replace(equation, value=value)]
    return replace(system, equations=tuple(changed))


@dataclass
class _Pads:
    """The padded copies of arrays (`known`), and equations for `new` to return (`waiting`)."""

    known: dict[tuple[Array, Window], Array] = field(default_factory=dict)
    waiting: list[Equation] = field(default_factory=list)

    def new(self) -> list[Equation]:
        """The equations of the copies made since the last call."""
        found, self.waiting = self.waiting, []
        return found

    def array(self, of: Array, window: Window) -> Array:
        """The padded copy (with zeros around) of an array, whose axis holds the positions of the
        window (axis, first, last), from first to last; made at the first call."""
        if (of, window) not in self.known:
            taken = sum(known is of for known, _ in self.known)
            self.known[of, window] = self._made(of, window, f"pad{taken or ''}")
        return self.known[of, window]

    def _made(self, of: Array, window: Window, step: str) -> Array:
        """A new padded copy of an array, named by `step` (x.pad), with the positions first..last of
        the window (axis, first, last). Three equations join `waiting`: of the array's entries, of
        the zeros before them and of those after them, which may be none. For x of l rows and the
        window (0, -1, l): zeros in rows 1..2, x in rows 3..l + 2, and a range without rows."""
        axis, first, last = window
        shape = (*of.shape[:axis], last - first + 1, *of.shape[axis + 1 :])
        made = derived(of, "padding", step, shape=shape)
        # position q of the copy is position q + first - 1 of the array
        others = [Index(f"p{k}", (ONE,), (extent,)) for k, extent in enumerate(of.shape)]
        inside = Index("q", (ONE, 2 - first), (last - first + 1, of.shape[axis] + 1 - first))
        # a window that may end before the array, or begin behind it, holds zeros alone there
        ends = (1 - first,) if implied(frozenset(), last) else (1 - first, last - first + 1)
        starts: tuple[Poly, ...] = (of.shape[axis] + 2 - first,)
        if not implied(frozenset(), starts[0] - 1):
            starts = (ONE, *starts)
        before, behind = Index("q", (ONE,), ends), Index("q", starts, (last - first + 1,))
        for index in (inside, before, behind):
            places = [i.as_poly() for i in others]
            value: Node = Constant(Poly())
            if index is inside:
                source = [*places[:axis], index.as_poly() + first - 1, *places[axis + 1 :]]
                value = Ref(of, tuple(source))
            positions = (*places[:axis], index.as_poly(), *places[axis + 1 :])
            indices = (*others[:axis], index, *others[axis + 1 :])
            self.waiting.append(Equation(made, positions, value, indices, made))
        return made


def _between_zeros(equation: Equation, pads: _Pads) -> Node:
    """The right-hand side, with reads outside of an array replaced by reads of a padded copy, which
    `pads` makes: x[i - 2] for i in 1..l reads x.pad[i], with x.pad[1..2] zero."""
    at: dict[Ref, Ref] = {}
    for node, over in refs(equation.value):
        indices = (*equation.indices, *over)
        ref = node
        for window in _windows(node, indices):
            axis, first, _ = window
            place = ref.positions[axis]
            assert isinstance(place, Poly)  # windows skip gathers and flattened positions
            # position `first` of the array is position 1 of the copy
            positions = (*ref.positions[:axis], place - first + 1, *ref.positions[axis + 1 :])
            ref = Ref(pads.array(ref.array, window), positions)
        at[node] = ref
    return with_entries(equation.value, at)


def _windows(ref: Ref, indices: tuple[Index, ...]) -> Iterator[Window]:
    """Yield (axis, first position, last position) for the axes along which a reference may read
    outside of its array. Axes with a gather, x[p[i]], or a flattened position, (q - 1)*C + e, or
    without known ends, are skipped. `indices`: those of the equation and of the sums around the
    reference."""
    around: Constraints = frozenset().union(*(index.constraints for index in indices))
    for axis, (place, extent) in enumerate(zip(ref.positions, ref.array.shape, strict=True)):
        if isinstance(place, Poly) and not _within(place, extent, around):
            ends = _ends(place, indices)
            if ends is not None:
                yield axis, *ends


def _within(place: Position, extent: Poly, around: Constraints) -> bool:
    """Whether a position is proven to lie in 1..extent."""
    assert isinstance(place, Poly)
    return implied(around, place - 1) and implied(around, extent - place)


def _ends(place: Poly, indices: tuple[Index, ...]) -> tuple[Poly, Poly] | None:
    """The least and largest value of a position: (2 - l, l) of i - j + 1 for i and j in 1..l; None
    unless each of its indices has exactly one lower and one upper bound in sizes."""
    first = last = place
    for index in indices:
        slope = place.coefficient(index.atom).constant()
        if not slope:
            continue
        low, high = map(_in_sizes, (index.lower, index.upper))
        if low is None or high is None:
            return None
        small, large = (low, high) if slope > 0 else (high, low)
        first, last = first.substitute({index.atom: small}), last.substitute({index.atom: large})
    return first, last


def _in_sizes(bounds: Iterable[Poly]) -> Poly | None:
    """The only bound without indices; None if there are none or several."""
    found = [bound for bound in bounds if not any(map(is_index, bound.letters))]
    return found[0] if len(found) == 1 else None


def _depending_on_input(system: System) -> frozenset[Array]:
    """The arrays that depend on an input or a context, directly or through others."""
    found = {a for e in system.equations for a in e.value.arrays if a.role in ("input", "context")}
    while (
        more := {e.array for e in system.equations if not found.isdisjoint(e.value.arrays)} - found
    ):
        found |= more
    return frozenset(found)


def _summing_over_weight(equation: Equation, given: frozenset[Array]) -> Equation:
    """The equation with each sum over rows j that reads a weight outside its range, as w[i - j + 1]
    or w[j - i + k] does, rewritten as a sum over the entries of the weight: then `padded` pads the
    rows and not the weight. A sum inside another one stays. `given` are the arrays that depend on
    an input or a context: all others are weights."""
    rewritten: dict[Node, Node] = {
        node: _over_entries(node, equation.indices, given)
        for node, over in walk(equation.value)
        if isinstance(node, Reduce) and not over
    }
    return replace(equation, value=rewrite(equation.value, lambda n: rewritten.get(n, n)))


def _over_entries(value: Reduce, around: tuple[Index, ...], given: frozenset[Array]) -> Reduce:
    """A sum of an equation with the indices `around`, over the entries of the weight that the sum
    reads outside of its range, in place of the rows; without such a weight the sum as it is."""
    for node, over in refs(value):
        if node.array not in given:
            for axis, _, _ in _windows(node, (*around, *over)):
                place, extent = node.positions[axis], node.array.shape[axis]
                for row in value.over:
                    slope = place.coefficient(row.atom) if isinstance(place, Poly) else Poly()
                    if slope in (Poly.of(1), Poly.of(-1)):
                        assert isinstance(place, Poly)
                        return _over_entries_of_weight(value, row, place, slope, extent)
    return value


def _over_entries_of_weight(
    value: Reduce, row: Index, place: Poly, slope: Poly, extent: Poly
) -> Reduce:
    """The sum with an index k over the weight's entries in place of the row index j (`row`).
    `place` is the weight's position in j, with `slope` 1 or -1: at w[i - j + 1], k is i - j + 1 and
    j = i - k + 1; at w[j - i + 4], j = k + i - 4. `extent`: the number of the weight's entries."""
    j = Poly.atom(row.atom)
    tap = Index(row.name, (ONE,), (extent,))
    body = substitute(value.body, {row.atom: slope * (j - (place - slope * j))})
    over = tuple(tap if index is row else index for index in value.over)
    return replace(value, body=body, over=tuple(outer_first(over)))
