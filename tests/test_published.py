"""Does every published claim get its known verdict, and does an altered claim fail?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from costmodel import Unanswered
from costmodel.claims.asymptotics import OrderClaim
from costmodel.claims.comparisons import FormulaClaim
from costmodel.claims.numeric_claims import NumberClaim, RatioClaim
from costmodel.claims.published import VERDICTS, Verdict, check, summary, unrecorded, verify
from costmodel.claims.records import load
from costmodel.data import data_dir
from costmodel.errors import DataMissing, PublishedError
from costmodel.language.formula_text import parse
from tests.stand_ins import Instead

DERIVED = {
    "v1.T3.self-attention.add.sum": "4*d**2*l + d*l**2 - 4*d*l - l*n",
    "v1.T3.extractor.add": "d**2*l**2/2 + 5*d**2*l/2 - 3*d*l",
    "v1.s7.most.parameters": "iff l > 2",
    "v1.s7.most.training.mul": "iff l > 3*d/(d - 2) and d >= 3",
    "v1.s7.most.training.add": "iff l > (3*d**2 - 2*d - 2*n)/(d**2 - 2*d) and d >= 3",
    "v1.s7.most.training.total": "iff l > (6*d**2 - 2*d + n)/(2*d**2 - 4*d - 3*n) "
    "and 2*d**2 > 4*d + 3*n",
    "v1.s7.most.inference.mul": "iff t > (2*d - 1)/(d - 2) and d >= 3",
    "v1.s7.most.inference.add": "iff t > (2*d**2 - 2*d - n)/(d**2 - 2*d) and d >= 3",
    "v1.s7.most.inference.total": "iff t > (4*d**2 - 3*d - n)/(2*d**2 - 4*d - 3*n) "
    "and 2*d**2 > 4*d + 3*n",
    "v1.s7.path.self-attention": "mul - sum - mul - sum - div - exp - sum - div"
    " - mul - sum - mul - sum",
    "v1.s7.path.extractor": "mul - sum - mul - mul - sum",
    "v2.s7.she.total.n1": "278888448 > 20947008",
    "v2.s7.she.total.n32": "278888448 > 21710848",
    "v2.s7.she.parameters": "2129920 > 65536",
    "v2.s7.he.total": "14647296 < 21710848",
    "v2.s7.he.parameters": "65536 = 65536",
    "v2.s7.we.total": "10469376 < 20947008",
    "v2.s7.we.parameters": "49152 < 65536",
    "v2.s7.me.total": "2097152/20947008",
    "v2.s7.me.parameters": "128/65536 = 1/512",
    "v2.s8.he.parameters": "65536 = 65536",
    "v2.abstract.path.he": "7 steps < 12 steps",
    "v2.abstract.path.we": "5 steps < 12 steps",
    "v2.s7.path.me-shorter": "2 steps < 12 steps",
    # 120000 x 64 windows of 128 tokens, of 8.4 million tokens: 983,040,000 / 8,400,000.
    "v1.s6.T1.epochs": "0.914286",
    "v1.s6.T1.epochs.tokens": "117.029",
    # Embedding and head 5000 x 128 each, positions 128 x 128; 6 layers of 4 x 128^2, or of
    # (128 + 2) x 128^2, and of 2 x 128 x 512.
    "v1.s8.network.parameters.n8": "14862336 > 2476032",
    "v1.s8.network.parameters.n1": "14862336 > 2476032",
}

NOTES = {
    "v1.T3.self-attention.mul": "equal for all sizes (polynomial identity)",
    "v1.T3.extractor.add.sum": "equals the derived count",
    "v1.s7.most.parameters": "at d = 128 from l = 3 on",
    "v1.s7.most.training.mul": "at d = 128 from l = 4 on",
    "v1.s7.most.training.total": "at d = 128, n = 1 from l = 4 on; at d = 128, n = 8 from l = 4 on",
    "v1.s7.most.inference.mul": "at d = 128 from t = 3 on",
    "v2.s7.he.total": "holds at every size",
    "v2.s7.he.parameters": "in general iff l = d",
    "v2.s7.we.parameters": "in general iff l < 2*d",
    "v2.s7.me.total": "a ratio of 1/9.988",
    "v2.s8.he.parameters": "misprint: section 8 shortens section 7",
}

COUNTEREXAMPLES = {
    "v1.s7.most.training.mul": {"d": 1, "l": 1},
    "v1.s7.most.inference.total": {"d": 1, "n": 1, "t": 1},
    "v1.s7.path.self-attention": {"step": 3},
    "v1.s7.path.extractor": {"step": 4},
    "v2.s8.he.parameters": {"d": 128, "l": 128, "n": 32},
    "v2.s7.he.parameters": {},
}

MISPRINTS = {
    "v1.s7.path.self-attention",
    "v1.s7.path.extractor",
    "v1.s6.T1.epochs.tokens",
    "v2.s8.he.parameters",
}

FILES = [data_dir("published") / f"chen-2023-{version}.json" for version in ("v1", "v2")]
"""The other sources have tests of their own in tests/published. The page
tables/generated/verification.md has the verdict of every claim, and
tests/test_verification_page.py compares the page with the command."""


@cache
def verdicts() -> dict[str, Verdict]:
    """Every claim's verdict, by its id."""
    return {verdict.id: verdict for verdict in verify(FILES)}


CLAIM: dict[str, Any] = {c.id: c for path in FILES for c in load(path)}
CHECKED = [c for c in CLAIM.values() if not c.left_open and not c.misprint]


@pytest.mark.parametrize(("name", "derived"), DERIVED.items())
def test_derived_formulas_equal_the_expected_ones(name: str, derived: str) -> None:
    assert verdicts()[name].derived == derived


@pytest.mark.parametrize(("name", "note"), NOTES.items())
def test_notes_say_why_a_claim_disagrees(name: str, note: str) -> None:
    assert note in verdicts()[name].note


@pytest.mark.parametrize(("name", "sizes"), COUNTEREXAMPLES.items())
def test_counterexamples_are_the_smallest_sizes(name: str, sizes: dict[str, int]) -> None:
    assert verdicts()[name].counterexample == sizes


def test_misprints_are_counted_openly_and_nothing_else_disagrees() -> None:
    every = list(verdicts().values())
    assert {v.id for v in every if v.misprint == "recorded"} == MISPRINTS
    assert all(v.note.startswith("misprint: ") for v in every if v.misprint)
    assert unrecorded(every) == []
    found = summary(every)
    assert found == {
        "claims": len(CLAIM),
        **{name: Counter(v.verdict for v in every)[name] for name in VERDICTS},
        "misprints": len(MISPRINTS),
        "stale": 0,
        "unrecorded": 0,
    }


def test_several_processes_give_the_verdicts_of_one_in_the_same_order() -> None:
    files = [data_dir("published") / f"{name}.json" for name in ("palm", "kimi-linear")]
    together = verify(files, processes=2)
    assert together == verify(files)
    assert len({(verdict.mixer, verdict.model) for verdict in together}) > 1


def test_what_is_not_checkable_says_why() -> None:
    for verdict in verdicts().values():
        if verdict.verdict == "not-checkable":
            assert len(verdict.note) > 40, verdict.id
            assert verdict.counterexample == {}, verdict.id


def test_every_formula_is_proven_for_all_sizes() -> None:
    for claim in CHECKED:
        if claim.kind == "formula":
            assert verdicts()[claim.id].note.startswith("equal for all sizes"), claim.id


@pytest.mark.parametrize("column", ["self-attention", "extractor"])
@pytest.mark.parametrize("quantity", ["mul", "add", "div", "exp"])
def test_table_4_summed_over_t_is_table_3(column: str, quantity: str) -> None:
    """Both tables as printed, compared with each other: no derivation takes part."""
    training = parse(CLAIM[f"v1.T3.{column}.{quantity}"].formula)
    inference = CLAIM[f"v1.T4.{column}.{quantity}"].formula
    summed = parse(f"sum({inference}, t, 1, l)")
    assert summed.poly() == training.poly()
    sizes = {"d": 6, "n": 3, "l": 7}
    assert summed.at(sizes) == training.at(sizes)


def of_all_training(mixer: int) -> int:
    """The forward passes of Table 1's training, the operations of a mixer's sublayer being given.

    Of a window: one-hot rows times the embedding (u d products a token), positions added; 6 layers
    with two residual sums and an FFN without biases, of c hidden units, each compared with 0; the
    head; softmax, an exponential and a division a score; the mean of l logarithms.
    """
    u, l, d, c, m = 5000, 128, 128, 512, 6
    embedding = l * u * d + l * (u - 1) * d + l * d
    ffn = 2 * l * d * c + l * c * (d - 1) + l * d * (c - 1) + l * c
    head = l * d * u + l * (d - 1) * u + l * (u + (u - 1) + u)
    window = embedding + m * (mixer + ffn + 2 * l * d) + head + l + (l - 1) + 1
    positions = l * l * d + l * (l - 1) * d
    return 120000 * 64 * window + positions


def test_operations_of_all_training() -> None:
    """With the totals at d = l = 128 of version 2's section 7, and 21,119,488 for 8 heads."""
    she = of_all_training(278_888_448)
    for n, mixer in ((8, 21_119_488), (1, 20_947_008)):
        derived = verdicts()[f"v1.s8.network.total.n{n}"].derived
        assert derived == f"{she} > {of_all_training(mixer)}"


def of_a_step(parameters: int, mixer: int) -> int:
    """Bytes of a training step of Table 1, whose mixer keeps so many numbers of one window.

    A window keeps its one-hot rows; of each layer the mixer's, the FFN's input and hidden rows; the
    head's input; powers and probabilities of the softmax with the powers' sums; and the targets
    with their probabilities. Parameters are there four times: a gradient, and two numbers of AdamW.
    """
    u, l, d, c, m = 5000, 128, 128, 512, 6
    window = l * u + m * (mixer + l * d + l * c) + l * d + 2 * l * u + l + 2 * l
    return 4 * (4 * parameters + 64 * window)


KEPT = {
    # Input, queries, keys, values and the heads' output; of each head's causal pairs an exponential
    # and a weight, and the exponentials' sum of each row.
    "self-attention-n8": (2_476_032, 5 * 128**2 + 8 * (128 * 129 + 128)),
    "self-attention-n1": (2_476_032, 5 * 128**2 + 1 * (128 * 129 + 128)),
    # Input, extraction, the factor of the adjustment, and its product, which W_out maps.
    "extractor": (14_862_336, 4 * 128**2),
    "extractor-no-output": (14_862_336 - 6 * 128**2, 3 * 128**2),
    "extraction": (14_862_336 - 12 * 128**2, 128**2),
}


@pytest.mark.parametrize("name", KEPT)
def test_memory_of_a_training_step(name: str) -> None:
    verdict = verdicts()[f"v1.s6.card.{name}"]
    assert int(verdict.derived) == of_a_step(*KEPT[name]) < 6 * 10**9


def altered(claim: Any) -> Any:
    """The same claim, with one thing changed so that it is wrong."""
    if claim.kind == "formula":
        return replace(claim, formula=f"{claim.formula} + 1")
    if claim.kind == "path":
        return replace(claim, steps=f"{claim.steps} exp")
    if claim.kind == "ratio":
        return replace(claim, value="1/11")
    if claim.kind == "order":
        return replace(claim, formula="l" if claim.relation else f"{claim.formula}*l")
    if claim.kind == "value":
        return replace(claim, value=f"1{claim.value}")
    return replace(claim, relation={"<": ">", ">": "<", "=": "<"}[claim.relation])


ONE_OF_A_KIND = {c.kind: c for c in CHECKED if c.model}
"""Of the claims about networks, which take longest, one of each kind."""


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    "claim", [*(c for c in CHECKED if not c.model), *ONE_OF_A_KIND.values()], ids=lambda c: c.id
)
def test_an_altered_claim_disagrees(claim: Any) -> None:
    verdict = check(altered(claim))
    assert verdict.verdict == "disagrees"
    assert verdict.derived
    assert unrecorded([verdict]) == [verdict]
    if claim.kind == "formula":
        letters = parse(claim.formula).letters
        assert {k: v for k, v in verdict.counterexample.items() if k in letters} == dict.fromkeys(
            letters, 1
        )
    elif claim.kind not in ("order", "value") and not claim.model:
        of_steps = claim.quantity == "critical_path" and claim.kind != "path"
        assert verdict.counterexample or of_steps


ALTERED = {
    "l**2*d + 4*l*d**2": {"d": 1, "l": 1},
    "l**2*d + 4*l*d**2 + l*d + (l - 1)*(d - 2)": {"d": 1, "l": 2},
    "l**2*d + 4*l*d**2 + l*d + (l - 1)*(d - 1)": {"d": 2, "l": 2},
    "l**2*d + 4*l*d**2 + l*d + (n - 1)": {"d": 2, "l": 1, "n": 2},
    "l**2*d + 4*l*d**2 + l*d/(l - 1)*(l - 1)": {"d": 1, "l": 1},
    "l**2*d + 4*l*d**2 + l*d + floor(l/5)": {"d": 1, "l": 5},
}


@pytest.mark.parametrize(("formula", "sizes"), ALTERED.items())
def test_counterexample_is_the_smallest(formula: str, sizes: dict[str, int]) -> None:
    verdict = check(replace(CLAIM["v1.T3.self-attention.mul"], formula=formula))
    assert verdict.verdict == "disagrees"
    assert verdict.counterexample == sizes


def test_a_wrong_simplification_disagrees() -> None:
    verdict = check(replace(CLAIM["v1.T3.self-attention.mul.sum"], equals="l**2*d + 4*l*d**2"))
    assert verdict.verdict == "disagrees"
    assert verdict.note == "its simplification gives 5 there, the equations 6"


def test_equal_without_a_proof_says_so() -> None:
    formula = "(l**2*d + 4*l*d**2 + l*d)*(l + d)/(l + d)"
    verdict = check(replace(CLAIM["v1.T3.self-attention.mul"], formula=formula))
    assert verdict.verdict == "agrees"
    assert verdict.note.endswith("smallest sizes; no proof for all")


UNDER = {
    ("self-attention", "div", "n*sum(t, t, 1, l)"): ("strict", "scale=mul"),
    ("self-attention", "exp", "n*l**2"): ("strict", "dense"),
    ("she", "add", "1/2*l**2*d**2 + 5/2*l*d**2"): ("mac",),
    ("she", "mul", "l**2*d**2 + 2*l*d**2 + l*d"): ("strict", "dense"),
}


@pytest.mark.parametrize(("what", "conventions"), UNDER.items())
def test_agrees_under_another_convention(
    what: tuple[str, str, str], conventions: tuple[str, ...]
) -> None:
    mixer, quantity, formula = what
    claim = FormulaClaim(
        id="x", source="a paper", place="a table", claimed="", mixer=mixer, phase="training",
        quantity=quantity, formula=formula,
    )  # fmt: skip
    verdict = check(claim)
    assert (verdict.verdict, verdict.conventions) == ("agrees-under", conventions)
    assert "; not under strict; the expression gives " in verdict.note
    assert unrecorded([verdict]) == []


@pytest.mark.parametrize(
    ("value", "expected"), [("278888448", "agrees"), ("278888449", "disagrees")]
)
def test_a_claimed_number_agrees_only_if_it_is_exact(value: str, expected: str) -> None:
    claim = NumberClaim(
        id="x", source="a paper", place="a table", claimed=value, mixer="she", phase="training",
        quantity="total", value=value, sizes={"d": 128, "l": 128},
    )  # fmt: skip
    verdict = check(claim)
    assert (verdict.verdict, verdict.derived) == (expected, "278888448")


RATIOS = {"1/9": "disagrees", "1/10": "agrees", "1/11": "disagrees"}


@pytest.mark.parametrize(("value", "expected"), RATIOS.items())
def test_a_ratio_is_rounded_to_one_part_in_n(value: str, expected: str) -> None:
    assert check(replace(CLAIM["v2.s7.me.total"], value=value)).verdict == expected


def test_a_misprint_that_agrees_is_stale() -> None:
    claim = CLAIM["v1.T3.self-attention.mul"]
    verdict = check(replace(claim, misprint={"reason": "none", "derived": "0"}))
    assert (verdict.verdict, verdict.misprint) == ("agrees", "stale")
    assert verdict.note.startswith("stale misprint: ")
    assert unrecorded([verdict]) == [verdict]
    assert summary([verdict])["stale"] == summary([verdict])["unrecorded"] == 1


def test_a_misprint_with_another_derived_value_is_stale() -> None:
    claim = CLAIM["v1.s7.path.extractor"]
    verdict = check(replace(claim, misprint={**claim.misprint, "derived": "mul - sum"}))
    assert (verdict.verdict, verdict.misprint) == ("disagrees", "stale")
    assert unrecorded([verdict]) == [verdict]


def test_a_mixer_that_is_lacking_no_longer_is_stale() -> None:
    """`Fastformer` is in a title, and no title has `Star-Transformer`."""
    claim = OrderClaim(
        id="x", source="a paper", place="section 1", claimed="O(l)", lacks="Star-Transformer"
    )
    verdict = check(claim)
    assert (verdict.verdict, verdict.misprint) == ("not-checkable", "")
    assert verdict.note.startswith("Star-Transformer is not among the mixers")
    there = check(replace(claim, lacks="fastformer"))
    assert there.misprint == "stale" and there.note.endswith("and the catalogue has fastformer")
    assert check(replace(claim, lacks="Fastform")).misprint == ""
    assert unrecorded([there]) == [there]


@pytest.mark.parametrize(
    ("form", "formula", "verdict"),
    [("fft", "l^2", "agrees"), ("fft", "l", "disagrees"), ("direct", "l^2", "agrees-under"),
     ("direct", "l^2*log(l)", "agrees"), ("direct", "l^3", "agrees")],
)  # fmt: skip
def test_subquadratic_is_slower_than_a_square(form: str, formula: str, verdict: str) -> None:
    found = check(replace(CLAIM["v1.s2.hyena"], form=form, formula=formula))
    assert found.verdict == verdict
    assert ("does not grow" in found.note) == (verdict != "agrees")


@pytest.mark.parametrize(
    ("formula", "as_", "verdict"),
    [("log(l)", "l", "agrees-in-limit"), ("log(l)", "sqrt(l)", "agrees-in-limit"),
     ("1", "l", "disagrees"), ("log(l)", "l*d", "not-checkable")],
)  # fmt: skip
def test_a_size_grows_inside_logarithms_too(formula: str, as_: str, verdict: str) -> None:
    """A softmax over blocks of B rows waits for ceil_log2(B) additions."""
    claim = OrderClaim(
        id="x", source="a paper", place="a table", claimed=f"O({formula})", mixer="local-attention",
        phase="training", quantity="span", formula=formula, growing={"B": as_},
    )  # fmt: skip
    assert check(claim).verdict == verdict


def test_an_order_has_no_other_relation() -> None:
    with pytest.raises(ValueError, match="relation '>' beside O"):
        replace(CLAIM["v1.s2.hyena"], relation=">").validate()


def test_a_reconstruction_without_an_answer_says_why() -> None:
    claim = FormulaClaim(
        id="x", source="a paper", place="a table", claimed="", mixer="hyena", form="fft",
        phase="inference", quantity="critical_path", formula="l", unchecked="cut off",
        reconstruction="l",
    )  # fmt: skip
    verdict = check(claim)
    assert verdict.verdict == "not-checkable"
    assert verdict.note.startswith("cut off; l is not compared: form 'fft' transforms the whole")


def test_a_reconstruction_takes_the_place_of_the_whole_formula() -> None:
    """ME has l parameters: `equals` is behind the cut formula, and not behind ours."""
    claim = FormulaClaim(
        id="x", source="a paper", place="a table", claimed="", mixer="me", quantity="parameters",
        formula="l + l", equals="2*l", unchecked="cut off", reconstruction="l",
    )  # fmt: skip
    assert check(claim).note == "cut off. l equals the derived count"


def test_a_threshold_is_no_equation() -> None:
    with pytest.raises(ValueError, match="relation '=': a claim of kind threshold takes > or <"):
        replace(CLAIM["v1.s7.most.parameters"], relation="=").validate()


@pytest.mark.parametrize("growing", [{"k": "sqrt(l)"}, {"n": "k"}])
def test_only_sizes_of_the_mixer_grow(growing: dict[str, str]) -> None:
    claim = OrderClaim(
        id="x", source="a paper", place="a table", claimed="O(l^2)", mixer="self-attention",
        phase="training", quantity="mul", formula="l^2*d", growing=growing,
    )  # fmt: skip
    with pytest.raises(PublishedError, match="k is no size of self-attention: its sizes are b, l"):
        check(claim)


def test_an_order_that_names_every_size_has_none_fixed() -> None:
    claim = OrderClaim(
        id="x", source="a paper", place="a table", claimed="O(l^2)", mixer="self-attention",
        phase="training", quantity="mul", formula="l^2*d^2", relation="<",
    )  # fmt: skip
    assert check(claim).note == "the derived count grows more slowly than l^2*d^2"


@pytest.mark.parametrize(
    ("quantity", "value", "choices"),
    [("compare", "-176", ("strict", "sort=merge")), ("div", "136", ("strict", "norm=rsqrt"))],
)
def test_choices_of_the_other_mixer_are_tried_too(
    quantity: str, value: str, choices: tuple[str, ...]
) -> None:
    """Self-attention compares nothing and has no norm; Reformer sorts, by a network or by merging,
    and divides by lengths, or multiplies by their reciprocals."""
    claim = RatioClaim(
        id="x", source="a paper", place="a table", claimed="", mixer="self-attention",
        against="reformer", phase="training", quantity=quantity, value=value,
        compare="difference", sizes={"l": 16, "d": 2, "n": 1, "C": 2, "m": 2},
    )  # fmt: skip
    verdict = check(claim)
    assert (verdict.verdict, verdict.conventions) == ("agrees-under", choices)


def test_a_misprint_without_its_record_fails() -> None:
    for name in MISPRINTS:
        verdict = check(replace(CLAIM[name], misprint={}))
        assert verdict.verdict == "disagrees"
        assert unrecorded([verdict]) == [verdict]


def test_a_question_without_an_answer_is_not_checkable(instead: Instead) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unanswered("the transform spans the token axis")

    instead(derive=refuse)
    verdict = check(CLAIM["v1.T4.extractor.mul"])
    assert (verdict.verdict, verdict.derived) == ("not-checkable", "")
    assert verdict.note == "the transform spans the token axis"


def written(folder: Path, *claims: dict[str, Any]) -> Path:
    path = folder / "claims.json"
    data = {"schema": 1, "source": "a paper", "convention": ["strict"], "claims": claims}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


GOOD = {
    "id": "a", "place": "Table 1", "kind": "formula", "claimed": "l", "mixer": "me",
    "quantity": "parameters", "formula": "l",
}  # fmt: skip


def test_verify_reads_given_files(tmp_path: Path) -> None:
    (verdict,) = verify([written(tmp_path, GOOD)])
    assert (verdict.id, verdict.source, verdict.verdict) == ("a", "a paper", "agrees")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (
        {"colour": "red"},
        "unknown key colour: known are against, against_mixer",
    ),
    "text for an object": ({"sizes": "l = 3"}, "'sizes' must be an object, got 'l = 3'"),
    "text for true": (
        {"kind": "order", "bound": "false"},
        "'bound' must be true or false, got 'false'",
    ),
    "number for a text": (
        {"formula": 3},
        "'formula' must be a string, got 3, a number: write \"3\"",
    ),
    "unknown kind": ({"kind": "guess"}, "kind 'guess': expected one of formula"),
    "missing key": ({"formula": ""}, "a claim of kind formula needs formula"),
    "bad formula": ({"formula": "l +"}, "expected a number"),
    "bad size": ({"sizes": {"l": 0}}, "size l must lie in 1"),
    "bad relation": ({"kind": "order", "relation": "~"}, "relation '~': expected >, < or ="),
    "key of another kind": ({"letter": "l"}, "'letter' is for a claim of kind interval"),
    "bad misprint": (
        {"misprint": {"reason": "x"}},
        "'misprint' takes the keys reason and derived, got reason",
    ),
    "unknown quantity": ({"quantity": "joy", "phase": "training"}, "unknown quantity 'joy'"),
    "unknown phase": ({"quantity": "mul", "phase": "later"}, "unknown phase 'later'"),
    "unknown mixer": ({"mixer": "mee"}, "unknown mixer 'mee'"),
    "unknown mixer, not checked": (
        {"mixer": "mee", "unchecked": "measured"},
        "claim a: unknown mixer 'mee'",
    ),
    "unknown network, not checked": (
        {"model": "mee", "unchecked": "measured"},
        "claim a: unknown network 'mee'",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_data_are_refused_with_the_claim(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(PublishedError) as caught:
        verify([written(tmp_path, {**GOOD, **change})])
    assert message in str(caught.value)
    assert "claim" in str(caught.value)


def test_ids_are_unique(tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match="claims with the same id: a"):
        verify([written(tmp_path, GOOD, GOOD)])


def test_a_record_that_lacks_keys_is_named_with_them(tmp_path: Path) -> None:
    short = {key: value for key, value in GOOD.items() if key not in ("id", "kind")}
    for claims, said in (
        ([GOOD, short], "claims.json, claim number 2 lacks id, kind: every claim needs these keys"),
        (
            [{"id": "b"}],
            "claims.json, claim b lacks place, kind, claimed: every claim needs these keys",
        ),
        (["b"], "claims.json, claim number 1: expected an object with keys, got 'b'"),
    ):
        with pytest.raises(PublishedError) as caught:
            verify([written(tmp_path, *claims)])
        assert str(caught.value) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": None}, "'source' must name the paper"),
        ({"convention": "strict"}, "'convention' must be a list of names"),
        ({"claims": {}}, "'claims' must be a list of claims"),
    ],
)
def test_a_file_says_where_its_claims_are_from(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, GOOD)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}), encoding="utf-8")
    with pytest.raises(PublishedError, match=said):
        verify([path])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2, "claims": []}'])
def test_files_that_are_no_claims(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PublishedError, match="claims"):
        verify([path])
    with pytest.raises(PublishedError, match="not a readable file of claims"):
        verify([tmp_path / "absent.json"])


def test_data_dir_finds_published_tables_only() -> None:
    assert (data_dir("published") / "README.md").is_file()
    with pytest.raises(DataMissing, match="no tables 'absent'"):
        data_dir("absent")


FROM_66_ON = {
    "id": "x", "place": "a line", "claimed": "cheaper from 66 tokens on", "kind": "threshold",
    "mixer": "linear-attention", "against": "self-attention", "quantity": "total",
    "relation": "<", "sizes": {"d": 1024, "n": 16}, "phase": "inference",
}  # fmt: skip


@pytest.mark.parametrize(("start", "said"), [(66, "agrees"), (67, "disagrees")])
def test_a_record_says_from_which_length_on(start: int, said: str, tmp_path: Path) -> None:
    (read,) = load(written(tmp_path, {**FROM_66_ON, "start": start}))
    assert check(read).verdict == said


@pytest.mark.parametrize("start", ["66", True])
def test_a_length_of_a_record_is_a_number(start: object, tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match="'start' must be a whole number, got "):
        load(written(tmp_path, {**FROM_66_ON, "start": start}))
