"""What are the equations of a mixture of experts: which experts does a token go through, and how?

A router scores E experts for each token; the c best are gated FFNs for the token, weighed by their
scores. All of E are parameters, c of E are active for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array, Constant, Gather, Node, Ref, refs
from costmodel.language.writing import function, sum_, top_k
from costmodel.networks.parts import RMS_EPS, activated, bounded_gates, noting
from costmodel.symbolic.polynomial import Poly, sum_of

SHAZEER = "Shazeer et al. 2017, arXiv 1701.06538, eqs. (1)-(5)"

ROUTINGS: Mapping[str, str] = {
    "softmax": "weights are entries of the softmax of all scores",
    "softmax-normalised": "weights are entries of the softmax of all scores over their sum",
    "chosen-softmax": "weights are the softmax of the chosen scores",
    "sigmoid": "scores are sigmoids; weights are the chosen scores times a constant",
    "sigmoid-normalised": "the same, with weights over their sum before the constant",
    "chosen-sigmoid": "weights are the sigmoids of the chosen scores, as in Llama 4",
    "chosen-sigmoid-normalised": "the same, with weights over their sum",
}
"""How the scores of a router become the weights of the chosen experts, by name."""

CORRECTIONS: Mapping[str, str] = {
    "": "scores choose as they are",
    "buffer": "scores choose with a bias that a step of training moves, no parameter",
    "parameter": "the same, and the bias counts among the parameters",
}
"""What is added to scores before the best of them are chosen, by name."""

SCALE = Constant(Poly.of(Fraction(5, 2)))
"""The constant of DeepSeek-V3, `routed_scaling_factor`; other models have other constants."""

SHARED: Mapping[str, str] = {
    "": "no expert is shared",
    "plain": "another gated FFN, S wide, for every token, as in DeepSeek-V3",
    "biased": "the same, with biases, as in Nemotron-H with `mlp_bias`",
    "gated": "as plain, times the sigmoid of a score of its own, as in Qwen3-Next",
}
"""What every token goes through beside its own experts, by name."""


@noting
def experts(
    routing: str,
    activation: str = "silu",
    *,
    clamped: bool = False,
    biased: bool = False,
    squared: bool = False,
    shared: str = "",
    correction: str | None = None,
    apart: bool = False,
    offset: bool = False,
    idle: bool = False,
) -> Mixer:
    """Write the equations of a mixture of experts as a mixer, x (l, d) to y (l, d): for each token,
    c of E gated FFNs, f wide.

    Args:
        routing: how the router's scores become weights of the chosen experts, a name in `ROUTINGS`
            ("softmax": the entries of the softmax of all scores).
        activation: that of the gate; without a gate, of the only map to f channels.
        clamped: experts, the shared one included, as in gpt-oss: bounded gate and up, and 1 + up.
        biased: router and experts have biases, as in gpt-oss.
        squared: experts as in Nemotron-H: no gate, and the square of the activation.
        shared: an FFN for all tokens, a name in `SHARED`: none (""), "plain", "biased", or "gated"
            by a score of its own.
        correction: the bias added to the scores that choose: none (""), a "buffer" that training
            moves, or a "parameter"; None: a buffer where `routing` takes sigmoids of all scores.
        apart: as in Gemma 4, the router reads x, by a norm with weights over sqrt(d), and experts
            read further rows z (l, d); each expert has a factor of its own.
        offset: the sum of the experts' outputs has a bias, as in JetMoE.
        idle: the router scores Z experts more, which would return their input, as in LongCat-Flash;
            a token here goes through c experts of the other E, the most work that the token needs.
    """
    if correction is None:
        correction = "buffer" if routing.startswith("sigmoid") else ""
    m = Mixer("experts", title="Mixture of experts", source=SHAZEER, group="part of a network")
    l, d, width = m.sizes("l d f")
    E = m.size("E", "experts", 8)
    c = m.size("c", "experts that a token goes through", 2)
    x, y = m.input("x", l, d), m.output("y", l, d)
    z = m.input("z", l, d) if apart else x
    scored = E + m.size("Z", "experts that return their input", 4) if idle else E
    with m.form("direct") as f:
        i, b, _ = f.index("i", 1, l), f.index("b", 1, d), f.index("a", 1, d)
        e, r = f.index("e", 1, scored), f.index("r", 1, min_(c, E))
        R = _scores(f, x, scored, biased=biased, apart=apart)
        factor = m.parameter("factor", E) if apart else None
        b_out = m.parameter("b_out", d) if offset else None
        at, w = routed(f, routing, R, (i, e, r), correction, E)
        if factor is not None:
            share, w = w, f.array("weight", l, c)
            w[i, r] = share[i, r] * factor[at[i, r]]
        hidden = _bounded if clamped else _activated
        Y = _through(f, z, at, width, activation, hidden, biased=biased, squared=squared)
        weighed = f.array("weighed", l, c, d)  # their sum is no matrix product
        weighed[i, r, b] = w[i, r] * Y[i, r, b]
        total = sum_(weighed[i, r, b], over=r)
        total = total if b_out is None else total + b_out[b]
        every = _shared(f, x, activation, hidden, shared, squared) if shared else None
        y[i, b] = total if every is None else total + every[i, b]
    return m


def _scores(f: Form, x: Array, scored: Poly, *, biased: bool, apart: bool) -> Array:
    """Declare the router's parameters, write its equations and return R (l, scored), the scores of
    so many experts for the rows x (l, d); `biased`: scores have a bias; `apart`: the router reads
    x by a norm with weights over sqrt(d)."""
    m, (l, d), (i, b, a, e) = f.mixer, x.shape, (f.indices[name] for name in "ibae")
    W_R = m.parameter("W_R", d, scored)
    b_R = m.parameter("b_R", scored) if biased else None
    R, read = f.array("R", l, scored), x
    if apart:
        gain = m.parameter("gain", d)
        normed, read = f.array("normed", l, d), f.array("read", l, d)
        normed[i, b] = rms_norm(x[i, b], over=b, eps=RMS_EPS)
        read[i, b] = normed[i, b] * gain[b] / Constant(d, 1)
    score = sum_(read[i, a] * W_R[a, e], over=a)
    R[i, e] = score if b_R is None else score + b_R[e]
    return R


def routed(
    f: Form,
    routing: str,
    R: Array,
    of: tuple[Index, Index, Index],
    correction: str,
    choices: Poly | None = None,
) -> tuple[Array, Array]:
    """Write the equations of the choice and return two arrays: the numbers of the chosen experts
    (l, c) of each token and their weights (l, c), from the router's scores R (l, E), by the rule
    `routing` of `ROUTINGS`; `of` are the indices of token, expert and place among the chosen, and
    `correction` is the kind of bias ("", "buffer", "parameter") added to the scores that choose.
    Only the first `choices` experts may be chosen (None: all); those behind have no parameters.
    By the rules "sigmoid" and "sigmoid-normalised", weights are multiplied by `SCALE`, 2.5."""
    (l, E), (i, e, r) = R.shape, of
    c, choices = r.upper[0], choices or E  # r goes up to min(c, E)
    one = e if choices == E else f.index("one", 1, choices)  # an expert that may be chosen
    at, w = f.array("at", l, c, below=choices), f.array("w", l, c)
    if routing.startswith("chosen"):
        at[i, r] = top_k(_moved(f, R, (i, one), correction)[i, one], over=one)
        chosen = f.array("chosen", l, c)
        chosen[i, r] = R[i, at[i, r]]
        if routing == "chosen-softmax":
            w[i, r] = softmax(chosen[i, r], over=r)
        elif routing == "chosen-sigmoid":
            w[i, r] = function("sigmoid", chosen[i, r])
        else:  # "chosen-sigmoid-normalised"
            soft, s = f.array("soft", l, c), f.index("s", 1, min_(c, E))
            soft[i, r] = function("sigmoid", chosen[i, r])
            total = f.array("total", l)
            total[i] = sum_(soft[i, s], over=s)
            w[i, r] = soft[i, r] / total[i]
        return at, w
    P = f.array("P", l, E)
    sigmoid = routing.startswith("sigmoid")
    P[i, e] = function("sigmoid", R[i, e]) if sigmoid else softmax(R[i, e], over=e)
    at[i, r] = top_k(_moved(f, P, (i, one), correction)[i, one], over=one)
    if routing == "sigmoid":
        w[i, r] = SCALE * P[i, at[i, r]]
        return at, w
    if routing == "softmax":
        w[i, r] = P[i, at[i, r]]
        return at, w
    chosen, s = f.array("chosen", l, c), f.index("s", 1, min_(c, E))
    total = f.array("total", l)
    chosen[i, r] = P[i, at[i, r]]
    total[i] = sum_(chosen[i, s], over=s)
    share = chosen[i, r] / total[i]
    w[i, r] = SCALE * share if sigmoid else share
    return at, w


def _moved(f: Form, scores: Array, at: tuple[Index, Index], correction: str) -> Array:
    """Write the equation best = scores + moved (a trained parameter or a buffer (E,), by
    `correction`), from which the best experts are chosen, and return its array (l, E); without a
    correction the scores."""
    if not correction:
        return scores
    declare = f.mixer.parameter if correction == "parameter" else f.mixer.buffer
    (l, _), choices = scores.shape, at[1].upper[0]
    best, moved = f.array("best", l, choices), declare("moved", choices)
    best[at] = scores[at] + moved[at[1]]
    return best


At = tuple[Index, ...]
Hidden = Callable[[Form, Mapping[str, Array], At, str, str], Array]
"""A function that writes an FFN's hidden rows, as `_activated`."""


def _through(
    f: Form,
    x: Array,
    at: Array,
    width: Poly,
    activation: str,
    hidden: Hidden,
    *,
    biased: bool,
    squared: bool,
) -> Array:
    """Declare the experts' weights, write their equations and return Y (l, c, d): the output of
    each of a token's c experts for the rows x (l, d). `at` (l, c) has the numbers of the experts,
    `width` is their width, and `hidden` writes their hidden rows with the `activation`; `biased`:
    all maps have biases; `squared`: there is no map to gate."""
    m, (l, d), E = f.mixer, x.shape, at.below
    i, r, b, a = (f.indices[name] for name in "irba")
    q, c = f.index("q", 1, width), r.upper[0]
    maps = {} if squared else {"gate": (d, width)}
    maps |= {"up": (d, width), "down": (width, d)}
    W = {name: m.parameter(f"W_{name}", E, *shape) for name, shape in maps.items()}
    b_ = {n: m.parameter(f"b_{n}", E, shape[1]) for n, shape in maps.items() if biased}

    def mapped(name: str, value: Node, column: Index) -> Node:
        return value if name not in b_ else value + b_[name][at[i, r], column]

    rows = {name: f.array(name, l, c, width) for name in maps if name != "down"}
    for name, array in rows.items():
        product = sum_(x[i, a] * W[name][at[i, r], a, q], over=a)
        array[i, r, q] = mapped(name, product, q)
    H, Y = hidden(f, rows, (i, r, q), "", activation), f.array("Y", l, c, d)
    product = sum_(H[i, r, q] * W["down"][at[i, r], q, b], over=q)
    Y[i, r, b] = mapped("down", product, b)
    return Y


def _activated(f: Form, rows: Mapping[str, Array], at: At, lead: str, activation: str) -> Array:
    """Write the equations of an FFN's hidden rows and return their array: act(gate) * up; without a
    gate in `rows` the square of act(up). `at` are the indices of a row, and `lead` begins the names
    of the arrays."""
    up = rows["up"]
    A, H = f.array(f"{lead}act", *up.shape), f.array(f"{lead}hidden", *up.shape)
    A[at] = activated(activation, rows.get("gate", up)[at])
    H[at] = A[at] * (up[at] if "gate" in rows else A[at])
    return H


def _bounded(f: Form, rows: Mapping[str, Array], at: At, lead: str, activation: str) -> Array:
    """Write the equations of `parts.bounded_gates`, and return their array. `activation` is not
    used: the signature is that of `_activated`."""
    return bounded_gates(f, rows["gate"], rows["up"], at, lead)


def _shared(
    f: Form, x: Array, activation: str, hidden: Hidden, shared: str, squared: bool
) -> Array:
    """Write the equations of the FFN, S wide, that all tokens x (l, d) go through, and return its
    output (l, d). `hidden` writes its hidden rows with the `activation`; `squared`: there is no map
    to gate. `shared`: "plain"; "biased", all maps have biases; or "gated", the output is multiplied
    by the sigmoid of a score of the token."""
    m, (l, d) = f.mixer, x.shape
    S = m.size("S", "width of the shared expert", 512)
    i, b, a, p = *(f.indices[name] for name in "iba"), f.index("p", 1, S)
    names = ("up",) if squared else ("gate", "up")
    W = {name: m.parameter(f"V_{name}", d, S) for name in names}
    V = m.parameter("V_down", S, d)
    widths = {**dict.fromkeys(names, S), "down": d} if shared == "biased" else {}
    bias = {name: m.parameter(f"bias_{name}", width) for name, width in widths.items()}

    def mapped(name: str, value: Node, column: Index) -> Node:
        return value + bias[name][column] if bias else value

    rows = {name: f.array(f"shared_{name}", l, S) for name in names}
    for name, array in rows.items():
        array[i, p] = mapped(name, sum_(x[i, a] * W[name][a, p], over=a), p)
    H, Y = hidden(f, rows, (i, p), "shared_", activation), f.array("shared_Y", l, d)
    Y[i, b] = mapped("down", sum_(H[i, p] * V[p, b], over=p), b)
    if shared != "gated":
        return Y
    v, z, out = m.parameter("v", d), f.array("z", l), f.array("shared", l, d)
    z[i] = function("sigmoid", sum_(x[i, a] * v[a], over=a))
    out[i, b] = z[i] * Y[i, b]
    return out


def active(mixer: Mixer) -> Poly:
    """The number of parameters of a part that one token reads, in the part's sizes: all but those
    that no equation reads, and those of experts that the token does not go through (c is at most
    E). A table of embeddings counts as a whole."""
    return sum_of(entries_read(mixer).values())


@cache
def entries_read(mixer: Mixer) -> Mapping[str, Poly]:
    """A dict: name of each parameter of a part (`mixer`) -> how many of its entries one token
    reads, as a polynomial: of experts, those of the chosen ones; of parameters that no equation
    reads, none; of others, all."""
    arrays = {a.name: a for a in mixer.arrays.values() if a.role == "parameter"}
    forms = mixer.forms.values()
    every = {ref.array.name for f in forms for e in f.equations for ref, _ in refs(e.value)}
    number = {n: _product(a.shape) if n in every else Poly.of(0) for n, a in arrays.items()}
    form = mixer.forms[mixer.default_form]
    for equation in form.equations:
        for ref, _ in refs(equation.value):
            if ref.array.name in arrays:
                number[ref.array.name] = _read(ref, number[ref.array.name])
    return number


def _read(ref: Ref, number: Poly) -> Poly:
    """The number of entries of an array that a token reads by the reference `ref`, as a polynomial:
    if the reference reads at computed positions (the chosen experts), the entries of the chosen
    ones; else all, `number`."""
    for axis, position in enumerate(ref.positions):
        if isinstance(position, Gather) and position.at.array.role == "intermediate":
            chosen = _product(position.at.array.shape[1:])  # without the axis of tokens
            others = (n for k, n in enumerate(ref.array.shape) if k != axis)
            return chosen * _product(others)
    return number


def _product(extents: Iterable[Poly]) -> Poly:
    result = Poly.of(1)
    for extent in extents:
        result = result * extent
    return result
