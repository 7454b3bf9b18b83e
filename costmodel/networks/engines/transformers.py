"""Which tensors does the cache object of transformers 5.23.0 hold?

`DynamicCache` has a layer for each layer of the model. Attention holds keys and values; a layer
with a window drops rows that no later token reads, and a layer of chunks those that a window as
wide would drop. A convolution of k taps holds k columns, of all rows that it reads joined; the
mathematics needs k-1 of them. Some classes do otherwise: see the sets of types below.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from costmodel.errors import Unanswered
from costmodel.networks.engines.reserved import Reserved, Tensor, refuse_blocks
from costmodel.networks.held import Held, Holding
from costmodel.program.element_types import Dtypes

ROWS = ("keys", "values")
"""The names of a layer's arrays of rows, in the order in which the equations read them."""

EXPANDED = frozenset(("falcon",))
"""Types whose class repeats keys and values for each head of queries before it keeps them, but for
one head of keys."""

WHOLE = frozenset(("gpt_neo", "minimax"))
"""Types whose windows the cache does not know: it keeps all rows."""

TIGHT = frozenset(("recurrent_gemma",))
"""Types that keep k-1 columns of a convolution, in the module beside the cache object."""

OF_HEADS = frozenset(("xlstm",))
"""Types whose cache gives a number of each head an axis of its own."""


def reserved(held: Holding, typed: Dtypes, context: int, batch: int) -> Reserved:
    """The tensors that transformers' `DynamicCache` holds after `context` tokens of each of `batch`
    sequences, the bytes that one more token of a sequence takes, and sentences for a reader. The
    types are those of `held`: `typed` is not used.

    Raises:
        Unanswered: a part whose rows the cache has no names for, or blocks of a quantised type.
    """
    refuse_blocks("DynamicCache", held.dtypes)
    tensors = [t for part in held.parts for t in _tensors(held, part, context, batch)]
    # what a further token adds is the difference to the tensors after one token more
    grown = [t for part in held.parts for t in _tensors(held, part, context + 1, batch)]
    token = sum(t.bytes for t in grown) - sum(t.bytes for t in tensors)
    says, names = [], {tensor.name for tensor in tensors}
    if names & {*ROWS}:
        says.append("keys and values of the tokens so far, in tensors that grow")
    if "conv_states" in names and held.network.described.model_type not in TIGHT:
        says.append("a convolution of k taps holds k columns, of which later tokens read k-1")
    if bounded := sum(p.layers for p in held.parts if _bounded(held, p)):
        says.append(f"each of {bounded} layers with a window holds its width too, 8 B, not counted")
    return Reserved(tuple(tensors), token // batch, tuple(says))


def _bounded(held: Holding, part: Held) -> bool:
    """Whether the cache object has a layer with a window for a part."""
    windows = {"window", "chunked-window"} & {*part.use.mixer.options}
    return bool(windows) and held.network.described.model_type not in WHOLE


def _tensors(held: Holding, part: Held, context: int, batch: int) -> Iterator[Tensor]:
    """Yield the tensors of a part in one role (`part.role`: cache or state) for `batch` sequences:
    recurrent states (`recurrent_states`), columns of convolutions (`conv_states`), or `keys` and
    `values` after `context` tokens; Unanswered for one array of rows, or more than two."""
    name, layers, kind = part.use.name, part.layers, held.network.described.model_type
    dtype = held.dtypes.name_of(part.role)
    if part.role == "state":
        for array in part.arrays:
            single = (1,) if kind in OF_HEADS and len(array.axes) == 1 else ()
            outer, matrix = array.axes[:-2], (*array.axes[-2:], *single)
            # the class has one axis of heads, where equations may have groups and heads of each
            joined = (batch, prod(outer), *matrix) if outer else (batch, *matrix)
            yield Tensor(name, "recurrent_states", layers, joined, dtype)
        return
    convolved = [array for array in part.arrays if array.convolved]
    if convolved:
        channels = sum(array.width for array in convolved)
        taps = (convolved[0].most or 0) + (kind not in TIGHT)  # `most` is k-1
        yield Tensor(name, "conv_states", layers, (batch, channels, taps), dtype)
    rows = [array for array in part.arrays if not array.convolved]
    if len(rows) not in (0, len(ROWS)):
        raise Unanswered(
            f"{name} caches {', '.join(a.name for a in rows)}, and DynamicCache holds keys and "
            "values alone: leave out --engine"
        )
    # values as wide as keys have the shape of keys, whichever axes their equations have
    as_keys = len({array.width for array in rows}) == 1
    for array, called in zip(rows, ROWS, strict=False):
        axes = rows[0].axes if as_keys else array.axes
        heads, width = (prod(axes[:-1]), axes[-1]) if len(axes) > 1 else (1, array.width)
        if kind in EXPANDED and heads > 1:
            heads = part.use.mixer.given["n"]
        kept = array.rows.at({"t": context})  # rows
        if "chunked-window" in part.use.mixer.options:
            kept = min(context, part.use.mixer.given["w"] - 1)
        shape = (batch, heads, context if kind in WHOLE else kept, width)
        yield Tensor(name, called, layers, shape, dtype)
