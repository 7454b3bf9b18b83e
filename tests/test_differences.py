"""Do differences of two mixers, equation by equation, add up to the difference of the totals?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unanswered
from costmodel.mixers import names
from costmodel.program.conventions import Convention, convention
from costmodel.questions.count import counted, operations
from costmodel.questions.question import answers
from costmodel.report.differences import Differences
from costmodel.report.document import Formula, Section, Table, Text
from costmodel.report.explanation import Explanation
from costmodel.report.writer import PLAIN_TEXT
from costmodel.symbolic.piecewise import Exact
from tests.small import complete
from tests.typed import Capture, printed, refused

GIVEN = {"b": 3, "l": 5, "d": 12, "n": 2, "t": 4}
ALL = names()
OTHERS = random.Random(1).sample(ALL, len(ALL))
PAIRS = list(zip(ALL, OTHERS, strict=True))


def side(mixer: Mixer, phase: str, names: Convention = Convention(), form: str = "") -> Explanation:
    known = {x: size for x, size in GIVEN.items() if x in ("b", "t", *mixer.letters)}
    sizes = {**complete(mixer, known), **mixer.given, "b": 3, "t": 4}
    return Explanation(mixer, form or mixer.default_form, (phase,), sizes, names)


def number(cell: Text, sizes: Mapping[str, int]) -> int | Fraction:
    """A difference: a number, or a formula at sizes."""
    if isinstance(cell, Formula):
        assert isinstance(cell.value, Exact)
        return cell.value.rational(sizes)
    assert isinstance(cell, int)
    return cell


def whole(about: Explanation, column: str, sizes: Mapping[str, int]) -> int | Fraction:
    """The operations of a mixer by the question `count`."""
    (phase,) = about.phases
    found = answers(about.mixer, about.form, phase, about.convention).of(counted)
    if column == "once":
        return found.once.exact_total.rational(sizes) if found.once else 0
    return operations(found, column).rational(sizes)


def holds(one: Explanation, two: Explanation, *, symbolic: bool = False) -> bool:
    """Whether both have an answer; then every column adds up to the difference of the totals."""
    try:
        made = Differences(one, two, symbolic).parts()
    except Unanswered:
        return False
    (table,) = [part for part in made if isinstance(part, Table)]
    merged = {**two.sizes, **one.sizes, "b": 1}  # formulas of both read one value of each size
    at = [{**merged, **about.mixer.given} if symbolic else about.sizes for about in (one, two)]
    *rows, total = table.body
    for place, column in enumerate(table.columns[1:], 1):
        assert sum(number(row[place], merged) for row in rows) == number(total[place], merged)
        name = column.name if place > 2 else "total"
        own, other = (whole(s, name, each) for s, each in zip((one, two), at, strict=True))
        assert number(total[place], merged) == (own, other, own - other)[min(place, 3) - 1]
    return True


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{a} {b}" for a, b in PAIRS])
def test_differences_add_up(one: str, two: str) -> None:
    assert holds(*(side(cm.mixer(name), "training") for name in (one, two)))


@pytest.mark.grid(3)
@pytest.mark.parametrize(("one", "two"), PAIRS[::7], ids=[f"{a} {b}" for a, b in PAIRS[::7]])
def test_differences_of_other_phases_add_up(one: str, two: str) -> None:
    sides = [cm.mixer(name) for name in (one, two)]
    for phase in ("backward", "training-step"):
        assert holds(*(side(mixer, phase) for mixer in sides))
    lacking = [m for m in sides if side(m, "inference").case("inference").about.unanswered]
    assert holds(*(side(mixer, "inference") for mixer in sides)) is not bool(lacking)


SYMBOLIC = (
    ("self-attention", "gqa"), ("self-attention", "linear-attention"), ("mamba-2", "retnet"),
    ("self-attention+window", "self-attention+rotary"), ("self-attention+grouped{n=4,g=2}", "she"),
    ("gqa{n=32,g=8,h=128}", "mqa"), ("local-attention", "self-attention+window"),
)  # fmt: skip


@pytest.mark.parametrize(("one", "two"), SYMBOLIC)
def test_formulas_of_differences_add_up(one: str, two: str) -> None:
    assert holds(*(side(cm.mixer(name), "training") for name in (one, two)), symbolic=True)


@pytest.mark.parametrize("names", ["mac", "safe-softmax,dense", "torch", "fvcore"])
def test_differences_add_up_under_every_convention(names: str) -> None:
    mixers = ("self-attention", "lstm")
    counting = convention(names)
    for phase in ("training", "training-step"):
        sides = [side(cm.mixer(name), phase, counting) for name in mixers]
        assert holds(*sides) is not (names == "fvcore" and phase == "training-step")


def sections(one: Explanation, two: Explanation) -> dict[str, list[str]]:
    """Section of the table -> the names of its equations."""
    (table,) = (part for part in Differences(one, two).parts() if isinstance(part, Table))
    found: dict[str, list[str]] = {}
    for row in table.rows[:-1]:
        if isinstance(row, Section):
            found[last := PLAIN_TEXT.text(row.line)] = []
        else:
            found[last].append(PLAIN_TEXT.text(row[0]))
    return {name: rows for name, rows in found.items() if rows}


def test_equations_are_compared_by_name() -> None:
    one, two = (side(cm.mixer(name), "training") for name in ("self-attention", "mqa"))
    assert sections(one, two) == {"differ": ["K", "V"], "alike": ["Q", "Z", "A", "R", "y"]}


def test_one_name_of_two_things_is_not_compared() -> None:
    """The scores' softmax of attention, and the decay of a state: both are A."""
    one, two = (side(cm.mixer(name), "training") for name in ("self-attention", "mamba-2"))
    found = sections(one, two)
    assert "A" in found["only in self-attention"] and "A" in found["only in mamba-2"]


def test_a_projection_is_compared_before_what_its_name_says() -> None:
    """Rotary attention calls the projections K_p and Q_p, and Q and K what it turns."""
    one, two = (side(cm.mixer(name), "training") for name in ("self-attention", "llama-attention"))
    found = sections(one, two)
    assert {"Q / Q_p", "K / K_p"} <= {*found["alike"], *found.get("differ", [])}
    assert found["only in self-attention+grouped+rotary"] == ["Q", "K"]


def test_forms_of_one_mixer_are_compared_by_name_alone() -> None:
    mixer = cm.mixer("linear-attention")
    one, two = (side(mixer, "training", form=form) for form in ("recurrent", "parallel"))
    assert sections(one, two) == {
        "differ": ["D", "R"],
        "only in recurrent": ["S", "Z"],
        "only in parallel": ["A"],
        "alike": ["Q", "K", "V", "y"],
    }


RENAMED = """
import costmodel as cm

m = cm.Mixer("m", source="none")
l, d = m.sizes("l d")
x, out, w = m.input("x", l, d), m.output("out", l, d), m.parameter("w", d, d)
with m.form("direct") as f:
    i, j, a, b = f.index("i", 1, l), f.index("j", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    k = f.index("k", 1, i)
    queries = f.array("queries", l, d)
    squares = f.array("squares", l, d)
    queries[i, a] = cm.sum_(x[i, b] * w[b, a], over=b)
    squares[i, a] = queries[i, a] * queries[i, a]
    out[i, a] = cm.sum_(squares[k, a], over=k)
"""


def test_equations_of_other_names_are_compared_by_what_they_read(tmp_path: Path) -> None:
    path, other = tmp_path / "renamed.py", tmp_path / "original.py"
    path.write_text(RENAMED)
    text = RENAMED.replace("queries", "Q").replace("squares", "S").replace('"out"', '"y"')
    other.write_text(text.replace('"w"', '"W"'))
    mixers = [cm.mixer(f"{each}:m") for each in (path, other)]
    forward = sections(*(side(mixer, "training") for mixer in mixers))
    assert forward == {"alike": ["queries / Q", "squares / S", "out / y"]}
    step = sections(*(side(mixer, "training-step") for mixer in mixers))
    gradients = ["squares.grad / S.grad", "queries.grad / Q.grad", "x.grad", "w.grad / W.grad"]
    assert sorted(step["alike"]) == sorted([*forward["alike"], *gradients]) and len(step) == 1


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex"])
def test_a_difference_is_printed_in_every_format(format_: str, capsys: Capture) -> None:
    asked = ("explain", "self-attention", "--against", "GQA{n=4,g=2}", "--phase", "training")
    sizes = ("--l", "4", "--d", "8", "--n", "2")
    numbers = printed(capsys, *asked, *sizes, "--format", format_)
    words = "takes 2,260 operations, 428 operations more than self-attention+grouped"
    assert words in numbers.replace("\n", " ") and "only in" not in numbers
    formulas = printed(capsys, *asked, "--symbolic", "--format", format_)
    assert "alike" in formulas and "only in" not in formulas and " more than " not in formulas


def test_given_sizes_stand_in_the_formulas(capsys: Capture) -> None:
    out = printed(
        capsys, "explain", "me", "--against", "we", "--symbolic", "--d", "3", "--phase", "training"
    )
    assert "d\u00b2" not in out and "-18l" in out


REFUSED = {
    "explain she --symbolic": "--symbolic needs --against OTHER: add it, or leave out --symbolic",
    "explain she --against fft --form all": "--against compares one form: name one",
    "explain she --against nothing": "the forms of she are direct, fft",
    "explain she --against self-attention --P 3": "size P is a size of none of these mixers",
    "explain she --against gqa --l 4,8": "size l: expected one value, got 2",
    "explain he --against we --n 4": "size n is a size of none of these mixers",
    "explain self-attention --against fnet --phase inference": "fnet: not causal",
    "explain she --against gqa --n 3": "self-attention+grouped needs",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_comparison_that_cannot_be_made_is_refused(line: str, capsys: Capture) -> None:
    assert REFUSED[line] in refused(capsys, *line.split())


def test_another_mixer_is_named_with_its_form(capsys: Capture) -> None:
    line = "explain self-attention --against linear-attention:chunked --phase training"
    assert "linear-attention: Linear attention, form chunked" in printed(capsys, *line.split())
    assert "has no form 'nosuch'" in refused(
        capsys, "explain", "she", "--against", "linear-attention:nosuch"
    )
