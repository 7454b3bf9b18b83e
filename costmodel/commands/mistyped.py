"""Sentences for command lines that cannot be parsed, each with advice on what to type instead.

The exceptions of the parser (typer or click) name the option or argument, but their texts differ
between versions. The sentences are therefore made here, from the words of the command line
(`typed`, without the program's name), the exception (`error`), and the type of the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from costmodel.symbolic.sizes import LETTERS

PROGRAM = "costmodel"
NUMBERS: Mapping[str, str] = {"int": "a whole number", "float": "a finite number"}
"""Type of an option -> the words for its values."""


def is_of_the_line(error: Exception) -> bool:
    """Whether an exception comes from the parser of command lines."""
    return hasattr(error, "format_message")


def sentence(error: Any, typed: Sequence[str]) -> str:
    """The sentence that explains an exception `error` of the parser of the command line: by the
    first of its classes that `RULES` has; else the parser's own text. `typed`: the words typed."""
    for kind in type(error).__mro__:
        if rule := RULES.get(kind.__name__):
            return rule(error, typed)
    said: str = error.format_message()
    return said


def bad_value(error: Any, typed: Sequence[str]) -> str:
    """The sentence for a value of the wrong type: `--rounds x: expected a whole number of 1 or
    more`. If the type is no number, the part after the colon is the parser's; if the parser names
    no option, the whole sentence is the parser's."""
    option = error.param
    if option is None:
        return str(error.format_message())
    name = name_of(option)
    value = value_of(option.opts, typed)
    wanted = NUMBERS.get(type_of(option))
    expected = str(error.message) if wanted is None else f"expected {wanted}{limits(option)}"
    return f"{name} {value}: {expected}" if value is not None else f"{name}: {expected}"


def missing(error: Any, typed: Sequence[str]) -> str:
    """Of a missing argument: `check needs MIXER: costmodel check --help describes it`."""
    command = command_of(error)
    return f"{command} needs {name_of(error.param)}: {helping(command)} describes it"


FEW = 2
"""The commands that are named as having an option, where more than one more command has it."""


def options_of(command: Any) -> list[str]:
    """All names of a command's options: `--output`, `-o`, `--no-loss`, ..."""
    known = (name for p in command.params for name in (*p.opts, *p.secondary_opts))
    return [name for name in known if name.startswith("-")]


def no_option(error: Any, typed: Sequence[str]) -> str:
    """The sentence for an option that a command lacks, which names the first of these that there
    is: braces for the head width `--h` or, of a command with --mixer, for a size (`memory --L 2`);
    other commands with this option; a similar option, `profile has no option --sead: did you mean
    --seed?`; else the command's help."""
    command = command_of(error)
    own = options_of(error.ctx.command)
    likely = close(error.option_name, own)  # the option of this command with the most similar name
    said = f"{command} has no option {error.option_name}"
    if error.option_name == "--h" and "--n" in own:
        width = value_of(["--h"], typed) or ""
        example = f"self-attention{{h={width if width.isdecimal() else 128}}}"
        return f"{said}: the width of a head stands in braces, such as {example}"
    commands = getattr(error.ctx.find_root().command, "commands", {})
    others = [name for name, one in commands.items() if error.option_name in options_of(one)]
    if others and "--mixer" in own and (letter := error.option_name.removeprefix("--")) in LETTERS:
        network = typed[1].partition("{")[0] if not typed[1].startswith("-") else "decoder"
        size = f"{letter}={value_of([error.option_name], typed) or 2}"
        return f"{said}: sizes of a network stand in braces, such as '{network}{{{size}}}'"
    if others:
        *named, last = others
        if len(others) > FEW + 1:
            named, last = others[:FEW], f"{len(others) - FEW} others"
        listed = f"{', '.join(named)} and {last} have it" if named else f"{last} has it"
        return f"{said}; {listed}"
    return f"{said}: did you mean {likely}?" if likely else f"{said}: {helping(command)} lists them"


def bad_use(error: Any, typed: Sequence[str]) -> str:
    """The sentence for an option without its value, or a switch with a value: a switch if the line
    has NAME=VALUE and does not end with NAME."""
    name = error.option_name
    given = [word for word in typed if word.startswith(f"{name}=")]
    if given and typed[-1] != name:
        return f"{name} is a switch and takes no value: leave out {given[0].removeprefix(name)}"
    return f"{name} needs a value after it"


def bad_line(error: Any, typed: Sequence[str]) -> str:
    """The sentence for a line without a command, with an unknown one, or with more words than the
    command takes (if the first of them follows a switch, that the switch takes no value); else the
    parser's own text."""
    commands = getattr(getattr(error.ctx, "command", None), "commands", None)
    first = next((word for word in typed if not word.startswith("-")), "")
    if commands is not None and not first:
        return f"no command is given: {helping(PROGRAM)} lists them"
    if commands is not None and first not in commands:
        likely = close(first, list(commands))
        said = f"there is no command '{first}'"
        return (
            f"{said}: did you mean {likely}?"
            if likely
            else f"{said}: {helping(PROGRAM)} lists them"
        )
    if words := re.search(r" \((?P<words>.*)\)$", str(error.message)):
        command = command_of(error)
        if switch := switch_before(words["words"].split()[0], error.ctx.command, typed):
            return f"{switch} is a switch and takes no value: leave out {words['words']}"
        return (
            f"{command} takes fewer arguments: leave out '{words['words']}', or see "
            f"{helping(command)}"
        )
    return str(error.format_message())


def switch_before(word: str, command: Any, typed: Sequence[str]) -> str:
    """The switch of a command that directly precedes a word; "" if there is none."""
    options = [option for option in command.params if getattr(option, "is_flag", False)]
    switches = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    found = (one for one, after in pairwise(typed) if after == word and one in switches)
    return next(found, "")


RULES: Mapping[str, Callable[[Any, Sequence[str]], str]] = {
    "MissingParameter": missing,
    "BadParameter": bad_value,
    "NoSuchOption": no_option,
    "BadOptionUsage": bad_use,
    "UsageError": bad_line,
}
"""Name of an exception's class -> its rule; the nearest base class counts."""


def command_of(error: Any) -> str:
    """The name of the command of an exception's context; without a command, the program's name."""
    return str(error.ctx.info_name)


def helping(command: str) -> str:
    """The command line that shows a command's help.

    >>> helping("table"), helping(PROGRAM)
    ('costmodel table --help', 'costmodel --help')
    """
    return " ".join(dict.fromkeys((PROGRAM, command, "--help")))


def name_of(option: Any) -> str:
    """The name of an option or argument as users type it: `--rounds`, `MIXER`."""
    longest = max(option.opts, key=len)
    return str(longest if longest.startswith("-") else option.metavar or longest.upper())


def value_of(names: Sequence[str], typed: Sequence[str]) -> str | None:
    """The last value of an option on the command line; None if there is none.

    >>> value_of(["--d"], ["table", "--d", "x"]), value_of(["--d"], ["table", "--d=y"])
    ('x', 'y')
    """
    found = None
    for before, word in zip(["", *typed], typed, strict=False):
        name, equals, value = word.partition("=")
        if before in names:
            found = word
        elif equals and name in names:
            found = value
    return found


def type_of(option: Any) -> str:
    """The name of an option's type, "int" or "float" for numbers, in all versions of typer."""
    described = getattr(option, "type_descriptor", None)
    if described is not None:
        return str(getattr(described.annotation, "__name__", ""))
    name = str(getattr(getattr(option, "type", None), "name", ""))
    return {"integer": "int", "float": "float"}.get(name.removesuffix(" range"), name)


def limits(option: Any) -> str:
    """The range of an option in words: ` of 1 or more`, ` from 0 to 9`; "" if unbounded."""
    ends = [
        getattr(option, end, None) if hasattr(option, end) else getattr(option.type, end, None)
        for end in ("min", "max")
    ]
    low, high = (None if end is None else str(end) for end in ends)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of {low} or more"
    return "" if high is None else f" of {high} at most"


def close(word: str, choices: Sequence[str]) -> str:
    """The choice that is most similar to a word, without leading dashes; "" if none is similar.

    >>> close("--sead", ["--seed", "--d"]), close("--L", ["--w", "--l"])
    ('--seed', '')
    """
    bare = {choice.lstrip("-"): choice for choice in choices}
    near = get_close_matches(word.lstrip("-"), list(bare), n=1, cutoff=0.65)
    return bare[near[0]] if near else ""
