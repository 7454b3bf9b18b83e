"""Does the maximum path length equal a breadth-first search over the executed reads?

The search walks over executed instances: rows that read rows, through arrays without rows. Where an
array has its rows is written here by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.language.buffers import last_positions
from costmodel.language.equations import Form
from costmodel.language.formula_text import parse
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Node
from costmodel.mixers import builtin, names
from costmodel.oracle.execute import Execution, execute, random_arrays
from costmodel.oracle.hops import furthest as furthest_executed, hops as distances, most_hops
from costmodel.oracle.scalars import Entry
from costmodel.paths import followed
from costmodel.paths.followed import furthest_apart
from costmodel.paths.hops import OUTER, Chunks, _rows_on_the_way, require_in_order
from costmodel.paths.reachability import _extreme_row, rows_on_axes
from costmodel.program.conventions import convention
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.questions.question import Answers, Case, Missing, Searched
from costmodel.questions.registry import FIGURES
from costmodel.questions.subject import system_of
from costmodel.symbolic.polynomial import Poly, size
from costmodel.symbolic.printing import formula_text, formula_words
from tests import chunk_systems, systems
from tests.small import LEFT_OPEN, least
from tests.stand_ins import Instead
from tests.systems import examples

Row = Callable[[tuple[int, ...], Mapping[str, int]], int]
"""The row of the entry at some positions, at some sizes."""
Places = Mapping[str, int | Row]
"""Array -> the axis of its rows, counted from 0, or how to find the row."""


def row_of(entry: Entry, sizes: Mapping[str, int], own: Places) -> int | None:
    """The row of an entry: on the first axis of l entries, or of l + 1 with one for what is before
    the first row; by the axes of chunks and of places in them; or the last row of a complete chunk,
    on an axis of these; unless a system says otherwise. None where there is no such axis."""
    array, where = entry
    place = own.get(array.name)
    if callable(place):
        return place(where, sizes)
    if place is not None:
        return where[place]
    for before in (0, 1):
        for axis, extent in enumerate(array.shape):
            if extent == size("l") + before:
                return where[axis] - before
    chunks = size("l") // size("C")
    for axis, extent in enumerate(array.shape):
        if array.shape[axis : axis + 2] == (chunks + 1, size("C")):
            return (where[axis] - 1) * sizes["C"] + where[axis + 1]
        if extent == chunks:
            return where[axis] * sizes["C"]
    return None


def furthest(mixer: Mixer, form: str, sizes: Mapping[str, int], own: Places) -> int:
    """The largest number of hops between two positions that are joined, by search.

    A hop ends at a row; an array without rows passes on what it was made of, in no hop. What is
    gathered counts where it is read whatever the data and tables hold.
    """
    joined = [pairs_read(run, own) for run in runs(mixer.forms[form], sizes)]
    return most_hops(set.intersection(*joined), sizes["l"])


def pairs_read(run: Execution, own: Places) -> set[tuple[object, object]]:
    """What is read, and what reads it: rows, or entries that have none."""
    place = partial(place_of, sizes=run.sizes, own=own)
    return {
        (place(read), place(written))
        for instance in run.instances
        for read in instance.reads
        if run.trace.memory[read].token > 0
        for written in instance.writes
    }


def runs(form: Form, sizes: Mapping[str, int]) -> Iterator[Execution]:
    """One execution, or where a form gathers several: every table holds the first positions that it
    may hold, then the last ones, and the input differs."""
    if not any(array.below for e in form.equations for array in e.value.arrays):
        yield execute(form, sizes)
        return
    for seed in range(4):
        values = random_arrays(form, sizes)
        for name, array in form.mixer.arrays.items():
            if array.below is not None:
                values[name] = last_positions(array, sizes).clip(1, None if seed else 1)
            elif array.role == "input":
                values[name] = np.random.default_rng(seed).uniform(-1, 1, values[name].shape)
        yield execute(form, sizes, arrays=values)


def place_of(entry: Entry, sizes: Mapping[str, int], own: Places) -> object:
    """The row of an entry, or the entry itself where it has none."""
    row = row_of(entry, sizes, own)
    return (entry[0].name, entry[1]) if row is None else row


def test_the_search_counts_hops_between_rows() -> None:
    """1 -> 2 -> 3 and 1 -> M -> 3: two hops without the array of no rows, one with it."""
    assert distances({1: {2}, 2: {3}}, 1) == {1: 0, 2: 1, 3: 2}
    assert distances({1: {2, ("M", (1,))}, 2: {3}, ("M", (1,)): {3}}, 1) == {1: 0, 2: 1, 3: 1}


def at_end(where: tuple[int, ...], sizes: Mapping[str, int]) -> int:
    """The last row of a chunk."""
    return where[0] * sizes["C"]


def at_start(where: tuple[int, ...], sizes: Mapping[str, int]) -> int:
    """The first row of a chunk."""
    return (where[0] - 1) * sizes["C"] + 1


FORMS = [
    (name, form)
    for name in (*names(), "self-attention+bidirectional", "self-attention+cross")
    for form in cm.mixer(name).forms
]


CHOSEN = {("reformer", "direct")}
"""Forms of which reads are not followed: values choose among entries that belong to no row."""


def case(mixer: Mixer, form: str, sizes: Mapping[str, int]) -> Case:
    about = Answers(mixer, form, "training", convention("strict"))
    return Case(about, sizes, symbolic=False)


def followed_at(case: Case) -> int:
    """The hops that following the reads finds, whether there is a formula or not."""
    return furthest_apart(system_of(case.mixer, case.form, (), "training"), case.sizes)


@pytest.mark.grid(48)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_mixer_is_as_far_across_as_the_search_finds(name: str, form: str) -> None:
    """By its formula, where it has one, and by following its reads at the sizes."""
    mixer = cm.mixer(name)
    for length in (1, 2, 3, 5, 8):
        for wide in (1, 2, 3, 4, 9) if {*"kwCB"} & {*mixer.letters} else (1,):
            sizes = least(mixer) | {"l": length}
            sizes |= dict.fromkeys("kwCB", wide)
            asked, hops = case(mixer, form, sizes), furthest(mixer, form, sizes, {})
            assert asked.figure(FIGURES["path_length"]) == hops, sizes
            assert furthest_executed(execute(mixer.forms[form], sizes)) == hops, sizes
            if (name, form) not in CHOSEN:
                assert followed_at(asked) == hops, sizes


CHUNKED = [key for key in FORMS if key[1] == "chunked" and (*key, "path_length") not in LEFT_OPEN]


@pytest.mark.grid(7)
@pytest.mark.parametrize(("name", "form"), CHUNKED)
def test_chunks_of_every_length(name: str, form: str) -> None:
    """Chunks that divide the length or not, of one row, and longer than the sequence."""
    mixer = cm.mixer(name)
    derived = cm.path_length(mixer, form)
    for length, chunk in lengths_and_chunks(9):
        sizes = least(mixer) | {"l": length, "C": chunk}
        assert derived.at(**sizes) == furthest(mixer, form, sizes, {}), sizes


def lengths_and_chunks(longest: int) -> list[tuple[int, int]]:
    """Every length up to one, with chunks of one row up to two rows more than there are."""
    return [(l, chunk) for l in range(1, longest + 1) for chunk in range(1, l + 3)]


def test_linear_attention_in_chunks_by_hand() -> None:
    """From row 1 to the end of its chunk, then an end a hop, the last one to row l: l/C, rounded
    up. C = 1 begins at an end and so saves a hop, a recurrence; C >= l is attention."""
    derived = cm.path_length(cm.mixer("linear-attention"), "chunked")
    assert [derived.at(l=10, C=chunk) for chunk in (1, 2, 3, 4, 5, 9, 10, 11)] == [
        9, 5, 4, 3, 2, 2, 1, 1,
    ]  # fmt: skip
    assert derived.at(l=4096, C=64) == 64
    assert [derived.at(l=1, C=chunk) for chunk in (1, 2, 5)] == [0, 0, 0]


def rounded_up(length: int, chunk: int) -> int:
    """l/C, wrong for chunks of one row."""
    return -(-length // chunk)


def from_the_end_of_the_first_chunk(length: int, chunk: int) -> int:
    """The hop to there forgotten."""
    return -(-max(0, length - chunk) // chunk)


def whole_chunks(length: int, chunk: int) -> int:
    """The last chunk, which is incomplete, forgotten."""
    return length - 1 if chunk == 1 else max(length // chunk, int(length > 1))


@pytest.mark.parametrize(
    "mistake",
    [rounded_up, from_the_end_of_the_first_chunk, whole_chunks],
    ids=lambda mistake: mistake.__name__,
)
def test_the_search_tells_a_mistake(mistake: Callable[[int, int], int]) -> None:
    """Lengths and chunks as they are compared above tell right from nearly right."""
    mixer = cm.mixer("linear-attention")
    assert any(
        mistake(length, chunk)
        != furthest(
            mixer,
            "chunked",
            dict.fromkeys(mixer.letters, 1) | {"l": length, "C": chunk},
            {},
        )
        for length, chunk in lengths_and_chunks(6)
    )


def test_table_1_of_vaswani_et_al() -> None:
    """Self-attention 1, recurrent l-1, convolution ceil((l-1)/(k-1)) for contiguous kernels,
    restricted to r positions on either side ceil((l-1)/r)."""
    l, k, r = 33, 5, 4
    assert cm.path_length(cm.mixer("self-attention")).at(l=l) == 1
    assert cm.path_length(cm.mixer("recurrent")).at(l=l) == l - 1
    assert cm.path_length(cm.mixer("convolution")).at(l=l, k=k) == -(-(l - 1) // (k - 1))
    centred = cm.path_length(cm.mixer("restricted-attention"))
    assert centred.at(l=l, w=2 * r + 1) == -(-(l - 1) // r)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("self-attention", "1 if l >= 2; 0 if l <= 1"),
        ("recurrent", "l - 1"),
        ("convolution", "floor((l - 2)/(k - 1)) + 1 if k >= 2; 0 if k <= 1"),
    ],
)
def test_path_lengths_are_printed_in_closed_form(name: str, printed: str) -> None:
    assert formula_words(cm.path_length(cm.mixer(name)).exact) == printed


def test_path_lengths_of_chunks_are_printed_in_closed_form() -> None:
    """ceil(l/C) is floor((l - 1)/C) + 1."""
    assert formula_words(cm.path_length(cm.mixer("linear-attention"), "chunked").exact) == (
        "floor((l - 1)/C) + 1 if C >= 2 and l >= 2; 0 if l <= 1; l - 1 if C <= 1 and l >= 2"
    )


@pytest.mark.parametrize("name", ["convolution", "convolution-same", "restricted-attention"])
def test_what_is_printed_for_programs_has_a_value_everywhere(name: str) -> None:
    """Also where the divisor of another case is 0."""
    hops = cm.path_length(cm.mixer(name))
    formula = parse(formula_text(hops.exact))
    for length in (1, 2, 5, 9):
        for wide in range(1, 7):
            at = {"l": length, "k": wide, "w": wide}
            assert formula.at(at) == hops.at(**at)


@pytest.mark.parametrize("name", sorted({"simple", "simple-resl", "fastformer"} & {*names()}))
def test_a_sum_over_all_tokens_joins_all_of_them(name: str) -> None:
    mixer = cm.mixer(name)
    for form in mixer.forms:
        assert [cm.path_length(mixer, form).at(l=l) for l in (1, 2, 9)] == [0, 1, 1]


def test_a_second_sequence_joins_no_positions() -> None:
    """Cross-attention reads the rows of another sequence: each token for itself."""
    assert cm.path_length(cm.mixer("self-attention+cross")).at(l=9) == 0


Writer = Callable[[Mixer, Form, Index], Node | None]


def written(write: Writer) -> Mixer:
    """y[i] = what the writer gives, over x (l); or what it writes itself."""
    mixer = Mixer("written")
    l = mixer.sizes("l k w r C")[0]
    mixer.input("x", l)
    y = mixer.output("y", l)
    with mixer.form("direct") as form:
        i = form.index("i", 1, l)
        value = write(mixer, form, i)
        if value is not None:
            y[i] = value
    return mixer


def row_before(m: Mixer, f: Form, i: Index) -> None:
    """A chain that goes back one row at a time, without a recurrence."""
    x, y = m.arrays["x"], m.arrays["y"]
    first, rest = f.index("first", 1, 1), f.index("rest", 2, m.sizes("l")[0])
    y[first] = x[first] * 2
    y[rest] = x[rest] + x[rest - 1]


def running_sum(m: Mixer, f: Form, i: Index) -> None:
    y, x = m.arrays["y"], m.arrays["x"]
    y[1] = x[1] * 2
    rest = f.index("rest", 2, m.sizes("l")[0])
    y[rest] = y[rest - 1] + x[rest]


def from_a_start(m: Mixer, f: Form, i: Index) -> Node:
    """A running sum of l + 1 entries, the first of which is learned and belongs to no row."""
    sums = f.array("S", m.sizes("l")[0] + 1)
    sums[1] = m.parameter("start", 1)[1] * 2
    sums[i + 1] = sums[i] + m.arrays["x"][i]
    return sums[i + 1] * 2


def window_and_recurrence(m: Mixer, f: Form, i: Index) -> None:
    """The window reaches further than the row before."""
    x, y, (l, w) = m.arrays["x"], m.arrays["y"], m.sizes("l w")
    s = f.array("S", l)
    j = f.index("j", cm.max_(1, i - w), i)
    s[i] = cm.sum_(x[j], over=j)
    y[1] = s[1] * 2
    rest = f.index("rest", 2, l)
    y[rest] = y[rest - 1] + s[rest]


def uneven(m: Mixer, f: Form, i: Index) -> Node:
    """w rows behind and r ahead."""
    l, w, r = m.sizes("l w r")
    j = f.index("j", cm.max_(1, i - w), cm.min_(l, i + r))
    return cm.sum_(m.arrays["x"][j], over=j)


def past_and_near_future(m: Mixer, f: Form, i: Index) -> Node:
    """Every row behind, w ahead."""
    l, w = m.sizes("l w")
    j = f.index("j", 1, cm.min_(l, i + w))
    return cm.sum_(m.arrays["x"][j], over=j)


def two_windows(m: Mixer, f: Form, i: Index) -> Node:
    x, (w, r) = m.arrays["x"], m.sizes("w r")
    j, q = f.index("j", cm.max_(1, i - w), i), f.index("q", cm.max_(1, i - r), i)
    return cm.sum_(x[j], over=j) * cm.sum_(x[q], over=q)


def strictly_before(m: Mixer, f: Form, i: Index) -> None:
    """Rows read all rows before them and not themselves."""
    x, y = m.arrays["x"], m.arrays["y"]
    y[1] = x[1] * 2
    rest = f.index("rest", 2, m.sizes("l")[0])
    j = f.index("j", 1, rest - 1)
    y[rest] = cm.sum_(x[j], over=j)


def mean(m: Mixer, f: Form, i: Index) -> Node:
    """Every row reads one number that is made of all."""
    x, l = m.arrays["x"], m.sizes("l")[0]
    total, j = f.array("M", 1), f.index("j", 1, l)
    total[f.index("one", 1, 1)] = cm.sum_(x[j], over=j)
    return x[i] - total[1]


def powers_of_a_mean(m: Mixer, f: Form, i: Index) -> Node:
    """A loop over what has no rows."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    table, j, q = f.array("M", w), f.index("j", 1, l), f.index("q", 2, w)
    table[1] = cm.sum_(x[j], over=j)
    table[q] = table[q - 1] * table[q - 1]
    return x[i] - table[w]


def pairs(m: Mixer, f: Form, i: Index) -> Node:
    """Pairs that are read by the row of their first axis."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    scores = f.array("Z", l, l)
    k = f.index("k", cm.max_(1, i - w), i)
    scores[i, k] = x[i] * x[k]
    return cm.sum_(scores[i, k], over=k)


def pairs_across(m: Mixer, f: Form, i: Index) -> Node:
    """Pairs that are read by the row of their second axis."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    scores = f.array("P", l, l)
    k = f.index("k", cm.max_(1, i - w), i)
    scores[k, i] = x[i] * x[k]
    return cm.sum_(scores[k, i], over=k)


def ones(m: Mixer, f: Form, i: Index) -> Node:
    """A token for itself alone."""
    return m.arrays["x"][i] * 2


WRITERS: dict[Writer, Places] = {
    row_before: {},
    running_sum: {},
    from_a_start: {},
    window_and_recurrence: {},
    uneven: {},
    past_and_near_future: {},
    two_windows: {},
    strictly_before: {},
    mean: {},
    powers_of_a_mean: {},
    pairs: {},
    pairs_across: {"P": 1},
    ones: {},
}


@pytest.mark.grid(3)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_system_is_as_far_across_as_the_search_finds(write: Writer) -> None:
    mixer = written(write)
    derived = cm.path_length(mixer)
    for length in (1, 2, 3, 4, 7, 10):
        for w in (1, 2, 3, 12):
            for r in (1, 2, 5):
                sizes = {"l": length, "w": w, "r": r, "k": 1, "C": 1}
                hops = furthest(mixer, "direct", sizes, WRITERS[write])
                found = followed_at(case(mixer, "direct", sizes))
                assert derived.at(**sizes) == hops == found, sizes


def chunk(f: Form, C: Poly, l: Poly, name: str = "") -> tuple[Index, Index]:
    """Every chunk, and every row in it; the last chunk may be short or empty."""
    q = f.index(f"q{name}", 1, l // C + 1)
    return q, f.index(f"e{name}", 1, cm.min_(C, l - (q - 1) * C))


def later_chunk(f: Form, C: Poly, l: Poly, first: int = 2) -> tuple[Index, Index, Index]:
    """Every row before a chunk, that chunk or a later one, and every row in it."""
    g = f.index("g", first, l // C + 1)
    k = f.index("k", 1, cm.min_((first - 1) * C, l))
    return k, g, f.index("u", 1, cm.min_(C, l - (g - 1) * C))


def sums_up_to(f: Form, x: Array, C: Poly, l: Poly, *, running: bool = True) -> Array:
    """S (l//C): the sum over each complete chunk, or over all rows up to its end."""
    sums, s = f.array("S", l // C), f.index("s", 1, C)
    first, rest = f.index("o", 1, cm.min_(1, l // C)), f.index("r", 2, l // C)
    sums[first] = cm.sum_(x[(first - 1) * C + s], over=s)
    added = cm.sum_(x[(rest - 1) * C + s], over=s)
    sums[rest] = sums[rest - 1] + added if running else added
    return sums


def carried(m: Mixer, f: Form, i: Index, *, running: bool = True, to: Array | None = None) -> None:
    """The rows of the chunk so far, and the sums up to the chunk before, as y or another array."""
    x, y, (l, C) = m.arrays["x"], to or m.arrays["y"], m.sizes("l C")
    sums, (k, g, u) = sums_up_to(f, x, C, l, running=running), later_chunk(f, C, l)
    a, b = f.index("a", 1, k), f.index("b", 1, u)
    y[k] = cm.sum_(x[a], over=a)
    y[(g - 1) * C + u] = cm.sum_(x[(g - 1) * C + b], over=b) + sums[g - 1]


def one_chunk_back(m: Mixer, f: Form, i: Index) -> None:
    """The sums of the chunk before alone: row 1 is read by the next chunk, the end of which by the
    one after it only if it is in its sum."""
    carried(m, f, i, running=False)


def weighed_by_the_end(m: Mixer, f: Form, i: Index) -> None:
    """The sums of the chunk before, each times the last row of its chunk."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    o, s, (k, g, u) = f.index("o", 1, l // C), f.index("s", 1, C), later_chunk(f, C, l)
    sums, a, b = f.array("S", l // C), f.index("a", 1, k), f.index("b", 1, u)
    sums[o] = x[o * C] * cm.sum_(x[(o - 1) * C + s], over=s)
    y[k] = cm.sum_(x[a], over=a)
    y[(g - 1) * C + u] = cm.sum_(x[(g - 1) * C + b], over=b) + sums[g - 1]


def pairs_of_sums(m: Mixer, f: Form, i: Index) -> None:
    """Pairs of sums since the start of the chunk, none of which is made of one row alone."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    q, e = chunk(f, C, l)
    s, sums, pairs = f.index("s", 1, e), f.array("G", l // C + 1, C), f.array("L", l // C + 1, C, C)
    sums[q, e] = cm.sum_(x[(q - 1) * C + s], over=s)
    pairs[q, e, s] = sums[q, e] * sums[q, s]
    y[(q - 1) * C + e] = cm.sum_(pairs[q, e, s], over=s)


def handed_on(m: Mixer, f: Form, i: Index) -> None:
    """The sums, from a learned start, are handed on through a second array."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    sums, other = f.array("S", l // C + 1), f.array("M", l // C + 1)
    r, s, (q, e) = f.index("r", 1, l // C), f.index("s", 1, C), chunk(f, C, l)
    t, b = f.index("t", 1, l // C + 1), f.index("b", 1, e)
    sums[1] = m.parameter("start", 1)[1] * 2
    sums[r + 1] = sums[r] + cm.sum_(x[(r - 1) * C + s], over=s)
    other[t] = sums[t] * sums[t]
    y[(q - 1) * C + e] = cm.sum_(x[(q - 1) * C + b], over=b) + other[q]


def carried_back(m: Mixer, f: Form, i: Index) -> None:
    """The mirror image: the rows of the chunk from here on, and the sums of the chunks after it.

    The number of chunks is rounded up, and the last of them may be short.
    """
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    many = (l - 1) // C + 1
    sums, last, rest = f.array("S", many), f.index("o", many, many), f.index("r", 1, many - 1)
    s, z = f.index("s", 1, C), f.index("z", 1, cm.min_(C, l - (last - 1) * C))
    sums[last] = cm.sum_(x[(last - 1) * C + z], over=z)
    sums[rest] = sums[rest + 1] + cm.sum_(x[(rest - 1) * C + s], over=s)
    before, e = f.index("g", 1, many - 1), f.index("e", 1, C)
    u = f.index("u", 1, cm.min_(C, l - (last - 1) * C))
    a, b = f.index("a", e, C), f.index("b", u, cm.min_(C, l - (last - 1) * C))
    y[(before - 1) * C + e] = cm.sum_(x[(before - 1) * C + a], over=a) + sums[before + 1]
    y[(last - 1) * C + u] = cm.sum_(x[(last - 1) * C + b], over=b)


def both_ways_in_a_chunk(m: Mixer, f: Form, i: Index) -> None:
    """All rows of the chunk, later ones too, and the sums up to the chunk before."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    sums, (k, g, u) = sums_up_to(f, x, C, l), later_chunk(f, C, l)
    a, b = f.index("a", 1, cm.min_(C, l)), f.index("b", 1, cm.min_(C, l - (g - 1) * C))
    y[k] = cm.sum_(x[a], over=a)
    y[(g - 1) * C + u] = cm.sum_(x[(g - 1) * C + b], over=b) + sums[g - 1]


def chunks_alone(m: Mixer, f: Form, i: Index, *, to: Array | None = None) -> None:
    """The rows of the chunk so far, and none of other chunks, as y or another array."""
    x, y, (l, C) = m.arrays["x"], to or m.arrays["y"], m.sizes("l C")
    q, e = chunk(f, C, l)
    s = f.index("s", 1, e)
    y[(q - 1) * C + e] = cm.sum_(x[(q - 1) * C + s], over=s)


def overlapping(m: Mixer, f: Form, i: Index) -> None:
    """All rows from the beginning of the chunk before on: windows that jump by a chunk."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    q, e = chunk(f, C, l)
    j = f.index("j", cm.max_(1, (q - 2) * C + 1), (q - 1) * C + e)
    y[(q - 1) * C + e] = cm.sum_(x[j], over=j)


def overlapping_and_carried(m: Mixer, f: Form, i: Index) -> None:
    """The chunk before and its own row by row, and the sums up to two chunks back."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    sums, (k, g, u) = sums_up_to(f, x, C, l), later_chunk(f, C, l, 3)
    j, a = f.index("j", (g - 2) * C + 1, (g - 1) * C + u), f.index("a", 1, k)
    y[k] = cm.sum_(x[a], over=a)
    y[(g - 1) * C + u] = cm.sum_(x[j], over=j) + sums[g - 2]


def chunk_and_row_before(m: Mixer, f: Form, i: Index) -> Node:
    """The rows of the chunk so far, and the row before, which the first row of a chunk needs."""
    x, l = m.arrays["x"], m.sizes("l")[0]
    within, before, rest = f.array("A", l), f.array("B", l), f.index("rest", 2, l)
    chunks_alone(m, f, i, to=within)
    before[1] = x[1] * 2
    before[rest] = x[rest] + x[rest - 1]
    return within[i] + before[i]


def carried_and_ahead(m: Mixer, f: Form, i: Index) -> Node:
    """By chunks from behind, and a window of w rows ahead."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    behind, ahead, j = f.array("A", l), f.array("B", l), f.index("j", i, cm.min_(l, i + w))
    ahead[i] = cm.sum_(x[j], over=j)
    carried(m, f, i, to=behind)
    return behind[i] + ahead[i]


IN_CHUNKS: dict[Writer, Places] = {
    carried: {"S": at_end},
    one_chunk_back: {"S": at_end},
    weighed_by_the_end: {"S": at_end},
    pairs_of_sums: {},
    handed_on: {
        "S": lambda where, sizes: (where[0] - 1) * sizes["C"],
        "M": lambda where, sizes: (where[0] - 1) * sizes["C"],
    },
    carried_back: {"S": at_start},
    both_ways_in_a_chunk: {"S": at_end},
    chunks_alone: {},
    overlapping: {},
    overlapping_and_carried: {"S": at_end},
    chunk_and_row_before: {},
    carried_and_ahead: {"S": at_end},
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("write", IN_CHUNKS, ids=lambda write: write.__name__)
def test_a_system_in_chunks_is_as_far_across_as_the_search_finds(write: Writer) -> None:
    mixer = written(write)
    derived = cm.path_length(mixer)
    for length, chunk in lengths_and_chunks(12):
        for w in (1, 3) if write is carried_and_ahead else (1,):
            sizes = {"l": length, "w": w, "r": 1, "k": 1, "C": chunk}
            hops = furthest(mixer, "direct", sizes, IN_CHUNKS[write])
            found = followed_at(case(mixer, "direct", sizes))
            executed = furthest_executed(execute(mixer.forms["direct"], sizes))
            assert derived.at(**sizes) == hops == found == executed, sizes


def test_path_lengths_of_chunks_equal_hops_counted_by_hand() -> None:
    """l = 10 in chunks of 3.

    Carried back: 10 is the first row of its chunk, so that no hop is lost: 10 -> 7 -> 4 -> 1.
    Overlapping: 1 -> 6 -> 9 -> 10. Overlapping and carried: 1 -> 6 -> 10 (6 is an end).
    The row before: 1 -> 3 -> 4 -> 6 -> 7 -> 9 -> 10. Ahead, one row a hop: 9.
    """
    at = {"l": 10, "C": 3}
    assert cm.path_length(written(carried_back)).at(**at) == 3
    assert cm.path_length(written(chunks_alone)).at(**at) == 1
    assert cm.path_length(written(overlapping)).at(**at) == 3
    assert cm.path_length(written(overlapping_and_carried)).at(**at) == 2
    assert cm.path_length(written(chunk_and_row_before)).at(**at) == 6
    assert cm.path_length(written(carried_and_ahead)).at(**at, w=1) == 9
    assert cm.path_length(written(carried_and_ahead)).at(**at, w=5) == 4


def own_sums(mixer: Mixer) -> Places:
    """The sums of a random system in chunks, which later rows alone read."""
    return {e.array.name: at_end for e in mixer.forms["direct"].equations if e.array.name[0] == "S"}


def test_random_systems_in_chunks() -> None:
    """A window and chunks in one system, and sums that no row reads, are refused."""
    asked: Counter[bool] = Counter()

    @given(mixer=chunk_systems.mixers(), sizes=chunk_systems.sizes())
    @settings(max_examples=examples(100))
    def ask(mixer: Mixer, sizes: dict[str, int]) -> None:
        for rows in (1, 2, sizes["C"], sizes["l"] + 1):
            found = is_found(mixer, {**sizes, "C": rows}, own_sums(mixer))
        asked[found] += 1

    ask()
    assert asked[True] >= 0.5 * asked.total()


def is_found(mixer: Mixer, sizes: Mapping[str, int], own: Places) -> bool:
    """Whether there is a path length; the formula and following the reads give what the search
    finds."""
    asked = case(mixer, "direct", sizes)
    found = asked.figure(FIGURES["path_length"])
    if isinstance(found, Missing):
        return False
    hops = furthest(mixer, "direct", sizes, own)
    executed = furthest_executed(execute(mixer.forms["direct"], sizes))
    assert found == hops == followed_at(asked) == executed, sizes
    return True


def test_path_lengths_of_random_systems_equal_a_search() -> None:
    """The comparison would prove nothing if most were refusals."""
    asked: Counter[bool] = Counter()

    @given(mixer=systems.mixers(), sizes=systems.sizes(), length=st.integers(1, 6))
    @settings(max_examples=examples(120))
    def ask(mixer: Mixer, sizes: dict[str, int], length: int) -> None:
        asked[is_found(mixer, {**sizes, "l": length}, {})] += 1

    ask()
    assert asked[True] >= 0.75 * asked.total()


@pytest.mark.parametrize("more", [0, 1])
def test_entries_at_a_stride_belong_to_the_last_row_that_they_are_computed_from(more: int) -> None:
    """U[w*i + 1] on an axis of w*l + 1 has no position 1..l: row i alone reads its sum up to i."""
    mixer = Mixer("spread")
    l, w = mixer.sizes("l w")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        j, U = f.index("j", 1, i), f.array("U", w * l + more)
        U[w * i + more] = cm.sum_(x[j], over=j)
        y[i] = U[w * i + more] * x[i]
    for length, width in ((1, 1), (3, 1), (5, 2)):
        assert is_found(mixer, {"l": length, "w": width}, {})
        assert cm.path_length(mixer).at(l=length, w=width) == min(1, length - 1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_rows_of_a_recurrence_stay_rows_where_a_small_size_leaves_out_all_else(length: int) -> None:
    """Up to l = 4, S[g] = S[g-1] is all that is left: l - 1 hops. From l = 5 on, row g also reads
    1..l - 4 under `dense`."""
    mixer = Mixer("late")
    l, s = mixer.sizes("l s")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i, g = f.index("i", 1, l), f.index("g", 2, l)
        j, S = f.index("j", 1, g - s), f.array("S", l)
        S[1] = x[1] * 2
        S[g] = S[g - 1] - cm.sum_(x[j], over=j)
        y[i] = S[i] * 2
    made = OracleComparison(mixer, rewrites=("dense",)).at({"l": length, "s": 4})
    assert made.apart == [] and "path length" in made.compared


@pytest.mark.parametrize("length", [1, 4])
def test_a_row_of_weights_makes_no_row_of_a_recurrence_of_row_1(length: int) -> None:
    """C and P depend on x[1] alone, and P[1] on no row: row 1 reaches each row in one hop."""
    mixer = Mixer("first")
    (l,) = mixer.sizes("l")
    x, y, w = mixer.input("x", l), mixer.output("y", l), mixer.parameter("w", 1)
    with mixer.form("direct") as f:
        i, g = f.index("i", 1, l), f.index("g", 2, l)
        C, P = f.array("C", l), f.array("P", l)
        C[1], P[1] = x[1] * 2, w[1] * 2
        P[g] = P[g - 1] * C[g - 1]
        C[g] = C[g - 1] * P[g]
        y[i] = C[i] * x[i]
    made = OracleComparison(mixer).at({"l": length})
    assert made.apart == [] and "path length" in made.compared
    assert furthest_executed(execute(mixer.forms["direct"], {"l": length})) == min(1, length - 1)


def test_path_lengths_of_windows_equal_hops_counted_by_hand() -> None:
    """l = 10: four rows a hop; of 4 behind and 2 ahead, forward 3 hops of 4, back 5 of 2."""
    assert cm.path_length(written(window_and_recurrence)).at(l=10, w=4) == 3
    assert cm.path_length(written(uneven)).at(l=10, w=4, r=2) == 5
    assert cm.path_length(written(past_and_near_future)).at(l=10, w=2) == 5
    assert cm.path_length(written(two_windows)).at(l=10, w=2, r=5) == 2
    assert cm.path_length(written(row_before)).at(l=10) == 9


def dilated(m: Mixer, f: Form, i: Index) -> None:
    """Every second row: more than half of the pairs are joined by none or by many hops."""
    x, y, l = m.arrays["x"], m.arrays["y"], m.sizes("l")[0]
    first, rest = f.index("first", 1, cm.min_(2, l)), f.index("rest", 3, l)
    y[first] = x[first] * 2
    y[rest] = x[rest] + x[rest - 2]


def last_row(m: Mixer, f: Form, i: Index) -> Node:
    """Every row reads the last one."""
    return m.arrays["x"][i] + m.arrays["x"][m.sizes("l")[0]]


def mean_in_two(m: Mixer, f: Form, i: Index) -> Node:
    """All rows in two sums: no single reference reads all rows, both together do."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    total, j = f.array("M", 1), f.index("j", 1, cm.min_(l, w))
    k = f.index("k", cm.max_(1, w + 1), l)
    total[f.index("one", 1, 1)] = cm.sum_(x[j], over=j) + cm.sum_(x[k], over=k)
    return x[i] - total[1]


def half_a_mean(m: Mixer, f: Form, i: Index) -> Node:
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    total, j = f.array("M", 1), f.index("j", 1, cm.min_(l, w))
    total[f.index("one", 1, 1)] = cm.sum_(x[j], over=j)
    return x[i] - total[1]


def chunk_sums(m: Mixer, f: Form, i: Index) -> Node:
    """Sums over chunks of w rows, which only the rows of the same chunk read."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    sums, q = f.array("M", l), f.index("q", 1, l)
    j = f.index("j", (q - 1) * w + 1, cm.min_(l, q * w))
    sums[q] = cm.sum_(x[j], over=j)
    return x[i] - sums[1]


def mean_and_first(m: Mixer, f: Form, i: Index) -> Node:
    """Two numbers, one of them made of one row."""
    x, l = m.arrays["x"], m.sizes("l")[0]
    table, j = f.array("M", 2), f.index("j", 1, l)
    table[1] = cm.sum_(x[j], over=j)
    table[2] = x[1] * 2
    return x[i] - table[2]


def two_axes(m: Mixer, f: Form, i: Index) -> Node:
    """Pairs that no reader reads by its own row."""
    x, l = m.arrays["x"], m.sizes("l")[0]
    table, j, k = f.array("P", l, l), f.index("j", 1, l), f.index("k", 1, l)
    table[i, k] = x[i] * x[k]
    return cm.sum_(table[j, k], over=(j, k))


def two_chunks_back(m: Mixer, f: Form, i: Index) -> None:
    """The rows of the chunk so far, and the sums up to two chunks back: none of the one before."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    sums, (q, e) = sums_up_to(f, x, C, l), chunk(f, C, l)
    _, g, u = later_chunk(f, C, l, 3)
    own, s = f.array("B", l), f.index("c", 1, e)
    own[(q - 1) * C + e] = cm.sum_(x[(q - 1) * C + s], over=s)
    k = f.index("v", 1, cm.min_(2 * C, l))
    y[k] = own[k] * 2
    y[(g - 1) * C + u] = own[(g - 1) * C + u] + sums[g - 2]


def within_a_chunk(m: Mixer, f: Form, i: Index) -> None:
    """Sums that the rows read of which they are made: neither end of the chunk is nearest."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    q, e = chunk(f, C, l)
    sums, z = f.array("S", l // C + 1), f.index("z", 1, cm.min_(C, l - (q - 1) * C))
    sums[q] = cm.sum_(x[(q - 1) * C + z], over=z)
    y[(q - 1) * C + e] = x[(q - 1) * C + e] + sums[q]


def ahead_at_ends(m: Mixer, f: Form, i: Index) -> None:
    """Every row reads all rows before it; the end of a chunk alone reads a later row, the next."""
    x, y, (l, C) = m.arrays["x"], m.arrays["y"], m.sizes("l C")
    before, j = f.array("B", l), f.index("j", 1, i)
    before[i] = cm.sum_(x[j], over=j)
    q, p = f.index("q", 1, l // C + 1), f.index("p", 1, l // C)
    k, z = f.index("k", 1, cm.min_(C - 1, l - (q - 1) * C)), f.index("z", 1, cm.min_(1, l - p * C))
    y[(q - 1) * C + k] = before[(q - 1) * C + k] * 2
    y[(p - 1) * C + C] = before[(p - 1) * C + C] + cm.sum_(x[p * C + z], over=z)


def window_and_chunks(m: Mixer, f: Form, i: Index) -> Node:
    """Which of the two reaches further depends on the place in the chunk."""
    x, l, w = m.arrays["x"], *m.sizes("l w")
    far, near, j = f.array("A", l), f.array("B", l), f.index("j", cm.max_(1, i - w), i)
    near[i] = cm.sum_(x[j], over=j)
    carried(m, f, i, to=far)
    return far[i] + near[i]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (dilated, "row i of y reads row j of x at distances from 2 on, and that all nearer rows"),
        (last_row, "whether row i of y reads row j of x depends on more than the distance"),
        (chunk_sums, "bounds index"),
        (mean_and_first, "M has no token axis and is not proven to be computed from all rows"),
        (half_a_mean, "M has no token axis and is not proven to be computed from all rows"),
        (mean_in_two, "M has no token axis and is not proven to be computed from all rows"),
        (two_axes, "which axis of P is the token axis is not derived: axes 1 and 2"),
        (
            two_chunks_back,
            "how far reads reach from a row, by its place in its chunk, is not derived, reads such "
            "as: row i of",
        ),
        (window_and_chunks, "how far reads reach from a row, by its place in its chunk, is not"),
        (ahead_at_ends, "in one direction no read joins row 1, which is not the last row of its"),
        (within_a_chunk, "an entry of S is computed from several rows, and no single row"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_not_derived(write: Writer, said: str) -> None:
    """In letters; at sizes the reads are followed, where an array has rows on one axis alone."""
    mixer = written(write)
    with pytest.raises(Unsupported, match=said):
        cm.path_length(mixer)
    chunked = {"S": at_end} if write in (two_chunks_back, window_and_chunks) else {}
    for length, wide in product((1, 2, 3, 5, 8), (1, 2, 3, 9)):
        if write is two_chunks_back and length <= 2 * wide:
            continue  # no row reads the sums: they belong to none
        sizes = {"l": length, "w": wide, "r": 1, "k": 1, "C": wide}
        try:
            found = followed_at(case(mixer, "direct", sizes))
        except Unsupported:
            assert write in (chunk_sums, two_axes)
        else:
            assert found == furthest(mixer, "direct", sizes, chunked), sizes


def test_an_earlier_row_may_not_reach_further() -> None:
    """Were all rows but the ends of chunks read by all rows after them, and the ends by the next
    row alone, it would be one hop from 1 to l, and two from C to l."""
    chunks, end = Chunks(size("l"), "C"), Poly.atom(OUTER) * size("C")
    require_in_order(chunks, [end, end + 1])
    with pytest.raises(Unsupported, match="a row may reach further ahead than a later row"):
        require_in_order(chunks, [size("l"), end + 1])


def test_a_path_that_comes_to_no_place_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path from row 1 by the ends of all chunks, of which two rows alone are followed."""
    chunks, end = Chunks(size("l"), "C"), Poly.atom(OUTER) * size("C")
    ends = chunks, [end, end + size("C")], Poly.of(1), frozenset({size("C") - 2})
    assert _rows_on_the_way(*ends) == ([Poly.of(1)], {size("C"): size("C")})
    monkeypatch.setattr("costmodel.paths.hops.MANY", 2)
    with pytest.raises(Unsupported, match="the first 2 rows of the path from row 1, up to row C, "):
        _rows_on_the_way(*ends)


def on_no_row(made: followed.Span, readers: followed.Span) -> None:
    """A running sum hands on all that it is made of."""


def on_its_last_row(made: followed.Span, readers: followed.Span) -> Any:
    """Also where earlier rows read it."""
    return made.last


def first_of_two(m: Mixer, f: Form, i: Index) -> Node:
    """The row before, and of two numbers the one that is made of row 1 alone."""
    x, l = m.arrays["x"], m.sizes("l")[0]
    table, j, k = f.array("M", 2), f.index("j", 1, l), f.index("k", cm.max_(1, i - 1), i)
    table[1] = x[1] * 2
    table[2] = cm.sum_(x[j], over=j)
    return cm.sum_(x[k], over=k) - table[1]


def as_one(graph: followed.Graph, array: Array, axis: int) -> bool:
    """Entries that several equations define are told apart nowhere."""
    return True


@pytest.mark.parametrize(
    ("write", "name", "mistake"),
    [
        (carried, "_nearest", on_no_row),
        (carried_back, "_nearest", on_its_last_row),
        (first_of_two, "Graph._alike", as_one),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_search_tells_a_read_that_is_followed_wrongly(
    write: Writer, name: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer, sizes = written(write), {"l": 8, "C": 3, "w": 1, "r": 1, "k": 1}
    asked, hops = (
        case(mixer, "direct", sizes),
        furthest(mixer, "direct", sizes, IN_CHUNKS.get(write, {})),
    )
    assert followed_at(asked) == hops
    monkeypatch.setattr(f"{followed.__name__}.{name}", mistake)
    assert followed_at(asked) != hops


def table_beside_a_window(m: Mixer, f: Form, i: Index) -> Node:
    """The row before, and one that a table names."""
    x, (l, w) = m.arrays["x"], m.sizes("l w")
    named, j = m.buffer("P", l, below=l), f.index("j", cm.max_(1, i - w), i)
    return cm.sum_(x[j], over=j) + x[named[i]]


def test_a_row_that_a_table_names_may_be_another() -> None:
    """From one row back to an earlier one it is no hop for certain: only the window joins rows."""
    mixer = written(table_beside_a_window)
    for length, w in product((1, 2, 5, 9), (1, 2, 3)):
        sizes = {"l": length, "w": w, "r": 1, "k": 1, "C": 1}
        asked, hops = case(mixer, "direct", sizes), furthest(mixer, "direct", sizes, {})
        assert asked.figure(FIGURES["path_length"]) == hops == followed_at(asked)
        assert hops == -(-(length - 1) // w)


def test_rows_by_stride_by_hand() -> None:
    """Strided attention to the last B rows and every B-th one: 1 -> 1 + B -> 2 + B is two hops, of
    rows less than B apart or a multiple of it one. Sinkhorn attention reads all whole blocks."""
    strided, blocks = cm.mixer("strided-attention"), cm.mixer("sinkhorn")
    for length, B, hops in ((8, 3, 2), (5, 3, 2), (4, 3, 1), (3, 3, 1), (8, 1, 1), (1, 3, 0)):
        sizes = {"l": length, "B": B, "d": 2, "n": 1, "T": 2}
        found = case(strided, "direct", sizes).figure(FIGURES["path_length"])
        assert isinstance(found, Searched) and found == hops
        assert case(blocks, "direct", sizes).figure(FIGURES["path_length"]) == min(hops, 1)


def test_more_reads_than_are_followed_are_refused_beforehand(
    instead: Instead,
) -> None:
    """No read is followed, no set of rows made; the other figures stand."""
    asked = case(cm.mixer("strided-attention"), "direct", {"l": 10**6, "B": 16, "d": 2, "n": 1})
    missing = asked.figure(FIGURES["path_length"])
    assert isinstance(missing, Missing)
    what = "reads, entries and pairs of rows at these sizes"
    said = f"{what}, and at most 30,000,000 are followed: choose smaller sizes"
    assert missing.reason.endswith(said)
    assert isinstance(asked.figure(FIGURES["sequential"]), int)
    asked = case(cm.mixer("sinkhorn"), "direct", {"l": 8, "B": 2, "d": 2, "n": 1, "T": 1})
    graph = followed.Graph(
        rows_on_axes(system_of(asked.mixer, "direct", (), "training")), asked.sizes
    )
    _ = graph.homes
    instead(hops_followed=1)
    with pytest.raises(Unsupported, match="words for the rows that entries are made of"):
        _ = graph.reads


def test_it_belongs_to_a_form() -> None:
    """Through Fourier transforms every row reads all rows at once, as it does directly."""
    for form in builtin("he").forms:
        assert cm.path_length(builtin("he"), form).at(l=6) == 1


def test_an_extreme_row_is_compared_with_bounds_on_a_multiple_of_the_row() -> None:
    """Of j in 1..w with 2*j <= i the largest row is w if 2*w <= i, else it is not known."""
    j, i, w = Poly.atom("@j"), Poly.atom("@i"), Poly.atom("w")
    bounded = frozenset({j - 1, w - j, i - j * 2})
    assert _extreme_row(j, 1, bounded, {"@j"}) is None
    assert _extreme_row(j, 1, bounded | {i - w * 2}, {"@j"}) == w
    assert _extreme_row(j, -1, bounded, {"@j"}) == Poly.of(1)
