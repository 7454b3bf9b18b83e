"""`costmodel crossover`: at which sizes which of several mixers has the least of a figure."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from costmodel.backwards.candidates import without_fields
from costmodel.commands.options import (
    CacheDtype,
    Caption,
    ConventionOption,
    Dtype,
    Force,
    Ignored,
    Loss,
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
from costmodel.report.formats import SCREEN, formats
from costmodel.symbolic.sizes import is_letter

if TYPE_CHECKING:
    from costmodel.backwards.crossover import Crossover


@sized
def crossover(
    context: typer.Context,
    mixers: Annotated[
        list[str],
        typer.Argument(metavar="MIXER...", help="Names, FILE.py:NAME, NAME:FORM, config.json."),
    ],
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="FIGURE", help="Figure, such as total; an unknown one lists all."
        ),
    ] = "total",
    over: Annotated[
        str | None,
        typer.Option(
            "--over",
            metavar="X",
            help="Size to solve for (default: t for one new token, else l); X,Y makes a map, a row "
            "for each value of Y.",
        ),
    ] = None,
    phase: OnePhase = None,
    form: Annotated[
        str | None,
        typer.Option("--form", metavar="NAME", help="A form that every mixer has, or all forms."),
    ] = None,
    symbolic: Annotated[
        bool,
        typer.Option(
            "--symbolic", help="Print conditions; sizes without a given value stay letters."
        ),
    ] = False,
    convention: ConventionOption = "strict",
    recompute: Recompute = None,
    only: Only = None,
    loss: Loss = None,
    dtype: Dtype = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    ignore: Ignored = None,
    format_: Annotated[str, formatted("rows", "data", "frame")] = SCREEN,
    output: Output = None,
    force: Force = False,
    symbols: Symbols = "",
    label: Annotated[str, labelled("the table gets LABEL")] = "",
    caption: Caption = "",
) -> None:
    """From which size on one mixer is cheaper than another: every break-even, proven."""
    from costmodel.backwards.along import without_assumed
    from costmodel.backwards.crossover import crossover as asked, figure_named, powers_of_two
    from costmodel.backwards.figures import usual_size
    from costmodel.program.chosen_sizes import given_sizes
    from costmodel.program.conventions import convention as read_convention
    from costmodel.program.phases import PHASES, phase_name
    from costmodel.report.backwards import crossover as document
    from costmodel.report.mixer_document import symbol_names

    chosen(format_, "--format", formats("rows", "data", "frame"))
    typeset(format_, symbols=symbols, label=label, caption=caption)
    given, compared = {**given_sizes(sizes)}, without_fields(mixers, ignore)  # letter -> sizes
    element_types(dtype, state_dtype, weight_dtype, cache_dtype)
    known = phase and chosen(phase, "--phase", list(PHASES))
    wanted = phase_name(known or figure_named(by).phases[0])
    counting = trained(read_convention(convention), (wanted,), recompute, only, loss, None)
    along, comma, across = (over or "").partition(",")  # the open size; the second one of a map
    if comma and not (is_letter(along) and is_letter(across) and along != across):
        raise UsageError(f"--over {over}: expected the letters of two sizes, such as l,d")

    def at(letter: str | None, **values: Any) -> Crossover:
        """The crossover over the size `letter` (None: t in inference, else l), at `values`."""
        return asked(
            *compared,
            by=by,
            over=letter,
            phase=wanted,
            form=form,
            convention=counting,
            dtype=dtype,
            cache_dtype=cache_dtype,
            state_dtype=state_dtype,
            weight_dtype=weight_dtype,
            **values,
        )

    given = {**without_assumed(along or usual_size(wanted), given)}
    # the rows of a map whose second size is not given: powers of two that fit the mixers
    if across and across not in given:
        first = {x: values if isinstance(values, str) else values[0] for x, values in given.items()}
        given[across] = powers_of_two(at(across, **{x: y for x, y in first.items() if x != along}))
    # one comparison for each combination of the given sizes' values
    rows = product(*((x,) if isinstance(x, str) else x for x in given.values()))
    found = [at(along or None, **dict(zip(given, values, strict=True))) for values in rows]
    names = symbol_names(symbols, [form.mixer for form in found[0].forms])  # letter -> symbol
    if symbolic and len(found) > 1:
        raise UsageError("--symbolic takes one value of each size: leave out the others")
    said = (
        document.symbolic(found[0], given, names) if symbolic else document.document(found, given)
    )
    show(said, format_, output, force, context, names=names, label=label, caption=caption)
