"""Fit the constants of all families of kernels to published times.

    python -m benchmarks.fit_kernels FOLDER > tables/predictions/kernels.json

FOLDER as `benchmarks.published_kernels` reads it. Each family is fitted on all boards of FOLDER,
again without each of them, and on each alone, to the least mean absolute logarithm of the ratio of
predicted to measured time. The interval of a fit holds nine of ten such ratios on a board that was
left out, widened by sqrt(1 + 1/boards), as the interval of one more draw is; so does that of
constants of other families, which stand in where an implementation was published on one board
alone. A fit on one board knows only its own ratios, without the bias on another board: as the bias
may have either sign, the interval reaches as far below 1 as above.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published_kernels import (
    Data,
    Part,
    Table,
    fitted,
    judged_watts,
    logs,
    read_folder,
)
from costmodel.data import data_dir
from costmodel.prediction.boards import Board, read_board
from costmodel.prediction.families import BY_HOST, FAMILIES, SMALL, Family, family_of
from costmodel.prediction.power import CONSTANTS, watts
from costmodel.prediction.predict import fitted_elsewhere, read_fits, stand_in

Floats = NDArray[np.float64]


def widened(ratios: Sequence[Floats], boards: int) -> Floats:
    """The ends (2,) of an interval of ratios that holds nine of ten of some logarithms, widened
    because so few boards were seen."""
    ends = np.quantile(np.concatenate(ratios), (0.05, 0.95))
    return np.asarray(np.exp(ends * np.sqrt(1 + 1 / boards)))


def standing_in(families: Mapping[str, Any], data: Mapping[str, Data]) -> list[float]:
    """The interval of constants of other families that stand in, on the boards without which a
    family was fitted nowhere."""
    found, known = [], read_fits(families)
    for family in FAMILIES:
        for board, parts in data[family.name].items():
            if fitted_elsewhere(family.name, board, known):
                continue
            if constants := stand_in(family, board, known):
                found.append(logs(family, np.array(list(constants.values())), parts))
    return [float(f"{ratio:.4g}") for ratio in widened(found, len(found))]


def among_kernels(families: Mapping[str, Any]) -> dict[str, Any]:
    """The mean, over the boards of `tables/measured/`, of the time of a small kernel among others
    over its launch and tail alone, by the constants that were fitted without the board."""
    family = family_of(SMALL, "")
    assert family is not None
    shares = {}
    for path in sorted(data_dir("measured").glob("*/*.toml")):
        own = read_board(path)
        fit = fitted_elsewhere(family.name, own.chip, read_fits(families))
        if fit and "kernel_time" in own.figures:
            shares[own.name] = own["kernel_time"] / (fit.constants["start"] * 1e-6)
    share = float(np.mean(list(shares.values())))
    return {"share": float(f"{share:.4g}"), "boards": [*shares]}


def fits(family: Family, data: Data) -> list[dict[str, Any]]:
    """The fits of a family on all boards, without each, and on each alone."""
    boards = sorted(data)
    chosen = [c for size in range(1, len(boards) + 1) for c in combinations(boards, size)]
    values: dict[tuple[str, ...], Floats] = {}
    for c in chosen:  # each board alone first
        begun = [values[one,] for one in c] if len(c) > 1 else []
        values[c] = fitted(family, data, c, begun)
    found = []
    for c in sorted(chosen, key=len, reverse=True):
        if 1 < len(c) < len(boards) - 1:
            continue
        unseen = [
            logs(family, values[tuple(x for x in c if x != left)], data[left])
            for left in c
            if len(c) > 1
        ] or [sign * logs(family, values[c], data[c[0]]) for sign in (1, -1)]
        ratios = widened(unseen, len(c))
        found.append(
            {
                "boards": list(c),
                "constants": {
                    name: one.rounded(v)
                    for (name, one), v in zip(family.constants.items(), values[c], strict=True)
                },
                "interval": [float(f"{ratio:.4g}") for ratio in ratios],
            }
        )
    return found


def of_family(family: Family, tables: Iterable[Table]) -> Data:
    """The parts that a family predicts, by board; of calls that the host launches one by one, the
    small ones that are timed with this launch."""
    found: dict[str, list[tuple[Board, Part]]] = {}
    for table in tables:
        for part in table.launched if family is BY_HOST else table.parts:
            if family is BY_HOST or family_of(part.calls.kernel, part.source) is family:
                found.setdefault(table.board.name, []).append((table.board, part))
    return found


def power(tables: Iterable[Table]) -> dict[str, Any]:
    """The constants of the power of a board, fitted to half of the calls that take long
    enough, and the interval of the ratio of measured to predicted power of the others."""
    from scipy.optimize import differential_evolution

    parts = [(t.board, p, chosen) for t in tables for p in t.parts
             if (chosen := judged_watts(p, fitted=True)).any()]  # fmt: skip

    def ratios(values: Floats, *, unseen: bool) -> Floats:
        c = dict(zip(CONSTANTS, values, strict=True))
        found = [
            np.log(p.watts / watts(c, p.calls, on, p.seconds))[judged_watts(p, fitted=not unseen)]
            for on, p, _ in parts
        ]
        return np.concatenate(found)

    def loss(values: Floats) -> float:
        return float(np.abs(ratios(values, unseen=False)).mean())

    ranges = [(one.least, one.most) for one in CONSTANTS.values()]
    found = differential_evolution(loss, ranges, maxiter=200, popsize=12, rng=0, tol=1e-4)
    boards = sorted({on.name for on, _, _ in parts})
    ends = widened([ratios(found.x, unseen=True)], len(boards))
    return {
        "constants": {name: one.meaning for name, one in CONSTANTS.items()},
        "boards": boards,
        "calls": int(sum(chosen.sum() for _, _, chosen in parts)),
        "values": {
            name: one.rounded(v) for (name, one), v in zip(CONSTANTS.items(), found.x, strict=True)
        },
        "interval": [float(f"{ratio:.4g}") for ratio in ends],
    }


def main() -> None:
    """Print the fits of all families."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", help="the name of a family; others are kept")
    parser.add_argument("--kept", type=Path, help="a file of fits, whose other families are kept")
    asked = parser.parse_args()
    tables = list(read_folder(asked.folder, None))
    old = json.loads(asked.kept.read_text())["families"] if asked.kept else {}
    families = {}
    data = {family.name: of_family(family, tables) for family in FAMILIES}
    for family in FAMILIES:
        if asked.only and family.name not in asked.only:
            families[family.name] = old[family.name]
            continue
        own = data[family.name]
        families[family.name] = {
            "constants": {name: one.meaning for name, one in family.constants.items()},
            "sources": sorted({p.source for parts in own.values() for _, p in parts}),
            "calls": sum(len(p.seconds) for parts in own.values() for _, p in parts),
            "fits": fits(family, own) if own else [],
        }
        print(family.name, file=sys.stderr)
    found = {
        "schema": 1,
        "families": families,
        "stand_in_interval": standing_in(families, data),
        "power": power(tables),
        "among_kernels": among_kernels(families),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
