"""Do the complexities that abstracts claim get the verdicts that counting by hand gives?

Time: every layer has linear maps of d^2 operations a token, which an O(N) leaves out. Space: what a
sum over pairs keeps is a number for each pair, of each head or channel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from costmodel.claims.published import Verdict, check, unrecorded, verify
from costmodel.claims.records import load
from costmodel.data import data_dir

PATH = data_dir("published") / "abstracts.json"
CLAIM: dict[str, Any] = {claim.id.removeprefix("abstracts."): claim for claim in load(PATH)}

RUNNING = ("causal", "gate")

EXPECTED = {
    # r rows read l tokens, and l tokens read r rows.
    "set-transformer.time": ("agrees-in-limit", "O(d**2*l + d*l*r)"),
    "dynamic-convolution.time": ("agrees-in-limit", "O(d*k*l*n + d**2*l)"),
    "self-attention.time": ("agrees-in-limit", "O(d**2*l + d*l**2)"),
    "strided-attention.time": ("agrees-in-limit", "O(d**2*l + B*d*l + d*floor(l/B)*l)"),
    "strided-attention.space": ("agrees-in-limit", "O(B*l*n + floor((l - 1)/B)*l*n + d*l)"),
    # Of s rows of each of l/B blocks, and of B rows.
    "fixed-attention.time": ("agrees-in-limit", "O(d*floor(l/B)*l*s + d**2*l + B*d*l)"),
    "fixed-attention.space": ("agrees-in-limit", "O(floor((l - 1)/B)*l*n*s + B*l*n + d*l)"),
    "longformer.time": ("agrees-in-limit", "O(d**2*l + d*l*s + d*l*w)"),
    "bigbird.time": ("agrees-in-limit", "O(d**2*l + c*d*l + d*l*s + d*l*w)"),
    "linformer.time": ("agrees-in-limit", "O(d**2*l + d*l*r)"),
    "linformer.space": ("agrees-in-limit", "O(l*n*r + d*l)"),
    "linear-attention.time": ("agrees-in-limit", "O(d**2*l)"),
    "linear-attention.space": ("agrees-in-limit", "O(d**2*l/n)"),
    "performer.time": ("agrees-in-limit", "O(d**2*l + d*l*m)"),
    "performer.space": ("agrees-in-limit", "O(l*m*n + d*l + d*m)"),
    "rfa.time": ("agrees-in-limit", "O(d**2*l + d*l*m)"),
    "rfa.space": ("agrees-in-limit", "O(l*m*n + d*l + d*m)"),
    **{f"rfa-{kind}.time": ("agrees-in-limit", "O(d**2*l + d*l*m)") for kind in RUNNING},
    # A recurrence has the sums of every row.
    **{f"rfa-{kind}.space": ("agrees-in-limit", "O(d*l*m)") for kind in RUNNING},
    **{f"rfa-{kind}.decoding": ("agrees-in-limit", "O(d**2 + d*m)") for kind in RUNNING},
    **{f"rfa-{kind}.footprint": ("agrees-in-limit", "O(d*m)") for kind in RUNNING},
    "aft.space": ("agrees-in-limit", "O(l**2 + d*l)"),
    "fastformer.time": ("agrees-in-limit", "O(d**2*l)"),
    "mega-chunk.time": ("agrees-in-limit", "O(d**2*l*v + C*d*l*v + C*K*l + K*d*l + N*d*l)"),
    "mega-chunk.space": ("agrees-in-limit", "O(N*d*l + d*l*v + C*l + K*l)"),
    "hyena.time": (
        "agrees",
        "O(F**2*l + d**2*l + F*d*l + ceil_log2(l)*d*2**ceil_log2(l) + d*k*l)",
    ),
    "mamba.time": ("agrees-in-limit", "O(E*N*l + E*R*l + E*d*l + E*k*l)"),
    "rwkv-7.token": ("agrees-in-limit", "O(d**2 + A*d + G*d)"),
    "rwkv-7.state": ("agrees-in-limit", "O(d**2/n)"),
    "mlstm.time": ("agrees-in-limit", "O(K*d*l*n + d**2*l)"),
    "mlstm.state": ("agrees-in-limit", "O(K*d)"),
}
"""Claim -> verdict and derived order of growth."""


@cache
def verdicts() -> dict[str, Verdict]:
    """Every claim's verdict, by its id in the file."""
    return {verdict.id.removeprefix("abstracts."): verdict for verdict in verify([PATH])}


def test_every_claim_has_its_expected_verdict() -> None:
    assert {name: (v.verdict, v.derived) for name, v in verdicts().items()} == EXPECTED
    assert unrecorded([*verdicts().values()]) == []


def test_what_is_held_fixed_is_said() -> None:
    """A limit is told by the sizes that stay as they are, or by those that outgrow others."""
    for name, verdict in verdicts().items():
        if verdict.verdict == "agrees-in-limit":
            assert "being fixed" in verdict.note or " >> " in verdict.note, name


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", EXPECTED)
def test_less_than_it_grows_is_not_enough(name: str) -> None:
    claim = CLAIM[name]
    less = "1" if claim.formula in ("l", "l*d") else "l"
    assert check(replace(claim, formula=less)).verdict in ("disagrees", "agrees-under")


def test_attention_free_as_it_is_printed_keeps_every_pair_of_every_channel() -> None:
    found = check(replace(CLAIM["aft.space"], form="direct"))
    assert (found.verdict, found.derived) == ("disagrees", "O(d*l**2)")
