"""Are equations and counts printed as papers write them, and does the LaTeX compile?"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import cli
import costmodel as cm
from costmodel import Mixer
from costmodel.errors import SizeError, Unsupported
from costmodel.language.formula_text import parse
from costmodel.language.nodes import Node
from costmodel.language.notation import COMPOSITES, RULES, equation
from costmodel.questions.question import Missing
from costmodel.report import latex
from costmodel.report.document import Column, Document, Page, Section, Table
from costmodel.report.formats import write
from costmodel.report.mixer_document import symbol_names
from costmodel.symbolic.cases import Quotient, cases, condition
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, padded, size
from costmodel.symbolic.pretty import formula_pretty, poly_pretty
from costmodel.symbolic.printing import (
    conditions_latex,
    conditions_words,
    formula_latex,
    formula_text,
    formula_words,
    identifier,
    poly_latex,
)
from tests import systems
from tests.small import complete, distinct, has_inference
from tests.stand_ins import Instead
from tests.typesetting import compiled, needs_latex

l, d, n, h, w = (size(letter) for letter in "ldnhw")

COUNTS = [
    (l * d**2 / 2 - d * l * 3, r"\frac{1}{2} d^{2} l - 3 d l"),
    (Poly(), "0"),
    (Poly.of(1), "1"),
    (-d, "-d"),
    (h, r"\frac{d}{n}"),
    (h * l * 2 / 3, r"\frac{2 d l}{3 n}"),
    (padded(l) * 2, r"2 \cdot 2^{\lceil\log_2 l\rceil}"),
    (padded(l) * d, r"d \cdot 2^{\lceil\log_2 l\rceil}"),
    (l * n / 2 - l**2 * n / 2, r"-\frac{1}{2} l^{2} n + \frac{1}{2} l n"),
    (d * l**2 - l**2 * n, r"d l^{2} - l^{2} n"),
]


@pytest.mark.parametrize(("poly", "printed"), COUNTS)
def test_counts_are_printed_in_latex(poly: Poly, printed: str) -> None:
    assert poly_latex(poly) == printed


def test_sizes_are_renamed_and_indices_are_not() -> None:
    printed = poly_latex(d * l**2 + Poly.atom("@l"), {"l": "N", "d": r"d_{\mathrm{model}}"})
    assert printed == r"d_{\mathrm{model}} N^{2} + l"


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("x", "x"),
        ("ext", r"\mathrm{ext}"),
        ("W_Q", r"W^{[\mathrm{Q}]}"),
        ("w_ext", r"w^{[\mathrm{ext}]}"),
        ("W_in_ext", r"W^{[\mathrm{in,ext}]}"),
    ],
)
def test_names_are_printed_in_latex(name: str, printed: str) -> None:
    assert identifier(name) == printed


EQUATIONS = {
    "self-attention": [
        ("Q[j,i,c]", "sum(a = 1..d) x[i,a] * W_Q[a,(j-1)*h+c]", "(10)"),
        ("K[j,i,c]", "sum(a = 1..d) x[i,a] * W_K[a,(j-1)*h+c]", "(11)"),
        ("V[j,i,c]", "sum(a = 1..d) x[i,a] * W_V[a,(j-1)*h+c]", "(12)"),
        ("Z[j,i,k]", "(sum(c = 1..h) Q[j,i,c] * K[j,k,c]) / sqrt(h)", "(13)"),
        ("A[j,i,k]", "exp(Z[j,i,k]) / (sum(k' = 1..i) exp(Z[j,i,k']))", "(14)"),
        ("R[i,(j-1)*h+c]", "sum(k = 1..i) A[j,i,k] * V[j,k,c]", "(15)-(16)"),
        ("y[i,b]", "sum(a = 1..d) R[i,a] * W_out[a,b]", "(17)"),
    ],
    "she": [
        ("ext[i,b]", "sum(j = 1..i, a = 1..d) x[j,a] * W_ext[i-j+1,a,b]", "(23)"),
        ("adj[i,b]", "(sum(a = 1..d) x[i,a] * W_adj[a,b]) * ext[i,b]", "(24)"),
        ("y[i,b]", "sum(a = 1..d) adj[i,a] * W_out[a,b]", "(25)"),
    ],
    "me": [("y[i,b]", "sum(j = 1..i) x[j,b] * w_ext[i-j+1]", "(29)")],
}


@pytest.mark.parametrize("mixer", EQUATIONS)
def test_equations_are_printed_as_the_papers_print_them(mixer: str) -> None:
    found = [equation(e, latex=False) for e in cm.mixer(mixer).forms["direct"].equations]
    assert [(p.left, p.right, p.cite) for p in found] == EQUATIONS[mixer]


def test_every_equation_is_printed_in_latex() -> None:
    score, weight = (equation(e) for e in cm.mixer("self-attention").forms["direct"].equations[3:5])
    assert score.right == r"\frac{\sum_{c=1}^{h} Q_{j,i,c} \, K_{j,k,c}}{\sqrt{h}}"
    assert weight.right == r"\frac{e^{Z_{j,i,k}}}{\sum_{k'=1}^{i} e^{Z_{j,i,k'}}}"
    assert weight.ranges == (r"j=1,\dots,n", r"i=1,\dots,l", r"k=1,\dots,i")


def written(value: Callable[[Node, Node, Node], Node]) -> str:
    """An expression of three entries, as it is printed."""
    mixer = Mixer("m")
    l_, d_ = mixer.sizes("l d")
    x, y = mixer.input("x", l_, d_), mixer.output("y", l_, d_)
    p, q = mixer.parameter("p", d_), mixer.parameter("q", d_)
    with mixer.form("direct") as f:
        i, b = f.index("i", 1, l_), f.index("b", 1, d_)
        y[i, b] = value(x[i, b], p[b], q[b])
    return equation(mixer.forms["direct"].equations[0], latex=False).right


GROUPINGS: list[tuple[Callable[[Node, Node, Node], Node], str]] = [
    (lambda x, p, q: x * (p + q), "x[i,b] * (p[b] + q[b])"),
    (lambda x, p, q: x * p + q, "x[i,b] * p[b] + q[b]"),
    (lambda x, p, q: x - (p - q), "x[i,b] - (p[b] - q[b])"),
    (lambda x, p, q: x - p - q, "x[i,b] - p[b] - q[b]"),
    (lambda x, p, q: x / (p * q), "x[i,b] / (p[b] * q[b])"),
    (lambda x, p, q: x / p * q, "x[i,b] / p[b] * q[b]"),
    (lambda x, p, q: x * (p * q), "x[i,b] * (p[b] * q[b])"),
    (lambda x, p, q: -(x + p) * q, "(-(x[i,b] + p[b])) * q[b]"),
    (lambda x, p, q: cm.function("silu", x + p) * 2, "silu(x[i,b] + p[b]) * 2"),
    (lambda x, p, q: cm.scaled(x + p, by=d) + q, "(x[i,b] + p[b]) / sqrt(d) + q[b]"),
]


@pytest.mark.parametrize(("value", "printed"), GROUPINGS)
def test_grouping_is_that_of_the_operations(
    value: Callable[[Node, Node, Node], Node], printed: str
) -> None:
    assert written(value) == printed


def test_every_node_and_composite_has_a_rule() -> None:
    from costmodel.language.macros import WRITTEN
    from costmodel.language.nodes import Composite, Fft, Reduce
    from costmodel.questions.counting.executed import RULES as COUNTED

    assert set(RULES) == set(COUNTED) | {Composite}
    assert {Fft, Reduce} <= set(RULES) and set(COMPOSITES) == {"scaled", *WRITTEN}


@given(systems.mixers(), systems.sizes())
def test_random_systems_print_in_balanced_latex(mixer: Mixer, sizes: dict[str, int]) -> None:
    for entry in mixer.forms["direct"].equations:
        shown = equation(entry)
        for text in (shown.left, shown.right, *shown.ranges):
            assert text.count("{") == text.count("}")
            assert text.count(r"\left(") == text.count(r"\right)")


def run(text: str, sizes: Mapping[str, int]) -> Fraction:
    """A printed formula as Python reads it, in fractions."""
    exact = {letter: Fraction(value) for letter, value in sizes.items()}
    functions = {
        "Max": max,
        "Min": min,
        "floor": math.floor,
        "ceil_log2": lambda x: (math.ceil(x) - 1).bit_length(),
    }
    return Fraction(eval(text, {"__builtins__": {}}, {**exact, **functions}))


@given(systems.mixers(), systems.sizes())
def test_what_is_printed_evaluates_to_what_is_counted(mixer: Mixer, sizes: dict[str, int]) -> None:
    try:
        total = cm.count(mixer).exact_total
    except Unsupported:
        return
    assert run(formula_text(total), sizes) == total.at(sizes)


def test_few_printed_counts_of_random_systems_are_left_open() -> None:
    asked: Counter[bool] = Counter()

    @given(systems.mixers())
    def ask(mixer: Mixer) -> None:
        try:
            asked[bool(cm.count(mixer).classes)] += 1
        except Unsupported:
            asked[False] += 1

    ask()
    assert asked[True] >= 0.8 * asked.total()


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "form"), distinct())
def test_printed_counts_are_read_back(name: str, form: str) -> None:
    """By our own grammar and by Python's."""
    mixer = cm.mixer(name)
    sizes = complete(mixer, {"l": 5, "d": 6, "n": 2, "t": 3})
    phases = ("training", "inference") if has_inference(mixer, form) else ("training",)
    for phase in phases:
        counts = cm.count(mixer, phase, form)
        for exact in (*counts.classes.values(), counts.exact_total):
            text, value = formula_text(exact), exact.at(sizes)
            assert Exact.of(parse(text).poly()).at(sizes) == run(text, sizes) == value
        depth, total = cm.span(mixer, phase, form), counts.exact_total
        for printed, value in ((total, total.at(sizes)), (depth.terms, depth.at(**sizes))):
            held = [
                part for guards, part in cases(printed) if all(g.at(sizes) >= 0 for g in guards)
            ]
            assert [run(formula_text(part), sizes) for part in held] == [value]


def test_piecewise_counts_keep_their_breakpoints() -> None:
    value = Exact(((frozenset({l - w}), w * d), (frozenset({w - l - 1}), l * d)))
    assert formula_words(value) == "d*w if l >= w; d*l if l < w"
    assert formula_text(value) == ("(d*w)*Min(1, Max(0, l - w + 1)) + (d*l)*Min(1, Max(0, w - l))")
    assert formula_latex(value) == (
        r"\begin{cases} d w & \text{if } l \ge w \\ d l & \text{if } l < w \end{cases}"
    )


CONDITIONS = [
    (w - l, r"l <= w", r"l \le w"),
    (l - w - 1, "l > w", "l > w"),
    (w - l - 1, "l < w", "l < w"),
    (l - 2, "l >= 2", r"l \ge 2"),
    (-l + 2, "l <= 2", r"l \le 2"),
    (l - w + 1, "l + 1 >= w", r"l + 1 \ge w"),
    (w - l - 3, "l + 3 <= w", r"l + 3 \le w"),
    (l / 2 - w - 1, "l/2 >= w + 1", r"\frac{1}{2} l \ge w + 1"),
    (w * d - l * 2 - 1, "2*l < d*w", "2 l < d w"),
]


@pytest.mark.parametrize(("guard", "text", "latex"), CONDITIONS)
def test_conditions_read_as_comparisons(guard: Poly, text: str, latex: str) -> None:
    assert conditions_words(frozenset({guard})) == text
    assert conditions_latex(frozenset({guard})) == latex


@given(
    st.lists(st.integers(-3, 3), min_size=3, max_size=3),
    st.lists(st.integers(1, 6), min_size=2, max_size=2),
)
def test_a_condition_holds_where_its_guard_does(numbers: list[int], values: list[int]) -> None:
    guard = l * numbers[0] + w * numbers[1] + numbers[2]
    sizes = dict(zip("lw", values, strict=True))
    left, relation, right = condition(guard)
    sides = left.at(sizes), right.at(sizes)
    compare = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
    assert compare[relation](*sides) == (guard.at(sizes) >= 0)


DEPTHS = [
    ((call("Min", 1, call("Max", 0, l - 1)) * d,), "d if l >= 2; 0 if l <= 1"),
    (
        (
            call("Min", 1, call("Max", 0, l - 1)) * (call("ceil_log2", call("Max", 1, l - 1)) + 2),
            call("Min", 1, call("Max", 0, 2 - l)) * 3,
        ),
        "ceil_log2(l - 1) + 2 if l >= 2; 3 if l <= 1",
    ),
    ((call("Max", 0, call("Min", 1, call("Max", 0, l - w)) * 3),), "3 if l > w; 0 if l <= w"),
    ((call("Min", l, w), d), "Max(Min(l, w), d)"),
]


@pytest.mark.parametrize(("terms", "printed"), DEPTHS)
def test_a_depth_reads_as_cases(terms: tuple[Poly, ...], printed: str) -> None:
    assert formula_words(terms) == printed
    assert (r"\begin{cases}" in formula_latex(terms)) == ("if" in printed)
    assert "if" not in formula_text(terms)


@given(systems.mixers(), systems.sizes())
def test_the_cases_of_a_depth_hold_one_at_a_time(mixer: Mixer, sizes: dict[str, int]) -> None:
    for phase in ("training", "inference"):
        try:
            derived = cm.span(mixer, phase)
        except (Unsupported, cm.Unanswered):
            continue
        at = {**sizes, "t": sizes["l"]}
        held = [part for guards, part in cases(derived.terms) if all(g.at(at) >= 0 for g in guards)]
        (part,) = held
        assert run(formula_text(part), at) == derived.at(**at), (derived.terms, part)


def test_guards_that_pin_a_value_are_one_equation() -> None:
    assert conditions_words(frozenset({l - 2, -l + 2})) == "l = 2"


def test_a_quotient_has_its_cases_outside() -> None:
    piecewise = Exact(((frozenset({l - w}), w * d), (frozenset({w - l - 1}), l * d)))
    value = Quotient(piecewise, piecewise * 2 + Exact.of(d))
    assert formula_words(value) == "(d*w)/(2*d*w + d) if l >= w; (d*l)/(2*d*l + d) if l < w"
    wide = Exact.of(sum((d**k for k in range(9)), Poly()))
    assert formula_latex(Quotient(Exact.of(d), Exact.of(l))) == r"\frac{d}{l}"
    assert formula_latex(Quotient(wide, Exact.of(l))).endswith(") / (l)")


FACTORED = [
    (4 * d**2 * l + d * l**2 + d * l, "dl(4d + l + 1)", "d l (4 d + l + 1)"),
    (d * l**2 / 2 + d * l * 3 / 2, "dl(l + 3)/2", r"\frac{1}{2} d l (l + 3)"),
    (4 * d**2 + d * l * 2, "4d² + 2dl", "4 d^{2} + 2 d l"),
    (d * l - l, "dl - l", "d l - l"),
    (d**2 * l * 2 / n + d * l**2 / n + d * l / n, "dl(2d + l + 1)/n",
     r"\frac{d l}{n} (2 d + l + 1)"),
    (d * 3, "3d", "3 d"),
    (Poly(), "0", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("poly", "pretty", "tex"), FACTORED)
def test_a_common_factor_stands_outside_where_that_is_shorter(
    poly: Poly, pretty: str, tex: str
) -> None:
    assert poly_pretty(poly, factored=True) == pretty
    assert formula_latex(poly) == tex


PRETTY = [
    (padded(l) * d * 2, "2d·2^⌈log₂ l⌉"),
    (call("ceil_log2", d / n) + call("ceil_log2", d), "⌈log₂ d⌉ + ⌈log₂(d/n)⌉"),
    (call("Max", l, d + 1) * d, "d·max(d + 1, l)"),
    (l // size("C") * d**2, "d²⌊l/C⌋"),
    (Poly.atom("in_features") * Poly.atom("l") * 3, "3·in_features·l"),
    (-l + d, "d - l"),
    (l * d / n / 2, "dl/(2n)"),
]


@pytest.mark.parametrize(("poly", "printed"), PRETTY)
def test_formulas_read_on_a_terminal(poly: Poly, printed: str) -> None:
    assert poly_pretty(poly) == printed


def test_cases_read_on_a_terminal() -> None:
    value = Exact(((frozenset({l - w}), w * d), (frozenset({w - l - 1}), l * d)))
    assert formula_pretty(value) == "dw if l ≥ w; dl if l < w"
    assert formula_pretty(Quotient(value, Exact.of(d))) == "dw/d if l ≥ w; dl/d if l < w"


def test_letters_are_renamed_or_refused() -> None:
    she = [cm.mixer("she")]
    assert symbol_names(r"l=N,d=d_model,t=\tau", she) == {
        "l": "N",
        "d": r"d_{\mathrm{model}}",
        "t": r"\tau",
    }
    assert symbol_names("l=d,d=l", she) == {"l": "d", "d": "l"}
    for text in ("l=d", "l=", "Z=N", "l", r"l=\input{x}", "l=$", "l=1"):
        with pytest.raises(SizeError):
            symbol_names(text, she)


@given(st.text(max_size=30))
def test_escaped_text_holds_no_command(text: str) -> None:
    known = [value for value in latex.PLAIN.values() if "\\" in value]
    left = latex.escaped(text)
    for value in sorted(known, key=len, reverse=True):
        left = left.replace(value, "")
    assert left.isascii() and not re.search(r"[\\{}$&#%_^~]", left)


def typeset(table: Table) -> str:
    return write(Document(lambda: [table]), "latex", Page(command="costmodel", label="tab:all"))


def test_a_table_of_many_rows_runs_over_pages() -> None:
    columns = (Column("mixer", "mixer", numeric=False), Column("mul", "mul"))
    rows = tuple((f"row{k:03}", Missing("no figure") if k == 149 else k) for k in range(150))
    text = typeset(Table("All of them", columns, rows))
    assert re.findall(r"row\d+", text) == [f"row{k:03}" for k in range(150)]
    assert text.count(r"\begin{longtable}") == text.count("All of them.") == 1
    assert text.count(r"\label{tab:all}") == 1 and text.count("No figure") == 1
    assert r"row149 & --\textsuperscript{1} \\" in text
    few = typeset(Table("Some of them", columns, rows[:4]))
    assert r"\begin{table*}" in few and "longtable}\n" not in few.partition("\n\n")[2]


def test_columns_that_do_not_fit_stand_in_panels_below_each_other() -> None:
    columns = (
        Column("mixer", "mixer", numeric=False, names=True),
        *(Column(f"c{k}", f"c{k}") for k in range(12)),
    )
    text = typeset(Table("Wide", columns, (("she", *([10**9] * 12)),)))
    panels = text.split(r"\begin{tabular}")[1:]
    assert len(panels) == 3 and text.count(r"\caption") == 1
    assert all("Mixer & " in panel and "she & " in panel for panel in panels)
    assert [panel.count("1,000,000,000") for panel in panels] == [4, 4, 4]


def latex_of(*options: str) -> str:
    done = CliRunner().invoke(cli.app, ["table", *options, "--format", "latex"])
    assert done.exit_code == 0, done.output
    return done.stdout


WINDOW = ("self-attention+window", "--symbolic", "--phase", "training", "--columns", "mixer,div")


def test_a_cell_holds_the_main_case_and_a_note_the_others() -> None:
    text = latex_of(*WINDOW, "--symbols", "l=N")
    row = next(line for line in text.splitlines() if line.startswith("Self-attention (window)"))
    assert row == r"Self-attention (window) & $n w (2 N - w + 1)$\,\textsuperscript{a} \\"
    note = next(line for line in text.splitlines() if r"\textsuperscript{a}\," in line)
    assert r"If $N > w$; $N^{2} n + N n$ if $N \le w$." in note


def test_a_floor_is_abbreviated_once() -> None:
    text = latex_of(
        "strided-attention", "--symbolic", "--phase", "training", "--columns", "mixer,mul,div",
        "--symbols", "l=N",
    )  # fmt: skip
    (row,) = (line for line in text.splitlines() if line.startswith("Sparse"))
    assert "N_{B}" in row and "lfloor" not in row
    assert text.count(r"\lfloor\frac{N}{B}\rfloor") == 1
    assert r"$N_{B} = \lfloor\frac{N}{B}\rfloor$" in text
    assert "quotients rounded down" not in latex_of(*WINDOW)


def test_symbols_reach_the_loops_of_a_critical_path() -> None:
    options = ("linear-attention", "--symbols", "l=N,d=D", "--format", "latex")
    text = latex_of(*options[:-2], "--phase", "training", "--symbolic")
    explained = CliRunner().invoke(cli.app, ["explain", *options, "--phase", "training"]).output
    assert "($N - 1$)*[add]" in text and "$N - 1$ times (addition)" in explained
    assert "$N + 10$ steps" in explained


def test_symbols_reach_the_sentences_of_an_explanation() -> None:
    options = ("--format", "latex", "--symbols", "l=M,t=T,d=D,C=J")
    text = CliRunner().invoke(cli.app, ["explain", "retnet", "--form", "chunked", *options]).output
    lines = [line for line in text.splitlines() if line.startswith((r"{\sloppy", r"\item"))]
    words = re.sub(r"\$[^$]*\$|\\[A-Za-z]+", "", "\n".join(lines))
    assert len(lines) > 9 and not re.findall(r"(?<![\w'])[ltdC](?![\w'])", words)
    assert "After $T$ tokens" in text and "takes fewer operations than chunked for $M = " in text


def test_symbols_reach_the_reasons_and_notes_of_a_table() -> None:
    options = ("she", "--phase", "inference", "--per-token", "--t", "200")
    text = latex_of(*options, "--symbols", "t=T,l=N,b=B")
    assert "Position $T = 200$ would read past" in text and "has $N = 128$ positions" in text
    assert "divided by the $B$ new tokens" in text


def test_the_width_of_a_head_leaves_its_name_to_the_heads() -> None:
    options = ["explain", "self-attention", "--phase", "training", "--format", "latex"]
    text = CliRunner().invoke(cli.app, [*options, "--symbols", "n=h"]).output
    assert r"$h$ heads." in text and r"c=1,\dots,\frac{d}{h}$" in text
    text = CliRunner().invoke(cli.app, [*options, "--symbols", "n=h,h=d_k"]).output
    assert r"c=1,\dots,d_{\mathrm{k}}$" in text


def test_a_caption_names_the_sizes_of_the_formulas_alone() -> None:
    for mixer, there in (("self-attention", False), ("she", True)):
        text = latex_of(mixer, "--symbolic", "--phase", "inference")
        assert ("sequence length" in text) == there and "position of the new token $t$" in text


NUMBERED: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("gqa", "--columns", "mixer,parameters", "--l", "64", "--w", "5", "--phase", "training"): (
        "dng", "bltw",
    ),
    ("gqa", "--columns", "mixer,state", "--phase", "inference", "--d", "64"): ("bltdng", "w"),
    ("rnn", "mamba-2", "--columns", "mixer,sequential", "--phase", "training"): ("l", "bdnkNGP"),
    ("gqa", "--columns", "mixer,parameters", "--phase", "training", "--symbolic", "--l", "9"): (
        "dng", "bl",
    ),
}  # fmt: skip
"""Options of a table -> the sizes that its values depend on, and those that they do not."""


@pytest.mark.parametrize("options", NUMBERED)
def test_a_caption_names_the_sizes_that_a_value_depends_on(options: tuple[str, ...]) -> None:
    (caption,) = (line for line in latex_of(*options).splitlines() if r"\caption{" in line)
    _, _, sizes = caption.partition("Sizes: ")
    named, absent = NUMBERED[options]
    found = {x for x in (*named, *absent) if re.search(rf"\${x}( =|\$)", sizes)}
    assert found == set(named) and "none of these mixers" not in caption


def test_a_table_without_sizes_has_no_sentence_on_them() -> None:
    assert "Sizes" not in latex_of("self-attention", "--columns", "mixer", "--phase", "training")


def test_panels_of_a_long_table_have_one_caption() -> None:
    text = latex_of("--all", "--symbolic", "--phase", "inference")
    assert text.count(r"\begin{longtable}") > 2
    assert len(re.findall(r"\\caption\{", text)) == 1 and text.count("Continued") > 1


def test_a_cell_or_else_its_note_begins_with_the_case_at_the_default_sizes(
    instead: Instead,
) -> None:
    """Of one with t <= 1 and t >= 2, the latter, though the terminal's order is the other one."""
    asked = ("mamba-2", "--symbolic", "--phase", "inference", "--columns", "mixer,span")
    body, below = latex_of(*asked).split(r"\bottomrule")
    assert r"\max" in body and "(a)" not in body
    assert below.index(r"If $t \ge 2") < below.index(r"if $t \le 1")
    instead(highest_table=90)
    text = latex_of(*asked)
    (note,) = (line for line in text.splitlines() if line.startswith(r"\par") and "(a)" in line)
    assert note.index(r"t \ge 2") < note.index(r"t \le 1")


def test_a_caption_of_the_authors_replaces_ours_which_stands_below() -> None:
    typed = r"Costs of $n^2$ heads, 5\% \textbf{less}~\cite{x}"
    text = latex_of(*WINDOW, "--caption", typed)
    assert rf"\caption{{{typed}}}" in text
    below = text.partition(r"\end{tabular}")[2]
    assert "Convention: strict" in below and "Forward pass" in below


def test_a_width_makes_a_table_of_one_column() -> None:
    assert r"\begin{table*}" in latex_of(*WINDOW)
    for width in ("3.3in", "8.4cm", "icml"):
        text = latex_of("self-attention", "she", "--width", width)
        assert r"\begin{table}" in text and "table*" not in text
        assert text.count(r"\begin{tabular}") > latex_of("self-attention", "she").count(
            r"\begin{tabular}"
        )
    formulas = ("self-attention", "gqa", "self-attention+grouped+window", "linear-attention")
    text = latex_of(*formulas, "--symbolic", "--phase", "training", "--width", "icml")
    assert r"\begin{table*}" in text and r"\onecolumn" not in text  # too long for a column
    assert "--width" not in told_of("self-attention", "she", "--width", "3.3in")
    refused = CliRunner().invoke(cli.app, ["table", "--format", "latex", "--width", "3.3"])
    assert refused.exit_code != 0
    assert CliRunner().invoke(cli.app, ["table", "--width", "3.3in"]).exit_code != 0


def told_of(*options: str) -> str:
    """The sentences on standard error beside a table in LaTeX."""
    done = CliRunner().invoke(cli.app, ["table", *options, "--format", "latex"])
    assert done.exit_code == 0 and "\\end{" in done.stdout
    return done.stderr


BEYOND = {
    ("gqa", "linear-attention", "--symbolic", "--width", "3.3in"): "(table*)",
    ("self-attention+window", "lstm", "gru", "she", "--symbolic", "--width", "2in"): "(longtable)",
    ("gqa", "--width", "1.5in"): "(table*)",
}
"""Options of a table that is too large for its width -> the environment that it becomes."""


@pytest.mark.parametrize("options", BEYOND)
def test_a_table_beyond_its_width_says_so_and_which_columns_fit(options: tuple[str, ...]) -> None:
    one = (*options, "--phase", "training")
    said = told_of(*one)
    assert "does not fit" in said and BEYOND[options] in said
    found = re.search(r"its first (\d+) columns fit: --columns (\S+)", said)
    assert found and found[2].count(",") == int(found[1]) - 1
    assert not told_of(*one, "--columns", found[2])
    assert r"\begin{table}[" in latex_of(*one, "--columns", found[2])


def test_where_no_columns_fit_a_width_fewer_rows_are_named() -> None:
    said = told_of("--all", "--phase", "training", "--width", "acl")
    assert "fewer rows or a larger --width may fit" in said


def test_all_mixers_are_one_table_over_turned_pages() -> None:
    text = latex_of("--all", "--phase", "training")
    assert text.count(r"\begin{landscape}") == text.count(r"\end{landscape}") == 1
    assert text.count(r"\begin{longtable}") == 2  # the critical paths stand behind the numbers
    first = text.partition(r"\end{longtable}")[0]
    assert "Mult." in first and "Parameters" in first and "Span" in first
    assert text.count(r"Mixer & Critical path \\") == 2  # the column is as wide as the page


def test_a_heading_breaks_where_its_own_column_is_narrower() -> None:
    """The room is that of the column on the page, which a table of few columns widens."""
    wide = latex_of("she", "we", "--phase", "inference", "--columns", "mixer,critical_path,state")
    assert r"Mixer & Critical path & State kept (elements) \\" in wide
    narrow = latex_of("she", "we", "--phase", "training", "--width", "acl")
    assert r"Ratio to\\self-attention\end{tabular}" in narrow


def test_long_headings_are_abbreviated_and_sections_stand_across() -> None:
    columns = (Column("a", "a", numeric=False), Column("mul", "mul", "multiplications"))
    text = typeset(Table("T", columns, (Section(("first",)), ("x", 1))))
    assert r" & Mult. \\" in text
    assert r"\multicolumn{2}{@{}l@{}}{\emph{first}}" in text


def test_long_words_may_break_after_their_signs() -> None:
    columns = (Column("about", "about", numeric=False, wide=True),)
    table = Table("", columns, (("d_model 4*d**2*l/n self-attention+bias",),))
    stop = r"\allowbreak{}"
    assert rf"d\_model 4*d**2*l/n self-{stop}attention+{stop}bias \\" in typeset(table)


USER = """import costmodel as cm

decay = cm.Mixer("decay", title="Decay_1 & 100% #{x} \\\\ \\u1ec7", source="a_b^c ~ $1")
l, d, w = decay.sizes("l d w")
x, y = decay.input("x", l, d), decay.output("y", l, d)
with decay.form("direct") as f:
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", cm.max_(1, i - w + 1), i)
    y[i, b] = cm.function("silu", cm.sum_(x[j, b], over=j))
"""

WINDOWED = """
windowed = cm.Mixer("windowed", title="Windowed attention")
l, d, n, h, w = windowed.sizes("l d n h w")
x, y = windowed.input("x", l, d), windowed.output("y", l, d)
W_Q = windowed.parameter("W_Q", d, d)
with windowed.form("direct") as f:
    i, j = f.index("i", 1, l), f.index("j", 1, n)
    k = f.index("k", cm.max_(1, i - w + 1), i)
    c, a = f.index("c", 1, h), f.index("a", 1, d)
    Q, Z, A = f.array("Q", n, l, h), f.array("Z", n, l, l), f.array("A", n, l, l)
    Q[j, i, c] = cm.sum_(x[i, a] * W_Q[a, (j - 1) * h + c], over=a)
    Z[j, i, k] = cm.scaled(cm.sum_(Q[j, i, c] * Q[j, k, c], over=c), by=h)
    A[j, i, k] = cm.softmax(Z[j, i, k], over=k)
    y[i, (j - 1) * h + c] = cm.sum_(A[j, i, k] * Q[j, k, c], over=k)
"""

COMMANDS = [
    "table --format latex",
    r"table --symbolic --form all --format latex --symbols l=N,d=d_model,t=\tau --label tab:a",
    "table --format latex --all --convention torch --n 1,8 --t 200 --per-token",
    "table FILE:decay she --format latex --symbolic --columns mixer,total,state,order,intensity",
    "table FILE:windowed --format latex --symbolic --form all --label tab:w",
    "table --all --form all --symbolic --format latex",
    "table FILE:decay FILE:windowed she --symbolic --format latex --columns mixer,mul,add,total,"
    "traffic,unfused,intensity,order,span,state,weights",
    "explain FILE:windowed --format latex --convention safe-softmax",
    r"explain FILE:windowed --format latex --symbols l=N,d=d_model,w=\omega",
    "explain he --form fft --format latex",
    "explain self-attention --format latex",
    "explain she --form fft --format latex --convention mac",
    "explain FILE:decay --format latex --symbols w=omega",
    "explain lstm --format latex",
    "explain self-attention+cross --format latex",
    "explain restricted-attention --format latex",
    "list --format latex",
    "verify --format latex",
    "table self-attention+grouped+window{n=32,g=8,h=128,w=4096} --d 4096 --l 32768 --format "
    "latex --phase training --columns mixer,mul,total,parameters",
]


@pytest.mark.grid(6)
@needs_latex
@pytest.mark.parametrize("command", COMMANDS)
def test_it_compiles_as_printed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixer.py").write_text(USER + WINDOWED, encoding="utf-8")
    words = command.replace("FILE", str(tmp_path / "mixer.py")).split()
    assert cli.run([*words, "--output", str(tmp_path / "part.tex")]) == 0
    capsys.readouterr()
    log = compiled(tmp_path) + compiled(tmp_path, "twocolumn")
    over = re.findall(r"Overfull \\hbox \(([\d.]+)pt|Float too large for page by ([\d.]+)pt", log)
    assert all(float(box or page) <= 10 for box, page in over), over
