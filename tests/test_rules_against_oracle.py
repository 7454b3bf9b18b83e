"""Do the rules derive exactly the counts of executing the equations entry by entry?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.mixers import builtin, names
from costmodel.oracle.execute import execute
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison, differences
from costmodel.proofs.gradients import GradientComparison
from costmodel.symbolic.sizes import ceil_log2
from tests import chunk_systems, systems
from tests.small import LEFT_OPEN, complete, distinct, has_inference
from tests.systems import examples

SIZES = {"l": 5, "d": 6, "n": 2}

REWRITES = (
    ("dense",),
    ("safe-softmax",),
    ("zero-state",),
    ("dense", "safe-softmax", "mask=add", "scale=mul"),
    ("scale=root",),
    ("dense", "zero-state"),
    ("scale=folded",),
)
FORMS = [(name, form) for name in names() for form in builtin(name).forms]


@pytest.mark.grid(100)
@pytest.mark.parametrize("place", range(len(FORMS)), ids=["-".join(form) for form in FORMS])
def test_rules_under_rewrites_equal_execution(place: int) -> None:
    """Counts per class, once, span, traffic, state, one token at every t, and the values: under
    half of the rewrites that change a form, the next form under the other half. Without rewrites
    they are among the proofs that every built-in mixer passes."""
    name, form = FORMS[place]
    written = builtin(name).forms[form]
    plain = lower(written).equations
    changing = [r for r in REWRITES if lower(written, r).equations != plain]
    for rewrites in changing[place % 2 :: 2]:
        made = OracleComparison(builtin(name), form, rewrites)
        made.at(complete(builtin(name), SIZES))
        assert made.apart == [], rewrites
        open_ = DEPTHS if (name, form, "span") in LEFT_OPEN else set[str]()
        assert {line.partition(": ")[0] for line in made.refused} == open_, rewrites


DEPTHS = {"steps of the critical path", "span", "sequential operations"}


@pytest.mark.parametrize("options", ["", "+window"])
def test_blocks_and_keys_of_each_query_equal_execution(options: str) -> None:
    """Of l = 5 rows the last block of two is incomplete, and a block of seven holds them all."""
    mixer = builtin(f"self-attention{options}")
    sizes = complete(mixer, {"l": 5, "d": 2, "n": 1, "w": 2})
    for name in ("dense=1", "dense=2", "scale=root-each"):
        for made in (OracleComparison, GradientComparison):
            found = made(mixer, "direct", (name,)).at(sizes)
            assert found.apart == [], name
            assert {line.partition(",")[0] for line in found.refused} <= {"span"}
    totals = [
        cm.count(mixer, convention=name).at(**sizes).total
        for name in ("strict", "dense=1", "dense=2", "dense=7", "dense")
    ]
    assert totals[0] == totals[1] < totals[2] < totals[3] == totals[4]


@pytest.mark.parametrize(
    ("options", "rewrites", "l"),
    [
        ("", ("online=1",), 5),
        ("", ("dense", "online=2"), 5),
        ("", ("dense=3", "online=3", "zero-state"), 7),
        ("", ("dense=4", "online=2"), 5),
        ("", ("dense=4", "online=2"), 7),
        ("", ("dense=2", "online=4"), 7),
        ("", ("dense=3", "online=2"), 5),
        ("", ("dense=2", "online=3", "zero-state"), 7),
        ("+bidirectional", ("online=2", "safe-softmax", "zero-state"), 6),
        ("+bidirectional", ("dense=2", "online=3"), 5),
        ("+cross", ("online=2",), 3),
        ("+grouped+window", ("dense", "online=2", "mask=add"), 5),
    ],
)
def test_a_softmax_in_blocks_of_keys_equals_execution(
    options: str, rewrites: tuple[str, ...], l: int
) -> None:
    """Blocks that divide the keys and blocks that do not, in rows with fewer blocks than others."""
    mixer = builtin(f"self-attention{options}")
    sizes = complete(mixer, {"l": l, "d": 2, "n": 1, "w": 2})
    found = OracleComparison(mixer, "direct", rewrites).at(sizes)
    assert found.apart == []
    assert {line.partition(":")[0] for line in found.refused} <= {*DEPTHS, *TRAFFIC, "peak"}
    assert not any("index i_" in line for line in found.refused)
    if rewrites == ("dense", "online=2"):
        assert GradientComparison(mixer, "direct", rewrites).at(sizes).apart == []
    plain = tuple(name for name in rewrites if not name.startswith("online"))
    exp = [cm.count(mixer, convention=names).at(**sizes).by_class()["exp"]
           for names in (plain, rewrites)]  # fmt: skip
    assert exp[0] < exp[1]


TRAFFIC = {"compulsory traffic", "unfused traffic"}


def test_a_softmax_in_one_block_divides_its_sums_alone() -> None:
    """A softmax with a sink, and one of a window's keys, stay as they are."""
    mixer, sizes = builtin("self-attention+bidirectional"), {"l": 5, "d": 6, "n": 3}
    one, safe = (
        cm.count(mixer, convention=name).at(**sizes).by_class()
        for name in ("online=7", "safe-softmax")
    )
    assert safe["div"] - one.pop("div") == 3 * 5 * 5 - 5 * 6 and one.items() <= safe.items()
    for options in ("sinks", "window"):
        other = builtin(f"self-attention+{options}")
        assert cm.count(other, convention="online=2") == cm.count(other)
    with pytest.raises(Unsupported, match="no gradients of a softmax in blocks of keys, of which"):
        cm.count(builtin("self-attention"), "backward", convention="online=1")


@pytest.mark.grid(2)
@pytest.mark.parametrize(("name", "form"), distinct())
def test_multiply_accumulates_equal_execution(name: str, form: str) -> None:
    sizes = complete(builtin(name), SIZES)
    assert differences(builtin(name), sizes, form=form, accounting="mac") == []


@pytest.mark.grid(2)
@pytest.mark.parametrize(("name", "form"), distinct())
def test_batch_multiplies_what_depends_on_the_input(name: str, form: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES)
    run = execute(mixer.forms[form], sizes)
    counts = cm.count(mixer, form=form).at(**sizes, b=3)
    once = sum(run.once().values())
    assert counts.total == 3 * sum(run.counts().values()) + once
    if (name, form, "traffic") in LEFT_OPEN:
        with pytest.raises(Unsupported, match=LEFT_OPEN[name, form, "traffic"]):
            cm.traffic(mixer, form=form)
        return
    least = run.compulsory()
    moved = cm.traffic(mixer, form=form).compulsory.at(**sizes, b=3)
    assert moved["activations"] == 3 * (least.inputs + least.outputs)
    assert moved.get("weights", 0) == least.weights


CAUSAL = [(name, form) for name, form in distinct() if has_inference(builtin(name), form)]


@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_batch_multiplies_the_state(name: str, form: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES)
    run = execute(mixer.forms[form], sizes, length=7)
    assert cm.state(mixer, form).at(**sizes, t=3, b=64) == 64 * run.state(3)


@pytest.mark.grid(2)
@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_one_token_is_the_difference_of_two_lengths(name: str, form: str) -> None:
    """inference(t) = training(t) - training(t-1), by the rules alone, at sizes no oracle runs."""
    mixer, sizes = builtin(name), complete(builtin(name), {"d": 96, "n": 4, "l": 1})
    for t in (2, 3, 17, 1000):
        longer, shorter = (
            cm.count(mixer, form=form).at(**{**sizes, "l": length}) for length in (t, t - 1)
        )
        token = cm.count(mixer, "inference", form).at(**{**sizes, "l": t}, t=t)
        classes = longer.by_class()
        assert token.by_class() == {c: v - shorter.by_class().get(c, 0) for c, v in classes.items()}


def test_a_token_past_the_length() -> None:
    """Self-attention has no array of extent l that a token past l would exceed."""
    mixer = builtin("self-attention")
    run = execute(mixer.forms["direct"], SIZES, length=9)
    token = cm.count(mixer, "inference").at(**{**SIZES, "t": 8})
    found = {name: number for name, number in token.by_class().items() if number}
    assert found == run.counts_inference(8)


@pytest.mark.parametrize("name", names())
def test_parameters_are_the_entries_of_the_arrays(name: str) -> None:
    mixer, sizes = builtin(name), complete(builtin(name), SIZES)
    run = execute(mixer.forms[mixer.default_form], sizes)
    held = sum(run.arrays[array.name].size for array in mixer.parameters)
    assert cm.parameters(mixer).at(**sizes) == held


RANDOM_REWRITES = st.sampled_from([(), ("dense",), ("safe-softmax",), ("scale=folded",)])


def test_rules_about_random_systems_equal_execution() -> None:
    """Whatever the rules answer about a system of the language is what its execution counts. A
    refusal is honest, but the comparisons would prove nothing if most were refusals."""
    asked: Counter[bool] = Counter()

    @given(mixer=systems.mixers(), sizes=systems.sizes(), rewrites=RANDOM_REWRITES)
    @settings(max_examples=examples(80))
    def ask(mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]) -> None:
        made = OracleComparison(mixer, rewrites=rewrites).at(sizes)
        assert made.apart == [], sizes
        asked.update({True: len(made.compared), False: len(made.refused)})

    ask()
    assert asked[False] <= 0.2 * asked.total()


@given(
    mixer=systems.mixers(ranges=("causal", "before"), grown=True),
    sizes=systems.sizes(),
    rewrites=RANDOM_REWRITES,
)
@settings(max_examples=examples(40))
def test_rules_about_random_causal_systems_equal_execution(
    mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]
) -> None:
    assert OracleComparison(mixer, rewrites=rewrites).at(sizes).apart == [], sizes


@given(mixer=chunk_systems.mixers(chunk_systems.PLACED), sizes=chunk_systems.sizes())
@settings(max_examples=examples(40))
def test_random_systems_in_chunks(mixer: Mixer, sizes: dict[str, int]) -> None:
    """How deep a row is depends on its place in a chunk, however it is written and read."""
    assert OracleComparison(mixer).at(sizes).apart == [], sizes


def test_few_questions_about_one_token_of_chunks_are_left_open() -> None:
    """Of a whole sequence more are: which of all chunks is deepest may depend on the sizes."""
    asked: Counter[bool] = Counter()

    @given(mixer=chunk_systems.mixers(), sizes=chunk_systems.sizes())
    @settings(max_examples=examples(40))
    def ask(mixer: Mixer, sizes: dict[str, int]) -> None:
        refused = OracleComparison(mixer).at(sizes).refused
        asked[any(" at t=" in question for question in refused)] += 1

    ask()
    assert asked[True] <= 0.3 * asked.total()


def _number(expression: Any, sizes: Mapping[str, int]) -> int:
    """A printed expression with its symbols replaced."""
    return int(expression.subs({s: sizes[str(s)] for s in expression.free_symbols}))


def _window() -> Mixer:
    """y[i] = sum of the last w rows, weighted by distance."""
    mixer = Mixer("window")
    l, w = mixer.sizes("l w")
    x, y, p = mixer.input("x", l), mixer.output("y", l), mixer.parameter("p", w)
    with mixer.form("direct") as form:
        i = form.index("i", 1, l)
        j = form.index("j", cm.max_(1, i - w + 1), i)
        y[i] = cm.sum_(x[j] * p[i - j + 1], over=j)
    return mixer


@pytest.mark.parametrize("l", [1, 2, 3, 6])
@pytest.mark.parametrize("w", [1, 2, 3, 5])
def test_both_sides_of_a_breakpoint(l: int, w: int) -> None:
    """Shorter than the window, as long, longer; and the printed expression says the same."""
    mixer, sizes = _window(), {"l": l, "w": w}
    assert differences(mixer, sizes) == []
    run = execute(mixer.forms["direct"], sizes, length=l + w + 2)
    assert _number(cm.count(mixer).mul, sizes) == cm.count(mixer).at(**sizes).mul
    assert _number(cm.state(mixer).expr, {"t": l, "w": w}) == run.state(l)


@pytest.mark.parametrize("l", [1, 2, 3, 5])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_what_dense_reads_outside_an_array_has_no_depth(l: int, w: int) -> None:
    """Every S[i-j+1] with j > i is a zero: it is multiplied, but nothing came before it."""
    mixer = Mixer("outside")
    size, width = mixer.sizes("l w")
    x, y = mixer.input("x", size), mixer.output("y", size)
    with mixer.form("direct") as form:
        i = form.index("i", 1, size)
        j, k = form.index("j", 1, i), form.index("k", i, cm.min_(size, i + width - 1))
        s = form.array("S", size)
        s[i] = cm.sum_(x[k], over=k)
        y[i] = cm.sum_(x[j] * s[i - j + 1], over=j)
    assert differences(mixer, {"l": l, "w": w}, rewrites=("dense",)) == []


def _in_chunks(written: str, read: str) -> Mixer:
    """D sums the rows of a chunk up to each one; y divides by it. Each is written chunk by chunk,
    split into the first chunk and the later ones, or row by row."""
    mixer = Mixer("in-chunks")
    l, C = mixer.sizes("l C")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        k, g, i = f.index("k", 1, cm.min_(C, l)), f.index("g", 2, l // C + 1), f.index("i", 1, l)
        u, q = f.index("u", 1, cm.min_(C, l - (g - 1) * C)), f.index("q", 1, l // C + 1)
        e = f.index("e", 1, cm.min_(C, l - (q - 1) * C))
        v, m, o = f.index("v", 1, u), f.index("m", 1, k), f.index("o", 1, e)
        D = f.array("D", l)
        if written == "split":
            D[k] = cm.sum_(x[m] * x[k], over=m)
            D[(g - 1) * C + u] = cm.sum_(x[(g - 1) * C + v] * x[(g - 1) * C + u], over=v)
        else:
            D[(q - 1) * C + e] = cm.sum_(x[(q - 1) * C + o] * x[(q - 1) * C + e], over=o)
        places = {"split": (k, (g - 1) * C + u), "chunks": ((q - 1) * C + e,), "rows": (i,)}
        for row in places[read]:
            y[row] = x[row] / D[row]
    return mixer


@pytest.mark.parametrize("written", ["split", "chunks"])
@pytest.mark.parametrize("read", ["split", "chunks", "rows"])
def test_the_span_of_rows_in_chunks(written: str, read: str) -> None:
    """A product, the rows of the chunk so far, a division; for one token, those of its own place.

    The deepest row is the last one of a whole chunk, or of the only one.
    """
    mixer = _in_chunks(written, read)
    for l, C in ((1, 1), (5, 2), (9, 4), (7, 3), (3, 7), (4, 1), (1000, 64)):
        for t in range(1, min(l, 20) + 1):
            place = (t - 1) % C + 1
            assert cm.span(mixer, "inference").at(l=l, C=C, t=t) == 2 + ceil_log2(place), (l, C, t)
        assert cm.span(mixer).at(l=l, C=C) == 2 + ceil_log2(min(l, C)), (l, C)
        if l < 10:
            assert differences(mixer, {"l": l, "C": C}) == [], (l, C)


def test_a_row_is_as_deep_as_its_own_chunk() -> None:
    """y[i] multiplies D[i], of its place in the chunk, by i weights: the last row has the most
    terms, but not the deepest D unless it ends a chunk."""
    mixer = Mixer("sums-of-chunks")
    l, C = mixer.sizes("l C")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        q, i = f.index("q", 1, l // C + 1), f.index("i", 1, l)
        e = f.index("e", 1, cm.min_(C, l - (q - 1) * C))
        o, j = f.index("o", 1, e), f.index("j", cm.max_(1, i - 1), i)
        D, p = f.array("D", l), mixer.parameter("p", l)
        n = f.index("n", 1, i)
        D[(q - 1) * C + e] = cm.sum_(x[(q - 1) * C + o], over=o)
        y[i] = cm.sum_(D[i] * p[n], over=n) + cm.sum_(x[j], over=j)
    for l_, C_ in ((5, 4), (4, 4), (9, 4), (3, 2), (2, 5)):
        made = OracleComparison(mixer).at({"l": l_, "C": C_})
        assert made.apart == [], (l_, C_)
        assert not [line for line in made.refused if " at t=" in line]


# --------------------------------------------------------------------------------------------------
# Zeros that a rewrite reads
# --------------------------------------------------------------------------------------------------


def _products(gate: str) -> Mixer:
    """S[t] = P[t] + x[t], where P[t] = S[t-1] times a gate: a weight, or G, of which the entry of
    row 1 and b = 1 is not defined, or the whole row 1 (at k + 1), or row 1 of two parts."""
    mixer = Mixer(f"products-{gate}")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("w_", d)
    with mixer.form("direct") as f:
        i, t, b = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d)
        G, P, S = (f.array(name, l, d) for name in "GPS")
        gates = w[b] if gate == "weight" else G[t, b]
        if gate == "entry":
            k = f.index("k", cm.max_(1, 3 - b), l)
            G[k, b] = x[k, b] * x[k, b]
        elif gate == "row":
            k = f.index("k", 1, l - 1)
            G[k + 1, b] = x[k + 1, b] * x[k + 1, b]
        elif gate == "parts":
            k = f.index("k", 2, d)
            G[1, k] = x[1, k] * x[1, k]
            G[t, b] = x[t, b] * x[t, b]
        S[1, b] = x[1, b] * 1
        P[t, b] = S[t - 1, b] * gates
        S[t, b] = P[t, b] + x[t, b]
        y[i, b] = S[i, b] * x[i, b]
    return mixer


@pytest.mark.parametrize("gate", ["weight", "entry", "row", "parts"])
def test_zero_state_multiplies_each_gate_of_the_first_row(gate: str) -> None:
    for sizes in ({"l": 4, "d": 3}, {"l": 1, "d": 2}):
        if gate == "parts":  # what row 1 lacks is derived like the other rows: l d squares
            counts = cm.count(_products(gate), convention="strict,zero-state").at(**sizes)
            assert counts.mul == 3 * sizes["l"] * sizes["d"], sizes
        assert differences(_products(gate), sizes, rewrites=("zero-state",)) == [], sizes


@pytest.mark.parametrize("l", [1, 3])
def test_a_gate_of_row_1_that_nothing_reads(l: int) -> None:
    """d squares more; their gradients are not computed."""
    mixer, sizes, names = _products("row"), {"l": l, "d": 2}, ("unread-rows",)
    for phase, more in (("training", 2), ("backward", 0)):
        plain, unread = (
            cm.count(mixer, phase, convention=("strict", *chosen)).at(**sizes)
            for chosen in ((), names)
        )
        assert unread.total - plain.total == unread.mul - plain.mul == more
    for compared in (OracleComparison, GradientComparison):
        assert compared(mixer, "direct", names).at(sizes).apart == []


def test_zero_state_gives_the_first_chunk_the_rows_of_any_chunk() -> None:
    """RWKV-7 leaves out what row 1 of the first chunk does not remove."""
    mixer = builtin("rwkv-7+core")
    made = OracleComparison(mixer, "chunked", ("zero-state",))
    for l, C in ((5, 2), (3, 1)):
        made.at({**complete(mixer, {"l": l, "d": 4, "n": 2}), "C": C})
    assert made.apart == []
    assert {line.partition(": ")[0] for line in made.refused} == DEPTHS


def test_a_zero_among_weights_belongs_to_each_sequence() -> None:
    """Under `dense`, B doubles A[1, 1], which is not defined; row 1 of A is made of weights."""
    mixer = Mixer("weights-first")
    l, chunk = mixer.sizes("l C")
    x, y, p = mixer.input("x", l), mixer.output("y", l), mixer.parameter("p", chunk)
    with mixer.form("direct") as f:
        i, e = f.index("i", 1, l), f.index("e", 1, chunk)
        later, g, q = f.index("e2", 2, chunk), f.index("g", 2, 3), f.index("q", 1, 3)
        z = f.index("z", cm.max_(1, 3 - q), chunk)
        A, B = f.array("A", 3, chunk), f.array("B", 3, chunk)
        A[1, later] = p[later] * p[later]
        A[g, e] = x[1] * p[e]
        B[q, z] = A[q, z] * 2
        y[i] = x[i] + cm.sum_(B[q, z], over=(q, z))
    assert differences(mixer, {"l": 3, "C": 3}, rewrites=("dense",)) == []


# --------------------------------------------------------------------------------------------------
# Where the sequence ends
# --------------------------------------------------------------------------------------------------


def _but_the_last_two() -> Mixer:
    """y[i] = sum of x[j] w[i-j+1] over j up to i, but not over the last two rows."""
    mixer = Mixer("but-the-last-two")
    (l,) = mixer.sizes("l")
    x, y, w = mixer.input("x", l), mixer.output("y", l), mixer.parameter("w", l)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", 1, cm.min_(i, l - 2))
        y[i] = cm.sum_(x[j] * w[i - j + 1], over=j)
    return mixer


def _two_ends() -> Mixer:
    """The last two rows have an equation of their own."""
    mixer = Mixer("two-ends")
    (l,) = mixer.sizes("l")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        k, q = f.index("k", 1, l - 2), f.index("q", cm.max_(1, l - 1), l)
        y[k] = x[k] * x[k]
        y[q] = x[q] * 1
    return mixer


def _last_chunk() -> Mixer:
    """Every chunk is summed up, the short one at the end too, which no row reads."""
    mixer = Mixer("last-chunk")
    l, C = mixer.sizes("l C")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        q = f.index("q", 1, (l - 1) // C + 1)
        s, S = f.index("s", 1, cm.min_(C, l - (q - 1) * C)), f.array("S", (l - 1) // C + 1)
        k, g = f.index("k", 1, cm.min_(C, l)), f.index("g", 2, l // C + 1)
        u = f.index("u", 1, cm.min_(C, l - (g - 1) * C))
        S[q] = cm.sum_(x[(q - 1) * C + s] * x[(q - 1) * C + s], over=s)
        y[k] = x[k] * 1
        y[(g - 1) * C + u] = x[(g - 1) * C + u] * S[g - 1]
    return mixer


def _late_and_ahead() -> Mixer:
    """A is w rows late, and w rows of it are read ahead as far as there are any."""
    mixer = Mixer("late-and-ahead")
    l, w = mixer.sizes("l w")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        s, j = f.index("s", 1, i - w), f.index("j", i, cm.min_(l, i + w))
        A = f.array("A", l)
        A[i] = cm.sum_(x[s], over=s)
        y[i] = cm.sum_(A[j], over=j) + x[i]
    return mixer


@pytest.mark.parametrize(
    ("mixer", "equation", "bound"),
    [
        (_but_the_last_two(), "y", "l - 2 of index j"),
        (_two_ends(), "y", "l - 2 of index k"),
        (_last_chunk(), "S", "-q*C + C + l of index s"),
        (_late_and_ahead(), "y", "l of index j"),
    ],
    ids=lambda value: value.name if isinstance(value, Mixer) else "",
)
def test_a_token_whose_work_depends_on_the_end_is_refused(
    mixer: Mixer, equation: str, bound: str
) -> None:
    """The last rows belong to an earlier token than they would if the sequence went on."""
    said = (
        f"{equation}: the work of one token depends on the length of the sequence, at the "
        f"bound {bound}"
    )
    for question in (cm.count, cm.span, cm.traffic):
        with pytest.raises(Unsupported, match=f"^{re.escape(said)}$"):
            question(mixer, "inference")
    with pytest.raises(Unsupported, match=f"^{re.escape(said)}$"):
        cm.state(mixer)
    for l in (1, 2, 3, 6):
        made = OracleComparison(mixer).at({"l": l, "C": 2, "w": 2})
        assert made.apart == []
        assert {"counts", "unfused traffic", "values"} <= made.compared.keys()


def test_a_token_goes_on_past_bounds_of_arrays() -> None:
    """Bounds that only keep rows inside their arrays do not end the work of a token."""
    mixer = Mixer("one-late")
    (l,) = mixer.sizes("l")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i, k = f.index("i", 1, l), f.index("k", 1, l - 1)
        A = f.array("A", l)
        A[1] = x[1] * 1
        A[k + 1] = x[k] * x[k]
        y[i] = A[i] + x[i]
    for l_ in (1, 2, 3, 5):
        assert differences(mixer, {"l": l_}) == []


def test_rows_that_are_later_than_the_sequence_is_long() -> None:
    """A[i] is made of x[i-5], for the token t = i - 5, though i may be more than l."""
    mixer = Mixer("five-late")
    (l,) = mixer.sizes("l")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i, o, k = f.index("i", 1, l), f.index("o", 1, cm.min_(5, l)), f.index("k", 6, l)
        A = f.array("A", l)
        A[o] = x[o] * 1
        A[k] = x[k - 5] * x[k - 5]
        y[i] = A[i] + x[i]
    for l_ in (1, 2, 3, 7):
        assert differences(mixer, {"l": l_}) == []


@pytest.mark.parametrize("l", [1, 2, 3, 5])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_what_depends_on_no_input_at_the_end(l: int, w: int) -> None:
    """y[i] reads A[i] to A[i+w] as far as there are any; with one row that is A[1], a sum over no
    row, so that all work is done once though longer sequences depend on their input."""
    mixer = Mixer("before-and-ahead")
    size, width = mixer.sizes("l w")
    x, y, p = mixer.input("x", size), mixer.output("y", size), mixer.parameter("p", size)
    with mixer.form("direct") as f:
        i = f.index("i", 1, size)
        s, j = f.index("s", 1, i - 1), f.index("j", i, cm.min_(size, i + width))
        A = f.array("A", size)
        A[i] = cm.sum_(x[s], over=s)
        y[i] = cm.sum_(A[j], over=j) + p[i] * p[i]
    made = OracleComparison(mixer).at({"l": l, "w": w})
    assert made.apart == []
    assert {"counts", "compulsory traffic", "unfused traffic"} <= made.compared.keys()


def test_dense_takes_a_bound_at_the_end_that_leaves_the_wider_range() -> None:
    """All l rows, where j <= l - i + 1 and where y splits i into chunk and place; min(s, l) rows
    of an array with an axis of l, where k <= min(s, i)."""
    mixer = Mixer("bounds")
    l, s = mixer.sizes("l s")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("falling") as form:
        i = form.index("i", 1, l)
        j = form.index("j", 1, l - i + 1)
        y[i] = cm.sum_(x[j], over=j)
    with mixer.form("split") as form:
        i = form.index("i", 1, l)
        j, half = form.index("j", 1, i), form.index("half", 1, (i - 1) // 2)
        y[i] = cm.sum_(x[j], over=j) * cm.sum_(x[half], over=half)
    with mixer.form("written") as form:
        i = form.index("i", 1, l)
        k = form.index("k", 1, cm.min_(s, i))
        Z = form.array("Z", l, l)
        Z[i, k] = x[i] * x[k]
        y[i] = cm.sum_(Z[i, k], over=k)
    for length, first in ((1, 2), (5, 2), (5, 7)):
        sizes = {"l": length, "s": first}
        counts = {f: cm.count(mixer, form=f, convention="dense").at(**sizes) for f in mixer.forms}
        assert counts["falling"].add == length * (length - 1)
        assert counts["split"].add == length * (length - 1 + max(0, length // 2 - 1))
        assert counts["written"].mul == length * min(first, length)
        for form in mixer.forms.values():
            assert differences(mixer, sizes, form=form.name, rewrites=("dense",)) == []
