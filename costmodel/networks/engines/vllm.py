"""What does vLLM 0.11.0 reserve: pages of one size for all layers, and windows held without end?

A page holds a block of tokens of one layer: 16, or, beside recurrent layers, as many as make a page
of attention at least as large as a layer's state (`HybridAttentionMambaModelConfig`), which is
padded to a page. Layers of a kind are split into groups as large as the smallest kind
(`_get_kv_cache_groups_uniform_page_size`); a sequence takes whole pages for each layer of a group.
Beside full attention, windows are held like full attention (`unify_hybrid_kv_cache_specs`), as in
the printed capacity and wherever the hybrid manager is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from costmodel.errors import Unanswered
from costmodel.networks.blocks import Use
from costmodel.networks.engines.reserved import Reserved, Tensor, refuse_blocks
from costmodel.networks.held import Holding
from costmodel.program.element_types import Dtypes, element_bytes

BLOCK = 16
"""Tokens of a page; beside recurrent layers their number is a multiple."""

STEP = 2048
"""Tokens of a step, `max_num_batched_tokens`: a window holds its rows and those of a step."""


def reserved(held: Holding, typed: Dtypes, context: int, batch: int) -> Reserved:
    """The pages (blocks of memory of one size) that vLLM reserves for `batch` sequences of
    `context` tokens in the types `typed`. If all attention has windows, only windows are held;
    beside full attention all rows are held, and `says` has the bytes with windows (hybrid manager).

    Raises:
        Unanswered: rows of several sizes in layers of several kinds, or a quantised cache.
    """
    refuse_blocks("vLLM 0.11.0", typed)
    windows = _windows(held)
    if len(windows) == len(_rows(held, typed)):
        return _planned(held, typed, context, batch, windows)
    full = _planned(held, typed, context, batch, {})
    if not windows:
        return full
    hybrid = _planned(held, typed, context, batch, windows).bytes
    says = f"windows are held like full attention; the hybrid manager would take {hybrid:,} B"
    return Reserved(full.tensors, full.token, (*full.says, says))


def _planned(
    held: Holding, typed: Dtypes, context: int, batch: int, windows: dict[Use, int]
) -> Reserved:
    """The pages (blocks of memory of one size) that vLLM plans for `batch` sequences of `context`
    tokens in all layers, in groups of one kind: one window's width, full attention, or one size of
    state. `windows`: part -> the rows of earlier tokens in its window (w - 1); other parts hold all
    rows. Unanswered for several kinds of layers whose rows have several sizes."""
    layers = {part.use: part.layers for part in held.parts}
    rows, states = _rows(held, typed), _states(held, typed)  # part -> bytes in one layer
    kinds = _kinds(rows, states, windows)
    row = max(rows.values(), default=1)  # bytes of a token
    # as many tokens as make a page of attention at least as large as a state
    block = BLOCK * max(1, -(-max(states.values(), default=0) // (BLOCK * row)))
    group = min(sum(layers[use] for use in uses) for uses in kinds.values())  # layers of a group

    def planned(context: int) -> Iterator[Tensor]:
        """Yield the pages of each part for `batch` sequences of `context` tokens, and those that
        pad a kind's last group; a kind that is an integer has windows of as many earlier rows."""
        for kind, uses in kinds.items():
            pages = batch * (1 if uses[0] in states else -(-context // block))
            if isinstance(kind, int):
                # the rows of a window may begin inside a page: one page more; a chunk begins one
                inside = "chunked-window" not in uses[0].mixer.options
                most = kind + STEP if inside else kind + 1 + STEP
                pages = batch * (-(-min(most, context) // block) + inside)
            for use in uses:
                page = block * rows.get(use, row) if rows else states[use]
                yield Tensor(use.name, "pages", layers[use], (pages, page), "byte")
            if len(kinds) > 1 and (padding := -sum(layers[use] for use in uses) % group):
                yield Tensor("", "padding of a group", padding, (pages, page), "byte")

    tensors = [*planned(context)]
    # pages hold `block` tokens: a further token takes its share of them
    grown = sum(t.bytes for t in planned(context + block)) - sum(t.bytes for t in tensors)
    token = grown // (block * batch)
    says = [f"a page holds {block:,} tokens of a layer of attention"] if rows else []
    if len(kinds) > 1:
        says.append(f"layers stand in groups of {group}, with pages of one size")
    if states:
        says.append(f"recurrent states are {typed.name_of('state')}")
    return Reserved(tuple(tensors), token, tuple(says))


def _kinds(
    rows: Mapping[Use, int], states: Mapping[Use, int], windows: Mapping[Use, int]
) -> Mapping[object, Sequence[Use]]:
    """Kind of layer -> its parts. A kind is ("state", bytes), the w - 1 earlier rows of a window of
    w, or "full attention". `rows`, `states`: part -> bytes of a row or a state in one layer;
    Unanswered for several kinds whose rows have several sizes."""
    kinds: dict[object, list[Use]] = {}
    for use in rows:
        kinds.setdefault(windows.get(use, "full attention"), []).append(use)
    for use, size in states.items():
        kinds.setdefault(("state", size), []).append(use)
    if len(kinds) > 1 and len({*rows.values()}) > 1:
        raise Unanswered(
            "vLLM 0.11.0 gives all layers pages of one size, but a token takes "
            f"{', '.join(map(str, sorted({*rows.values()})))} B in different layers of this network"
        )
    return kinds


def _rows(held: Holding, typed: Dtypes) -> dict[Use, int]:
    """A dict: part with attention -> the bytes of one token's keys and values in one layer."""
    found: dict[Use, int] = {}
    for part in held.parts:
        for array in part.arrays:
            if part.role == "cache" and not array.convolved:
                row = array.width * element_bytes(typed.name_of("cache"))
                found[part.use] = found.get(part.use, 0) + row
    return found


def _states(held: Holding, typed: Dtypes) -> dict[Use, int]:
    """A dict: part that carries a state or a convolution -> the bytes that one layer holds for one
    sequence: the last k-1 rows (`most`) of convolutions, in the type of activations, and recurrent
    states, one row each, in the type of states."""
    found: dict[Use, int] = {}
    for part in held.parts:
        each = element_bytes(typed.name_of("state" if part.role == "state" else "activations"))
        for array in part.arrays:
            if part.role == "state" or array.convolved:
                entries = array.width * (array.most or 0)
                found[part.use] = found.get(part.use, 0) + entries * each
    return found


def _windows(held: Holding) -> dict[Use, int]:
    """A dict: part whose attention has a window or chunks of w tokens -> the w-1 rows of earlier
    tokens that one layer holds."""
    return {
        part.use: most
        for part in held.parts
        for array in part.arrays
        if part.role == "cache" and not array.convolved and (most := array.most) is not None
    }
