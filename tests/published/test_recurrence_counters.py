"""Do the formulas that frameworks and kernels have for recurrent layers get the verdicts of a count
by hand?"""

from __future__ import annotations

import pytest

import costmodel as cm
from costmodel.claims.records import load
from costmodel.data import data_dir
from tests.verdicts import on_the_page

PATH = data_dir("published") / "recurrence-counters.json"
d, n, g, K, V, P, N, G, r, v, k, l = 12, 6, 3, 5, 7, 5, 3, 2, 4, 2, 2, 9
h = d // n
LETTERS = {"d": d, "n": n, "g": g, "K": K, "V": V, "P": P, "N": N, "G": G, "r": r, "v": v, "k": k}

AROUND = {
    "gated-deltanet": 2 * d * (2 * g * K + 2 * n * V + 2 * n)
    + g * (2 * (3 * K + 2) + K)  # l2 norms of k and q, and the scale of q
    + n * (2 * V + 3 + 6),  # of v: what S has is subtracted, times beta; beta; the decay
    "deltanet": 2 * d * (4 * d + n) + n * (2 * (3 * h + 2) + h + 2 * h + 3),
    "gla": 2 * d * (2 * d // v + 2 * d + r)
    + 2 * r * d // v
    + d // v * (1 + 4 + 1 + 1),  # a gate's bias, log of a sigmoid, root and exp; less 1, scale of q
    "mamba-2": 2 * d * (2 * G * N + 2 * n * P + n)
    + n * (1 + 3 + 2 + 3 * P),  # bias, softplus, the decay; dt x, and D x added
}
"""Operations of a token around the recurrence, a multiply-add counting twice."""
RECURRENCE = {
    # S times the decay; k S and q S; k u^T and its sum with S.
    "gated-deltanet": n * (K * V + 4 * K * V + 2 * K * V),
    "deltanet": n * (4 * h * h + 2 * h * h),
    # S times the decay, k v^T and its sum with S, q S.
    "gla": n * 5 * (h // v) * h,
    "mamba-2": n * 5 * N * P,
}
THEIRS = {
    "tracelens.gated-deltanet": n * 7 * K * V,
    "tileops.gated-deltanet": n * 2 * (3 * K * V + K),
    "tileops.deltanet": n * 2 * (3 * h * h + h),
    "tileops.gla": n * 2 * (2 * (h // v) * h + h // v),
    "tileops.mamba-2": n * 8 * N * P,
}


def test_verdicts_are_those_known() -> None:
    found = {name.partition(".")[2]: verdict for name, verdict in on_the_page(PATH).items()}
    assert found.pop("tracelens.gated-deltanet") == "agrees"
    assert {*found.values()} == {"disagrees (recorded misprint)"}


@pytest.mark.parametrize("name", THEIRS)
def test_a_token_has_the_recurrence_and_what_is_around(name: str) -> None:
    """The formula that is checked is theirs and what is around, which is ours without the
    recurrence."""
    (claim,) = (each for each in load(PATH) if each.id == f"recurrence-counters.{name}")
    layer = name.split(".")[1]
    mixer = cm.mixer(f"{layer}+core")
    sizes = {letter: LETTERS[letter] for letter in mixer.letters if letter in LETTERS}
    ours = cm.count(mixer, "inference", convention="mac").at(**sizes, t=9)
    assert ours.total == AROUND[layer] + RECURRENCE[layer]
    formula = claim.formula.replace("^", "**")  # type: ignore[attr-defined]
    assert eval(formula, {}, LETTERS | {"h": h}) == AROUND[layer] + THEIRS[name]


def test_a_forward_pass_in_chunks_has_these_products_of_matrices() -> None:
    """2 G C N + 2 n C P + 4 n N P a row, as TraceLens has them, less 2 n N P for the C rows of the
    last chunk, and more for the sums of states over chunks; in terms with N or P alone there are
    decays besides."""
    (claim,) = (each for each in load(PATH) if each.id == "recurrence-counters.tracelens.mamba-2")
    mixer, C, rows = cm.mixer("mamba-2+core"), 3, 12
    formula = claim.formula.replace("^", "**")  # type: ignore[attr-defined]

    def difference(**more: int) -> int:
        at = {letter: LETTERS[letter] for letter in ("d", "n", "P", "N", "G")} | more
        ours = cm.count(mixer, form="chunked", convention=("mac", "dense")).at(**at, C=C, l=rows)
        return int(ours.total - eval(formula, {}, at | {"C": C, "l": rows}))

    assert difference(G=G + 1) == difference()
    squares = [difference(N=N + a, P=P + b) for a in (0, 1) for b in (0, 1)]
    assert squares[3] - squares[2] - squares[1] + squares[0] == 2 * n * (rows // C - 1) - 2 * n * C


@pytest.mark.parametrize(
    ("name", "state", "forward", "both"),
    [("gated-deltanet", "KV", 7, 22), ("mamba-2", "PN", 5, 16)],
)
def test_gradients_of_a_recurrence_take_twice_as_much_and_more(
    name: str, state: str, forward: int, both: int
) -> None:
    """What a token more costs, for each head and number of its state."""
    mixer = cm.mixer(name)
    sizes = {letter: LETTERS[letter] for letter in mixer.letters if letter in LETTERS}
    one, two = ({letter: LETTERS[letter] + 1} for letter in state)
    for phase, times in (("training", forward), ("training-step", both)):
        count = cm.count(mixer, phase, convention="mac")
        square = [
            count.at(**sizes | more, l=l + 1).total - count.at(**sizes | more, l=l).total
            for more in (one | two, one, two, {})
        ]
        assert square[0] - square[1] - square[2] + square[3] == times * n


def test_states_of_serving_estimators_by_hand() -> None:
    """KDA keeps one matrix a head and k - 1 columns of the convolutions of q, k and v; Mamba-2 one
    matrix a head and k - 1 columns of x, B and C. Five times the one and none of the other are
    recorded as misprints."""
    path = data_dir("published") / "serving-estimators.json"
    assert on_the_page(path) == {
        "serving-estimators.aiconfigurator.kda": "disagrees (recorded misprint)",
        "serving-estimators.inference-sim.mamba-2": "disagrees (recorded misprint)",
        "serving-estimators.aiconfigurator.deepseek-v4": "not-checkable",
    }
    assert cm.state(cm.mixer("kda")).at(d=d, n=n, k=4, t=l) == d * d // n + 3 * 3 * d
    shipped = {"d": 4096, "n": 128, "P": 64, "N": 128, "G": 8, "k": 4}
    by_hand = 128 * 64 * 128 + 3 * (128 * 64 + 2 * 8 * 128)
    assert cm.state(cm.mixer("mamba-2")).at(**shipped, t=8192) == by_hand
