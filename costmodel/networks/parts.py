"""What are the equations of a network's parts beside its mixers: embedding, norm, FFN, head, loss?

Each part is a small mixer, x (l, d) to y (l, d) unless its docstring says otherwise, so that the
rules for mixers answer for parts too. The letters here are the part's own: a network says what they
are in its sizes. Inputs with values in 1..u are token numbers; reading the row of a table that a
token number names is free.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial, wraps
from statistics import NormalDist
from typing import Any, TypeVar, cast

from costmodel.errors import ModelError
from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros import gates, norms
from costmodel.language.macros.softmax import softmax
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.writing import exp, function, maximum, minimum, sum_
from costmodel.program import losses
from costmodel.symbolic.polynomial import Poly

Width = tuple[Index, Index]
"""An index over the tokens, and an index over the entries of a row."""

CAP = 30
"""The bound of the scores of Gemma 2."""

MULTIPLIER = Constant(Poly.of(Fraction(11, 50)))
"""A constant of Granite; each model has another one."""

INVERSE = Constant(Poly.of(Fraction(50, 11)))
"""1/MULTIPLIER."""

REST = Constant(Poly.of(1 - Fraction(11, 50) ** 2), 1)
"""The root of 1 - MULTIPLIER^2, for the other term of a sum; in Beam each sum has another one."""

QUANTILE = Constant(Poly.of(Fraction(NormalDist().inv_cdf(0.95))))
"""How many deviations above the mean 5 % of a normal distribution lie."""

RMS_EPS = Fraction(1, 10**6)
"""What an RMS norm adds under the root, as Llama and Qwen do."""

Make = TypeVar("Make", bound=Callable[..., Mixer])


@cache
def _part(
    make: Callable[..., Mixer], given: tuple[object, ...], named: tuple[tuple[str, object], ...]
) -> Mixer:
    """The part that `make` makes of arguments, once for each set of them."""
    return make(*given, **dict(named))


def noting(make: Make) -> Make:
    """Decorate a function that makes a part: the part is made once for each set of arguments, and
    the arguments (defaults included) are noted in its attribute `made_with`, from which its PyTorch
    module is built. `layer_norm()` and `layer_norm(bias=True)` are one part."""
    known = inspect.signature(make)

    @wraps(make)
    def made(*given: Any, **named: Any) -> Mixer:
        """The part that `make` makes of the arguments; `made_with` has all of them, by name."""
        bound = known.bind(*given, **named)
        bound.apply_defaults()
        found = _part(make, bound.args, tuple(bound.kwargs.items()))
        found.made_with = bound.arguments
        return found

    return cast(Make, made)


def _new_part(name: str, title: str, source: str = "") -> Mixer:
    return Mixer(name, title=title, source=source, group="part of a network")


def _row_indices(f: Form, tokens: Poly, width: Poly) -> Width:
    return f.index("i", 1, tokens), f.index("b", 1, width)


def _root_of(size: Poly) -> Constant:
    """The square root of a size: a constant, so computing it costs nothing per input."""
    return Constant(size, 1)


@noting
def look_up(scaled: bool = False) -> Mixer:
    """Make the part embedding, as a mixer of one equation: y (l, d) has the rows of E (u, d) that
    the tokens (l) name; `scaled` multiplies each row by sqrt(d).

    The scale: Vaswani et al. 2017, arXiv 1706.03762, section 3.4; one multiplication an entry.
    """
    m = _new_part("look-up", "Embedding, look-up", "rows that are read by number")
    l, d, u = m.sizes("l d u")
    tokens = m.input("tokens", l, below=u)
    y, E = m.output("y", l, d), m.parameter("E", u, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        y[i, b] = E[tokens[i], b] * _root_of(d) if scaled else E[tokens[i], b]
    return m


@noting
def one_hot(scaled: bool = False) -> Mixer:
    """Make the part embedding as a product, a mixer of one equation: y (l, d) is the product of
    one-hot rows x (l, u) with E (u, d); if `scaled`, times sqrt(d)."""
    source = "Chen 2023, arXiv 2308.07661v1, eq. (4)"
    m = _new_part("one-hot", "Embedding, one-hot product", source)
    l, d, u = m.sizes("l d u")
    x = m.input("x", l, u)
    y, E = m.output("y", l, d, cite="(4)"), m.parameter("E", u, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        a = f.index("a", 1, u)
        product = sum_(x[i, a] * E[a, b], over=a)
        y[i, b] = product * _root_of(d) if scaled else product
    return m


@noting
def patches() -> Mixer:
    """Make the part that makes rows of an image's patches, as a mixer: of the patches of r numbers,
    x (l, r), whose first row stands for the class token and is not read, a linear map with a bias,
    after the token's row: y (l, d).

    Dosovitskiy et al. 2020, arXiv 2010.11929, eq. (1); the map of a patch is a convolution whose
    stride is its width.
    """
    m = _new_part("patches", "Patches, with a class token", "Dosovitskiy et al. 2020, eq. (1)")
    l, d = m.sizes("l d")
    r = m.size("r", "numbers of a patch", 768)
    x, y = m.input("x", l, r), m.output("y", l, d)
    E, offset, token = m.parameter("E", r, d), m.parameter("b_E", d), m.parameter("token", d)
    with m.form("direct") as f:
        i, b, a = f.index("i", 2, l), f.index("b", 1, d), f.index("a", 1, r)
        y[1, b] = token[b]
        y[i, b] = sum_(x[i, a] * E[a, b], over=a) + offset[b]
    return m


@noting
def positions(kind: str, product: bool = False, scaled: bool = False, *, offset: int = 0) -> Mixer:
    """Make the part positions, as a mixer x (l, d) to y (l, d): a row P[i] for each position i,
    added to the row x[i] of the token there.

    Args:
        kind: `learned` (P is a parameter) or `sinusoidal` (P is a table).
        offset: position i reads row i + offset of a learned P, which has so many rows more, as in
            OPT (`product` and `scaled` are off).
        product: learned rows are the product of one-hot rows (l, u) with P (u, d), as Chen 2023
            prints it (arXiv 2308.07661v1, eqs. (5) and (6)): work on parameters alone, done once.
        scaled: learned rows are multiplied by sqrt(d) (arXiv 2308.07661v2, at eq. (5)).
    """
    m = _new_part("positions", f"Positions, {kind}")
    l, d, u = m.sizes("l d u")
    x, y = m.input("x", l, d), m.output("y", l, d)
    P = (m.parameter if kind == "learned" else m.buffer)("P", u if product else l + offset, d)
    one_hot_rows = m.buffer("I", l, u) if product else None
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        rows: Array = P
        if one_hot_rows is not None or scaled:
            rows = f.array("rows", l, d)
            value: Node = P[i, b]
            if one_hot_rows is not None:
                a = f.index("a", 1, u)
                value = sum_(one_hot_rows[i, a] * P[a, b], over=a)
            rows[i, b] = value * _root_of(d) if scaled else value
        y[i, b] = x[i, b] + rows[i + offset if offset else i, b]
    return m


@noting
def segments(kinds: int) -> Mixer:
    """Make the part segments, as a mixer x (l, d) to y (l, d): a row of S (kinds, d), for the
    segment (sentence A or B, as in BERT) that a token belongs to, is added to the token's row."""
    source = "Devlin et al. 2018, arXiv 1810.04805, figure 2"
    m = _new_part("segments", "Segments", source)
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    S, which = m.parameter("S", kinds, d), m.input("which", l, below=kinds)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        y[i, b] = x[i, b] + S[which[i], b]
    return m


@noting
def appended(kinds: int) -> Mixer:
    """Make the part appended rows, as a mixer x (l, d) to y (l, d + r): beside the row of a token,
    the row of T (kinds, r) for what else is known of the token, such as how it sounds.

    Su et al. 2022, RoCBert, ACL 2022, section 3.2; transformers, RoCBertEmbeddings.
    """
    m = _new_part("appended", "Appended rows", "transformers, RoCBertEmbeddings")
    l, d = m.sizes("l d")
    r = m.size("r", "entries of an appended row", 4)
    x, y = m.input("x", l, d), m.output("y", l, d + r)
    T, which = m.parameter("T", kinds, r), m.input("which", l, below=kinds)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        c = f.index("c", 1, r)
        y[i, b] = x[i, b]
        y[i, d + c] = T[which[i], c]
    return m


@noting
def unread() -> Mixer:
    """Make the part unread parameters, as a mixer of rows x (l, d), which pass unchanged: r numbers
    P that a class has among its parameters. No equation reads P, so that a step of training leaves
    P as it is.

    transformers: RoFormerSinusoidalPositionalEmbedding, whose sines and cosines attention has in
    tables of its own; BartForCausalLM, whose cross-attention reads an encoder that is not there.
    """
    m = _new_part("unread", "Unread parameters", "transformers, BartForCausalLM")
    l, d = m.sizes("l d")
    r = m.size("r", "parameters that no pass reads", 4)
    x, y = m.input("x", l, d), m.output("y", l, d)
    m.parameter("P", r)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        y[i, b] = x[i, b]
    return m


GAINS: Mapping[str, str] = {
    "w": "each entry is multiplied by a weight",
    "1 + w": "each entry is multiplied by 1 + w, as in Gemma, Qwen3-Next and Nemotron",
    "": "without weights, as in OLMo",
}
"""What a norm multiplies its entries by, by name."""


def _gain(f: Form, d: Poly, b: Index, gain: str, named: str = "gain") -> Node | None:
    """Declare a norm's gain and return the factor of entry b of a row of d entries: the weight w[b]
    for the `gain` "w"; 1 + w[b], whose equation is written here, for "1 + w"; None for ""."""
    if not gain:
        return None
    w = f.mixer.parameter(named, d)
    if gain == "w":
        return w[b]
    factor = f.array("factor", d)
    factor[b] = 1 + w[b]
    return factor[b]


@noting
def layer_norm(
    bias: bool = True, eps: bool = True, *, gain: str = "w", repeated: bool = False
) -> Mixer:
    """Make the part layer norm, as a mixer of rows (l, d), with a gain "w", "1 + w" or none
    (`GAINS`); `bias` and the constant under the root, `eps`, as asked. `repeated`: the parameters
    are called gain_R and offset_R, by which two norms of a layer share them.

    Ba et al. 2016, arXiv 1607.06450; Chen 2023, arXiv 2308.07661v2, eq. (8) has no eps.
    """
    m = _new_part("layer-norm", "Layer norm", "Ba et al. 2016, arXiv 1607.06450")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        ending = "_R" if repeated else ""
        factor = _gain(f, d, b, gain, f"gain{ending}")
        offset = m.parameter(f"offset{ending}", d) if bias else None
        shift, under_root = None if offset is None else offset[b], norms.LAYER_EPS if eps else 0
        y[i, b] = norms.layer_norm(x[i, b], over=b, gain=factor, bias=shift, eps=under_root)
    return m


@noting
def rms_norm(*, gain: str = "w") -> Mixer:
    """Make the part RMS norm, as a mixer of rows (l, d), with a gain "w", "1 + w" or none
    (`GAINS`).

    Zhang and Sennrich 2019, arXiv 1910.07467.
    """
    m = _new_part("rms-norm", "RMS norm", "Zhang and Sennrich 2019, arXiv 1910.07467")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        factor = _gain(f, d, b, gain)
        y[i, b] = norms.rms_norm(x[i, b], over=b, gain=factor, eps=RMS_EPS)
    return m


@noting
def residual(scaled: str = "", *, gated: bool = False) -> Mixer:
    """Make the part residual sum, as a mixer x (l, 2, d) to y (l, d): a sublayer's input x[:, 1]
    plus its output x[:, 2]. `scaled`: "output", the output is multiplied by a constant, as in
    Granite, or "both", the input by a constant too, as in Beam; `gated`: the output by tanh of a
    parameter (1), as in Llama 3.2 with images.

    The gate: Alayrac et al. 2022, arXiv 2204.14198, section 2.2.
    """
    m = _new_part("residual", "Residual sum")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, 2, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        factor: Node = MULTIPLIER
        if gated:
            one, opened = f.index("o", 1, 1), f.array("opened", 1)
            opened[one] = function("tanh", m.parameter("gate", 1)[one])
            factor = opened[1]
        rows = REST * x[i, 1, b] if scaled == "both" else x[i, 1, b]
        y[i, b] = rows + (factor * x[i, 2, b] if scaled or gated else x[i, 2, b])
    return m


@noting
def scale() -> Mixer:
    """Make the part scale, as a mixer of rows (l, d): each entry divided by sqrt(d), as T5 does
    before its head: one division an entry.

    Raffel et al. 2019, arXiv 1910.10683; transformers, T5ForConditionalGeneration.
    """
    m = _new_part("scale", "Scale", "transformers, T5ForConditionalGeneration")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        y[i, b] = x[i, b] / _root_of(d)
    return m


@noting
def dropout() -> Mixer:
    """Make the part dropout, as a mixer of rows (l, d): the product with a mask of 0 and 1/(1-p),
    one multiplication an entry.

    Chen 2023, arXiv 2308.07661v2, eq. (6); a network counts it under `dropout=mul` alone.
    """
    m = _new_part("dropout", "Dropout", "Chen 2023, arXiv 2308.07661v2, eq. (6)")
    l, d = m.sizes("l d")
    x, y, mask = m.input("x", l, d), m.output("y", l, d), m.input("mask", l, d)
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        y[i, b] = x[i, b] * mask[i, b]
    return m


ACTIVATIONS: Mapping[str, Callable[[Node], Node]] = {
    "none": lambda x: x,
    "relu": lambda x: function("relu", x),
    "gelu": lambda x: function("gelu", x),
    "gelu-tanh": gates.gelu_tanh,
    "silu": lambda x: function("silu", x),
    "tanh": lambda x: function("tanh", x),
}
"""Name -> the activation of one entry."""


def activated(name: str, entry: Node, **own: Callable[[Node], Node]) -> Node:
    """An entry after the activation of this name in `ACTIVATIONS` or `own`, which holds those of
    one part alone; ModelError for another name."""
    known = {**ACTIVATIONS, **own}
    if name not in known:
        raise ModelError(f"unknown activation '{name}': expected one of {', '.join(known)}")
    return known[name](entry)


def _xielu(f: Form, entry: Node, at: Width) -> Node:
    """Declare the activation xIELU's parameters and arrays, and return the expression a_p max(x,
    0)^2 + a_n (exp(min(x, 0)) - 1 - min(x, 0)) + x/2 of an entry x at two indices, with a_p =
    softplus(alpha_p) and a_n = 1/2 + softplus(alpha_n).

    Huang and Schlag 2024, arXiv 2411.13010, eq. (19); as transformers' XIELUActivation.
    """
    m, (i, c), one = f.mixer, at, f.index("o", 1, 1)
    a_p, a_n = (f.array(name, 1) for name in ("a_p", "a_n"))
    half = Constant(Poly.of(Fraction(1, 2)))
    a_p[one] = function("softplus", m.parameter("alpha_p", 1)[one])
    a_n[one] = function("softplus", m.parameter("alpha_n", 1)[one]) + half
    shape = (at[0].upper[0], at[1].upper[0])
    first, above, below = (f.array(name, *shape) for name in ("first", "above", "below"))
    first[i, c] = entry
    above[i, c] = maximum(first[i, c], 0)
    below[i, c] = minimum(first[i, c], 0)
    grown = a_p[1] * above[i, c] * above[i, c]
    return grown + a_n[1] * (exp(below[i, c]) - 1 - below[i, c]) + half * first[i, c]


@noting
def dense(activation: str = "none", bias: bool = True) -> Mixer:
    """Make the part linear map, as a mixer x (l, d) to y (l, f): each row times W, plus a bias if
    `bias`, then an activation by its name in `ACTIVATIONS` ("none": none)."""
    m = _new_part("dense", "Linear map")
    l, d, width = m.sizes("l d f")
    x, y = m.input("x", l, d), m.output("y", l, width)
    W, b_out = m.parameter("W", d, width), m.parameter("b", width) if bias else None
    with m.form("direct") as f:
        i, c = f.index("i", 1, l), f.index("c", 1, width)
        a = f.index("a", 1, d)
        product = sum_(x[i, a] * W[a, c], over=a)
        y[i, c] = activated(activation, product if b_out is None else product + b_out[c])
    return m


@noting
def ffn(activation: str = "relu", bias: bool = True, *, squared: bool = False) -> Mixer:
    """Make the part FFN, as a mixer of rows (l, d): a linear map from d to f, an activation, and a
    linear map from f to d. The activation "xielu" has two parameters of its own; with `squared`,
    the activation is squared, as in Nemotron-H.

    Chen 2023, arXiv 2308.07661v1, eq. (15); Vaswani et al. 2017, arXiv 1706.03762, eq. (2).
    """
    m = _new_part("ffn", "FFN", "Chen 2023, arXiv 2308.07661v1, eq. (15)")
    l, d, width = m.sizes("l d f")
    x, y = m.input("x", l, d), m.output("y", l, d, cite="(15)")
    W_1, W_2 = m.parameter("W_1", d, width), m.parameter("W_2", width, d)
    b_1, b_2 = (m.parameter(name, extent) if bias else None
                for name, extent in (("b_1", width), ("b_2", d)))  # fmt: skip
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        a, c = f.index("a", 1, d), f.index("c", 1, width)
        hidden = f.array("hidden", l, width, cite="(15)")
        first = sum_(x[i, a] * W_1[a, c], over=a)
        first = first if b_1 is None else first + b_1[c]
        active = f.array("active", l, width) if squared else hidden
        xielu = partial(_xielu, f, at=(i, c))
        active[i, c] = activated(activation, first, xielu=xielu)
        if squared:
            hidden[i, c] = active[i, c] * active[i, c]
        second = sum_(hidden[i, c] * W_2[c, b], over=c)
        y[i, b] = second if b_2 is None else second + b_2[b]
    return m


def _sparse_gate(f: Form, entry: Node, at: Width) -> Node:
    """Declare the arrays of sparse gates, and return what stays of `entry`, g[i, c] with (i, c) the
    indices `at`: relu(g - mean - QUANTILE deviation), mean and deviation over c, by 1 / width."""
    (i, c), (l, width) = at, (at[0].upper[0], at[1].upper[0])
    raw, centred, squares = (f.array(name, l, width) for name in ("raw", "centred", "squares"))
    mean, deviation, kept = f.array("mean", l), f.array("deviation", l), f.array("kept", l, width)
    raw[i, c] = entry
    mean[i] = sum_(raw[i, c], over=c) / width
    centred[i, c] = raw[i, c] - mean[i]
    squares[i, c] = centred[i, c] * centred[i, c]
    deviation[i] = function("sqrt", sum_(squares[i, c], over=c) / width)
    bound = f.array("bound", l)
    bound[i] = mean[i] + QUANTILE * deviation[i]
    kept[i, c] = function("relu", raw[i, c] - bound[i])
    return kept[i, c]


LIMIT = 7
ALPHA = Constant(Poly.of(Fraction("1.702")))
"""gpt-oss bounds gate and up at 7, and multiplies the gate by sigmoid(1.702 gate)."""


def bounded_gates(f: Form, gate: Array, up: Array, at: tuple[Index, ...], lead: str = "") -> Array:
    """Write the equations of an FFN's hidden rows as in gpt-oss, and return their array: (1 + up) *
    gate * sigmoid(alpha gate), gate at most 7, up within -7 and 7. `at` are the indices of a row,
    and `lead` begins the names of the arrays."""
    G, U, H = (f.array(f"{lead}{name}", *gate.shape) for name in ("gate_7", "up_7", "hidden"))
    G[at] = minimum(gate[at], LIMIT)
    U[at] = maximum(minimum(up[at], LIMIT), -LIMIT)
    H[at] = (1 + U[at]) * G[at] * function("sigmoid", ALPHA * G[at])
    return H


@noting
def gated_ffn(
    activation: str = "silu",
    bias: bool = False,
    *,
    sparse: bool = False,
    normed: bool = False,
    clamped: bool = False,
) -> Mixer:
    """Make the part gated FFN, as a mixer of rows (l, d): act(x W_gate) * (x W_up), f wide, times
    W_down to d. `sparse`: of a row's gates relu(g - mean - q deviation) stays, with a constant q,
    as in Gemma 3n. `normed`: an RMS norm stands before W_down, and the activation is squared, as in
    BitNet. `clamped`: gates as `bounded_gates` writes them, without `activation`.

    Shazeer 2020, arXiv 2002.05202, eq. (6): SwiGLU with silu, GEGLU with gelu.
    """
    m = _new_part("gated-ffn", "Gated FFN", "Shazeer 2020, arXiv 2002.05202, eq. (6)")
    l, d, width = m.sizes("l d f")
    x, y = m.input("x", l, d), m.output("y", l, d)
    maps = {"gate": (d, width), "up": (d, width), "down": (width, d)}
    W = {name: m.parameter(f"W_{name}", *shape) for name, shape in maps.items()}
    b_ = {name: m.parameter(f"b_{name}", shape[1]) for name, shape in maps.items() if bias}
    with m.form("direct") as f:
        i, b = _row_indices(f, l, d)
        a, c = f.index("a", 1, d), f.index("c", 1, width)
        G, U = f.array("gate", l, width), f.array("up", l, width)

        def mapped(name: str, value: Node, at: Index) -> Node:
            return value if name not in b_ else value + b_[name][at]

        first = mapped("gate", sum_(x[i, a] * W["gate"][a, c], over=a), c)
        first = _sparse_gate(f, first, (i, c)) if sparse else first
        A = f.array("active", l, width) if normed else G
        A[i, c] = first if clamped else activated(activation, first)
        if normed:
            G[i, c] = A[i, c] * A[i, c]
        U[i, c] = mapped("up", sum_(x[i, a] * W["up"][a, c], over=a), c)
        if clamped:
            H = bounded_gates(f, G, U, (i, c))
        else:
            H = f.array("hidden", l, width)
            H[i, c] = G[i, c] * U[i, c]
        if normed:
            N, gain = f.array("normed", l, width), m.parameter("gain_F", width)
            N[i, c] = norms.rms_norm(H[i, c], over=c, gain=gain[c], eps=RMS_EPS)
            H = N
        y[i, b] = mapped("down", sum_(H[i, c] * W["down"][c, b], over=c), b)
    return m


@noting
def head(tied: bool = False, bias: bool = False, *, cap: bool = False, scale: str = "") -> Mixer:
    """Make the part head, as a mixer x (l, d) to y (l, u): a score for every entry of the
    vocabulary.

    `tied`: the weights are the embedding's E (u, d), whose parameters the embedding has; else the
    head has its own W (d, u). `cap`: scores s as 30 tanh(s/30), as in Gemma 2.

    `scale`: "divided", scores over a constant, as in Granite; "multiplied", scores times a
    constant, as in Cohere; "rows", the rows over a constant, as in MiniCPM3: d divisions a row.
    """
    m = _new_part("head", "Head", "Chen 2023, arXiv 2308.07661v1, eq. (16)")
    l, d, u = m.sizes("l d u")
    x, y = m.input("x", l, d), m.output("y", l, u)
    W = m.parameter("E", u, d) if tied else m.parameter("W", d, u)
    b_out = m.parameter("b", u) if bias else None
    with m.form("direct") as f:
        i, c = f.index("i", 1, l), f.index("c", 1, u)
        a = f.index("a", 1, d)
        rows = x
        if scale == "rows":
            rows = f.array("scaled", l, d)
            rows[i, a] = x[i, a] / MULTIPLIER
        product = sum_(rows[i, a] * (W[c, a] if tied else W[a, c]), over=a)
        score = product if b_out is None else product + b_out[c]
        if cap:
            score = CAP * function("tanh", score / CAP)
        if scale == "multiplied":
            score = INVERSE * score
        y[i, c] = score / MULTIPLIER if scale == "divided" else score
    return m


@noting
def probabilities() -> Mixer:
    """Make the part softmax over the vocabulary, as a mixer x (l, u) to y (l, u)."""
    m = _new_part("probabilities", "Softmax over the vocabulary",
              "Chen 2023, arXiv 2308.07661v1, eq. (16)")  # fmt: skip
    l, u = m.sizes("l u")
    x, y = m.input("x", l, u), m.output("y", l, u, cite="(16)")
    with m.form("direct") as f:
        i, c = f.index("i", 1, l), f.index("c", 1, u)
        y[i, c] = softmax(x[i, c], over=c)
    return m


@noting
def loss_of_scores(smoothed: bool = False) -> Mixer:
    """Make the part loss, as a mixer of scores (l, u): `program.losses.cross_entropy`, with label
    smoothing if `smoothed`."""
    return losses.cross_entropy((Poly.atom("l"), Poly.atom("u")), smoothed)


@noting
def loss_of_probabilities() -> Mixer:
    """Make the part loss, as a mixer x (l, u) to y (1): the cross-entropy of probabilities x, which
    is the mean over tokens of the negative logarithm of the target's probability."""
    source = "Chen 2023, arXiv 2308.07661v1, eq. (3)"
    m = _new_part("loss", "Cross-entropy of probabilities", source)
    l, u = m.sizes("l u")
    x, y = m.input("x", l, u), m.output("y", 1, cite="(3)")
    target = m.input("target", l, below=u)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        logs = f.array("logs", l)
        logs[i] = function("log", x[i, target[i]])
        y[1] = -sum_(logs[i], over=i) / l
    return m
