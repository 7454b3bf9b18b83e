"""Does the README show the printed output of the tool?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.proofs.check import prove
from profiler.proofs.equality import prove_mixer
from tests.ladders import reconciled

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(mark: str) -> str:
    """The fenced block directly below an HTML comment."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"README.md has no block marked '{mark}'"
    return found[1]


COMMANDS = (
    "table --d 128 --l 128 --phase training",
    "crossover linear-attention self-attention --phase inference --d 1024 --n 16",
)


def test_tables_are_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        shown = block(f"output: {command}")
        assert cli.run(command.split()) == 0
        assert capsys.readouterr().out.startswith(shown.rstrip())


def test_the_summary_of_the_main_job_is_what_the_ladders_hold() -> None:
    """A line for every implementation of the five mixers, with its operations, and explained."""
    from profiler.modules import implementations

    shown = block("output: reconcile self-attention she he we me --d 128 --l 128")
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
    shown = block("output: rungs of explicit self-attention")
    for rung, name in (("1", "equations"), ("2", "executed algorithm"), ("3", "dispatched")):
        (line,) = (x for x in shown.splitlines() if x.startswith(f"{rung} {name}"))
        numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+|\b0\b", line)]
        counts = [found.rungs[rung].get(c, 0) for c in ("mul", "add", "div", "exp", "compare")]
        assert numbers == [*counts, sum(counts)]
    for cause in found.causes:
        (line,) = (x for x in shown.splitlines() if x.startswith(f"  + {cause.name}"))
        assert cause.meaning in line
        assert f"{cause.counts['add']:+,}" in line


def test_the_mixer_of_ones_own_is_short_and_holds(tmp_path: Path) -> None:
    text = block("example: decay.py")
    assert len([line for line in text.splitlines() if line.strip()]) < 30
    path = tmp_path / "decay.py"
    path.write_text(text, encoding="utf-8")
    mixer = cm.mixer(f"{path}:decay")
    proofs = prove_mixer(mixer)
    assert {proof.passed for proof in proofs} == {True}
    assert [proof.name for proof in proofs][-1] == "direct: step equals forward"
    assert prove(mixer) == proofs[: len(prove(mixer))]


def test_the_python_example_says_what_comes_out() -> None:
    she = cm.mixer("she")
    found = {
        str(cm.count(she).mul),
        str(cm.count(she, phase="inference").at(d=128, l=128, t=128).total),
        f"{cm.state(she).expr}, {cm.span(she).at(d=128, l=128)}",
        repr(cm.count(she).at(d=128, l=[64, 128]).total),  # type: ignore[arg-type]  # an array
        str(cm.count(she).mul.subs({"d": 128})),
    }
    said = {line.split("# ")[1] for line in README.splitlines() if line.startswith("cm.")}
    assert said == found


def test_every_command_that_it_names_exists() -> None:
    named = set(re.findall(r"costmodel ([a-z]+)", README)) - {"as"}  # import costmodel as cm
    commands = {
        c.name or c.callback.__name__ for c in cli.complete().registered_commands if c.callback
    }
    assert named <= commands
    assert commands <= named
