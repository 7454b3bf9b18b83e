"""What are the equations of a block of attention and FFN whose weights several layers share, as in
Zamba and Zamba2?

The block reads the rows of a layer beside those of the embedded tokens, 2 d channels in all. Of
several such blocks, each has parameters of its own, whose names end with the block's number. Beside
the weights each layer may have low-rank adapters of its own, without a number in their names.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import sum_
from costmodel.mixers.self_attention import Rotated, seen_rows
from costmodel.networks.parts import RMS_EPS, activated, noting
from costmodel.symbolic.polynomial import Poly

SOURCE = "Glorioso et al. 2024, arXiv 2405.16712 and 2411.15242; transformers, Zamba2Model"


def _made(name: str, title: str, group: str = "part of a network") -> Mixer:
    return Mixer(name, title=title, source=SOURCE, group=group)


@noting
def beside_embedding(number: int) -> Mixer:
    """Make the part norm of two rows, as a mixer: the RMS norm y (l, 2 d) of rows x (l, d) and
    embedded tokens z (l, d) as one row, with the gain of the block `number`."""
    m = _made("norm-of-two-rows", "RMS norm of rows beside embedded tokens")
    l, d = m.sizes("l d")
    x, z, y = m.input("x", l, d), m.input("z", l, d), m.output("y", l, 2 * d)
    gain = m.parameter(f"gain_x{number}", 2 * d)
    with m.form("direct") as f:
        i, b, c = f.index("i", 1, l), f.index("b", 1, d), f.index("c", 1, 2 * d)
        both = f.array("both", l, 2 * d)
        both[i, b] = x[i, b]
        both[i, d + b] = z[i, b]
        y[i, c] = rms_norm(both[i, c], over=c, gain=gain[c], eps=RMS_EPS)
    return m


@noting
def norm(number: int) -> Mixer:
    """Make the part RMS norm, before the FFN of the block `number`, as a mixer of rows (l, d)."""
    m = _made("norm-of-shared-block", "RMS norm of a shared block")
    l, d = m.sizes("l d")
    x, y, gain = m.input("x", l, d), m.output("y", l, d), m.parameter(f"gain_f{number}", d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = rms_norm(x[i, b], over=b, gain=gain[b], eps=RMS_EPS)
    return m


def _narrowed(f: Form, x: Array, name: str) -> Array:
    """Declare the parameter A_`name` of a low-rank adapter, write the equation of the rows x A, and
    return the array of these rows (l, r)."""
    m, (l, width) = f.mixer, x.shape
    r = m.size("r", "rank of the adapters of a layer", 128)
    A, found = m.parameter(f"A_{name}", width, r), f.array(f"U_{name}", l, r)
    i, a, q = f.index("i", 1, l), f.index("a", 1, width), f.index("q", 1, r)
    found[i, q] = sum_(x[i, a] * A[a, q], over=a)
    return found


def _mapped(f: Form, x: Array, W: Array, at: Index | Poly, narrow: Array | None) -> Node:
    """The expression of entry `at` of x W; with `narrow`, the rows x A of an adapter, plus their
    product with the adapter's parameter B, called B_Q for W_Q1."""
    i, a = f.indices["i"], f.index("a", 1, x.shape[1])
    found: Node = sum_(x[i, a] * W[a, at], over=a)
    if narrow is None:
        return found
    name = f"B_{W.name.removeprefix('W_').rstrip('0123456789')}"
    B, q = f.mixer.parameter(name, narrow.shape[1], W.shape[1]), f.indices["q"]
    return found + sum_(narrow[i, q] * B[q, at], over=q)


@noting
def attention(number: int, turned: bool = False, adapted: bool = False) -> Mixer:
    """Make the attention of the block `number` (from 1), as a mixer of rows x (l, 2 d), each beside
    its embedded token, to y (l, d): n heads of queries and g heads of keys and values, of h
    channels (the size K) each; scores over sqrt(h/2). `turned`: queries and keys have a rotary
    embedding. `adapted`: the maps to queries, keys and values have low-rank adapters."""
    m = _made("attention-of-shared-block", "Attention of a shared block", "attention")
    l, d, n, g, h = m.sizes("l d n g K")
    x, y = m.input("x", l, 2 * d), m.output("y", l, d)
    widths = {"Q": n * h, "K": g * h, "V": g * h}
    W = {one: m.parameter(f"W_{one}{number}", 2 * d, width) for one, width in widths.items()}
    W_out = m.parameter(f"W_out{number}", n * h, d)
    tables = Rotated(m, frozenset({"rotary"}), h) if turned else None
    with m.form("direct") as f:
        i, j, o, c = (
            f.index(*of) for of in (("i", 1, l), ("j", 1, g), ("o", 1, n / g), ("c", 1, h))
        )
        b, r, k = f.index("b", 1, d), f.index("z", 1, n * h), seen_rows(f, frozenset(), i, l).over
        narrow = {one: _narrowed(f, x, one) if adapted else None for one in W}
        head = (j - 1) * (n / g) + o
        at = {"Q": (j, o, i, c), "K": (j, i, c), "V": (j, i, c)}
        column = {"Q": (head - 1) * h + c, "K": (j - 1) * h + c, "V": (j - 1) * h + c}
        rows = dict[str, Array]()
        for one in W:
            shape = (g, n / g, l, h) if one == "Q" else (g, l, h)
            raw = f.array(f"{one}_p" if tables and one != "V" else one, *shape)
            raw[at[one]] = _mapped(f, x, W[one], column[one], narrow[one])
            rows[one] = raw
            if tables and one != "V":
                rows[one], p = f.array(one, *shape), f.index("p", 1, h / 2)
                cos, sin = tables.cos[i, c], tables.sin[i, c]
                rows[one][at[one]] = rotary(raw[at[one]], over=c, pairs=p, cos=cos, sin=sin)
        Z, A, R = f.array("Z", g, n / g, l, l), f.array("A", g, n / g, l, l), f.array("R", l, n * h)
        score = sum_(rows["Q"][j, o, i, c] * rows["K"][j, k, c], over=c)
        Z[j, o, i, k] = scaled(score, by=h / 2)
        A[j, o, i, k] = softmax(Z[j, o, i, k], over=k)
        R[i, column["Q"]] = sum_(A[j, o, i, k] * rows["V"][j, k, c], over=k)
        y[i, b] = sum_(R[i, r] * W_out[r, b], over=r)
    return m


@noting
def gated_ffn(number: int, activation: str, adapted: bool = False, biased: bool = False) -> Mixer:
    """Make the gated FFN of the block `number` (from 1), f wide, as a mixer of rows x (l, d) to y
    (l, d). `activation`: of the gate, a name in `ACTIVATIONS`; `adapted`: the maps to gate and up
    have low-rank adapters with one A (d, r) and two B (r, f); `biased`: the maps to gate and up and
    the map down have biases."""
    m = _made("gated-ffn-of-shared-block", "Gated FFN of a shared block")
    l, d, width = m.sizes("l d f")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W = {one: m.parameter(f"W_{one}{number}", d, width) for one in ("gate", "up")}
    W_down = m.parameter(f"W_down{number}", width, d)
    ends = {"gate": width, "up": width, "down": d} if biased else {}
    offset = {one: m.parameter(f"b_{one}{number}", size) for one, size in ends.items()}
    with m.form("direct") as f:
        i, b, c = f.index("i", 1, l), f.index("b", 1, d), f.index("c", 1, width)
        narrow = _narrowed(f, x, "gate") if adapted else None
        G, U, H = (f.array(name, l, width) for name in ("gate", "up", "hidden"))

        def plus(value: Node, one: str, at: Index) -> Node:
            return value + offset[one][at] if biased else value

        G[i, c] = activated(activation, plus(_mapped(f, x, W["gate"], c, narrow), "gate", c))
        U[i, c] = plus(_mapped(f, x, W["up"], c, narrow), "up", c)
        H[i, c] = G[i, c] * U[i, c]
        y[i, b] = plus(sum_(H[i, c] * W_down[c, b], over=c), "down", b)
    return m
