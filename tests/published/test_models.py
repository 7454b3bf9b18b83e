"""Do printed formulas and figures of whole models hold, in letters and in numbers?"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from costmodel.claims.comparisons import FormulaClaim
from costmodel.claims.published import Verdict, verify
from costmodel.claims.records import load
from costmodel.data import data_dir
from costmodel.errors import PublishedError
from costmodel.networks import model
from tests.models.test_architectures import TINY, written

SOURCES = ("gpt-3", "chinchilla", "palm", "narayanan-2021", "kimi-linear")
PATHS = [data_dir("published") / f"{name}.json" for name in SOURCES]
CLAIMS: dict[str, Any] = {claim.id: claim for path in PATHS for claim in load(path)}


@cache
def verdicts() -> tuple[Verdict, ...]:
    """The verdicts of all claims of these sources."""
    return tuple(verify(PATHS))


LETTERS = {
    "palm.b.flops": "6N + 12LHQT",
    "narayanan-2021.flops.recomputed": "u/(16*L*d)",
    "narayanan-2021.flops.kept": "u/(12*L*d)",
    "chinchilla.f.products": "16*l*d^2",
}
"""Formulas of whole training steps or forward passes that hold at all sizes, and a part of each."""


@pytest.mark.parametrize("name", LETTERS)
def test_a_formula_of_a_model_is_an_identity(name: str) -> None:
    found = {one.id: one for one in verdicts()}[name]
    assert found.verdict == "agrees" and "equal for all sizes" in found.note


def test_the_factor_of_the_head_is_that_of_the_passes_over_layers() -> None:
    """16 beside 96, 12 beside 72: each with the other's factor disagrees."""
    for name, wrong in (("recomputed", ("/(16", "/(12")), ("kept", ("/(12", "/(16"))):
        claim = CLAIMS[f"narayanan-2021.flops.{name}"]
        assert isinstance(claim, FormulaClaim)
        altered = replace(claim, formula=claim.formula.replace(*wrong))
        assert claim.finding(claim.interpretation).holds
        assert not altered.finding(altered.interpretation).holds
    without = replace(claim, recompute="layers")
    assert not without.finding(without.interpretation).holds


def test_disagreements_are_recorded() -> None:
    found = [one for one in verdicts() if one.source in SOURCES]
    assert {one.source for one in found} == {*SOURCES}
    wrong = {one.id for one in found if one.verdict == "disagrees"}
    assert wrong == {
        "gpt-3.t2.1.medium.params", "gpt-3.t2.1.xl.params", "gpt-3.t2.1.175b.params",
        "gpt-3.d.1.xl.params", "gpt-3.d.1.13b.params", "chinchilla.f.forward",
        "narayanan-2021.parameters",
    }  # fmt: skip
    under = {one.id: one.conventions for one in found if one.verdict == "agrees-under"}
    assert "scale=folded" in under["chinchilla.f.attention"]
    assert under["kimi-linear.card.cache"][-1] == "rounded up"


def test_the_heads_and_widths_that_give_the_printed_parameters() -> None:
    """Table D.1's 1,320 and 12,850 million are those of 16 heads and of d = 5120."""
    xl = model("gpt-3-large", sizes={"L": 24, "d": 2048, "n": 16}).parameters().at()
    large = model("gpt-3-large", sizes={"L": 40, "d": 5120, "n": 40}).parameters().at()
    assert round(xl, -7) == 1_320_000_000 and round(large, -7) == 12_850_000_000


def of_a_file(folder: Path, **record: Any) -> Any:
    path = folder / "claims.json"
    entry = {"id": "mine", "place": "table 1", "claimed": "so many", **record}
    path.write_text(json.dumps({"schema": 1, "source": "mine", "claims": [entry]}))
    (found,) = load(path)
    return found


def test_a_claim_about_a_configuration(tmp_path: Path) -> None:
    config = str(written(tmp_path, {"model_type": "llama", **TINY}))
    about = {"kind": "model", "model": config, "quantity": "span", "phase": "inference"}
    claim = of_a_file(tmp_path, **about, sizes={"t": 5}, value="1")
    found = claim.finding(claim.interpretation)
    assert not found.holds and int(found.derived) > 100
    assert (
        of_a_file(tmp_path, **about, sizes={"t": 5}, value=found.derived)
        .finding(claim.interpretation)
        .holds
    )


REFUSED = [
    ({"recompute": "all"}, "'recompute' must be \"layers\", got 'all'"),
    (
        {"recompute": "layers", "model": "", "mixer": "she", "kind": "number", "sizes": {"l": 8}},
        "give the key 'model'",
    ),
    ({"recompute": "layers", "phase": "training"}, "give backward or training-step as the phase"),
    ({"quantity": "spam"}, "unknown quantity 'spam'"),
    ({"model": "nowhere.json"}, "not a readable configuration"),
    ({"model": "nowhere.json", "mixer": "she"}, "leave out 'mixer'"),
]


@pytest.mark.parametrize(("change", "expected"), REFUSED)
def test_claims_about_models_that_cannot_be_read(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    stated = {"kind": "model", "model": "gpt-2", "quantity": "total", "value": "1",
              "phase": "training-step"}  # fmt: skip

    def checked() -> None:
        claim = of_a_file(tmp_path, **{**stated, **change})
        claim.finding(claim.interpretation)

    with pytest.raises(PublishedError, match=expected):
        checked()
