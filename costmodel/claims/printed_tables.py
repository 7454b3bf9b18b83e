r"""Read the claims of a whole table in LaTeX or CSV: rows are mixers, columns quantities.

Each cell with a known mixer and quantity is a claim; other rows and columns are reported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from costmodel.claims.as_printed import quantity_word, same_words
from costmodel.claims.claim import Claim
from costmodel.claims.comparisons import FormulaClaim
from costmodel.claims.line import claim_class, phase_of
from costmodel.claims.numeric_claims import NumberClaim
from costmodel.claims.printed_figures import PRINTED
from costmodel.claims.quantities import own_sizes, refuse_letters
from costmodel.claims.table_cells import EMPTY, Cell, of_csv, of_latex
from costmodel.data import not_text
from costmodel.errors import PublishedError, SizeError, TooMuch, UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.formula_text import Symbols, printed
from costmodel.language.options import braces, joined, listed
from costmodel.mixers import IN_PAPERS, builtin, names
from costmodel.mixers.load import mixer as load_mixer, refuse_unimported
from costmodel.program.phases import PHASES, phase_name
from costmodel.questions.count import OTHER
from costmodel.questions.question import Figure
from costmodel.questions.registry import CLAIMED
from costmodel.symbolic.effort import limited
from costmodel.symbolic.sizes import LETTERS, in_order

ORDER = "order"
"""The name of a further quantity of columns: the order of growth of the total."""

HEADINGS: Mapping[str, str] = {
    "complexity": ORDER, "time": ORDER, "cost": ORDER, "time complexity": ORDER,
    "computational complexity": ORDER, "computation complexity": ORDER, "computational cost": ORDER,
    "flops": "total", "macs": "total", "multiply adds": "total", "operations": "total",
    "params": "parameters", "parameter": "parameters", "parameter count": "parameters",
    "sequential": "sequential", "sequential ops": "sequential", "sequential steps": "sequential",
    "minimum sequential operations": "sequential",
    "memory": "activations", "space": "activations", "memory complexity": "activations",
    "space complexity": "activations", "state size": "state", "inference memory": "state",
    "mult": "mul", "mults": "mul", "comparisons": "compare", "square roots": "sqrt",
    "logarithms": "log", "sine": "sin", "sines": "sin", "cosine": "cos", "cosines": "cos",
}  # fmt: skip
"""Heading of a column in papers, in lower case -> the quantity; besides the quantity's name."""

UNITS: Mapping[str, str] = {
    "k": "1e3", "thousand": "1e3", "m": "1e6", "million": "1e6", "b": "1e9", "g": "1e9",
    "billion": "1e9", "t": "1e12",
}  # fmt: skip
"""Suffix of a rounded number, or unit in parentheses in a heading -> the multiple."""

ORDERED = ("O", "Theta", "\u0398")
"""The signs of an order of growth."""

LENGTHS = ("n", "N", "T", "L")
"""Symbols for the length of the sequence, tried for a table that has no l."""

_EQUALS = re.compile(r"=(?![^{}]*\})")
_WHOLE = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")
_ROUNDED = re.compile(rf"(\d[\d.]*)\s*({'|'.join(UNITS)})", re.IGNORECASE)
_MEASURED = re.compile(r"[\d.,]*\d\s*(?:m?s|[x×]|%)?")
_NAMED = re.compile(r"\$?\\?([a-z][a-z ]+?)\s*[=:]\s*(.+)|(.+?)\s+([a-z][a-z ]+)", re.IGNORECASE)
_CITED = re.compile(r"\s*(?:~?\\cite[a-z]*\{[^}]*\}|\[[\d,; ]+\]|\([^()]*\b(?:19|20)\d\d[a-z]?\))")


@dataclass(frozen=True)
class Asked:
    """The user's options for a table, which apply where the table states nothing else."""

    phase: str = "training"
    form: str = ""
    convention: tuple[str, ...] = ("strict",)
    symbols: Symbols = field(default_factory=dict)
    mixers: Mapping[str, str] = field(default_factory=dict)
    """Name of a row -> its mixer."""


def named_rows(texts: Iterable[str]) -> dict[str, str]:
    """Read the texts of the option `--mixers`, such as `Attention=self-attention,Ours=my.py:mine`,
    as row -> mixer.

    Raises:
        UnknownMixer: a part that is no pair, an unknown mixer, or a row with two mixers.
    """
    found: dict[str, str] = {}
    for part in listed(",".join(texts)):
        row, *rest = (side.strip() for side in _EQUALS.split(part, maxsplit=1))
        if not (row and rest and rest[0]):
            raise UnknownMixer(
                f"--mixers '{part}': expected NAME=MIXER, the name of a row in the table and its "
                "mixer, such as Ours=my.py:mine"
            )
        name = load_mixer(rest[0]).origin or rest[0]
        if found.setdefault(row, name) != name:
            raise UnknownMixer(
                f"--mixers gives the row {row} two mixers, {found[row]} and {name}: leave out one"
            )
    return found


@dataclass(frozen=True)
class TableClaims:
    """The claims of a table; a sentence for each reason why cells are left out; and a sentence for
    each word that is interpreted as another (`N` as l)."""

    claims: list[Claim]
    left_out: list[str]
    readings: list[str]


def claims(path: Path, asked: Asked) -> TableClaims:
    """The claims of a table in a file: CSV if its name ends in .csv, else LaTeX; `asked` has what
    the user gave for all cells, such as mixers of rows, symbols and convention. Cells that state
    nothing (`EMPTY`) are ignored; cells of rows that name no known mixer and of columns that name
    no quantity are left out, and the result says for each reason how many; it also says how
    headings and a symbol of the length are read.

    Raises:
        PublishedError: the file cannot be read as a table, or has no cells.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = list(of_csv(text) if path.suffix == ".csv" else of_latex(text, asked.symbols))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reason = not_text(error) if isinstance(error, UnicodeDecodeError) else reason
        raise PublishedError(f"{path} is not a readable table: {reason}") from None
    found = [cell for cell in found if cell.text.lower() not in EMPTY]
    if not found:
        raise PublishedError(
            f"{path}: found no cell of a table: expected a line with the headings of columns, and "
            "rows of cells below"
        )
    readings = []
    if length := _length(found, asked.symbols):
        asked = replace(asked, symbols={**asked.symbols, length: "l"})
        readings = [
            f"{length} is read as the sequence length l, which no cell names "
            f"(--symbols {length}={length} keeps it)"
        ]
    for heading in dict.fromkeys(cell.heading for cell in found):
        name = HEADINGS.get(_plain_heading(heading), "")
        said = f"{name}: {CLAIMED[name].meaning}" if name in CLAIMED else "the order of the total"
        if name:
            readings.append(f"column '{heading}' is read as {said}")
    mixers = {row: _mixer(row, asked) for row in dict.fromkeys(cell.row for cell in found)}
    # claims; reason -> number of cells left out; key of a row -> the quantities of its columns
    made, skipped, beside = [], dict[str, int](), _columns_of_rows(found)
    for cell in found:
        named, reason = mixers[cell.row], cell.unread or _not_claimed(cell.heading)
        if named is None and not cell.unread:
            called = f"row '{cell.row}' is no known mixer (--mixers '{cell.row}=NAME' says which)"
            reason = called if cell.row else "a row without a name: its first cell names the mixer"
        if named is None or reason:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            made += [_claim(part, quantity, named, path.name, asked, beside[_row(cell)])
                     for part, quantity in _parts(cell)]  # fmt: skip
    left_out = [f"{reason}: {number} left out" for reason, number in skipped.items()]
    return TableClaims(made, left_out, readings)


def _row(cell: Cell) -> tuple[object, ...]:
    """A key of the row of a cell: its name, labels (phase, form, convention) and sizes."""
    return cell.row, *cell.labels.items(), *cell.sizes.items()


def _columns_of_rows(cells: Iterable[Cell]) -> dict[tuple[object, ...], list[str]]:
    """Row (a key of name, labels and sizes) -> the quantities with a column of their own there,
    which its cell `other` leaves out; not those of columns such as `other_tanh`, within `other`."""
    found: dict[tuple[object, ...], list[str]] = {}
    for cell in cells:
        within = _plain_heading(cell.heading).startswith("other")
        found.setdefault(_row(cell), []).extend([] if within else [_quantity(cell.heading)])
    return found


def _length(cells: Sequence[Cell], symbols: Symbols) -> str:
    """The symbol in the cells that means the sequence length: the only one of `LENGTHS` (N, T and
    the like) there, if neither a cell nor `symbols` names l; else "". A table with a column l, or
    of labels (phase, convention, ...), already uses our letters."""
    if "l" in symbols.values() or any("l" in cell.sizes or cell.labels for cell in cells):
        return ""
    of_length = [
        c for c in cells if _quantity(c.heading) not in ("", "critical_path", "parameters")
    ]
    texts = (re.sub(r"\\[A-Za-z]+|_\{?\w+", " ", cell.text) for cell in of_length)
    products = (word for text in texts for word in re.findall(r"[A-Za-z]+", text))
    # a word of letters of sizes is a product, `nd` is n d; other words name no size
    named = {letter for word in products if {*word} <= {*LETTERS} for letter in word}
    found = [letter for letter in LENGTHS if letter in named and letter not in symbols]
    return found[0] if len(found) == 1 and "l" not in named else ""


def _mixer(row: str, asked: Asked) -> tuple[str, str] | None:
    """The (mixer, form) of a row such as `SHE, fft`: the whole text is tried first, since a title
    may contain a comma. None if the row names no known mixer. `asked`: the user's options."""
    row = _CITED.sub("", row)
    whole, comma, form = row.rpartition(", ")
    for name, chosen in ((row, ""), *([(whole, form)] if comma else [])):
        if (found := _named(name, asked)) is not None:
            return found, chosen or asked.form
    return None


def _named(name: str, asked: Asked) -> str | None:
    """The mixer that a row names, or None: by `--mixers`; with sizes, `Mamba-2{n=8}`; by a name, an
    alias or a title, with options, `Mega (chunk)`; by the words of a name or title (and "layer") in
    any order or with other endings; by IN_PAPERS; or as commands do (`_loaded`), `gqa+bias`."""
    if name in asked.mixers:
        return asked.mixers[name]
    if "{" in name:
        return _with_sizes(name, asked)
    varied = re.fullmatch(r"(.+) \((.+)\)", name)
    ways = [(name, []), *([(varied[1], varied[2].split(", "))] if varied else [])]
    for title, options in ways:
        for known in names():
            found = builtin(known)
            called = (known, found.title.lower(), *found.aliases)
            if title.lower() in called and {*options} <= {*found.offers}:
                return joined(known, options)
    said = [word for word in re.findall(r"\w+", name.lower()) if word.rstrip("s") != "layer"]
    for known in names():
        for title in (known, builtin(known).title):
            if same_words(said, re.findall(r"\w+", title.lower())):
                return known
    if (plain := IN_PAPERS.get(name.lower())) is not None:
        return plain
    return _loaded(name)


def _with_sizes(name: str, asked: Asked) -> str | None:
    """The mixer that a row such as `Mamba-2{n=8}` names, mamba-2{n=8}: the mixer of the text before
    the braces, with the sizes in the braces; sizes that `--mixers` gives this mixer stay, unless
    the braces give other values. None for an unknown mixer or unreadable braces."""
    plain = _named(name.partition("{")[0], asked)
    if plain is None:
        return None
    try:
        sizes = {**braces(plain), **braces(name)}
    except UnknownMixer:
        return None
    return _loaded(joined(plain.partition("{")[0], (), sizes))


def _loaded(name: str) -> str | None:
    """The name, if it is that of a mixer that may be loaded; None for a text that names no mixer or
    has a size out of range, and for a file of the user's that this process has not imported, as a
    table must run no code."""
    try:
        refuse_unimported(name)
        load_mixer(name)
    except (UnknownMixer, SizeError):
        return None
    return name


def _quantity(heading: str) -> str:
    """The quantity that the heading of a column means: a name in claims, `ORDER` for a column of
    complexities O(...), or "" if claims have no such quantity. `other (cos)` means cos."""
    said, plain = _unit(heading)[0], _plain_heading(heading)
    inside = heading.partition("(")[2].strip(" )").lower()
    if quantity_word(said) == "other" and inside in CLAIMED:
        return inside
    for name in (
        quantity_word(said),
        quantity_word(plain),
        HEADINGS.get(plain, ""),
        plain.removeprefix("other "),
    ):
        if name in CLAIMED or name == ORDER:
            return name
    return ""


def _plain_heading(heading: str) -> str:
    """A heading in lower case, without signs and `per layer`: `# Params (M)` becomes params."""
    signs = r"[#._:-]|\b(?:number|no) of\b|\bper layer\b"
    plain = " ".join(re.sub(signs, " ", _unit(heading)[0].lower()).split())
    return re.sub(r"^max\b", "maximum", plain)


def _unit(heading: str) -> tuple[str, str]:
    """A heading without its parentheses, and the multiple in them, "" if there is none:
    `Params (M)` gives ("Params", "1e6")."""
    said, _, inside = heading.partition("(")
    return said.strip(), UNITS.get(inside.strip(" )").lower().removesuffix("s"), "")


def _not_claimed(heading: str) -> str:
    """The reason why the column with this heading holds no claims; "" if it holds claims."""
    name = _quantity(heading)
    if "byte" in heading or "(B)" in heading or (name in CLAIMED and _in_bytes(name)):
        return f"column '{heading}' is in bytes, which claims do not cover"
    return "" if name else f"column '{heading}' is no quantity of a claim"


def _in_bytes(name: str) -> bool:
    return CLAIMED[name].unit == "bytes"


def _parts(cell: Cell) -> Iterator[tuple[Cell, str]]:
    """Yield (cell, quantity) pairs: the cell and the quantity of its column; for a cell of the
    column `other` that names operations, such as `512 compare, 16 sqrt` or `cos = l*d`, one pair
    for each part, as a cell."""
    name = _quantity(cell.heading)
    for sign in ("[,;+]", "[,;]", "$."):  # 2*l cos + 3*l sin, or (l + d) cos, or a single part
        split = re.split(rf"\s*{sign}\s+(?![^()]*\))", cell.text)
        named = [_named_operation(part) for part in split]
        if name == "other" and all(operation for operation, _ in named):
            for operation, value in named:
                yield replace(cell, heading=operation, text=value), operation
            return
    yield cell, name


def _named_operation(part: str) -> tuple[str, str]:
    """(the operation that a part of a cell names before or behind its number or formula, as claims
    name it, the number or formula): ("mul", "3n") of `multiplications = 3n` and of `3n mul`. The
    operation is "" for other words, and for a heading of orders, as in `time: 5n`."""
    if not (found := _NAMED.fullmatch(part)):
        return "", ""
    operation = _quantity(found[1] or found[4])
    return (operation, (found[2] or found[3]).strip("$ ")) if operation != ORDER else ("", "")


def _claim(
    cell: Cell, name: str, named: tuple[str, str], source: str, asked: Asked, beside: Iterable[str]
) -> Claim:
    """The claim of a cell about the quantity `name`, or about the order of the total (`ORDER`);
    `named` is the (mixer, form) of its row, `source` the file, `beside` the quantities with a
    column of their own in the row. If the cell cannot be read, a claim with the reason in
    `unchecked`."""
    mixer, form = named
    figure = CLAIMED["total" if name == ORDER else name]
    names_of = cell.labels.get("convention") or ",".join(asked.convention)  # convention's names
    place = f"{cell.row}, {cell.heading}"
    said: dict[str, Any] = {  # the fields that a claim of every kind gets
        "id": place, "source": source, "place": place, "claimed": cell.text, "mixer": mixer,
        "phase": phase_of(figure, PHASES.get(cell.labels.get("phase", ""), asked.phase)),
        "form": cell.labels.get("form") or form, "quantity": figure.name,
        "convention": tuple(names_of.split(",")),
        "without": tuple(x for x in dict.fromkeys(beside) if x in OTHER and name == "other"),
    }  # fmt: skip
    known = load_mixer(mixer)
    sizes = _own({**cell.sizes, **cell.of_mixers.get(known.name, {})}, known)
    try:
        with limited():
            if cell.labels.get("phase"):
                phase_name(cell.labels["phase"])
            claim = _stating(cell, name, figure, sizes, asked.symbols)(**said)
            claim.validate()
            if said["form"] and said["form"] not in known.forms:
                raise ValueError(
                    f"{mixer} has no form '{said['form']}': expected one of "
                    f"{', '.join(known.forms)}"
                )
            for formula in claim.formulas:
                _refuse_letters(formula.letters, known, mixer)
    except (ValueError, TooMuch) as reason:
        why = str(reason)
        inside = [word for word in re.findall(r"\w+", cell.text) if word in OTHER]
        if name == "other" and (unknown := _unknown_operation(cell.text)):
            why = f"{unknown} is no class of operations: expected {', '.join(OTHER)}"
        elif name == "other" and inside:
            why += (
                f"; {inside[0]} is named behind the number of its operations, as in "
                f"'2*l {inside[0]}', or before, as in '{inside[0]} = 2*l'"
            )
        return FormulaClaim(**said, unchecked=why)
    return claim


def _unknown_operation(text: str) -> str:
    """The first word before or behind a formula of a cell that names no operation, as `sigmoid` in
    `2*l*d tanh, 3*l*d sigmoid`; "" if there is none."""
    for part in re.split(r"[,;]\s+", text):
        found = _NAMED.fullmatch(part)
        if found and not _named_operation(part)[0]:
            return str(found[1] or found[4])
    return ""


def _refuse_letters(named: frozenset[str], known: Mixer, name: str) -> None:
    """Check that letters are sizes of a mixer; ValueError if not, which advises `--symbols`."""
    foreign = next(iter(in_order({*named} - own_sizes(known.open_sizes))), "")
    try:
        refuse_letters(named, known.open_sizes, name)
    except ValueError as reason:
        raise ValueError(f"{reason}; or name the size meant, by --symbols {foreign}=SIZE") from None


def _stating(
    cell: Cell, name: str, figure: Figure, sizes: Mapping[str, int], symbols: Symbols
) -> Callable[..., Claim]:
    """The class of the claim of a cell with its values and sizes filled in: a NumberClaim of a
    rounded number such as 1.3M or a whole number at `sizes`, else as `claim_class`, of a formula or
    an O(...). ValueError for a number without sizes, or measured, and an unreadable formula."""
    rounded = _ROUNDED.fullmatch(cell.text)  # a number with a unit, such as 1.3M
    unit = UNITS[rounded[2].lower()] if rounded else _unit(cell.heading)[1]
    if unit and (rounded or re.fullmatch(r"[\d.]+", cell.text)):
        if not sizes:
            raise ValueError(
                "the table gives no sizes for this number: add columns of sizes, such as l and d"
            )
        value = rounded[1] if rounded else cell.text
        return partial(NumberClaim, value=value, unit=unit, rounding=PRINTED, sizes=sizes)
    if name == ORDER and cell.text != "1" and _MEASURED.fullmatch(cell.text):
        raise ValueError("the cell holds a measured number: only formulas are checked")
    if len(sizes) > 1 and _WHOLE.fullmatch(cell.text):
        return partial(NumberClaim, value=cell.text.replace(",", ""), sizes=sizes)
    ordered = any(sign in cell.text for sign in ORDERED)  # the cell has O(...) or Theta(...)
    text = cell.text if name != ORDER or ordered else f"O({cell.text})"
    by_case = " if $" in text  # a formula in cases, as `table --format latex` prints it
    parts = [_by_case(text, symbols)] if by_case else text.split("=")
    # formulas are of one sequence unless they name b
    sizes = {x: size for x, size in sizes.items() if (x, size) != ("b", 1)}
    known = {} if by_case else symbols
    return partial(claim_class(figure, [part.strip() for part in parts], known), sizes=sizes)


def _by_case(text: str, symbols: Symbols) -> str:
    """A formula in cases as a sum of `where(value, guards)`, each guard a term that is >= 0:
    `$A$ if $l > w$; $B$ if $l \\le w$` becomes `where(A, l - (w) - 1) + where(B, w - (l))`.
    ValueError for a condition without one of < > = \\le \\leq \\ge \\geq, or with two."""
    terms = []
    for case in text.split("; "):
        value, _, when = case.partition(" if ")
        guards = []
        for condition in re.split(r"\\text\{ and \}| and ", when.strip("$ ")):
            sides = re.split(r"(\\[lg]eq?\b|[<>=])", condition)
            if len(sides) != 3:
                raise ValueError(f"'{condition}': expected a condition such as l > d")
            left, relation, right = sides
            one, two = (printed(side.strip(), symbols).text for side in (left, right))
            strict = int(relation in "<>")
            larger = [(one, two)] * (relation not in ("<", r"\le", r"\leq"))
            larger += [(two, one)] * (relation not in (">", r"\ge", r"\geq"))
            guards += [f"{above} - ({below}){' - 1' * strict}" for above, below in larger]
        terms.append(f"where({', '.join([printed(value.strip('$ '), symbols).text, *guards])})")
    return " + ".join(terms)


def _own(sizes: Mapping[str, int], mixer: Mixer) -> dict[str, int]:
    """Of a row's sizes, the sizes that a claim about the mixer may name."""
    return {x: size for x, size in sizes.items() if x in own_sizes(mixer.open_sizes)}
