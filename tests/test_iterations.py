"""Do rounds over an axis other than the tokens have the costs and gradients of execution?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison

Write = Callable[[Mixer, Form, Array, Array], None]
FORMS: list[Write] = []
SIZES = [{"l": 1, "d": 1, "r": 1, "k": 1}, {"l": 2, "d": 1, "r": 3, "k": 2}]


def mixer(write: Write) -> Mixer:
    """A mixer of l tokens of width d, with r rows and columns and k rounds."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def form(write: Write) -> Write:
    """One of the forms that are held to execution."""
    FORMS.append(write)
    return write


@form
def quotients(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Sinkhorn: k rounds that divide each row of a token's matrix by its sum, then each column."""
    (l, d), (r, k) = x.shape, m.sizes("r k")
    W = m.parameter("W", d, r, r)
    i, a, o = f.index("i", 1, l), f.index("a", 1, d), f.index("o", 2, k + 1)
    p, q, u, v = (f.index(name, 1, r) for name in "pquv")
    S, T = f.array("S", l, k + 1, r, r), f.array("T", l, k + 1, r, r)
    S[i, 1, p, q] = cm.exp(cm.sum_(x[i, a] * W[a, p, q], over=a))
    T[i, o, p, q] = S[i, o - 1, p, q] / cm.sum_(S[i, o - 1, p, v], over=v)
    S[i, o, p, q] = T[i, o, p, q] / cm.sum_(T[i, o, u, q], over=u)
    y[i, a] = cm.sum_(S[i, k + 1, p, q] * W[a, p, q], over=(p, q))


@form
def logarithms(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The same of logarithms, a maximum subtracted from rows before their exponentials."""
    (l, d), (r, k) = x.shape, m.sizes("r k")
    W = m.parameter("W", d, r, r)
    i, a, o = f.index("i", 1, l), f.index("a", 1, d), f.index("o", 2, k + 1)
    p, q, u = (f.index(name, 1, r) for name in "pqu")
    S, T = f.array("S", k + 1, l, r, r), f.array("T", k + 1, l, r, r)
    M, L = f.array("M", k + 1, l, r), f.array("L", k + 1, l, r)
    S[1, i, p, q] = cm.sum_(x[i, a] * W[a, p, q], over=a)
    M[o, i, p] = cm.max_over(S[o - 1, i, p, q], over=q)
    shifted = cm.exp(S[o - 1, i, p, q] - M[o, i, p])
    L[o, i, p] = M[o, i, p] + cm.function("log", cm.sum_(shifted, over=q))
    T[o, i, p, q] = S[o - 1, i, p, q] - L[o, i, p]
    S[o, i, p, q] = T[o, i, p, q] - cm.function("log", cm.sum_(cm.exp(T[o, i, u, q]), over=u))
    y[i, a] = cm.sum_(cm.exp(S[k + 1, i, p, q]) * W[a, p, q], over=(p, q))


@form
def inverse(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Newton-Schulz: 3 rounds Z <- Z (13 I - AZ (15 I - AZ (7 I - AZ))) / 4."""
    (l, d), (r,), last = x.shape, m.sizes("r"), 4
    E = m.parameter("E", l, r)
    unit = m.buffer("I", r, r, value=lambda p, q, sizes: float(p == q))
    i, j, a, o = f.index("i", 1, l), f.index("j", 1, l), f.index("a", 1, d), f.index("o", 2, last)
    p, q, u = (f.index(name, 1, r) for name in "pqu")
    P, A = f.array("P", r, d), f.array("A", r, r)
    Z, G, B, D, H = (f.array(name, last, r, r) for name in "ZGBDH")
    P[p, a] = cm.sum_(E[j, p] * x[j, a], over=j)
    A[p, q] = cm.exp(cm.sum_(P[p, a] * P[q, a], over=a))
    Z[1, p, q] = A[q, p] / cm.sum_(A[u, q], over=u)
    G[o, p, q] = cm.sum_(A[p, u] * Z[o - 1, u, q], over=u)
    D[o, p, q] = 7 * unit[p, q] - G[o, p, q]
    B[o, p, q] = 15 * unit[p, q] - cm.sum_(G[o, p, u] * D[o, u, q], over=u)
    H[o, p, q] = 13 * unit[p, q] - cm.sum_(G[o, p, u] * B[o, u, q], over=u)
    Z[o, p, q] = cm.sum_(Z[o - 1, p, u] * H[o, u, q], over=u) / 4
    y[i, a] = cm.sum_(E[i, p] * Z[last, p, q] * P[q, a], over=(p, q))


@form
def layers(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """k layers, each a sum over the rows so far of the layer below, and what comes in."""
    (l, d), (k,) = x.shape, m.sizes("k")
    W, w = m.parameter("W", k, d, d), m.parameter("w", l)
    i, a, b, o = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d), f.index("o", 2, k + 1)
    j, H = f.index("j", 1, i), f.array("H", k + 1, l, d)
    H[1, i, a] = x[i, a]
    seen = cm.sum_(H[o - 1, j, a] * W[o - 1, a, b] * w[i - j + 1], over=(j, a))
    H[o, i, b] = H[o - 1, i, b] + cm.function("tanh", seen)
    y[i, a] = H[k + 1, i, a] * w[i]


@form
def rings(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """k rounds in which a row is computed from the one before it on a ring."""
    (l, d), (k,) = x.shape, m.sizes("k")
    W = m.parameter("W", d, d)
    i, q, o = f.index("i", 1, l), f.index("q", 2, l), f.index("o", 2, k + 1)
    a, b = f.index("a", 1, d), f.index("b", 1, d)
    H, L = (f.array(name, k + 1, l, d) for name in "HL")
    H[1, i, a] = x[i, a]
    L[o, 1, a] = H[o - 1, l, a]
    L[o, q, a] = H[o - 1, q - 1, a]
    H[o, i, b] = cm.function("tanh", cm.sum_(L[o, i, a] * W[a, b], over=a))
    y[i, a] = H[k + 1, i, a]


def test_rows_on_a_ring_have_formulas() -> None:
    """A product, the sum of d terms and a tanh a round; x, the rows of all rounds and
    the copies of one live."""
    made = mixer(rings)
    for sizes in ({"l": 1, "d": 4, "k": 3}, {"l": 5, "d": 4, "k": 3}):
        assert cm.span(made).at(**sizes) == 3 * (1 + 2 + 1)
        assert cm.sequential(made).at(**sizes) == 3 * (1 + 1 + 1)
        assert cm.sequential(made, "backward").at(**sizes) == 11
        assert cm.peak(made).at(**sizes) == sizes["l"] * 4 * (1 + 4 + 1)


@form
def butterflies(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A Hadamard transform of 2**k entries in k stages: each interleaves sums and differences of
    entries that are half of them apart (Pease 1968)."""
    (l, d), (k,) = x.shape, m.sizes("k")
    half, w = 2 ** (k - 1), m.parameter("w", d, 2**k)
    i, a, o = f.index("i", 1, l), f.index("a", 1, d), f.index("o", 2, k + 1)
    c, e, s = f.index("c", 1, half), f.index("e", 1, 2**k), f.index("s", 1, 2)
    sign = m.buffer("sign", 2, value=lambda s, sizes: 3.0 - 2 * s)
    H = f.array("H", k + 1, l, 2**k)
    H[1, i, e] = cm.sum_(x[i, a] * w[a, e], over=a)
    H[o, i, (c - 1) * 2 + s] = H[o - 1, i, c] + sign[s] * H[o - 1, i, c + half]
    y[i, a] = cm.sum_(H[k + 1, i, e] * w[a, e], over=e)


@pytest.mark.grid(4)
@pytest.mark.parametrize("write", FORMS)
@pytest.mark.parametrize(
    "sizes", [{"l": 1, "d": 1, "r": 1, "k": 1}, {"l": 2, "d": 1, "r": 3, "k": 2}]
)
def test_derived_answers_are_those_of_an_execution(write: Write, sizes: dict[str, int]) -> None:
    made = mixer(write)
    known = {letter: sizes[letter] for letter in made.letters}
    assert OracleComparison(made).at(known).apart == []
    backward = GradientComparison(made).at(known)
    assert backward.apart == []
    assert "counts" in str([*backward.compared])


def test_what_reads_a_loop_in_part_written_before_its_end_waits_for_it() -> None:
    """z reads S, which T completes row by row although it is written after z."""

    def between(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        i, z, b = f.index("i", 2, l), f.index("z", 1, l), f.index("b", 1, d)
        S, T, R = f.array("S", l, d), f.array("T", l, d), f.array("R", l, d)
        S[1, b] = x[1, b]
        S[i, b] = x[i, b] + T[i - 1, b]
        R[z, b] = S[z, b] * S[z, b]
        T[z, b] = cm.function("tanh", S[z, b])
        y[z, b] = R[z, b] + T[z, b]

    for sizes in ({"l": 1, "d": 1}, {"l": 3, "d": 2}):
        made = OracleComparison(mixer(between)).at(sizes)
        assert made.apart == []
        assert "values" in made.compared


@pytest.mark.parametrize("write", [quotients, inverse, layers, butterflies])
def test_rounds_start_from_what_is_written(write: Write) -> None:
    """Only a recurrence over tokens has a state that could be zeros."""
    written = mixer(write).forms["direct"]
    assert lower(written, ("zero-state",)).equations == lower(written).equations
