"""`costmodel plot`: figures of theory and of measurement.

`own` are Python files of mixers to import, `ignore` fields of a config.json to leave out, `board` a
GPU of tables/devices or BOARD.toml (None: no limits); `force` overwrites the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.commands.options import (
    CacheDtype,
    ConventionOption,
    Force,
    Ignored,
    OnBoard,
    Own,
    StateDtype,
    UsageError,
    WeightDtype,
    chosen,
    import_own,
    inches,
    no_source,
    on_board,
    phases,
    refuse_beside,
    refuse_existing,
    sized,
    told,
)
from costmodel.commands.streams import Failed, complain, written_whole
from costmodel.language.options import listed as parts
from profiler.commands.scaling import along

if TYPE_CHECKING:
    from profiler.plots.kinds import Kind

OF_BOTH = ("files", "output", "over", "own", "phase", "dtype", "kind", "width", "force")
"""The parameters that figures of mixers and of records have."""
OF_MIXERS = (
    "by", "form", "convention", "cache_dtype", "state_dtype", "weight_dtype", "board", "ignore",
)  # fmt: skip
"""The parameters of figures of mixers, besides the sizes."""


@sized
def plot(
    context: typer.Context,
    shown: Annotated[
        list[str],
        typer.Argument(
            metavar="MIXER...|FILE.jsonl...",
            help="Mixers or models, drawn from equations; or records, as sweep writes them.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.png|svg|pdf", help="The figure.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Of mixers: curves, winners, floors. Of records: measured, waterfall, floors, "
            "roofline (of published calls: python -m benchmarks.published_kernels FOLDER --plot).",
        ),
    ] = None,
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
            "--along",
            metavar="l,d",
            help="The size on the axis; two sizes of mixers make a map of who has the least.",
        ),
    ] = None,
    width: Annotated[
        str,
        typer.Option(
            "--width", metavar="3.3in", help="Width of the figure, or a class: icml, acl, ieee, ..."
        ),
    ] = "",
    phase: Annotated[
        str | None, typer.Option("--phase", metavar="A,B", help="The phase; of records, several.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--form", metavar="NAME", help="A form that every mixer has, or all forms."),
    ] = None,
    convention: ConventionOption = "strict",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="A,B", help="The element type; of records, several."),
    ] = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    weight_dtype: WeightDtype = None,
    board: OnBoard = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="A,B", help="Of records: show only MIXER or MIXER:IMPLEMENTATION."
        ),
    ] = None,
    own: Own = None,
    ignore: Ignored = None,
    force: Force = False,
    sizes: dict[str, str | None] = {},  # noqa: B006 - filled in by `sized`, never changed
) -> None:
    """Draw costs of mixers over sizes, and measurements beside theory, for papers."""
    from costmodel.backwards.candidates import without_fields
    from costmodel.backwards.figures import usual_size
    from costmodel.program.chosen_sizes import given_sizes
    from costmodel.program.phases import PHASES, phase_name
    from profiler.plots.drawing import FORMATS, shortened, write
    from profiler.plots.kinds import KINDS, OfMixers, OfRecords
    from profiler.plots.measured import PlotSelection
    from profiler.sweep.recorded import recorded

    if output is None:
        raise UsageError("plot needs a file for the figure: name one, such as -o figure.svg")
    if output.suffix.lower().lstrip(".") not in FORMATS:
        raise UsageError(f"-o {output}: expected a name that ends in .{', .'.join(FORMATS)}")
    refuse_existing(output, force)
    wide = inches(width)
    files = files_of(shown)
    no_source(output, files)
    import_own(own)
    problems: list[str] = []
    if files:  # a figure of records
        drawn = chosen_kind(kind, "measured", list(KINDS.values()), "records")
        why = "records hold their values"  # refused: all options but those listed and `OF_BOTH`
        refuse_beside(context, why, "shown", "only", "board", *OF_BOTH)
        # `without`: the parts of a record that the kind of figure does not read
        records, problems = recorded(files, complain, without=drawn.without)
        told(problems)
        typed = () if phase is None else phase.split(",")
        of_phases = tuple(name for part in typed for name in phases(part.strip()))
        selection = PlotSelection(along(over or "l,d"), of_phases, listed(dtype), listed(only))
        picture = drawn.values(OfRecords(records, selection, on_board(board)))
    else:  # a figure of mixers
        one_phase = phase and phase_name(chosen(phase, "--phase", list(PHASES)))
        letters = tuple((over or usual_size(one_phase or "")).split(","))
        usual = "winners" if len(letters) > 1 else "curves"
        drawn = chosen_kind(kind, usual, list(KINDS.values()), "mixers")
        refuse_beside(context, "a figure of mixers is drawn from equations", "shown", *OF_BOTH,
                      *OF_MIXERS, *(f"size_{letter}" for letter in sizes))  # fmt: skip
        if (len(letters) == 2) != (drawn.name == "winners") or len(letters) > 2:
            raise UsageError(
                f"--over {','.join(letters)}: expected one size for curves, and two for winners"
            )
        dtypes = (dtype, state_dtype, weight_dtype, cache_dtype)
        asked = OfMixers(
            tuple(without_fields(shown, ignore)), by, letters, one_phase, form, convention, dtypes,
            given_sizes(sizes), on_board(board),
        )  # fmt: skip
        picture = drawn.values(asked)
    picture = shortened(picture)  # to the first panels, if there are too many
    with written_whole(output) as path:
        write(picture, drawn.draw, path, wide)
    told(picture.missing)
    if problems:
        raise Failed


def files_of(shown: Sequence[str]) -> list[Path]:
    """The files of records (FILE.jsonl) that the arguments name; [] if they name mixers. Raises
    UsageError: both are named."""
    found = [word for word in shown if word.endswith(".jsonl")]
    if found and len(found) < len(shown):
        mixers = ", ".join(word for word in shown if word not in found)
        raise UsageError(f"expected mixers or files of records, not both: leave out {mixers}")
    return [Path(word) for word in found]


def chosen_kind(name: str | None, usual: str, kinds: Sequence[Kind], of: str) -> Kind:
    """The kind of figure that `--kind` names, else the one named `usual`; UsageError for a kind
    that does not show what is plotted, `of`: "mixers" or "records"."""
    fitting = {kind.name: kind for kind in kinds if of in kind.of}
    other = next((kind for kind in kinds if kind.name == name and of not in kind.of), None)
    if other is not None:
        needed = "files of records, FILE.jsonl, as profile -o writes them"
        shows = needed if other.of == ("records",) else "mixers by name"
        raise UsageError(
            f"--kind {name} shows {shows}: for {of}, choose one of {', '.join(fitting)}"
        )
    return fitting[chosen(name or usual, f"--kind, for {of},", list(fitting))]


def listed(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas, other than commas in braces; () if the option was not
    given."""
    return () if text is None else tuple(parts(text))
