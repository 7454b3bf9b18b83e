"""Do the equations and counts equal those of the two Extractor papers?

Zhe Chen, "Attention Is Not All You Need Anymore": version 1 has one Extractor, two ablations of it
(section 6) and Tables 3 and 4; the later version has the four Extractors SHE, HE, WE and ME, and
mentions a fifth (the "extraction" part of HE). Equation numbers are those of the later version.

Values, operations, levels and what is kept between tokens are written here from the papers alone,
one loop per printed index. Nothing is shared with the package, so that an agreement is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sympy

import costmodel as cm

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]
Kept = dict[str, list[Array]]

# --------------------------------------------------------------------------------------------------
# The values. Tokens are row vectors, and i and j count from 1 as printed.
# --------------------------------------------------------------------------------------------------


def times(row: Array, matrix: Array) -> Array:
    """A row vector times a matrix."""
    product = np.zeros(matrix.shape[1])
    for column in range(matrix.shape[1]):
        for k in range(matrix.shape[0]):
            product[column] += row[k] * matrix[k, column]
    return product


def dot(left: Array, right: Array) -> float:
    total = 0.0
    for k in range(len(left)):
        total += float(left[k]) * float(right[k])
    return total


def self_attention(x: Array, w: Weights, n: int) -> Array:
    """(10)-(17), with head j in columns (j-1)h+1..jh of the three input matrices."""
    t, d = x.shape
    h = d // n
    x_out_con = np.zeros((t, d))
    for j in range(1, n + 1):
        head = slice((j - 1) * h, j * h)
        Q = [times(x[i - 1], w["W_Q"][:, head]) for i in range(1, t + 1)]  # (10)
        K = [times(x[i - 1], w["W_K"][:, head]) for i in range(1, t + 1)]  # (11)
        V = [times(x[i - 1], w["W_V"][:, head]) for i in range(1, t + 1)]  # (12)
        for i in range(1, t + 1):
            # (13) where (14) is not zero
            z = [dot(Q[i - 1], K[k - 1]) / math.sqrt(h) for k in range(1, i + 1)]
            normalizer = 0.0
            for f in range(1, i + 1):
                normalizer += math.exp(z[f - 1])
            a = [math.exp(z[k - 1]) / normalizer for k in range(1, i + 1)]  # (14)
            R = np.zeros(h)
            for k in range(1, i + 1):
                R += a[k - 1] * V[k - 1]  # (15)
            x_out_con[i - 1, head] = R  # (16)
    return np.array([times(x_out_con[i - 1], w["W_out"]) for i in range(1, t + 1)])  # (17)


def extract_by_matrices(x: Array, W_ext: Array) -> Array:
    """(23): x_out_ext_i is the sum over j <= i of x_j W_{i-j+1}."""
    out = np.zeros(x.shape)
    for i in range(1, x.shape[0] + 1):
        for j in range(1, i + 1):
            out[i - 1] += times(x[j - 1], W_ext[(i - j + 1) - 1])
    return out


def extract_by_vectors(x: Array, w_ext: Array) -> Array:
    """(26) and (28): x_out_ext_i is the sum over j <= i of x_j o w_{i-j+1}."""
    out = np.zeros(x.shape)
    for i in range(1, x.shape[0] + 1):
        for j in range(1, i + 1):
            for c in range(x.shape[1]):
                out[i - 1, c] += x[j - 1, c] * w_ext[(i - j + 1) - 1, c]
    return out


def adjust(x: Array, x_out_ext: Array, W_adj: Array) -> Array:
    """(24): what is adjusted may come from a transformed input, the adjustment never does."""
    out = np.zeros(x.shape)
    for i in range(1, x.shape[0] + 1):
        adjustment = times(x[i - 1], W_adj)
        for c in range(x.shape[1]):
            out[i - 1, c] = adjustment[c] * x_out_ext[i - 1, c]
    return out


def transform(x: Array, matrix: Array) -> Array:
    """(25) and (27): every token times one matrix."""
    return np.array([times(x[i - 1], matrix) for i in range(1, x.shape[0] + 1)])


def she(x: Array, w: Weights, n: int) -> Array:
    return transform(she_no_output(x, w, n), w["W_out"])


def she_no_output(x: Array, w: Weights, n: int) -> Array:
    return adjust(x, she_extraction(x, w, n), w["W_adj"])


def she_extraction(x: Array, w: Weights, n: int) -> Array:
    return extract_by_matrices(x, w["W_ext"])


def we(x: Array, w: Weights, n: int) -> Array:
    return transform(adjust(x, extract_by_vectors(x, w["w_ext"]), w["W_adj"]), w["W_out"])


def he(x: Array, w: Weights, n: int) -> Array:
    return transform(adjust(x, he_extraction(x, w, n), w["W_adj"]), w["W_out"])


def he_extraction(x: Array, w: Weights, n: int) -> Array:
    return extract_by_vectors(transform(x, w["W_in_ext"]), w["w_ext"])


def me(x: Array, w: Weights, n: int) -> Array:
    """(29): x_out_sub1_i is the sum over j <= i of x_j times the number w_{i-j+1}."""
    out = np.zeros(x.shape)
    for i in range(1, x.shape[0] + 1):
        for j in range(1, i + 1):
            for c in range(x.shape[1]):
                out[i - 1, c] += x[j - 1, c] * w["w_ext"][(i - j + 1) - 1]
    return out


# --------------------------------------------------------------------------------------------------
# The operations, by the convention of section 7: a sum of R terms is R-1 additions, no operation
# for a pair that (14) masks, a division by sqrt(h) for every score and one for every weight, no
# maximum taken out of the softmax. Square roots of sizes are not computed.
# --------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How many multiplications, additions, divisions and exponentiations have been done."""

    mul: int = 0
    add: int = 0
    div: int = 0
    exp: int = 0

    def sum_of_products(self, terms: int) -> None:
        for term in range(terms):
            self.mul += 1
            if term > 0:
                self.add += 1

    def sum_of(self, terms: int) -> None:
        for term in range(terms):
            if term > 0:
                self.add += 1

    def row_times_matrix(self, rows: int, columns: int) -> None:
        for _ in range(columns):
            self.sum_of_products(rows)

    @property
    def total(self) -> int:
        return self.mul + self.add + self.div + self.exp


def self_attention_token(t: int, d: int, n: int) -> Tally:
    """Only the newest token's query, key and value are new; so is the last row of every head."""
    ops = Tally()
    h = d // n
    for _head in range(n):
        for _matrix in ("Q", "K", "V"):
            ops.row_times_matrix(d, h)
        for _k in range(t):
            ops.sum_of_products(h)
            ops.div += 1
            ops.exp += 1
        ops.sum_of(t)
        for _k in range(t):
            ops.div += 1
        for _c in range(h):
            ops.sum_of_products(t)
    ops.row_times_matrix(d, d)
    return ops


def self_attention_sequence(l: int, d: int, n: int) -> Tally:
    ops = Tally()
    h = d // n
    for _head in range(n):
        for _matrix in ("Q", "K", "V"):
            for _i in range(l):
                ops.row_times_matrix(d, h)
        for i in range(1, l + 1):
            for k in range(1, l + 1):
                if k <= i:
                    ops.sum_of_products(h)
                    ops.div += 1
        for i in range(1, l + 1):
            ops.sum_of(i)
            for k in range(1, l + 1):
                if k <= i:
                    ops.exp += 1
                    ops.div += 1
        for i in range(1, l + 1):
            for _c in range(h):
                ops.sum_of_products(i)
    for _i in range(l):
        ops.row_times_matrix(d, d)
    return ops


def extraction_by_matrices_token(ops: Tally, t: int, d: int) -> None:
    """A row times a matrix for every token so far, then the sum of the results."""
    for _j in range(t):
        ops.row_times_matrix(d, d)
    for _c in range(d):
        ops.sum_of(t)


def extraction_by_weights_token(ops: Tally, t: int, d: int) -> None:
    """Whether the weight of a token is a vector or a number: one product for every channel."""
    for _c in range(d):
        ops.sum_of_products(t)


def adjustment_token(ops: Tally, d: int) -> None:
    ops.row_times_matrix(d, d)
    for _c in range(d):
        ops.mul += 1


def she_token(t: int, d: int, n: int) -> Tally:
    ops = she_no_output_token(t, d, n)
    ops.row_times_matrix(d, d)
    return ops


def she_no_output_token(t: int, d: int, n: int) -> Tally:
    ops = she_extraction_token(t, d, n)
    adjustment_token(ops, d)
    return ops


def she_extraction_token(t: int, d: int, n: int) -> Tally:
    ops = Tally()
    extraction_by_matrices_token(ops, t, d)
    return ops


def he_token(t: int, d: int, n: int) -> Tally:
    ops = he_extraction_token(t, d, n)
    adjustment_token(ops, d)
    ops.row_times_matrix(d, d)
    return ops


def he_extraction_token(t: int, d: int, n: int) -> Tally:
    """The earlier tokens' transformed inputs are kept; only the newest is transformed."""
    ops = Tally()
    ops.row_times_matrix(d, d)
    extraction_by_weights_token(ops, t, d)
    return ops


def we_token(t: int, d: int, n: int) -> Tally:
    ops = Tally()
    extraction_by_weights_token(ops, t, d)
    adjustment_token(ops, d)
    ops.row_times_matrix(d, d)
    return ops


def me_token(t: int, d: int, n: int) -> Tally:
    ops = Tally()
    extraction_by_weights_token(ops, t, d)
    return ops


def extractor_sequence(
    l: int,
    d: int,
    n: int,
    *,
    matrices: bool = False,
    into: bool = False,
    adj: bool = False,
    out: bool = False,
) -> Tally:
    """A whole sequence through an Extractor, one equation after the other over all its tokens."""
    ops = Tally()
    if into:  # (27)
        for _i in range(l):
            ops.row_times_matrix(d, d)
    for i in range(1, l + 1):  # (23), (26), (28) or (29)
        for j in range(1, l + 1):
            if j <= i:
                for _c in range(d):
                    if matrices:
                        ops.sum_of_products(d)
                    else:
                        ops.mul += 1
        for _c in range(d):
            ops.sum_of(i)
    if adj:  # (24)
        for _i in range(l):
            ops.row_times_matrix(d, d)
        for _i in range(l):
            for _c in range(d):
                ops.mul += 1
    if out:  # (25)
        for _i in range(l):
            ops.row_times_matrix(d, d)
    return ops


# --------------------------------------------------------------------------------------------------
# The levels of the newest token's operations: products side by side, sums in pairs. The paper's
# path has one cumulation where (23) sums over channels and tokens, hence one sum of td terms.
# --------------------------------------------------------------------------------------------------


def levels(terms: int) -> int:
    """How often a sum's terms are halved until one is left."""
    rounds = 0
    while terms > 1:
        terms = terms - terms // 2
        rounds += 1
    return rounds


def self_attention_levels(t: int, d: int, n: int) -> int:
    query = 1 + levels(d)
    score = query + 1 + levels(d // n) + 1
    weight = score + 1 + levels(t) + 1
    return weight + 1 + levels(t) + 1 + levels(d)


def she_levels(t: int, d: int, n: int) -> int:
    return she_no_output_levels(t, d, n) + 1 + levels(d)


def she_no_output_levels(t: int, d: int, n: int) -> int:
    return max(she_extraction_levels(t, d, n), 1 + levels(d)) + 1


def she_extraction_levels(t: int, d: int, n: int) -> int:
    return 1 + levels(t * d)


def we_levels(t: int, d: int, n: int) -> int:
    return max(me_levels(t, d, n), 1 + levels(d)) + 1 + 1 + levels(d)


def he_levels(t: int, d: int, n: int) -> int:
    return max(he_extraction_levels(t, d, n), 1 + levels(d)) + 1 + 1 + levels(d)


def he_extraction_levels(t: int, d: int, n: int) -> int:
    return 1 + levels(d) + me_levels(t, d, n)


def me_levels(t: int, d: int, n: int) -> int:
    return 1 + levels(t)


# --------------------------------------------------------------------------------------------------
# The newest token's output from the newest input and what was kept of the earlier ones.
# --------------------------------------------------------------------------------------------------


def self_attention_step(kept: Kept, newest: Array, w: Weights, n: int) -> Array:
    """Keys and values are kept, of all heads side by side."""
    h = len(newest) // n
    kept.setdefault("K", []).append(times(newest, w["W_K"]))
    kept.setdefault("V", []).append(times(newest, w["W_V"]))
    query = times(newest, w["W_Q"])
    R = np.zeros(len(newest))
    for j in range(1, n + 1):
        head = slice((j - 1) * h, j * h)
        e = [math.exp(dot(query[head], key[head]) / math.sqrt(h)) for key in kept["K"]]
        for weight, value in zip(e, kept["V"], strict=True):
            R[head] += weight / sum(e) * value[head]
    return times(R, w["W_out"])


def he_extraction_step(kept: Kept, newest: Array, w: Weights, n: int) -> Array:
    """The outputs of (27) are kept, called u; the inputs are not needed again."""
    kept.setdefault("u", []).append(times(newest, w["W_in_ext"]))
    extracted: Array = extract_by_vectors(np.array(kept["u"]), w["w_ext"])[-1]
    return extracted


def he_step(kept: Kept, newest: Array, w: Weights, n: int) -> Array:
    extracted = he_extraction_step(kept, newest, w, n)
    return times(times(newest, w["W_adj"]) * extracted, w["W_out"])


def raw_step(
    values: Callable[[Array, Weights, int], Array],
) -> Callable[[Kept, Array, Weights, int], Array]:
    """Without (27) the extraction reads the inputs themselves."""

    def step(kept: Kept, newest: Array, w: Weights, n: int) -> Array:
        kept.setdefault("x", []).append(newest)
        row: Array = values(np.array(kept["x"]), w, n)[-1]
        return row

    return step


# --------------------------------------------------------------------------------------------------
# The mixers.
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """One mixer as the papers define it."""

    weights: tuple[str, ...]
    """Every trainable array with its extents, as "name extents"."""
    values: Callable[[Array, Weights, int], Array]
    sequence: Callable[[int, int, int], Tally]
    token: Callable[[int, int, int], Tally]
    levels: Callable[[int, int, int], int]
    path: str
    """Multiplication, cumulation, division and exponentiation, in the paper's order."""
    step: Callable[[Kept, Array, Weights, int], Array]
    kept: tuple[str, ...]

    def shapes(self, l: int, d: int) -> dict[str, tuple[int, ...]]:
        """The extents of every trainable array."""
        extent = {"l": l, "d": d}
        named = (entry.split() for entry in self.weights)
        return {name: tuple(extent[letter] for letter in letters) for name, letters in named}

    def drawn(self, l: int, d: int) -> tuple[Array, Weights]:
        """An input and weights, the same for the same sizes."""
        random = np.random.default_rng([l, d])
        shapes = self.shapes(l, d)
        return random.standard_normal((l, d)), {
            name: random.standard_normal(shape) for name, shape in shapes.items()
        }


PRINTED = {
    "self-attention": Printed(
        ("W_Q dd", "W_K dd", "W_V dd", "W_out dd"),
        self_attention,
        self_attention_sequence,
        self_attention_token,
        self_attention_levels,
        "mul sum mul sum div exp sum div mul sum mul sum",
        self_attention_step,
        ("K", "V"),
    ),
    "she": Printed(
        ("W_ext ldd", "W_adj dd", "W_out dd"),
        she,
        partial(extractor_sequence, matrices=True, adj=True, out=True),
        she_token,
        she_levels,
        "mul sum mul mul sum",
        raw_step(she),
        ("x",),
    ),
    "she-no-output": Printed(
        ("W_ext ldd", "W_adj dd"),
        she_no_output,
        partial(extractor_sequence, matrices=True, adj=True),
        she_no_output_token,
        she_no_output_levels,
        "mul sum mul",
        raw_step(she_no_output),
        ("x",),
    ),
    "she-extraction": Printed(
        ("W_ext ldd",),
        she_extraction,
        partial(extractor_sequence, matrices=True),
        she_extraction_token,
        she_extraction_levels,
        "mul sum",
        raw_step(she_extraction),
        ("x",),
    ),
    "we": Printed(
        ("w_ext ld", "W_adj dd", "W_out dd"),
        we,
        partial(extractor_sequence, adj=True, out=True),
        we_token,
        we_levels,
        "mul sum mul mul sum",
        raw_step(we),
        ("x",),
    ),
    "he": Printed(
        ("W_in_ext dd", "w_ext ld", "W_adj dd", "W_out dd"),
        he,
        partial(extractor_sequence, into=True, adj=True, out=True),
        he_token,
        he_levels,
        "mul sum mul sum mul mul sum",
        he_step,
        ("u",),
    ),
    "he-extraction": Printed(
        ("W_in_ext dd", "w_ext ld"),
        he_extraction,
        partial(extractor_sequence, into=True),
        he_extraction_token,
        he_extraction_levels,
        "mul sum mul sum",
        he_extraction_step,
        ("u",),
    ),
    "me": Printed(
        ("w_ext l",),
        me,
        extractor_sequence,
        me_token,
        me_levels,
        "mul sum",
        raw_step(me),
        ("x",),
    ),
}
"""Paths are printed for self-attention, SHE and ME, the others follow from Figures 4 and 5.

Version 1 prints the Extractor's path without the Hadamard product of (24) and a garbled one of
self-attention; these are the later version's.
"""

SIZES = (
    (1, 1, 1),
    (1, 7, 7),
    (5, 1, 1),
    (2, 3, 1),
    (3, 2, 2),
    (5, 7, 1),
    (7, 5, 5),
    (11, 3, 1),
    (5, 6, 2),
    (7, 6, 3),
    (3, 10, 5),
    (2, 15, 3),
)
"""l, d and n: primes and 1, and products of two primes where a head is to be wider than 1."""

every_mixer = pytest.mark.parametrize("name", PRINTED)
every_size = pytest.mark.parametrize(("l", "d", "n"), SIZES)


def close(result: Array, expected: Array) -> None:
    scale = float(np.max(np.abs(expected)))
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12 * scale)


def by_class(counts: Any) -> dict[str, int]:
    """Every class of operations that the package counts, the foreign ones and the one-off too."""
    assert not counts.other and not counts.once.total
    return {"mul": counts.mul, "add": counts.add, "div": counts.div, "exp": counts.exp}


@every_size
@every_mixer
def test_equations_give_the_values_of_the_papers(name: str, l: int, d: int, n: int) -> None:
    x, w = PRINTED[name].drawn(l, d)
    result = cm.evaluate(cm.mixer(name), {"x": x, **w}, {"l": l, "d": d, "n": n})
    close(result, PRINTED[name].values(x, w, n))


@every_size
@every_mixer
def test_a_shorter_sequence_has_the_first_rows(name: str, l: int, d: int, n: int) -> None:
    x, w = PRINTED[name].drawn(l, d)
    result = cm.evaluate(cm.mixer(name), {"x": x, **w}, {"l": l, "d": d, "n": n})
    for t in range(1, l + 1):
        close(result[:t], PRINTED[name].values(x[:t], w, n))


@every_size
@every_mixer
def test_operations_of_a_sequence(name: str, l: int, d: int, n: int) -> None:
    counts = cm.count(cm.mixer(name), phase="training").at(l=l, d=d, n=n)
    by_hand = PRINTED[name].sequence(l, d, n)
    assert by_class(counts) == vars(by_hand)
    assert counts.total == by_hand.total


@every_size
@every_mixer
def test_operations_of_one_token(name: str, l: int, d: int, n: int) -> None:
    inference = cm.count(cm.mixer(name), phase="inference")
    for t in range(1, l + 1):
        counts = inference.at(t=t, l=l, d=d, n=n)
        by_hand = PRINTED[name].token(t, d, n)
        assert by_class(counts) == vars(by_hand)
        assert counts.total == by_hand.total


@every_size
@every_mixer
def test_parameters_equal_the_size_of_the_weights(name: str, l: int, d: int, n: int) -> None:
    _, w = PRINTED[name].drawn(l, d)
    by_hand = sum(array.size for array in w.values())
    assert cm.parameters(cm.mixer(name)).at(l=l, d=d, n=n) == by_hand


@every_size
@every_mixer
def test_spans_equal_levels_counted_by_hand(name: str, l: int, d: int, n: int) -> None:
    m = cm.mixer(name)
    assert cm.span(m).at(l=l, d=d, n=n) == PRINTED[name].levels(l, d, n)
    for t in range(1, l + 1):
        assert cm.span(m, phase="inference").at(t=t, d=d, n=n) == PRINTED[name].levels(t, d, n)


@pytest.mark.parametrize("phase", ["training", "inference"])
@every_mixer
def test_critical_paths_equal_those_of_the_papers(name: str, phase: str) -> None:
    steps = cm.critical_path(cm.mixer(name), phase=phase).steps
    assert steps == tuple(PRINTED[name].path.split())


@every_size
@every_mixer
def test_what_is_kept_suffices_and_is_the_state(name: str, l: int, d: int, n: int) -> None:
    x, w = PRINTED[name].drawn(l, d)
    whole = PRINTED[name].values(x, w, n)
    state = cm.state(cm.mixer(name))
    kept: Kept = {}
    for t in range(1, l + 1):
        close(PRINTED[name].step(kept, x[t - 1], w, n), whole[t - 1])
        assert set(kept) == set(state.arrays)
        assert state.at(t=t, l=l, d=d, n=n) == sum(len(r) for rows in kept.values() for r in rows)


# --------------------------------------------------------------------------------------------------
# What the papers print as formulas, and what the formulas give at the papers' sizes.
# --------------------------------------------------------------------------------------------------

d, l, n, t = sympy.symbols("d l n t")


def summed(body: Any) -> Any:
    """The printed sum over t = 1, ..., l."""
    return sympy.summation(body, (t, 1, l))


half = sympy.Rational(1, 2)

TABLE_3 = {
    ("self-attention", "mul"): (
        (3 * d * (d / n) * l + summed(t * (d / n) + t * (d / n))) * n + d * d * l,
        l**2 * d + 4 * l * d**2 + l * d,
    ),
    ("self-attention", "add"): (
        (
            3 * (d - 1) * (d / n) * l
            + summed(t * (d / n - 1) + (t - 1) * (d / n) + (t - 1))
        ) * n + (d - 1) * d * l,
        l**2 * d + 4 * l * d**2 - 4 * l * d - l * n,
    ),
    ("self-attention", "div"): (n * summed(t + t), n * l**2 + n * l),
    ("self-attention", "exp"): (n * summed(t), half * n * l**2 + half * n * l),
    ("she", "mul"): (
        summed(d * d * t + d * d + d + d * d),
        half * l**2 * d**2 + 5 * half * l * d**2 + l * d,
    ),
    # The first line of this cell is not in the text at hand: it is Table 4's, summed over t.
    ("she", "add"): (
        summed((d - 1) * d * t + (t - 1) * d + (d - 1) * d + (d - 1) * d),
        half * l**2 * d**2 + 5 * half * l * d**2 - 3 * l * d,
    ),
    ("she", "div"): (0, 0),
    ("she", "exp"): (0, 0),
}  # fmt: skip
"""Version 1, a sequence of l tokens: (mixer, class) -> the printed sum and its closed form."""

TABLE_3_PARAMETERS = {
    "self-attention": (3 * d * (d / n) * n + d * d, 4 * d**2),
    "she": (d * d * l + d * d + d * d, l * d**2 + 2 * d**2),
}

TABLE_4 = {
    ("self-attention", "mul"): (
        (3 * d * (d / n) + t * (d / n) + t * (d / n)) * n + d * d,
        2 * t * d + 4 * d**2,
    ),
    ("self-attention", "add"): (
        (3 * (d - 1) * (d / n) + t * (d / n - 1) + (t - 1) * (d / n) + (t - 1)) * n + (d - 1) * d,
        2 * t * d + 4 * d**2 - 5 * d - n,
    ),
    ("self-attention", "div"): ((t + t) * n, 2 * t * n),
    ("self-attention", "exp"): (t * n, t * n),
    ("she", "mul"): (d * d * t + d * d + d + d * d, t * d**2 + 2 * d**2 + d),
    ("she", "add"): (
        (d - 1) * d * t + (t - 1) * d + (d - 1) * d + (d - 1) * d,
        t * d**2 + 2 * d**2 - 3 * d,
    ),
    ("she", "div"): (0, 0),
    ("she", "exp"): (0, 0),
}
"""Version 1, the new token at position t."""


def equal(first: Any, second: Any) -> bool:
    return bool(sympy.expand(first - second) == 0)


@pytest.mark.parametrize(("name", "kind"), TABLE_3)
def test_training_counts_equal_table_3(name: str, kind: str) -> None:
    long, closed = TABLE_3[name, kind]
    assert equal(long, closed)
    assert equal(getattr(cm.count(cm.mixer(name), phase="training"), kind), closed)


@pytest.mark.parametrize("name", TABLE_3_PARAMETERS)
def test_parameters_equal_table_3(name: str) -> None:
    long, closed = TABLE_3_PARAMETERS[name]
    assert equal(long, closed)
    assert equal(cm.parameters(cm.mixer(name)).expr, closed)


@pytest.mark.parametrize(("name", "kind"), TABLE_4)
def test_inference_counts_equal_table_4(name: str, kind: str) -> None:
    long, closed = TABLE_4[name, kind]
    assert equal(long, closed)
    assert equal(getattr(cm.count(cm.mixer(name), phase="inference"), kind), closed)


STATE = {
    "self-attention": {"K": t * d, "V": t * d},
    "she": {"x": t * d},
    "she-no-output": {"x": t * d},
    "she-extraction": {"x": t * d},
    "he": {"u": t * d},
    "he-extraction": {"u": t * d},
    "we": {"x": t * d},
    "me": {"x": t * d},
}
"""Keys and values; the raw inputs; or the inputs transformed by (27)."""


@every_mixer
def test_state_equals_a_formula_by_hand(name: str) -> None:
    state = cm.state(cm.mixer(name))
    assert {array: held.expr for array, held in state.arrays.items()} == STATE[name]
    assert equal(state.expr, sum(STATE[name].values()))


# (mixer, n): operations of 128 tokens, of the token at t = 128, trainable numbers, levels
FIGURES = {
    ("self-attention", 1): (20_947_008, 196_351, 65_536, 42),
    ("self-attention", 8): (21_119_488, 199_032, 65_536, 39),
    ("self-attention", 32): (21_710_848, 208_224, 65_536, 37),
    ("she", 1): (278_888_448, 4_259_584, 2_129_920, 24),
    ("he", 1): (14_647_296, 130_688, 65_536, 25),
    ("we", 1): (10_469_376, 98_048, 49_152, 17),
    ("me", 1): (2_097_152, 32_640, 128, 8),
}
"""At d = l = 128, the sizes of Table 1 (the heads are those that the papers' text compares)."""


@pytest.mark.parametrize(("name", "n"), FIGURES)
def test_figures_at_128_equal_the_expected_ones(name: str, n: int) -> None:
    m = cm.mixer(name)
    assert FIGURES[name, n] == (
        cm.count(m, phase="training").at(d=128, l=128, n=n).total,
        cm.count(m, phase="inference").at(d=128, t=128, n=n).total,
        cm.parameters(m).at(d=128, l=128, n=n),
        cm.span(m).at(d=128, l=128, n=n),
    )


@pytest.mark.parametrize(("name", "n"), FIGURES)
def test_figures_by_hand(name: str, n: int) -> None:
    _, token, parameters, span = FIGURES[name, n]
    printed = PRINTED[name]
    assert printed.token(128, 128, n).total == token
    assert sum(math.prod(shape) for shape in printed.shapes(128, 128).values()) == parameters
    assert printed.levels(128, 128, n) == span


@pytest.mark.parametrize(("name", "n"), [key for key in FIGURES if key[0] != "she"])
def test_totals_by_hand(name: str, n: int) -> None:
    """SHE's 278,888,448 are too many to count one by one; its total is held to Table 3 below."""
    assert PRINTED[name].sequence(128, 128, n).total == FIGURES[name, n][0]


@pytest.mark.parametrize(("name", "heads"), [k for k in FIGURES if k[0] in TABLE_3_PARAMETERS])
def test_totals_by_table_3(name: str, heads: int) -> None:
    total = sum(closed for (mixer, _), (_, closed) in TABLE_3.items() if mixer == name)
    assert total.subs({d: 128, l: 128, n: heads}) == FIGURES[name, heads][0]
