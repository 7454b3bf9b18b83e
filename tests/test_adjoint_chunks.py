"""Are gradients correct for arrays read in chunks, the last of which may be short?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer, min_, sum_
from costmodel.language.indices import Index
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.subject import system_of
from costmodel.symbolic.polynomial import Poly
from tests import chunk_systems
from tests.systems import examples

Place = Callable[[Poly | Index, Poly | Index, Poly], Poly | Index]
"""Which of C weights a row reads, by its place e in its chunk and that of another row up to it."""

READ: Mapping[str, Place] = {
    "offset": lambda e, g, C: e - g + 1,
    "other": lambda e, g, C: g,
    "own": lambda e, g, C: e,
    "from the end": lambda e, g, C: C - e + 1,
    "offset from the end": lambda e, g, C: C - e + g,
}
SIZES = [(l, C) for l in (1, 2, 3, 4, 5, 6, 7, 9) for C in (1, 2, 3, 4, 8)]


def written(place: Place) -> Mixer:
    """Row (p-1)*C + e is the sum over the rows of its chunk up to itself, each times a weight."""
    m = Mixer("chunks")
    l, C = m.sizes("l C")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", C)
    with m.form("direct") as f:
        p = f.index("p", 1, l // C + 1)
        e = f.index("e", 1, min_(C, l - (p - 1) * C))
        g = f.index("g", 1, e)
        y[(p - 1) * C + e] = sum_(x[(p - 1) * C + g] * w[place(e, g, C)], over=g)
    return m


@pytest.mark.parametrize("name", READ)
def test_every_question_about_gradients_equals_execution(name: str) -> None:
    made = GradientComparison(written(READ[name]), "direct")
    for length, chunk in SIZES:
        made.at({"l": length, "C": chunk})
    assert (made.apart, made.refused) == ([], [])


def test_a_stored_value_has_an_axis_up_to_the_last_row_of_the_last_chunk() -> None:
    """exp(x[j]) is stored for j in 1..p C: l rows or fewer, C more for each chunk p."""
    m = Mixer("prefixes")
    l, C = m.sizes("l C")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", l)
    with m.form("direct") as f:
        i, p = f.index("i", 1, l), f.index("p", 1, l // C)
        j, s = f.index("j", 1, p * C), f.array("s", l // C)
        s[p] = sum_(cm.exp(x[j]) * w[j], over=j)
        y[i] = sum_(s[p], over=p) * x[i]
    made = GradientComparison(m, "direct")
    assert made.at({"l": 7, "C": 2}).apart == []


def decayed() -> Mixer:
    """Rows of a chunk, and a state at the end of each complete chunk that decays, as in Mamba-2's
    chunks: F, the running sum of a chunk, is read by pairs of its rows, by later chunks and by the
    decays up to its end, each in a region of its own."""
    m = Mixer("decayed-chunks")
    l, C = m.sizes("l C")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        q = f.index("q", 1, l // C + 1)
        r = f.index("r", 1, min_(C, l - (q - 1) * C))
        k = f.index("k", 1, r)
        F, W, V = f.array("F", l), f.array("W", l // C + 1, C, C), f.array("V", l)
        row = (q - 1) * C + r
        F[row] = sum_(x[(q - 1) * C + k], over=k)
        W[q, r, k] = cm.exp(F[row] - F[(q - 1) * C + k])
        V[row] = sum_(W[q, r, k], over=k)
        e, w = f.index("e", 1, l // C), f.index("w", 1, C)
        first, later = f.index("o", 1, min_(1, l // C)), f.index("v", 2, l // C)
        L, T, S = f.array("L", l // C), f.array("T", l), f.array("S", l // C)
        L[e] = sum_(x[(e - 1) * C + w], over=w)
        T[(e - 1) * C + w] = cm.exp(L[e] - F[(e - 1) * C + w])
        S[first] = sum_(T[(first - 1) * C + w], over=w)
        S[later] = L[later] * S[later - 1] + sum_(T[(later - 1) * C + w], over=w)
        b, z = f.index("b", 1, min_(C, l)), f.index("z", 2, l // C + 1)
        u = f.index("u", 1, min_(C, l - (z - 1) * C))
        E, here = f.array("E", l), (z - 1) * C + u
        E[here] = cm.exp(F[here])
        y[b] = V[b]
        y[here] = V[here] + E[here] * S[z - 1]
    return m


def test_an_entry_gets_every_gradient_whose_region_it_lies_in() -> None:
    made = GradientComparison(decayed(), "direct")
    for length, chunk in SIZES:
        made.at({"l": length, "C": chunk})
    assert (made.apart, made.refused) == ([], [])


def beside_a_first_term() -> Mixer:
    """Later rows of a chunk read the chunk's first row by an equation's first term and the rows
    between by a sum, as in RWKV-7's chunks; a state at the end of each complete chunk reads all of
    its rows. In chunks of one row there is no later row, and the first row still has a reader."""
    m = Mixer("beside-a-first-term")
    l, C = m.sizes("l C")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        q = f.index("q", 1, l // C + 1)
        r, e = f.index("r", 1, min_(C, l - (q - 1) * C)), f.index("e", 2, min_(C, l - (q - 1) * C))
        one, k, w = f.index("o", 1, 1), f.index("k", 2, e - 1), f.index("w", 1, C)
        number, z = l // C + 1, f.index("z", 2, l // C + 1)
        X, V, U, T = (f.array(name, number, C) for name in "XVUT")
        A = f.array("A", number, C, C)
        X[q, r] = x[(q - 1) * C + r]
        V[q, r] = 3 * X[q, r]
        A[q, e, f.index("v", 1, e - 1)] = cm.exp(X[q, e])
        first = sum_(A[q, e, one] * V[q, one], over=one)
        U[q, e] = first + sum_(A[q, e, k] * V[q, k], over=k)
        complete, S = f.index("c", 1, l // C), f.array("S", l // C)
        S[complete] = sum_(V[complete, w] * V[complete, w], over=w)
        begin = f.index("b", 1, min_(1, l - (q - 1) * C))
        T[q, begin] = 2 * X[q, begin]
        T[q, e] = U[q, e]
        rows, u = f.index("g", 1, min_(C, l)), f.index("u", 1, min_(C, l - (z - 1) * C))
        y[rows] = T[1, rows]
        y[(z - 1) * C + u] = T[z, u] * S[z - 1]
    return m


def weight_beside_a_first_term() -> Mixer:
    """A weight is read by row 1 of T and by rows 2..C - 1, of which chunks of one row have none."""
    m = Mixer("weight-beside-a-first-term")
    l, C = m.sizes("l C")
    x, y, v, w = m.input("x", l), m.output("y", l), m.parameter("v", C), m.parameter("w", 1)
    with m.form("direct") as f:
        i, e, T = f.index("i", 1, l), f.index("e", 2, C - 1), f.array("T", C)
        T[1] = w[1] * v[1]
        T[e] = w[1] * v[e]
        y[i] = x[i] * (T[1] + sum_(T[e], over=e))
    return m


@pytest.mark.grid(2)
@pytest.mark.parametrize("written", [beside_a_first_term, weight_beside_a_first_term])
def test_a_first_entry_keeps_its_gradient_where_there_are_no_later_ones(
    written: Callable[[], Mixer],
) -> None:
    made = GradientComparison(written(), "direct")
    for length, chunk in SIZES:
        made.at({"l": length, "C": chunk})
    assert (made.apart, made.refused) == ([], [])


def heads_weighed(*, flat: bool) -> Mixer:
    """A weight, n h in a row if `flat`, is read by rows 2..C and, otherwise, by rows from C + 1 on:
    by no row of a sequence of one row."""
    m = Mixer("heads-weighed")
    l, C, n, h = m.sizes("l C n h")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", *((n * h,) if flat else (n, h)))
    with m.form("direct") as f:
        j, c, T = f.index("j", 1, n), f.index("c", 1, h), f.array("T", l, n, h)
        near, far = f.index("i", 2, min_(C, l)), f.index("k", C + 1, l)
        weight = w[(j - 1) * h + c] if flat else w[j, c]
        T[near, j, c] = x[near] * weight
        T[far, j, c] = x[far] * x[far] * weight
        y[1] = x[1]
        for rows in (near, far):
            y[rows] = sum_(T[rows, j, c], over=(j, c))
    return m


@pytest.mark.parametrize("length", [1, 2, 4])
def test_an_empty_sum_is_free_in_the_gradient_of_a_flattened_weight(length: int) -> None:
    sizes = {"l": length, "C": 2, "n": 2, "h": 3, "d": 6}
    flat, apart = (cm.count(heads_weighed(flat=flat), "backward") for flat in (True, False))
    assert flat.at(**sizes).by_class() == apart.at(**sizes).by_class()


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("phase", ["backward", "training-step"])
def test_the_critical_path_has_as_many_steps_as_are_derived(name: str, phase: str) -> None:
    made = written(READ[name])
    for length, chunk in SIZES:
        sizes = {"l": length, "C": chunk}
        path = cm.critical_path(made, phase, sizes=sizes)
        assert path.length.at(sizes) == cm.sequential(made, phase).at(**sizes), sizes


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (5, 2), (6, 3), (7, 3), (3, 5)])
def test_values_equal_torch_autograd(name: str, length: int, chunk: int) -> None:
    rng = np.random.default_rng(length)
    arrays = {"x": rng.uniform(-1, 1, length), "w": rng.uniform(-1, 1, chunk)}
    given = rng.uniform(-1, 1, length)
    x, w = (torch.tensor(arrays[k], requires_grad=True) for k in ("x", "w"))
    rows = []
    for row in range(length):
        begin, e = row - row % chunk, row % chunk + 1
        one, C = Poly.of(e), Poly.of(chunk)
        places = [Poly.of(READ[name](one, Poly.of(g), C)).at({}) for g in range(1, e + 1)]
        rows.append(torch.stack([x[begin + g] * w[k - 1] for g, k in enumerate(places)]).sum())
    (torch.stack(rows) * torch.tensor(given)).sum().backward()  # type: ignore[no-untyped-call]
    found = cm.gradients(written(READ[name]), arrays, given, {"l": length, "C": chunk})
    for array, tensor in (("x", x), ("w", w)):
        assert tensor.grad is not None
        assert np.allclose(found[array], tensor.grad.numpy())


def test_the_gradient_of_an_offset_in_words() -> None:
    """Weight k is read by the rows of every chunk from place k on; a short chunk may have none."""
    system = system_of(written(READ["offset"]), "direct", (), "backward")
    (of_w,) = (e for e in system.backward if e.name == "w.grad")
    l, C = Poly.atom("l"), Poly.atom("C")
    p, e = of_w.value.over  # type: ignore[attr-defined]
    assert (p.lower, p.upper) == ((Poly.of(1),), (l // C + 1,))
    (k,) = of_w.indices
    assert e.lower == (k.as_poly(),) and {*e.upper} == {C, l - (p - 1) * C}


def test_an_index_of_one_value_carries_a_bound_with_a_stride() -> None:
    """Where a row reads the weight at its own place, k, the chunks that have such a place are told
    by an index of the sum that runs from k to the least of k and what the chunk holds."""
    system = system_of(written(READ["own"]), "direct", (), "backward")
    (of_w,) = (e for e in system.backward if e.name == "w.grad")
    l, C = Poly.atom("l"), Poly.atom("C")
    (k,) = of_w.indices
    p, e, g = of_w.value.over  # type: ignore[attr-defined]
    assert p.upper == (l // C + 1,)
    assert e.lower == (k.as_poly(),) and {*e.upper} == {k.as_poly(), l - (p - 1) * C}
    assert (g.lower, g.upper) == ((Poly.of(1),), (e.as_poly(),))


DEPTHS = {"span", "sequential operations", "steps of the critical path"}


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chunk_systems.mixers(chunk_systems.PLACED),
    st.lists(chunk_systems.sizes(), min_size=2, max_size=2),
)
def test_gradients_of_random_chunks_equal_execution(
    mixer: Mixer, sizes: list[dict[str, int]]
) -> None:
    """Values, counts, traffic and activations of every gradient are answered; how deep they are,
    where the number of readers of an entry falls into few cases."""
    made = GradientComparison(mixer, "direct")
    for at in sizes:
        made.at({k: v for k, v in at.items() if k in ("l", *mixer.letters)})
    assert made.apart == []
    assert {line.split(",")[0] for line in made.refused} <= DEPTHS
