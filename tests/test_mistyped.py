"""Is every unreadable option of a command line refused in one sentence?

What the libraries below would say depends on their versions; none of it may come through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

import cli
from costmodel.commands.mistyped import NUMBERS, limits, name_of, sentence, type_of, value_of
from tests.typed import Capture, refused

FOREIGN = (
    "Input should", "Invalid value", "Missing ", "No such option", "No such command",
    "Got unexpected", "requires an argument", "does not take", "Possible options", "Errno",
    "Traceback", "unable to parse",
)  # fmt: skip


def numeric() -> Iterator[tuple[str, Any]]:
    """Every option of every command that takes a number, as the app has them."""
    group: Any = typer.main.get_command(cli.complete())
    for command, found in group.commands.items():
        for option in found.params:
            if type_of(option) in NUMBERS:
                yield command, option


NUMERIC = list(numeric())


def test_numbers_are_asked_for_by_all_commands_that_measure() -> None:
    by: dict[str, set[str]] = {}
    for command, option in NUMERIC:
        by.setdefault(command, set()).add(name_of(option))
    energy = {"--energy-window", "--energy-trials"}
    assert by["profile"] >= energy | {"--seed", "--seconds"} <= by["sweep"] | by["reconcile"]
    assert by["compare"] >= energy | {"--rounds", "--level", "--seed"}
    assert by["study"] >= energy | {"--rounds", "--seconds", "--largest"}
    assert by["sweep"] >= energy | {"--rounds", "--order-seed"}


@pytest.mark.parametrize(
    ("command", "option"), NUMERIC, ids=[f"{command} {name_of(o)}" for command, o in NUMERIC]
)
@pytest.mark.parametrize("joined", [False, True])
def test_what_is_no_number_is_refused_by_what_is_expected(
    command: str, option: Any, joined: bool, capsys: Capture
) -> None:
    name = name_of(option)
    words = [f"{name}=1,5"] if joined else [name, "1,5"]
    said = refused(capsys, command, *words)
    assert said == f"{name} 1,5: expected {NUMBERS[type_of(option)]}{limits(option)}"


@pytest.mark.parametrize(
    ("command", "option"),
    [(c, o) for c, o in NUMERIC if limits(o)],
    ids=[f"{command} {name_of(o)}" for command, o in NUMERIC if limits(o)],
)
def test_numbers_out_of_bounds_are_refused_by_the_bounds(
    command: str, option: Any, capsys: Capture
) -> None:
    least, name = option.min, name_of(option)
    for value in (f"{least - 1}", "nan"):
        said = refused(capsys, command, name, value)
        assert said == f"{name} {value}: expected {NUMBERS[type_of(option)]}{limits(option)}"
        assert str(least) in limits(option)


SAID = {
    "compare me she --energy-trials x": "--energy-trials x: expected a whole number",
    "compare me she --rounds 2.5": "--rounds 2.5: expected a whole number from 1 to 1000",
    "compare me she --level one": "--level one: expected a finite number",
    "compare me she --energy-trials": "--energy-trials needs a value after it",
    "compare": "compare needs A B...: costmodel compare --help describes it",
    "profile me --seed -1": "--seed -1: expected a whole number from 0 to 9223372036854775807",
    "profile me --seed 9223372036854775808": "expected a whole number from 0 to",
    "profile me --seconds nan": "--seconds nan: expected a finite number of 0.01 or more",
    "profile me --seconds inf": "--seconds inf: expected a finite number of 0.01 or more",
    "study extractors --seconds inf": "--seconds inf: expected a finite number of 0.01 or more",
    "profile me --sead 3": "profile has no option --sead: did you mean --seed?",
    "sweep me --counts-only": "sweep has no option --counts-only; profile and reconcile have it",
    "explain me --rounds 3": "explain has no option --rounds; sweep, compare and study have it",
    "model gpt-2 --energy": "model has no option --energy; profile, reconcile and 3 others have it",
    "profile me --xyzzy": "profile has no option --xyzzy: costmodel profile --help lists them",
    "profile me --no-energy=3": "--no-energy is a switch and takes no value: leave out =3",
    "profile me -o": "-o needs a value after it",
    "sweep me --order-seed 0.5 -o x": "--order-seed 0.5: expected a whole number of 0 or more",
    "study extractors --largest all -o x": "--largest all: expected a whole number of 1 or more",
    "study extractors thesis -o x": "study takes fewer arguments: leave out 'thesis', or see",
    "doctor cpu gpu": "doctor takes fewer arguments: leave out 'cpu gpu', or see costmodel doctor",
    "tabel --d 3": "there is no command 'tabel': did you mean table?",
    "xyzzy": "there is no command 'xyzzy': costmodel --help lists them",
    "--no-cache": "no command is given: costmodel --help lists them",
    "profile me: --d 3": "'me:' names no implementation behind its last colon",
    "--xyzzy": "costmodel has no option --xyzzy: costmodel --help lists them",
    "trace torch.nn:Linear": "trace needs --over: costmodel trace --help describes it",
    "statement": "statement needs --from: costmodel statement --help describes it",
    "scaling": "scaling needs FILE.jsonl...: costmodel scaling --help describes it",
    "table --d": "--d needs a value after it",
    "table --symbolic=yes": "--symbolic is a switch and takes no value: leave out =yes",
    "model decoder --loss squared-error": "--loss is a switch and takes no value: leave out",
    "model decoder --loss --no-ffn x y": "--no-ffn is a switch and takes no value: leave out x y",
    "model --hf none.json": "none.json is not a readable configuration: No such file or directory",
    "table she --phase fwd": "--phase 'fwd': did you mean 'forward'? expected one of training",
    "table she --state-dtype fp9": "--state-dtype 'fp9': did you mean 'fp8'? expected one of",
    "table she --l 4:": "a range 128:16384:x2, got '4:'",
    "table she --l 1,,2": "a range 128:16384:x2, got '1,,2'",
    "table she -o tests": "tests is a folder: give a file, such as tests/result",
    "table self-attention --n 3": "d divisible by n, such as d = 126 or 129, or n = 2 or 4",
    "table self-attention+rotary --d 100 --n 4": "d divisible by 2*n, such as d = 96 or 104, or n",
    "table she --format latex --symbols l=N,l=M": "'l=N,l=M' names l twice: leave out one",
    "crossover she me --by state --phase backward": "exists in inference only, not in backward",
    "memory gpt-2 --context 4k": "covers 1024 positions: choose t = 1024 at most (--context 1024)",
    "explain gpt-2 --against she": "explain takes sizes, --phase and --convention for a network: "
    "leave out --against",
    "model she": "`costmodel model decoder --mixer she` makes a network of it",
    "model --list gpt-2": "--list shows all networks: leave out the name",
    "study --from none.jsonl": "without a name, study lists all studies: leave out --from",
    "plot she -o x": "-o x: expected a name that ends in .png, .svg, .pdf",
    "check she --claim mul<=l*d": "'<=' is no sign of a claim: write 'mul = l*d', or 'mul = O(l",
    "check she --claim mul=o(l)": "'o(l)' has a small o: write O(l) for an upper bound, or",
    "check she --claim mull=l": "unknown quantity 'mull': did you mean 'mul'? expected one of mul",
    "model --hf LICENSE": "LICENSE is not a readable configuration: Expecting value",
    "verify none.json": "none.json is not a readable file of claims: No such file or directory",
}


@pytest.mark.parametrize("line", SAID)
def test_a_line_that_cannot_be_read_says_what_to_type(line: str, capsys: Capture) -> None:
    said = refused(capsys, *line.split())
    assert SAID[line] in said
    assert not [words for words in FOREIGN if words in said]


def test_a_value_is_found_wherever_it_was_typed() -> None:
    assert value_of(["--d"], ["table", "--d", "1", "--d=2"]) == "2"
    assert value_of(["--d"], ["table", "--dd", "1"]) is None


def test_other_complaints_keep_their_words() -> None:
    class Other(Exception):
        def format_message(self) -> str:
            return "as it is"

    class BadParameter(Other):
        param = None

    class UsageError(Other):
        ctx, message = None, "as it is"

    for kind in (Other, BadParameter, UsageError):
        assert sentence(kind(), []) == "as it is"


def test_readers_of_other_versions_tell_types_and_bounds_otherwise() -> None:
    class Range:
        name, min, max = "integer range", 1, 9

    class Old:
        type = Range()

    assert (type_of(Old()), limits(Old())) == ("int", " from 1 to 9")
    Range.name, Range.min, Range.max = "float", None, 9  # type: ignore[assignment]  # no bound
    assert (type_of(Old()), limits(Old())) == ("float", " of 9 at most")
    assert type_of(object()) == ""
