"""Boards as data: the figures of a GPU that predictions need, each with its source.

A board is a TOML file: its `name`, other names (`aliases`), its `kind` (gpu, unless the file says
cpu), and groups of `figures`. A group has a `label` (such as datasheet), a `source`, and figures in
base units: operations a second of the matrix and vector units by dtype and of the special
functions, bytes, bytes a second, seconds, hertz, watts.
`tables/devices/` has the boards that ship; any other is given as the path of its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.data import data_dir, read_data
from costmodel.errors import BoardError
from costmodel.program.element_types import BYTES

UNITS = {
    "matrix": "FLOP/s",
    "narrow": "FLOP/s",
    "vector": "FLOP/s",
    "special": "op/s",
    "selection": "op/s",
    "memory_bandwidth": "B/s",
    "allocation": "B/s",
    "l2_bandwidth": "B/s",
    "memory_bytes": "B",
    "l2_bytes": "B",
    "sms": "",
    "clock": "Hz",
    "capability": "",
    "kernel_time": "s",
    "power_limit": "W",
    "power_idle": "W",
}
"""Figure -> its unit; matrix, narrow and vector are by dtype, dense, a multiplication and an
addition being two operations. `narrow`: products of matrices whose rows, columns or terms are at
most 64, as those of heads of attention. `special`: exponentials. `selection`: entries that a random
mask chooses. `allocation`: bytes of a new array larger than the last cache, written for the first
time. `l2_bandwidth`: bytes that an elementwise operation moves while the last cache holds its
arrays. `capability`: CUDA's compute capability. `kernel_time`: the least time of a kernel among
kernels that follow one another."""
RANGES: Mapping[str, tuple[float, float]] = {
    "FLOP/s": (1e4, 1e18),
    "op/s": (1e3, 1e18),
    "B/s": (1e5, 1e16),
    "B": (1e4, 1e15),
    "Hz": (1e6, 1e11),
    "s": (1e-9, 1e-2),
    "W": (1, 1e5),
    "": (1, 1e5),
}
"""Unit -> the least and the largest figure that some board may have. A figure in another unit, such
as 3.35 for TB/s, lies outside."""
BY_DTYPE = ("matrix", "narrow", "vector")
GPU, CPU = KINDS = ("gpu", "cpu")
"""The kinds of boards. Times of kernels are those of a GPU."""


@dataclass(frozen=True)
class Figure:
    """A figure of a board: its value in base units, label and source."""

    value: float
    label: str
    source: str


@dataclass(frozen=True)
class Board:
    """A board. `figures`: name, such as `sms` or `matrix.bf16` -> the figure; `path`: its file."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    path: str = ""
    kind: str = GPU

    @property
    def chip(self) -> str:
        """The name of the board in `tables/devices/` that has this board's title as its title or
        alias, else the title: of a renamed copy of a file, the same as of the file. By this name
        predictions leave out constants that were fitted on the board itself."""
        shipped = _shipped().get(_plain(self.title))
        return self.title if shipped is None else shipped.name

    @property
    def path_shown(self) -> str:
        """The board's file, as a reader finds it."""
        path = Path(self.path)
        return f"tables/devices/{path.name}" if path.parent.name == "devices" else self.path

    @property
    def caption(self) -> str:
        """The board's names, the labels of its figures, each after the most frequent one with the
        figures, and its file: `h100_sxm (NVIDIA H100 SXM5 80 GB), datasheet; datasheet, unchecked
        (special): tables/devices/h100_sxm.toml`."""
        groups: dict[str, dict[str, None]] = {}
        for name, figure in self.figures.items():
            groups.setdefault(figure.label, {})[name.partition(".")[0]] = None
        labels = [
            f"{label} ({', '.join(groups[label])})" if rank else label
            for rank, label in enumerate(sorted(groups, key=lambda label: -len(groups[label])))
        ]
        return f"{self.name} ({self.title}), {'; '.join(labels)}: {self.path_shown}"

    def __getitem__(self, name: str) -> float:
        """The value of a figure of the board, such as "clock", in base units (hertz, bytes/second).
        Raises BoardError: the board's file does not have the figure."""
        if name not in self.figures:
            where = f"add it to {self.path_shown}"
            if name == "sms":
                where += f', or write kind = "{CPU}" there if the board is a CPU'
            raise BoardError(f"board {self.name} has no figure '{name}': {where}")
        return self.figures[name].value

    def product_units(self, dtype: str) -> Sequence[str]:
        """The figures that may be the rate of products of matrices with entries of a dtype, the
        matrix units' first: `("matrix.bf16", "vector.bf16")`. The vector units alone execute the
        products of a dtype that the matrix units of the board do not take: `("vector.fp32",)`. ()
        where no figure tells the rate: without a figure of the matrix units, or where these take
        another type of this size, such as fp16 beside bf16, and are faster than vectors."""
        own = f"matrix.{dtype}"
        others = [x for x in BYTES if f"matrix.{x}" in self.figures]
        if not others or (own not in self.figures and BYTES[dtype] in {BYTES[x] for x in others}):
            return ()
        return [name for name in (own, f"vector.{dtype}") if name in self.figures]

    def product_unit(self, dtype: str) -> str:
        """The first of `product_units`; without one, the figure that the board lacks."""
        return next(iter(self.product_units(dtype)), f"matrix.{dtype}")

    def refuse_cpu(self) -> None:
        """Raise BoardError for a CPU, of which no time of a GPU's kernel is predicted."""
        if self.kind == CPU:
            raise BoardError(
                f"board {self.name} is a CPU, and this prediction is for GPUs: for a CPU, run "
                f"costmodel table or costmodel reconcile with --board {self.name}"
            )


def board(name: str, folder: Path | None = None) -> Board:
    """The board (a GPU or CPU as data) with a name, title or alias, or that of a file `NAME.toml`.
    Capitals and small letters are equal in names; blanks, hyphens and underscores do not count.

    Args:
        folder: a folder of boards that is looked through before `tables/devices/`.

    Raises:
        BoardError: there is no such board, or its file cannot be read.

    >>> board("h100")["sms"]
    132.0
    >>> board("RTX4090").name
    'rtx_4090'
    """
    if name.endswith(".toml"):
        return read_board(Path(name))
    found, typed = {**_shipped(), **(_boards(folder) if folder else {})}, _plain(name)
    if typed not in found:
        names = {_plain(own): own for one in found.values() for own in (one.name, *one.aliases)}
        near = get_close_matches(typed, names, 1)
        hint = f"did you mean '{names[near[0]]}'? " if near else ""
        known = sorted({one.name for one in found.values()})
        raise BoardError(
            f"no board '{name}': {hint}expected one of {', '.join(known)}, or a file BOARD.toml"
        )
    return found[typed]


@cache
def _shipped() -> Mapping[str, Board]:
    """The boards of `tables/devices/`, as `_boards` has them."""
    return _boards(data_dir("devices"))


def _boards(folder: Path) -> Mapping[str, Board]:
    """Each name, title and alias of the boards in a folder, as `_plain` writes it -> the board."""
    read = [read_board(path) for path in sorted(folder.glob("*.toml"))]
    return {_plain(own): one for one in read for own in (*one.aliases, one.title, one.name)}


def _plain(name: str) -> str:
    """A board's name in small letters, without blanks, hyphens and underscores."""
    return re.sub("[ _-]", "", name.lower())


def read_board(path: Path) -> Board:
    """The board (a GPU or CPU as data) of a TOML or JSON file, whose name without its ending is the
    board's, while `name` in the file is its title (by default that name too). The figures of all
    groups in the file are one dict, name -> `Figure`.

    Raises:
        BoardError: the file cannot be read, or a key or value is none that a board has.
    """
    try:
        read = read_data(path)
    except ValueError as error:
        raise BoardError(f"{path}: {error}") from None
    known = {"name": str, "aliases": list, "kind": str, "figures": list}
    if not isinstance(read, dict) or not isinstance(read.get("figures"), list):
        raise BoardError(f"{path}: expected groups of figures, [[figures]], with label and source")
    for key, value in read.items():
        if not isinstance(value, known.get(key, ())):
            raise BoardError(f"{path}: expected the keys {', '.join(known)}; got '{key}'")
    if (kind := read.get("kind", GPU)) not in KINDS:
        raise BoardError(f"{path}: expected kind = one of {', '.join(KINDS)}; got '{kind}'")
    figures: dict[str, Figure] = {}
    for group in read["figures"]:
        for name, figure in _figures(path, group):
            if name in figures:
                raise BoardError(
                    f"{path}: the figure '{name}' is given twice: leave out one of the two"
                )
            figures[name] = figure
    title = read.get("name", path.stem)
    aliases = tuple(str(alias) for alias in read.get("aliases", ()))
    return Board(path.stem, title, aliases, figures, str(path), kind)


def _figures(path: Path, group: Any) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each figure of a group, a table in the file with one label and one
    source; a figure by dtype gets a name such as `matrix.bf16`. BoardError for an unknown key, or a
    value that is no number within `RANGES`."""
    if not isinstance(group, dict):
        raise BoardError(f"{path}: expected [[figures]] with label, source and figures")
    label, source = group.get("label"), group.get("source")
    for key, said in (("label", label), ("source", source)):
        if not isinstance(said, str) or not said:
            raise BoardError(f"{path}: expected a {key} in each of [[figures]]")
    for key, value in group.items():
        if key in ("label", "source"):
            continue
        if key not in UNITS:
            raise BoardError(f"{path}: expected one of the figures {', '.join(UNITS)}; got '{key}'")
        by_dtype = isinstance(value, dict)
        if by_dtype != (key in BY_DTYPE):
            what = "figures by dtype" if key in BY_DTYPE else "a number"
            raise BoardError(f"{path}: expected {what} for {key}, got {value!r}")
        for dtype, number in value.items() if by_dtype else (("", value),):
            name = f"{key}.{dtype}" if dtype else key
            if by_dtype and dtype not in BYTES:
                raise BoardError(f"{path}: expected a dtype of {', '.join(BYTES)}; got '{dtype}'")
            if type(number) not in (int, float) or not 0 < number < float("inf"):
                raise BoardError(f"{path}: {name} must be a positive number, got {number!r}")
            least, most = RANGES[unit := UNITS[key]]
            if not least <= number <= most:
                raise BoardError(
                    f"{path}: {name} = {number!r} is out of range: expected {least:g} to "
                    f"{most:g}{unit and f' {unit}'}"
                )
            yield name, Figure(float(number), str(label), str(source))
