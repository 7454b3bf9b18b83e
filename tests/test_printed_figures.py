"""Are printed figures of mixers and networks compared with the derived ones as printed?"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from costmodel.claims.claim import Claim
from costmodel.claims.numeric_claims import IntervalClaim
from costmodel.claims.printed_figures import printed_figure
from costmodel.claims.published import check
from costmodel.claims.records import KINDS
from costmodel.errors import PublishedError

READ = {
    ("65", "1e6", "printed"): (Fraction(64_500_000), Fraction(65_500_000)),
    ("3.3959", "1e6", "printed"): (Fraction(3_395_850), Fraction(3_395_950)),
    ("3.3e18", "", "printed"): (Fraction(325 * 10**16), Fraction(335 * 10**16)),
    ("+0.20", "", "printed"): (Fraction(39, 200), Fraction(41, 200)),
    ("-2.72", "", "printed"): (Fraction(-2725, 1000), Fraction(-2715, 1000)),
    ("30", "", "10"): (Fraction(25), Fraction(35)),
    ("1/512", "", ""): (Fraction(1, 512), Fraction(1, 512)),
}


@pytest.mark.parametrize(("text", "ends"), READ.items())
def test_a_figure_stands_for_an_interval(
    text: tuple[str, str, str], ends: tuple[Fraction, Fraction]
) -> None:
    figure = printed_figure(*text)
    assert (figure.low, figure.high) == ends
    step = Fraction(1, 10**6)
    assert figure.holds(ends[0]) and figure.holds(ends[1])
    assert not figure.holds(ends[0] - step) and not figure.holds(ends[1] + step)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (("1/512", "", "printed"), "rounding 'printed' needs a value in digits, got '1/512'"),
        (("65", "", "0"), "rounding needs a positive step, got '0'"),
        (("65", "million", ""), "expected a number, such as 1e6"),
        (("65 M", "", ""), "expected a number, or a formula"),
    ],
)
def test_a_bad_figure_is_refused(text: tuple[str, str, str], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        printed_figure(*text)
    assert said in str(caught.value)


def claim(kind: str, **keys: Any) -> Claim:
    return KINDS[kind](id="x", source="a paper", place="a table", claimed="as printed", **keys)


def ratio(value: str, **keys: Any) -> Claim:
    """Of ME and self-attention at d = l = 128: 128 parameters against 65,536."""
    base = {"mixer": "me", "against": "self-attention", "quantity": "parameters"}
    return claim("ratio", value=value, **{"sizes": {"d": 128, "l": 128}, **base, **keys})


RATIOS: list[tuple[Claim, str, str]] = [
    (ratio("1/512"), "agrees", "128/65536 = 1/512"),
    (ratio("1/511"), "disagrees", "128/65536"),
    (ratio("-65408", compare="difference"), "agrees", "-65408"),
    (ratio("-65409", compare="difference"), "disagrees", "-65408"),
    (ratio("-99.8", compare="percent", rounding="printed"), "agrees", "-99.8047 %"),
    (ratio("-99.9", compare="percent", rounding="printed"), "agrees-under", "-99.8047 %"),
    (ratio("-99.7", compare="percent", rounding="printed"), "disagrees", "-99.8047 %"),
    (ratio("-100", compare="percent", rounding="10"), "agrees", "-99.8047 %"),
    (ratio("1/10", relation="<"), "agrees", "128/65536"),
    (ratio("1/1000", relation="<"), "disagrees", "128/65536"),
    # l parameters are fewer than 4 d^2 / 2 for every l < 2 d^2.
    (ratio("1/2", relation="<", sizes={"d": 4}), "disagrees", "l against 64"),
    # WE has l d + 2 d^2 parameters; at l = 2 d that is 4 d^2, exactly self-attention's.
    (ratio("0", compare="percent", mixer="we", sizes={"l": 6, "d": 3}), "agrees", "0 %"),
    # VSA with v = 2: queries and keys of 2 d, 6 d^2 parameters: half as many again, at every d.
    (ratio("50", compare="percent", mixer="vsa", sizes={"v": 2}), "agrees",
     "6*d**2 against 4*d**2"),
    (ratio("51", compare="percent", mixer="vsa", sizes={"v": 2}), "disagrees",
     "6*d**2 against 4*d**2"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "verdict", "derived"), RATIOS)
def test_ratios_differences_and_percentages(said: Claim, verdict: str, derived: str) -> None:
    found = check(said)
    assert (found.verdict, found.derived) == (verdict, derived)


def test_what_is_cut_off_instead_of_rounded_is_told_apart() -> None:
    found = check(ratio("-99.9", compare="percent", rounding="printed"))
    assert found.conventions == ("strict", "rounded down")
    found = check(ratio("-99.80", compare="percent", rounding="printed"))
    assert (found.verdict, found.conventions) == ("agrees", ("strict",))


def test_the_first_sizes_at_which_an_inequality_fails() -> None:
    found = check(ratio("1/2", relation="<", sizes={"d": 4}))
    assert found.counterexample == {"d": 4, "l": 32}
    assert found.note == "in general iff l < 32"


def test_a_rounded_figure_needs_every_size() -> None:
    with pytest.raises(PublishedError, match="a rounded figure holds at given sizes only: give l"):
        check(ratio("1", compare="percent", rounding="printed", sizes={"d": 4}))


def test_a_number_may_be_given_for_several_sizes() -> None:
    said = claim("number", mixer="me", quantity="parameters", value="64", sizes={"l": [64, 65]})
    found = check(said)
    assert (found.verdict, found.counterexample) == ("disagrees", {"l": 65})


@pytest.mark.parametrize("value", ["1", "2/2", "1/1"])
def test_a_ratio_of_one_is_exact(value: str) -> None:
    """WE has l d + 2 d^2 parameters, self-attention 4 d^2: 44 and 64 at l = 3, d = 4."""
    found = check(ratio(value, mixer="we", sizes={"l": 3, "d": 4}))
    assert (found.verdict, found.counterexample) == ("disagrees", {"l": 3, "d": 4})


def test_a_ratio_fails_first_where_it_is_not_exact() -> None:
    """Of d = 2, ME's l parameters are 1/n of self-attention's 16 at l = 16/n only: at l = 1, they
    are 1/16 exactly."""
    found = check(ratio("1/16", sizes={"d": 2}))
    assert (found.verdict, found.counterexample) == ("disagrees", {"d": 2, "l": 2})
    # 17/16 rounds to 1, and is no 1: 16 = 4 d^2 parameters at d = 2.
    found = check(ratio("1/8", sizes={"d": 2}))
    assert found.counterexample == {"d": 2, "l": 1}


def test_a_ratio_over_zero_is_not_checkable() -> None:
    """ME takes no exponential, and no addition at l = 1, where self-attention takes some."""
    common = {"against": "me", "mixer": "self-attention", "phase": "training"}
    found = check(ratio("2", quantity="exp", sizes={"l": 4, "d": 4, "n": 1}, **common))
    assert found.verdict == "not-checkable"
    assert found.note == "me: exp is 0 at these sizes, so there is no ratio"
    found = check(ratio("2", quantity="add", sizes={"d": 4}, **common))
    assert (found.verdict, found.counterexample) == ("disagrees", {"d": 4, "l": 1, "n": 1})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "interval", "mixer": "she", "quantity": "parameters", "letter": "l",
          "sizes": {"d": [3, 4]}}, "a claim of kind interval takes one value of each size, and d"),
        ({"kind": "value", "formula": "2*l", "sizes": {"l": [2, 3]}},
         "a claim of kind value takes one value of each size, and l has a list"),
        ({"kind": "number", "mixer": "me", "quantity": "parameters", "sizes": {"l": []}},
         "size l has an empty list of values"),
    ],
)  # fmt: skip
def test_lists_of_sizes_that_a_claim_does_not_take(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        claim(**{"value": "4", **keys}).validate()


ARITHMETIC = [
    # Vaswani et al. 2017, Table 3: 12 hours on 8 GPUs of 9.5 TFLOPS; 3.5 days for the big model.
    ("12*3600*8*9.5e12", "3.3e18", "printed", "agrees"),
    ("3.5*86400*8*9.5e12", "2.3e19", "printed", "agrees"),
    ("12*3600*8*9.5e12", "3.2e18", "printed", "agrees-under"),
    ("12*3600*8*9.5e12", "3.4e18", "printed", "disagrees"),
    ("120000*64/8.4e6", "0.914", "printed", "agrees"),
    ("2^10", "1024", "", "agrees"),
]


@pytest.mark.parametrize(("formula", "value", "rounding", "verdict"), ARITHMETIC)
def test_plain_arithmetic_is_checked_as_printed(
    formula: str, value: str, rounding: str, verdict: str
) -> None:
    found = check(claim("value", formula=formula, value=value, rounding=rounding))
    assert found.verdict == verdict
    assert found.claimed == f"{formula} = {value}"


def test_arithmetic_with_sizes_left_open_says_so() -> None:
    with pytest.raises(PublishedError, match="no value was given for size l"):
        check(claim("value", formula="2*l", value="4"))
    assert check(claim("value", formula="2*l", value="4", sizes={"l": 2})).verdict == "agrees"


# Parameters of the thesis's confirmatory models (Terroa 2024, Tables 7.4 and 7.7), in millions and
# against the baseline in percent.
TERROA = [
    ("terroa-confirmatory", "3.3959", ""),
    ("terroa-ssa", "3.9202", "+15.44"),
    ("terroa-vlsa-1", "3.5270", "+3.86"),
    ("terroa-vlsa-2", "4.9688", "+46.32"),
    ("terroa-vlsa-3", "6.6727", "+96.49"),
]


@pytest.mark.parametrize(("model", "millions", "percent"), TERROA)
def test_a_network_has_the_printed_parameters(model: str, millions: str, percent: str) -> None:
    common = {"model": model, "quantity": "parameters", "rounding": "printed"}
    assert check(claim("model", value=millions, unit="1e6", **common)).verdict == "agrees"
    wrong = f"{millions[:-1]}{(int(millions[-1]) + 3) % 10}"
    assert check(claim("model", value=wrong, unit="1e6", **common)).verdict == "disagrees"
    if percent:
        against = {"against": "terroa-confirmatory", "compare": "percent"}
        assert check(claim("model", value=percent, **common, **against)).verdict == "agrees"


def test_networks_are_compared_and_their_mixers_replaced() -> None:
    # Two layers of the base Transformer: 14.7 million parameters (Vaswani et al. 2017, Table 2).
    base = {"model": "transformer-base", "quantity": "parameters", "unit": "1e6"}
    common = {**base, "rounding": "printed", "value": "15"}
    assert check(claim("model", against="transformer-c-l4", **common)).derived == "+14700544"
    # GPT-2: 12 d^2 of weights and 13 d of biases and norms a layer, beside its tables.
    formula = "u*d + 1024*d + L*(12*d^2 + 13*d) + 2*d"
    said = claim("formula", model="gpt-2", quantity="parameters", formula=formula)
    assert check(said).note == "equal for all sizes (polynomial identity)"
    # ME in place of self-attention in Chen's model: l instead of 4 d^2 parameters a layer.
    pair = {"model": "chen-v1", "mixer": "me", "against": "chen-v1", "quantity": "parameters"}
    found = check(claim("model", value="0", relation="<", sizes={"L": 1}, **pair))
    assert found.verdict == "agrees" and found.derived.startswith("-")


def test_networks_are_ordered_too() -> None:
    pair = {"model": "chen-v1", "mixer": "me", "against": "chen-v1", "phase": "training"}
    less = claim("ordering", relation="<", quantity="total", **pair)
    assert check(less).verdict == "agrees"
    more = claim("ordering", relation=">", quantity="total", **pair)
    assert check(more).verdict == "disagrees"


def test_other_sizes_of_a_network() -> None:
    found = check(claim("number", model="gpt-2", quantity="parameters", value="0", sizes={"L": 1}))
    # Tables of 50257 and 1024 rows, one layer of 12 d^2 + 13 d, the last norm of 2 d, d = 768.
    assert found.derived == str((50257 + 1024) * 768 + 12 * 768**2 + 13 * 768 + 2 * 768)


# Vaswani et al. 2017, Table 2: printed millions, N, d_model, d_ff.
TABLE_2 = {
    "transformer-base": (65, 6, 512, 2048),
    "transformer-c-l2": (36, 2, 512, 2048),
    "transformer-c-f1024": (53, 6, 512, 1024),
    "transformer-c-d1024": (168, 6, 1024, 2048),
    "transformer-big": (213, 6, 1024, 4096),
}


def without_embedding(layers: int, d: int, f: int) -> int:
    """4 d^2 for an attention, 2 d f + f + d for an FFN, 2 d for a norm; an encoder's layer has one
    attention and two norms, a decoder's two and three."""
    attention, ffn, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    return layers * (attention + ffn + 2 * norm + 2 * attention + ffn + 3 * norm)


def vocabulary(model: str, **keys: Any) -> Claim:
    claimed = str(TABLE_2[model][0])
    return IntervalClaim(
        id=model, source="vaswani", place="Table 2", claimed=claimed, model=model,
        quantity="parameters", letter="u", value=claimed, unit="1e6", rounding="printed", **keys,
    )  # fmt: skip


@pytest.mark.parametrize("model", TABLE_2)
def test_the_interval_of_a_vocabulary(model: str) -> None:
    millions, *sizes = TABLE_2[model]
    rest, width = without_embedding(*sizes), sizes[1]
    low = -((rest - millions * 10**6 + 500_000) // width)
    high = (millions * 10**6 + 500_000 - rest) // width
    found = check(vocabulary(model))
    assert (found.verdict, found.derived) == ("agrees", f"u = {low}..{high}")


def test_a_printed_vocabulary_is_held_against_the_interval() -> None:
    found = check(vocabulary("transformer-base", sizes={"u": 37_000}))
    assert (found.verdict, found.counterexample) == ("disagrees", {"u": 37_000})
    assert found.there["derived"] == str(without_embedding(6, 512, 2048) + 512 * 37_000)
    assert check(vocabulary("transformer-base", sizes={"u": 41_000})).verdict == "agrees"


def intersection(*names: str) -> Claim:
    return claim("intersection", claims=names)


def test_intervals_of_several_figures() -> None:
    known = {model: vocabulary(model) for model in TABLE_2}
    found = check(intersection(*list(TABLE_2)[:4]), known)
    assert (found.verdict, found.derived) == ("agrees", "u = 41004..41574")
    everyone = check(intersection(*TABLE_2), known)
    assert (everyone.verdict, everyone.derived) == ("disagrees", "u = none")
    assert "transformer-big needs u = 35368..36344" in everyone.note
    assert "transformer-c-f1024 needs u = 41004..42956" in everyone.note


def test_an_intersection_names_intervals() -> None:
    with pytest.raises(PublishedError, match="'nowhere' is no claim: an intersection names claims"):
        check(intersection("nowhere"), {})
    other = claim("value", formula="1", value="1")
    with pytest.raises(PublishedError, match="'x' is a claim of kind value"):
        check(intersection("x"), {"x": other})


def test_an_interval_of_a_mixers_size() -> None:
    common = {"mixer": "she", "quantity": "parameters", "letter": "l", "value": "100"}
    found = check(claim("interval", rounding="50", sizes={"d": 3}, **common))
    # 9 l + 18 in 75..125: l in 7..11.
    assert (found.verdict, found.derived) == ("agrees", "l = 7..11")
    none = check(claim("interval", sizes={"d": 3}, **common))
    assert (none.verdict, none.derived) == ("disagrees", "l = none")
    with pytest.raises(PublishedError, match="needs every other size: d is not given"):
        check(claim("interval", **common))
    falls = {**common, "mixer": "she", "quantity": "mul", "letter": "n", "phase": "training"}
    found = check(claim("interval", sizes={"d": 2, "l": 2}, **falls))
    assert found.verdict == "not-checkable" and "is not proven to grow with n" in found.note
