"""How many scalar operations do torch's attention kernels perform, forward and backward?

Their arithmetic is that of the documented definition and of the published algorithm, whichever
kernel runs: masked pairs are left out, nothing is padded, no block is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from profiler.counting.call import Call, CountError, Rule, is_tensor
from profiler.counting.forward_rules import refuse_complex, softmax_rows
from profiler.counting.operations import FUNCTIONS, NOTHING, Operations, named_operation

if TYPE_CHECKING:
    from torch import Tensor

BIAS = ("attn_bias", "attn_mask", "bias")
"""The arguments of kernels that are added to the scores."""


def visible_pairs(rows: int, keys: int, causal: bool) -> int:
    """The number of query-key pairs that an attention operation scores: `rows` * `keys` or, if
    causal, row i with keys 1 to i alone: 1 + 2 + 3 + 3 + 3 pairs of 5 rows with 3 keys."""
    full = min(rows, keys)
    causal_pairs = full * (full + 1) // 2 + (rows - full) * keys
    return causal_pairs if causal else rows * keys


def bias_of(call: Call) -> Tensor | None:
    """The tensor that is added to the scores; None if the call has none, or an empty one."""
    found = next((call.arguments[n] for n in BIAS if call.arguments.get(n) is not None), None)
    return found if is_tensor(found) and found.numel() else None


def is_causal(call: Call) -> bool:
    """Whether the attention is causal, so that the query in row i sees keys 1..i alone; CountError
    for a mask aligned in another way."""
    if "is_causal" in call.arguments:
        return bool(call.arguments["is_causal"])
    kind = call.arguments.get("custom_mask_type", 0)
    if kind not in (0, 1):  # 1: aligned at the first row and key
        raise CountError(
            f"{call.name}: no counting rule for custom_mask_type={kind}, only for 0 (no mask) and "
            "1 (causal, aligned at the first row and key)"
        )
    return bool(kind)


def refuse_packed_or_window(call: Call) -> None:
    """Raise CountError if the call has arguments that the rules do not cover: sequences of several
    lengths packed into one, a window, or ALiBi slopes. -1 and None stand for no window."""
    packed = ("cum_seq_q", "cu_seqlens_q", "seqused_k", "seqlen_k")
    windows = ("window_size_left", "window_size_right", "window_size", "alibi_slopes")
    for names, what in ((packed, "packed sequences"), (windows, "a window")):
        given = [call.arguments.get(name) for name in names]
        if any(g.numel() if is_tensor(g) else g not in (None, -1) for g in given):
            raise CountError(f"{call.name}: no counting rule for {what}")


def sides(call: Call, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """(query, key, value) of the call, each of shape (..., tokens, width), with the axis of tokens
    moved from `axis`; CountError if one is complex."""
    found = tuple(call.tensor(name).transpose(axis, -2) for name in ("query", "key", "value"))
    refuse_complex(call, *found)
    query, key, value = found
    return query, key, value


def attention(call: Call, axis: int = -2) -> Operations:
    """The operations of an attention's forward pass, over all heads: scores, one multiplication by
    the scale, softmax with the maximum subtracted, weighted sum, as in the reference in the
    documentation of torch.nn.functional.scaled_dot_product_attention. `axis` is the axis of tokens.

    Dropout draws a number and multiplies once for each pair. If gradients are recorded, the kernel
    also computes each row's maximum plus the logarithm of its sum: Algorithm 1 of Dao 2023, arXiv
    2307.08691. CountError for windows, packed sequences and complex tensors.
    """
    import torch

    refuse_packed_or_window(call)
    query, key, value = sides(call, axis)
    *outer, rows, width = query.shape
    pairs = visible_pairs(rows, key.shape[-2], is_causal(call))
    if not pairs or not width:
        return NOTHING
    scores = Operations(mul=pairs * (width + 1), add=pairs * (width - 1))
    weighted = Operations(mul=pairs, add=pairs - rows) * value.shape[-1]
    masked = Operations(add=pairs if bias_of(call) is not None else 0)
    given = (call.tensor(name) for name in ("query", "key", "value"))
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    kept = (Operations(add=1) + FUNCTIONS["log"]) * (rows if trained else 0)
    drawn = (named_operation("random") + Operations(mul=1)) * (pairs if dropped(call) else 0)
    steps = scores + masked + softmax_rows(pairs, rows) + drawn + weighted + kept
    return steps * prod(outer)


def dropped(call: Call) -> bool:
    """Whether weights are dropped at random."""
    return bool(call.arguments["dropout_p"])


def attention_gradients(
    pairs: int, rows: int, keys: int, width: int, values: int, wanted: Sequence[bool]
) -> Operations:
    """The operations of the backward pass of one head: Dao et al. 2022, arXiv 2205.14135, Algorithm
    4, without its blocks; the logarithm L of each row's sum is kept as in Dao 2023, arXiv
    2307.08691, Algorithm 2, and the weights P are computed again.

    S = scale Q K^T;  P = exp(S - L);  dV = P^T dO;  dP = dO V^T;  D = rowsum(dO * O); dS = P * (dP
    - D);  dQ = scale dS K;  dK = scale dS^T Q.

    Args:
        pairs: the visible query-key pairs.
        rows, keys: the numbers of queries and of keys that some query sees.
        width, values: the widths of Q and K, and of V and O.
        wanted: whether dQ, dK and dV are computed.
    """
    # S and P, computed again
    total = Operations(mul=pairs * (width + 1), add=pairs * (width - 1) + pairs, exp=pairs)
    if wanted[2]:  # dV: a key's row sums over the queries that see it
        total += Operations(mul=pairs * values, add=(pairs - keys) * values)
    if wanted[0] or wanted[1]:  # dP, D, and dS
        total += Operations(mul=pairs * values, add=pairs * (values - 1))
        total += Operations(mul=rows * values, add=rows * (values - 1))
        total += Operations(mul=pairs, add=pairs)
    if wanted[0]:  # with the scale once per entry of dQ
        total += Operations(mul=pairs * width + rows * width, add=(pairs - rows) * width)
    if wanted[1]:
        total += Operations(mul=pairs * width + keys * width, add=(pairs - keys) * width)
    return total


def attention_backward(call: Call, axis: int = -2) -> Operations:
    """The operations of the gradients of queries, keys and values, or of those that the call's
    `grad_input_mask` asks for, over all heads (`axis`: the axis of tokens). Heads of queries that
    share keys and values add to one gradient. The scores are computed again with their bias, whose
    gradient is dS without further work; dropout is applied again to the weights P, and to their
    gradient dP. CountError for windows, packed sequences and complex tensors."""
    refuse_packed_or_window(call)
    query, key, value = sides(call, axis)
    *outer, rows, width = query.shape
    causal, keys = is_causal(call), key.shape[-2]
    pairs = visible_pairs(rows, keys, causal)
    seen = min(rows, keys) if causal else keys  # the keys that some query sees
    heads = prod(outer)
    groups = prod(key.shape[:-2])
    if not pairs or not width:
        return NOTHING
    wanted = call.arguments.get("grad_input_mask") or (True, True, True)
    steps = attention_gradients(
        pairs * heads, rows * heads, seen * groups, width, value.shape[-1], wanted
    )
    steps += Operations(add=pairs * heads if bias_of(call) is not None else 0)
    return steps + Operations(mul=2 * pairs * heads if dropped(call) else 0)


TOKENS_FIRST: Mapping[str, Any] = {"axis": -3}
"""The axis of tokens for kernels that take (batch, tokens, heads, width)."""

ATTENTION_RULES: Mapping[str, Rule] = {
    **{
        f"_scaled_dot_product_{kernel}{after}": rule
        for kernel in (
            "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention",
            "fused_attention_overrideable",
        )
        for after, rule in (("", attention), ("_backward", attention_backward))
    },
    "_cudnn_attention_forward": attention,
    "_cudnn_attention_backward": attention_backward,
    **{
        f"_{kernel}_attention_{way}": partial(rule, **TOKENS_FIRST)
        for kernel in ("flash", "efficient")
        for way, rule in (("forward", attention), ("backward", attention_backward))
    },
}  # fmt: skip
