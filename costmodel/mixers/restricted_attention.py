"""What are the equations of self-attention that is restricted to a neighbourhood of each token?

Vaswani et al. 2017, section 4: "self-attention could be restricted to considering only a
neighborhood of size r in the input sequence centered around the respective output position". The
paper's r is w here, the number of positions that a token attends to, its own included; of an even
number, one more lies ahead than behind. Near the ends of the sequence there are fewer. The causal
variant attends to the last w positions. Projections, heads and scale are those of self-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.writing import sum_
from costmodel.symbolic.polynomial import Poly, call

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 1 and section 4"
TORCH = "torch.nn.MultiheadAttention"

Neighbours = Callable[[Form, Index, Poly, Poly, Poly], tuple[Index, Poly, Poly]]
"""Called with the form, the row i, l, w and how many of the w rows lie ahead of i. Returns an index
over the rows that i attends to, the row at this index, and the extent of the scores' last axis."""


def by_position(f: Form, i: Index, l: Poly, w: Poly, ahead: Poly) -> tuple[Index, Poly, Poly]:
    """Scores in a square: k is a row."""
    last = min_(l, i + ahead) if ahead.terms else i
    k = f.index("k", max_(1, i + ahead - w + 1), last)
    return k, k.as_poly(), l


def by_offset(f: Form, i: Index, l: Poly, w: Poly, ahead: Poly) -> tuple[Index, Poly, Poly]:
    """Scores in a band: k counts the w rows around row i, and row i itself is number w - ahead."""
    own = w - ahead
    last = min_(w, l + own - i) if ahead.terms else w
    k = f.index("k", max_(1, own + 1 - i), last)
    return k, i + k - own, w


FORMS: Mapping[str, Neighbours] = {"direct": by_position, "banded": by_offset}


def restricted_attention(name: str, title: str, idea: str, *, causal: bool) -> Mixer:
    """Self-attention to w rows: the last ones, or those around."""
    m = Mixer(name, title=title, idea=idea, source=VASWANI, group="attention", references=(TORCH,))
    l, d, n, w, h = m.sizes("l d n w h")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K = m.parameter("W_Q", d, d), m.parameter("W_K", d, d)
    W_V, W_out = m.parameter("W_V", d, d), m.parameter("W_out", d, d)
    ahead = Poly() if causal else call("floor_div", w, 2)
    for form, neighbours in FORMS.items():
        with m.form(form) as f:
            i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
            a, b = f.index("a", 1, d), f.index("b", 1, d)
            k, row, extent = neighbours(f, i, l, w, ahead)
            Q, K, V = f.array("Q", n, l, h), f.array("K", n, l, h), f.array("V", n, l, h)
            Z, A = f.array("Z", n, l, extent), f.array("A", n, l, extent)
            R = f.array("R", l, d)

            Q[j, i, c] = sum_(x[i, a] * W_Q[a, (j - 1) * h + c], over=a)
            K[j, i, c] = sum_(x[i, a] * W_K[a, (j - 1) * h + c], over=a)
            V[j, i, c] = sum_(x[i, a] * W_V[a, (j - 1) * h + c], over=a)
            Z[j, i, k] = scaled(sum_(Q[j, i, c] * K[j, row, c], over=c), by=h)
            A[j, i, k] = softmax(Z[j, i, k], over=k)
            R[i, (j - 1) * h + c] = sum_(A[j, i, k] * V[j, row, c], over=k)
            y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


centred = restricted_attention(
    "restricted-attention",
    "Restricted self-attention",
    "self-attention to the w tokens around",
    causal=False,
)
causal = restricted_attention(
    "restricted-attention-causal",
    "Restricted self-attention, causal",
    "self-attention to the last w tokens",
    causal=True,
)
