"""Does an explanation add up: shares to counts, printed sums to closed forms, steps to paths?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

import costmodel as cm
from costmodel import EquationError, Mixer, Unanswered
from costmodel.errors import SizeError, Unsupported
from costmodel.program.conventions import Convention, convention
from costmodel.program.phases import iteration_domains
from costmodel.questions.counting.by_equation import count_instances
from costmodel.questions.counting.derivation import sums
from costmodel.questions.question import FOUND
from costmodel.questions.shares import Shares
from costmodel.questions.subject import system_of
from costmodel.report.document import (
    Display,
    Document,
    Formula,
    Heading,
    Math,
    Page,
    Paragraph,
    Part,
    Shown,
    Table,
)
from costmodel.report.explanation import Explanation
from costmodel.report.formats import write
from costmodel.report.terminal import wrapped
from costmodel.report.writer import PLAIN_TEXT
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import size
from tests import systems
from tests.small import LEFT_OPEN, complete, distinct, forms, without_inference

SIZES = {"b": 1, "l": 5, "d": 6, "n": 2, "t": 4, "w": 3}
PHASES = ("training", "inference")
CONVENTIONS = ("strict", "mac", "safe-softmax,dense")
FORMS = distinct()


def sizes_of(mixer: Mixer) -> dict[str, int]:
    own = {k: v for k, v in SIZES.items() if k in ("b", "t", *mixer.letters)}
    return complete(mixer, own)


def explained(name: str, phase: str, form: str = "", names: str = "strict") -> Explanation:
    mixer = cm.mixer(name)
    form = form or mixer.default_form
    return Explanation(mixer, form, (phase,), sizes_of(mixer), convention(names))


def shares(about: Explanation) -> Shares:
    (phase,) = about.phases
    return Shares(about.case(phase))


def words(parts: list[Part], width: int | None = None) -> str:
    return write(Document(lambda: parts), "rich", Page(width))


def tex(parts: list[Part], command: str = "costmodel") -> str:
    return write(Document(lambda: parts), "latex", Page(command=command))


def holds_printed_sums(
    mixer: Mixer, phase: str, chosen: Convention, form: str, sizes: Mapping[str, int]
) -> None:
    system = system_of(mixer, form, chosen.rewrites, phase)
    for part in iteration_domains(system, phase):
        counted = count_instances(part, chosen.accounting)
        printed = sums(part, chosen.accounting)
        for name in {*counted, *printed}:
            total = sum(s.at(sizes) for s in printed[name])
            assert total == (counted[name].at(sizes) if name in counted else 0), (part, name)


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("phase", PHASES)
def test_printed_sums_run_term_by_term_are_the_counts(name: str, form: str, phase: str) -> None:
    mixer = cm.mixer(name)
    if phase == "inference" and (reason := without_inference(mixer, form)):
        assert f"(the papers' inference phase): no answer: {reason}." in words(
            explained(name, phase, form).parts()
        )
        return
    for chosen in CONVENTIONS:
        holds_printed_sums(mixer, phase, convention(chosen), form, sizes_of(mixer))


@given(systems.mixers(), systems.sizes())
def test_printed_sums_of_random_systems(mixer: Mixer, sizes: dict[str, int]) -> None:
    for phase in PHASES:
        try:
            holds_printed_sums(mixer, phase, Convention(), "direct", {**sizes, "t": sizes["l"]})
        except (Unsupported, Unanswered):
            continue


def test_few_printed_sums_of_random_systems_are_left_open() -> None:
    """No more than the counts that they are held against."""
    asked: Counter[bool] = Counter()

    @given(systems.mixers())
    def ask(mixer: Mixer) -> None:
        system = system_of(mixer, "direct", (), "training")
        try:
            counted = [count_instances(part) for part in iteration_domains(system, "training")]
        except Unsupported:
            return
        assert len(counted) == len([sums(part) for part in iteration_domains(system, "training")])
        asked[any(counted)] += 1

    ask()
    assert asked[True] >= 0.7 * asked.total() > 0


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("phase", PHASES)
def test_shares_add_up_to_the_counts(name: str, form: str, phase: str) -> None:
    mixer = cm.mixer(name)
    if phase == "inference" and (reason := without_inference(mixer, form)):
        with pytest.raises(Unanswered, match=re.escape(reason)):
            _ = shares(explained(name, phase, form)).counts
        return
    at = {k: v for k, v in sizes_of(mixer).items() if k != "b"}
    for chosen in ("strict", "mac", "safe-softmax", "torch", "fvcore"):
        found = shares(explained(name, phase, form, chosen))
        counts = cm.count(mixer, phase, form, chosen)
        for column in found.columns:
            if column == "once":
                total = counts.once.exact_total if counts.once else Exact()
            else:
                total = counts.exact_total if column == "total" else counts.exact(column)
            assert sum(found.number(e, column) for e in found.counts) == total.at(at), column


@pytest.mark.parametrize("phase", ["backward", "training-step"])
def test_shares_of_gradients_add_up_for_a_batch(phase: str) -> None:
    """The gradients of weights are added up over the sequences."""
    about = explained("self-attention", phase)
    many = Explanation(about.mixer, about.form, (phase,), {**about.sizes, "b": 3})
    at = {name: many.sizes[name] for name in ("b", *about.mixer.letters)}
    found, counts = shares(many), cm.count(about.mixer, phase).at(**at)
    for column, whole in (("total", counts.total), ("add", counts.add), ("mul", counts.mul)):
        assert sum(found.number(e, column) for e in found.counts) == whole


def test_work_done_once_stays_one_for_a_batch() -> None:
    about = explained("she", "training", "fft")
    many = Explanation(about.mixer, "fft", ("training",), {**about.sizes, "b": 3})
    one, three = shares(about), shares(many)
    assert three.number("W_f", "once") == one.number("W_f", "once") > 0
    assert three.number("x_f", "mul") == 3 * one.number("x_f", "mul")
    assert three.number("W_f", "total") == one.number("W_f", "total")


def test_work_done_once_is_told_below_the_shares() -> None:
    text = words(explained("she", "training", "fft").parts())
    said = "once: mul, add leave out the work done once for the weights (column once)"
    assert text.count(f"{said}; total includes it") == 1
    assert "leave out" not in words(explained("she", "training").parts())


PARTED = """import costmodel as cm

parted = cm.Mixer("parted")
l, d = parted.sizes("l d")
x, y = parted.input("x", l, d), parted.output("y", l, d)
with parted.form("direct") as f:
    b, first, rest = f.index("b", 1, d), f.index("first", 1, 1), f.index("rest", 2, l)
    y[first, b] = x[first, b] * x[first, b]
    y[rest, b] = x[rest, b] * x[rest - 1, b]
"""


def test_a_sum_for_some_tokens_only_says_for_which(tmp_path: Path) -> None:
    (tmp_path / "parted.py").write_text(PARTED, encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path / 'parted.py'}:parted")
    text = words(
        Explanation(mixer, "direct", ("inference",), {"b": 1, "l": 5, "d": 6, "t": 3}).parts()
    )
    assert "mul(y) = [t <= 1] sum(b = 1..d) 1 = " in text
    assert "mul(y) = [t >= 2] sum(b = 1..d) 1 = " in text
    holds_printed_sums(mixer, "inference", Convention(), "direct", SIZES)


BEFORE = """import costmodel as cm

before = cm.Mixer("before")
l, d = before.sizes("l d")
x, y = before.input("x", l, d), before.output("y", l, d)
with before.form("direct") as f:
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", 1, i - 1)
    y[i, b] = x[i, b] + cm.sum_(x[j, b] * x[j, b], over=j)
"""


def test_what_a_sum_over_no_term_spares_stands_in_brackets(tmp_path: Path) -> None:
    """Row 1 adds nothing; row i has i - 1 terms: i - 2 additions, and the one of x[i, b]."""
    (tmp_path / "before.py").write_text(BEFORE, encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path / 'before.py'}:before")
    sizes = {"b": 1, "l": 5, "d": 6, "t": 3}
    parts = Explanation(mixer, "direct", PHASES, sizes).parts()
    text = words(parts)
    assert "mul(y) = sum(i = 1..l, b = 1..d, j = 1..i - 1) 1 = " in text
    assert "add(y) = sum(i = 1..l, b = 1..d) [i >= 2] (i - 1) = " in text
    assert "add(y) = [t >= 2] sum(b = 1..d) (t - 1) = " in text
    assert r"\sum_{i=1}^{l} \sum_{b=1}^{d} [i \ge 2] (i - 1)" in tex(parts)
    for phase in PHASES:
        holds_printed_sums(mixer, phase, Convention(), "direct", sizes)


def test_an_equation_is_a_paragraph_that_latex_breaks() -> None:
    ranges = (Math("", r"i=1,\dots,l"), Math("", r"j=1,\dots,d"))
    shown = Shown(Math("y", "y"), Math("x", "x"), ranges, "(3)-(4)")
    text = tex([Display((shown,))])
    assert r"$\displaystyle y = x$,\quad $i=1,\dots,l$,\ $j=1,\dots,d$\hfill(3--4)\par}" in text
    l, d = size("l"), size("d")
    cases = Exact(((frozenset({l - 2}), d), (frozenset({1 - l}), d * 2)))
    text = tex([Display((replace(shown, ranges=(), closed=Formula(cases)),))])
    assert r"$\displaystyle y = x$ ${} = d$ if $l \ge 2$; $2 d$ if $l \le 1$\hfill" in text


def test_the_critical_path_is_told_step_by_step() -> None:
    parts = explained("self-attention", "training").parts()
    (grid,) = [
        p for p in parts if isinstance(p, Table) and str(p.title).startswith("Critical path")
    ]
    cells = [tuple(c.text if isinstance(c, Math) else c for c in row) for row in grid.body]
    assert [(c[1], c[2], c[3]) for c in cells] == [
        ("multiplication", "Q", "(10)"),
        ("cumulation", "Q", "(10)"),
        ("multiplication", "Z", "(13)"),
        ("cumulation", "Z", "(13)"),
        ("division", "Z", "(13)"),
        ("exponentiation", "A", "(14)"),
        ("cumulation", "A", "(14)"),
        ("division", "A", "(14)"),
        ("multiplication", "R", "(15)-(16)"),
        ("cumulation", "R", "(15)-(16)"),
        ("multiplication", "y", "(17)"),
        ("cumulation", "y", "(17)"),
    ]
    text = words(parts)
    assert "No chain is longer than its 12 steps; others may be as long." in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("self-attention", [
            "K: dt elements, rows of tokens, read by the equation of Z (13)",
            "V: dt elements, rows of tokens, read by the equation of R (15)-(16)",
        ]),
        ("she", ["x: dt elements, rows of tokens, read by the equation of ext (23)"]),
        ("he", ["u: dt elements, rows of tokens, read by the equation of ext (28)"]),
        ("me", ["x: dt elements, rows of tokens, read by the equation of y (29)"]),
    ],
)  # fmt: skip
def test_what_the_state_is_and_why(name: str, said: list[str]) -> None:
    text = words(explained(name, "inference").parts())
    assert all(line in text for line in said)


def test_forms_without_inference_say_why() -> None:
    text = words(explained("she", "inference", "fft").parts())
    assert (
        "One new token (the papers' inference phase): no answer: form 'fft' transforms the whole "
        "token axis at once" in text
    )
    assert "fft: no one-token inference" in text and "direct (the default): has" in text


def test_a_token_past_the_weights_is_no_number() -> None:
    mixer = cm.mixer("she")
    about = Explanation(mixer, "direct", PHASES, {"b": 1, "l": 5, "d": 6, "t": 6})
    text = words(about.parts())
    assert "position t = 6 would read past the end of W_ext" in text
    assert "State: none: position t = 6" in text


def test_it_refuses_what_does_not_fit() -> None:
    with pytest.raises(EquationError, match="no form 'nope'"):
        Explanation(cm.mixer("she"), "nope", PHASES, SIZES).parts()
    with pytest.raises(SizeError, match="d/n"):
        Explanation(cm.mixer("self-attention"), "direct", PHASES, {**SIZES, "d": 5}).parts()


def test_sentences_are_wrapped_and_equations_are_folded() -> None:
    shown = Shown(Math("left", "l"), Math("right " * 9, "r"), (Math("i = 1..l", "i"),), "(1)")
    parts: list[Part] = [
        Heading("Title", 1),
        Paragraph(("a sentence of some words with ", Math("x + y", "x + y"), " in it.")),
        Paragraph(("a point of a list that is long enough to wrap",), item=True),
        Display((shown,)),
    ]
    text = words(parts, 30)
    assert text.startswith(
        "Title\n=====\n\na sentence of some words with\nx + y in it.\n\n- a point"
    )
    assert "\n- a point of a list that is\n  long enough to wrap\n" in text
    folded = "  left = right right right\n      right right right right\n      right right\n"
    assert f"{folded}      for i = 1..l    (1)\n" in text
    # a word longer than the room behind a deep lead is broken too
    assert max(map(len, wrapped("x" * 40, 20, 6 * " ", 8 * " ").split("\n"))) == 20


def test_lists_are_closed_in_latex() -> None:
    items: list[Part] = [Paragraph(("one",), item=True), Paragraph(("two",), item=True)]
    for parts in (items, [*items, Heading("after")]):
        text = tex(parts, "costmodel explain x\ny")
        assert text.startswith("% costmodel explain x y\n% needs")
        assert text.count(r"\begin{itemize}") == text.count(r"\end{itemize}") == 1


TOPICS = {
    "Maximum path length": "path_length",
    **dict.fromkeys(("Critical path", "critical path", "span", "Sequential operations"), "span"),
}
"""The beginning of a sentence, or of a row of costs -> the question in `LEFT_OPEN`."""


def told(parts: list[Part]) -> list[str]:
    """The sentences of an explanation, and the rows of the table of its costs, with their
    footnotes, as sentences."""
    said = [PLAIN_TEXT.text(part.line) for part in parts if isinstance(part, Paragraph)]
    costs = [part for part in parts if isinstance(part, Table) and part.title == "Costs"]
    return said + [
        f"{' '.join(PLAIN_TEXT.text(cell) for cell in row)}." for part in costs for row in part.body
    ]


@pytest.mark.grid(24)
@pytest.mark.parametrize(("name", "form"), forms())
def test_no_sentence_ends_in_a_comma_and_nothing_is_left_open(name: str, form: str) -> None:
    both = replace(explained(name, "training", form), phases=PHASES)
    left: set[str] = set()
    for said in told(both.parts()):
        assert said.rstrip()[-1] in ".:", said
        if "not derived" in said or FOUND in said:
            question = TOPICS[next(topic for topic in TOPICS if said.startswith(topic))]
            assert LEFT_OPEN[name, form, question] in said
            left.add(question)
    assert left == {question for *key, question in LEFT_OPEN if key == [name, form]}


SCREEN = 48
"""The lines of a terminal that the costs of both phases and the state take at most."""


@pytest.mark.parametrize("name", ["s4d", "gdn", "rwkv-7"])
def test_an_explanation_opens_with_the_costs(name: str) -> None:
    """Every figure of a default table stands in the first lines, before any equation."""
    mixer = cm.mixer(name)
    about = Explanation(mixer, mixer.default_form, PHASES, sizes_of(mixer), full=False)
    parts = about.parts()
    lines = words(parts, 100).splitlines()
    (costs,) = [part for part in parts if isinstance(part, Table) and part.title == "Costs"]
    (rows,) = [index for index, line in enumerate(lines) if line.startswith("state kept")]
    assert rows < SCREEN and "Equations" not in lines[:rows]
    sizes = {x: size for x, size in sizes_of(mixer).items() if x != "b"}
    (own, *_), *body = ((row[1], row[0]) for row in costs.body)
    assert own == cm.parameters(mixer).at(**sizes)
    told = [number for number, name in body if name in ("mul", "total", "state kept (elements)")]
    one, token = (cm.count(mixer, phase).at(**sizes) for phase in PHASES)
    kept = cm.state(mixer).at(**sizes)
    assert told == [one.mul, one.total, token.mul, token.total, kept]


def test_a_mixer_without_parameters_says_so() -> None:
    made = cm.Mixer("plain")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] + x[i, a]
    parts = Explanation(made, "direct", ("training",), {"b": 1, "l": 2, "d": 3}).parts()
    assert "Parameters: none." in words(parts)


def test_what_is_not_derived_does_not_hide_the_rest() -> None:
    """A sum over the past, all of its channels, then one over what is ahead: counts and values,
    but no formula of the span, which is found at the sizes."""
    made = cm.Mixer("ahead")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        i, a, rows = f.index("i", 1, l), f.index("a", 1, d), f.array("S", l, d)
        j, k = f.index("j", 1, i), f.index("k", i, l)
        c = f.index("c", 1, d)
        rows[i, a] = cm.sum_(x[j, c], over=(j, c))
        y[i, a] = cm.sum_(x[k, a] * rows[i, a], over=k)
    parts = Explanation(made, "direct", PHASES, {"b": 1, "l": 4, "d": 3, "t": 4}).parts()
    shown = words(parts)
    said = (
        "span 6 - (found at these sizes by search (no formula: the depth is not monotone in index"
    )
    assert any(row.startswith(said) for row in told(parts))
    assert "30 (100.0 %)" in shown


def test_a_number_without_a_short_formula_is_said() -> None:
    """The span of BigBird's gradients is one of many values, of which sizes choose one."""
    mixer = cm.mixer("bigbird")
    found = explained("bigbird", "backward")
    sizes = {x: v for x, v in found.sizes.items() if x in ("l", *mixer.letters)}
    depth = cm.span(mixer, "backward").at(**sizes)
    said = f"span {depth} - (no formula: the value is the largest of more than 20"
    assert any(row.startswith(said) for row in told(found.parts()))


def test_the_path_of_a_copy_has_no_operation() -> None:
    copy = Mixer("copy")
    l, d = copy.sizes("l d")
    x, y = copy.input("x", l, d), copy.output("y", l, d)
    with copy.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a]
    about = Explanation(copy, "direct", ("training",), sizes_of(copy), convention(()), full=True)
    text = write(Document(about.parts), "markdown", Page())
    assert "| critical path | 0 | $0$: no operation |" in text
    assert "Critical path: no operation.\n" in text and "No chain" not in text
    assert "| no operation |" in cm.table(copy, columns="path").to_markdown()
