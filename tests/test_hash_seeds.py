"""Are answers independent of the hash seed of a process?

Python orders sets of texts by a seed; each process here gets another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

import costmodel as cm
from costmodel import EquationError, Mixer
from costmodel.mixers import builtin, names
from costmodel.program.conventions import REWRITES
from costmodel.program.lowering import lower
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.subject import system_of
from costmodel.symbolic.polynomial import Poly, axis_atom, by_text, index_atom
from costmodel.symbolic.printing import formula_text

SEEDS = {"0": ("said", "said_of_unions"), "3": ("said",), "1": ("said_of_unions",)}
"""Seed -> functions of this file whose answers a defect of the past changed under the seed, or that
are compared with those."""


@cache
def chunked() -> Mixer:
    """A state-space layer in chunks, whose states decay (2405.21060, listing 1): what lies before
    a row's chunk reaches it by the state of the chunk before."""
    ssd = Mixer("ssd")
    l, d, n, V, N, C = ssd.sizes("l d n V N C")
    x, y = ssd.input("x", l, d), ssd.output("y", l, d)
    W_X, W_B, W_C = (
        ssd.parameter("W_X", d, n, V),
        ssd.parameter("W_B", d, N),
        ssd.parameter("W_C", d, N),
    )
    W_t, A_, W_o = ssd.parameter("W_t", d, n), ssd.parameter("A_", n), ssd.parameter("W_o", n, V, d)
    with ssd.form("chunked") as f:
        i, j, c, a = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, V), f.index("a", 1, d)
        m, b = f.index("m", 1, N), f.index("b", 1, d)
        X, B, Cm = f.array("X", n, l, V), f.array("Bm", l, N), f.array("Cm", l, N)
        dt, G, Xd = f.array("dt", n, l), f.array("G", n, l), f.array("Xd", n, l, V)
        X[j, i, c] = cm.sum_(x[i, a] * W_X[a, j, c], over=a)
        B[i, m] = cm.sum_(x[i, a] * W_B[a, m], over=a)
        Cm[i, m] = cm.sum_(x[i, a] * W_C[a, m], over=a)
        dt[j, i] = cm.function("softplus", cm.sum_(x[i, a] * W_t[a, j], over=a))
        G[j, i] = dt[j, i] * A_[j]
        Xd[j, i, c] = dt[j, i] * X[j, i, c]

        q, z, w = f.index("q", 1, l // C + 1), f.index("z", 1, l // C), f.index("w", 1, C)
        e = f.index("e", 1, cm.min_(C, l - (q - 1) * C))
        u = f.index("u", 1, e)
        row, see = (q - 1) * C + e, (q - 1) * C + u
        P, W = f.array("P", n, l // C + 1, C), f.array("W", n, l // C + 1, C, C)
        P[j, q, e] = cm.sum_(G[j, see], over=u)
        decay = cm.exp(P[j, q, u] - P[j, q, e])
        W[j, q, e, u] = cm.sum_(Cm[row, m] * B[see, m], over=m) * decay
        T, S = f.array("T", n, l // C, C), f.array("S", n, l // C, N, V)
        T[j, z, w] = cm.exp(P[j, z, w] - P[j, z, C])
        first, later = f.index("o", 1, cm.min_(1, l // C)), f.index("r", 2, l // C)
        for k in (first, later):
            at = (k - 1) * C + w
            new = cm.sum_((B[at, m] * T[j, k, w]) * Xd[j, at, c], over=w)
            kept = None if k is first else S[j, k - 1, m, c] * cm.exp(0 - P[j, k, C])
            S[j, k, m, c] = new if kept is None else kept + new
        Nn, O = f.array("Nn", n, l, V), f.array("O", n, l, V)
        Nn[j, row, c] = cm.sum_(W[j, q, e, u] * Xd[j, see, c], over=u)
        k0, g = f.index("k0", 1, cm.min_(C, l)), f.index("g", 2, l // C + 1)
        h = f.index("h_", 1, cm.min_(C, l - (g - 1) * C))
        O[j, k0, c] = Nn[j, k0, c]
        at = (g - 1) * C + h
        before = cm.sum_(Cm[at, m] * S[j, g - 1, m, c], over=m)
        O[j, at, c] = Nn[j, at, c] + cm.exp(0 - P[j, g, h]) * before
        y[i, b] = cm.sum_(O[j, i, c] * W_o[j, c, b], over=(j, c))
    return ssd


def said() -> str:
    """The equations of gradients, what is counted of some, and values that are joined by case."""
    attention = cm.mixer("restricted-attention")
    systems = [system_of(mixer, None, (), "backward") for mixer in (chunked(), attention)]
    counts = [str(cm.count(attention, phase)) for phase in ("training", "backward")]
    paths = [
        formula_text(cm.path_length(cm.mixer(name)).exact)
        for name in ("restricted-attention", "convolution-same")
    ]
    equations = [repr(e) for system in systems for e in system.equations]
    return "\n".join(equations + counts + paths)


def said_of_unions() -> str:
    """Built-in mixers with an index over several ranges: the equations that each rewrite gives with
    `dense` and without, and what is counted under `dense`."""
    forms = [form for name in names() for form in builtin(name).forms.values()]
    found = [f for f in forms if any(len(index.pieces) > 1 for index in f.indices.values())]
    each = [rewrites for name in REWRITES for rewrites in ((name,), ("dense", name))]
    lowered = [repr(e) for f in found for rewrites in each for e in lower(f, rewrites).equations]
    counts = [str(cm.count(f.mixer, form=f.name, convention="dense")) for f in found]
    return "\n".join(lowered + counts)


def test_every_seed_of_hashes_gives_the_same_equations_and_counts() -> None:
    printed: dict[str, set[str]] = {}
    for seed, functions in SEEDS.items():
        called = ", ".join(f"{name}()" for name in functions)
        program = f"import json; from tests.test_hash_seeds import *; print(json.dumps([{called}]))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
        )
        for name, text in zip(functions, json.loads(done.stdout), strict=True):
            printed.setdefault(name, set()).add(text)
    assert {name: len(texts) for name, texts in printed.items()} == {"said": 1, "said_of_unions": 1}


def test_polynomials_of_one_text_have_an_order() -> None:
    axis, index = Poly.atom(axis_atom(1)), Poly.atom(index_atom(1))
    one, two = axis - index, index - 1
    assert str(one) == str(two)
    assert by_text([one, two]) == by_text([two, one])


def test_gradients_of_a_sequence_that_fills_no_chunk() -> None:
    """The chunks' states have no row there; what is left of the gradients is right."""
    made = GradientComparison(chunked(), "chunked")
    for length, chunk in ((1, 1), (1, 2), (2, 3), (3, 3), (4, 3)):
        made.at({"l": length, "C": chunk, "d": 1, "n": 1, "V": 1, "N": 1})
        assert made.apart == []


def test_of_several_unknown_indices_a_refusal_names_the_first() -> None:
    m = Mixer("unbound")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i, *several = (f.index(name, 1, l) for name in "iefgkopq")
        j = f.index("j", cm.max_(*several), l)
        with pytest.raises(EquationError, match="the range of j names e, which is neither"):
            y[i] = cm.sum_(x[j], over=j)
        y[i] = x[i]
