"""What are the equations of attention over a set of pairs of tokens?

Each is self-attention, with the projections, heads and scale of Vaswani et al. 2017, in which a
token attends to some of the others; they differ in the pairs alone.

- Restricted attention, section 4: "self-attention could be restricted to considering only a
  neighborhood of size r in the input sequence centered around the respective output position". The
  paper's r is w here, the number of positions that a token attends to, its own included; of an even
  number, one more lies ahead than behind. Near the ends of the sequence there are fewer. The causal
  variant attends to the last w positions.
- Local attention, as in Long Range Arena: rows lie in l//B + 1 blocks of B, the last one of l % B
  rows, which may be 0; a token attends to its block; `causal` is a decoder's. The benchmark's code
  fills up the last block, and adds one where there is none to fill up: not counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Extremum, Index, max_, min_, one_by_one, union
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import sum_
from costmodel.symbolic.polynomial import Poly, call

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 1 and section 4"
TORCH = "torch.nn.MultiheadAttention"
TAY = "Tay et al. 2021, arXiv 2011.04006, and its code, models/local"


@dataclass(frozen=True)
class Keys:
    """Keys of one row: for every value of the indices `over`, row `key`. Its score stands at `slot`
    on the last axis of the array of scores, or at several slots on as many axes."""

    over: tuple[Index, ...]
    slot: Any
    key: Any

    @property
    def slots(self) -> tuple[Any, ...]:
        """The slot on each axis, as a tuple."""
        return self.slot if isinstance(self.slot, tuple) else (self.slot,)

    @property
    def ranges(self) -> Iterator[list[tuple[Any, Any]]]:
        """Yield for each range of keys (of a union) a list of pairs (first, last): the bounds of
        the positions (slots) of its keys on each of the last axes of the array of scores."""
        for over in one_by_one(self.over):
            yield [
                (
                    self._at(n, over, lambda index: index.lower, max_),
                    self._at(n, over, lambda index: index.upper, min_),
                )
                for n in self.slots
            ]

    def _at(
        self,
        slot: Any,
        over: Sequence[Index],
        ends: Callable[[Index], tuple[Poly, ...]],
        joined: Callable[..., Extremum],
    ) -> Extremum:
        """A bound of a slot (a position on an axis of scores, a formula in indices) over all values
        of the indices `over`: the slot with each combination of the indices' bounds substituted.
        For the first slot, `ends` gives lower bounds and `joined` is max_; for the last slot, upper
        bounds and min_."""
        values = [Poly.of(slot)]
        for index in over:
            values = [v.substitute({index.atom: end}) for v in values for end in ends(index)]
        return joined(*dict.fromkeys(values))


@dataclass(frozen=True)
class Rows:
    """Rows that attend in one way: row `row` has its scores at `place`, the first axes of the array
    of scores, and attends to disjoint `keys`, in the order of their slots."""

    row: Any
    place: tuple[Any, ...]
    keys: tuple[Keys, ...]
    by: str = ""
    """The ending of the names of their projections: "_g" for W_Q_g, W_K_g and W_V_g."""
    number: Any = None
    """The number of these rows, given only if it may be 0."""


Layout = tuple[tuple[Any, ...], Sequence[Rows]]
"""(extents of a head's scores, groups of rows that attend in one way; together all rows)."""

Pairs = Callable[[Form, Index], Layout]
"""A function of the form and the index i of all rows, which returns the layout of the pairs."""


def attention_over(
    m: Mixer, forms: Mapping[str, Pairs], projections: Sequence[str] = ("",)
) -> Mixer:
    """The mixer m with the parameters and equations of self-attention over a set of pairs of rows.

    Args:
        forms: form -> the function that gives the pairs, with a layout of their scores.
        projections: the ending of the names of each set of projections. If there are several, a set
            has queries of its own rows alone, and keys and values of all rows. If the number of its
            rows may be 0, its keys and values get a further axis that is empty where there are no
            such rows, so that they cost nothing there.
    """
    l, d, *_ = m.sizes("l d n h")
    x, y = m.input("x", l, d), m.output("y", l, d)
    for by in projections:
        for one in "QKV":
            m.parameter(f"W_{one}{by}", d, d)
    W_out = m.parameter("W_out", d, d)
    for form, pairs in forms.items():
        with m.form(form) as f:
            i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
            R = attended(f, x, pairs, projections)
            y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def attended(
    f: Form, x: Array, pairs: Pairs, projections: Sequence[str] = ("",), after: str = ""
) -> Array:
    """Define and return R (l, d): the n heads' results of attention over a set of pairs of rows of
    x (l, d), side by side.

    Args:
        pairs: (form, index of rows) -> (extents of a head's scores, groups of `Rows`).
        projections: the ending of the names of each set of projections, one or several.
        after: an ending of the names of all arrays and weights, so that they are distinct from
            those of another attention in the form.
    """
    (l, d), (n, h) = x.shape, f.mixer.sizes("n h")
    i, j, c = f.index("i", 1, l), f.index(f"j{after}", 1, n), f.index("c", 1, h)
    a = f.index("a", 1, d)
    extents, groups = pairs(f, i)  # of the scores; rows that attend in one way, with their keys
    several, of_set = len(projections) > 1, {rows.by: rows for rows in groups}  # ending -> group
    # ending of a set of projections -> the number of its rows if it may be 0, else None; `at`: the
    # position on the axis that keys and values then have
    numbers = {by: of_set[by].number if several else None for by in projections}
    at = {by: () if number is None else (1,) for by, number in numbers.items()}
    arrays = {
        by: [
            f.array(f"{one}{by}{after}", n, *(at[by] if one != "Q" else ()), l, h) for one in "QKV"
        ]
        for by in projections
    }
    Z, A = (f.array(f"{name}{after}", n, *extents) for name in "ZA")
    R = f.array(f"R{after}", l, d)
    for by, own in arrays.items():
        queries, number = of_set[by].row if several else i, numbers[by]
        some = () if number is None else (f.index(f"o{by}", 1, min_(1, number)),)
        places = ((j, queries, c), (j, *some, i, c), (j, *some, i, c))
        for place, array, one in zip(places, own, "QKV", strict=True):
            matrix, row = f.mixer.arrays[f"W_{one}{by}{after}"], place[-2]
            array[place] = sum_(x[row, a] * matrix[a, (j - 1) * h + c], over=a)
    for rows in groups:  # scores Z
        Q, K, _ = arrays[rows.by]
        for seen in rows.keys:
            score = sum_(Q[j, rows.row, c] * K[j, *at[rows.by], seen.key, c], over=c)
            Z[j, *rows.place, *seen.slots] = scaled(score, by=h)
    for k_number, rows in enumerate(groups):  # weights A, with an index k of each group's keys
        k = [rows.keys[0].over[0]]
        if len(rows.keys) > 1:  # one softmax over the slots of all keys, as a union of ranges
            every = [slots for seen in rows.keys for slots in seen.ranges]
            first, *others = (union(*ends) for ends in zip(*every, strict=True))
            k = [f.index(name := f"k{k_number or ''}", first)]
            k += [f.index(f"{name}_{o}", w, beside=k[0]) for o, w in enumerate(others, 1)]
        A[j, *rows.place, *k] = softmax(Z[j, *rows.place, *k], over=k)
    for rows in groups:  # sums of values
        *_, V = arrays[rows.by]
        sums: list[Node] = [
            sum_(A[j, *rows.place, *seen.slots] * V[j, *at[rows.by], seen.key, c], over=seen.over)
            for seen in rows.keys
        ]
        R[rows.row, (j - 1) * h + c] = reduce(add, sums)
    return R


@offering({"causal": "a token attends to itself and those before it in its block"})
def local_attention(chosen: Chosen) -> Mixer:
    """The mixer of attention of each row to its block of B rows, if `causal` up to itself."""
    m = Mixer(
        "local-attention",
        title="Local attention",
        idea="self-attention inside blocks of B tokens",
        source=TAY,
        group="attention",
    )
    l, *_, B = m.sizes("l d n h B")

    def pairs(f: Form, i: Index) -> Layout:
        """Extents (blocks, B, B) of the scores, and the rows by block and place; `i` is unused."""
        q = f.index("q", 1, l // B + 1)
        e = f.index("e", 1, min_(B, l - (q - 1) * B))
        s = f.index("s", 1, e if chosen else min_(B, l - (q - 1) * B))
        block = Keys((s,), s, (q - 1) * B + s)
        return (l // B + 1, B, B), (Rows((q - 1) * B + e, (q, e), (block,)),)

    return attention_over(m, {"direct": pairs})


def by_position(f: Form, i: Index, ahead: Poly) -> Layout:
    """The layout of scores (l, l) in which the score of row i and key k stands at [i, k]. Row i
    attends to w rows, the last of which is row i + ahead (fewer at the ends of the sequence)."""
    l, w = f.mixer.sizes("l w")
    last = min_(l, i + ahead) if ahead.terms else i
    k = f.index("k", max_(1, i + ahead - w + 1), last)
    return (l, l), (Rows(i, (i,), (Keys((k,), k, k),)),)


def by_offset(f: Form, i: Index, ahead: Poly) -> Layout:
    """The layout of scores (l, w) in which the scores of row i stand side by side: at slot w -
    ahead that of row i itself. Row i attends to w rows, the last of which is row i + ahead (fewer
    at the ends of the sequence)."""
    l, w = f.mixer.sizes("l w")
    own = w - ahead
    last = min_(w, l + own - i) if ahead.terms else w
    k = f.index("k", max_(1, own + 1 - i), last)
    return (l, w), (Rows(i, (i,), (Keys((k,), k, i + k - own),)),)


def restricted_attention(name: str, title: str, idea: str, *, causal: bool) -> Mixer:
    """The mixer of self-attention to the last w rows if `causal`, else to w rows around. Form
    `direct` has scores (l, l), `banded` (l, w)."""
    m = Mixer(name, title=title, idea=idea, source=VASWANI, group="attention", references=(TORCH,))
    *_, w = m.sizes("l d n h w")
    ahead = Poly() if causal else call("floor_div", w, 2)  # rows after its own that a row sees
    layouts = {"direct": by_position, "banded": by_offset}
    return attention_over(
        m, {form: partial(layout, ahead=ahead) for form, layout in layouts.items()}
    )


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
