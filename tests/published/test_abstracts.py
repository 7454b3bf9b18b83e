"""Do the complexities that abstracts claim get the verdicts that counting by hand gives?

Time: every layer has linear maps of d^2 operations a token, which an O(N) leaves out. Space: what a
sum over pairs keeps is a number for each pair, of each head or channel.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.claims.published import Verdict, check
from tests.published.verdicts import claims_of, hold_verdicts, verdicts_of

SOURCE = "abstracts"
CLAIM = claims_of(SOURCE)


def verdicts() -> dict[str, Verdict]:
    """Every claim's verdict, by its name in the source."""
    return verdicts_of(SOURCE)


def test_verdicts_and_orders_equal_the_golden_file() -> None:
    hold_verdicts(SOURCE)


def test_every_claim_agrees() -> None:
    """Hyena's O(l log l) at once; the others while the other sizes stay as they are."""
    assert {name for name, v in verdicts().items() if v.verdict == "agrees"} == {"hyena.time"}
    assert {v.verdict for v in verdicts().values()} == {"agrees", "agrees-in-limit"}


def test_what_is_held_fixed_is_said() -> None:
    """A limit is told by the sizes that stay as they are, or by those that outgrow others."""
    for name, verdict in verdicts().items():
        if verdict.verdict == "agrees-in-limit":
            assert "being fixed" in verdict.note or " >> " in verdict.note, name


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", CLAIM)
def test_less_than_it_grows_is_not_enough(name: str) -> None:
    claim = CLAIM[name]
    less = "1" if claim.formula in ("l", "l*d") else "l"
    assert check(replace(claim, formula=less)).verdict in ("disagrees", "agrees-under")


def test_attention_free_as_it_is_printed_keeps_every_pair_of_every_channel() -> None:
    found = check(replace(CLAIM["aft.space"], form="direct"))
    assert (found.verdict, found.derived) == ("disagrees", "O(d*l**2)")
