"""Does `costmodel check --claim` distinguish a false claim from another convention?"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli
import costmodel as cm
from costmodel.claims.instrumented import instrumented
from costmodel.claims.interpretations import MOST_CHANGES, Interpretation, alternatives
from costmodel.claims.line import claims_of
from costmodel.claims.published import VERDICTS, Verdict, check
from costmodel.claims.quantities import derive
from tests.small import complete
from tests.stand_ins import Instead
from tests.test_claims import paper

ROOT = Path(__file__).parents[1]


def verdict(line: str, mixer: str = "self-attention", phase: str = "training") -> Verdict:
    (claim,) = claims_of([line], mixer, phase)
    return check(claim, run=True)


AGREES = [
    # Chen 2023, arXiv 2308.07661 v1, Tables 3 and 4.
    ("mul = l^2*d + 4*l*d^2 + l*d", "self-attention", "training"),
    ("div = n*l^2 + n*l", "self-attention", "training"),
    ("mul = (3*d*h + 2*t*h)*n + d*d = 2*t*d + 4*d^2", "self-attention", "inference"),
    ("parameters = l*d^2 + 2*d^2", "she", "training"),
    ("compare = 0", "she", "training"),
    ("critical path = mul - sum - mul - mul - sum", "she", "training"),
    # The KV cache: keys and values of t tokens.
    ("state = 2*t*d", "self-attention", "inference"),
    ("state = b*2*t*d", "self-attention", "inference"),
    # Kept of self-attention: X, Q, K, V and what the heads give (l*d each), and for each head
    # exponentials and weights of l(l+1)/2 pairs, and the sum of each row.
    ("activations = 5*l*d + n*(l^2 + 2*l)", "self-attention", "training"),
    ("peak = b*4*l*d", "me", "training-step"),
    # A sum of l*d terms ends ceil(log2(l*d)) levels after its latest product.
    ("span = ceil_log2(l*d) + 2 + ceil_log2(d) + 1", "she", "training"),
    ("total = O(l^2*d^2)", "she", "training"),
    ("total = O(l^2*d + l*d^2)", "self-attention", "training"),
    ("total = O(d*Max(l, d)*l)", "self-attention", "training"),
]


@pytest.mark.parametrize(("line", "mixer", "phase"), AGREES)
def test_a_true_claim_agrees(line: str, mixer: str, phase: str) -> None:
    found = verdict(line, mixer, phase)
    assert (found.verdict, found.alternatives) == ("agrees", ())


@pytest.mark.parametrize(
    ("line", "mixer", "found", "words"),
    [
        # 4 gates, each of d inputs, d states and one bias: 4 (2 * 128^2 + 128).
        ("parameters = 131,584", "lstm", "agrees", "at the default sizes d = 128,"),
        ("parameters = 131584", "lstm", "agrees", "at the default sizes d = 128,"),
        (r"parameters = 131{,}584", "lstm", "agrees", "at the default sizes d = 128,"),
        # 4 products of 128 x 128 matrices and 128 rows, and all pairs of positions twice.
        ("mul = 12,582,912", "self-attention", "agrees-under",
         "at the default sizes l = 128, d = 128,"),
        ("parameters = 80400", "lstm", "disagrees",
         "the claim gives a number and no sizes; at the default sizes d = 128 the "
         "derived value is 131584"),
        ("div = 0", "lstm", "disagrees", ""),
        ("div = 1/0", "lstm", "disagrees", "the claim gives a number and no sizes"),
        ("div = 1e9000", "lstm", "disagrees", "'1e9000' is a number of more than 14,000 bits"),
        ("div = 1e3000*1e3000*l", "lstm", "disagrees", "is a number of more than 14,000 bits"),
    ],
)  # fmt: skip
def test_a_number_without_sizes_is_tried_at_the_default_sizes(
    line: str, mixer: str, found: str, words: str
) -> None:
    said = verdict(line, mixer)
    assert said.verdict == found
    assert words in said.note


def test_a_number_that_may_be_right_elsewhere_is_not_called_wrong_however_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """8*100^2 + 4*100 = 80400 is right at d = 100."""
    assert cli.run(["check", "lstm", "--claim", "parameters = 80,400", "--strict"]) == 1
    printed = capsys.readouterr().out
    assert "disagrees: the claim leaves sizes open" in printed and "however" not in printed


def test_a_line_says_which_sizes_grow_as_others_do() -> None:
    """Blocks of sqrt(l) rows, as Child et al. 2019 choose them, make l*(B + l/B) l*sqrt(l)."""
    line = "total = O(l*sqrt(l))"
    alone, growing = (
        verdict(x, "strided-attention") for x in (line, f"{line}, B growing as sqrt(l)")
    )
    assert alone.verdict == "disagrees" and growing.verdict == "agrees-in-limit"
    assert growing.claimed == "O(l*sqrt(l))" and "B growing as sqrt(l)" in growing.note


@pytest.mark.parametrize(
    "order", [r"\Theta(l d^2 + l^2 d)", "Θ(l*d^2 + l^2*d)", "Theta(l*d^2 + l^2*d)"]
)
def test_a_theta_is_an_order(order: str) -> None:
    found = verdict(f"total = {order}")
    assert found.verdict == "agrees" and found.claimed == "Θ(l*d^2 + l^2*d)"
    assert verdict(f"total = {order.replace('d^2', 'd^4')}").verdict == "agrees-in-limit"
    assert verdict("total = Θ(l^2*d^2)").verdict == "disagrees"


def test_a_condition_that_never_holds_is_left_out() -> None:
    """Of lstm, nothing stays beside what vanishes: no impossible sizes are named."""
    found = [verdict(f"total = O({x})", m) for m in ("lstm", "recurrent", "me") for x in ("l", "d")]
    assert not [claim.note for claim in found if "at no size" in claim.note]


@pytest.mark.parametrize(
    ("line", "mixer", "found", "note"),
    [
        # Windows of 16 rows: 8*16*15/2 pairs fewer than l^2*n/2, and so on, as computed.
        ("parameters = 4*d^2", "restricted-attention", "agrees", ""),
        (
            "parameters = 128*l + 128^2*2",
            "she",
            "disagrees",
            "the claim gives no d; at the default",
        ),
    ],
)
def test_a_formula_that_leaves_sizes_open_is_not_called_wrong_however_counted(
    line: str, mixer: str, found: str, note: str
) -> None:
    said = verdict(line, mixer)
    assert said.verdict == found and note in said.note


UNDER: list[tuple[str, str, str, set[tuple[str, ...]]]] = [
    # All l^2 pairs of positions: 2 l^2 d for scores and weighted sums.
    ("mul = 4*l*d^2 + 2*l^2*d", "self-attention", "training",
     {("strict", "dense"), ("torch",), ("fvcore",)}),
    # FlopCounterMode: 2 per multiply-add, nothing else.
    ("total = 8*l*d^2 + 4*l^2*d", "self-attention", "training", {("torch",)}),
    ("total = 2*(l^2*d + 4*l*d^2 + l*d)", "self-attention", "training",
     {("strict", "counting 2*mul")}),
    # A sum of R terms taken as R additions.
    ("add = l^2*d + 4*l*d^2 + l*d + n*l*(l + 1)/2", "self-attention", "training", {("mac",)}),
    ("div = n*l*(l + 1)/2", "self-attention", "training",
     {("strict", "scale=mul"), ("strict", "scale=folded")}),
    ("compare = n*l*(l - 1)/2", "self-attention", "training", {("strict", "safe-softmax")}),
    ("mul = 4*d^2 + 2*l*d", "self-attention", "inference", {("strict", "t = l")}),
    ("mul = 4*d^2 + 2*d*(l + 1)", "self-attention", "inference", {("strict", "t = l + 1")}),
    ("total = 8*d^2 + 4*l*d", "self-attention", "inference",
     {("strict", "counting 2*mul", "t = l"), ("torch", "t = l")}),
    ("mul = l*d + 4*d^2 + d", "self-attention", "training", {("strict", "per token")}),
    ("total = O(l*d^2*log(l))", "she", "training", {("strict", "form fft")}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "mixer", "phase", "names"), UNDER)
def test_what_is_counted_otherwise(
    line: str, mixer: str, phase: str, names: set[tuple[str, ...]]
) -> None:
    found = verdict(line, mixer, phase)
    assert found.verdict == "agrees-under"
    assert set(found.alternatives) == names
    assert found.conventions == found.alternatives[0]
    assert found.note.startswith("under ") and "; not under strict" in found.note


GRADIENTS: list[tuple[str, str, str, str, set[tuple[str, ...]]]] = [
    # ME sums l (l + 1)/2 products a channel, and so do the gradient of x and that of w. Of their
    # sums, the l d of x.grad and the l of w.grad take one addition less each.
    ("mul = d*l*(l + 1)", "me", "backward", "agrees", set()),
    ("mul = 3*d*l*(l + 1)/2", "me", "training-step", "agrees", set()),
    ("add = d*l*(l + 1) - d*l - l", "me", "backward", "agrees", set()),
    # Of b sequences, w.grad adds up the products of all.
    ("add = b*d*l*(l + 1) - b*d*l - l", "me", "backward", "agrees", set()),
    # A product; then the first weight's sum over l rows and d channels.
    ("span = ceil_log2(l*d) + 1", "me", "backward", "agrees", set()),
    ("critical path = mul - sum", "me", "backward", "agrees", set()),
    ("total = O(d*l^2)", "me", "backward", "agrees", set()),
    # Either gradient takes half.
    ("mul = d*l*(l + 1)/2", "me", "backward", "agrees-under",
     {("strict", "only=parameters"), ("strict", "only=inputs")}),
    # A division for each score, and one for each exponential unless kernels take the gradient of a
    # softmax from its result.
    ("div = n*l*(l + 1)", "self-attention", "backward", "agrees", set()),
    ("div = n*l*(l + 1)/2", "self-attention", "backward", "agrees-under",
     {("strict", "scale=mul"), ("strict", "scale=folded"), ("strict", "softmax-gradient")}),
    ("div = n*l^2", "self-attention", "backward", "agrees-under",
     {("strict", "dense", name) for name in ("scale=mul", "scale=folded", "softmax-gradient")}),
    ("mul = 3*d*l*(l + 1)/2", "me", "backward", "disagrees", {("strict", "phase training-step")}),
    # With one of the two gradients a step takes as many products as both gradients do.
    ("mul = d*l*(l + 1)", "me", "training-step", "agrees-under",
     {("strict", "only=parameters"), ("strict", "only=inputs")}),
    ("parameters = l", "me", "backward", "agrees", set()),
]  # fmt: skip


@pytest.mark.parametrize(("line", "mixer", "phase", "expected", "names"), GRADIENTS)
def test_claims_about_gradients(
    line: str, mixer: str, phase: str, expected: str, names: set[tuple[str, ...]]
) -> None:
    found = verdict(line, mixer, phase)
    assert (found.verdict, set(found.alternatives)) == (expected, names)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("phase", ["backward", "training-step"])
@pytest.mark.parametrize("mixer", ["me", "linear-attention", "simple-resl"])
def test_gradients_are_counted_while_they_run(mixer: str, phase: str, batch: int) -> None:
    """Of every sequence, and once what is done on sums over the batch."""
    (claim,) = claims_of(["total = 7"], mixer, phase)
    found = cm.mixer(mixer)
    sizes = complete(found, {"l": 3, "d": 2, "n": 1})
    run = instrumented(claim, claim.interpretation, {**sizes, "b": batch})
    assert run == cm.count(found, phase).at(**{**sizes, "b": batch}).total


@pytest.mark.parametrize("name", ["self-attention", "she", "me", "lstm", "linear-attention"])
def test_memory_is_claimed_of_all_sequences(name: str) -> None:
    mixer, own = cm.mixer(name), Interpretation(phase="training-step")
    for sizes in ({"l": 3, "d": 4, "b": 1}, {"l": 7, "d": 8, "b": 5}):
        whole = complete(mixer, {**sizes, "n": 2})
        kept, most = (derive(name, what, own).at(whole) for what in ("activations", "peak"))
        assert kept == cm.activations(mixer).at(**whole) > 0
        assert most == cm.peak(mixer, "training-step").at(**whole) >= kept


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", ["strided-attention", "mega+chunk"])
def test_a_long_maximum_is_refuted_at_sizes(name: str) -> None:
    """Span and largest live set: maxima of many terms, whose difference from 22 has many cases."""
    for quantity in ("span", "peak"):
        found = verdict(f"{quantity} = 22", name)
        assert found.verdict == "disagrees" and set(found.counterexample.values()) == {1}


def test_a_claim_says_where_it_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    """Of long sequences, not of those that the window and the global tokens reach at once."""
    assert cli.run(["check", "bigbird", "--claim", "path_length = 2"]) == 0
    assert "- equal at least where: l >= floor(w/2) + s + 2\n" in capsys.readouterr().out
    assert verdict("path_length = 3", "bigbird").equal_where == ""
    assert verdict("mul = Min(l, d)", "me").equal_where == ""


def test_no_other_interpretation_is_far_away() -> None:
    """A mixer and a phase in which the claim leaves up to seven choices open."""
    (claim,) = claims_of(["total = 7"], "self-attention", "training")
    tried = alternatives(own := claim.interpretation, claim.choices())
    assert {one.changes(own) for one in tried} == {*range(1, MOST_CHANGES + 1)}


def test_what_is_not_proven_is_not_said_to_be(instead: Instead) -> None:
    instead(identity_effort=0, identities_searched=100)
    derived = derive("strided-attention", "span", Interpretation(phase="training")).text
    found = verdict(f"span = {derived}", "strided-attention")
    assert (found.verdict, found.proven) == ("agrees", False)
    assert found.note.endswith("equal at the 100 smallest sizes; no proof for all")


def test_a_peak_by_cases_is_compared_at_sizes() -> None:
    """Windows are cut where the sequence ends; BigBird has more cases than are printed."""
    found = verdict("peak = l*d", "restricted-attention")
    assert found.verdict == "disagrees" and found.counterexample["l"] == 1
    at = {"l": 7, "d": 4, "n": 2, "s": 1, "w": 3, "c": 2}
    claimed = derive("bigbird", "peak", Interpretation(phase="training"))
    assert claimed.at({**at, "b": 1}) == cm.peak(cm.mixer("bigbird")).at(**at)
    assert claimed.text.startswith("the largest of 22 values")


def test_a_claim_may_say_which_gradients_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    words = "check me --phase backward --claim 'mul = d*l*(l + 1)/2' --only parameters"
    (claim,) = json_of(words, capsys)["claims"]
    assert (claim["verdict"], claim["conventions"]) == ("agrees", ["strict", "only=parameters"])
    words = "check me --phase backward --claim 'mul = 7' --only parameters"
    (claim,) = json_of(words, capsys)["claims"]
    assert claim["at_counterexample"] == {"derived": "1", "claimed": "7", "instrumented": "1"}
    words = "check self-attention --phase training-step --claim 'exp = n*l*(l + 1)' --recompute all"
    assert json_of(words, capsys)["claims"][0]["verdict"] == "agrees"


def test_a_claim_of_the_other_phase_is_wrong_and_says_of_what_it_is_true() -> None:
    found = verdict("mul = 2*t*d + 4*d^2")
    assert (found.verdict, found.alternatives) == ("disagrees", (("strict", "phase inference"),))
    assert found.note.endswith("true of phase inference")
    other = verdict("mul = l^2*d + 4*l*d^2 + l*d", phase="inference")
    assert other.verdict == "disagrees" and other.note.endswith("true of phase training")


def test_a_claim_at_sizes_that_no_tried_size_fits_is_not_called_true() -> None:
    """The new token 128 is none of 3 tokens; other phases have no t."""
    (claim,) = claims_of(["mul = d"], "self-attention", "inference")
    found = check(replace(claim, sizes={"l": 3, "t": 128}))
    assert found.verdict == "not-checkable"
    assert found.note.startswith(
        "the formulas were not compared: the mixer exists at none of the 5,000 smallest"
    )
    for mixer, phase in (("she", "training"), ("self-attention", "inference")):
        (claim,) = claims_of(["mul = d"], mixer, phase)
        found = check(replace(claim, sizes={"t": 128}))
        assert found.verdict == "disagrees" and "true of" not in found.note


def test_a_claim_of_a_variant_says_of_which_one_it_is_true() -> None:
    found = verdict("parameters = 4*d^2 + 4*d")
    assert (found.verdict, found.alternatives) == ("disagrees", (("strict", "option bias"),))
    assert found.note.endswith("true of option bias")


DISAGREES = [
    # Smallest sizes worked out by hand: the polynomial given against Chen's Table 3.
    ("mul = 4*l*d^2 + 3*l^2*d", {"d": 1, "l": 1}, 6, "7", "d*l - 2*d*l**2"),
    ("mul = l^2*d + 4*l*d^2 + d", {"d": 1, "l": 2}, 14, "13", "d*l - d"),
    ("exp = n*l^2/2", {"l": 1, "n": 1}, 1, "1/2", "l*n/2"),
    ("parameters = 7*d^2", {"d": 1}, 4, "7", "-3*d**2"),
    ("exp = n*l/(l - 1)", {"l": 1, "n": 1}, 1, None, ""),
]


@pytest.mark.parametrize(("line", "sizes", "derived", "claimed", "difference"), DISAGREES)
def test_a_false_claim_disagrees_with_a_counterexample(
    line: str, sizes: dict[str, int], derived: int, claimed: str | None, difference: str
) -> None:
    found = verdict(line)
    assert (found.verdict, found.alternatives) == ("disagrees", ())
    assert found.counterexample == sizes and found.difference == difference
    there = {"derived": str(derived), "instrumented": str(derived)}
    assert found.there == (there if claimed is None else {**there, "claimed": claimed})


INSTRUMENTED = [
    # Each is wrong on purpose; the count while running is worked out beside it.
    ("add = 1", "me", "training", {"d": 1, "l": 1}, "0"),  # one term: no addition
    ("mul = 7*t", "she", "inference", {"d": 1, "t": 1}, "4"),  # 1 + 1 + 1 + 1
    ("state = 7", "self-attention", "inference", {"d": 1, "t": 1}, "2"),  # one key, one value
    ("state = 7*b", "self-attention", "inference", {"b": 1, "d": 1, "t": 1}, "2"),
    ("total = 7*l", "me", "training", {"d": 1, "l": 1}, "1"),  # one product
    ("total = 7*b", "me", "training", {"b": 1, "d": 1, "l": 1}, "1"),
    ("span = 1", "me", "training", {"l": 2}, "2"),  # a product, then one level of a sum of two
    ("parameters = l + 1", "me", "training", {"l": 1}, "1"),
    ("exp = 0", "self-attention", "inference", {"n": 1, "t": 1}, "1"),
    ("other = 0", "recurrent", "training", {"d": 1, "l": 1}, "1"),  # one tanh
]


@pytest.mark.parametrize(("line", "mixer", "phase", "sizes", "counted"), INSTRUMENTED)
def test_the_counterexample_is_run(
    line: str, mixer: str, phase: str, sizes: dict[str, int], counted: str
) -> None:
    found = verdict(line, mixer, phase)
    assert found.counterexample == sizes
    assert found.there["instrumented"] == found.there["derived"] == counted


TOO_LARGE = [
    # What exceeds the limit of an execution: entries of weights, points of ranges, steps of a
    # Fourier transform whose length is no power of two.
    ("parameters", "self-attention", "training", "", {"d": 400}),
    ("exp", "self-attention", "inference", "", {"d": 4096, "n": 1, "t": 1}),
    ("total", "self-attention", "inference", "", {"d": 150, "n": 1, "t": 1}),
    ("total", "me", "training-step", "", {"d": 200, "l": 20}),
    ("total", "fnet", "training", "fft", {"d": 3, "l": 255}),
]


@pytest.mark.parametrize(("quantity", "mixer", "phase", "form", "sizes"), TOO_LARGE)
def test_an_execution_has_a_limit(
    quantity: str, mixer: str, phase: str, form: str, sizes: dict[str, int]
) -> None:
    (claim,) = claims_of([f"{quantity} = 7"], mixer, phase, form)
    assert instrumented(claim, claim.interpretation, sizes) is None


def test_a_verdict_stands_without_an_execution() -> None:
    (claim,) = claims_of(["exp = 7*n*t"], "self-attention", "inference")
    found = check(replace(claim, sizes={"d": 150}), run=True)
    assert (found.verdict, found.there) == ("disagrees", {"derived": "1", "claimed": "7"})
    assert found.counterexample == {"d": 150, "n": 1, "t": 1}


@pytest.mark.parametrize(
    ("line", "sizes", "note"),
    [
        ("parameters = 67108864", {"d": 4096}, "equal at the sizes given"),
        ("state = 8192*t", {"d": 4096}, "equal for all other sizes (polynomial identity)"),
        ("state = 2*t*d", {}, "equal for all sizes (polynomial identity)"),
    ],
)
def test_a_true_claim_says_at_which_sizes(line: str, sizes: dict[str, int], note: str) -> None:
    (claim,) = claims_of([line], "self-attention", "inference")
    found = check(replace(claim, sizes=sizes))
    assert (found.verdict, found.note) == ("agrees", note)


ORDERS = [
    ("total = O(l^2*d)", "self-attention", "training", "agrees-in-limit",
     "for l >> d, where d**2*l vanishes beside d*l**2; 8*d**2*l < 2*d*l**2 iff l > 4*d"),
    ("total = O(l*d^2)", "self-attention", "training", "agrees-in-limit",
     "for d >> l, where d*l**2 vanishes beside d**2*l"),
    ("total = O(l^2)", "self-attention", "training", "agrees-in-limit",
     "in l alone, d being fixed"),
    # Heads divide the width: it grows with them, and l^2 and n*l^2 are true of heads of one width.
    ("total = O(l^2*n)", "self-attention", "training", "agrees-in-limit",
     "in l, n alone, d growing as n; for l >> n, where l*n**2 vanishes beside l**2*n"),
    ("total = O(l^2*n+l*n^2)", "self-attention", "training", "agrees-in-limit",
     "in l, n alone, d growing as n"),
    ("total = O(l^2*g)", "self-attention+grouped", "training", "agrees-in-limit",
     "in g, l alone, d growing as g; for l >> g"),
    ("total = O(l*n)", "self-attention", "training", "disagrees",
     "the derived d*l**2 grows faster than the claim"),
    # The length bounds the blocks, and does not grow as they do.
    ("total = O(B*d^2)", "local-attention", "training", "disagrees",
     "grows faster than the claim"),
    # Heads with a width of their own may be more than d.
    ("total = O(l^2*n)", "mla", "training", "agrees-in-limit",
     "in l, n alone, K, R, V, c, d being fixed"),
    ("state = O(l)", "self-attention", "inference", "agrees-in-limit",
     "under t = l: O(d*l); in l alone, d being fixed"),
    # n heads in a width d: d is at least l^2, too, and the limit l >> d does not exist.
    ("total = O(l^2*d), n growing as l^2", "self-attention", "training", "disagrees",
     "the derived d**2*l grows faster than the claim"),
    ("total = O(l^2*n), n growing as d^2", "self-attention", "training", "not-checkable",
     "n growing as d**2 contradicts d/n >= 1"),
    ("total = O(l)", "self-attention", "training", "disagrees",
     "the derived d*l**2 grows faster than the claim"),
    # O is an upper bound: a larger one is true, and the order is derived.
    ("total = O(l^2*d^2)", "self-attention", "training", "agrees-under",
     "true as an upper bound, not tight; the claimed d**2*l**2 grows faster than the derived"),
    ("total = O(l^2*d*n)", "self-attention", "training", "disagrees",
     "the derived d**2*l grows faster than the claim as d grows; the claimed d*l**2*n grows faster "
     "than the derived count as d, l, n grow"),
    ("total = O(l^3)", "self-attention", "training", "agrees-under",
     "true as an upper bound, not tight; in l alone, d being fixed; the claimed l**3 grows"),
    ("total = O(l^2*d+l*d^3)", "self-attention", "training", "agrees-under",
     "true as an upper bound, not tight; tight for l >> d**2, where d**3*l vanishes beside d*l**2"),
    # g <= n, so that d*g*t/n <= d*t at all sizes.
    ("state = O(t*d)", "self-attention+grouped", "inference", "agrees-under",
     "true as an upper bound, not tight; tight in d, t alone, g, n being fixed"),
    ("state = O(l*d)", "mqa", "inference", "agrees-under",
     "true as an upper bound, not tight"),
    ("state = O(t*d*g)", "self-attention+grouped", "inference", "agrees-under",
     "true as an upper bound, not tight; the claimed d*g*t grows faster than the derived count"),
    # With B fixed, d^2*l + B*d*l grows as l*d^2: O and Θ are tight there.
    *((f"total = {sign}(l*d^2)", "local-attention", "training", "agrees-in-limit",
       "for d >> B, where B*d*l vanishes beside d**2*l; in d, l alone, B being fixed")
      for sign in "OΘ"),
    ("state = O(1)", "self-attention", "inference", "disagrees",
     "the derived d*t grows faster than the claim"),
    ("parameters = O(1)", "self-attention", "training", "agrees-in-limit",
     "whatever the length, d being fixed"),
    # Key-value heads divide the heads, so that they are no more.
    ("total = O(l*d^2+l^2*d)", "self-attention+grouped", "training", "agrees",
     "the same leading terms"),
    ("total = O(d^2+d*t)", "self-attention+grouped", "inference", "agrees",
     "the same leading terms"),
    # What sorts is a convention: a network has a logarithm more.
    ("total = O(l*log(l))", "reformer", "training", "agrees-in-limit",
     "under strict, sort=merge: "),
    ("total = O(l)", "reformer", "training", "disagrees",
     "the derived l*log(l)**2*n grows faster than the claim"),
    ("total = O(l^2*sqrt(d)*d)", "self-attention", "training", "disagrees",
     "d**(3/2)*l**2 grows faster than the derived"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "mixer", "phase", "expected", "note"), ORDERS)
def test_claims_of_growth_are_checked_as_orders(
    line: str, mixer: str, phase: str, expected: str, note: str
) -> None:
    found = verdict(line, mixer, phase)
    assert found.verdict == expected and note in found.note
    assert found.claimed == line.split(" = ")[1].partition(",")[0]
    assert found.derived.startswith("O(") or expected == "not-checkable"


# Vaswani et al. 2017, Table 1. The projections are left out of its complexities, so two of them
# hold in a limit only; O(log_k(n)) needs layers that are dilated, as the paper's section 4 says.
TABLE_1 = [
    ("total = O(l^2*d)", "self-attention+bidirectional", "agrees-in-limit"),
    ("sequential = O(1)", "self-attention+bidirectional", "agrees"),
    ("path length = O(1)", "self-attention+bidirectional", "agrees"),
    ("total = O(l*d^2)", "recurrent", "agrees"),
    ("sequential = O(l)", "recurrent", "agrees"),
    ("path length = O(l)", "recurrent", "agrees"),
    ("total = O(k*l*d^2)", "convolution-same", "agrees"),
    ("sequential = O(1)", "convolution-same", "agrees"),
    ("path length = O(log(l, k))", "convolution-same", "disagrees"),
    ("path length = O(l/k)", "convolution-same", "agrees"),
    ("total = O(w*l*d)", "restricted-attention", "agrees-in-limit"),
    ("sequential = O(1)", "restricted-attention", "agrees"),
    ("path length = O(l/w)", "restricted-attention", "agrees"),
]


@pytest.mark.parametrize(("line", "mixer", "expected"), TABLE_1)
def test_table_1_of_vaswani(line: str, mixer: str, expected: str) -> None:
    found = verdict(line, mixer)
    assert found.verdict == expected
    if "log" in line:  # k <= l, so that log(l)/log(k) is the smaller one everywhere
        assert found.note.startswith("the derived l/k grows faster than the claim; where")
    if "w*l*d" in line:
        assert "for w >> d, where d**2*l vanishes beside d*l*w" in found.note


def run(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert cli.run(shlex.split(words)) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_the_terminal_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("check self-attention --claim 'mul = 4*l*d^2 + 2*l^2*d' --claim 'exp = 7'", capsys)
    assert text.startswith("self-attention, training, convention strict\n")
    for line in (
        "\nmul = 4*l*d^2 + 2*l^2*d\n",
        "- derived: 4d²l + dl² + dl\n",
        "- derived - claimed: dl - dl²\n",
        "- first differs at: d = 1, l = 2: derived 14, claimed 16, counted by execution 14\n",
        "strict, dense; or torch; or fvcore\n",
        "- first differs at: l = 1, n = 1: derived 1, claimed 7, counted by execution 1\n",
        "\n2 claims: 1 agrees-under, 1 disagrees\n",
    ):
        assert line in text


def test_markdown_of_claims_has_verdicts_and_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("check she --claim 'mul = l' --format markdown --phase decode", capsys)
    assert "## she, inference, convention strict\n\n`mul = l`\n\n- verdict: " in text
    assert "- derived: $d^{2} t + 2 d^{2} + d$\n" in text
    assert text.endswith("\n\n1 claim: 1 disagrees\n")


def json_of(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    found = json.loads(run(f"{words} --format json", capsys, code))
    assert isinstance(found, dict) and found["schema"] == 1
    return found


def test_json_is_schema_1(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of("check self-attention --claim 'mul = 4*l*d^2 + 2*l^2*d'", capsys)
    (claim,) = found["claims"]
    keys = {"source", "place", "quantity", "claimed", "derived", "verdict", "conventions",
            "counterexample", "note"}  # fmt: skip
    assert set(claim) >= keys and claim["verdict"] in VERDICTS
    assert claim["alternatives"][0] == claim["conventions"] == ["strict", "dense"]
    assert claim["counterexample"] == {"d": 1, "l": 2}
    assert claim["at_counterexample"] == {"derived": "14", "claimed": "16", "instrumented": "14"}
    assert claim["difference"] == "d*l - d*l**2"
    assert found["summary"]["agrees-under"] == 1


@pytest.mark.parametrize(
    ("claim", "strict"),
    [("mul = l^2*d + 4*l*d^2 + l*d", 0), ("mul = 4*l*d^2 + 2*l^2*d", 0), ("total = O(l^2*d)", 0),
     ("mul = l", 1), ("mul = 2*t*d + 4*d^2", 1)],
)  # fmt: skip
def test_strict_fails_for_what_is_wrong_alone(
    claim: str, strict: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"check self-attention --claim '{claim}'"
    run(words, capsys, 0)
    run(f"{words} --strict", capsys, strict)


def test_strict_fails_for_what_is_not_decided(capsys: pytest.CaptureFixture[str]) -> None:
    words = "check sinkhorn --claim 'path_length = O(1)'"
    assert "1 not-checkable" in run(words, capsys, 0)
    assert "1 not-checkable" in run(f"{words} --strict", capsys, 1)


def test_a_convention_and_a_form_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    words = "check self-attention --claim 'mul = 4*l*d^2 + 2*l^2*d' --convention mac,dense"
    (claim,) = json_of(words, capsys)["claims"]
    assert (claim["verdict"], claim["conventions"]) == ("agrees", ["mac", "dense"])
    words = "check she --form fft --claim 'total = O(l*d^2*log(l))'"
    assert json_of(words, capsys)["claims"][0]["verdict"] == "agrees"
    words = "check self-attention --claim 'total = 8*l*d^2 + 4*l^2*d' --convention torch"
    assert json_of(words, capsys)["claims"][0]["verdict"] == "agrees"


def test_a_file_of_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(f"check {paper(tmp_path)}", capsys)
    assert [c["verdict"] for c in found["claims"]] == ["agrees-under", "agrees-in-limit"]
    assert found["claims"][0]["at_counterexample"]["instrumented"] == "14"
    wrong = paper(tmp_path, ("4*l*d^2", "5*l*d^2"))
    assert "5*l*d^2" in run(f"check {wrong}", capsys, 0)
    assert "1 disagrees" in run(f"check {wrong} --strict", capsys, 1)
    assert "N. N.: A paper. 2024" in run(f"verify {wrong}", capsys, 1)


def test_a_mixer_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.test_cli import USER

    path = tmp_path / "mine.py"
    path.write_text(USER, encoding="utf-8")
    words = f"check {path}:decay --claim 'mul = d*l^2' --claim 'parameters = l'"
    one, two = json_of(words, capsys)["claims"]
    assert (one["verdict"], one["conventions"]) == ("agrees-under", ["strict", "dense"])
    assert one["at_counterexample"] == {"derived": "3", "claimed": "4", "instrumented": "3"}
    assert two["verdict"] == "agrees"
    named = paper(tmp_path, ('mixer = "self-attention"', f'mixer = "{path}:decay"'))
    assert json_of(f"check {named}", capsys)["claims"][0]["verdict"] == "disagrees"


def test_a_name_may_say_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--claim 'span = 1'"
    (named,), (apart,), (default,) = (
        json_of(f"check {words} {asked}", capsys)["claims"]
        for words in ("she:fft", "she --form fft", "she")
    )
    assert named == apart and named["derived"] != default["derived"]


def test_a_figure_that_only_a_search_finds_is_compared_at_sizes(
    capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    """Reads by a stride: path lengths have no formula; what needs one is not decided."""
    instead(identities_searched=60)
    mixer = "check sinkhorn --claim"
    (true,) = json_of(f"{mixer} 'path_length = Min(l - 1, 1)'", capsys)["claims"]
    assert true["verdict"] == "agrees" and "smallest sizes; no proof for all" in true["note"]
    (false,) = json_of(f"{mixer} 'path_length = 2'", capsys)["claims"]
    assert false["verdict"] == "disagrees" and false["counterexample"]["l"] == 1
    (order,) = json_of(f"{mixer} 'path_length = O(1)'", capsys)["claims"]
    assert order["verdict"] == "not-checkable" and "by a stride" in order["note"]


BAD = {
    "check self-attention --claim mul": "expected QUANTITY = FORMULA",
    "check self-attention --claim 'mul = 4l2'": "expected an operator or the end",
    "check self-attention --claim 'mul = l/2d'": "is ambiguous: write a/(b*c)",
    "check self-attention --symbols N=xy --claim 'mul = N'": "expected a paper's SYMBOL=LETTER",
    "check self-attention --symbols N=x --claim 'mul = N'": "claim 1: x is no size of ",
    "check self-attention --claim 'joy = 4'": "unknown quantity 'joy'",
    "check self-attention --claim 'mul = 4*l*d^2 + u*k'": "claim 1: k, u are no sizes of "
    "self-attention: its sizes are b, l, t, d, n",
    "check she --claim 'total = O(l*h)'": "claim 1: n (h is d/n) is no size of she: "
    "its sizes are b, l, t, d",
    "check nosuch --claim 'mul = 4'": "unknown mixer 'nosuch'",
    "check she --form fftt --claim 'mul = 4'": "she has no form 'fftt': expected one of",
    "check she:fftt --claim 'mul = 4'": "she has no form 'fftt': expected all, ",
    "check she:all --claim 'mul = 4'": "she has no form 'all': expected one of",
    "check she:fft --form direct --claim 'mul = 4'": "she:fft names the form fft: leave out --form",
    "check she:fft": "without --claim every form of she is checked: leave out ':fft'",
    "check she --phase later --claim 'mul = 4'": "--phase 'later': expected one of training",
    "check me --claim 'mul = 4' --only parameters": "options of a backward pass: ask for the "
    "phase backward or training-step, not training",
    "check she --convention denss --claim 'mul = 4'": "did you mean 'dense'",
    "check she --claim 'mul = 4' --format csv": "rich, markdown, latex, json",
    "check she --phase training": "without --claim the mixer itself is checked: leave out --phase",
    "check she --claim 'mul = Omega(l)'": "; the signs of growth are O(...) and Θ(...)",
    "check she --claim 'mul = Ω(l)'": "; the signs of growth are O(...) and Θ(...)",
    "check README.md": "only .toml, .json, .tex, .csv files have claims (`table --format csv -o",
    "check she --claim 'mul = where(l)'": "'where(l)': expected where(value, a condition",
    "check paper.toml": "paper.toml is not a readable file of claims",
    "check paper.json --claim 'mul = 4'": "paper.json states the options of its claims: leave",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(shlex.split(command)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("costmodel: ") and BAD[command] in printed.err


BAD_FILES = {
    "cut off": (('[[claims]]\nid = "t1.total"', '[[claims]]\nid = "t1.tot'), "not a readable"),
    "unknown mixer": (('"self-attention"', '"self-atention"'), "did you mean 'self-attention'?"),
    "unknown quantity": (('"mul"', '"joy"'), "claim t1.mul: unknown quantity 'joy'"),
    "unknown phase": (('"training"', '"later"'), "claim t1.mul: unknown phase 'later'"),
    "no phase": (
        ('phase = "training"\n', ""),
        "'mul' needs a phase: training, inference, backward or training-step",
    ),
    "unknown form": (('phase = "tr', 'form = "x"\nphase = "tr'), "has no form 'x'"),
    "unknown network": (('mixer = "self-attention"', 'model = "gpt-3"'), "unknown network 'gpt-3'"),
    "no size": (("4*l*d^2", "4*u*d^2"), "claim t1.mul: u is no size of self-attention"),
    "no size of a network": (
        (
            'mixer = "self-attention"\nphase = "training"\nquantity = "mul"\nformula = "4*l',
            'model = "gpt-2"\nphase = "training"\nquantity = "mul"\nformula = "K*l',
        ),
        "claim t1.mul: K is no size of gpt-2: its sizes are b, l",
    ),
    "same id": (("t1.total", "t1.mul"), "claims with the same id: t1.mul"),
}


@pytest.mark.parametrize(("change", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_one_sentence(
    change: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["check", str(paper(tmp_path, change))]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and said in printed.err


def test_checking_claims_needs_no_torch() -> None:
    script = (
        "import cli, sys, io, contextlib\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = cli.run(['check', 'she', '--claim', 'mul = 4*l'])\n"
        "assert code == 0\n"
        "print([m for m in ('torch', 'sympy', 'fvcore', 'pynvml') if m in sys.modules])\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert made.stdout == "[]\n"


def test_a_claim_that_has_no_value_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("check self-attention --claim 'mul = l/(d - d)'", capsys)
    assert "the claim has no value there" in text
    assert text.endswith("\n1 claim: 1 disagrees\n")
