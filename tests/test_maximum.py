"""What does the larger of two values cost, and which operand receives its gradient?"""

from __future__ import annotations

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.language.notation import equation
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison


def clipped() -> Mixer:
    """The sum of the w rows before, clipped to -1..1, and the larger of the row and a weight."""
    m = Mixer("clipped")
    l, d, w = m.sizes("l d w")
    x, y, c = m.input("x", l, d), m.output("y", l, d), m.parameter("c", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        j = f.index("j", cm.max_(1, i - w), i - 1)
        low = cm.maximum(cm.sum_(x[j, a] * c[a], over=j), -1)
        y[i, a] = cm.minimum(low, 1) + cm.maximum(x[i, a], c[a])
    return m


def stabilised() -> Mixer:
    """The stabiliser of mLSTM, max(F[i] + m[i-1], I[i]), subtracted in exponents (Beck et al. 2024,
    arXiv 2405.04517)."""
    m = Mixer("stabilised")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", 2, d)
    with m.form("recurrent") as f:
        i, z, g = f.index("i", 2, l), f.index("z", 1, l), f.index("g", 1, 2)
        a, e = f.index("a", 1, d), f.index("e", 1, d)
        G, M, S = f.array("G", 2, l), f.array("M", l), f.array("S", l, d)
        G[g, z] = cm.sum_(x[z, a] * w[g, a], over=a)
        M[1] = G[1, 1]
        M[i] = cm.maximum(G[2, i] + M[i - 1], G[1, i])
        S[1, a] = x[1, a]
        kept, new = cm.exp(G[2, i] + M[i - 1] - M[i]), cm.exp(G[1, i] - M[i])
        S[i, a] = kept * S[i - 1, a] + new * x[i, a]
        y[z, a] = S[z, a] / cm.maximum(cm.sum_(S[z, e] * S[z, e], over=e), cm.exp(-M[z]))
    return m


@pytest.mark.parametrize("sizes", [{"l": 1, "d": 1, "w": 1}, {"l": 3, "d": 2, "w": 1}])
@pytest.mark.parametrize("made", [clipped(), stabilised()], ids=["clipped", "stabilised"])
def test_derived_answers_are_those_of_an_execution(made: Mixer, sizes: dict[str, int]) -> None:
    known = {letter: sizes[letter] for letter in made.letters}
    for compared in (OracleComparison(made), GradientComparison(made)):
        assert compared.at(known).apart == []
        assert compared.refused == []


def test_one_comparison_each_be_it_with_a_sum_over_no_term() -> None:
    l, d = 5, 3
    assert cm.count(clipped()).at(l=l, d=d, w=2).other == {"compare": 3 * l * d}


def test_the_gradient_goes_to_the_larger_one_and_of_equal_ones_to_the_second() -> None:
    x, c = np.array([[1.0], [2.0], [3.0]]), np.array([2.0])
    sizes = {"l": 3, "d": 1, "w": 1}
    found = cm.gradients(clipped(), {"x": x, "c": c}, np.ones((3, 1)), sizes)
    # c x[1] = 2 and c x[2] = 4 are clipped
    assert found["x"].tolist() == [[0.0], [0.0], [1.0]]
    assert found["c"].tolist() == [2.0]


def test_it_is_printed_as_a_maximum() -> None:
    (written,) = clipped().forms["direct"].equations
    assert equation(written, latex=False).right.endswith("+ max(x[i,a], c[a])")
    assert equation(written).right.endswith(r"+ \max\left(x_{i,a}, c_{a}\right)")
