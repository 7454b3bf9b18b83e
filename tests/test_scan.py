"""Is a linear recurrence by a parallel scan counted as executed, and equal to a loop in value?

A combination of two spans of rows takes a product and a sum for each number that a row adds, and a
product of decays, which columns share. The numbers of combinations are counted here from the
algorithms, round by round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, Mixer, exp, scan
from costmodel.errors import WrongKind
from costmodel.language.equations import Form
from costmodel.language.notation import equation as printed
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison
from tests.small import by_sizes

Sizes = dict[str, int]
KOGGE_STONE, BRENT_KUNG = (), ("scan=brent-kung",)
each_algorithm = pytest.mark.parametrize("rewrites", [KOGGE_STONE, BRENT_KUNG], ids=str)


def matrices() -> Mixer:
    """S_i = A_i S_(i-1) + k_i v_i^T with a decay A for each channel of the keys, which its columns
    share; y_i sums S_i over these channels. By a scan, and by the recurrence."""
    made = Mixer("matrices")
    l, d, r = made.sizes("l d r")
    x, y = made.input("x", l, d), made.output("y", l, d)
    W = {name: made.parameter(f"W_{name}", d, r) for name in "AK"}
    for form in ("recurrent", "scan"):
        with made.form(form) as f:
            i, later, w = f.index("i", 1, l), f.index("later", 2, l), f.index("w", 1, l)
            a, c, p = f.index("a", 1, d), f.index("c", 1, d), f.index("p", 1, r)
            A, K, S = f.array("A", l, r), f.array("K", l, r), f.array("S", l, r, d)
            A[later, p] = exp(cm.sum_(x[later, a] * W["A"][a, p], over=a))
            K[i, p] = cm.sum_(x[i, a] * W["K"][a, p], over=a)
            if form == "scan":
                B = f.array("B", l, r, d)
                A[1, p] = 0
                B[i, p, c] = K[i, p] * x[i, c]
                S[i, p, c] = scan(A[w, p], B[w, p, c], over=w)
            else:
                S[1, p, c] = K[1, p] * x[1, c]
                S[later, p, c] = A[later, p] * S[later - 1, p, c] + K[later, p] * x[later, c]
            y[i, c] = cm.sum_(S[i, p, c], over=p)
    return made


def kogge_stone(rows: int) -> int:
    """The combinations of each row with the one 1, 2, 4, ... rows before it, where there is one."""
    return sum(rows - 2**p for p in range(rows.bit_length()) if 2**p < rows)


def brent_kung(rows: int) -> int:
    """The combinations for a power of two: neighbours, the scan of the pairs, and one for every
    other row but the first."""
    return 0 if rows == 1 else rows // 2 + brent_kung(rows // 2) + rows // 2 - 1


LENGTHS = [{"l": l, "d": 2, "r": 3} for l in (1, 2, 3, 4, 5, 7, 8, 9)]


@each_algorithm
@by_sizes(LENGTHS)
def test_a_scan_is_counted_as_executed(rewrites: tuple[str, ...], sizes: Sizes) -> None:
    made = OracleComparison(matrices(), "scan", rewrites).at(sizes)
    assert (made.apart, made.refused) == ([], [])
    assert {"counts", "span", "values", "unfused traffic", "peak"} <= {*made.compared}


@each_algorithm
@by_sizes(LENGTHS[::2])
def test_the_gradient_of_a_scan_is_a_scan_back(rewrites: tuple[str, ...], sizes: Sizes) -> None:
    made = GradientComparison(matrices(), "scan", rewrites).at(sizes)
    assert (made.apart, made.refused) == ([], [])


@each_algorithm
@pytest.mark.parametrize("read", ["last", "before", "first and last", "one column"])
@by_sizes([{"l": l, "d": 2} for l in (1, 2, 3, 4)])
def test_the_gradient_of_a_scan_of_which_some_rows_are_read(
    rewrites: tuple[str, ...], read: str, sizes: Sizes
) -> None:
    """The rows that no equation reads get a gradient of zero."""
    made = GradientComparison(partly_read(read), "direct", rewrites).at(sizes)
    assert (made.apart, made.refused) == ([], [])


def partly_read(read: str) -> Mixer:
    """y_i is x_i times rows of a scan of x with weights as decays: of the last row, of the row
    before, of the first and last row, or of one column of the last row. Row 1 of what is added
    depends on weights alone in the first of these."""
    made = Mixer("partly-read")
    l, d = made.sizes("l d")
    x, y, p = made.input("x", l, d), made.output("y", l, d), made.parameter("p", l, d)
    with made.form("direct") as f:
        i, w, later = f.index("i", 1, l), f.index("w", 1, l), f.index("later", 2, l)
        c, S, B = f.index("c", 1, d), f.array("S", l, d), f.array("B", l, d)
        B[1, c] = 2 * (p[1, c] if read == "last" else x[1, c])
        B[later, c] = 2 * x[later, c]
        S[i, c] = scan(p[w, c], B[w, c], over=w)
        if read == "before":
            y[1, c] = x[1, c]
            y[later, c] = x[later, c] * S[later - 1, c]
        else:
            rows = {"last": S[l, c], "first and last": S[1, c] * S[l, c], "one column": S[l, 1]}
            y[i, c] = x[i, c] * rows[read]
    return made


@pytest.mark.parametrize("l", [1, 2, 3, 5, 8, 13, 64, 100])
def test_combinations_and_rounds(l: int) -> None:
    """Beside the recurrence with l - 1 products and sums in sequence."""
    mixer, d, r, stages = matrices(), 5, 7, (l - 1).bit_length()
    before = cm.count(mixer, "training", "recurrent").at(l=l, d=d, r=r)
    for rewrites, combinations, rounds in (
        (KOGGE_STONE, kogge_stone(l), stages),
        (BRENT_KUNG, brent_kung(2**stages), max(stages, 2 * stages - 2)),
    ):
        asked = mixer, "training", "scan", ("strict", *rewrites)
        found, deep = cm.count(*asked).at(l=l, d=d, r=r), cm.span(*asked)
        assert found.mul - before.mul == combinations * (d + 1) * r - (l - 1) * d * r
        assert found.add - before.add == (combinations - (l - 1)) * d * r
        assert deep.at(l=l, d=d, r=r) - deep.at(l=1, d=d, r=r) == 2 * rounds


STATES = {
    "rg-lru": (8, 8),
    "mamba{E=6,N=5,R=2}": (6 * 5, 6 * 5),
    "mamba-2{n=2,P=3,N=5,G=1}": (2 * 3 * 5, 2),
    "gla{n=2,h=4,v=2,r=3}": (2 * 2 * 4, 2 * 2),
    "retnet{n=2,h=4,v=2}": (2 * 4 * 8, 2),
    "lightning{n=2,h=4}": (2 * 4 * 4, 2),
    "mamba-3{n=2,P=3,R=2,M=1,G=1}": (2 * 3 * 5, 2 * 2, 2 * 2),
}
"""A mixer of width 8 -> (numbers that a row adds to the states, its decays in each array of states,
and, if any, running sums beside the states, here angles, which a scan decays by 1)."""


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("l", [1, 6, 8])
def test_mixers_combine_their_states(name: str, l: int) -> None:
    """Beside their recurrence, which takes a product and a sum a state and row, but for the
    first."""
    states, decays, *summed = STATES[name]
    angles = sum(summed)
    sizes = {"l": l, "d": 8, "n": 2, "k": 4} if name == "rg-lru" else {"l": l, "d": 8, "k": 4}
    mixer = cm.mixer(name)
    sizes = {letter: size for letter, size in sizes.items() if letter in mixer.letters}
    before = cm.count(mixer, "training", "recurrent").at(**sizes)
    for rewrites, combinations in (
        (KOGGE_STONE, kogge_stone(l)),
        (BRENT_KUNG, brent_kung(2 ** (l - 1).bit_length())),
    ):
        found = cm.count(mixer, "training", "scan", ("strict", *rewrites)).at(**sizes)
        products = states + decays + angles + bool(angles)
        assert found.mul - before.mul == combinations * products - (l - 1) * states
        assert found.add - before.add == (combinations - (l - 1)) * (states + angles)


def test_a_scan_equals_a_loop() -> None:
    rng = np.random.default_rng(3)
    x, W_A, W_K = rng.normal(size=(6, 2)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    S, rows = np.zeros((3, 2)), []
    for row in x:
        S = np.exp(row @ W_A)[:, None] * S + np.outer(row @ W_K, row)
        rows.append(S.sum(0))
    arrays = {"x": x, "W_A": W_A, "W_K": W_K}
    found = cm.evaluate(matrices(), arrays, {"l": 6, "d": 2, "r": 3}, "scan")
    np.testing.assert_allclose(found, rows, rtol=1e-12)


def test_a_scan_as_printed() -> None:
    (written,) = (e for e in matrices().forms["scan"].equations if e.name == "S")
    assert printed(written, latex=False).right == "scan(A[w,p], B[w,p,c], over w)"
    latex = printed(written).right
    assert latex == r"\mathrm{scan}_{w}\left(A_{w,p}, B_{w,p,c}\right)"


Wrong = Callable[[Form, Any, Any], None]


def _short(f: Form, A: Any, B: Any) -> None:
    i, v = f.index("i", 1, B.shape[0]), f.index("v", 2, B.shape[0])
    f.array("S", *B.shape)[i] = scan(A[v], B[v], over=v)


def _longer(f: Form, A: Any, B: Any) -> None:
    i, w = f.index("i", 2, B.shape[0]), f.index("w", 1, B.shape[0])
    f.array("S", *B.shape)[i] = scan(A[w], B[w], over=w)


def _no_entry(f: Form, A: Any, B: Any) -> None:
    w = f.index("w", 1, B.shape[0])
    f.array("S", *B.shape)[f.index("i", 1, B.shape[0])] = scan(2 * A[w], B[w], over=w)


def _wider(f: Form, A: Any, B: Any) -> None:
    i, w = f.index("i", 1, B.shape[0]), f.index("w", 1, B.shape[0])
    f.array("S", *B.shape)[i] = scan(A[w], B[i], over=w)


def _ragged(f: Form, A: Any, B: Any) -> None:
    (l,) = B.shape
    i, w = f.index("i", 1, l), f.index("w", 1, l)
    c, K = f.index("c", 1, i), f.array("K", l, l)
    K[w, f.index("k", 1, l)] = A[w] * B[w]
    f.array("S", l, l)[i, c] = scan(K[w, c], K[w, c], over=w)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (_short, "scan runs from 1 to a size, and v has another range"),
        (_longer, "S: the left side of a scan over w needs one other index with the range of w"),
        (_no_entry, "define the operand as an array first"),
        (_wider, "scan adds x, which does not name the index w"),
        (_ragged, "S: the range of column c names the row i, but all rows of a scan have the same"),
    ],
)
def test_a_wrong_scan_is_refused_in_one_sentence(write: Wrong, said: str) -> None:
    made = Mixer("wrong")
    (l,) = made.sizes("l")
    x, p = made.input("x", l), made.parameter("p", l)
    with pytest.raises((EquationError, WrongKind), match=said), made.form("direct") as f:
        write(f, p, x)
