"""What are the equations of sparse attention, where a few tokens join all others?

Each is self-attention in the words of `pairs`.

- Longformer, section 3.1: row i attends to the w/2 rows on each side, rounded down, and itself; the
  first s rows are global, attend to all rows and are attended to by all. "Linear Projections for
  Global Attention": their attention has queries, keys and values of its own, W_Q_g, W_K_g, W_V_g;
  other rows attend to them by the sliding window's.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_, union
from costmodel.mixers.pairs import Keys, Layout, Rows, attention_over


def windowed() -> Mixer:
    """A window, and rows that see all and are seen by all."""
    m = Mixer(
        "longformer",
        title="Longformer",
        idea="self-attention to a window of w tokens and s global ones",
        source="Beltagy et al. 2020, arXiv 2004.05150, section 3.1",
        group="attention",
    )
    l, w, s = m.sizes("l w s")

    def pairs(f: Form, i: Index) -> Layout:
        g, r, k = f.index("g", 1, min_(s, l)), f.index("r", s + 1, l), f.index("k", 1, l)
        side = w // 2
        near = union((1, s), (max_(s + 1, r - side), min_(l, r + side)))
        u = f.index("u", near)
        return (l, l), (
            Rows(g, (g,), (Keys((k,), k, k),), by="_g"),
            Rows(r, (r,), (Keys((u,), u, u),)),
        )

    return attention_over(m, {"direct": pairs}, ("", "_g"))


longformer = windowed()
