"""Do DeepSeek-V2's statements about the cache of a token get the verdicts of a count by hand?

A token's elements in one layer: a latent row of 512 and a shared key of 64 channels, or keys and
values of 128 channels in each group of heads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import costmodel as cm
from costmodel.claims.published import Verdict, check, unrecorded, verify
from costmodel.claims.records import load
from costmodel.data import data_dir

PATH = data_dir("published") / "deepseek-v2.json"
CLAIM: dict[str, Any] = {claim.id.removeprefix("deepseek-v2."): claim for claim in load(PATH)}
ROW, GROUP = 512 + 64, 2 * 128

EXPECTED = {
    "s2.1.1.cache": "2*d*t",
    "s2.1.2.cache": "c*t",
    "s2.1.3.cache": "c*t + R*t",
    "s2.1.4.groups": str(ROW),
    "T1.mha": "2*d*t",
    "T1.gqa": "2*d*g*t/n",
    "T1.mqa": "2*d*g*t/n",
    "T1.mla": "c*t + R*t",
    "T1.mla.heads": str(ROW),
    "T9.small.mha": str(16 * GROUP),
    "T9.small.mla": str(ROW),
    "T9.large.mla": str(ROW),
}
"""The state of a layer."""

ARITHMETIC = ("abstract.cache", "s2.1.2.queries", "D.2.small", "D.2.large")
OPEN = ("s2.1.2.activations", "s2.1.3.recompute", "T9.large.mha")


@cache
def verdicts() -> dict[str, Verdict]:
    """Every claim's verdict, by its id in the source."""
    return {verdict.id.removeprefix("deepseek-v2."): verdict for verdict in verify([PATH])}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_layer_holds_the_cache_of_a_token_that_the_paper_prints(name: str) -> None:
    found = verdicts()[name]
    assert found.verdict == "agrees"
    assert {*found.derived.split(" + ")} == {*EXPECTED[name].split(" + ")}


def test_other_claims_are_arithmetic_or_stay_open() -> None:
    assert {*verdicts()} == {*EXPECTED, *ARITHMETIC, *OPEN}
    assert {verdicts()[name].verdict for name in ARITHMETIC} == {"agrees"}
    assert {verdicts()[name].verdict for name in OPEN} == {"not-checkable"}
    assert not unrecorded([*verdicts().values()])
    kept = 60 * ROW * 6 / (95 * 8 * GROUP * 16)
    assert kept == pytest.approx(1 - 0.933, abs=5e-4)
    assert ROW / GROUP == 2.25


def test_rows_of_queries_are_kept_beside_the_queries() -> None:
    """A row before its norm, its quotient and the row behind the norm, and the root."""
    sizes = {"l": 7, "d": 6, "n": 3, "K": 2, "V": 3, "c": 5, "R": 4, "r": 2}
    compressed, plain = (
        cm.activations(mixer).at(**{letter: sizes[letter] for letter in mixer.letters})
        for mixer in map(cm.mixer, ("mla+query-compression", "mla"))
    )
    assert compressed - plain == sizes["l"] * (3 * sizes["r"] + 1)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("s2.1.4.groups", {"value": "2.26*2*128"}),
        ("T1.mla", {"formula": "(c + 2*R)*t"}),
        ("T9.small.mla", {"value": "15.7"}),
        ("s2.1.2.queries", {"relation": "<"}),
        ("abstract.cache", {"value": "94.4"}),
    ],
)
def test_an_altered_claim_disagrees(name: str, changed: dict[str, str]) -> None:
    assert check(replace(CLAIM[name], **changed)).verdict == "disagrees"
