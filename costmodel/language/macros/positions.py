"""Short convolution and rotary embedding as macros.

Both depend on the position of a row: the convolution reads the rows before, the rotary embedding
rotates pairs of channels by angles of the position. Each is a whole right-hand side:

    u[i, b] = short_convolution(x[i, b], W[s, b], along=i, taps=s, bias=bias[b])
    r[j, i, c] = rotary(q[j, i, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodel.errors import EquationError
from costmodel.language.arguments import checked
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.macros.macro import (
    Macro,
    Parts,
    checked_axis_entry,
    checked_row_index,
    length_of,
    moved,
    under_any,
)
from costmodel.language.nodes import Composite, Flat, Node, Operands, Ref, node, record
from costmodel.language.writing import sum_
from costmodel.symbolic.polynomial import Poly

ONE = Poly.of(1)


@record
class Convolved(Operands):
    """The operands: an entry of a row, the weight of a tap, and an offset."""

    x: Ref
    weight: Ref
    bias: Node | None
    along: Index


@checked
def short_convolution(
    x: Node, weight: Node, *, along: Index, taps: Index, bias: Any = None
) -> Node:
    """The node of a causal depthwise convolution: the sum of the last k rows, each times a weight,
    plus a bias.

    Tap s weighs the row s-1 back, so weight[1] is the last tap of torch.nn.functional.conv1d, with
    k-1 zeros of padding in front and one group per channel. A tap before row 1 has no term. Counted
    for each entry of row i, with R = min(k, i): R mul, R-1 add; then 1 add (bias). The rewrite
    `cut-rows` computes k-1 further rows behind the last row l, as torch.nn.Conv1d with padding=k-1
    does: row l+r has the taps r+1 to min(k, l+r).

    Args:
        x: an entry of the rows, at row `along`.
        weight: the entry of a parameter at tap `taps`.
        along: the index of the rows.
        taps: an index over 1..k that the left side does not have.

    Raises:
        EquationError: x or the weight is an expression or lacks an axis for its index alone, or the
            weights' axis has another extent than `taps` has values.
    """
    name = "short_convolution"
    rows, tap = checked_axis_entry(name, x, along), checked_axis_entry(name, weight, taps)
    width = tap.array.shape[tap.positions.index(taps.as_poly())]
    if taps.lower != (ONE,) or length_of(name, taps) != width:
        raise EquationError(
            f"{name} has {width} taps in {tap.array.name}, but {taps.name} does not run over "
            f"1..{width}: declare {taps.name} with this range"
        )
    offset = None if bias is None else node(bias)
    return Composite(name, Convolved(rows, tap, offset, along), (taps,))


def _short_convolution(
    equation: Equation, composite: Composite, rewrites: Sequence[str]
) -> list[Equation]:
    """The equations that replace `equation`, whose right side is a short convolution: a sum over
    taps s of weight s times row i - s + 1. The taps run over 1..min(k, i), so that the row exists
    for each tap. Under the rewrite `cut-rows` an array `cut`, which no equation reads, has the rows
    l + 1 to l + k - 1, which torch computes behind the sequence and cuts off."""
    operands = composite.body
    assert isinstance(operands, Convolved)
    (taps,), along = composite.over, operands.along

    def row(at: Poly, *lower: Poly) -> Node:
        """The convolution at the row `at`, by the taps from 1 or from another lower bound on."""
        seen = Index(f"{taps.name}_{along.name}'", (ONE, *lower), (*taps.upper, at))
        before = moved(operands.x, along, at - seen + 1)
        value = sum_(before * moved(operands.weight, taps, seen.as_poly()), over=seen)
        return value if operands.bias is None else value + operands.bias

    behind = Index(f"{along.name}_{taps.name}'", (ONE,), (taps.upper[0] - 1,))
    parts = Parts(equation, behind)
    if "cut-rows" in rewrites:
        places = [*parts.places(along), (behind.as_poly(), behind.upper[0])]
        parts.add(parts.array("cut", places), row(along.upper[0] + behind, behind + ONE))
    return parts.finish(row(along.as_poly()))


@record
class Turned(Operands):
    """The operands: an entry of a row, cosine and sine of its angle, and the layout of pairs."""

    x: Ref
    cos: Ref
    sin: Ref
    layout: str


@checked
def rotary(
    x: Node, *, over: Index, pairs: Index, cos: Node, sin: Node, layout: str = "halves"
) -> Node:
    """The node of a row with its channels rotated in pairs: (u, v) to (u cos - v sin, v cos + u
    sin).

    Computed as x cos + x' sin, where x' is the row with (-v, u) in place of each pair (u, v).
    Counted for each row of m channels: 2m mul, m add. Swapping is free, and so are the tables,
    which are buffers.

    Args:
        x: an entry of a row at channel `over`.
        over: the index of the channels 1..m, an even number of them.
        pairs: an index over 1..m/2 that the left side does not have.
        cos, sin: the entries of two tables at channel `over`, equal for both channels of a pair.
        layout: `halves` pairs channel p with p + m/2, as GPT-NeoX and Llama do; `interleaved` pairs
            2p-1 with 2p, as in the paper.

    Source: Su et al. 2021, arXiv 2104.09864, eq. (34).

    Raises:
        EquationError: an operand is an expression or lacks an axis for the channels alone, `over`
            does not begin at 1, `pairs` does not run over half of them, or the layout is unknown.
    """
    if layout not in LAYOUTS:
        raise EquationError(f"rotary has no layout '{layout}': expected {' or '.join(LAYOUTS)}")
    row, cosine, sine = (checked_axis_entry("rotary", operand, over) for operand in (x, cos, sin))
    channels, half = length_of("rotary", over), length_of("rotary", pairs)
    if over.lower != (ONE,):
        raise EquationError(
            f"rotary turns channels from 1 on, and {over.name} begins at {over.lower[0]}: begin "
            f"{over.name} at 1, and define an array of the channels to turn first"
        )
    if pairs.lower != (ONE,) or half * 2 != channels:
        raise EquationError(
            f"rotary turns the {channels} channels of {over.name} in pairs, but {pairs.name} does "
            f"not run over 1..{channels / 2}: declare {pairs.name} with this range"
        )
    return Composite("rotary", Turned(row, cosine, sine, layout), (over, pairs))


def _rotary(equation: Equation, composite: Composite) -> list[Equation]:
    """The equations that replace `equation`, whose right side is a rotary embedding over (channel,
    pair): those of the swapped row, (-v, u) for each pair (u, v) of the layout, 2*pairs channels;
    and the sum of the row times cosines and the swapped row times sines."""
    operands = composite.body
    assert isinstance(operands, Turned)
    channel, pair = composite.over
    checked_row_index(equation, composite, channel)
    parts = Parts(equation, pair, _side(channel))
    half = length_of("rotary", pair)  # the number of pairs
    swapped = parts.array("swapped", [*parts.places(channel), (channel.as_poly(), half * 2)])
    LAYOUTS[operands.layout](parts, operands.x, swapped, channel, pair)
    return parts.finish(operands.x * operands.cos + swapped * operands.sin)


def _side(channel: Index) -> Index:
    """An index over the two channels of a pair."""
    return Index(f"{channel.name}'", (ONE,), (ONE * 2,))


def _halves(parts: Parts, x: Ref, swapped: Ref, channel: Index, pair: Index) -> None:
    """Add to `parts`, which collects equations, those of the array `swapped`: where `x` has (u, v)
    at channels p and p + m/2 of m, `swapped` has (-v, u)."""
    half, first = length_of("rotary", pair), channel.lower[0] - 1 + pair
    u, v = first, first + half
    parts.add(moved(swapped, channel, u), -moved(x, channel, v))
    parts.add(moved(swapped, channel, v), moved(x, channel, u))


def _interleaved(parts: Parts, x: Ref, swapped: Ref, channel: Index, pair: Index) -> None:
    """Add to `parts`, which collects equations, those of the array `swapped`: where `x` has (u, v)
    at channels 2p-1 and 2p, `swapped` has (-v, u). `pairs` is a view of `x` with an axis of pairs p
    and one of two sides, `turned` has (-v, u) for each pair, and `swapped` is a row of `turned`."""
    side, two = _side(channel), ONE * 2
    flat = Flat(pair.as_poly(), side.as_poly(), two)
    axes = [
        *parts.places(channel),
        (pair.as_poly(), length_of("rotary", pair)),
        (side.as_poly(), two),
    ]
    pairs, turned = (parts.array(suffix, axes) for suffix in ("pairs", "turned"))
    parts.add(pairs, moved(x, channel, flat))
    parts.add(moved(turned, side, ONE), -moved(pairs, side, two))
    parts.add(moved(turned, side, two), moved(pairs, side, ONE))
    parts.add(moved(swapped, channel, flat), turned)


LAYOUTS: Mapping[str, Callable[[Parts, Ref, Ref, Index, Index], None]] = {
    "halves": _halves,
    "interleaved": _interleaved,
}
"""Layout -> function that defines the row with its pairs swapped."""


MACROS: Mapping[str, Macro] = {
    "short_convolution": Macro(
        _short_convolution, rewrites=("cut-rows",), latex=r"\mathrm{ShortConv}"
    ),
    "rotary": Macro(under_any(_rotary), latex=r"\mathrm{RoPE}"),
}
