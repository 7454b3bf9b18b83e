"""Do the figures of Vaswani et al. (2017) get the verdicts that counting by hand gives them?

What is expected is counted here from the paper's own equations, (1) and (2), sections 3 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from costmodel.claims.published import Verdict, check, unrecorded
from costmodel.networks import model
from tests.published.verdicts import claims_of, hold_open, hold_verdicts, holding, verdicts_of

SOURCE = "vaswani-2017"
CLAIM = claims_of(SOURCE)


def verdicts() -> dict[str, Verdict]:
    """Every claim's verdict, by its name in the source."""
    return verdicts_of(SOURCE)


@dataclass(frozen=True)
class Row:
    """A row of Table 3: what it prints of the architecture, and the parameters in millions."""

    N: int = 6
    d: int = 512
    ff: int = 2048
    h: int = 8
    dk: int = 64
    dv: int = 64
    millions: int = 0

    @property
    def layers(self) -> int:
        """Parameters without the embedding.

        An attention has W_Q and W_K of d x d_k for each of h heads, W_V of d x d_v, and W_O of
        h d_v x d (section 3.2.2; no biases). The FFN has two matrices and two biases (equation 2),
        a layer normalisation gain and bias. An encoder layer has one attention and two norms, a
        decoder layer two attentions and three norms.
        """
        attention = self.h * (2 * self.d * self.dk + self.d * self.dv + self.dv * self.d)
        ffn = self.d * self.ff + self.ff + self.ff * self.d + self.d
        norm = 2 * self.d
        return self.N * ((attention + ffn + 2 * norm) + (2 * attention + ffn + 3 * norm))

    def parameters(self, tokens: int) -> int:
        """All of them: source, target and head share one matrix of tokens x d (section 3.4)."""
        return self.layers + tokens * self.d

    @property
    def vocabularies(self) -> range:
        """Those with which the parameters lie within half a million of the printed ones."""
        low, high = ((2 * self.millions + side) * 500_000 - self.layers for side in (-1, 1))
        return range(-(-low // self.d), high // self.d + 1)


ROWS = {
    "base": Row(millions=65),
    "b-k16": Row(dk=16, millions=58),
    "b-k32": Row(dk=32, millions=60),
    "c-l2": Row(N=2, millions=36),
    "c-l4": Row(N=4, millions=50),
    "c-l8": Row(N=8, millions=80),
    "c-d256": Row(d=256, dk=32, dv=32, millions=28),
    "c-d1024": Row(d=1024, dk=128, dv=128, millions=168),
    "c-f1024": Row(ff=1024, millions=53),
    "c-f4096": Row(ff=4096, millions=90),
    "big": Row(d=1024, ff=4096, h=16, millions=213),
}
"""Table 3's rows with a figure in the column params."""

HEADS = {1: 512, 4: 128, 16: 32, 32: 16}
"""Rows (A): heads -> d_k = d_v."""

VOCABULARY = 37000
"""Section 5.1: 'about 37000 tokens'."""

DERIVED = {
    "T1.self-attention.complexity": "O(d**2*l + d*l**2)",
    "T1.restricted.complexity": "O(d**2*l + d*l*w)",
    "s3.2.1.additive": "O(d*l**2 + d*f*l + f*l**2)",
    "T2.base.time": str(12 * 3600 * 8 * 95 * 10**11),
    "T2.big.time": str(84 * 3600 * 8 * 95 * 10**11),
    "T3.one-vocabulary": "u = none",
    "T3.one-vocabulary.not-big": "u = 41004..41208",
    # Two layers of encoder and decoder: 2 (12 d^2 + 4 d f + 2 (f + d) + 10 d) at d = 512 and
    # f = 2048: 2 (3145728 + 4194304 + 5120 + 5120) = 14.70 million.
    "T3.c-l4.over.c-l2": "+14700544",
    "T3.base.over.c-l4": "+14700544",
    "T3.c-l8.over.base": "+14700544",
    # 18 attentions, W_Q and W_K of d x 8 columns a unit of d_k: 18 x 2 x 512 x 8 x (32, 48, 16).
    "T3.base.over.b-k32": "+4718592",
    "T3.base.over.b-k16": "+7077888",
    "T3.b-k32.over.b-k16": "+2359296",
    # 12 FFNs, 2 d + 1 parameters a unit of d_ff: 12 x 1025 x (1024, 2048).
    "T3.base.over.c-f1024": "+12595200",
    "T3.c-f4096.over.base": "+25190400",
}

MISPRINTS = {
    # A hop reaches (k - 1)/2 positions on either side, so that l/k hops are needed, not log_k l:
    # that takes dilations.
    "T1.convolution.path",
    # Multiplications: 4 l d^2 + 2 l^2 d against 2 l d^2 of the tanh RNN but for its first row:
    # fewer never.
    "s4.faster.recurrent",
    # k l d^2 against 2 l d^2: k/2, and 3/2 at k = 3.
    "s4.convolution.factor",
    # The largest of the first and the smallest of the last ones: 41004 > 36344 with big, which
    # has no number between; 41004..41208 without it.
    "T3.one-vocabulary",
    # Each figure is right for some vocabulary (`Row.vocabularies`); 37000 is in none of the ranges.
    *(f"s5.1.vocabulary.{key}" for key in ROWS),
}

UNDER = {
    # Multiplications: 4 l d^2 + 2 l^2 d against 6 l d^2 of the GRU: for l < d. At l = 511 its other
    # operations are too few: with 2 for each multiplication alone it is true.
    "s4.faster.gru",
    # Products are the same in number; scores are as many as heads, so that only where
    # multiplications alone are counted does the amount not change.
    *(f"s6.2.a-n{n}.total" for n in HEADS),
}


def test_verdicts_equal_the_golden_file() -> None:
    hold_verdicts(SOURCE)


@pytest.mark.parametrize(("name", "derived"), DERIVED.items())
def test_derived_formulas_equal_the_expected_ones(name: str, derived: str) -> None:
    assert verdicts()[name].derived == derived


def test_self_attention_has_fewer_operations_of_long_sequences_in_projections() -> None:
    """4 d^2 multiplications and as many additions a token; 2 l d and as many a token in pairs."""
    assert "8*d**2*l < 4*d*l**2 iff l > 2*d" in verdicts()["T1.self-attention.complexity"].note


def test_what_disagrees_is_counted_openly() -> None:
    hold_open(SOURCE, misprints=MISPRINTS)
    found = verdicts().items()
    assert {name for name, v in found if v.verdict == "agrees-under"} == UNDER


@pytest.mark.parametrize("key", ROWS)
def test_vocabularies_of_a_row(key: str) -> None:
    """The range that its printed parameters allow, and what 37000 tokens would give."""
    row = ROWS[key]
    allowed = row.vocabularies
    assert row.millions == int(CLAIM[f"T3.{key}.parameters"].value)
    for name in (f"T3.{key}.parameters", f"s5.1.vocabulary.{key}"):
        assert verdicts()[name].derived == f"u = {allowed[0]}..{allowed[-1]}"
    assert VOCABULARY not in allowed
    at = f"at u = {VOCABULARY} the derived value is {row.parameters(VOCABULARY)}"
    assert at in verdicts()[f"s5.1.vocabulary.{key}"].note
    for tokens in (allowed[0], allowed[-1]):
        assert abs(row.parameters(tokens) - row.millions * 10**6) <= 500_000
    for tokens in (allowed[0] - 1, allowed[-1] + 1):
        assert abs(row.parameters(tokens) - row.millions * 10**6) > 500_000


def test_no_vocabulary_is_common_to_all_rows() -> None:
    common = {key: set(row.vocabularies) for key, row in ROWS.items()}
    without = set.intersection(*(common[key] for key in ROWS if key != "big"))
    assert (min(without), max(without)) == (41004, 41208)
    assert not without & common["big"]
    assert common["big"] & common["c-d256"] == set()


def test_differences_between_rows() -> None:
    """The vocabulary cancels where the width is the same."""
    for one, other in combinations(ROWS, 2):
        for a, b in ((one, other), (other, one)):
            if claim := CLAIM.get(f"T3.{a}.over.{b}"):
                apart = ROWS[a].layers - ROWS[b].layers
                assert verdicts()[f"T3.{a}.over.{b}"].derived == f"+{apart}"
                assert abs(apart - int(claim.value) * 10**6) <= 10**6


@pytest.mark.parametrize(("n", "width"), HEADS.items())
def test_networks_of_rows_a_have_the_printed_widths(n: int, width: int) -> None:
    sizes = model(f"transformer-a-n{n}").sizes
    assert (sizes["n"], sizes["d"] // sizes["n"]) == (n, width)


# A forward pass, counted from the paper's equations, for l target and e source tokens.


@dataclass(frozen=True)
class Work:
    """Operations; `other` are comparisons, square roots and logarithms."""

    mul: int = 0
    add: int = 0
    div: int = 0
    exp: int = 0
    other: int = 0

    def __add__(self, more: Work) -> Work:
        return Work(*(getattr(self, f) + getattr(more, f) for f in self.__dataclass_fields__))

    def __mul__(self, times: int) -> Work:
        return Work(*(getattr(self, f) * times for f in self.__dataclass_fields__))

    @property
    def total(self) -> int:
        return self.mul + self.add + self.div + self.exp + self.other


def linear(rows: int, inside: int, outside: int) -> Work:
    """A matrix: as many additions as products, but one fewer for each sum."""
    return Work(mul=rows * inside * outside, add=rows * (inside - 1) * outside)


def attention(row: Row, queries: int, keys: int, pairs: int) -> Work:
    """Equation (1) in every head, between four linear maps.

    A pair has d_k products and d_k - 1 additions of its score, one division by sqrt(d_k), one
    exponential, one division by the sum, d_v products of the weighted sum. A query with K keys
    adds them up with K - 1 additions, in the softmax once and in the weighted sum d_v times.
    """
    maps = linear(queries, row.d, row.h * row.dk) + linear(queries, row.h * row.dv, row.d)
    maps += linear(keys, row.d, row.h * row.dk) + linear(keys, row.d, row.h * row.dv)
    sums = pairs - queries
    head = Work(
        mul=pairs * (row.dk + row.dv),
        add=pairs * (row.dk - 1) + sums * (1 + row.dv),
        div=2 * pairs,
        exp=pairs,
    )
    return maps + head * row.h


def feed_forward(row: Row, rows: int) -> Work:
    """Equation (2): two matrices with biases, one comparison with 0 a hidden unit."""
    biases = Work(add=rows * (row.ff + row.d), other=rows * row.ff)
    return linear(rows, row.d, row.ff) + linear(rows, row.ff, row.d) + biases


def add_and_norm(row: Row, rows: int) -> Work:
    """x + Sublayer(x), and its layer normalisation.

    Mean: d - 1 additions and a division. Deviations: d. Their squares: d. Variance: d - 1 and a
    division; a small constant: 1; a root; d divisions; gain and bias, d each.
    """
    one = Work(mul=2 * row.d, add=4 * row.d - 1, div=row.d + 2, other=1)
    return (one + Work(add=row.d)) * rows


def loss(rows: int, tokens: int) -> Work:
    """Cross-entropy against smoothed labels, from the scores.

    The logarithm of the sum of exponentials is taken from every score (u - 1 additions of
    exponentials, u subtractions); the target's is multiplied by one weight and the sum of all u,
    u - 1 additions, by another; the two are added. The mean over rows: rows - 1 and a division.
    """
    one = Work(mul=2, add=(tokens - 1) + tokens + (tokens - 1) + 1, exp=tokens, other=1)
    return one * rows + Work(add=rows - 1, div=1)


def forward(row: Row, l: int, e: int, tokens: int) -> Work:
    """Embeddings times sqrt(d) plus positions; N encoder and N decoder layers; head and loss."""
    embedded = Work(mul=row.d, add=row.d) * (l + e)
    encoder = attention(row, e, e, e * e) + feed_forward(row, e) + add_and_norm(row, e) * 2
    decoder = attention(row, l, l, l * (l + 1) // 2) + attention(row, l, e, l * e)
    decoder += feed_forward(row, l) + add_and_norm(row, l) * 3
    head = linear(l, row.d, tokens)
    return embedded + (encoder + decoder) * row.N + head + loss(l, tokens)


SENTENCE = 25
"""Tokens of source and target; the paper prints none."""

BATCH = 25000 // SENTENCE
"""Sentences in a batch of 25000 source and 25000 target tokens (section 5.1)."""


@pytest.mark.parametrize(("key", "steps"), [("base", 100_000), ("big", 300_000)])
def test_operations_of_training_equal_the_printed_ones(key: str, steps: int) -> None:
    claim, verdict = CLAIM[f"T2.{key}.operations"], verdicts()[f"T2.{key}.operations"]
    once = forward(ROWS[key], SENTENCE, SENTENCE, VOCABULARY).total
    assert claim.sizes == {"b": steps * BATCH, "l": SENTENCE, "e": SENTENCE}
    assert int(verdict.derived) == once * steps * BATCH
    # What is printed is many times that: with a backward pass, some two forward passes' worth of
    # work, the GPUs would compute for a third of the time, or not quite a half.
    times = float(claim.value) / int(verdict.derived)
    assert round(times, 1) == {"base": 10.4, "big": 7.1}[key]
    # Forward and backward pass are three times the forward pass, but for what weights need once.
    step = int(verdicts()[f"T2.{key}.step"].derived)
    assert 2.98 < step / (once * BATCH) < 3.02
    # Longer sentences take little more: 2 % at four times the length.
    longer = forward(ROWS[key], 100, 100, VOCABULARY).total / 4
    assert 1 < longer / once < 1.02


@pytest.mark.parametrize("n", HEADS)
def test_operations_of_rows_a(n: int) -> None:
    """Of what is done once a score, the divisions, exponentials and additions, there is more."""
    row = replace(ROWS["base"], h=n, dk=HEADS[n], dv=HEADS[n])
    here, base = (forward(r, SENTENCE, SENTENCE, VOCABULARY) for r in (row, ROWS["base"]))
    assert here.mul == base.mul
    apart = here.total - base.total
    assert verdicts()[f"s6.2.a-n{n}.total"].derived == f"{apart:+}"
    assert verdicts()[f"s6.2.a-n{n}.total"].conventions == ("strict", "counting 2*mul")
    assert verdicts()[f"s6.2.a-n{n}.mul"].derived == "0"


def test_one_head_costs_about_as_much_as_eight() -> None:
    one = replace(ROWS["base"], h=1, dk=512, dv=512)
    apart = [forward(r, SENTENCE, SENTENCE, VOCABULARY).total for r in (ROWS["base"], one)]
    assert verdicts()["s3.2.2.heads.total"].note.startswith(f"{apart[0]} against {apart[1]}")


def test_self_attention_against_recurrent_layers() -> None:
    """At l tokens: all pairs, 8 heads; and the gates' matrices, which row 1 has one of each."""
    d = 512
    for l in (25, 511):
        ours = attention(ROWS["base"], l, l, l * l).total
        # tanh(W x + U h + b): the row before adds d to the d sums, and b another d.
        rnn = (linear(l, d, d) + linear(l - 1, d, d)).total + d * (l - 1) + d * l + d * l
        assert f"{ours} > {rnn}" in verdicts()["s4.faster.recurrent"].derived
        # Of 4 gates each sigmoid is 1 exp, 1 add and 1 div (three of them), tanh one operation;
        # c = f c + i g has 3 operations, 1 in row 1; h = o tanh(c) 2.
        gates = (linear(l, d, d) + linear(l - 1, d, d)).total + d * (l - 1) + d * l
        # The forget gate multiplies nothing in row 1, and has no row 1.
        forget = 2 * linear(l - 1, d, d).total + 2 * d * (l - 1) + 3 * d * (l - 1)
        lstm = 3 * gates + forget + d * l * (2 * 3 + 1) + d * (3 * l - 2) + 2 * d * l
        assert f"{ours} < {lstm}" in verdicts()["s4.faster.lstm"].derived


def test_fastformer_against_self_attention() -> None:
    """Wu et al. (2021), section 3, with biases, and each of two sums over tokens by n weights.

    Three linear layers and the queries added; two scores a head, divided by sqrt(h), and their
    softmax; two weighted sums over the tokens; two products entry by entry.
    """
    d, n = 512, 8
    for l in (25, 512):
        layers = linear(l, d, d) * 3 + Work(add=4 * l * d)
        scores = linear(l, d, n) * 2 + Work(add=2 * l * n, div=2 * l * n)
        softmax = Work(exp=2 * l * n, add=2 * (l - 1) * n, div=2 * l * n)
        sums = Work(mul=2 * l * d, add=2 * (l - 1) * d)
        ours = layers + scores + softmax + sums + Work(mul=2 * l * d)
        against = attention(ROWS["base"], l, l, l * l)
        assert f"{ours.total} < {against.total}" in verdicts()["notes.fastformer"].derived


def test_a_convolution_against_a_recurrent_layer() -> None:
    """k = 3, centred: every row but the first and last reads 3 rows, those two read 2."""
    d, l, k = 512, 512, 3
    taps = k * l - 2
    convolution = taps * d * d + (taps * d - l) * d
    rnn = (linear(l, d, d) + linear(l - 1, d, d)).total + d * (l - 1) + d * l + d * l
    assert verdicts()["s4.convolution.factor"].derived == f"{convolution}/{rnn}"
    assert "a ratio of 1.498" in verdicts()["s4.convolution.factor"].note


def altered(claim: Any) -> Any:
    """The same claim, with one thing changed so that it is wrong."""
    if claim.kind == "intersection":
        return replace(claim, claims=("vaswani.T3.big.parameters", "vaswani.T3.base.parameters"))
    if claim.kind == "interval":
        return replace(claim, sizes={"u": 30000})
    if claim.kind == "order":
        return replace(claim, formula=f"({claim.formula})*l^3")
    if claim.relation:
        return replace(claim, relation={"<": ">", ">": "<"}[claim.relation])
    return replace(claim, value=f"7*({claim.value}) + 7", rounding="")


ALIKE = {f"s6.2.a-n{n}.{quantity}" for n in (4, 16, 32) for quantity in ("mul", "total")}
"""Claims that differ in their sizes alone from one that is altered."""

RIGHT = [name for name in holding(SOURCE) if name not in ALIKE]


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", RIGHT)
def test_an_altered_claim_disagrees(name: str) -> None:
    known = {claim.id: claim for claim in CLAIM.values()}
    verdict = check(altered(CLAIM[name]), known)
    assert verdict.verdict == "disagrees"
    assert unrecorded([verdict]) == [verdict]


@pytest.mark.parametrize("name", sorted(MISPRINTS))
def test_a_misprint_without_its_record_fails(name: str) -> None:
    known = {claim.id: claim for claim in CLAIM.values()}
    verdict = check(replace(CLAIM[name], misprint={}), known)
    assert verdict.verdict == "disagrees"
    assert unrecorded([verdict]) == [verdict]
