"""What are the equations of multi-head causal self-attention?"""

from __future__ import annotations

from costmodel.composites import scaled, softmax
from costmodel.equations import Mixer
from costmodel.expressions import sum_

self_attention = Mixer(
    "self-attention",
    title="Self-attention",
    source="Chen 2023, arXiv 2308.07661v2, eqs. (10)-(17)",
    group="attention",
    references=("torch.nn.MultiheadAttention",),
)
l, d, n, h = self_attention.sizes("l d n h")
x = self_attention.input("x", l, d)
y = self_attention.output("y", l, d, cite="(17)")
W_Q, W_K, W_V, W_out = (
    self_attention.parameter(name, d, d) for name in ("W_Q", "W_K", "W_V", "W_out")
)

with self_attention.form("direct") as f:
    i, k = f.index("i", 1, l), f.index("k", 1, f.index("i", 1, l))
    j, c = f.index("j", 1, n), f.index("c", 1, h)
    a, b = f.index("a", 1, d), f.index("b", 1, d)

    Q = f.array("Q", n, l, h, cite="(10)")
    K = f.array("K", n, l, h, cite="(11)")
    V = f.array("V", n, l, h, cite="(12)")
    Z = f.array("Z", n, l, l, cite="(13)")
    A = f.array("A", n, l, l, cite="(14)")
    R = f.array("R", l, d, cite="(15)-(16)")

    Q[j, i, c] = sum_(x[i, a] * W_Q[a, (j - 1) * h + c], over=a)
    K[j, i, c] = sum_(x[i, a] * W_K[a, (j - 1) * h + c], over=a)
    V[j, i, c] = sum_(x[i, a] * W_V[a, (j - 1) * h + c], over=a)
    Z[j, i, k] = scaled(sum_(Q[j, i, c] * K[j, k, c], over=c), by=h)
    A[j, i, k] = softmax(Z[j, i, k], over=k)
    R[i, (j - 1) * h + c] = sum_(A[j, i, k] * V[j, k, c], over=k)
    y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
