"""Does the page on training equal the printed output of today?"""

from __future__ import annotations

import csv
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import divisors
from costmodel.questions.question import SELECTS
from costmodel.report.document import Document, Table
from profiler.modules import implementations
from profiler.tracing import training_page
from profiler.tracing.meta_run.target import TraceError, Variables, parse_variables
from tests.caches import clear_all
from tests.printing import printed
from tests.stand_ins import Instead

PAGE = Path(__file__).parents[2] / "tables" / "generated" / "training.md"


MODULES_TRACED = "### Modules, traced"
"""The heading of the last table, whose rows follow from modules. An implementation may have the
name of a form, which has rows in the tables before."""


def rows_of(page: str) -> dict[str, set[str]]:
    """A mixer's name -> its rows in the tables that follow from equations, without the marks of
    footnotes."""
    found: dict[str, set[str]] = {}
    for line in page.partition(MODULES_TRACED)[0].splitlines():
        if line.startswith("| ") and not line.startswith(("| mixer |", "| --- |")):
            row = re.sub(r" \[\d+\]", "", line)
            found.setdefault(row.split(" | ")[0].removeprefix("| "), set()).add(row)
    return found


def footnotes(page: str) -> set[str]:
    """The footnotes of a page, without their numbers."""
    return set(re.findall(r"^\[\d+\] (.*)$", page, re.MULTILINE))


@pytest.mark.grid(11)
@pytest.mark.parametrize("name", names())
def test_what_follows_from_the_equations_is_up_to_date(name: str) -> None:
    """`costmodel training -o tables/generated/training.md --force`."""
    page = PAGE.read_text(encoding="utf-8")
    own = printed(training_page.document([builtin(name)], modules=False), "markdown")
    found = rows_of(own)
    assert {*found} == {name} and len(found[name]) > 3 and found[name] == rows_of(page)[name]
    assert footnotes(own) <= footnotes(page)


def test_nothing_is_calculated_for_a_closed_pipe(instead: Instead) -> None:
    """The first line is written before the tables are calculated, which takes minutes."""
    asked: list[object] = []
    instead(derived_page=lambda mixers: map(asked.append, [mixers]))
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", closefd=False) as closed:
        instead(answers=lambda: closed)
        assert cli.run(["training", "she", "--equations"]) == 0 and asked == []
        with suppress(BrokenPipeError):
            closed.close()
    os.close(writing)


def test_a_dash_has_the_command_for_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Every dash in the table of formulas; the command prints a number for each."""
    page = PAGE.read_text(encoding="utf-8")
    rows = rows_of(page)
    cells = [cell for found in rows.values() for row in found for cell in row.split(" | ")]
    assert training_page.LONGEST / 2 < max(map(len, cells)) <= training_page.LONGEST + len("$$")
    asked = [line for line in footnotes(page) if SELECTS in line]
    assert len(asked) == 3 and all(line.endswith(training_page.AT_SIZES) for line in asked)
    assert "| deltanet | chunked-wy | – | – | – |" in rows["deltanet"]
    (command,) = re.findall("`costmodel (table MIXER:FORM .*)`", training_page.AT_SIZES)
    words = command.replace("MIXER:FORM", "deltanet:chunked-wy").split()
    assert cli.run([*words, "--format", "csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    numbers = [f"{int(row[name]):,}" for name in training_page.FORMULAS[2:]]
    assert any({*numbers} <= {*one.split(" | ")} for one in rows["deltanet"])


def test_the_page_has_no_mixer_that_is_gone() -> None:
    assert rows_of(PAGE.read_text(encoding="utf-8")).keys() <= {*names()}


def traced_rows(name: str, module: str) -> None:
    """Compare the rows of a module, traced now, with those of the page."""
    mixer = cm.mixer(name)
    made = tuple(training_page.rows_of_module(mixer, implementations(mixer)[module]))
    own = Document(lambda: [Table("", training_page.TRACED, made)])
    lead = f"| {name} | {module} |"
    page = PAGE.read_text(encoding="utf-8").partition(MODULES_TRACED)[2]
    found, kept = (
        [line for line in table.splitlines() if line.startswith(lead)]
        for table in (printed(own, "markdown"), page)
    )
    assert len(found) == len(made) > 0 and found == kept


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("self-attention", "sdpa"),
        ("simple", "qk-first"),
        ("she", "direct"),
        ("convolution", "conv"),
    ],
    ids=["fused kernels", "another form", "zeros", "cases"],
)
def test_what_is_traced_is_up_to_date(name: str, module: str) -> None:
    """Of one module of each kind; tracing all of them takes minutes."""
    traced_rows(name, module)


PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31)
MODULES = [(name, module) for name in names() for module in implementations(cm.mixer(name))]


@pytest.mark.grid
@pytest.mark.parametrize(("name", "module"), MODULES)
def test_what_is_traced_of_every_module_is_up_to_date(name: str, module: str) -> None:
    """With --grid alone. The caches of one module's derivations serve no other module, and would
    keep gigabytes."""
    try:
        traced_rows(name, module)
    finally:
        clear_all()


def test_modules_are_traced_at_sizes_that_divide_each_other(
    instead: Instead,
) -> None:
    """Heads in groups, n = G*q, and widths d/(n*v): no module refuses the sizes. The trace itself
    finds the sizes l that a module runs at."""
    found: dict[str, Variables] = {}

    def noted(target: object, *, over: str, let: list[str], **_: object) -> None:
        found[mixer.name] = parse_variables(over, let, mixer.letters)
        raise TraceError("noted")

    instead(trace=noted)
    instead(counted_page=lambda *_: True)  # counts take long, and no size asks them
    for mixer in map(cm.mixer, names()):
        for described in implementations(mixer).values():
            list(training_page.rows_of_module(mixer, described))
    divided = 0
    for name, variables in found.items():
        sizes = variables.sizes(dict(zip(variables.over, PRIMES, strict=False)))
        pairs = {pair for pair in divisors(cm.mixer(name)).items() if pair[0] != "l"}
        assert all(sizes[size] % sizes[divisor] == 0 for size, divisor in pairs), name
        divided += len(pairs - {("d", "n")})
    assert divided > 4
    assert {*found["gla"].let} == {"h", "d"} and {*found["retnet"].let} == {"d"}


@pytest.mark.parametrize(
    ("name", "refused", "asked"),
    [
        ("fixed-attention", True, ("none", False)),
        ("fixed-attention", False, ("both", False)),
        ("she", False, ("both", True)),
    ],
)
def test_what_equations_lack_or_count_by_quotients_is_not_traced(
    name: str, refused: bool, asked: tuple[str, bool], instead: Instead
) -> None:
    """No trace of gradients where the equations have none, and no search for cases beside those of
    floor(l/B)."""

    def noted(*_: object, **options: object) -> None:
        raise TraceError(f"{options['grad']} {options['cases']}")

    def counted(_: Mixer, asked_of: object, *about: object) -> bool:
        if asked_of == "backward":
            raise Unsupported("no gradient")
        return True

    instead(trace=noted, **({"counted_page": counted} if refused else {}))
    mixer = cm.mixer(name)
    for row in training_page.rows_of_module(mixer, next(iter(implementations(mixer).values()))):
        assert isinstance(row, tuple) and row[-1] == "not traced: {} {}".format(*asked)


def test_every_implementation_has_its_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in names():
        for described in implementations(cm.mixer(name)).values():
            assert f"| {name} | {described.name} |" in page


def test_a_form_in_chunks_of_a_free_size_is_not_traced() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    found = 0
    for name in names():
        mixer = cm.mixer(name)
        for described in implementations(mixer).values():
            if not described.form.startswith("chunked"):
                continue
            (row,) = training_page.rows_of_module(mixer, described)
            assert isinstance(row, tuple)
            assert f"| {' | '.join(map(str, row))} |" in page
            found += 1
    assert found > 10


def test_one_mixer_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["training", "me", "--equations"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!-- costmodel training me --equations -->\n\n# What training costs\n")
    assert "Modules, traced" not in page
