"""Is the maximum path length that of a breadth-first search over what was read?

The search walks over executed instances: rows that read rows, through arrays without rows. On which
axis an array has its rows is written here by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel.domains import Unsupported
from costmodel.equations import Form, Mixer
from costmodel.execution.oracle import execute
from costmodel.execution.tallying import Entry
from costmodel.expressions import Array, Index, Node
from costmodel.formulas import parse
from costmodel.mixers import builtin, names
from costmodel.polynomial import size
from costmodel.rules.printing import formula_text, formula_words
from tests import systems

Axes = Mapping[str, int | None]
"""Array -> the axis of its rows, counted from 0, None where it has none."""


def axis_of(array: Array, own: Axes) -> int | None:
    """Where an array has its rows: on the first axis of l entries, unless a system says another."""
    if array.name in own:
        return own[array.name]
    return next((axis for axis, extent in enumerate(array.shape) if extent == size("l")), None)


def furthest(mixer: Mixer, form: str, sizes: Mapping[str, int], own: Axes) -> int:
    """The largest number of hops between two positions that are joined, by search.

    A hop ends at a row; an array without rows passes on what it was made of, in no hop.
    """
    run = execute(mixer.forms[form], sizes)
    after: dict[object, set[object]] = {}
    for instance in run.instances:
        for read in filter(lambda entry: run.trace.memory[entry].token > 0, instance.reads):
            for written in instance.writes:
                after.setdefault(place(read, own), set()).add(place(written, own))
    length = run.sizes["l"]
    return max(max(hops(after, start).values()) for start in range(1, length + 1))


def place(entry: Entry, own: Axes) -> object:
    """The row of an entry, or the entry itself where it has none."""
    array, where = entry
    axis = axis_of(array, own)
    return (array.name, where) if axis is None else where[axis]


def hops(after: Mapping[object, set[object]], start: int) -> dict[int, int]:
    """The distance of every row that is joined with a row, nearest first."""
    found, waiting = {start: 0}, deque([(start, 0)])
    seen: set[object] = {start}
    while waiting:
        here, number = waiting.popleft()
        reached, through = set[object](), list(after.get(here, ()))
        while through:
            there = through.pop()
            if isinstance(there, int):
                reached.add(there)
            elif there not in reached:
                reached.add(there)
                through += after.get(there, ())
        for there in reached - seen:
            seen.add(there)
            if isinstance(there, int):
                found[there] = number + 1
                waiting.append((there, number + 1))
    return found


def test_the_search() -> None:
    """1 -> 2 -> 3 and 1 -> M -> 3: two hops without the array of no rows, one with it."""
    assert hops({1: {2}, 2: {3}}, 1) == {1: 0, 2: 1, 3: 2}
    assert hops({1: {2, ("M", (1,))}, 2: {3}, ("M", (1,)): {3}}, 1) == {1: 0, 2: 1, 3: 1}


IN_CHUNKS = {("linear-attention", "chunked")}
FORMS = [
    (name, form)
    for name in (*names(), "self-attention+bidirectional", "self-attention+cross")
    for form in cm.mixer(name).forms
    if (name, form) not in IN_CHUNKS
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_mixer_is_as_far_across_as_the_search_finds(name: str, form: str) -> None:
    mixer = cm.mixer(name)
    derived = cm.path_length(mixer, form)
    for length in (1, 2, 3, 5, 8):
        for wide in (1, 2, 3, 4, 9) if {"k", "w"} & {*mixer.letters} else (1,):
            sizes = dict.fromkeys(mixer.letters, 1) | {"l": length, "k": wide, "w": wide}
            assert derived.at(**sizes) == furthest(mixer, form, sizes, {}), sizes


@pytest.mark.parametrize(("name", "form"), sorted(IN_CHUNKS))
def test_rows_in_chunks_are_refused(name: str, form: str) -> None:
    """Its sums have an entry for each chunk: which row they belong to is not said."""
    with pytest.raises(Unsupported, match="lie on no axis of one entry per token"):
        cm.path_length(cm.mixer(name), form)


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
def test_as_printed(name: str, printed: str) -> None:
    assert formula_words(cm.path_length(cm.mixer(name)).exact) == printed


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
    l = mixer.sizes("l k w r")[0]
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


WRITERS: dict[Writer, Axes] = {
    row_before: {},
    running_sum: {},
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


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_system_is_as_far_across_as_the_search_finds(write: Writer) -> None:
    mixer = written(write)
    derived = cm.path_length(mixer)
    for length in (1, 2, 3, 4, 7, 10):
        for w in (1, 2, 3, 12):
            for r in (1, 2, 5):
                sizes = {"l": length, "w": w, "r": r, "k": 1}
                assert derived.at(**sizes) == furthest(mixer, "direct", sizes, WRITERS[write])


@given(mixer=systems.mixers(), sizes=systems.sizes(), length=st.integers(1, 6))
@settings(max_examples=120)
def test_random_systems(mixer: Mixer, sizes: dict[str, int], length: int) -> None:
    try:
        derived = cm.path_length(mixer)
    except Unsupported:
        return
    at = {**sizes, "l": length}
    assert derived.at(**at) == furthest(mixer, "direct", at, {}), at


def test_most_random_systems_have_a_path_length() -> None:
    """The comparison above would prove nothing if most were refusals."""
    asked: list[bool] = []

    @given(mixer=systems.mixers())
    @settings(max_examples=60)
    def ask(mixer: Mixer) -> None:
        try:
            cm.path_length(mixer)
        except Unsupported:
            asked.append(False)
        else:
            asked.append(True)

    ask()
    assert sum(asked) >= 0.8 * len(asked)


def test_by_hand() -> None:
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


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (dilated, "which rows y reads of x depends on more than how far away they are"),
        (last_row, "which rows y reads of x depends on more than how far away they are"),
        (chunk_sums, "an index whose stride has no known sign"),
        (mean_and_first, "M is made of some rows and belongs to none"),
        (half_a_mean, "M is made of some rows and belongs to none"),
        (two_axes, "the rows of P lie on one of several axes"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_not_derived(write: Writer, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        cm.path_length(written(write))


def test_it_belongs_to_a_form() -> None:
    """Through Fourier transforms every row reads all rows at once, as it does directly."""
    for form in builtin("he").forms:
        assert cm.path_length(builtin("he"), form).at(l=6) == 1
