"""Does a search through all entries at given sizes equal the formulas and the execution?

The search answers where no formula is derived; where one is, both must agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import cycle, product
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings, strategies as st
from typer.testing import CliRunner

import cli
import costmodel as cm
from costmodel import Mixer
from costmodel.errors import TOO_LITTLE, Unsupported
from costmodel.language.formula_text import parse
from costmodel.oracle.execute import run
from costmodel.paths import unrolled
from costmodel.paths.alike import alike
from costmodel.program.conventions import convention
from costmodel.questions.question import Answers, Case, Missing, Searched
from costmodel.questions.registry import FIGURES
from costmodel.questions.subject import system_of
from tests import chunk_systems, systems
from tests.small import complete, distinct
from tests.systems import examples

PHASES = ("training", "backward", "training-step")
CONVENTIONS = ("strict", "strict,safe-softmax", "strict,zero-state", "strict,dense")


def case(mixer: Mixer, phase: str, sizes: Mapping[str, int], form: str, names: str) -> Case:
    about = Answers(mixer, form, phase, convention(names))
    return Case(about, sizes, symbolic=False)


def searched(asked: Case, steps: bool) -> int:
    search = FIGURES["sequential" if steps else "span"].search
    assert search is not None
    return search(asked)


UNSEARCHED = (
    "the depth of the gradient of a maximum over ",
    "the tightest bound of an index depends on the sizes: ",
    "A.max: the gradient of a maximum over several ranges is not derived",
    "the depth is not monotone in index p",
    "S.grad: index p skips entries by a stride",
    "K.grad: index q skips entries by a stride",
    "V.grad: index q skips entries by a stride",
)


@pytest.mark.grid(10)
@pytest.mark.parametrize(
    ("name", "form", "phase", "names"),
    [
        (*form, phase, names)
        for (phase, form), names in zip(product(PHASES, distinct()), cycle(CONVENTIONS))
    ],
)
def test_forms_are_as_deep_as_the_formulas_say(
    name: str, form: str, phase: str, names: str
) -> None:
    mixer, refused = cm.mixer(name), set[str]()
    tried = [
        complete(mixer, {"l": length, "d": width, "n": 2})
        for length, width in ((1, 2), (2, 4), (5, 4))
    ]
    for steps, question in ((False, cm.span), (True, cm.sequential)):
        derived = None
        try:
            derived = question(mixer, phase, form, names)
        except Unsupported as error:
            refused.add(str(error))
        for sizes in tried:
            asked = case(mixer, phase, sizes, form, names)
            try:
                found = searched(asked, steps)
            except Unsupported as error:
                refused.add(str(error))
            else:
                known = derived.at(**sizes) if derived else executed(asked, steps)
                assert found == known, (sizes, steps)
    assert not [reason for reason in refused if not reason.startswith(UNSEARCHED)]


def agrees(mixer: Mixer, sizes: Mapping[str, int]) -> list[bool]:
    """Whether a formula is derived, for every phase that is searched; what is found is as deep as
    this says, or else as an execution."""
    formulas = []
    for phase in PHASES:
        asked = case(mixer, phase, sizes, "direct", "strict")
        for steps, figure in ((False, FIGURES["span"]), (True, FIGURES["sequential"])):
            try:
                found = searched(asked, steps)
            except Unsupported:
                continue
            shown = asked.figure(figure)
            assert shown == found, (phase, sizes, steps)
            formulas.append(not isinstance(shown, Searched))
            if formulas[-1]:
                continue
            assert found == executed(asked, steps), (phase, sizes, steps)
    return formulas


def executed(asked: Case, steps: bool) -> int:
    """How deep an execution is, in steps or in levels."""
    rewrites = asked.about.convention.rewrites
    system = system_of(asked.mixer, asked.form, rewrites, asked.phase)
    ready = system.forward.equations if asked.phase == "backward" else ()
    dense = not {"dense", "zero-state"}.isdisjoint(rewrites)
    done = run(system, asked.sizes, ready=ready, dense=dense)
    return done.steps() if steps else done.span()


def check(mixers: st.SearchStrategy[Mixer], sizes: st.SearchStrategy[dict[str, int]]) -> list[bool]:
    asked: list[bool] = []

    @given(mixer=mixers, at=sizes)
    @settings(max_examples=examples(40), phases=[Phase.explicit, Phase.generate], deadline=None)
    def ask(mixer: Mixer, at: dict[str, int]) -> None:
        asked.extend(agrees(mixer, at))

    ask()
    return asked


def test_a_search_of_random_systems_equals_formulas_and_execution() -> None:
    """Without ranges of which gradients have depths of hundreds of cases."""
    sizes = st.builds(lambda at, l: {**at, "l": l}, systems.sizes(), st.integers(1, 5))
    formulas = check(
        systems.mixers((*systems.FULL, "before", "lagged", "past", "from"), grown=True), sizes
    )
    assert len(formulas) >= 2 * examples(40) and formulas.count(True) >= len(formulas) / 2


def test_a_search_of_random_chunks_equals_formulas_and_execution() -> None:
    """Among them what only the search answers: spans of gradients in chunks."""
    formulas = check(chunk_systems.mixers(), chunk_systems.sizes())
    assert len(formulas) >= 3 * examples(40) and {*formulas} == {True, False}


HILL = """
import costmodel as cm

m = cm.Mixer("hill", title="Hill")
l, d, w = m.sizes("l d w")
x, y = m.input("x", l, d), m.output("y", l, d)
with m.form("direct") as f:
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j, k = f.index("j", 1, i), f.index("k", i, l)
    o = f.index("o", cm.max_(1, i - w), cm.min_(l, i + w))
    s = f.array("s", l, d)
    s[i, b] = cm.sum_(x[j, b], over=j)
    y[i, b] = cm.sum_(cm.sum_(s[i, b] * x[k, b], over=k) * x[o, b], over=o)
"""
"""Row i waits for sums over the rows up to it, from it on, and around it: the deepest row lies in
the middle, and where depends on the sizes in too many ways for a formula."""
NINE = "ceil_log2(5) + 1 + ceil_log2(10 - 5) + 1 + ceil_log2(3)"
"""Row 5 of 9, one row on either side: two sums, a product between them, and a sum of products."""


@pytest.fixture
def hill(tmp_path: Path) -> Path:
    (tmp_path / "hill.py").write_text(HILL)
    return tmp_path / "hill.py"


def shown(hill: Path, *options: str) -> str:
    command = ["table", f"{hill}:hill", "--phase", "training", "--columns", "mixer,span,mul"]
    result = CliRunner().invoke(cli.app, [*command, *options])
    assert result.exit_code == 0, result.output
    return result.output


AT = ("--l", "9", "--d", "1", "--w", "1")


@pytest.mark.parametrize(
    ("name", "form", "letters"),
    [
        ("gated-deltanet", "chunked-rows", "KVdgn"),
        ("mlstm", "chunked", "Kdn"),
        ("gla", "chunked", "dnrv"),
        ("she", "direct", "d"),
        ("fixed-attention", "direct", "dn"),
        ("self-attention+rotary", "direct", ""),
    ],
)
def test_one_of_the_entries_that_are_alike_is_visited(name: str, form: str, letters: str) -> None:
    """Depths are those of all entries."""
    mixer = cm.mixer(name)
    asked = case(mixer, "training", complete(mixer, {"l": 5, "d": 12, "n": 2}), form, "strict")
    assert alike(asked.about.system) == {*letters}
    system, depth = asked.about.system, executed(asked, steps=False)
    assert unrolled.deepest(system, "training", asked.sizes) == depth


def test_entries_of_unequal_depth_are_all_visited() -> None:
    """The sum of half of the channels is one operation longer than that of the others; a sum over
    the channels up to each one is longer for each."""
    for ranged in (False, True):
        m = Mixer("halves")
        l, d = m.sizes("l d")
        x, y = m.input("x", l, d), m.output("y", l, d)
        with m.form("direct") as f:
            i, b = f.index("i", 1, l), f.index("b", 1, d)
            if ranged:
                c = f.index("c", 1, b)
                y[i, b] = cm.sum_(x[i, c], over=c)
            else:
                y[i, 1] = x[i, 1] * x[i, 1] + 1
                later = f.index("b2", 2, d)
                y[i, later] = x[i, later] * 2
        asked = case(m, "training", {"b": 1, "l": 2, "d": 7}, "direct", "strict")
        assert "d" not in alike(asked.about.system)
        depth = executed(asked, steps=False)
        assert unrolled.deepest(asked.about.system, "training", asked.sizes) == depth


def test_what_is_found_by_search_says_so(hill: Path) -> None:
    depth = parse(NINE).at({})
    text = " ".join(shown(hill, *AT).split())
    assert "span of hill: found at these sizes by search (no formula: the depth is not" in text
    row = json.loads(shown(hill, *AT, "--format", "json"))["rows"][0]
    assert row["span"] == depth and "not monotone" in row["searched"]["span"]
    assert "span" not in row["reasons"]
    letters = " ".join(shown(hill, "--symbolic").split())
    assert "; with a number for every size, a search finds span" in letters
    csv = shown(hill, *AT, "--format", "csv")
    assert f"hill,{depth}," in csv and "span: found at these sizes by search" in csv


def test_one_reason_is_said_once() -> None:
    """The gradient of a running maximum lacks a formula and a search for the same reason."""
    m = Mixer("pooled")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        j = f.index("j", 1, i)
        y[i, b] = cm.max_over(x[j, b], over=j)
    found = case(m, "backward", {"b": 1, "l": 2, "d": 1}, "direct", "strict").figure(
        FIGURES["span"]
    )
    assert (
        isinstance(found, Missing)
        and found.reason.count("which entry is the maximum of each row") == 1
    )


def test_an_explanation_says_so(hill: Path) -> None:
    result = CliRunner().invoke(cli.app, ["explain", f"{hill}:hill", *AT])
    text = " ".join(result.output.split())
    said = "- (1) (1) found at these sizes by search (no formula:"
    assert f"span {parse(NINE).at({})} {said}" in text


def test_nothing_is_searched_in_letters(hill: Path) -> None:
    row = json.loads(shown(hill, "--symbolic", "--format", "json"))["rows"][0]
    assert (
        row["span"] is None and "searched" not in row and "not monotone" in row["reasons"]["span"]
    )


def test_a_search_that_takes_too_long_is_refused(hill: Path) -> None:
    long = ("--l", "4000", "--d", "64", "--w", "1", "--format", "json")
    row = json.loads(shown(hill, *long))["rows"][0]
    assert row["span"] is None and "choose smaller sizes" in row["reasons"]["span"]


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("mixer", "phase", "length", "column", "reason"),
    [
        ("fixed-attention", "training", 2**40, "path_length", "at most 30,000,000"),
        ("strided-attention", "backward", 131_072, "span", "choose smaller sizes"),
    ],
)
def test_what_one_mixer_cannot_answer_is_its_own_dash(
    mixer: str, phase: str, length: int, column: str, reason: str
) -> None:
    """Of sizes at which an array of all entries would take petabytes, or 32 GiB."""
    sizes = ("--l", str(length), "--d", "64")
    shown = ("--phase", phase, "--columns", f"mixer,total,{column}", "--format", "json")
    result = CliRunner().invoke(cli.app, ["table", mixer, "self-attention", *sizes, *shown])
    assert result.exit_code == 0, result.output
    refused, other = json.loads(result.output)["rows"]
    assert refused["total"] and refused[column] is None and reason in refused["reasons"][column]
    assert other["total"] and other[column]


@pytest.mark.grid(2)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
@pytest.mark.parametrize("columns", ["mul,span", "mul"])
def test_too_little_memory_is_a_sentence(hill: Path, columns: str) -> None:
    """Of a search that may visit 9 million entries at once, where 100 MB are free; of a cell in its
    footnote, and of a whole command on standard error."""
    program = f"""
import resource, cli, numpy, costmodel.report.mixer_document
if {columns!r} == "mul":
    costmodel.report.mixer_document.document = lambda *_: numpy.zeros(10**9)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 100_000_000,) * 2)
cli.main("table {hill}:hill self-attention --phase training --columns {columns}"
         " --l 3000 --d 64 --format json".split())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if columns == "mul":
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"costmodel: {TOO_LITTLE}\n"
    else:
        assert (done.returncode, done.stderr) == (0, "")
        of_hill, of_attention = json.loads(done.stdout)["rows"]
        assert TOO_LITTLE in of_hill["reasons"]["span"] and of_attention["span"]
