"""The commands that ask backwards: which size does a cost allow?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.backwards.candidates import candidate, without_fields
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
    OnePhase,
    Only,
    Output,
    Recompute,
    StateDtype,
    Symbols,
    UsageError,
    WeightDtype,
    chosen,
    element_types,
    formatted,
    labelled,
    show,
    sized,
    trained,
    typeset,
)
from costmodel.mixers.load import one_form
from costmodel.program.conventions import convention as read_convention
from costmodel.program.phases import PHASES
from costmodel.report.formats import SCREEN, formats

AMOUNT: Mapping[str, Any] = {
    "metavar": "40GB",
    "rich_help_panel": "Limits: GB is 10**9 bytes, GiB 2**30",
}


@sized
def budget(
    context: typer.Context,
    mixers: Mixers = None,
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    largest: Annotated[
        str | None,
        typer.Option(
            "--largest",
            metavar="LETTER",
            help="Size to maximise (default: t for one new token, else l).",
        ),
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="The state of b sequences.", **AMOUNT)
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="All parameters.", **AMOUNT)
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option("--memory", help="Weights and state together.", **AMOUNT)
    ] = None,
    total: Annotated[
        list[str] | None,
        typer.Option("--total", help="All operations.", **{**AMOUNT, "metavar": "3T"}),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="Limit any figure, such as traffic=1GB or span=1000; repeatable.",
            **{**AMOUNT, "metavar": "FIGURE=AMOUNT"},
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="All mixers of a family, such as linear (`costmodel list`)."),
    ] = None,
    phase: OnePhase = None,
    form: Form = None,
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    dtype: Dtype = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    ignore: Ignored = None,
    format_: Annotated[str, formatted("rows", "data")] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
    label: Annotated[str, labelled("the table gets LABEL")] = "",
    caption: Caption = "",
) -> None:
    """The largest size within limits of memory or operations, such that every smaller one fits."""
    from costmodel.backwards.along import without_assumed
    from costmodel.backwards.budget import limits
    from costmodel.backwards.figures import phase_of, usual_size
    from costmodel.program.chosen_sizes import given_sizes
    from costmodel.report.backwards.budget import Budgets
    from costmodel.report.mixer_document import symbol_names
    from costmodel.report.mixer_table import Request, selection, with_forms

    chosen(format_, "--format", formats("rows", "data"))
    typeset(format_, symbols=symbols, label=label, caption=caption)
    asked = {"state": state, "weights": weights, "memory": memory, "total": total}
    # (name of a figure, its largest amount as typed)
    most = [(name, text) for name, texts in asked.items() for text in texts or ()]
    for text in limit or ():
        name, separator, amount = text.partition("=")
        if not separator:
            raise UsageError(f"--limit {text}: expected FIGURE=AMOUNT, such as peak=1GiB")
        most.append((name, amount))
    if not most:
        raise UsageError("budget needs a limit: --state 40GB, --total 1e12, or --limit peak=1GiB")
    bounds, wanted = limits(most), _phase(phase)  # wanted: the phase
    wanted = phase_of([one.quantity for one in bounds], largest, wanted)
    own = with_forms(without_fields(mixers or (), ignore))  # mixer -> the forms that are named
    selected, named = selection(own, group, not mixers and group is None)  # named: one by one
    counting = trained(read_convention(convention), (wanted,), recompute, only, loss, None)
    dtypes = element_types(dtype, state_dtype, weight_dtype, cache_dtype)
    letter = largest or usual_size(wanted)  # of the size that is asked for
    given = without_assumed(letter, given_sizes(sizes))  # the other sizes
    request = Request(selected, named, given, (wanted,), form, counting, dtypes, own=own)
    names = symbol_names(symbols, selected)
    document = Budgets(request, bounds, letter).document
    show(document, format_, output, force, context, names=names, label=label, caption=caption)


@sized
def match(
    context: typer.Context,
    mixer: Annotated[
        str, typer.Argument(metavar="MIXER", help="A name, FILE.py:NAME, NAME:FORM, a model.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="MIXER", help="The mixer to be matched.")],
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="FIGURE", help="Figure, such as state; an unknown one lists all."
        ),
    ],
    vary: Annotated[
        str, typer.Option("--vary", metavar="LETTER", help="Size of MIXER to solve for.")
    ],
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    phase: OnePhase = None,
    form: Annotated[str | None, typer.Option("--form", help="A form of MIXER.")] = None,
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    dtype: Dtype = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    ignore: Ignored = None,
    format_: Annotated[str, formatted("rows", "data")] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
    label: Annotated[str, labelled("the table gets LABEL")] = "",
    caption: Caption = "",
) -> None:
    """The value of a size at which a mixer costs as much as another mixer, or nearly as much."""
    from costmodel.backwards.along import without_assumed
    from costmodel.backwards.crossover import figure_named
    from costmodel.backwards.figures import phase_of
    from costmodel.backwards.match import compared
    from costmodel.program.chosen_sizes import given_sizes
    from costmodel.report.backwards.match import Matching
    from costmodel.report.mixer_document import symbol_names
    from costmodel.report.mixer_table import Request

    chosen(format_, "--format", formats("rows", "data"))
    typeset(format_, symbols=symbols, label=label, caption=caption)
    # (mixer, form that its name has or None) of MIXER and of --to
    (one, own), (two, its) = map(candidate, without_fields((mixer, to), ignore))
    pair, forms = (one, two), (one_form(one, own or form), one_form(two, its))
    figure = figure_named(by)
    wanted = phase_of([figure], vary, _phase(phase))
    counting = trained(read_convention(convention), (wanted,), recompute, only, loss, None)
    dtypes = element_types(dtype, state_dtype, weight_dtype, cache_dtype)
    given = without_assumed(vary, given_sizes(sizes))  # the other sizes
    request = Request(pair, True, given, (wanted,), form, counting, dtypes)
    found = compared(pair, forms, figure, vary, wanted, counting, dtypes, given)
    names = symbol_names(symbols, pair)
    document = Matching(request, found, figure, forms).document
    show(document, format_, output, force, context, names=names, label=label, caption=caption)


def _phase(text: str | None) -> str | None:
    """A phase as typed, which may be an alias; None if none is typed. UsageError if unknown."""
    return None if text is None else chosen(text, "--phase", list(PHASES))
