"""Do the formulas that training frameworks have for Gated DeltaNet get the verdicts of a count by
hand?"""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm
from costmodel.claims.records import load
from costmodel.data import data_dir
from tests.verdicts import on_the_page

PATH = data_dir("published") / "gated-deltanet-counters.json"
SIZES = {"d": 11, "n": 6, "g": 3, "K": 5, "V": 7, "k": 4}


def test_they_are_known_to_disagree() -> None:
    assert {*on_the_page(PATH).values()} == {"disagrees (recorded misprint)"}


@pytest.mark.parametrize("claim", load(PATH), ids=lambda claim: claim.id)
def test_they_have_another_recurrence_and_leave_out_the_rest(claim: Any) -> None:
    """Maps and convolutions are ours; theirs have 8 KV or 8 V^2 a head for the 7 KV of the
    recurrence. They lack silu of q, k and v (4 operations an entry), two l2 norms of a key head
    (3K + 2 each) and the scale, beta (3), the decay (6), two operations for each entry of v, the
    norm of o (4V + 3), and its gate (5V)."""
    n, g, K, V = (SIZES[letter] for letter in "ngKV")
    theirs = eval(claim.formula.replace("^", "**"), {}, SIZES)
    core = 8 * n * V * V if "megatron" in claim.id else 8 * n * K * V
    rest = 4 * (2 * g * K + n * V) + g * (2 * (3 * K + 2) + K) + n * (3 + 6 + 2 * V + 4 * V + 3)
    ours = cm.count(cm.mixer("gated-deltanet"), "inference", convention="mac").at(**SIZES, t=9)
    assert ours.total == theirs - core + 7 * n * K * V + rest + 5 * n * V
