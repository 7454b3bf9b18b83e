"""Do README.md and the pages of docs/ show what the tool prints, and do their examples run?"""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.mixers import builtin, names
from costmodel.program.conventions import Convention
from costmodel.proofs.check import prove
from costmodel.proofs.tried_sizes import module_sizes
from costmodel.questions.question import answers
from costmodel.report.mathml import mathml
from docs import docstrings, mixer_pages
from profiler.modules import implementations
from profiler.proofs.deep import findings
from profiler.proofs.draws import Draw
from profiler.proofs.equality import prove_mixer
from profiler.proofs.trial import Subject, Trial
from tests.ladders import reconciled

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
"""Path of README.md and of every page that is written by hand -> its text."""
RECONCILED = (
    "reconcile self-attention she he we me --d 128 --l 128",
    "rungs of explicit self-attention",
)
"""The outputs with measured times, of which a test holds the counts."""


def blocks(kind: str) -> dict[str, str]:
    """The fenced blocks directly below HTML comments `KIND: MARK`, by mark, of all pages."""
    pattern = re.compile(rf"<!-- {kind}: (.+?) -->\n```\w+\n(.*?)```", re.DOTALL)
    found = [pair for text in PAGES.values() for pair in pattern.findall(text)]
    assert len(dict(found)) == len(found), f"two blocks have the same mark '{kind}: ...'"
    return dict(found)


OUTPUTS, EXAMPLES = blocks("output"), blocks("example")


def commands() -> dict[tuple[str, ...], str]:
    """The words of every `costmodel` command in a block of bash -> the page that shows it."""
    found: dict[tuple[str, ...], str] = {}
    for page, text in PAGES.items():
        for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                first, *words = shlex.split(line, comments=True) or [""]
                if first == "costmodel":
                    found.setdefault(tuple(words), page)
    return found


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of all examples."""
    for file, text in EXAMPLES.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("command", sorted({*OUTPUTS} - {*RECONCILED}))
def test_tables_are_what_the_commands_print(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(command.split()) == 0
    assert capsys.readouterr().out.startswith(OUTPUTS[command].rstrip())


def test_every_option_that_a_command_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser reads all words before it prints the help."""
    assert len(commands()) > 30
    assert [words for words in commands() if cli.run([*words, "--help"])] == []


@pytest.mark.usefixtures("examples", "capsys")
def test_every_command_that_derives_runs() -> None:
    """The commands that need neither a machine nor a file other than the examples."""
    a_file = re.compile(r"\w+\.(?:py|json|jsonl|toml|tex|html)\b")
    asked = [
        words
        for words in commands()
        if words[0] in {*cli.DERIVING, "plot"} and not {*words} & {*blocks("picture")}
        if {*a_file.findall(" ".join(words))} <= {*EXAMPLES}
    ]
    assert len(asked) > 20
    assert [words for words in asked if cli.run(words)] == []


def test_relative_links_lead_somewhere() -> None:
    """Of pages and of the texts for developers; Sphinx holds the links of the site too."""
    written = {f"docs/mixers/{name}.md" for name in ("index", *names())}
    texts = PAGES | {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in ("CONTRIBUTING.md", "ARCHITECTURE.md")
    }
    links = [
        (page, (Path(page).parent / link).as_posix())
        for page, text in texts.items()
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", text)
    ]
    assert len(links) > 30
    assert [x for x in links if x[1] not in written and not (ROOT / x[1]).exists()] == []


def test_the_readme_is_short_and_names_every_page() -> None:
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 150
    shown = {page for page in PAGES if f"({page})" in readme}
    assert shown == {*PAGES} - {"README.md", "docs/index.md", "docs/explorer.md"}


def test_the_picture_says_what_its_command_draws(tmp_path: Path) -> None:
    """Its texts: the ticks, the sizes, where lines cross, the names."""
    ((path, command),) = blocks("picture").items()
    words = shlex.split(command.replace("\\\n", " "))
    place = words.index(path)
    words[place] = str(tmp_path / "picture.svg")
    assert cli.run(words[1:]) == 0
    drawn, shown = (
        re.findall(r">([^<>]+)</t(?:ext|span)>", Path(file).read_text(encoding="utf-8"))
        for file in (words[place], ROOT / path)
    )
    assert drawn == shown
    assert "4,097" in shown


@pytest.mark.parametrize("name", ["she", "fnet", "mamba"])
def test_the_page_of_a_mixer_has_its_equations_and_its_costs(name: str) -> None:
    """Every formula of the page is typeset; a form without one-token inference has a reason."""
    mixer = builtin(name)
    page = mixer_pages.page(mixer)
    shown = re.findall(r"\$\$\n(.+?)\n\$\$", page)
    assert len(shown) == sum(len(form.equations) for form in mixer.forms.values())
    for formula in (*shown, *re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", page)):
        assert mathml(formula).startswith("<math>")
    totals = [line for line in page.splitlines() if line.startswith("| Total |")]
    cases = [
        answers(mixer, form, phase, Convention())
        for form in mixer.forms
        for phase in mixer_pages.PHASES
    ]
    assert len(totals) == sum(not case.unanswered for case in cases)
    assert page.count("No costs: ") == sum(bool(case.unanswered) for case in cases)
    table = cm.table(mixer, form="all", symbolic=True, columns="total").to_markdown()
    cells = re.findall(r"^\| (\$.+\$) \|$", table, re.MULTILINE)
    assert cells
    assert [cell for cell in cells if not any(f"| {cell} |" in line for line in totals)] == []


def test_docstrings_become_what_sphinx_reads() -> None:
    found = doctest.testmod(docstrings)
    assert found.attempted and not found.failed


def test_the_summary_of_the_main_job_is_what_the_ladders_hold() -> None:
    """A line for every implementation of the five mixers, with its operations, and explained."""
    from profiler.modules import implementations

    shown = OUTPUTS[RECONCILED[0]]
    lines = {tuple(line.split()[:2]): line.split() for line in shown.splitlines() if line}
    for name in ("self-attention", "she", "he", "we", "me"):
        for implementation in implementations(name).values():
            sizes = {"b": 1, "l": 128, "d": 128} | ({"n": 8} if name == "self-attention" else {})
            found = reconciled(name, implementation, sizes)
            line = lines.pop((name, implementation.name))
            rungs = [f"{sum(found.rungs[k].values()):,}" for k in "123"]
            assert line[2:6] == [*rungs, f"{found.unexplained_operations:,}"]
            assert found.explained and {"explained", "explained;"} & {*line[6:]}


def test_the_reconciliation_is_what_the_ladder_holds() -> None:
    """Every number of the README's rungs, causes and rests."""
    from profiler.modules import implementations

    sizes = {"b": 1, "l": 128, "d": 128, "n": 32}
    found = reconciled("self-attention", implementations("self-attention")["explicit"], sizes)
    shown = OUTPUTS[RECONCILED[1]]
    for rung, name in (("1", "equations"), ("2", "executed algorithm"), ("3", "dispatched")):
        (line,) = (x for x in shown.splitlines() if x.startswith(f"{rung} {name}"))
        numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+|\b0\b", line)]
        counts = [found.rungs[rung].get(c, 0) for c in ("mul", "add", "div", "exp", "compare")]
        assert numbers == [*counts, sum(counts)]
    for cause in found.causes:
        (line,) = (x for x in shown.splitlines() if x.startswith(f"  + {cause.name}"))
        assert cause.meaning in line
        assert f"{cause.counts['add']:+,}" in line


@pytest.mark.parametrize("file", [file for file, text in EXAMPLES.items() if "Mixer(" in text])
def test_the_mixers_of_ones_own_are_short_and_hold(file: str, examples: Path) -> None:
    path = examples / file
    assert len([line for line in EXAMPLES[file].splitlines() if line.strip()]) < 45
    mixer = cm.mixer(f"{path}:{path.stem}")
    proofs = prove_mixer(mixer)
    assert proofs[-1].name.endswith(": step equals forward")
    if "def step" not in EXAMPLES[file]:
        assert proofs.pop().passed is None
    assert {p.passed for p in proofs if not p.name.endswith(", other answers")} == {True}
    assert prove(mixer) == proofs[: len(prove(mixer))]
    (described,) = implementations(mixer).values()
    for sizes in module_sizes(mixer):  # forward and backward pass
        assert findings(Trial, Subject(mixer, described), Draw(sizes)) == []


@pytest.mark.parametrize("file", [file for file, text in EXAMPLES.items() if "Mixer(" not in text])
def test_the_examples_in_python_run(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[file], {})
    assert capsys.readouterr().out


def test_the_python_example_says_what_comes_out() -> None:
    she = cm.mixer("she")
    found = {
        str(cm.count(she).mul),
        str(cm.count(she, phase="inference").at(d=128, l=128, t=128).total),
        f"{cm.state(she).expr}, {cm.span(she).at(d=128, l=128)}",
        repr(cm.count(she).at(d=128, l=[64, 128]).total),  # type: ignore[arg-type]  # an array
        str(cm.count(she).mul.subs({"d": 128})),
    }
    said = {
        line.split("# ")[1]
        for line in PAGES["docs/python.md"].splitlines()
        if line.startswith("cm.")
    }
    assert said == found


def test_every_command_that_the_pages_name_exists() -> None:
    text = "\n".join(PAGES.values())
    named = set(re.findall(r"costmodel ([a-z]+)", text)) - {"as"}  # import costmodel as cm
    commands = {
        c.name or c.callback.__name__ for c in cli.complete().registered_commands if c.callback
    }
    assert commands <= named
    assert named <= commands
