"""Fit the constants of all families of kernels to published times.

    python -m benchmarks.fit_kernels FOLDER > tables/predictions/kernels.json

FOLDER as `benchmarks.published_kernels` reads it. Each family is fitted on all boards of FOLDER,
and again without each of them, to the least mean absolute logarithm of the ratio of predicted to
measured time. The interval of a fit holds nine of ten such ratios on a board that was left out,
widened by sqrt(1 + 1/boards), as the interval of one more draw is; so does that of constants which
stand in for those of another implementation.
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

from benchmarks.published_kernels import Part, Table, judged_watts, read_folder
from costmodel.prediction.boards import Board
from costmodel.prediction.families import FAMILIES, Family
from costmodel.prediction.power import CONSTANTS, watts

Floats = NDArray[np.float64]
Data = Mapping[str, Sequence[tuple[Board, Part]]]
"""Board -> its parts."""


def logs(family: Family, values: Floats, parts: Iterable[tuple[Board, Part]]) -> Floats:
    """The logarithm of measured over predicted time of every call."""
    constants = dict(zip(family.constants, values, strict=True))
    return np.concatenate(
        [np.log(p.seconds / family.seconds(constants, p.calls, on)) for on, p in parts]
    )


def fitted(family: Family, data: Data, boards: Sequence[str]) -> Floats:
    """The constants with the least mean absolute logarithm on some boards, each board counted
    once."""
    from scipy.optimize import differential_evolution, minimize

    ranges = [(one.least, one.most) for one in family.constants.values()]

    def loss(values: Floats) -> float:
        inside = [low <= v <= high for v, (low, high) in zip(values, ranges, strict=True)]
        if not all(inside):
            return 1e3
        return float(np.mean([np.abs(logs(family, values, data[b])).mean() for b in boards]))

    start = differential_evolution(
        loss, ranges, maxiter=25, popsize=8, rng=0, tol=1e-3, polish=False
    )
    found = minimize(loss, start.x, method="Nelder-Mead", options={"maxiter": 250})
    return np.asarray(found.x)


def widened(ratios: Sequence[Floats], boards: int) -> Floats:
    """The ends (2,) of an interval of ratios that holds nine of ten of some logarithms, widened
    because so few boards were seen."""
    ends = np.quantile(np.concatenate(ratios), (0.05, 0.95))
    return np.asarray(np.exp(ends * np.sqrt(1 + 1 / boards)))


def standing_in(families: Mapping[str, Any], data: Mapping[str, Data]) -> list[float]:
    """The interval of constants of one implementation that stand in for those of another one, on
    the boards without which the other was fitted nowhere."""
    found = []
    for family in FAMILIES:
        for board, parts in data[family.name].items() if family.like else ():
            others = [f for f in families[family.name]["fits"] if board not in f["boards"]]
            like = [f for f in families[family.like]["fits"] if board not in f["boards"]]
            if not others and like:
                best = max(like, key=lambda fit: len(fit["boards"]))
                constants = {**best["constants"], **family.stand_in}
                values = np.array([constants[name] for name in family.constants])
                found.append(logs(family, values, parts))
    return [float(f"{ratio:.4g}") for ratio in widened(found, len(found))]


def fits(family: Family, data: Data) -> list[dict[str, Any]]:
    """The fits of a family on all boards and without each."""
    boards = sorted(data)
    chosen = [c for size in range(1, len(boards) + 1) for c in combinations(boards, size)]
    values = {c: fitted(family, data, c) for c in chosen}
    found = []
    for c in sorted(chosen, key=len, reverse=True):
        if len(c) < max(1, len(boards) - 1):
            continue
        unseen = [
            logs(family, values[tuple(x for x in c if x != left)], data[left])
            for left in c
            if len(c) > 1
        ] or [logs(family, values[c], data[c[0]])]
        ratios = widened(unseen, len(c))
        found.append(
            {
                "boards": list(c),
                "constants": {
                    name: float(f"{v:.4g}")
                    for name, v in zip(family.constants, values[c], strict=True)
                },
                "interval": [float(f"{ratio:.4g}") for ratio in ratios],
            }
        )
    return found


LEFT_OUT = {
    ("a100_sxm", "prefill gated delta convolution"): "its times do not depend on the channels",
}
"""Board and kernel whose rows fit no constants -> the reason."""


def of_family(family: Family, tables: Iterable[Table]) -> Data:
    """The parts that a family predicts, by board."""
    from costmodel.prediction.families import family_of

    found: dict[str, list[tuple[Board, Part]]] = {}
    for table in tables:
        for part in table.parts:
            kept = (table.board.name, part.calls.kernel) not in LEFT_OUT
            if kept and family_of(part.calls.kernel, part.source) is family:
                found.setdefault(table.board.name, []).append((table.board, part))
    return found


def power(tables: Iterable[Table]) -> dict[str, Any]:
    """The constants of the power of a board, fitted to every second call of those that take long
    enough."""
    from scipy.optimize import differential_evolution

    parts = [(t.board, p, chosen) for t in tables for p in t.parts
             if (chosen := judged_watts(p, fitted=True)).any()]  # fmt: skip

    def loss(values: Floats) -> float:
        c = dict(zip(CONSTANTS, values, strict=True))
        ratios = [
            np.log(watts(c, p.calls, on, p.seconds)[chosen] / p.watts[chosen])
            for on, p, chosen in parts
        ]
        return float(np.abs(np.concatenate(ratios)).mean())

    ranges = [(one.least, one.most) for one in CONSTANTS.values()]
    found = differential_evolution(loss, ranges, maxiter=200, popsize=12, rng=0, tol=1e-4)
    return {
        "constants": {name: one.meaning for name, one in CONSTANTS.items()},
        "boards": sorted({on.name for on, _, _ in parts}),
        "calls": int(sum(chosen.sum() for _, _, chosen in parts)),
        "values": {n: float(f"{v:.4g}") for n, v in zip(CONSTANTS, found.x, strict=True)},
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
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
