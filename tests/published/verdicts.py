"""Which verdicts do the claims of a published source get, and are they those of its golden file?"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from costmodel.claims.published import Verdict, summary, unrecorded, verify
from costmodel.claims.records import load
from costmodel.data import data_dir
from tests.goldens import hold

OPEN = "not-checkable"


@cache
def claims_of(source: str) -> dict[str, Any]:
    """The claims of a file under tables/published, by their names in the source.

    The claim `yorsh.T1.local` of `yorsh-2021` is `T1.local`.
    """
    return {_name(claim.id): claim for claim in load(data_dir("published") / f"{source}.json")}


@cache
def verdicts_of(source: str) -> dict[str, Verdict]:
    """Every claim's verdict, by the claim's name in the source."""
    found = verify([data_dir("published") / f"{source}.json"])
    return {_name(verdict.id): verdict for verdict in found}


def holding(source: str) -> list[str]:
    """The names of the claims that are checked, and are no recorded misprint."""
    known = claims_of(source)
    return [name for name, of in known.items() if not of.misprint and not of.left_open]


def hold_verdicts(source: str) -> None:
    """Compare the verdicts with the source's golden file: a claim is a line.

    T7.4.ssa.time: agrees-under [strict, rounded up] 22.6623
    """
    lines = []
    for name, found in verdicts_of(source).items():
        misprint = f" ({found.misprint} misprint)" if found.misprint else ""
        conventions = f" [{', '.join(found.conventions)}]" if found.conventions else ""
        derived = f" {found.derived}" if found.derived else ""
        lines.append(f"{name}: {found.verdict}{misprint}{conventions}{derived}\n")
    hold(f"verdicts/{source}.txt", "".join(lines))


def hold_open(source: str, *, misprints: set[str]) -> None:
    """Disagreements are those of the named misprints, each recorded; what is not checkable has a
    reason; the summary counts both."""
    found = verdicts_of(source)
    kinds = Counter(verdict.verdict for verdict in found.values())
    assert {name for name, v in found.items() if v.verdict == "disagrees"} == misprints
    assert {name for name, v in found.items() if v.misprint == "recorded"} == misprints
    assert unrecorded([*found.values()]) == []
    counted = summary([*found.values()])
    assert {kind: counted[kind] for kind in kinds} == kinds
    assert (counted["misprints"], counted["stale"]) == (len(misprints), 0)
    reasons = [claims_of(source)[n].left_open for n, v in found.items() if v.verdict == OPEN]
    assert all(len(reason) > 40 for reason in reasons)


def _name(id_: str) -> str:
    return id_.partition(".")[2]
