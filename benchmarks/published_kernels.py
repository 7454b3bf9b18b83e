"""Published kernel times on GPUs against predictions, the roofline, and the line.

    python -m benchmarks.published_kernels FOLDER [--devices DIR] [--format json]

FOLDER has a folder a board, with tables NAME.csv.gz of kernel calls: a column `latency_ms`, and
sizes. A board is a file of `tables/devices/` or of DIR. Printed for each board and table:

- n: the number of calls;
- median, p90, bias: median and 90th percentile of the absolute relative error of the predicted
  time, and the mean of the signed error, in per cent;
- roofline_median, line_median: the median error of the roofline, and of the line;
- coverage: the share of calls inside the interval of the prediction (calls were repeated on the
  same entries, some of which stay in the L2 cache: only arithmetic bounds the interval below);
- calibrated (attention where the board has a table of matrix products; a section of the text): the
  same errors by figures of the board's own matrix products in place of those of the other boards;
- winners: of pairs of calls whose times differ by more than 10 %, how often the faster call is
  predicted to be the faster.

The roofline is max(FLOPs / dense peak, least bytes / bandwidth). The line adds a constant to the
roofline, one a table, which has the least median error on the boards of FOLDER other than the one
shown.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import BoardError
from costmodel.prediction.boards import Board, board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import FAMILIES, Constants, Family, family_of
from costmodel.prediction.power import SHORT
from costmodel.prediction.predict import (
    constants_in_words,
    fit_for,
    fits,
    meanings,
    power,
    power_in_words,
    predict,
)
from profiler.plots.drawing import FORMATS, draw_lines, write
from profiler.plots.on_boards import Point, roofline_panel
from profiler.plots.picture import Picture

Floats = NDArray[np.float64]
Row = Mapping[str, str]

PAIRS = 20_000
"""The largest number of pairs of calls of a table that are compared."""
APART = 1.1
"""Times that differ by less than this ratio are no pair."""
ENDING = ".csv.gz"
TAPS = 4
"""The taps of the short convolutions of delta rules, where no column tells them."""


def number(row: Row, name: str, default: float | None = None, above: float = 0) -> float:
    """The number in a column of a row, `default` if the column or the cell is missing; ValueError
    if there is neither, or the number is not above `above`, or infinite."""
    cell = row.get(name)
    if cell in (None, "") and default is not None:
        return default
    if not cell:
        raise ValueError(f"an empty cell in {name}" if name in row else f"no column {name}")
    if not above < float(cell) < inf:
        raise ValueError(f"no {name} above {above:g}")
    return float(cell)


def attention(row: Row, tokens: str) -> dict[str, float]:
    """The sizes of a row of attention, with `tokens` the letter of the number of tokens."""
    seen = number(row, "isl") if tokens == "l" else number(row, "step", above=-1) + 1
    window = number(row, "window_size", default=0, above=-inf)
    return {
        "b": number(row, "batch_size"), tokens: seen, "h": number(row, "head_dim"),
        "n": number(row, "num_heads"), "g": number(row, "num_key_value_heads"),
        "w": window if 0 < window < seen else seen,
    }  # fmt: skip


def prompt(row: Row) -> tuple[str, dict[str, float]]:
    """Kernel and sizes of a row of attention over a prompt. Software takes a prompt of one token as
    a new token."""
    sizes = attention(row, "l")
    if sizes["l"] > 1:
        return "prefill attention", sizes
    return "decode attention", {"t" if letter == "l" else letter: x for letter, x in sizes.items()}


def latent(row: Row, tokens: str) -> dict[str, float]:
    """The sizes of a row of latent attention, in DeepSeek's widths."""
    seen = number(row, "isl") if tokens == "l" else number(row, "step", above=-1) + 1
    return {
        "b": number(row, "batch_size"), tokens: seen, "n": number(row, "num_heads"),
        "K": 128, "R": 64, "V": 128, "c": 512,
    }  # fmt: skip


def prefill_form(row: Row) -> str:
    """The kernel of a row of latent attention over many tokens. SGLang's `flash_attention` attends
    to the latent rows (absorbed); all others make keys and values of each head first."""
    absorbed = row.get("kernel_source", "") == "flash_attention"
    return f"prefill {'absorbed ' if absorbed else ''}latent attention"


def of_heads(row: Row, decode: bool, *, channels: bool) -> dict[str, float]:
    """The sizes of a row of a delta rule; `channels`: whether keys and values have one width h."""
    tokens = {"t": 2**20} if decode else {"l": number(row, "seq_len")}
    sizes = {
        "b": number(row, "batch_size"), "n": number(row, "num_v_heads"),
        "k": number(row, "d_conv", default=TAPS), **tokens,
    }  # fmt: skip
    if channels:
        return sizes | {"h": number(row, "head_k_dim")}
    return sizes | {
        "g": number(row, "num_k_heads"), "K": number(row, "head_k_dim"),
        "V": number(row, "head_v_dim"),
    }  # fmt: skip


def delta_rule(row: Row, rule: str, *, channels: bool) -> tuple[str, dict[str, float]]:
    """Kernel and sizes of a row of a delta rule or of the short convolution before the rule."""
    decode = row.get("phase", "context") != "context"
    if decode and number(row, "seq_len", default=1) > 1:
        raise ValueError("several new tokens of each sequence (verify)")
    part = "convolution" if "conv1d" in row.get("kernel_source", "") else "rule"
    name = f"{rule} convolution" if part == "convolution" else f"{rule} rule"
    if rule == "Kimi delta" and part == "convolution":
        name = "Kimi convolution"
    return f"{'decode' if decode else 'prefill'} {name}", of_heads(row, decode, channels=channels)


def mamba(row: Row) -> tuple[str, dict[str, float]]:
    """Kernel and sizes of a row of Mamba-2's short convolution."""
    if "conv1d" not in row.get("kernel_source", ""):
        raise ValueError("no short convolution")
    decode = row.get("phase", "context") != "context"
    tokens = {"t": 2**20} if decode else {"l": number(row, "seq_len")}
    return f"{'decode' if decode else 'prefill'} Mamba-2 convolution", {
        "b": number(row, "batch_size"), "n": number(row, "nheads"), "P": number(row, "head_dim"),
        "N": number(row, "d_state"), "G": number(row, "n_groups"), "k": number(row, "d_conv"),
        **tokens,
    }  # fmt: skip


TABLES: Mapping[str, Callable[[Row], tuple[str, dict[str, float]]]] = {
    "gemm": lambda row: (
        "gemm",
        {"l": number(row, "m"), "f": number(row, "n"), "d": number(row, "k")},
    ),
    "context_attention": prompt,
    "generation_attention": lambda row: ("decode attention", attention(row, "t")),
    "context_mla": lambda row: (prefill_form(row), latent(row, "l")),
    "generation_mla": lambda row: ("decode latent attention", latent(row, "t")),
    "gdn": lambda row: delta_rule(row, "gated delta", channels=False),
    "kda": lambda row: delta_rule(row, "Kimi delta", channels=True),
    "mamba2": mamba,
}
"""Name of a table -> kernel and sizes of a row."""
ABSENT: Mapping[str, Mapping[str, str]] = {
    "context_attention": {"window_size": "none, attention to all tokens"},
    "generation_attention": {"window_size": "none, attention to all tokens"},
    "gdn": {"d_conv": f"{TAPS} taps", "phase": "prompts"},
    "kda": {"d_conv": f"{TAPS} taps", "phase": "prompts"},
    "mamba2": {"phase": "prompts"},
}
"""Name of a table -> column that may be absent -> what is taken for it, in words."""


@dataclass(frozen=True)
class Part:
    """The calls of one kernel and implementation of a table, the rows that they stand in, their
    measured seconds, and their watts (nan where not measured)."""

    source: str
    calls: Calls
    seconds: Floats
    watts: Floats

    def taken(self, chosen: NDArray[np.bool_]) -> Part:
        """The part with some of its calls."""
        sizes = {letter: size[chosen] for letter, size in self.calls.sizes.items()}
        calls = Calls(self.calls.kernel, sizes, self.calls.dtype)
        return Part(self.source, calls, self.seconds[chosen], self.watts[chosen])

    def impossible(self, on: Board) -> str:
        """Why the times cannot be those of the sizes: most calls whose bytes exceed twice the L2
        cache take less than the bytes beyond the cache need at the memory's bandwidth; "" if they
        do not."""
        moved, held = self.calls.work.bytes, on["l2_bytes"] if "l2_bytes" in on.figures else np.inf
        large = moved > 2 * held
        least = (moved - held) / on["memory_bandwidth"]
        below = large & (self.seconds < least)
        if 2 * below.sum() <= large.sum():
            return ""
        return (
            f"{below.sum()} of {large.sum()} calls larger than twice the L2 cache take less than "
            "their bytes need at the memory's bandwidth, so that the sizes cannot be theirs"
        )


@dataclass
class Table:
    """A table of a board: its parts, the small calls that were timed with their launch by the host,
    and the rows that were left out, by the reason."""

    board: Board
    file: str
    parts: list[Part] = field(default_factory=list)
    launched: list[Part] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """For each column that is absent, what is taken for it, in words."""

    @property
    def seconds(self) -> Floats:
        """The measured seconds of all parts."""
        return joined(part.seconds for part in self.parts)

    @property
    def roofline(self) -> Floats:
        """The roofline of all parts."""
        return joined(part.calls.roofline(self.board) for part in self.parts)


def joined(arrays: Iterator[Floats]) -> Floats:
    """Arrays one after the other."""
    found = list(arrays)
    return np.concatenate(found) if found else np.zeros(0)


HOST = 1e-4
"""The least time of a call, in seconds, above which calls of every size are timed with the host."""
SMALL = 1e-5
"""A roofline, in seconds, below which a call is small."""


def read_table(path: Path, on: Board) -> Table:
    """The calls of a table, by kernel and implementation.

    Raises:
        ValueError: no kernel has this name, or the file cannot be read.
    """
    name = path.name.removesuffix(ENDING)
    if name not in TABLES:
        raise ValueError(f"no kernel '{name}' is predicted: expected one of {', '.join(TABLES)}")
    table = Table(on, path.name)
    found: dict[tuple[str, str], list[tuple[dict[str, float], float, float]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        read = csv.DictReader(file)
        there = read.fieldnames or ()
        table.absent = [
            f"no column {column}: taken as {words}"
            for column, words in ABSENT.get(name, {}).items()
            if column not in there
        ]
        for row in read:
            try:
                seconds = number(row, "latency_ms") / 1e3
                kernel, sizes = TABLES[name](row)
                watts = number(row, "power_W", default=float("nan"), above=-inf)
            except ValueError as error:
                table.left_out[str(error)] = table.left_out.get(str(error), 0) + 1
                continue
            source = row.get("kernel_source") or ""
            found.setdefault((kernel, source), []).append((sizes, seconds, watts))
    for (kernel, source), rows in found.items():
        columns = {x: np.array([row[0][x] for row in rows]) for x in rows[0][0]}
        part = Part(
            source, Calls(kernel, columns), np.array([row[1] for row in rows]),
            np.array([row[2] for row in rows]),
        )  # fmt: skip
        small = part.calls.roofline(on) < SMALL
        if name in LAUNCHED and small.any() and part.seconds[small].min() > HOST:
            least = part.seconds[small].min()
            reason = (
                f"{source or 'without kernel_source'}: timed with the launch by the host (never "
                f"below {least * 1e6:.0f} us)"
            )
            table.left_out[reason] = len(rows)
            table.launched.append(part.taken(small))
        elif reason := part.impossible(on):
            table.left_out[f"{source or 'without kernel_source'}: {reason}"] = len(rows)
        else:
            table.parts.append(part)
    return table


LAUNCHED = ("gdn", "kda", "mamba2")
"""The tables whose implementations are left out where their times hold the launch by the host."""


def read_folder(folder: Path, devices: Path | None) -> Iterator[Table]:
    """The tables of a folder, board by board; a sentence on standard error for each board and table
    that is not read."""
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            on = board(place.name, devices)
        except BoardError as error:
            print(f"{place.name}: {error}", file=sys.stderr)
            continue
        for path in sorted(place.iterdir()):
            try:
                if not path.name.endswith(ENDING):
                    raise ValueError(f"no table: expected a name that ends in {ENDING}")
                table = read_table(path, on)
            except (ValueError, OSError, EOFError) as error:
                print(f"{place.name}/{path.name}: {error}", file=sys.stderr)
                continue
            for reason, rows in table.left_out.items():
                print(f"{place.name}/{path.name}: {rows} left out: {reason}", file=sys.stderr)
            for words in table.absent:
                print(f"{place.name}/{path.name}: {words}", file=sys.stderr)
            if not table.parts and not table.left_out:
                print(f"{place.name}/{path.name}: no rows", file=sys.stderr)
            if table.parts:
                yield table


Data = Mapping[str, Sequence[tuple[Board, Part]]]
"""Board -> its parts."""


def logs(family: Family, values: Floats, parts: Iterable[tuple[Board, Part]]) -> Floats:
    """The logarithm of measured over predicted time of every call."""
    constants = dict(zip(family.constants, values, strict=True))
    return np.concatenate(
        [np.log(p.seconds / family.seconds(constants, p.calls, on)) for on, p in parts]
    )


TIE = 1e-3
"""The weight of the mean square, which decides between constants that are equally good."""


def fitted(
    family: Family, data: Data, boards: Sequence[str], begun: Sequence[Floats] = ()
) -> Floats:
    """The constants with the least mean absolute logarithm on some boards, each board counted once:
    the best of a search of the whole ranges, and of searches from the constants `begun`, as one
    alone may end beside the least."""
    from scipy.optimize import differential_evolution, minimize

    ranges = [(one.least, one.most) for one in family.constants.values()]

    def loss(values: Floats) -> float:
        inside = [low <= v <= high for v, (low, high) in zip(values, ranges, strict=True)]
        if not all(inside):
            return 1e3
        ratios = [logs(family, values, data[b]) for b in boards]
        return float(np.mean([np.abs(r).mean() + TIE * (r**2).mean() for r in ratios]))

    def refined(found: Floats) -> Floats:
        for _ in range(2):  # the second time from a new simplex
            options = {"maxiter": 800, "adaptive": True}
            found = minimize(loss, found, method="Nelder-Mead", options=options).x
        return np.asarray(found)

    start = differential_evolution(
        loss, ranges, maxiter=40, popsize=12, rng=0, tol=1e-3, polish=False
    )
    return min(map(refined, (start.x, *begun)), key=loss)


FIGURES = ("peak", "bandwidth")
"""The constants of matrix products that a board's own products tell of the board. The start of a
product is a few tenths of a microsecond, and tells nothing of attention's, which takes many."""
CALIBRATED = ("context_attention", "generation_attention", "context_mla", "generation_mla")
"""The tables that are predicted by the figures of a board's own matrix products too."""
CALIBRATED_GOAL = 0.07, 0.25
"""The aimed median and 90th percentile of these predictions."""


def calibration(products: Table) -> dict[str, float]:
    """Figure -> the figure that a board's own matrix products fit, as a multiple of that of the
    other boards. The remaining constants are those of the other boards."""
    family = family_of("gemm", "")
    assert family is not None
    others = fit_for(family, products.board.name).constants

    def seconds(c: Constants, calls: Calls, on: Board) -> Floats:
        return family.seconds({**others, **c}, calls, on)

    few = replace(family, constants={x: family.constants[x] for x in FIGURES}, seconds=seconds)
    name = products.board.name
    found = fitted(few, {name: [(products.board, part) for part in products.parts]}, [name])
    return {x: float(value) / others[x] for x, value in zip(FIGURES, found, strict=True)}


def errors_by(constants: Constants, family: Family, part: Part, on: Board) -> Floats:
    """The absolute relative error of each call of a part that a family predicts by constants."""
    seconds = np.maximum(part.calls.arithmetic(on), family.seconds(constants, part.calls, on))
    return np.abs(error(seconds, part.seconds))


def by_ratios(table: Table, ratios: Mapping[str, float]) -> dict[str, float]:
    """The median and 90th percentile of a table's errors by the constants of other boards, each
    multiplied by the ratio of the same name."""
    errors = []
    for part in table.parts:
        family = family_of(part.calls.kernel, part.source)
        assert family is not None
        others = fit_for(family, table.board.name).constants
        own = {name: value * ratios.get(name, 1) for name, value in others.items()}
        errors.append(errors_by(own, family, part, table.board))
    each = np.concatenate(errors)
    return {"median": float(np.median(each)), "p90": float(np.quantile(each, 0.9))}


def calibrated(table: Table, ratios: Mapping[str, float]) -> dict[str, Any]:
    """What the report says of a table by its board's own figures, `ratios`: of all figures, and of
    each figure alone."""
    alone = {name: by_ratios(table, {name: ratio}) for name, ratio in ratios.items()}
    return {"ratios": dict(ratios), **by_ratios(table, ratios), "alone": alone}


def error(predicted: Floats, measured: Floats) -> Floats:
    """The relative errors of predicted times."""
    return predicted / measured - 1


def least_constant(tables: Sequence[Table]) -> float | None:
    """The seconds that, added to the roofline, give the least median error on these tables; None
    without tables."""
    if not tables:
        return None
    measured, roofline = joined(t.seconds for t in tables), joined(t.roofline for t in tables)
    tried = np.unique(np.clip(measured - roofline, 0, None))
    medians = [np.median(np.abs(error(roofline + c, measured))) for c in tried]
    return float(tried[int(np.argmin(medians))])


def winners(predicted: Floats, measured: Floats) -> float | None:
    """Of random pairs of calls whose times differ by more than `APART`, the share of those whose
    faster call is predicted to be the faster; None without such a pair."""
    draw = np.random.default_rng(0)
    one, two = (draw.integers(0, len(measured), PAIRS) for _ in range(2))
    ratio = measured[one] / measured[two]
    apart = (ratio > APART) | (ratio < 1 / APART)
    if not apart.any():
        return None
    right = (predicted[one] < predicted[two]) == (ratio < 1)
    return float(right[apart].mean())


def judged(table: Table, others: Sequence[Table]) -> dict[str, Any]:
    """The row of the report on a table; `others` are the same table of the other boards."""
    predictions = [
        predict(part.calls, table.board, part.source, repeated=True) for part in table.parts
    ]
    predicted = joined(one.seconds for one in predictions)
    low, high = joined(p.low for p in predictions), joined(p.high for p in predictions)
    measured, roofline = table.seconds, table.roofline
    errors, added = error(predicted, measured), least_constant(others)
    line = None if added is None else np.median(np.abs(error(roofline + added, measured)))
    return {
        "board": table.board.name,
        "file": table.file,
        "n": len(measured),
        "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.mean(errors)),
        "roofline_median": float(np.median(np.abs(error(roofline, measured)))),
        "line_median": None if line is None else float(line),
        "coverage": float(np.mean((low <= measured) & (measured <= high))),
        "winners": winners(predicted, measured),
    }


def judged_watts(part: Part, *, fitted: bool) -> NDArray[np.bool_]:
    """The calls of a part, of those with a power that take long enough, to which the power's
    constants are fitted (a half that the sizes of a call choose, by a hash), or by which they are
    judged (the other half)."""
    rows = zip(*part.calls.sizes.values(), strict=True)
    half = np.array([crc32(repr([float(size) for size in row]).encode()) % 2 == 0 for row in rows])
    long = np.isfinite(part.watts) & (part.seconds >= SHORT)
    return np.asarray(long & (half == fitted))


POWER = 0.15
"""The aimed median error of power."""


def power_lines(tables: Sequence[Table]) -> Iterator[str]:
    """A line for each table with power: errors of the predicted power of calls that the constants
    were not fitted to, at their measured times, and the share of these calls whose energy lies in
    the interval of the predicted energy, at their predicted times."""
    for table in tables:
        on, errors, inside = table.board, [], []
        for part in table.parts:
            chosen = judged_watts(part, fitted=False)
            if not chosen.any():
                continue
            errors.append(error(power(part.calls, on, part.seconds, gaps=True), part.watts)[chosen])
            found = predict(part.calls, on, part.source, repeated=True)
            if found.joules_low is None or found.joules_high is None:
                continue
            joules = part.seconds * part.watts
            inside.append(((found.joules_low <= joules) & (joules <= found.joules_high))[chosen])
        if errors:
            each, name = np.concatenate(errors), table.file.removesuffix(ENDING)
            size, median = 100 * np.abs(each), float(np.median(np.abs(each)))
            missed = f", misses {100 * POWER:.0f}" if median > POWER else ""
            held = f", energy inside {100 * np.concatenate(inside).mean():.1f}" if inside else ""
            yield (
                f"power of {on.name} {name}, {len(each)} calls of 100 us or more that "
                f"were not fitted: median {100 * median:.1f}, p90 {np.quantile(size, 0.9):.1f}, "
                f"bias {100 * each.mean():+.1f}{held}{missed}"
            )


def report(tables: Sequence[Table]) -> Iterator[dict[str, Any]]:
    """A row for each table that can be predicted; a sentence on standard error for each other. A
    row of attention on a board that has a table of matrix products has a key `calibrated`."""
    products = {table.board.name: table for table in tables if table.file == f"gemm{ENDING}"}
    ratios: dict[str, dict[str, float]] = {}
    for table in tables:
        name = table.board.name
        others = [t for t in tables if t.file == table.file and t.board.name != table.board.name]
        try:
            row = judged(table, others)
            if table.file.removesuffix(ENDING) in CALIBRATED and name in products:
                if name not in ratios:
                    ratios[name] = calibration(products[name])
                row["calibrated"] = calibrated(table, ratios[name])
            yield row
        except BoardError as reason:
            print(f"{table.board.name}/{table.file}: {reason}", file=sys.stderr)


def constants(tables: Sequence[Table]) -> Iterator[str]:
    """The constants of each family of kernels, with their meanings, and a line for each board of
    these tables that the family predicts."""
    yield "\nconstants by which each board is predicted"
    for family in FAMILIES:
        boards = sorted(
            {
                table.board.name
                for table in tables
                for part in table.parts
                if family_of(part.calls.kernel, part.source) is family
            }
        )
        if boards:
            yield f"{family.name}; {meanings(family)}"
        yield from (f"  {name}, {constants_in_words(family, name)}" for name in boards)
    yield f"power; {power_in_words()}"


def rooflines(tables: Sequence[Table]) -> Picture:
    """A panel for each table: the published rate of each call over its operations for each
    compulsory byte, below the peak of the board's matrix units and its memory's bandwidth."""
    panels = []
    for file in sorted({table.file for table in tables}):
        points: dict[str, list[Point]] = {}
        limits: dict[str, tuple[float, float]] = {}
        for table in (one for one in tables if one.file == file):
            on = table.board
            for part in table.parts:
                work, peak = part.calls.work, on[f"matrix.{part.calls.dtype}"]
                limits[f"limit of {on.title}"] = peak, on["memory_bandwidth"]
                pairs = zip(work.products / work.bytes, work.products / part.seconds, strict=True)
                shown = [(float(x), float(y), False) for x, y in pairs if y > 0]
                points.setdefault(on.title, []).extend(shown)
        shown_points = {name: several for name, several in points.items() if several}
        if shown_points:
            panels.append(roofline_panel(file.removesuffix(ENDING), shown_points, limits))
    return Picture(tuple(panels))


def own_median(table: Table) -> float | None:
    """The median error of a table if its board's own calls fit the constants: what the formulas
    miss, without the difference from board to board; None if a family has no such fit."""
    errors = []
    for part in table.parts:
        family = family_of(part.calls.kernel, part.source)
        known = fits()[family.name] if family else ()
        own = next((one for one in known if one.boards == (table.board.name,)), None)
        if family is None or own is None:
            return None
        errors.append(errors_by(own.constants, family, part, table.board))
    return float(np.median(np.concatenate(errors)))


def alone(constant: str, *families: str) -> str:
    """A constant of families as each board alone fits it, such as "12 on a100_sxm"."""
    return ", ".join(
        f"{one.constants[constant]:.2g} on {one.boards[0]}{f' by {by}' if by else ''}"
        for name in families
        for by in [name.partition(" by ")[2]]
        for one in sorted(fits()[name], key=lambda one: one.boards)
        if len(one.boards) == 1
    )


def of_attention() -> str:
    """What the data shows about attention."""
    return (
        "with vLLM 0.14 on A100, 0.24 on H100 and 0.22 on H200, software differs more than boards: "
        f"attention of one new row starts in {alone('start', 'attention of one new row')} "
        f"microseconds, of many rows in {alone('start', 'attention of many rows')}"
    )


def of_rules() -> str:
    """What the data shows about delta rules."""
    rules = [name for name in fits() if name.startswith("delta rule of many rows")]
    return (
        "each implementation of a delta rule was published on one board alone, and its chunk takes "
        f"a time of its own, in thousands of cycles: {alone('chunk', *rules)}"
    )


def of_products() -> str:
    """What the data shows about matrix products."""
    return (
        "H100 and H200 have the same chip, but a tile reaches another share of the peak: "
        f"{alone('peak', 'matrix products')}"
    )


OF_TRITON = "vLLM's latent attention by Triton was published on A100 alone: "
GOALS: Mapping[str, tuple[float, float, Callable[[], str]]] = {
    "gemm": (0.10, 0.30, of_products),
    "generation_attention": (0.12, 0.35, of_attention),
    "context_attention": (0.15, 0.40, of_attention),
    "context_mla": (0.15, 0.40, lambda: OF_TRITON + "its least time is that of the host, and "
                    "FlashAttention 2 is there only"),
    "generation_mla": (0.15, 0.40, lambda: OF_TRITON + "some calls of a few tokens take a "
                       "millisecond, and a single head runs by another kernel"),
    "gdn": (0.20, 0.50, of_rules),
    "kda": (0.20, 0.50, of_rules),
}  # fmt: skip
"""Table -> the aimed median and 90th percentile on boards that fitted nothing, and what the data
shows about why an aim is missed."""


HALVED = ("gemm", "generation_attention", "context_attention", "generation_mla", "context_mla")
"""The tables whose median error is to be at most half of the line's."""


def missed(rows: Sequence[Mapping[str, Any]], tables: Sequence[Table] = ()) -> Iterator[str]:
    """A line for each table that misses its goal, with the median of constants that the board's own
    calls fit if the table is among `tables`; a line for each of the tables `HALVED` that misses
    half of the line's median, or has no line; then what the data shows about why."""
    why: dict[str, None] = {}
    for row in rows:
        file = row["file"].removesuffix(ENDING)
        median, p90, reason = GOALS.get(file, (inf, inf, str))
        line = row["line_median"]
        if file in HALVED and line is None:
            yield (
                f"{row['board']} {file}: half of the line's median is not judged, as the line is "
                f"fitted on other boards, and no other board has a table {file}"
            )
        elif file in HALVED and row["median"] > line / 2:
            why[reason()] = None
            reached = f"{100 * row['median']:.1f} of {100 * line:.1f}"
            yield f"{row['board']} {file} misses half of the line's median: {reached}"
        if row["median"] <= median and row["p90"] <= p90:
            continue
        why[reason()] = None
        same = (t for t in tables if (t.board.name, t.file) == (row["board"], row["file"]))
        owns = (own for table in same if (own := own_median(table)) is not None)
        yield (
            f"{row['board']} {file} misses {100 * median:.0f} / {100 * p90:.0f}: "
            f"{100 * row['median']:.1f} / {100 * row['p90']:.1f}"
            + "".join(f"; median by constants of its own {100 * own:.1f}" for own in owns)
        )
    yield from why


def calibrated_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A heading and a line for each row with a key `calibrated`, which tells whether the row misses
    the goal, and before the first of each board the ratios; then, where a row misses the goal, what
    the data shows about why. Nothing without such a row."""

    def words(found: Mapping[str, float]) -> str:
        return f"{100 * found['median']:.1f} / {100 * found['p90']:.1f}"

    goal = " / ".join(f"{100 * one:.0f}" for one in CALIBRATED_GOAL)
    shown_before: set[str] = set()
    why: dict[str, None] = {}
    several = [row for row in rows if "calibrated" in row]
    for row in several:
        found, name, file = row["calibrated"], row["board"], row["file"].removesuffix(ENDING)
        if not shown_before:
            yield f"\nattention by figures of a board's own matrix products (goal: {goal})"
        if name not in shown_before:
            each = ", ".join(f"{figure} {ratio:.2f}" for figure, ratio in found["ratios"].items())
            yield f"{name}: figures as a multiple of those of the other boards: {each}"
            shown_before.add(name)
        alone = ", ".join(f"{figure} alone {words(one)}" for figure, one in found["alone"].items())
        misses = found["median"] > CALIBRATED_GOAL[0] or found["p90"] > CALIBRATED_GOAL[1]
        if misses:
            why[GOALS[file][2]()] = None
        missed_goal = f" misses {goal}:" if misses else ""
        told = f"{name} {file}{missed_goal} {words(found)}; {alone}"
        yield f"{told}; by the other boards {words(row)}"
    if why:
        lower = sum(row["calibrated"]["median"] < row["median"] for row in several)
        yield (
            f"the figures of products lower the median of {lower} of {len(several)} tables: they "
            "tell the shares of peak and bandwidth that a board's products reach, and neither the "
            "shares that attention reaches nor the start and the tile of its kernels"
        )
    yield from why


COLUMNS = ("median", "p90", "bias", "roofline_median", "line_median", "coverage", "winners")


def shown(row: Mapping[str, Any]) -> str:
    """A row of the report as a line of text, in per cent."""
    cells = [
        "-" if row[name] is None else f"{100 * row[name]:{'+' if name == 'bias' else ''}.1f}"
        for name in COLUMNS
    ]
    ends = (f"{cell:>{len(name)}}" for cell, name in zip(cells, COLUMNS, strict=True))
    start = f"{row['board']:<20} {row['file'].removesuffix(ENDING):<22} {row['n']:>6}"
    return f"{start} {' '.join(ends)}"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE.png|svg|pdf")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    for place in (asked.folder, asked.devices):
        if place is not None and not place.is_dir():
            parser.error(f"no folder {place}")
    if asked.plot is not None and asked.plot.suffix.lstrip(".") not in FORMATS:
        parser.error(f"--plot {asked.plot}: expected a name that ends in {', '.join(FORMATS)}")
    tables = list(read_folder(asked.folder, asked.devices))
    rows = list(report(tables))
    if not rows:
        sys.exit(f"no table of {asked.folder} could be predicted")
    if asked.plot is not None:
        write(rooflines(tables), draw_lines, asked.plot)
    if asked.format == "json":
        print(json.dumps({"schema": 1, "rows": rows}, indent=1))
        return
    print(f"{'board':<20} {'table':<22} {'n':>6} {' '.join(COLUMNS)}")
    for row in rows:
        print(shown(row))
    held = (*missed(rows, tables), *calibrated_lines(rows))
    for line in (*power_lines(tables), "", *held, *constants(tables)):
        print(line)


if __name__ == "__main__":
    main()
