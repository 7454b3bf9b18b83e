"""What are the equations of sparse attention, whose pairs follow a pattern over blocks?

Each is self-attention in the words of `pairs`; block q holds the rows (q - 1)*B + e, e in 1..B, and
the last one, q = l//B + 1, only l % B rows, maybe none.

- Sparse Transformer, strided, section 4.3: row i attends to the last B rows, its own among them,
  and to every B-th row before these, in one softmax, as its merged heads do. Scores are kept by
  block: those of the block before the own one, of the own one, of rows in the same place.
- Sparse Transformer, fixed, section 4.3: row i attends to its block, up to itself, and to the last
  s rows of every block before, its summary; the paper's l and c are B and s here.
- Longformer, section 3.1: row i attends to the w/2 rows on each side, rounded down, and itself; the
  first s rows are global, attend to all rows and are attended to by all. "Linear Projections for
  Global Attention": their attention has queries, keys and values of its own, W_Q_g, W_K_g, W_V_g;
  other rows attend to them by the sliding window's, whose keys and values are computed where there
  are other rows (l > s).
- BigBird, section 2, of rows (its code draws whole blocks): the same with one projection, and c
  further rows for each of the others, drawn once among those that it does not see so; where these
  are too few, among all: one that is seen anyhow counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_, union
from costmodel.mixers.pairs import Keys, Layout, Rows, attention_over

CHILD = "Child et al. 2019, arXiv 1904.10509, section 4"


def strided() -> Mixer:
    """The mixer of attention to the last B rows and to every B-th row before them. Scores are (l//B
    + 1, B, 2B + l//B): block of a row, its place in the block, row attended to, where 1..B are the
    block before, B + 1..2B the own block, and 2B + p the row of block p at the same place; rows of
    the first block have their own block at 1..B."""
    m = Mixer(
        "strided-attention",
        title="Sparse Transformer, strided",
        idea="self-attention to the last B tokens and every B-th one",
        source=CHILD,
        group="attention",
    )
    l, B = m.sizes("l B")

    def pairs(f: Form, i: Index) -> Layout:
        """Rows of the first block, which attend to their block, and later rows; `i` is unused."""
        o, q = f.index("o", 1, 1), f.index("q", 2, l // B + 1)
        g, e = f.index("g", 1, min_(B, l)), f.index("e", 1, min_(B, l - (q - 1) * B))
        r, u = f.index("r", 1, g), f.index("u", max_(1, e + 1), B)
        s, p = f.index("s", 1, e), f.index("p", 1, q - 1)
        later = (
            Keys((u,), u, (q - 2) * B + u),  # the block before, behind place e
            Keys((s,), B + s, (q - 1) * B + s),  # the own block, up to place e
            Keys((p,), 2 * B + p, (p - 1) * B + e),  # place e of every block before
        )
        return (l // B + 1, B, 2 * B + l // B), (
            Rows((o - 1) * B + g, (o, g), (Keys((r,), r, (o - 1) * B + r),)),
            Rows((q - 1) * B + e, (q, e), later),
        )

    return attention_over(m, {"direct": pairs})


def fixed() -> Mixer:
    """The mixer of attention to the own block of B rows, and to the last s of each before."""
    m = Mixer(
        "fixed-attention",
        title="Sparse Transformer, fixed",
        idea="self-attention to a block and the ends of earlier ones",
        source=CHILD,
        group="attention",
    )
    l, B, s = m.sizes("l B s")  # tokens, rows a block, rows at a block's end

    def pairs(f: Form, i: Index) -> Layout:
        """A row's own block up to the row, and the last s rows of each block before."""
        q = f.index("q", 1, l // B + 1)
        e = f.index("e", 1, min_(B, l - (q - 1) * B))
        r, p, u = f.index("r", 1, e), f.index("p", 1, q - 1), f.index("u", max_(1, B - s + 1), B)
        own = Keys((r,), (1, r), (q - 1) * B + r)  # scores at (1, r) of the last two axes
        ends = Keys((p, u), (p + 1, u), (p - 1) * B + u)  # of block p, at (p + 1, u)
        return (l // B + 1, B, l // B + 1, B), (Rows((q - 1) * B + e, (q, e), (own, ends)),)

    return attention_over(m, {"direct": pairs})


def around_and_global(f: Form, by: str) -> tuple[Rows, Rows]:
    """Two groups of rows with the keys that they attend to: the first s rows, which attend to all
    rows, and the others, which attend to the first s rows and to w//2 rows on each side. `by` is
    the ending of the names of the first group's projections."""
    l, w, s = f.mixer.sizes("l w s")  # tokens, window, global rows
    g, r, k = f.index("g", 1, min_(s, l)), f.index("r", s + 1, l), f.index("k", 1, l)
    side = w // 2
    u = f.index("u", union((1, s), (max_(s + 1, r - side), min_(l, r + side))))
    return Rows(g, (g,), (Keys((k,), k, k),), by), Rows(r, (r,), (Keys((u,), u, u),), number=l - s)


def windowed() -> Mixer:
    """The mixer Longformer: rows attend to a window and to the first s rows; these attend to all
    rows, by maps of their own (`_g`)."""
    m = Mixer(
        "longformer",
        title="Longformer",
        idea="self-attention to a window of w tokens and s global ones",
        source="Beltagy et al. 2020, arXiv 2004.05150, section 3.1",
        group="attention",
    )
    l, *_ = m.sizes("l w s")

    def pairs(f: Form, i: Index) -> Layout:
        return (l, l), around_and_global(f, "_g")

    return attention_over(m, {"direct": pairs}, ("", "_g"))


@cache
def drawn(l: int, c: int, w: int, s: int) -> tuple[tuple[int, ...], ...]:
    """For each of l rows, the numbers (from 1) of c rows, drawn with a fixed seed. For a row after
    the first s they lie after the first s and outside its window (w//2 rows on each side); where
    fewer than c rows do, the rest are drawn from all. What the first s rows draw is not read."""
    chance, table = Random(0), []
    for i in range(1, l + 1):
        before, after = max(0, i - w // 2 - 1 - s), max(0, l - i - w // 2)
        # number k of the rows to draw from: `before` rows from s + 1 on, `after` rows up to l
        far = [
            k + s + 1 if k < before else l + 1 + k - before - after
            for k in chance.sample(range(before + after), min(c, before + after))
        ]
        table.append((*far, *chance.choices(range(1, l + 1), k=c - len(far))))
    return tuple(table)


def drawing() -> Mixer:
    """The mixer BigBird: the first s rows attend to all rows, the others to a window, to the first
    s, and to the c rows drawn for each, whose numbers P (l, c) has."""
    m = Mixer(
        "bigbird",
        title="BigBird",
        idea="self-attention to a window, s global and c drawn tokens",
        source="Zaheer et al. 2020, arXiv 2007.14062, section 2",
        group="attention",
    )
    l, c, *_ = m.sizes("l c w s")

    def kth_drawn(i: int, k: int, at: Mapping[str, int]) -> int:
        """The number of the k-th row that is drawn for row i, at the sizes `at`."""
        return drawn(*(at[x] for x in "lcws"))[i - 1][k - 1]

    P = m.buffer("P", l, c, below=l, value=kth_drawn)

    def pairs(f: Form, i: Index) -> Layout:
        first, others = around_and_global(f, "")
        o = f.index("o", 1, c)
        far = Keys((o,), l + o, P[others.row, o])  # drawn rows, scores at l + o
        return (l, l + c), (first, replace(others, keys=(*others.keys, far)))

    return attention_over(m, {"direct": pairs})


strided_attention = strided()
fixed_attention = fixed()
longformer = windowed()
bigbird = drawing()
