"""The command line `costmodel COMMAND ...`: parse, call, render.

A command parses its options, calls the packages and prints a document. `formats("rows")` names the
formats (rich, latex, csv) in which a document with rows of data is printed; `formatted` makes an
option of these. `main` alone turns errors into sentences and exit codes.
"""

from __future__ import annotations

import gc
import os
import signal

_INTERRUPTS = signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # while this file loads
gc.disable()  # too: searches for cycles take a tenth of the time of imports, and find few

import atexit
import copy
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import CommandInfo

import profiler  # noqa: F401 - its modules have predicted times
from costmodel.backwards.candidates import candidate, without_fields
from costmodel.commands import backwards
from costmodel.commands.crossover import crossover
from costmodel.commands.explore import Page, written
from costmodel.commands.limited_memory import watched
from costmodel.commands.memory import memory
from costmodel.commands.model import model
from costmodel.commands.options import (
    CacheDtype,
    Caption,
    ConventionOption,
    Dtype,
    Force,
    Form,
    Ignored,
    Loss,
    Mixers,
    OnBoard,
    Only,
    Optimiser,
    Output,
    Own,
    Phase,
    PredictedModule,
    Recompute,
    StateDtype,
    Symbols,
    UsageError,
    WeightDtype,
    Width,
    chosen,
    element_types,
    formatted,
    import_own,
    inches,
    labelled,
    no_empty_word,
    no_source,
    on_board,
    phases,
    refuse_beside,
    screen,
    show,
    sized,
    text_as_typed,
    told,
    trained,
    typed_beside,
    typeset,
    with_bar,
)
from costmodel.commands.streams import (
    FAILED,
    INTERRUPTED,
    MISUSED,
    Failed,
    answers_alone,
    complain,
    end,
    flush_streams,
    harmless,
    printed,
    safe_streams,
)
from costmodel.errors import is_interrupt, memory_exhausted, unusable_package, words_of
from costmodel.mixers.load import mixer as load_mixer, one_form, raised_in_users_file, with_form
from costmodel.program.conventions import convention as read_convention
from costmodel.report.formats import SCREEN, formats

if TYPE_CHECKING:
    from costmodel.claims.claim import Claim
    from costmodel.claims.printed_tables import TableClaims
    from costmodel.language.equations import Mixer
    from costmodel.proofs.check import Proof
    from costmodel.report.document import Document

app = typer.Typer(
    help="What sequence mixers cost: derived from their equations, measured, and reconciled.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def project_version() -> str:
    """The version in pyproject.toml next to this file; else that of the installed package."""
    import tomllib
    from importlib import metadata

    project = Path(__file__).parent / "pyproject.toml"
    if project.is_file():
        about = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if about.get("name") == "costmodel":
            return str(about["version"])
    return metadata.version("costmodel")


def show_version(asked: bool) -> None:
    """Print the version and exit, if `asked`."""
    if asked:
        printed(f"costmodel {project_version()}\n")
        raise typer.Exit


@app.callback()
def costmodel(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            envvar="COSTMODEL_CACHE",
            help="Keep answers about built-in mixers on disk, below $XDG_CACHE_HOME or ~/.cache.",
        ),
    ] = True,
) -> None:
    """What sequence mixers cost: derived from their equations, measured, and reconciled."""
    if cache:
        from costmodel.questions import kept

        kept.keep_in(kept.place())
        atexit.register(kept.write)


@app.command()
@sized
def table(
    context: typer.Context,
    mixers: Mixers = None,
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.jsonl",
            help="Show measured records, as sweep writes, beside their derived costs; repeatable.",
        ),
    ] = None,
    own: Own = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="All mixers of a family, such as linear (`costmodel list`)."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every built-in mixer.")] = False,
    phase: Phase = "both",
    form: Form = None,
    symbolic: Annotated[
        bool,
        typer.Option(
            "--symbolic", help="Print formulas; sizes without a given value stay letters."
        ),
    ] = False,
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    optimiser: Optimiser = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="A,B", help="Columns, in this order; an unknown name lists all."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="COLUMN", help="Sort rows; -COLUMN descending.")
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Divide operations and bytes by the b*l tokens.")
    ] = False,
    board: OnBoard = None,
    impl: PredictedModule = "",
    dtype: Dtype = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    ignore: Ignored = None,
    format_: Annotated[str, formatted("rows", "data", "frame")] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
    label: Annotated[str, labelled("two phases get LABEL-training and LABEL-inference")] = "",
    caption: Caption = "",
    width: Width = "",
) -> None:
    """Operations, parameters, critical path and span of mixers, derived from their equations."""
    from costmodel.program.chosen_sizes import given_sizes
    from costmodel.report import mixer_document, mixer_table as rows

    chosen(format_, "--format", formats("rows", "data", "frame"))
    typeset(format_, symbols=symbols, label=label, caption=caption, width=width)
    asked = {"label": label, "caption": caption, "inches": inches(width)}
    if source:
        read = ("source", "own", "mixers", "phase", "columns", "sort", "format_", "output", "force",
                "symbols", "label", "caption", "width")  # fmt: skip
        refuse_beside(context, "--from FILE reads sizes and options from FILE", *read)
        no_source(output, source)
        import_own(own)
        every = "--phase" not in typed_beside(context)
        document, problems = of_records(source, mixers, None if every else phase, columns, sort)
        names = mixer_document.symbol_names(symbols, [])
        show(document, format_, output, force, context, names=names, **asked)
        told(problems)
        if problems:
            raise Failed
        return
    if own:
        raise UsageError(
            "--own is for --from FILE.jsonl: leave it out, and name a mixer of your own "
            "as FILE.py:NAME"
        )
    on = on_board(board, impl)
    unreadable: dict[Mixer, Exception] = {}  # stand-in for a file -> what the file raises
    typed = rows.with_forms(without_fields(mixers or (), ignore), unreadable)  # mixer -> its forms
    selected, named = rows.selection(typed, group, all_)  # named: one by one
    refuse_implementation(impl, selected)
    dtypes, wanted = element_types(dtype, state_dtype, weight_dtype, cache_dtype), phases(phase)
    request = rows.Request(
        selected,
        named,
        given_sizes(sizes),
        wanted,
        form,
        trained(read_convention(convention), wanted, recompute, only, loss, optimiser),
        dtypes,
        rows.column_names(columns) if columns is not None else None,
        sort,
        symbolic,
        per_token,
        optimiser,
        typed,
        on,
        impl,
        unreadable,
    )
    names = mixer_document.symbol_names(symbols, selected)
    hint = "" if mixers or group or all_ or format_ != SCREEN else mixer_document.HINT
    found = rows.table(request)
    document = mixer_document.document(found, hint)
    show(document, format_, output, force, context, names=names, **asked)
    if found.malformed:
        told(found.malformed)
        raise Failed


def of_records(
    files: Sequence[Path],
    mixers: Sequence[str] | None,
    phase: str | None,
    columns: str | None,
    sort: str | None,
) -> tuple[Document, list[str]]:
    """The document of `table --from`: measured records beside their derived costs; and a sentence
    for each line of the files that is no record.

    Args:
        mixers: the mixers whose records are shown; all if there are none.
        phase: the phases whose records are shown; all if None.
        columns: names of columns between commas; the usual ones if None.
        sort: the column to sort by, with a leading - in descending order; None for their order.

    Raises:
        UsageError: no record is of these mixers and phases; TableError: an unknown column.
        StoreError: a file cannot be read, or holds no record.
    """
    from costmodel.report.mixer_table import column_names
    from profiler.reconcile.table import COLUMNS, Records, meaning, named_in_records, rows_of
    from profiler.sweep.recorded import recorded

    asked = None if columns is None else column_names(columns, COLUMNS, meaning)
    records, problems = recorded(files, complain)
    wanted, within = named_in_records(mixers or ()), None if phase is None else phases(phase)
    rows = tuple(
        row
        for row in rows_of(records)
        if (not wanted or row.record.mixer in wanted)
        and (within is None or row.record.phase in within)
    )
    if not rows:
        there = ", ".join(dict.fromkeys(f"{one.mixer} ({one.phase})" for one in records))
        raise UsageError(f"no record has these mixers and phases: the records have {there}")
    return Records(rows, asked).sorted(sort).document(), problems


for command in (crossover, backwards.budget, backwards.match, memory):
    app.command()(command)


@app.command()
def explore(
    mixers: Mixers = None,
    output: Page = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.jsonl",
            help="Draw measured records as points; repeatable.",
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Add every built-in mixer and model.")
    ] = False,
    phase: Phase = "both",
    convention: ConventionOption = "strict",
    ignore: Ignored = None,
    force: Force = False,
) -> None:
    """An HTML page of mixers: equations, exact costs at any sizes, a chart, a map of winners.

    It opens with the first mixers named. A link keeps mixers and sizes, such as
    explore.html#mixers=gqa+mla&size.l=4096; a button of the page copies the link to its settings.
    """
    found: list[dict[str, Any]] = []
    if source:
        from profiler.reconcile.table import points
        from profiler.sweep.recorded import recorded

        no_source(output, source)
        records, problems = recorded(source, complain)
        told(problems)
        found = points(records)
    written(without_fields(mixers or (), ignore), output, phase, convention, force, all_, found)


@app.command()
@sized
def explain(
    context: typer.Context,
    mixer: Annotated[
        str, typer.Argument(metavar="MIXER", help="A name, FILE.py:NAME, or a model.")
    ],
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="OTHER",
            help="Subtract another mixer, or another form of this one, equation by equation.",
        ),
    ] = None,
    symbolic: Annotated[
        bool,
        typer.Option(
            "--symbolic",
            help="With --against: print formulas; sizes without a given value stay letters.",
        ),
    ] = False,
    form: Form = None,
    phase: Phase = "both",
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    optimiser: Optimiser = None,
    board: Annotated[
        str | None,
        typer.Option(
            "--board",
            metavar="NAME",
            help="A GPU of tables/devices, or BOARD.toml: show least time and bottleneck.",
        ),
    ] = None,
    impl: PredictedModule = "",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="With --board: element type (default: fp32).")
    ] = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    ignore: Ignored = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Terminal: print every sum and step, as other formats do."),
    ] = False,
    format_: Annotated[str, formatted()] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
) -> None:
    """A mixer's costs as numbers and formulas, its equations, and what each equation costs."""
    from costmodel.networks.answers import NetworkMixer
    from costmodel.networks.network import Network
    from costmodel.networks.part_costs import Counting
    from costmodel.program.chosen_sizes import (
        given_sizes,
        listed,
        one_combination,
        refuse_foreign,
        ties,
    )
    from costmodel.report.differences import Differences
    from costmodel.report.document import Document
    from costmodel.report.explanation import Explanation
    from costmodel.report.mixer_document import symbol_names
    from costmodel.report.networks.explanation import NetworkExplanation

    chosen(format_, "--format", formats())
    typeset(format_, symbols=symbols)
    found, own = candidate(*without_fields([mixer], ignore))
    form, wanted, given = own or form, phases(phase), given_sizes(sizes)
    on = on_board(board, impl)
    dtypes = element_types(dtype, state_dtype, weight_dtype, cache_dtype)
    if dtypes != element_types(None, None, None, None) and on is None:
        raise UsageError("element types set the bytes that a board moves: add --board h100")
    refuse_implementation(impl, [found])
    if isinstance(found, NetworkMixer) and isinstance(found.network, Network):
        options = {"against": against, "form": form, "recompute": recompute, "only": only,
                   "loss": loss, "optimiser": optimiser, "board": board}  # fmt: skip
        if typed := ", ".join(f"--{name}" for name, value in options.items() if value):
            raise UsageError("explain takes sizes, --phase and --convention for a network: leave "
                             f"out {typed}")  # fmt: skip
        at = one_combination(found, given)
        named_ = symbol_names(symbols, [found])
        counted = Counting(read_convention(convention))
        told = NetworkExplanation(found.network, wanted, at, counted)
        show(Document(lambda: [*told.parts()]), format_, output, force, context, names=named_)
        return
    other, its = found, ""  # `its`: the form of the other mixer; "" without --against
    if against is not None:
        if on is not None:
            raise UsageError("--board tells the limits of one mixer: leave out --against")
        if form == "all":
            raise UsageError(
                "--against compares one form: name one in place of --form all, or leave out --form"
            )
        other, its = compared(found, against)
        refuse_foreign(given, (found, other), wanted)
    elif symbolic:
        raise UsageError(
            "--symbolic needs --against OTHER: add it, or leave out --symbolic, since explain "
            "prints formulas beside numbers, and with --full those of every equation"
        )
    names = symbol_names(symbols, [found, other], explained=True)
    counting = trained(read_convention(convention), wanted, recompute, only, loss, optimiser)

    def about(mixer: Mixer, form: str, its_phases: Sequence[str] = wanted) -> Explanation:
        """The explanation of a mixer in a form, at the one value of each size."""
        at, shown = one_combination(mixer, given, found, other), tuple(its_phases)
        whole = full or format_ != SCREEN
        return Explanation(
            mixer, form, shown, at, counting, names, optimiser, whole, on, dtypes, impl
        )

    if its:
        one, two = about(found, form or found.default_form), about(other, its)
        fixed = {size: value for size, (value,) in listed(given).items()}
        document = Document(Differences(one, two, symbolic, fixed, ties(given)).parts)
    else:
        explained = [about(found, *each) for each in forms_told(found, form, wanted, impl)]
        document = Document(lambda: [part for one in explained for part in one.parts()])
    show(document, format_, output, force, context, names=names)


def refuse_implementation(name: str, mixers: Sequence[Mixer]) -> None:
    """Raise MeasureError if `--impl` names an implementation that none of the mixers has."""
    if name:
        from profiler.run.plan import chosen_implementations

        for mixer in mixers:
            chosen_implementations(mixer, name, mixers)


def compared(mixer: Mixer, against: str) -> tuple[Mixer, str]:
    """The mixer and the form that `against` names: a form of `mixer`, or another mixer in the form
    of NAME:FORM, else in its default form. UnknownMixer if the name is neither; the message lists
    the forms."""
    from costmodel.errors import UnknownMixer

    if against in mixer.forms:
        return mixer, against
    try:
        other, form = with_form(against)
    except UnknownMixer as error:
        if len(mixer.forms) < 2:
            raise
        listed = ", ".join(mixer.forms)
        raise UnknownMixer(f"{error}; the forms of {mixer.name} are {listed}") from None
    return other, form or other.default_form


app.command()(model)


@app.command("list")
def list_(
    context: typer.Context,
    word: Annotated[
        str, typer.Argument(help="What to search for in names, ideas, families and sources.")
    ] = "",
    format_: Annotated[str, formatted("rows", "data", "frame")] = SCREEN,
    output: Output = None,
    force: Force = False,
) -> None:
    """Which mixers there are: idea, source, forms, modules, and whose code the modules equal."""
    from costmodel.report import listing

    def modules(name: str) -> Mapping[str, str]:
        """Implementation of a mixer -> where it is defined; imports torch only when called."""
        from profiler.modules.registry import implementations

        return {name: one.place for name, one in implementations(name).items()}

    chosen(format_, "--format", formats("rows", "data", "frame"))
    found = listing.matching(word, modules)  # UnknownMixer without a match
    # all columns if a word is given; else name, idea and forms
    show(listing.document(found, whole=bool(word)), format_, output, force, context)


def forms_told(
    mixer: Mixer, form: str | None, phases: Sequence[str], module: str
) -> list[tuple[str, Sequence[str]]]:
    """(form, its phases) of each form that `explain` tells of: `form`, or every form for "all"; for
    None, the default form, or the form that the module executes in a phase ("": no module)."""
    from costmodel.prediction.columns import form_executed

    if form:
        return [(name, phases) for name in (mixer.forms if form == "all" else (form,))]
    executed: dict[str, list[str]] = {}
    for phase in phases:
        own = form_executed(mixer, module, phase) if module else ""
        executed.setdefault(own or mixer.default_form, []).append(phase)
    return [*executed.items()]


@app.command()
def verify(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of claims (default: tables/published)."),
    ] = None,
    own: Own = None,
    format_: Annotated[str, formatted("data")] = SCREEN,
    output: Output = None,
    force: Force = False,
) -> None:
    """Check printed claims; exit code 1 where one disagrees and is no known misprint."""
    from costmodel.claims import published
    from costmodel.questions.kept import usable_processes
    from costmodel.report import claims_document

    chosen(format_, "--format", formats("data"))
    import_own(own)
    found = published.verify(files or None, processes=1 if own or files else usable_processes())
    show(claims_document.published(found), format_, output, force, context)
    if published.unrecorded(found):  # or a known misprint that agrees now
        raise Failed


CLAIM_FILES = (".toml", ".json")
TABLE_FILES = (".tex", ".csv")


@app.command()
def check(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MIXER",
            help="A mixer, of claims MIXER:FORM too; or a file of claims (.toml, .json), or a "
            "table (.tex, .csv).",
        ),
    ],
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="'Q = FORMULA'",
            help="Check 'total = 4*l*d', 'span = O(l)' or 'total = O(l*sqrt(l)), B growing "
            "as sqrt(l)'; an unknown quantity lists all.",
        ),
    ] = None,
    phase: Annotated[
        str,
        typer.Option(
            "--phase", help=("Phase of the claims: training, inference, backward or training-step.")
        ),
    ] = "training",
    form: Annotated[
        str | None, typer.Option("--form", help="Form of the equations that the claims are about.")
    ] = None,
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    symbols: Annotated[
        str,
        typer.Option(
            "--symbols",
            metavar="N=l,...",
            help="Symbols of sizes in the claims, each with its letter in costmodel.",
        ),
    ] = "",
    mixers: Annotated[
        list[str] | None,
        typer.Option("--mixers", metavar="ROW=MIXER,...", help="Table: name the mixer of a row."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit code 1 also if a claim of a mixer or file disagrees, or any claim was "
            "not checked; agreement under another convention or in a limit passes.",
        ),
    ] = False,
    own: Own = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Mixer: check each module also at random large sizes and values, in train mode "
            "and low precision, call after call, with gradients and memory; half a minute "
            "to two minutes of processor time each, up to some minutes if the module is wrong.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the random sizes and values of --deep.")
    ] = 0,
    format_: Annotated[str, formatted("data")] = SCREEN,
) -> None:
    """The proofs that built-in mixers get, on one of your own; or claims about what one costs."""
    from costmodel.claims import as_printed, printed_tables
    from costmodel.claims.line import claims_of
    from costmodel.program.phases import PHASES as NAMES

    chosen(format_, "--format", formats("data"))
    if (deep or seed) and (claim or target.endswith((*CLAIM_FILES, *TABLE_FILES))):
        raise UsageError("--deep and --seed are for a mixer, not for claims: leave them out")
    if target.endswith(CLAIM_FILES):
        refuse_beside(
            context,
            f"{target} states the options of its claims",
            "target",
            "strict",
            "own",
            "format_",
        )
        import_own(own)
        print_verdicts(context, [Path(target)], [], strict, format_)
    elif own:
        raise UsageError("--own is for a file of claims: leave it out")
    elif target.endswith(TABLE_FILES):
        if claim:
            raise UsageError(f"{target} is a table of claims: leave out --claim")
        (name,) = phases(chosen(phase, "--phase", list(NAMES)))
        names = trained(read_convention(convention), (name,), recompute, only, loss, None).names
        rows = printed_tables.named_rows(mixers or ())
        asked = printed_tables.Asked(name, form or "", names, as_printed.symbols(symbols), rows)
        read = printed_tables.claims(Path(target), asked)
        print_verdicts(context, [], read.claims, strict, format_, read)
    elif mixers:
        raise UsageError("--mixers is for a table of claims (.tex, .csv): leave it out")
    elif not target.endswith(".py") and os.path.isfile(target):
        files = ", ".join((*CLAIM_FILES, *TABLE_FILES))
        raise UsageError(
            f"{target}: only {files} files have claims (`table --format csv -o FILE.csv` "
            f"writes one), and a mixer of your own is FILE.py:NAME"
        )
    elif claim:
        (name,) = phases(chosen(phase, "--phase", list(NAMES)))
        mixer, own_form = mixer_to_check(target)
        if own_form and form:
            raise UsageError(f"{target} names the form {own_form}: leave out --form")
        if own_form:
            target, form = target.removesuffix(f":{own_form}"), one_form(mixer, own_form)
        names = trained(read_convention(convention), (name,), recompute, only, loss, None).names
        called = as_printed.symbols(symbols)
        said = claims_of(claim, target, name, form or "", names, called)
        print_verdicts(context, [], said, strict, format_)
    else:
        checked = "without --claim the mixer itself is checked"
        mixer, own_form = mixer_to_check(target)
        if own_form:
            raise UsageError(
                f"without --claim every form of {mixer.name} is checked: leave out ':{own_form}'"
            )
        refuse_beside(context, checked, "target", "strict", "deep", "seed", "format_")
        if seed and not deep:
            raise UsageError("--seed is for --deep: add --deep")
        prove(target, strict, seed if deep else None, format_, context)


def mixer_to_check(name: str) -> tuple[Mixer, str | None]:
    """(The mixer with a name, the form that the name gives or None). UnknownMixer for any other
    name; for the name of a network, the message lists the mixers of the network."""
    from costmodel.errors import UnknownMixer

    try:
        return with_form(name)
    except UnknownMixer:
        from costmodel.networks.presets import presets

        if name not in presets():
            raise
        mixers = ", ".join(dict.fromkeys(presets()[name].mixers))
        raise UnknownMixer(
            f"'{name}' is a network, and check takes a mixer: name the network's mixer, {mixers}"
        ) from None


def print_verdicts(
    context: typer.Context,
    files: Sequence[Path],
    said: Sequence[Claim],
    strict: bool,
    format_: str,
    table: TableClaims | None = None,
) -> None:
    """Print the verdicts on the claims of `files` and on those in `said`; `table`: the table from
    which these are read. Failed if a claim of a table is wrong; with `strict`, if any claim is
    wrong or not checked, or the table has rows or columns that are no claims."""
    from costmodel.claims import published
    from costmodel.report import claims_document

    found = published.verify(files, run=True) if files else []
    found += [published.check(claim, run=True) for claim in said]
    left_out, readings = (table.left_out, table.readings) if table else ((), ())
    show(claims_document.checked(found, left_out, readings), format_, None, False, context)
    wrong = published.unrecorded(found)
    unchecked = left_out or any(verdict.verdict == "not-checkable" for verdict in found)
    if (wrong and table) or (strict and (wrong or unchecked)):
        raise Failed


def prove(name: str, strict: bool, seed: int | None, format_: str, context: typer.Context) -> None:
    """Print the proofs of a mixer and its modules, with a seed also at random calls; with a seed, a
    terminal shows each proof as soon as the proof is found.

    Raises:
        Failed: a proof fails, whether the mixer is well formed could not be checked, or, with
            `strict`, a proof was not checked.
        KeyboardInterrupt: after an interrupt; the message names the proofs that were not reached.
    """
    from costmodel.proofs.tried_sizes import sizes_tried
    from profiler.proofs import equality as proofs
    from profiler.proofs.report import document, heading, row

    mixer = load_mixer(name).at_any_sizes
    begun = time.monotonic()
    found: list[Proof] = []
    early = seed is not None and format_ == SCREEN
    width, _ = screen(None)
    stopped = ""
    try:
        for proof in with_bar(functools.partial(proofs.each_proof, mixer, seed)):
            if early:
                printed(harmless((heading(name) if not found else "") + row(proof, width)))
            found.append(proof)
    except KeyboardInterrupt as interrupt:
        if not is_interrupt(interrupt):
            raise
        left = proofs.not_reached(mixer, found) if seed is not None else ["the other proofs"]
        stopped = "interrupted" + (f"; not reached: {', '.join(left)}" if left else "")
    seconds = time.monotonic() - begun
    if found:
        said = document(name, found, sizes_tried(mixer), seed, seconds, rows_shown=early)
        show(said, format_, None, False, context)
    if stopped:
        raise KeyboardInterrupt(stopped)
    if found[0].passed is None:  # the first proof says whether the mixer is well formed
        raise Failed(f"the equations of {name} could not be checked: {found[0].detail}")
    if any(proof.passed is False or (strict and proof.passed is None) for proof in found):
        raise Failed


FEW_COLLECTIONS = 10_000_000
"""The threshold of the garbage collector in new objects: tables create many, and few cycles."""


def name_of(command: CommandInfo) -> str:
    """The name by which a user calls a registered command."""
    return str(command.name or getattr(command.callback, "__name__", ""))


DERIVING = frozenset(map(name_of, app.registered_commands))
"""The names of the commands in this file. Their parser needs no torch; `check` imports torch when
the command runs, for the proofs of modules."""


def complete() -> typer.Typer:
    """`app`, to which the call adds the measuring commands, which take longer to import; a command
    that was added before is not added again."""
    from profiler.commands import MEASURING

    known = {command.callback for command in app.registered_commands}
    for command in MEASURING:
        if command not in known:
            app.command()(command)
    return app


def answering(command: Callable[..., None]) -> Callable[..., None]:
    """A command that prints its answer alone on standard output, whatever other code prints."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with answers_alone():
            command(*args, **kwargs)

    return wrapped


@functools.cache
def command_line(only: str = "") -> typer.core.TyperGroup:
    """The parser of all commands or, which is faster, of the one command of this file whose name is
    `only`, such as "table". Its commands run as `answering` says; parameters pass text as typed."""
    parsed = copy.copy(app) if only else complete()
    if only:
        parsed.registered_commands = [c for c in app.registered_commands if name_of(c) == only]
    found = typer.main.get_command(parsed)
    assert isinstance(found, typer.core.TyperGroup)
    for command in found.commands.values():
        assert command.callback is not None
        command.callback = answering(command.callback)
    for command in (found, *found.commands.values()):
        for parameter in command.get_params(typer.Context(command)):
            text_as_typed(parameter)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: with 0 for success, 1 if the job failed, 2 for an invalid request,
    130 after an interrupt."""
    codes: list[int] = []
    atexit.register(leave, codes)  # first, so that it is called last, with the code found by then
    signal.signal(signal.SIGINT, end)
    gc.set_threshold(FEW_COLLECTIONS)
    safe_streams()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    # under `ulimit -v` a child process goes on from here, and its parent reports a crash of the
    # child before `ended()`
    ended = watched(_named(typed))
    try:
        codes.append(run(typed))
    finally:
        ended()
    flush_streams()
    sys.exit(codes[0])


def leave(codes: Sequence[int]) -> None:
    """If torch is not imported, end the process at once with the exit code of its command: the
    system frees the memory, where the interpreter would free each object, which takes a twentieth
    of the time of a table of all mixers. With torch, the interpreter ends as usual."""
    if codes and "torch" not in sys.modules:
        flush_streams()
        os._exit(codes[0])
    gc.freeze()  # no search for cycles at exit


RESERVE = bytearray(4_000_000)
"""Memory that is freed when memory is exhausted, so that a sentence can still be printed."""


TOO_DEEP = (
    "a calculation nests deeper than Python's stack allows: define parts of long expressions as "
    "arrays, or as modules, of their own"
)
"""The message for a RecursionError without a known place."""


def run(typed: Sequence[str]) -> int:
    """Run a command line and return its exit code. An error is printed as one sentence on standard
    error."""
    try:
        return carried_out(typed)
    except MemoryError as error:
        RESERVE.clear()
        said = memory_exhausted(error, _named(typed))
    complain(said)
    return FAILED


def _named(typed: Sequence[str]) -> str:
    """The name of the command in a command line; the program's without one."""
    return next((word for word in typed if not word.startswith("-")), "costmodel")


@contextmanager
def packages_loaded(command: str) -> Iterator[None]:
    """A block that carries a command out; Failed in place of an error that the import of a package
    raised, outside a user's file. MemoryError passes."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if (needs := unusable_package(error)) and not raised_in_users_file(error):
            raise Failed(f"{command} needs {needs}") from error
        raise


def carried_out(typed: Sequence[str]) -> int:
    """Run a command line and return its exit code. What the user typed wrong, a file's name too, is
    one sentence and `MISUSED`; a job that failed, as by an OSError that names no file, is `FAILED`;
    an error in a user's file is one sentence with its line and `FAILED`; a closed pipe is success.
    MemoryError is raised to the caller, and so is any other error, which is a bug."""
    named = _named(typed)
    try:
        with packages_loaded(named):
            command = command_line(named if named in DERIVING else "")  # of one command: faster
            no_empty_word(typed)
            with command.make_context("costmodel", list(typed)) as context:
                context.meta["typed"] = tuple(typed)
                command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except Failed as failed:
        told([str(failed)] if failed.args else [])
        return FAILED
    except KeyboardInterrupt as interrupt:
        if is_interrupt(interrupt):
            told(interrupt.args)
            return INTERRUPTED
        told([raised_in_users_file(interrupt) or words_of(interrupt)])
        return FAILED
    except BrokenPipeError:
        return 0
    except MemoryError:
        raise
    except known_errors() as error:
        if isinstance(error.__cause__, MemoryError):
            RESERVE.clear()  # room for the sentence
        complain(_sentence(error))
        return MISUSED if not isinstance(error, OSError) or error.filename is not None else FAILED
    except RecursionError as error:
        told([raised_in_users_file(error) or TOO_DEEP])
        return FAILED
    except Exception as error:
        from costmodel.commands.mistyped import is_of_the_line, sentence

        if is_of_the_line(error):
            if line := getattr(error, "ctx", None):  # the sentence may name another command
                line.find_root().command = command_line()
            return complain(sentence(error, typed))
        said = raised_in_users_file(error)
        if not said:
            raise
        told([said])
        return FAILED
    except BaseException as error:  # SystemExit in other code would end the process silently
        if isinstance(error.__context__, BrokenPipeError):  # rich, which prints --help, leaves so
            return 0
        told([raised_in_users_file(error) or words_of(error)])
        return FAILED
    return 0


def known_errors() -> tuple[type[Exception], ...]:
    """The errors whose message is printed as it is; any other error is a bug."""
    from costmodel.errors import (
        ConventionError,
        EquationError,
        ModelError,
        PublishedError,
        SizeError,
        TableError,
        Unanswered,
        UnknownMixer,
        Unsupported,
    )

    measuring: list[type[Exception]] = []
    if "profiler.records.reading" in sys.modules:  # imported only by measuring commands
        from profiler.records.reading import MeasureError
        from profiler.records.store import StoreError

        measuring = [MeasureError, StoreError]
    return (
        UsageError, SizeError, ConventionError, UnknownMixer, EquationError, Unsupported,
        Unanswered, TableError, PublishedError, ModelError, OSError, *measuring,
    )  # fmt: skip


def _sentence(error: Exception) -> str:
    """The message of a known error; for an OSError the file and what the system says."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


gc.freeze()  # later searches leave out what this file loaded
gc.enable()
signal.signal(signal.SIGINT, _INTERRUPTS)

if __name__ == "__main__":
    main()
