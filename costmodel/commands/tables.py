"""The table of costs in Python: `cm.table` takes the options of `costmodel table`, by the same
names, and gives the same rows."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from html import escape
from inspect import signature
from typing import TYPE_CHECKING, Any, overload

from costmodel.commands.options import UsageError, on_board, phases, trained
from costmodel.commands.streams import harmless
from costmodel.errors import ConventionError, SizeError, TableError
from costmodel.language.arguments import checked
from costmodel.language.equations import Mixer
from costmodel.paths.chains import CriticalPath
from costmodel.program.chosen_sizes import Given, sizes_in_python
from costmodel.program.conventions import Convention, convention as read_convention
from costmodel.program.element_types import Dtypes
from costmodel.questions.question import FOUND, Missing, Searched, Value
from costmodel.report import mixer_document, mixer_table, table_data
from costmodel.report.document import Document, Line, Page, Paragraph, Table
from costmodel.report.formats import SCREEN, write
from costmodel.report.writer import Writer
from costmodel.symbolic.at_sizes import LARGEST_INTEGER
from costmodel.symbolic.cases import Quotient, largest
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.sizes import is_letter
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import pandas


class CostRow(Mapping[str, Any]):
    """One row of a table: the name of a column -> its value.

    A count is an int, a ratio an int or a Fraction, a formula a sympy expression, a name or a path
    a text, and a missing value None. `reasons`: name of a column -> why the value is missing or, of
    a number found by search, why no formula is derived.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        """Keep a row of values, by column, as values of Python; and in `reasons`, by column, why a
        value is missing, or that it was found by a search."""
        self._values = {name: _plain(value) for name, value in values.items()}
        self.reasons: dict[str, str] = {}
        for name, value in values.items():
            if isinstance(value, Missing):
                self.reasons[name] = value.reason
            elif isinstance(value, Searched):
                self.reasons[name] = f"{FOUND} ({value.reason})"

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class CostTable(Sequence[CostRow]):
    """The rows of `costmodel table`: `table[0]["total"]`, `for row in table`, `len(table)`.

    It prints as the command does, and as a table of HTML in a notebook. `columns` are the names of
    the columns, in the order of CSV.
    """

    def __init__(self, table: mixer_table.Table) -> None:
        """Keep the rows of a table; its last column, which has the reasons for missing values, is
        kept apart from the others."""
        self._mixers = table.request.mixers
        self._document = mixer_document.document(table)
        names, rows = table_data.valued(table)  # headings; rows of values
        *named, last = names
        self.columns = tuple(named)
        self._rows = [CostRow(dict(zip(named, row[:-1], strict=True))) for row in rows]
        self._reasons = last, [row[-1] for row in rows]  # (heading, reason of each row)

    @overload
    def __getitem__(self, place: int) -> CostRow: ...

    @overload
    def __getitem__(self, place: slice) -> list[CostRow]: ...

    def __getitem__(self, place: int | slice) -> CostRow | list[CostRow]:
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame with exact values; the last column says why values are missing.

        Whole numbers are int64, with missing values Int64 (`pandas.NA`), and Python integers
        (dtype object) where one is beyond int64. Fractions and formulas are objects, with None
        where there is no answer: `frame["ratio"].astype(float)` rounds.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "to_pandas needs pandas, which is not installed: "
                "pip install 'costmodel[dataframes]'",
                name="pandas",
            ) from None
        found = {name: [row[name] for row in self] for name in self.columns}
        name, reasons = self._reasons
        return pandas.DataFrame(
            {n: pandas.Series(v, dtype=_dtype(v)) for n, v in {**found, name: reasons}.items()}
        )

    def to_latex(self, *, symbols: str = "", label: str = "", caption: str = "") -> str:
        r"""The booktabs tables of `--format latex`, with the command's options of these names, such
        as `symbols="l=N,t=\tau"`; TableError for a label or a caption that LaTeX cannot read."""
        from costmodel.report.latex import checked

        checked(label, caption)
        names = mixer_document.symbol_names(symbols, self._mixers)
        return self._written("latex", names=names, label=label, caption=caption)

    def to_markdown(self, *, symbols: str = "") -> str:
        """The tables of `--format markdown`."""
        names = mixer_document.symbol_names(symbols, self._mixers)
        return self._written("markdown", names=names)

    def to_csv(self) -> str:
        """The rows as `--format csv` writes them; nothing is rounded."""
        return self._written("csv")

    def to_json(self) -> str:
        """The rows as `--format json` writes them, with all columns; nothing is rounded."""
        return self._written("json")

    def _written(self, format_: str, **page: Any) -> str:
        return harmless(write(self._document, format_, Page(**page)))

    def _repr_html_(self) -> str:
        return harmless(Html(Page()).write(self._document))

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return self._written(SCREEN, width=width).rstrip("\n")


class Html(Writer):
    """The tables and the sentences of a document for a notebook, every text escaped."""

    def pieces(self, document: Document) -> Iterator[str]:
        yield from ("<div>\n", *super().pieces(document), "</div>\n")

    def beginning(self, document: Document) -> Iterator[str]:
        for line in document.lead:
            yield self.paragraph(Paragraph(line))

    def paragraph(self, part: Paragraph) -> str:
        return f"<p>{escape(self.text(part.line))}</p>"

    def table(self, part: Table, notes: Sequence[Line]) -> str:
        """The table in HTML with its title as caption; below it its footnotes and `notes`."""

        def cell(kind: str, k: int, words: str) -> str:  # a th or td of column k
            side = "right" if part.columns[k].numeric else "left"
            return f'<{kind} style="text-align: {side}">{escape(words)}</{kind}>'

        head = [cell("th", k, self.text(one.header)) for k, one in enumerate(part.columns)]
        body = [
            [
                cell("td", k, self.text(value, part.marks, rounded=part.columns[k].rounded))
                for k, value in enumerate(row)
            ]
            for row in part.body
        ]
        below = [f"({k}) {reason}" for reason, k in part.marks.items()]
        below += [self.text(note) for note in notes]
        return "\n".join(
            [
                "<table>",
                f"<caption>{escape(self.text(part.title))}</caption>",
                *(f"<tr>{''.join(cells)}</tr>" for cells in (head, *body)),
                "</table>",
                *(f"<p>{escape(line)}</p>" for line in below),
            ]
        )


@checked
def table(
    mixers: str | Mixer | Sequence[str | Mixer] = (),
    *,
    group: str | None = None,
    all: bool = False,
    phase: str | Sequence[str] = "both",
    form: str | None = None,
    symbolic: bool = False,
    convention: str | Sequence[str] | Convention = "strict",
    recompute: str | None = None,
    only: str | None = None,
    loss: str | None = None,
    optimiser: str | None = None,
    columns: str | Sequence[str] | None = None,
    sort: str | None = None,
    per_token: bool = False,
    dtype: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    weight_dtype: str | None = None,
    board: str | None = None,
    impl: str = "",
    **sizes: Any,
) -> CostTable:
    """What mixers cost: the rows that `costmodel table` prints, with its options and defaults.

    Args:
        mixers: names, as on the command line, or mixers; the default group if there are none. A
            file that raises an exception beside other mixers is a row without values, whose
            `reasons` say why.
        group, all: in place of names, a group, or every mixer.
        phase: training, inference, both (the default), backward, training-step or all; or several.
        form, convention, recompute, only, loss, optimiser, sort, per_token: as on the command line.
        symbolic: formulas in the sizes that are not given.
        columns: names of columns, in this order; by default the usual ones.
        dtype: for figures in bytes; this and the other types as for `budget`.
        board: a GPU of `tables/devices`, or a file BOARD.toml, for the columns floor, bound and
            predicted_time.
        impl: the module whose time is predicted, as in `costmodel table --impl`; after `import
            profiler`, which has the modules. By default kernels where they are known.
        sizes: by letter an integer, several (a list, a range, a numpy array: together they make a
            grid), or a text as on the command line, such as `l="128:16384:x2"` or `t="l"`.

    Raises:
        ValueError: one sentence; as SizeError, TableError, UnknownMixer, EquationError (a form),
            ConventionError, or UsageError (a phase, an option of a backward pass, a board).

    >>> import costmodel as cm
    >>> costs = cm.table(["she", "me"], d=128, l=[64, 128], phase="training")
    >>> [row["total"] for row in costs]
    [72335360, 278888448, 524288, 2097152]
    """
    try:
        several: tuple[Any, ...] = _several(phase) or (phase,)
        wanted = [name for one in several for name in phases(one)]
        unreadable: dict[Mixer, Exception] = {}
        typed = mixer_table.with_forms(_several(mixers), unreadable)
        chosen, named = mixer_table.selection(typed, group, all)
        dtypes = Dtypes(dtype or "", state_dtype, weight_dtype, cache_dtype).checked()
        counting = read_convention(convention)
        counting = trained(counting, wanted, recompute, only, loss, optimiser)
        words = None if columns is None else ",".join(map(str, _several(columns)))
        shown = None if words is None else mixer_table.column_names(words)
        return CostTable(
            mixer_table.table(
                mixer_table.Request(
                    chosen,
                    named,
                    _given(sizes),
                    tuple(dict.fromkeys(wanted)),
                    form,
                    counting,
                    dtypes,
                    shown,
                    sort,
                    symbolic,
                    per_token,
                    optimiser,
                    typed,
                    on_board(board),
                    impl,
                    unreadable,
                )
            )
        )
    except (UsageError, SizeError, TableError, ConventionError) as error:
        raise type(error)(re.sub(r"(?<!\w)--(?=\w)", "", str(error))) from None


def _several(given: Any) -> tuple[Any, ...]:
    """One text or mixer, or several in a sequence, as a tuple; (value,) for any other value."""
    one = isinstance(given, (str, Mixer)) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)


def _given(sizes: Mapping[str, Any]) -> Given:
    """The values of the keyword arguments of `table` that are letters of sizes; TableError for any
    other name, with the options of `table`."""
    options = [name for name, p in signature(table).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in sizes:
        if not is_letter(name):
            near = get_close_matches(name, options, 1)
            hint = f"did you mean '{near[0]}'? The" if near else "the"
            raise TableError(
                f"table has no option '{name}': {hint} options are {', '.join(options)}, and the "
                "size letters"
            )
    return sizes_in_python(sizes)


def _plain(value: Value) -> Any:
    """A value for Python: an int, a Fraction, a text, a sympy expression, or None for a missing
    value. A critical path is its text, a maximum of several formulas sympy's Max of them."""
    if isinstance(value, CriticalPath):
        return value.text
    if isinstance(value, Searched):
        return int(value)
    if isinstance(value, Exact):
        return value.expr
    if isinstance(value, Quotient):
        return value.above.expr / value.below.expr
    if isinstance(value, tuple):
        return to_sympy(largest(value))
    return None if isinstance(value, Missing) else value


def _dtype(values: Sequence[Any]) -> Any:
    """The dtype of a column of exact values in pandas: int64, with missing values Int64, object for
    larger integers, fractions and formulas; None for texts, whose dtype pandas chooses."""
    there = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in there):
        return None
    if there and all(isinstance(v, int) and abs(v) <= LARGEST_INTEGER for v in there):
        return "int64" if len(there) == len(values) else "Int64"
    return object
