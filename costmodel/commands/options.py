"""Options and checks that several commands share: sizes, choices, output, error sentences."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shlex
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer

from costmodel.commands.streams import (
    answers,
    complain,
    harmless,
    interruptible,
    printed,
    wrapped,
    written_whole,
)
from costmodel.errors import BoardError, described, did_you_mean
from costmodel.program.conventions import LOSSES, WANTED, Backward, Convention
from costmodel.report.formats import FORMATS, formats, formats_with, pieces, write_frame
from costmodel.symbolic.sizes import LETTERS, Letter, whole_number

if TYPE_CHECKING:
    from costmodel.prediction.boards import Board
    from costmodel.program.element_types import Dtypes
    from costmodel.report.document import Document


class UsageError(ValueError):
    """Options or arguments do not fit together; the message says what to type instead."""


Command = Callable[..., None]
Found = TypeVar("Found")

SIZE_NAMES = {"p": ("--prompt", "--p"), "q": ("--new", "--q")}
"""Size letter -> its options, for sizes whose option has a name besides the letter."""


def sized(command: Command, *, networks: bool = False) -> Command:
    """Decorate a command so that the parser sees one option per size letter, and the command gets
    one mapping `sizes` from the letter to the text as typed, None if the option is not given.
    Returns a function without `sizes`, with these options in its signature.

    The help lists the letters that mixers share; a command about mixers also takes any letter that
    a mixer brings. With `networks`, it takes the letters of whole networks, such as L, instead.
    """
    signature = inspect.signature(command, eval_str=True)
    # h is no option: the width of a head follows from d and n
    letters = [e for e in LETTERS.values() if e.letter != "h" and (networks or not e.networks)]
    others = [x for x in string.ascii_letters if not networks and x not in LETTERS]
    letters += [Letter(x, "a size that a mixer brings") for x in others]

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:
        sizes = {entry.letter: arguments.pop(f"size_{entry.letter}") for entry in letters}
        command(**arguments, sizes=sizes)

    options = [
        inspect.Parameter(
            f"size_{entry.letter}",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    *SIZE_NAMES.get(entry.letter, (f"--{entry.letter}",)),
                    metavar="N",
                    help=entry.meaning + (f" [{entry.default}]" if entry.default else ""),
                    rich_help_panel="Sizes: 128, or 32k, or 1,8,32, or 1:9:2, or 1k:4k:x2, or l",
                    hidden=entry.letter in others,
                ),
            ],
        )
        for entry in letters
    ]
    own = [p for name, p in signature.parameters.items() if name != "sizes"]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    told: Any = wrapped
    told.__signature__ = signature.replace(parameters=[*keyword, *options])
    return wrapped


PLAIN: Mapping[Any, Callable[[Any], Any]] = {
    str: lambda text: text,
    list[str]: lambda texts: texts,
    Path: Path,
    list[Path]: lambda names: [*map(Path, names)],
}
"""Type of a parameter -> its value from the words that were typed."""


def text_as_typed(parameter: Any) -> None:
    """Let a parameter of the parser pass on a text or a path as typed, None for an option that is
    not given, and True or False for 1 or 0 in the environment. Typer converts all of them with
    pydantic, whose import takes a fourth of the time of `costmodel table`. Typer still converts
    other values (numbers) and refuses a missing argument."""
    convert = parameter.process_value
    described = getattr(parameter, "type_descriptor", None)
    if described is None:
        return  # an earlier typer, which converts without pydantic
    plain = None if described.parameter_info.parser else PLAIN.get(described.annotation)

    def process(context: Any, value: Any) -> Any:
        """The value for the command, in place of the parser's own method of this name."""
        if parameter.required and not value:
            return convert(context, value)
        if value is None:
            value = () if described.is_list else None
        elif described.annotation is bool and value in ("0", "1"):  # of the environment
            value = value == "1"
        elif plain is None:
            return convert(context, value)
        else:
            value = plain(value)
        return parameter.callback(context, parameter, value) if parameter.callback else value

    parameter.process_value = process


Mixers = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MIXER]...",
        help="Names (`costmodel list`, `costmodel model --list`), FILE.py:NAME or config.json.",
    ),
]
Form = Annotated[
    str | None,
    typer.Option("--form", metavar="NAME", help="A form shown by `costmodel list`, or all."),
]
Phase = Annotated[
    str,
    typer.Option(
        "--phase", help="Phase: training, inference, both; backward, training-step; or all four."
    ),
]
ConventionOption = Annotated[
    str,
    typer.Option(
        "--convention",
        metavar="A,B",
        help="Rules of counting: strict or mac, then any rewrites of equations, such as mac,dense; "
        "or torch or fvcore, to count as these do; an unknown name lists all.",
    ),
]

Own = Annotated[
    list[Path] | None,
    typer.Option(
        "--own",
        metavar="FILE.py",
        help="Import a Python file whose mixers the claims or records name; repeatable.",
    ),
]


def import_own(files: Sequence[Path] | None) -> None:
    """Import the user's files given by `--own`: files of data, such as claims, can name mixers of
    files only that are imported."""
    from costmodel.mixers.load import user_module

    for path in files or ():
        user_module(path)


def formatted(*has: str) -> Any:
    """The option `--format` of a document with the fields `has` (see `formats`)."""
    *others, last = formats(*has)
    return typer.Option("--format", help=f"{', '.join(others)} or {last}.")


Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")]
Symbols = Annotated[
    str,
    typer.Option(
        "--symbols",
        metavar="l=N,d=D",
        help=f"Rename sizes in {' and '.join(formats_with('symbols'))}.",
    ),
]
Caption = Annotated[str, typer.Option("--caption", help="LaTeX caption in place of the default.")]
Width = Annotated[
    str,
    typer.Option(
        "--width",
        metavar="3.3in",
        help="Width of LaTeX tables, or a document class: icml, acl; an unknown one lists all.",
    ),
]
_WIDTH = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)(in|cm|mm|pt)")
_PER_INCH = {"in": 1.0, "cm": 2.54, "mm": 25.4, "pt": 72.27}


def inches(text: str) -> float | None:
    """The width in inches for the text given by `--width`, a length such as `8.5cm` or a class of
    documents; None for "".

    Raises:
        UsageError: neither a length from 1 to 40 inches nor a class of documents.
    """
    if not text:
        return None
    from costmodel.report.latex import COLUMNS

    if text in COLUMNS:
        return COLUMNS[text]
    found = _WIDTH.fullmatch(text)
    width = float(found[1]) / _PER_INCH[found[2]] if found else 0.0
    if not 1 <= width <= 40:
        raise UsageError(
            f"--width '{text}': expected a length from 1in to 40in, such as 8.5cm, 85mm or 240pt, "
            f"or one of {', '.join(COLUMNS)}"
        )
    return width


def labelled(several: str) -> Any:
    """The option `--label`; `several` says which labels several tables get."""
    return typer.Option("--label", help=f"LaTeX label; {several}.")


Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
Ignored = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="FIELD", help="Leave a field of the configuration out; repeatable."
    ),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        metavar="A,B",
        help="Backward pass: arrays to recompute, or all; an unknown name lists them.",
    ),
]
Only = Annotated[
    str | None,
    typer.Option("--only", help="Backward pass: only gradients of parameters, or of inputs."),
]
Loss = Annotated[
    str | None,
    typer.Option("--loss", help="Backward pass: start from this loss, squared-error or "
                                "cross-entropy, instead of a given gradient of the output."),
]  # fmt: skip
Optimiser = Annotated[
    str | None,
    typer.Option(
        "--optimiser",
        help=("Training step: the optimiser whose state is shown; none, sgd, momentum or adamw."),
    ),
]

CHOICES = "Choices: in place of the network's own"
"""The title of the help's panel of options that change a network's choices."""


def choice(name: str, help_: str, metavar: str | None = None) -> Any:
    """The option `name` of a network's choice, in the panel `CHOICES` of the help."""
    return typer.Option(name, metavar=metavar, help=help_, rich_help_panel=CHOICES)


LayersMixers = Annotated[str | None, choice("--mixer", "The layers' mixers, taken in turn.", "A,B")]

OnePhase = Annotated[
    str | None,
    typer.Option("--phase", help="Phase: training (forward), inference, backward, training-step."),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Element type (default: fp32; for a model, its configuration's)."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda (default: the GPU, if any).")
]
CacheDtype = Annotated[
    str | None,
    typer.Option("--cache-dtype", help="Type of cached rows (keys); also q8_0, q4_0, int4."),
]
StateDtype = Annotated[
    str | None,
    typer.Option("--state-dtype", help="Element type of recurrent arrays in the state."),
]
WeightDtype = Annotated[
    str | None, typer.Option("--weight-dtype", help="Type of the weights; also q8_0, q4_0, int4.")
]

OnBoard = Annotated[
    str | None,
    typer.Option(
        "--board",
        metavar="NAME",
        help="A GPU of tables/devices, or BOARD.toml: show floor, bound and predicted_time.",
    ),
]

PredictedModule = Annotated[
    str,
    typer.Option(
        "--impl",
        metavar="NAME",
        help="With --board: the implementation to predict (default: kernels, else the fastest).",
    ),
]


def on_board(name: str | None, implementation: str = "") -> Board | None:
    """The board (a GPU with its measured rates) that `--board` names; None without a name;
    UsageError if there is no such board, or `--impl` names an implementation without a board."""
    from costmodel.prediction.boards import board

    if implementation and name is None:
        raise UsageError(
            "--impl needs a GPU to predict a time for: add --board, such as --board h100"
        )
    try:
        return None if name is None else board(name)
    except BoardError as error:
        raise UsageError(f"--board: {error}") from None


_TOKENS = re.compile(r"([0-9]{1,13})([kKmM]?)")


def tokens(option: str, text: str) -> int:
    """A number of tokens or sequences as typed: 4096, 128k (of 1024), 1M; UsageError for another
    text and for a number outside of 1..2**40."""
    from costmodel.symbolic.sizes import FACTORS

    found = _TOKENS.fullmatch(text)
    number = int(found[1]) * FACTORS[found[2].lower()] if found else 0
    if not 1 <= number <= 2**40:
        raise UsageError(
            f"{option} '{text}': expected a number from 1 to 2**40, such as 4096, 128k or 1M"
        )
    return number


def element_types(
    dtype: str | None, state: str | None, weights: str | None, cache: str | None
) -> Dtypes:
    """The element types that a user names, as one record: `dtype` for all entries, and those of
    state, weights and cache where they differ, of which the last two may be in blocks (q4_0); None:
    not named. UsageError for an unknown type."""
    from costmodel.program.element_types import BYTES, QUANTISED, Dtypes

    plain, blocks = [*BYTES], [*BYTES, *QUANTISED]
    chosen(dtype or plain[0], "--dtype", plain)
    chosen(state or plain[0], "--state-dtype", plain)
    chosen(weights or plain[0], "--weight-dtype", blocks)
    chosen(cache or plain[0], "--cache-dtype", blocks)
    return Dtypes(dtype or "", state, weights, cache)


def chosen(text: str, option: str, choices: Sequence[str]) -> str:
    """The text, if it is one of the choices; UsageError names the nearest and lists them."""
    if text not in choices:
        hint = did_you_mean(text, choices)
        raise UsageError(f"{option} '{text}': {hint}expected one of {', '.join(choices)}")
    return text


def finite(value: float | None) -> float | None:
    """The value of an option, unchanged, for use as a callback of the parser. Raises BadParameter,
    to which the parser adds the option's name, if it is infinite or no number; None passes."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value}")
    return value


def typeset(format_: str, **options: str) -> None:
    """Check options such as `symbols`, which only some formats use.

    Raises:
        UsageError: an option has a value, and `format_` is no such format.
        TableError: a label or a caption that LaTeX cannot read.
    """
    for name, value in options.items():
        if value and format_ not in (having := formats_with(name)):
            wanted = " or ".join(having)
            raise UsageError(
                f"--{name} is for {wanted} only: say --format {having[0]}, or leave out --{name}"
            )
    if options.get("label") or options.get("caption"):
        from costmodel.report.latex import checked

        checked(options.get("label", ""), options.get("caption", ""))


def phases(text: object) -> tuple[str, ...]:
    """The phases for the text of `--phase`: one name or alias, "both" or "all"; else UsageError."""
    from costmodel.program.phases import PHASES as NAMES
    from costmodel.questions.question import EVERY, FORWARD

    several = {"both": FORWARD, "all": EVERY}
    if not isinstance(text, str):
        known = ", ".join((*NAMES, *several))
        raise UsageError(f"--phase: expected one of {known}, got {described(text)}")
    return several.get(text) or (NAMES[chosen(text, "--phase", (*NAMES, *several))],)


def trained(
    given: Convention,
    asked_for: Sequence[str],
    recompute: str | None,
    only: str | None,
    loss: str | None,
    optimiser: str | None,
) -> Convention:
    """The convention `given` with the options of a backward pass: recompute, only and loss, None
    if not typed. `asked_for` are the phases; `optimiser` is only checked.

    Raises:
        UsageError: an unknown choice, or an optimiser without a training step or without gradients
            of parameters.
        ConventionError: an option of a backward pass, but no phase with gradients.
    """
    from costmodel.program.phases import TRAINING_STEP
    from costmodel.questions.peak import OPTIMISERS
    from costmodel.questions.subject import Training, asked, of_the_backward_pass

    if optimiser is not None:
        chosen(optimiser, "--optimiser", list(OPTIMISERS))
        if "training-step" not in asked_for:
            raise UsageError("--optimiser is for a training step only: add --phase training-step")
        if only == "inputs":
            raise UsageError(
                "--optimiser: no parameter gets a gradient with --only inputs: leave out one of "
                "the two"
            )
    with_gradients = [phase for phase in asked_for if phase in TRAINING_STEP]
    if given.backward != Backward() and not with_gradients:
        raise of_the_backward_pass(asked_for[0])
    options = Training()
    if recompute is not None:
        options["recompute"] = recompute
    if only is not None:
        chosen(only, "--only", list(WANTED))
        options["only"] = "parameters" if only == "parameters" else "inputs"
    if loss is not None:
        chosen(loss, "--loss", list(LOSSES))
        options["loss"] = loss
    # the phase against which the options are checked: the first with gradients, if there is one
    return asked(given, (*with_gradients, asked_for[0])[0], options)


def no_empty_word(typed: Sequence[str]) -> None:
    """Raise UsageError for an empty word or value, as an unset shell variable leaves: the command
    would otherwise do more than asked for."""
    for before, word in zip(["", *typed], typed, strict=False):
        name, equals, value = word.partition("=")
        if word and not (name.startswith("--") and equals and not value):
            continue
        option = name or before
        after = f"{option} is empty" if option.startswith("-") else "an argument is empty"
        raise UsageError(f"{after}: give it a value, or leave it out (is a variable not set?)")


def no_source(output: Path | None, files: Sequence[Path]) -> None:
    """Raise UsageError, also with --force, if the output is one of the `files` that are read."""
    for path in files:
        if output is not None and output.exists() and path.exists() and output.samefile(path):
            raise UsageError(f"{output} is an input of this command: write to another file")


def refuse_existing(output: Path | None, force: bool) -> None:
    """Raise UsageError if the output exists, unless `force`."""
    if output is not None and output.is_dir():
        raise UsageError(f"{output} is a folder: give a file, such as {output / 'result'}")
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} exists already: give another file, or --force to overwrite it")


def emit(text: str | Iterable[str], output: Path | None, force: bool) -> None:
    """Print text or its pieces, or write it to the file `output`; UsageError if that is a folder,
    or a file that exists, without `force`."""
    refuse_existing(output, force)
    if output is None:
        printed(text)
        return
    with written_whole(output) as path, path.open("w", encoding="utf-8") as file:
        file.writelines([text] if isinstance(text, str) else text)
    sys.stderr.write(f"{wrapped(harmless(f'wrote {output}'))}\n")


def show(
    document: Document,
    format_: str,
    output: Path | None,
    force: bool,
    context: typer.Context,
    **asked: Any,
) -> None:
    """Write a document in the format `format_` to the file `output`, or print it if `output` is
    None.

    Args:
        context: of the parser, with the command line that LaTeX states as a comment.
        asked: further fields of the page: names, label and caption for LaTeX.

    Raises:
        UsageError: `output` exists, unless `force`; or is None for a format that is no text.
    """
    from costmodel.report.document import Page

    if FORMATS[format_].of == "frame":
        if output is None:
            raise UsageError(
                f"--format {format_} cannot be printed as text: name a file, -o FILE.{format_}"
            )
        refuse_existing(output, force)
        with written_whole(output) as path:
            write_frame(document, format_, path)
        sys.stderr.write(f"{wrapped(harmless(f'wrote {output}'))}\n")
        return
    width, colour = screen(output)
    page = Page(width, colour, regenerating(context), tell=complain, **asked)
    text = (harmless(piece, colour=colour) for piece in pieces(document, format_, page))
    emit(text, output, force)


def screen(output: Path | None) -> tuple[int | None, bool]:
    """(width, colour): the columns of the terminal, or COLUMNS where it is set, and whether colour
    is shown. A file, and a pipe without COLUMNS, have no width (None); neither shows colour."""
    if output is not None:
        return None, False
    if not answers().isatty():
        return whole_number(os.environ.get("COLUMNS", "")) or None, False
    colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return _columns(answers()), colour


def _columns(terminal: TextIO) -> int:
    """The columns of a terminal, or COLUMNS where it is set; 80 for a terminal that has none."""
    columns = whole_number(os.environ.get("COLUMNS", ""))
    return columns or os.get_terminal_size(terminal.fileno()).columns or 80


def regenerating(context: typer.Context) -> str:
    """The command line that makes this output again: as typed, without -o, --output and --force."""
    typed = iter(context.meta.get("typed", ()))
    kept = []
    for word in typed:
        if word in ("-o", "--output"):
            next(typed, None)
        elif word != "--force" and not word.startswith(("--output=", "-o")):
            kept.append(word)
    return shlex.join(["costmodel", *kept])


LONGEST_S = 7 * 24 * 3600.0
"""The period over which the remaining time is estimated; a single measurement takes minutes."""


@contextmanager
def bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with the remaining time if standard error is a terminal, else nothing. Yields
    a function of (done, total, description) that moves the bar. Ctrl-C raises KeyboardInterrupt, so
    that measurements are saved."""
    with interruptible(), _bar() as progress:
        yield progress


def with_bar(
    begin: Callable[[Callable[[int, int, str], None]], Iterator[Found]],
) -> Iterator[Found]:
    """Yield the results of an iterator, with a progress bar while each result is computed.

    Args:
        begin: a function that gets the function of `bar` and returns the iterator.

    The bar is removed before a result is yielded, so that the caller can print it. Ctrl-C raises
    KeyboardInterrupt.
    """
    tell: list[Callable[[int, int, str], None]] = []  # the function of the present bar
    found = begin(lambda done, of, what: tell[0](done, of, what))
    with interruptible():
        while True:
            with _bar() as progress:
                tell[:] = [progress]
                try:
                    one = next(found)
                except StopIteration:
                    return
            yield one


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar if standard error is a terminal, else nothing. Yields a function of (done,
    total, what); the time left is estimated from all steps of the last `LONGEST_S`, a week."""
    if not sys.stderr.isatty():
        yield lambda done, of, what: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=LONGEST_S,
    ) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, of, what: shown.update(task, completed=done, total=of, description=what)


def told(problems: Sequence[str]) -> None:
    """Print each of the sentences `problems` on standard error, shortened as by `complain`."""
    for problem in problems:
        complain(problem)


def typed_beside(context: typer.Context, *known: str) -> list[str]:
    """The parameters typed, other than `known`: options as `--name`, arguments as `the name`."""
    found = []
    for parameter in context.command.params:
        origin = context.get_parameter_source(parameter.name or "")
        if parameter.name not in known and origin is not None and origin.name == "COMMANDLINE":
            name = parameter.opts[0]
            found.append(name if name.startswith("-") else f"the {name}")
    return found


def refuse_beside(context: typer.Context, why: str, *known: str) -> None:
    """Raise UsageError, which begins with `why`, if parameters other than `known` were typed."""
    if beside := typed_beside(context, *known):
        raise UsageError(f"{why}: leave out {', '.join(beside)}")
