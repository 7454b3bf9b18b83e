"""Do rows of a table hold the derived answers at all sizes, with reasons for gaps?"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import cli
import costmodel as cm
from costmodel import Mixer
from costmodel.errors import TOO_LITTLE, SizeError, TableError, Unanswered
from costmodel.language.nodes import Node
from costmodel.mixers import DEFAULT, builtin, file_of, load, names
from costmodel.program.chosen_sizes import combinations, fit, values
from costmodel.program.conventions import convention
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import overruns
from costmodel.questions.question import Missing, Searched, answers, quotient
from costmodel.questions.registry import FIGURES
from costmodel.questions.subject import system_of
from costmodel.report import document, table_data, terminal
from costmodel.report.document import Column, Document, Formula, Page
from costmodel.report.formats import write
from costmodel.report.mixer_document import document as table_document, shown as shown_table
from costmodel.report.mixer_table import COLUMNS, LABELS, Request, Row, selection, table
from costmodel.report.writer import PLAIN_TEXT
from costmodel.symbolic.cases import Quotient
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, size
from costmodel.symbolic.printing import formula_words
from tests.small import (
    LEFT_OPEN,
    complete,
    distinct,
    has_inference,
    left_open,
    variants,
    without_inference,
)

FORWARD = {
    ("self-attention", 1): 20_947_008,
    ("self-attention", 8): 21_119_488,
    ("self-attention", 32): 21_710_848,
    ("she", 8): 278_888_448,
    ("he", 8): 14_647_296,
    ("we", 8): 10_469_376,
    ("me", 8): 2_097_152,
}
ONE_TOKEN = {
    ("self-attention", 1): 196_351,
    ("self-attention", 8): 199_032,
    ("self-attention", 32): 208_224,
    ("she", 8): 4_259_584,
    ("he", 8): 130_688,
    ("we", 8): 98_048,
    ("me", 8): 32_640,
}
PARAMETERS = {"self-attention": 65_536, "she": 2_129_920, "he": 65_536, "we": 49_152, "me": 128}
SPANS = {"self-attention": 39, "she": 24, "he": 25, "we": 17, "me": 8}
STATE = {"self-attention": 2, "she": 1, "he": 1, "we": 1, "me": 1}
"""State after t tokens in multiples of t*d."""


def rows(*mixers: str, **options: Any) -> list[Row]:
    chosen = tuple(map(builtin, mixers or DEFAULT))
    return [row for block in table(Request(chosen, **options)).blocks for row in block.rows]


def one(mixer: str, phase: str, **options: Any) -> Row:
    (row,) = rows(mixer, phases=(phase,), **options)
    return row


def sizes(**given: int) -> dict[str, tuple[int, ...]]:
    return {letter: (value,) for letter, value in given.items()}


@pytest.mark.parametrize(("phase", "totals"), [("training", FORWARD), ("inference", ONE_TOKEN)])
def test_totals_at_128(phase: str, totals: dict[tuple[str, int], int]) -> None:
    for (mixer, n), total in totals.items():
        row = one(mixer, phase, given=sizes(d=128, l=128, n=n))
        assert row.value("total") == total, (mixer, n)


def test_parameters_spans_and_state_at_128() -> None:
    for row in rows(given=sizes(d=128, l=128)):
        name = row.mixer.name
        assert row.value("parameters") == PARAMETERS[name]
        assert row.value("span") == SPANS[name]
        if row.phase == "inference":
            assert row.value("state") == STATE[name] * 128 * 128


@pytest.mark.grid(12)
@pytest.mark.parametrize("name", variants())
def test_batch_multiplies_work_and_state_and_not_the_weights(name: str) -> None:
    phase = "inference" if has_inference(cm.mixer(name)) else "training"
    alone, many = (one(name, phase, given=sizes(b=b)) for b in (1, 64))
    once = alone.value("once")
    assert isinstance(once, int) and many.value("once") == once
    for column in ("total", "state") if once else ("mul", "total", "state"):
        value = alone.value(column)
        if column == "state" and phase == "training":
            assert isinstance(value, Missing) and "exists in inference only" in value.reason
            continue
        apart = once if column == "total" else 0
        assert isinstance(value, int) and many.value(column) == 64 * (value - apart) + apart
    for column in ("parameters", "weights", "span", "critical_path"):
        assert many.value(column) == alone.value(column)


def test_work_done_once_is_apart_and_not_multiplied_by_the_batch() -> None:
    alone, many = (one("she", "training", form="fft", given=sizes(b=b)) for b in (1, 3))
    once, total = alone.value("once"), alone.value("total")
    assert isinstance(once, int) and isinstance(total, int) and once > 0
    assert many.value("once") == once
    assert many.value("total") == 3 * (total - once) + once


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in distinct()))
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_rows_equal_the_public_questions(name: str, phase: str) -> None:
    mixer = cm.mixer(name)
    at = complete(mixer, {"l": 5, "d": 6, "n": 2})
    for form in mixer.forms:
        row = one(name, phase, form=form, given=sizes(**at, b=3))
        if phase == "inference":
            at["t"] = at["l"]
            if reason := without_inference(mixer, form):
                absent = {c for c in COLUMNS if row.value(c) == Missing(reason)}
                own = {c for c in COLUMNS if phase in COLUMNS[c].phases}
                assert absent == {c for c in own if not COLUMNS[c].always}
                continue
            assert row.value("state") == cm.state(mixer, form).at(**at, b=3)
        counts = cm.count(mixer, phase, form).at(**at, b=3)
        assert [row.value(c) for c in ("mul", "add", "div", "exp", "total")] == [
            counts.mul, counts.add, counts.div, counts.exp, counts.total,
        ]  # fmt: skip
        assert row.value("other") == sum(counts.other.values())
        assert row.value("once") == (counts.once.total if counts.once else 0)
        assert row.value("parameters") == cm.parameters(mixer).at(**at)
        deep = phase == "inference" or left_open(name, form, "span") is None
        if deep:
            assert row.value("span") == cm.span(mixer, phase, form).at(**at)
            assert row.value("sequential") == cm.sequential(mixer, phase, form).at(**at)
            assert row.value("critical_path") == cm.critical_path(mixer, phase, form, sizes=at)
        else:
            assert all(isinstance(row.value(c), Searched) for c in ("span", "sequential"))
            assert isinstance(row.value("critical_path"), Missing)
        if phase == "training":
            hops = row.value("path_length")
            if left_open(name, form, "path_length"):
                assert isinstance(hops, Searched)
            else:
                assert hops == cm.path_length(mixer, form).at(**at)
        if reason := LEFT_OPEN.get((name, form, "traffic")):
            assert row.value("traffic") == row.value("unfused") == Missing(reason)
            continue
        moved = cm.traffic(mixer, phase, form)
        least, unfused = (kind.at(**at, b=3) for kind in (moved.compulsory, moved.unfused))
        assert row.value("traffic") == 4 * sum(least.values())  # bytes of fp32
        assert row.value("unfused") == 4 * sum(unfused.values())
        assert row.value("weights") == least.get("weights", 0)


def test_bytes_follow_the_dtype_of_each_role() -> None:
    def moved(**types: str) -> int:
        value = one("she", "inference", dtypes=Dtypes(**types)).value("traffic")
        assert isinstance(value, int)
        return value

    weights, state, new = 2_129_920, 128 * 128, 2 * 128
    assert moved(activations="fp32") == 4 * (weights + state + new)
    assert moved(activations="bf16", weights="fp8") == weights + 2 * (state + new)
    assert moved(activations="fp16", cache="fp64") == 2 * (weights + new) + 8 * state
    assert moved(activations="fp16", state="fp64") == 2 * (weights + new + state)


def test_ratio_is_exact_and_at_the_same_sizes() -> None:
    assert one("she", "training").value("ratio") == Fraction(278_888_448, 21_119_488)
    assert one("self-attention", "training").value("ratio") == 1
    usual = one("me", "training", given={"n": (1, 8, 32)})
    assert usual.value("ratio") == Fraction(2_097_152, 21_119_488)
    first = one("me", "training", given={"n": (1, 32)})
    assert first.value("ratio") == Fraction(2_097_152, 20_947_008)
    missing = one("she", "training", given=sizes(d=100)).value("ratio")
    assert isinstance(missing, Missing) and "d/n" in missing.reason


@pytest.mark.parametrize(
    ("mixers", "heads", "note"),
    [
        (("self-attention{n=32}", "she"), 32, "ratio: the baseline is self-attention{n=32}"),
        (("self-attention{n=4}", "self-attention", "gqa{n=32}"), 8, ""),
        (
            ("gqa{n=32}", "she"),
            8,
            "ratio: mixers without heads or with heads of their own are compared with "
            "self-attention at n = 8",
        ),
    ],
)
def test_the_baseline_of_ratios_is_a_row_or_is_named(
    mixers: tuple[str, ...], heads: int, note: str
) -> None:
    request = Request(tuple(map(load.mixer, mixers)), phases=("training",))
    (block,) = table(request).blocks
    baseline = FORWARD["self-attention", heads]
    for row in block.rows:
        total = row.value("total")
        assert isinstance(total, int)
        assert row.value("ratio") == Fraction(total, baseline)
    found = map(PLAIN_TEXT.text, shown_table(block, request).said)
    compared = [line for line in found if "baseline" in line or "compared" in line]
    assert compared == ([note] if note else [])


def test_intensity_is_total_over_compulsory_bytes() -> None:
    row = one("me", "training")
    assert row.value("intensity") == Fraction(2_097_152, 4 * (2 * 128 * 128 + 128))


def test_nothing_is_divided_by_zero() -> None:
    zero, length = Exact.of(Poly()), Exact.of(size("l"))
    for above in (zero, length):
        with pytest.raises(Unanswered, match="the value to divide by is 0"):
            quotient(above, zero)
    assert quotient(length, length) == Exact.of(Poly.of(1))


def test_sizes_are_a_cross_product_and_ignored_where_a_mixer_lacks_them() -> None:
    found = rows("self-attention", "me", phases=("training",), given={"n": (1, 8), "l": (4, 8)})
    assert [(r.mixer.name, r.sizes["l"], r.sizes.get("n")) for r in found] == [
        ("self-attention", 4, 1), ("self-attention", 4, 8),
        ("self-attention", 8, 1), ("self-attention", 8, 8),
        ("me", 4, None), ("me", 8, None),
    ]  # fmt: skip


def test_t_is_l_unless_given_and_training_rows_have_none() -> None:
    found = rows("me", given={"l": (4, 8)})
    assert [r.sizes.get("t") for r in found] == [None, None, 4, 8]
    assert [r.sizes["t"] for r in rows("me", phases=("inference",), given={"t": (2, 3)})] == [2, 3]


def test_a_token_past_the_weights_has_a_reason_and_self_attention_goes_on() -> None:
    for name in DEFAULT:
        row = one(name, "inference", given=sizes(l=8, t=9))
        value = row.value("total")
        if name == "self-attention":
            at = {"l": 9, "t": 9, "d": 128, "n": 8}
            assert value == cm.count(row.mixer, "inference").at(**at).total
        else:
            assert isinstance(value, Missing) and "t = 9" in value.reason
            assert "has l = 8" in value.reason
            assert isinstance(row.value("parameters"), int)


def test_a_token_beyond_the_length_costs_the_same_whatever_the_length_and_is_said_to() -> None:
    """Answers are derived for t <= l; where they do not name l, they hold beyond."""
    asked = [name for name, figure in FIGURES.items() if "inference" in figure.phases]
    for name in sorted({name for name, _ in distinct()} & {*names()}):
        given = {**sizes(l=16, t=24, d=8, n=2, B=4, C=4, r=8)}
        request = Request((builtin(name),), given=given, phases=("inference",), form="all")
        far, near = table(request), table(replace(request, given={**given, "l": (24,)}))
        reached = 0
        for row, other in zip(far.blocks[0].rows, near.blocks[0].rows, strict=True):
            if not row.blocked:
                reached += 1
                for column in {*asked} - {"parameters", "ratio"}:
                    assert row.value(column) == other.value(column), (name, column)
        for found, many in ((far, reached), (near, 0)):
            text = write(table_document(found), "rich", Page())
            assert ("t > l: the new token" in text) == (many > 0)


@pytest.mark.parametrize(
    ("mixers", "options", "shown"),
    [
        (("gqa", "linear-attention"), {"given": sizes(t=200)}, False),
        (("gqa",), {"given": sizes(t=200), "symbolic": True}, False),
        (("gqa",), {"given": sizes(t=200), "phases": ("training", "inference")}, True),
        (("gqa", "she"), {"given": sizes(t=200)}, True),
        (("gqa",), {"given": sizes(l=100, t=200)}, True),
        (("gqa",), {}, True),
        (("gqa",), {"given": {"t": "l"}, "symbolic": True}, True),
    ],
)
def test_a_length_stands_in_the_caption_where_something_depends_on_it(
    mixers: tuple[str, ...], options: dict[str, Any], shown: bool
) -> None:
    request = Request(tuple(map(load.mixer, mixers)), **{"phases": ("inference",), **options})
    text = write(table_document(table(request)), "rich", Page())
    assert ("sequence length l" in text) == shown
    assert "t > l" not in text or shown


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 4))
def test_overruns_are_exactly_reads_past_the_end(l: int, t: int, w: int) -> None:
    mixer = Mixer("windowed")
    letters = mixer.sizes("l d w")
    x, y = mixer.input("x", letters[0], letters[1]), mixer.output("y", letters[0], letters[1])
    near, table_ = mixer.parameter("near", letters[2]), mixer.buffer("table", letters[0])
    with mixer.form("direct") as f:
        i = f.index("i", 1, letters[0])
        j, b = f.index("j", cm.max_(1, i - letters[2] + 1), i), f.index("b", 1, letters[1])
        y[i, b] = cm.sum_(x[j, b] * near[i - j + 1], over=j) * table_[i]
    found = overruns(system_of(mixer, None, (), "inference"))
    past = {o.array for o in found if o.at({"l": l, "t": t, "w": w, "d": 1})}
    assert past == ({"table"} if t > l else set())


def test_a_form_without_inference_keeps_its_parameters() -> None:
    row = one("she", "inference", form="fft")
    shown = ("mul", "other", "once", "total", "span", "critical_path", "state", "traffic", "ratio")
    for column in shown:
        value = row.value(column)
        assert isinstance(value, Missing) and "form 'direct' works token by token" in value.reason
    assert row.value("parameters") == 2_129_920


@pytest.mark.parametrize(("peer", "counted"), [("torch", {"mul", "add"}), ("fvcore", {"mul"})])
def test_what_a_peer_does_not_count_is_missing_and_not_zero(peer: str, counted: set[str]) -> None:
    row = one("self-attention", "training", convention=convention(peer), given=sizes(n=32))
    for name in ("mul", "add", "div", "exp", "other"):
        value = row.value(name)
        assert isinstance(value, int if name in counted else Missing)
    assert row.value("total") == {"torch": 25_165_824, "fvcore": 12_582_912}[peer]


def by_python(formula: str, at: Mapping[str, int]) -> Fraction:
    """What Python itself makes of a printed formula, all of whose numbers are exact."""
    functions = {
        "whole": Fraction, "Max": max, "Min": min,
        "floor": lambda x: Fraction(math.floor(x)),
        "ceil_log2": lambda x: next(Fraction(k) for k in itertools.count() if 2**k >= x),
    }  # fmt: skip
    exact = re.sub(r"\b\d+", r"whole(\g<0>)", formula)
    values = {letter: Fraction(number) for letter, number in at.items()}
    found = eval(exact, {"__builtins__": {}}, {**functions, **values})
    return Fraction(found)


IN_NUMBERS = {"best_chunk": "needs a number for every size"}
"""Key of a row -> why the row has no formula for any mixer."""


@pytest.mark.grid(2)
@pytest.mark.parametrize(("name", "form"), distinct())
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_symbolic_rows_evaluate_to_the_numbers(name: str, form: str, phase: str) -> None:
    mixer = cm.mixer(name)
    at = complete(mixer, {"b": 1, "l": 6, "d": 4, "n": 2, "t": 6})
    number = table_data.json_row(one(name, phase, form=form, given=sizes(**at)))
    text = table_data.json_row(one(name, phase, form=form, symbolic=True))

    def same(left: Any, right: Any, key: str) -> None:
        if left is None or key == "reasons":
            assert right is None or key == "reasons"
        elif isinstance(left, dict):
            assert left.keys() == right.keys(), key
            for inner in left:
                same(left[inner], right[inner], inner)
        elif right is None:
            reason = LEFT_OPEN.get(
                (name, form, key), IN_NUMBERS.get(key, "the largest of more than")
            )
            assert reason in text["reasons"][key]
        elif isinstance(left, int) or key in ("ratio", "intensity"):
            assert by_python(right, at) == Fraction(str(left)), key

    for key in set(number) - {"critical_path", "order", "sizes", "searched"}:
        same(number[key], text[key], key)


def test_tables_3_and_4_of_the_paper() -> None:
    found = {(r.mixer.name, r.phase): r for r in rows("self-attention", "she", symbolic=True)}
    printed = {
        ("self-attention", "training"): (
            "4*d**2*l + d*l**2 + d*l", "4*d**2*l + d*l**2 - 4*d*l - l*n",
            "l**2*n + l*n", "l**2*n/2 + l*n/2", "4*d**2",
        ),
        ("she", "training"): (
            "d**2*l**2/2 + 5*d**2*l/2 + d*l", "d**2*l**2/2 + 5*d**2*l/2 - 3*d*l",
            "0", "0", "d**2*l + 2*d**2",
        ),
        ("self-attention", "inference"): (
            "4*d**2 + 2*d*t", "4*d**2 + 2*d*t - 5*d - n", "2*n*t", "n*t", "4*d**2",
        ),
        ("she", "inference"): (
            "d**2*t + 2*d**2 + d", "d**2*t + 2*d**2 - 3*d", "0", "0", "d**2*l + 2*d**2",
        ),
    }  # fmt: skip
    for key, expected in printed.items():
        row = table_data.json_row(found[key])
        counts = (row["counts"][name] for name in ("mul", "add", "div", "exp"))
        assert (*counts, row["parameters"]) == expected


def test_symbolic_puts_in_the_sizes_that_are_given() -> None:
    row = one("self-attention", "inference", symbolic=True, given=sizes(n=1, d=2))
    assert table_data.json_row(row)["counts"]["add"] == "4*t + 5"


def test_per_token_divides_by_all_tokens_exactly() -> None:
    row = one("self-attention", "training", per_token=True, given=sizes(l=4, d=3, n=1, b=5))
    assert row.value("exp") == Fraction(5, 2) and row.value("total") == Fraction(187, 2)
    assert row.value("parameters") == 36
    one_token = one("she", "inference", per_token=True, given=sizes(b=7))
    assert one_token.value("total") == 4_259_584


def said(*mixers: str, **options: Any) -> str:
    """What stands below the table of the forward pass."""
    chosen = tuple(map(builtin, mixers))
    made = table(Request(chosen, phases=("training",), **options))
    return " / ".join(map(terminal.text, shown_table(made.blocks[0], made.request).said))


def test_work_done_once_is_told_below_the_table() -> None:
    lead = "mul, add, div, exp leave out the work done once for the weights"
    shown = said("she", "self-attention", form="all")
    assert f"once: {lead} (column once); total includes it" in shown
    few = said("she", form="fft", columns=("mixer", "mul", "total"))
    assert "once: mul leave out the work done once for the weights (shown by column once)" in few
    alone = said("she", form="fft", columns=("mixer", "total"))
    assert "once: total includes the work done once for the weights" in alone
    assert "once" not in said("she", "self-attention")
    assert "once" not in said("she", form="fft", columns=("mixer", "parameters"))


def test_other_operations_are_told_below_the_table() -> None:
    safe = convention("safe-softmax")
    shown = said("self-attention", convention=safe)
    assert "other: operations without a class of their own, here compare; total incl" in shown
    assert "other:" not in said("self-attention", convention=safe, columns=("mixer", "total"))
    assert "other:" not in said("self-attention")


def test_per_token_says_what_is_divided() -> None:
    columns = ("mixer", "mul", "total", "traffic", "parameters", "weights", "span")
    shown = said("she", per_token=True, columns=columns)
    assert (
        "per token: mul, total, traffic are divided by the b × l tokens; parameters, weights, span "
        "are not"
    ) in shown
    assert "are divided" not in said("she", per_token=True, columns=("mixer", "parameters"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("128", (128,)),
        ("1,8,32", (1, 8, 32)),
        ("1:9:2", (1, 3, 5, 7, 9)),
        ("3:5", (3, 4, 5)),
        ("128:1024:x2", (128, 256, 512, 1024)),
        ("1,4:16:x2,1", (1, 4, 8, 16)),
        ("5:5", (5,)),
    ],
)
def test_values_of_a_size(text: str, found: tuple[int, ...]) -> None:
    assert values("l", text) == found


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "1e3", "a", "1,,2", "4:2", "1:9:0", "1:9:x1", "1:9:x", "1:2:3:4",
     "0:4", "99999999999999", "1:999999999", "__import__('os')", "\u0661", "1 2"],
)  # fmt: skip
def test_bad_values_of_a_size(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        values("l", text)
    assert "size l" in str(caught.value) and "\n" not in str(caught.value)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), st.integers(1, 9))
def test_combinations_are_the_cross_product(lengths: list[int], width: int) -> None:
    given_ = {"l": tuple(lengths), "d": (width,), "w": (3,)}
    found = combinations(["b", "l", "t", "d"], given_)
    assert found == [{"b": 1, "l": l, "t": l, "d": width} for l in lengths]


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(SizeError, match=r"d/n to be whole, got 25/2 \(d = 100, n = 8\)"):
        fit(builtin("self-attention"), {"b": 1, "l": 1, "d": 100, "n": 8})
    fit(builtin("she"), {"b": 1, "l": 1, "d": 100})


def test_a_table_has_the_selected_mixers() -> None:
    assert [m.name for m in selection([])[0]] == list(DEFAULT)
    assert {m.name for m in selection([], everything=True)[0]} == set(names())
    ablations = {"she-no-output", "she-extraction", "he-extraction"}
    assert {m.name for m in selection([], "extractor")[0]} == {"she", "he", "we", "me"} | ablations
    with pytest.raises(TableError):
        selection([builtin("she")], "extractor")


def test_a_mixer_that_sizes_do_not_fit_is_left_out_or_a_dash_if_typed_sizes_refuse_it() -> None:
    """r divides l for Nystromformer alone; n divides d for the first of its group already."""
    linear, named = selection([], "linear")
    made = table(Request(linear, named=named, given=sizes(l=100)))
    assert [len(block.rows) for block in made.blocks] == [len(linear) - 1] * 2
    assert made.left_out == (
        "nystromformer needs l/r to be whole, got 25/4 (l = 100, r = 16); choose l divisible by r, "
        "such as l = 96 or 112, or r = 10 or 20",
    )
    assert table(Request(linear, named=True, given=sizes(l=100))).left_out == made.left_out
    nystromformer = (builtin("nystromformer"),)
    typed = table(Request(linear, named=True, given=sizes(l=100, r=16)))
    (said,) = typed.malformed
    assert said == f"nystromformer has no values: {made.left_out[0]}" and not typed.left_out
    for request in (Request(nystromformer, named=True, given=sizes(l=100)),
                    Request(linear, named=named, given=sizes(d=100))):  # fmt: skip
        with pytest.raises(SizeError):
            table(request)


def test_a_named_mixer_that_a_default_size_does_not_fit_is_left_out_by_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Eight heads are the default, and d = 6 is no multiple of 8."""
    asked = ["table", "self-attention", "lstm", "--d", "6", "--l", "7"]
    assert cli.run(asked) == 0
    shown = capsys.readouterr().out
    assert "lstm" in shown
    assert "left out: self-attention needs d/n to be whole, got 3/4 (d = 6, n = 8)" in shown
    assert cli.run([*asked, "--n", "8"]) == 1
    assert capsys.readouterr().err.startswith("costmodel: self-attention has no values: self-atte")
    assert cli.run(["table", "self-attention", "--d", "6"]) == 2


def test_a_sum_whose_terms_need_too_much_memory_is_missing() -> None:
    def terms(_: object) -> Mapping[str, Exact]:
        raise MemoryError

    (row,) = rows("me", phases=("training",))
    found = table_data.figures_of(row, [FIGURES["total"], replace(FIGURES["other"], parts=terms)])
    assert found["total"] and found["reasons"] == {"other": TOO_LITTLE}


def test_sorting_puts_what_does_not_exist_last() -> None:
    given_ = sizes(l=8, t=9)
    found = rows("she", "self-attention", "me", phases=("inference",), given=given_, sort="total")
    assert [r.mixer.name for r in found] == ["self-attention", "she", "me"]
    found = rows(phases=("training",), sort="-total")
    totals = [r.value("total") for r in found]
    assert totals == sorted(totals, key=lambda v: -int(str(v)))


@pytest.mark.grid(48)
@pytest.mark.parametrize("mixer", variants())
def test_every_column_has_a_value_or_the_reason_of_its_phase(mixer: str) -> None:
    """In every form and both phases, at the usual sizes."""
    found = rows(mixer, form="all", named=False)
    for row, name in itertools.product(found, (*LABELS, *FIGURES)):
        value = row.value(name)
        assert value is not None
        if not isinstance(value, Missing):
            continue
        assert value.reason
        own = row.phase in COLUMNS[name].phases
        free = name == "best_chunk" and value.reason.endswith("exactly one such size")
        further = (
            name == "critical_path" and left_open(row.mixer.name, row.form, "span") is not None
        )
        further |= value.reason == LEFT_OPEN.get((row.about.mixer.name, row.about.form, "traffic"))
        assert value.reason == row.blocked or not own or free or further, (row.form, name)


def test_rounding_keeps_every_digit_before_the_point() -> None:
    assert document.number(Fraction(123_456_788, 3)) == "41,152,263"
    assert document.number(Fraction(2, 3)) == "0.6667"
    assert document.number(Fraction(10_000, 9_999)) == "1.000"
    assert document.number(Fraction(4, 2)) == "2"


@cache
def usual() -> document.Table:
    """The plain table of a forward pass."""
    made = table(Request(tuple(map(builtin, DEFAULT)), phases=("training",)))
    return shown_table(made.blocks[0], made.request)


def printed(found: document.Table, width: int | None = None) -> str:
    return write(Document(lambda: [found]), "rich", Page(width))


@given(st.integers(1, 200))
def test_a_narrow_terminal_loses_no_column_and_no_digit(width: int) -> None:
    def numbers(text: str) -> set[str]:
        return set(re.findall(r"[\d,.]*\d", text))

    text = printed(usual(), width)
    assert numbers(printed(usual())) <= numbers(text)
    words = " ".join(text.split())
    headers = [str(column.header) for column in usual().columns if not column.names]
    assert all(header.split()[0] in words for header in headers)
    if width >= 40:
        assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("width", [1, 40, 400])
def test_a_table_without_rows_has_its_title_at_every_width(width: int) -> None:
    columns = tuple(Column(name, f"header {name}") for name in "abcdefghi")
    assert printed(document.Table("Title", columns, ()), width).startswith("Title")


def test_the_largest_state_over_a_chunk_is_named() -> None:
    """After a full chunk of w = 5 nothing is held; after 4 tokens of one 2 d 4 elements."""
    sizes: dict[str, Any] = {"d": 3, "n": 1, "w": 5, "phase": "inference"}
    told = "-window holds up to 24 elements of each sequence, at t = 14"
    assert told in str(cm.table("self-attention+chunked-window", t=[10, 12], **sizes))
    assert "holds up to" not in str(cm.table("self-attention+chunked-window", t=14, **sizes))
    assert "holds up to" not in str(cm.table("self-attention+window", t=14, **sizes))


def test_weights_and_rows_of_tokens_may_be_in_blocks() -> None:
    """4 d^2 weights at 18 bytes for 32, and 2 d t entries of the state at 34 bytes for 32."""
    named: dict[str, Any] = {"columns": "weights_bytes,state_bytes", "phase": "inference"}
    sizes: dict[str, Any] = {"d": 32, "n": 1, "t": 3}
    types: dict[str, Any] = {"dtype": "bf16", "weight_dtype": "q4_0", "cache_dtype": "q8_0"}
    (row,) = cm.table("self-attention", **named, **types, **sizes)
    assert (row["weights_bytes"], row["state_bytes"]) == (4 * 32 * 18, 2 * 3 * 34)
    (odd,) = cm.table("self-attention", **named, **types, **{**sizes, "d": 1})
    assert odd["weights_bytes"] == 3  # 4 * 18 / 32, as if rows filled their blocks
    assert odd["state_bytes"] == 2 * 3 * 34  # a block for each key and each value
    named["columns"] += ",traffic"
    sizes = {"d": 66, "n": 2, "t": 3}
    for mixer in ("self-attention", "self-attention{h=33}", "decoder{d=66,n=2}"):
        given = {"t": 3} if "d=" in mixer else sizes
        (row,) = cm.table(mixer, **named, **types, **given)
        (wide,) = cm.table(mixer, **named, **{**types, "cache_dtype": "bf16"}, **given)
        layers = row["state_bytes"] // (2 * 2 * 3 * 2 * 34)  # two blocks for a head of 33
        assert row["state_bytes"] == layers * 2 * 2 * 3 * 2 * 34
        # two rows of each key and value are read, and one is written
        assert row["traffic"] - wide["traffic"] == layers * 2 * 2 * 3 * (2 * 34 - 2 * 33)
    for role in ("dtype", "state_dtype"):
        with pytest.raises(ValueError, match="unknown dtype 'q4_0'"):
            cm.table("self-attention", **{**types, role: "q4_0"})


@pytest.mark.parametrize(
    ("mixers", "options", "said"),
    [
        ("mla she", {}, "mla in form absorbed or re-expanded holds less, Rt + ct elements of each"),
        ("mla:expanded mla:absorbed", {}, "mla in form re-expanded holds less"),
        ("mla:absorbed", {}, ""),
        ("mla", {"c": 5}, ""),
        ("mla", {"c": [5, 4]}, "holds less"),
        ("mla", {"symbolic": True}, ""),
        ("mla", {"columns": "span"}, ""),
    ],
)
def test_a_form_that_holds_less_state_is_named(
    mixers: str, options: dict[str, Any], said: str
) -> None:
    """Expanded n(K + V) + R = 7 entries a token; absorbed R + c, of c = 4 or 5."""
    sizes = {"n": 1, "K": 2, "V": 3, "R": 2, "c": 4}
    shown = str(cm.table(mixers.split(), phase="inference", **{**sizes, **options}))
    assert said in shown and ("holds less" in shown) == bool(said)


@pytest.mark.parametrize(
    ("width", "shape"),
    [(None, "whole"), (160, "whole"), (140, "wrapped"), (80, "bands"), (40, "stack")],
)
def test_a_table_takes_the_first_shape_that_fits(width: int | None, shape: str) -> None:
    lines = [line.split("  ")[0] for line in printed(usual(), width).splitlines()]
    found = {"whole": 1, "wrapped": 1, "bands": 2, "stack": 0}[shape]
    assert lines.count("mixer") == found
    assert lines.count("self-attention") == max(found, 1)


def test_formulas_take_a_common_factor_out_before_the_table_parts() -> None:
    l, d = size("l"), size("d")
    columns = (Column("mixer", "mixer", numeric=False), Column("mul", "mul"))
    found = document.Table("", columns, (("a", Formula(4 * d**2 * l + d * l**2 + d * l)),))
    assert "4d²l + dl² + dl" in printed(found, 30)
    assert "dl(4d + l + 1)" in printed(found, 21)


def test_a_formula_longer_than_the_window_stands_below_the_table() -> None:
    l, d = size("l"), size("d")
    columns = (Column("mixer", "mixer", numeric=False), Column("mul", "mul"))
    long, short = (Formula(4 * d**2 * l + d**3 * l**2 + d * l), Formula(4 * d))
    found = document.Table("", columns, (("a", long), ("b", short), ("c", long)))
    lines = [line.split() for line in printed(found, 15).splitlines()]
    assert lines[2:5] == [["a", "(1)"], ["b", "4d"], ["c", "(1)"]]
    assert "".join(map("".join, lines[5:])) == "(1)d³l²+4d²l+dl"
    assert "(1)" not in printed(found, 24)


def test_causal_and_bidirectional_mixers_are_apart_where_they_share_a_ratio() -> None:
    chosen = tuple(map(builtin, ("simple", "self-attention", "linformer", "me")))
    wide = Request(chosen, phases=("training",), columns=("mixer", "total", "ratio"))
    for request, groups in ((wide, 2), (replace(wide, columns=("mixer", "total")), 0)):
        (block,) = table(request).blocks
        text = printed(shown_table(block, request))
        words = [
            line
            for name in ("causal", "bidirectional")
            for line in text.splitlines()
            if line.startswith(name)
        ]
        assert len(words) == groups
        if groups:
            order = ("causal", "self-attention", "me", words[1], "simple", "linformer")
            places = [text.index(f"\n{name}") for name in order]
            assert places == sorted(places) and "causal self-attention" in words[1]


def test_equal_notes_stand_below_the_last_table_that_has_them() -> None:
    columns = (Column("mixer", "mixer", numeric=False),)
    one, two, three = (
        document.Table(title, columns, (("x",),), (document.Note((said,)),))
        for title, said in (("1", "same"), ("2", "same"), ("3", "other"))
    )
    text = write(Document(lambda: [one, two, three]), "rich", Page())
    assert text.count("same") == 1 and text.index("2") < text.index("same") < text.index("3")


def test_sizes_that_vary_stand_in_the_rows_whatever_columns_are_asked_for() -> None:
    made = table(
        Request(
            (builtin("me"),), given={"l": (4, 8)}, phases=("training",), columns=("mixer", "mul")
        )
    )
    found = shown_table(made.blocks[0], made.request)
    assert [column.name for column in found.columns] == ["mixer", "l", "mul"]
    assert [row[1] for row in found.body] == [4, 8]


def test_a_form_and_what_is_not_causal_are_named() -> None:
    made = table(Request(tuple(map(builtin, ("she", "simple"))), form="all", phases=("training",)))
    found = shown_table(made.blocks[0], made.request)
    rows = [terminal.text(row[0], dict.fromkeys(found.footnotes, 1)) for row in found.body]
    assert rows == ["she", "she, fft", "simple (1)", "simple (1), qk-first"]
    (note,) = found.footnotes
    assert note.startswith("not causal")


@pytest.mark.parametrize(("format_", "end"), [("markdown", " |"), ("latex", " &")])
def test_print_tells_rows_apart_by_the_sizes_in_their_braces(format_: str, end: str) -> None:
    mixers = tuple(map(load.mixer, ("mqa{n=4}", "gqa{n=4,g=2}", "she", "mamba-2{P=4,N=3}")))
    made = table_document(table(Request(mixers, phases=("training",), columns=("mixer", "total"))))
    lines = write(made, format_, Page(names={"n": r"\tau"})).splitlines()
    for name in (
        r"Self-attention (grouped), $\tau = 4$, $g = 1$",
        r"Self-attention (grouped), $\tau = 4$, $g = 2$",
        "SHE",
        "Mamba-2, $P = 4$, $N = 3$",
    ):
        found = [line for line in lines if line.removeprefix("| ").startswith(name + end)]
        assert len(found) == 1, name


def test_answers_are_derived_once() -> None:
    mixer = builtin("she")
    assert answers(mixer, "direct", "training", convention("strict")) is answers(
        mixer, "direct", "training", convention("strict")
    )


def test_csv_keeps_the_order_of_the_columns_asked_for() -> None:
    """`state` exists in one of the two blocks only."""
    request = Request((builtin("me"),), columns=("mixer", "state", "mul"))
    header, _ = table_data.rows(table(request))
    lead = ["convention", "form", "phase", "b", "l", "t", "d"]
    assert header == [*lead, "mixer", "state", "mul", "reasons"]


REFUSED = {
    ("fixed-attention", "path_length"): (
        "index p skips entries by a stride of B",
        "read all entries, at (p - 1)*B + e with an index e in 1..B, into an array [p, e], which "
        "may then be read in part",
    ),
    ("bigbird", "state"): (
        "not causal: Z gathers from K at any position that P holds, later ones too",
        "if these positions are no later than row i, declare below=lambda i: i",
    ),
    ("reformer", "state"): (
        "form 'direct' chooses from the whole token axis at once",
        "equation at chooses from it",
    ),
}
"""Mixer and column -> why there is no value, and what an author of the equations may change."""


@pytest.mark.parametrize(("name", "column"), REFUSED)
def test_advice_to_an_author_is_shown_where_the_equations_are_a_users_own(
    name: str, column: str, tmp_path: Path
) -> None:
    reason, advice = REFUSED[name, column]
    equations = Path(cm.__file__).parent / "mixers" / f"{file_of(name)}.py"
    copied = equations.read_text(encoding="utf-8").replace(f'"{name}"', f'"my-{name}"')
    (tmp_path / "my.py").write_text(copied, encoding="utf-8")
    mine = load.mixer(f"{tmp_path / 'my.py'}:my-{name}")
    found = "; with a number for every size, a search finds path_length"
    ending = found if column == "path_length" else ""
    for mixer, said in ((builtin(name), reason), (mine, f"{reason}; {advice}")):
        for block in table(Request((mixer,), symbolic=True)).blocks:
            for row in block.rows:
                if block.phase == ("training" if column == "path_length" else "inference"):
                    assert row.value(column) == Missing(said + ending)


def test_a_reason_of_several_rows_is_said_once() -> None:
    request = Request(
        tuple(map(builtin, ("fixed-attention", "strided-attention"))),
        given={"l": (4, 5), "B": (2,)},
        phases=("training",),
        columns=("mixer", "path_length"),
    )
    found = shown_table(table(request).blocks[0], request)
    text = write(Document(lambda: [found]), "rich", Page())
    assert text.count("found at these sizes") == 1
    assert "path_length of fixed-attention, strided-attention: found at these sizes" in text


def test_one_token_that_is_not_derived_leaves_the_rest_of_a_table() -> None:
    """The chunk of the new token is summed to where the sequence ends."""
    mixer = cm.Mixer("chunk-sums", source="x")
    l, d, C = mixer.sizes("l d C")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        M = f.array("M", l // C + 1, d)
        p, a = f.index("p", 1, l // C + 1), f.index("a", 1, d)
        u = f.index("u", 1, cm.min_(C, l - (p - 1) * C))
        M[p, a] = cm.sum_(x[(p - 1) * C + u, a], over=u)
        q, e = f.index("q", 1, p - 1), f.index("e", 1, cm.min_(C, l - (p - 1) * C))
        s = f.index("s", 1, e)
        y[(p - 1) * C + e, a] = cm.sum_(M[q, a], over=q) + cm.sum_(x[(p - 1) * C + s, a], over=s)
    found = table(Request((mixer,), given={"d": (8,), "l": (8,), "C": (4,)}))
    forward, token = (block.rows[0].value("total") for block in found.blocks)
    assert forward == 176
    assert isinstance(token, Missing) and "depends on the length of the sequence" in token.reason


def test_weights_counted_from_the_end_have_none_for_tokens_beyond_it() -> None:
    mixer = cm.Mixer("from-the-end", source="x")
    l, d = mixer.sizes("l d")
    x, y, W = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("W", l)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        j = f.index("j", 1, i)
        y[i, a] = cm.sum_(x[j, a] * W[l - i + j], over=j)
    sizes = {"d": (8,), "l": (8,), "t": (8, 9)}
    (block,) = table(Request((mixer,), given=sizes, phases=("inference",))).blocks
    last, beyond = (row.value("mul") for row in block.rows)
    assert last == 64
    assert isinstance(beyond, Missing) and "before the start of W" in beyond.reason


def test_a_ratio_to_itself_is_1() -> None:
    """As a formula too, in every phase."""
    mixers = (builtin("self-attention"), builtin("me"))
    phases = ("training", "inference", "backward", "training-step")
    request = Request(mixers, symbolic=True, phases=phases, columns=("mixer", "ratio"))
    for block in table(request).blocks:
        own, other = (row.value("ratio") for row in block.rows)
        assert own == Exact.of(Poly.of(1)) and isinstance(other, Quotient)


def test_a_class_with_a_column_is_not_shown_again_among_the_others() -> None:
    request = Request(
        (builtin("spade"),), phases=("training",), columns=("mixer", "sqrt", "other"),
        given={"l": (4,), "d": (4,), "n": (2,)},
    )  # fmt: skip
    (block,) = table(request).blocks
    (row,) = block.rows
    assert row.value("other") == 8 + 16 and row.value("other", block.columns) == 16
    header, (line,) = table_data.rows(table(request))
    cells = dict(zip(header, line, strict=True))
    assert (cells["sqrt"], cells["other"], cells["other_erf"]) == (8, 16, 16)
    assert "other_sqrt" not in cells
    symbolic = replace(request, symbolic=True, given={})
    (row,) = table(symbolic).blocks[0].rows
    own, rest = row.value("sqrt"), row.value("other", block.columns)
    assert isinstance(own, Exact) and isinstance(rest, Exact) and own + rest == row.value("other")


@pytest.mark.parametrize(("symbolic", "order"), [(True, "d**2*l"), (False, "d**2*l + d*l*w")])
def test_a_size_that_is_given_does_not_grow_among_formulas(symbolic: bool, order: str) -> None:
    request = Request(
        (builtin("restricted-attention-causal"),), symbolic=symbolic, phases=("training",),
        given={"w": (16,)},
    )  # fmt: skip
    found = table(request).blocks[0].rows[0].value("order")
    assert isinstance(found, Exact) and formula_words(found) == order


@pytest.mark.parametrize(
    ("name", "sizes", "zeros"),
    [
        ("bigbird", {"l": 4, "d": 4, "n": 2, "s": 5, "w": 3, "c": 2}, "V.grad.1, K.grad.1"),
        ("bigbird", {"l": 6, "d": 4, "n": 2, "s": 5, "w": 3, "c": 2}, ""),
        ("longformer", {"l": 4, "d": 4, "n": 2, "s": 5, "w": 3}, ""),
        ("mega", {"l": 1, "d": 2, "K": 3, "v": 3, "N": 2}, "E.grad"),
        ("s4d", {"l": 1, "d": 4, "N": 2}, "E.grad.1, E.grad.2"),
    ],
    ids=str,
)
def test_zeros_that_gradients_add_are_named(name: str, sizes: dict[str, int], zeros: str) -> None:
    form = "recurrent" if "recurrent" in builtin(name).forms else None
    given = {x: (n,) for x, n in sizes.items()}
    request = Request((builtin(name),), phases=("backward",), form=form, given=given)
    found = shown_table(table(request).blocks[0], request)
    text = write(Document(lambda: [found]), "rich", Page())
    said = f"{name}: some entries of {zeros} are empty sums at these sizes"
    assert (said in text) if zeros else ("are empty sums" not in text)


def test_a_formula_of_many_cases_is_a_dash_and_a_number_at_sizes() -> None:
    """Eight sums, each over the shorter of the sequence and a size of its own: 2^8 cases."""
    made = cm.Mixer("cased")
    l, d, *ends = made.sizes("l d w k s c B r m C")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        value: Node = x[i, a]
        for end in ends:
            j = f.index(f"j{end}", 1, cm.min_(l, end))
            value = value + cm.sum_(x[j, a], over=j)
        y[i, a] = value
    sizes = {"l": 4, "d": 3} | dict.fromkeys(map(str, ends), 2)
    ((symbolic,), (at_sizes,)) = (
        [row for b in table(request).blocks for row in b.rows]
        for request in (
            Request((made,), phases=("training",), symbolic=True),
            Request((made,), phases=("training",), given={k: (v,) for k, v in sizes.items()}),
        )
    )
    found = symbolic.value("add")
    assert isinstance(found, Missing) and "more than 200 cases" in found.reason
    assert at_sizes.value("add") == 4 * 3 * 8 * 2
