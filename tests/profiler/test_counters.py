"""Do the counters equal counts by hand, and is every operation counted or refused?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.utils.flop_counter import flop_registry

from profiler.counting.attention_rules import visible_pairs
from profiler.counting.dispatch import count_dispatch, operations_or_parts
from profiler.counting.forward_rules import FREE, MOVES_BY_NAME
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.other_counters import PeerCount, flop_counter_mode, fvcore_count
from profiler.counting.rules import only_moves
from profiler.meters import torch_profile
from profiler.meters.torch_profile import (
    AT_MOST,
    BEFORE,
    ENOUGH_S,
    OperationTimes,
    count_kernels,
    operation_times,
    times_of,
)
from profiler.records.reading import Reading, Unavailable
from tests.stand_ins import Instead


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Every count below depends on shapes alone."""
    return torch.ones(shape, dtype=dtype)


def compare(n: int) -> dict[str, int]:
    return {"compare": n}


COMPLEX = torch.complex64
LITERALS: list[tuple[str, Any, Operations]] = [
    # contractions: (m,k)(k,n) is mnk multiplications and mn(k-1) adds
    ("GEMM 2x3x5", lambda: ones(2, 3) @ ones(3, 5), Operations(mul=30, add=20)),
    ("GEMM over one term", lambda: ones(2, 1) @ ones(1, 5), Operations(mul=10)),
    ("GEMM over no term", lambda: ones(2, 0) @ ones(0, 5), NOTHING),
    ("batched", lambda: torch.bmm(ones(7, 2, 3), ones(7, 3, 5)), Operations(mul=210, add=140)),
    ("a batch of rows", lambda: ones(7, 2, 3) @ ones(3, 5), Operations(mul=210, add=140)),
    ("vector", lambda: ones(2, 3) @ ones(3), Operations(mul=6, add=4)),
    ("dot", lambda: ones(3) @ ones(3), Operations(mul=3, add=2)),
    ("outer", lambda: torch.outer(ones(3), ones(5)), Operations(mul=15)),
    ("linear with bias", lambda: F.linear(ones(2, 3), ones(5, 3), ones(5)),
     Operations(mul=30, add=30)),
    ("alpha and beta", lambda: torch.addmm(ones(2, 5), ones(2, 3), ones(3, 5), beta=2, alpha=3),
     Operations(mul=50, add=30)),
    ("beta = 0", lambda: torch.addmm(ones(2, 5), ones(2, 3), ones(3, 5), beta=0),
     Operations(mul=30, add=20)),
    ("baddbmm", lambda: torch.baddbmm(ones(7, 2, 5), ones(7, 2, 3), ones(7, 3, 5)),
     Operations(mul=210, add=210)),
    ("einsum", lambda: torch.einsum("bia,ac->bic", ones(7, 2, 3), ones(3, 5)),
     Operations(mul=210, add=140)),
    ("einsum without a sum", lambda: torch.einsum("ia,ia->ia", ones(2, 3), ones(2, 3)),
     Operations(mul=6)),
    ("complex GEMM: 30 products of 4 mul 2 add, 20 sums of 2 add",
     lambda: ones(2, 3, dtype=COMPLEX) @ ones(3, 5, dtype=COMPLEX), Operations(mul=120, add=100)),
    ("complex batched",
     lambda: torch.bmm(ones(7, 2, 3, dtype=COMPLEX), ones(7, 3, 5, dtype=COMPLEX)),
     Operations(mul=840, add=700)),
    # convolutions: outputs x taps
    ("conv1d: 2 x 5 x 5 outputs of 3 x 3 taps", lambda: F.conv1d(ones(2, 3, 7), ones(5, 3, 3)),
     Operations(mul=450, add=400)),
    ("taps on padding are computed", lambda: F.conv1d(ones(1, 3, 7), ones(5, 3, 3), padding=2),
     Operations(mul=405, add=360)),
    ("bias", lambda: F.conv1d(ones(2, 3, 7), ones(5, 3, 3), ones(5)),
     Operations(mul=450, add=450)),
    ("depthwise", lambda: F.conv1d(ones(1, 3, 7), ones(3, 1, 2), groups=3),
     Operations(mul=36, add=18)),
    ("stride 2, dilation 2", lambda: F.conv1d(ones(1, 3, 7), ones(5, 3, 2), stride=2, dilation=2),
     Operations(mul=90, add=75)),
    ("one tap", lambda: F.conv1d(ones(1, 1, 7), ones(1, 1, 1)), Operations(mul=7)),
    # elementwise
    ("add broadcast", lambda: ones(2, 3) + ones(3), Operations(add=6)),
    ("subtract", lambda: 1 - ones(2, 3), Operations(add=6)),
    ("add with alpha", lambda: torch.add(ones(2, 3), ones(3), alpha=2), Operations(mul=6, add=6)),
    ("in place", lambda: ones(2, 3).add_(1).mul_(2), Operations(mul=6, add=6)),
    ("divide", lambda: ones(2, 3) / 4, Operations(div=6)),
    ("minus", lambda: -ones(2, 3), NOTHING),
    ("exp", lambda: ones(2, 3).exp(), Operations(exp=6)),
    ("sqrt", lambda: ones(2, 3).sqrt(), Operations(other={"sqrt": 6})),
    ("rsqrt", lambda: ones(2, 3).rsqrt(), Operations(div=6, other={"sqrt": 6})),
    ("tanh", lambda: ones(2, 3).tanh(), Operations(other={"tanh": 6})),
    ("sigmoid", lambda: ones(2, 3).sigmoid(), Operations(exp=6, add=6, div=6)),
    ("silu", lambda: F.silu(ones(2, 3)), Operations(mul=6, exp=6, add=6, div=6)),
    ("softplus", lambda: F.softplus(ones(2, 3)), Operations(exp=6, add=6, other={"log": 6})),
    ("relu", lambda: F.relu(ones(2, 3)), Operations(other=compare(6))),
    ("elu", lambda: F.elu(ones(2, 3)), Operations(exp=6, add=6, other=compare(6))),
    ("elu with alpha", lambda: F.elu(ones(2, 3), alpha=2),
     Operations(mul=6, exp=6, add=6, other=compare(6))),
    ("gelu", lambda: F.gelu(ones(2, 3)), Operations(mul=18, add=6, other={"erf": 6})),
    ("gelu tanh", lambda: F.gelu(ones(2, 3), approximate="tanh"),
     Operations(mul=36, add=12, other={"tanh": 6})),
    ("square", lambda: ones(2, 3) ** 2, Operations(mul=6)),
    ("cube", lambda: ones(2, 3) ** 3, Operations(mul=12)),
    ("odd power", lambda: ones(2, 3) ** 1.7, Operations(other={"pow": 6})),
    ("clamp both", lambda: ones(2, 3).clamp(0, 2), Operations(other=compare(12))),
    ("maximum", lambda: torch.max(ones(2, 3), ones(2, 3)), Operations(other=compare(6))),
    ("addcmul", lambda: torch.addcmul(ones(6), ones(6), ones(6)), Operations(mul=6, add=6)),
    ("complex product", lambda: ones(6, dtype=COMPLEX) * ones(6, dtype=COMPLEX),
     Operations(mul=24, add=12)),
    ("complex by real", lambda: ones(6, dtype=COMPLEX) * 2.0, Operations(mul=12)),
    ("complex sum", lambda: ones(6, dtype=COMPLEX) + ones(6, dtype=COMPLEX), Operations(add=12)),
    ("complex by real division", lambda: ones(6, dtype=COMPLEX) / 2.0, Operations(div=12)),
    # reductions: R terms take R - 1 steps
    ("sum of 6", lambda: ones(2, 3).sum(), Operations(add=5)),
    ("sum of rows", lambda: ones(2, 3).sum(1), Operations(add=4)),
    ("sum of columns", lambda: ones(2, 3).sum(0, keepdim=True), Operations(add=3)),
    ("sum of one term", lambda: ones(2, 1).sum(1), NOTHING),
    ("sum of no term", lambda: ones(2, 0).sum(1), NOTHING),
    ("mean", lambda: ones(2, 3).mean(1), Operations(add=4, div=2)),
    ("amax", lambda: ones(2, 3).amax(1), Operations(other=compare(4))),
    ("max with places", lambda: ones(2, 3).max(1), Operations(other=compare(4))),
    ("cumsum", lambda: ones(2, 3).cumsum(1), Operations(add=4)),
    ("norm", lambda: ones(2, 3).norm(dim=1), Operations(mul=6, add=4, other={"sqrt": 2})),
    # rows of R = 3: R-1 comparisons, R subtractions, R exp, R-1 adds, R divisions
    ("softmax", lambda: torch.softmax(ones(2, 3), -1),
     Operations(add=10, div=6, exp=6, other=compare(4))),
    ("softmax of columns", lambda: torch.softmax(ones(2, 3), 0),
     Operations(add=9, div=6, exp=6, other=compare(3))),
    ("softmax of one", lambda: torch.softmax(ones(2, 1), 1), Operations(add=2, div=2, exp=2)),
    ("log softmax", lambda: F.log_softmax(ones(2, 3), -1),
     Operations(add=16, exp=6, other={"compare": 4, "log": 2})),
    # N log2 N multiplications and 3/2 N log2 N adds: N = 8 gives 24 and 36
    ("real transform", lambda: torch.fft.rfft(ones(5, 8)), Operations(mul=120, add=180)),
    ("padded to 8", lambda: torch.fft.rfft(ones(5, 4), n=8), Operations(mul=120, add=180)),
    ("along another axis", lambda: torch.fft.rfft(ones(8, 5), dim=0),
     Operations(mul=120, add=180)),
    ("12 points, as 12 log2(16) / 2 butterflies", lambda: torch.fft.rfft(ones(5, 12)),
     Operations(mul=240, add=360)),
    ("over two axes, 5 of 8 bins", lambda: torch.fft.rfft2(ones(4, 8)),
     Operations(mul=4 * 24 + 5 * 16, add=4 * 36 + 5 * 24)),
    ("inverse", lambda: torch.fft.irfft(ones(5, 5, dtype=COMPLEX), n=8),
     Operations(mul=120, add=180)),
    ("complex transform", lambda: torch.fft.fft(ones(5, 8, dtype=COMPLEX)),
     Operations(mul=240, add=360)),
    ("transform of one", lambda: torch.fft.rfft(ones(5, 1)), NOTHING),
    # Rows of 3: mean 2 add 1 div, 3 differences, 3 squares, 2 add 1 div, eps, root and its
    # reciprocal, 3 products; then gain and bias
    ("layer norm", lambda: F.layer_norm(ones(2, 3), (3,)),
     Operations(mul=12, add=16, div=6, other={"sqrt": 2})),
    ("with gain and bias", lambda: F.layer_norm(ones(2, 3), (3,), ones(3), ones(3)),
     Operations(mul=18, add=22, div=6, other={"sqrt": 2})),
    # 2 groups of 2 channels of 3: rows of 6, mean 5 + 1, 6, 6, 5 + 1, eps, root, 1, 6
    ("group norm", lambda: F.group_norm(ones(1, 4, 3), 2),
     Operations(mul=24, add=34, div=6, other={"sqrt": 2})),
    # a channel over 2 x 2: mean 3 + 1, 4, 4, 3 + 1, eps, root, 1, 4; running numbers 5 and 2
    ("batch norm", lambda: F.batch_norm(ones(2, 3, 2), ones(3), ones(3), training=True),
     Operations(mul=24 + 15, add=33 + 6, div=9, other={"sqrt": 3})),
    ("of running numbers", lambda: F.batch_norm(ones(2, 3, 2), ones(3), ones(3)),
     Operations(mul=12, add=15, div=3, other={"sqrt": 3})),
    # selections: a knockout of 5 for each of 2 positions in 3 rows
    ("topk", lambda: ones(3, 5).topk(2), Operations(other=compare(24))),
    ("cummax", lambda: ones(3, 5).cummax(1), Operations(other=compare(12))),
    # the larger one, a difference, exp, 1 + and log, a sum: twice a row of 3
    ("logcumsumexp", lambda: ones(2, 3).logcumsumexp(1),
     Operations(add=12, exp=4, other={"compare": 4, "log": 4})),
    # 4 entries: two bounds, x - min, times bins, over the width, one more
    ("histc", lambda: torch.histc(ones(4), 3, 0, 2),
     Operations(mul=4, add=8, div=4, other=compare(8))),
    ("histc of unknown bounds", lambda: torch.histc(torch.arange(4.0), 3),
     Operations(mul=4, add=8, div=4, other=compare(8 + 6))),
    # 5 places are halved to 2, 1 and none
    ("searchsorted", lambda: torch.searchsorted(ones(5), ones(2, 3)),
     Operations(other=compare(18))),
    # bags of 3 rows and of 1 row, each row of 3 entries; then a bag without a row beside them
    ("bags", lambda: bags(mode="sum"), Operations(add=6)),
    ("bags of means", lambda: bags(mode="mean"), Operations(add=6, div=6)),
    ("bags of maxima", lambda: bags(mode="max"), Operations(other=compare(6))),
    ("an empty bag", lambda: bags((0, 3, 3), mode="mean"), Operations(add=6, div=6)),
    ("bags with an end", lambda: bags((0, 3, 4), mode="sum", include_last_offset=True),
     Operations(add=6)),
    ("bags without padding", lambda: bags(mode="mean", padding_idx=0), Operations(add=3, div=6)),
    ("a bag of padding", lambda: bags(mode="mean", padding_idx=2), Operations(add=6, div=3)),
    ("weighted bags", lambda: bags(mode="sum", per_sample_weights=ones(4)),
     Operations(mul=12, add=6)),
    # 16 rows of 16 dealt out to 2 matrices of 8 columns: 16 x 8 sums of 16
    ("grouped product", lambda: grouped(16, 16, 8), Operations(mul=2048, add=1920)),
    # sums over 2 x 3 terms at 5 x 4 places, added to self
    ("addbmm", lambda: torch.addbmm(ones(5, 4), ones(2, 5, 3), ones(2, 3, 4)),
     Operations(mul=120, add=120)),
    ("complex length", lambda: ones(6, dtype=COMPLEX).abs(),
     Operations(mul=12, add=6, other={"sqrt": 6})),
    # windows hold what they hold: of 4 entries -1..1 and 1..3, 2 and 3
    ("padded maximum", lambda: F.max_pool2d(ones(1, 1, 1, 4), (1, 3), 2, (0, 1)),
     Operations(other=compare(3))),
    ("padded average", lambda: F.avg_pool2d(ones(1, 1, 1, 4), (1, 3), 2, (0, 1)),
     Operations(add=3, div=2)),
    # by torch's decomposition: 0 or less gives 0, more than 6 gives 6
    ("relu6", lambda: F.relu6(ones(2, 3)), Operations(other=compare(12))),
    # 5 taps of 3 windows at 7 places, each product to its place
    ("transposed", lambda: F.conv_transpose1d(ones(1, 2, 3), ones(2, 1, 5)),
     Operations(mul=30, add=23)),
    # moves, and arithmetic on indices and masks
    ("moves", lambda: torch.cat([ones(2, 3).t().flip(0).clone(), F.pad(ones(1, 2), (0, 0, 0, 1))]),
     NOTHING),
    ("mask", lambda: ones(3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), 0.0),
     NOTHING),
    ("sums of more groups than rows", lambda: grouped_sums(8, 10), Operations(mul=8 * 8 * 16)),
    ("mask by indices", lambda: torch.arange(3)[:, None] - torch.arange(3) >= 0, NOTHING),
    ("gather", lambda: ones(3, 3)[:, torch.arange(2) + 1], NOTHING),
    ("comparison of values", lambda: ones(2, 3) > 0, Operations(other=compare(6))),
    ("upcast", lambda: ones(2, 3).double(), Operations(other={"convert": 6})),
    ("upcast inside a copy", lambda: ones(2, 3).copy_(ones(2, 3, dtype=torch.float64)),
     Operations(other={"convert": 6})),
]  # fmt: skip


def test_a_peer_asks_once_whether_an_operation_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that loops over rows take a second less per ten thousand operations."""
    asked: list[str] = []

    def counting(func: Any, *given: Any) -> Any:
        asked.append(func._schema.name)
        return operations_or_parts(func, *given)

    monkeypatch.setattr("profiler.counting.dispatch.operations_or_parts", counting)
    found = flop_counter_mode(lambda: [ones(2, 3).tanh().t().clone() for _ in range(5)])
    assert asked.count("aten::tanh") == 1 and asked.count("aten::clone") == 1
    assert isinstance(found, PeerCount)
    assert (found.uncounted["aten::tanh"], found.moved["aten::clone"]) == (5, 5)


def bags(begin: tuple[int, ...] = (0, 3), **options: Any) -> Tensor:
    rows, starts = torch.tensor([0, 1, 1, 2]), torch.tensor(begin)
    return F.embedding_bag(rows, ones(5, 3), starts, **options)


def grouped(rows: int, terms: int, columns: int) -> Tensor:
    ends = torch.tensor([rows // 2, rows], dtype=torch.int32)
    left, right = (ones(*s, dtype=torch.bfloat16) for s in ((rows, terms), (2, terms, columns)))
    return torch._grouped_mm(left, right, ends)


def grouped_sums(rows: int, groups: int) -> Tensor:
    """Of each group a matrix of 8 x 16 sums over its rows: one row of each of the first groups."""
    ends = torch.arange(1, groups + 1, dtype=torch.int32).clamp(max=rows)
    left, right = (ones(rows, width, dtype=torch.bfloat16) for width in (8, 16))
    return torch._grouped_mm(left.T, right, ends)


def counted(fn: Any) -> Operations:
    """Inputs are made inside: making them is free, except for conversions."""
    found = count_dispatch(fn)
    assert found.complete, found.unknown
    return found.operations


@pytest.mark.parametrize(
    ("fn", "expected"), [p[1:] for p in LITERALS], ids=[p[0] for p in LITERALS]
)
def test_torch_calls_count_the_operations_written_beside_them(
    fn: Any, expected: Operations
) -> None:
    assert counted(fn) == expected


@pytest.mark.parametrize(
    ("fn", "expected"), [p[1:] for p in LITERALS], ids=[p[0] for p in LITERALS]
)
def test_inference_mode_takes_composites_apart(fn: Any, expected: Operations) -> None:
    with torch.inference_mode():
        assert counted(fn) == expected


def test_bags_whose_offsets_have_no_values_are_not_counted() -> None:
    with torch.device("meta"):
        found = count_dispatch(bags)
    reasons = {name: one.reason for name, one in found.unknown.items()}
    (name,) = reasons
    assert reasons[name] == (
        f"{name}: the number of filled bags depends on values, which meta tensors lack; ids with "
        f"two axes, or offsets that follow from sizes, are counted"
    )


# Attention over 3 rows and keys of width 2, one head: 6 pairs when causal, else 9.


def attention(causal: bool = False, mask: Tensor | None = None, keys: int = 3) -> Operations:
    q, k, v = ones(1, 1, 3, 2), ones(1, 1, keys, 2), ones(1, 1, keys, 2)
    return counted(lambda: F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal))


def test_causal_fused_attention_counts_visible_pairs() -> None:
    # 6 pairs, 3 rows: scores 12 mul 6 add, scale 6 mul, comparisons 3, subtractions 6, exp 6,
    # sums 3 add, divisions 6, weighted sum 12 mul and (6 - 3) x 2 add
    expected = Operations(mul=30, add=21, div=6, exp=6, other=compare(3))
    assert attention(causal=True) == expected


def test_full_fused_attention_counts_all_pairs() -> None:
    # 9 pairs: 18 + 9 + 18 mul; 9 + 9 + 6 + 12 add; 6 comparisons
    expected = Operations(mul=45, add=36, div=9, exp=9, other=compare(6))
    assert attention() == expected


def test_fused_attention_adds_a_mask_at_every_pair() -> None:
    without = attention()
    assert attention(mask=ones(3, 3)) == without + Operations(add=9)


def test_fused_attention_repeats_over_batch_and_heads() -> None:
    q = ones(2, 7, 3, 2)
    fn = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    assert counted(fn) == attention(causal=True) * 14


def test_visible_pairs_equal_a_count_by_hand() -> None:
    assert visible_pairs(3, 3, True) == 6
    assert visible_pairs(3, 3, False) == 9
    assert visible_pairs(1, 5, False) == 5
    assert visible_pairs(2, 5, True) == 3  # rows see 1 and 2 keys
    assert visible_pairs(5, 2, True) == 9  # 1 + 2 + 2 + 2 + 2


A: Any = torch.ops.aten
KERNELS: dict[str, tuple[Any, Any]] = {
    "flash": (
        lambda q, k, v, m, c: A._scaled_dot_product_flash_attention(q, k, v, 0.0, c),
        lambda g, q, k, v, m, r, s, c: A._scaled_dot_product_flash_attention_backward(
            g, q, k, v, q, r, None, None, 5, 7, 0.0, c, s, s
        ),
    ),
    "efficient": (
        lambda q, k, v, m, c: A._scaled_dot_product_efficient_attention(q, k, v, m, True, 0.0, c),
        lambda g, q, k, v, m, r, s, c: A._scaled_dot_product_efficient_attention_backward(
            g, q, k, v, m, q, r, s, s, 0.0, [True, True, True, False], c
        ),
    ),
    "cudnn": (
        lambda q, k, v, m, c: A._scaled_dot_product_cudnn_attention(q, k, v, m, True, 0.0, c),
        lambda g, q, k, v, m, r, s, c: A._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, q, r, s, s, m, r[:0], r[:0], 5, 7, 0.0, c
        ),
    ),
    "overrideable": (
        lambda q, k, v, m, c: A._scaled_dot_product_fused_attention_overrideable(
            q, k, v, m, 0.0, c
        ),
        lambda g, q, k, v, m, r, s, c: A._scaled_dot_product_fused_attention_overrideable_backward(
            g, q, k, v, m, [True, True, True, False], q, r, r[:0], r[:0], 5, 7, 0.0, c, s, s
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_attention_has_the_same_arithmetic(kernel: str, masked: bool) -> None:
    """6 heads of 5 rows, 7 keys and width 8: 35 pairs."""
    if masked and kernel == "flash":
        pytest.skip("flash attention takes no mask")
    meta = partial(torch.empty, device="meta")
    q, k, v, rows, seed = meta(2, 3, 5, 8), *[meta(2, 3, 7, 8)] * 2, meta(2, 3, 5), meta(1).long()
    mask, bias = (meta(2, 3, 5, 7), 35) if masked else (None, 0)
    forward, backward = KERNELS[kernel]
    # a score: 8 products, 7 adds, a scale; a row of 7: 6 compare, 7 add, 7 exp, 6 add, 7 div
    assert (
        counted(lambda: forward(q, k, v, mask, False))
        == Operations(
            mul=35 * 9 + 35 * 8,
            add=35 * 7 + 5 * 13 + 30 * 8 + bias,
            div=35,
            exp=35,
            other=compare(30),
        )
        * 6
    )
    # S and P again; dV; dP; D; dS; dQ and dK with their scales
    given = meta(0) if mask is None else mask
    assert (
        counted(lambda: backward(q, q, k, v, given, rows, seed, False))
        == Operations(
            mul=35 * 9 + 35 * 8 + 35 * 8 + 5 * 8 + 35 + (35 + 5) * 8 + (35 + 7) * 8,
            add=35 * 8 + 28 * 8 + 35 * 7 + 5 * 7 + 35 + 30 * 8 + 28 * 8 + bias,
            exp=35,
        )
        * 6
    )
    # row i sees keys 1..i: 15 pairs, an exponential each
    assert counted(lambda: backward(q, q, k, v, given, rows, seed, True)).exp == 15 * 6


def test_the_gradients_of_norms() -> None:
    """Rows of 3, twice: x' a difference and a product; g a product; g x' a product, sum g and sum
    g x' two adds each; N g, x' times the latter, times r / N: 3 products, 2 adds, a division a row;
    a product and an add a row for the gain, an add for the bias."""
    x, gain, bias = (ones(*s).requires_grad_() for s in ((2, 3), (3,), (3,)))
    y = F.layer_norm(x, (3,), gain, bias)
    found = counted(lambda: torch.autograd.grad(y, (x, gain, bias), ones(2, 3)))
    assert found == Operations(mul=6 * (1 + 1 + 1 + 3 + 1), add=6 * 3 + 8 + 3 + 3, div=2)


# Nothing is passed over.


def test_unknown_operation_is_listed() -> None:
    counts = count_dispatch(lambda: torch.polygamma(1, ones(2, 3)) + 1)
    assert not counts.complete
    assert counts.operations == Operations(add=6)
    (name,) = counts.unknown
    unknown = counts.unknown[name]
    assert (name, unknown.calls, unknown.bytes_touched) == ("aten::polygamma", 1, 48)
    assert unknown.reason == "no counting rule for this operation"


def test_an_operation_without_a_rule_is_taken_apart_as_torch_does() -> None:
    """The third root of the sum of cubes of absolute values."""
    found = counted(lambda: ones(2, 3).norm(p=3, dim=1))
    assert found == Operations(mul=12, add=4, other={"compare": 6, "pow": 2})
    (unknown,) = count_dispatch(lambda: torch.frexp(ones(3))).unknown.values()
    assert unknown.reason == (
        "no counting rule for this operation; torch's decomposition of this operation holds "
        "operations without a rule: prims::frexp: no counting rule for this operation"
    )


def test_an_rms_norm_is_counted_as_it_is_dispatched() -> None:
    """Squares, 2 add 1 div a row, eps, root and its reciprocal, a product an entry; so, too, where
    it is one operation."""
    found = Operations(mul=12, add=6, div=4, other={"sqrt": 2})
    assert counted(lambda: F.rms_norm(ones(2, 3), (3,))) == found
    with torch.inference_mode():  # dispatches it whole
        assert counted(lambda: F.rms_norm(ones(2, 3), (3,))) == found


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda: torch.fft.rfft(ones(3, 5)), "no whole number of adds for the odd length 5"),
        (lambda: ones(3, dtype=COMPLEX).exp(), "no counting rule for complex numbers"),
        (lambda: ones(3, dtype=COMPLEX) / ones(3, dtype=COMPLEX), "a complex divisor"),
    ],
)
def test_a_rule_that_does_not_reach_says_so(fn: Any, message: str) -> None:
    (unknown,) = count_dispatch(fn).unknown.values()
    assert message in unknown.reason


def test_free_is_said_of_moves_only() -> None:
    assert only_moves("aten::clone")
    assert only_moves("aten::squeeze_")
    assert only_moves("aten::mT")
    for name in ("aten::mm", "aten::add_", "aten::softmax", "aten::lgamma", "prims::add"):
        assert not only_moves(name)
    assert not FREE & MOVES_BY_NAME


def test_totals_per_operation_and_bytes() -> None:
    x, w = ones(2, 3), ones(3, 5)
    counts = count_dispatch(lambda: (x @ w).view(10) * 2)
    assert counts.dispatched == 3
    assert counts.launched == 2
    mm = counts.by_op["aten::mm"]
    assert (mm.calls, mm.operations) == (1, Operations(mul=30, add=20))
    assert (mm.bytes_read, mm.bytes_written) == (84, 40)
    view = counts.by_op["aten::view"]
    assert (view.view, view.bytes_read, view.bytes_written) == (True, 0, 0)
    assert counts.to_json()["operations"]["mul"] == 40


def test_an_expanded_axis_is_read_once() -> None:
    row = ones(1, 3).expand(5, 3)
    counts = count_dispatch(lambda: row * 2)
    assert counts.by_op["aten::mul"].bytes_read == 12
    assert counts.operations == Operations(mul=15)


def test_memory_that_a_call_overwrites_is_not_read() -> None:
    x, w, out = ones(2, 3), ones(3, 5), torch.empty(2, 5)
    assert count_dispatch(lambda: torch.mm(x, w, out=out)).by_op["aten::mm"].bytes_read == 84
    for fill in (out.normal_, out.uniform_, out.bernoulli_, out.exponential_):
        (counted,) = count_dispatch(fill).by_op.values()
        assert (counted.bytes_read, counted.bytes_written) == (0, 40)


def test_the_axis_of_windows_may_be_counted_from_the_end() -> None:
    x = ones(2, 10).requires_grad_()
    for axis in (1, -1):  # 8 windows of 3 entries touch 10 positions, in 2 rows
        found = count_dispatch(torch.autograd.grad, x.unfold(axis, 3, 1).sum(), x)
        assert found.by_op["aten::unfold_backward"].operations == Operations(add=2 * (8 * 3 - 10))


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("var", lambda: torch.empty(5, 0).var(1)),
        ("linalg_vector_norm", lambda: torch.linalg.vector_norm(torch.empty(0))),
        ("native_layer_norm_backward", lambda: nn.LayerNorm(5)(torch.empty(0, 5)).sum().backward()),
        ("native_group_norm_backward",
         lambda: nn.GroupNorm(2, 4)(torch.empty(0, 4, 5)).sum().backward()),
        ("_fft_c2c", lambda: torch.fft.fftn(ones(2, 3), dim=())),
        ("_embedding_bag", lambda: nn.EmbeddingBag(4, 3)(torch.zeros(0, 2, dtype=torch.long))),
        ("_trilinear", lambda: torch.bilinear(ones(0, 3), ones(0, 4), ones(2, 3, 4), None)),
        ("_weight_norm_interface_backward",
         lambda: torch.ops.aten._weight_norm_interface_backward(
             ones(3, 0), ones(3, 0), ones(3, 1), ones(3, 1), 0)),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:var")
def test_a_tensor_without_entries_takes_no_operations(name: str, fn: Any) -> None:
    counts = count_dispatch(fn)
    assert counts.complete
    assert counts.by_op[f"aten::{name}"].operations == NOTHING


def test_backward_is_counted_where_its_operations_have_rules() -> None:
    x, w = ones(2, 3), ones(3, 5).requires_grad_()
    # forward 30 and 20; the sum 9 adds; grad of w = x^T g, (3,2)(2,5): 30 mul, 15 add
    trained = counted(lambda: torch.autograd.grad((x @ w).sum(), w))
    assert trained == Operations(mul=60, add=44)


def test_operations_refuse_what_is_no_count() -> None:
    with pytest.raises(ValueError, match="non-negative integers"):
        Operations(mul=-1)
    assert Operations(other={"sqrt": 0}) == NOTHING
    assert Operations(mul=1, other={"sqrt": 2}).total == 3


# Doctored modules: exactly the injected operations surface.


def attend(scores: Tensor, *doctors: str) -> Tensor:
    if "extra add" in doctors:
        scores = scores + 1
    if "upcast" in doctors:
        scores = scores.double()
    weights = torch.softmax(scores, -1)
    return weights.exp() if "extra exp" in doctors else weights


@pytest.mark.parametrize(
    ("doctor", "injected"),
    [
        ("extra add", Operations(add=9)),
        ("extra exp", Operations(exp=9)),
        ("upcast", Operations(other={"convert": 9})),
    ],
)
def test_an_added_operation_is_counted(doctor: str, injected: Operations) -> None:
    scores = ones(3, 3)
    clean = counted(lambda: attend(scores))
    assert counted(lambda: attend(scores, doctor)) == clean + injected


# Peers.


class Explicit(nn.Module):
    """Causal self-attention of n heads, written out."""

    def __init__(self, d: int, n: int) -> None:
        super().__init__()
        self.n = n
        self.W_Q, self.W_K, self.W_V, self.W_out = (
            nn.Parameter(torch.ones(d, d) / d) for _ in range(4)
        )

    def heads(self, x: Tensor) -> list[Tensor]:
        batch, length, d = x.shape
        weights = (self.W_Q, self.W_K, self.W_V)
        return [(x @ w).view(batch, length, self.n, d // self.n).transpose(1, 2) for w in weights]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / 2.0
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.heads(x)).transpose(1, 2).flatten(2) @ self.W_out


class Fused(Explicit):
    """The same by torch's one call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Convolution(nn.Module):
    """SHE's extraction as one convolution of length l, with its two linear maps."""

    def __init__(self, d: int, l: int) -> None:
        super().__init__()
        self.W_ext = nn.Parameter(torch.ones(d, d, l) / d)
        self.W_adj = nn.Parameter(torch.ones(d, d) / d)
        self.W_out = nn.Parameter(torch.ones(d, d) / d)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (x.shape[1] - 1, 0))
        ext = F.conv1d(padded, self.W_ext).transpose(1, 2)
        return ((x @ self.W_adj) * ext) @ self.W_out


def printed(peer: PeerCount | Unavailable) -> PeerCount:
    assert isinstance(peer, PeerCount), peer
    return peer


def test_peers_at_128() -> None:
    """The figures of docs/reconciling.md: self-attention 25.2 M and 12.6 M, SHE 545 M and 273 M."""
    x, attention = ones(1, 128, 128), Explicit(128, 8)
    assert printed(flop_counter_mode(attention, x)).total == 25_165_824
    assert printed(fvcore_count(attention, x)).total == 12_582_912
    she = Convolution(128, 128)
    assert printed(flop_counter_mode(she, x)).total == 545_259_520
    assert printed(fvcore_count(she, x)).total == 272_629_760


def test_peers_say_what_they_skip() -> None:
    module, x = Explicit(8, 2), ones(1, 3, 8)
    with torch.no_grad():
        torch_says = printed(flop_counter_mode(module, x))
        fvcore_says = printed(fvcore_count(module, x))
    # 4 projections of 3x8x8 and two products of 2 heads x 3x3x4, at 2 and at 1 a multiply-add
    assert torch_says.by_op == {"aten::mm": 2 * 768, "aten::bmm": 2 * 144}
    assert fvcore_says.by_op == {"matmul": 768 + 144}
    assert torch_says.uncounted == {"aten::div": 1, "aten::_softmax": 1}
    assert "aten::masked_fill" in torch_says.moved
    assert fvcore_says.uncounted == {"aten::div": 1, "aten::softmax": 1}
    assert (torch_says.unit, fvcore_says.unit) == ("flop", "mac")


def test_peers_give_nothing_for_fused_attention_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch before 2.15 has it; test_peer_defects.py has either."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    monkeypatch.delitem(flop_registry, fused, raising=False)
    module, x = Fused(8, 2), ones(1, 3, 8)
    with torch.no_grad():
        torch_says = printed(flop_counter_mode(module, x))
        fvcore_says = printed(fvcore_count(module, x))
    assert torch_says.by_op == {"aten::mm": 2 * 768}
    assert torch_says.uncounted == {"aten::_scaled_dot_product_flash_attention_for_cpu": 1}
    assert fvcore_says.by_op == {"matmul": 768}
    assert fvcore_says.uncounted == {"aten::scaled_dot_product_attention": 1}


@pytest.mark.parametrize("transposed", [False, True])
def test_fvcore_counts_a_convolution_without_values(transposed: bool) -> None:
    """(2, 3, 7) by 5 kernels of 3 taps: 5 positions without padding, 9 of a transposed one."""
    made = nn.ConvTranspose1d(3, 5, 3) if transposed else nn.Conv1d(3, 5, 3)
    said = printed(fvcore_count(made.to("meta"), ones(2, 3, 7).to("meta")))
    assert said == printed(fvcore_count(made.to_empty(device="cpu"), ones(2, 3, 7)))
    assert said.by_op == {"conv": 2 * 3 * 5 * 3 * (7 if transposed else 5)}


def test_peers_count_a_complex_product_as_a_real_one() -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.bmm(a, b)

    a, b = ones(7, 2, 3, dtype=COMPLEX), ones(7, 3, 5, dtype=COMPLEX)
    assert printed(flop_counter_mode(Product(), a, b)).total == 420
    assert printed(fvcore_count(Product(), a, b)).total == 210


def test_fvcore_ignores_relu_in_silence_and_we_hear_it() -> None:
    said = printed(fvcore_count(nn.ReLU(), ones(2, 3)))
    assert (said.total, said.uncounted) == (0, {"aten::relu": 1})


def test_fvcore_on_another_method() -> None:
    module = Explicit(8, 2)
    said = printed(fvcore_count(module, ones(3, 8), call=lambda x: x @ module.W_Q))
    assert said.total == 192


def test_peers_report_failure_as_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no kernel here\nat line 3")

    for said in (flop_counter_mode(Broken(), ones(2)), fvcore_count(Broken(), ones(2))):
        assert isinstance(said, Unavailable)
        assert said.reason.endswith("no kernel here")
    assert capfd.readouterr().err == ""


# Times, kernels.


def test_shares_of_time() -> None:
    times = OperationTimes({("aten::matmul", "aten::mm"): 3.0, ("aten::softmax",): 1.0})
    assert times.total_s == 4.0
    assert times.by_op == {"aten::mm": 3.0, "aten::softmax": 1.0}
    assert times.share(["aten::mm"]) == times.share(["aten::mm", "aten::matmul"]) == 0.75
    assert times.share([]) == 0.0
    assert OperationTimes({}).share(["aten::mm"]) is None


Recorded: Any = FunctionEvent  # torch leaves it untyped


def on_host(name: str, kernel_us: int, parent: Any = None) -> Any:
    """An operation that launches one kernel, as torch's profiler records it."""
    found = Recorded(0, name, 1, 0, 1, use_device="cuda", is_legacy=False)
    found.append_kernel("void at::native::kernel", 0, kernel_us)
    if parent is not None:
        found.set_cpu_parent(parent)
        parent.append_cpu_child(found)
    return found


def on_gpu(name: str, spent_us: int, *, annotation: bool = False) -> Any:
    """A kernel, or a named region as the GPU's timeline shows it."""
    return Recorded(
        0, name, 7, 0, spent_us, use_device="cuda", device_type=DeviceType.CUDA,
        is_user_annotation=annotation,
    )  # fmt: skip


def test_a_kernel_is_the_time_of_its_operation_alone() -> None:
    """Equal halves: kernels have names with `::` too, and what a reset launches is no part."""
    reset = on_host(BEFORE, 0)
    events = [
        on_host("aten::_softmax", 30),
        on_gpu("void at::native::(anonymous namespace)::softmax_warp_forward", 30),
        on_host("aten::mm", 30),
        on_gpu("void cutlass::Kernel2<cutlass_80_simt_sgemm>", 30),
        reset,
        on_host("aten::fill_", 500, parent=reset),
        on_gpu("void at::native::vectorized_elementwise_kernel", 500),
    ]
    times = times_of(events, 2, device=True)
    assert times.by_op == pytest.approx({"aten::_softmax": 15e-6, "aten::mm": 15e-6})
    assert times.share(["aten::_softmax"]) == 0.5


def test_operation_times_sees_every_operation() -> None:
    times = operation_times(lambda x: torch.softmax(x @ x, -1), ones(64, 64))
    assert isinstance(times, OperationTimes)
    assert {"aten::mm", "aten::_softmax"} <= times.by_op.keys()
    assert ("aten::matmul", "aten::mm") in times.by_path
    assert all(seconds > 0 for seconds in times.by_path.values())
    assert times.share(times.by_op) == pytest.approx(1.0)


def test_torch_s_profiler_prints_nothing() -> None:
    """In a process of its own: torch reads how much to print when the profiler first starts."""
    code = (
        "import torch; from profiler.meters.torch_profile import operation_times; "
        "operation_times(torch.exp, torch.ones(4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_long_call_is_recorded_fewer_times() -> None:
    """Once, and before that unrecorded: its events, and holes between them, would fill memory."""
    ran: list[str] = []

    def long() -> Tensor:
        sleep(ENOUGH_S + 0.01)
        ran.append("long")
        return ones(2) + ones(2)

    assert isinstance(operation_times(long), OperationTimes)
    assert len(ran) == 2
    ran.clear()
    operation_times(lambda: ran.append("short"))
    assert len(ran) == 1 + AT_MOST


def test_operation_times_reports_failure() -> None:
    said = operation_times(lambda: ones(2, 3) @ ones(2, 3))
    assert isinstance(said, Unavailable)

    def without_cache() -> None:
        raise KeyError("cache")

    failed = operation_times(without_cache)
    assert failed == Unavailable("the call failed under torch.profiler: KeyError: 'cache'")


def test_no_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kernels = count_kernels(lambda: None)
    assert isinstance(kernels, Unavailable) and "torch finds none" in kernels.reason


def test_a_session_ends_when_cupti_is_detached(
    monkeypatch: pytest.MonkeyPatch, instead: Instead
) -> None:
    """A thread of kineto's own makes ready for it; the next call of CUDA does it."""
    done: list[str] = []

    @contextmanager
    def session(**asked: Any) -> Iterator[None]:
        yield
        done.append("profiled")

    instead(torch_session=session, torch_sleep=lambda seconds: done.append("waited"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("called CUDA"))
    with torch_profile.torch_profiled(cuda=True):
        pass
    assert done == ["profiled", "waited", "called CUDA"]
    with torch_profile.torch_profiled():
        pass
    assert done[3:] == ["profiled"]


@pytest.mark.parametrize(
    ("sessions", "number"),
    [
        ([2, 2], 2), ([2, 1, 2, 2], 2), ([1, 2, 1, 2, 1], None), ([0] * 5, None),
        ([2, 0, 0, 2, 2], 2), ([2, 0, 0, 0, 0], None),
    ],
)  # fmt: skip
def test_kernels_are_what_two_sessions_in_a_row_saw(
    monkeypatch: pytest.MonkeyPatch, instead: Instead, sessions: list[int], number: int | None
) -> None:
    """A profiler that was attached before loses the first kernels of some sessions."""
    left = iter(sessions)

    @contextmanager
    def session(**asked: Any) -> Iterator[Any]:
        names = [f"void at::native::kernel{k}" for k in range(2)]
        seen = [on_gpu(name, 1) for name in names[2 - next(left) :]]
        region = on_gpu("a region of the module's own", 2, annotation=True)
        yield SimpleNamespace(events=lambda: [on_host("aten::add", 1), *seen, region])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    instead(torch_profiled=session)
    found = count_kernels(lambda: None)
    assert (found.value if isinstance(found, Reading) else None) == number
    assert list(left) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_kernels_on_a_gpu() -> None:
    x = torch.ones(64, 64, device="cuda")
    kernels = count_kernels(lambda: (x + 1) * 2)
    assert isinstance(kernels, Reading)
    assert kernels.value == 2


def test_windows_added_up_into_their_places() -> None:
    """5 windows of 3 entries of a row of 7: 15 entries into 7 places; two rows."""

    def backward() -> None:
        x = ones(2, 7).requires_grad_()
        y = x.unfold(1, 3, 1)
        torch.autograd.backward(y, torch.ones_like(y))

    assert counted(backward) == Operations(add=2 * (15 - 7))


def test_what_fused_attention_keeps_for_its_gradients() -> None:
    """Dao 2023, Algorithm 1: the logarithm of each row's sum and its maximum, 2 heads of 3 rows."""
    q, k, v = (ones(1, 2, 3, 2) for _ in range(3))

    def operations() -> Operations:
        return count_dispatch(lambda: F.scaled_dot_product_attention(q, k, v)).operations

    plain = operations()
    v.requires_grad_()
    assert operations() == plain + Operations(add=6, other={"log": 6})
    with torch.no_grad():
        assert operations() == plain


def test_the_gradients_of_fused_attention() -> None:
    """Dao et al. 2022, Algorithm 4, at one head of width 2, 3 rows that see 6 pairs.

    mul: scores and their scale 6*3, dV 12, dP 12, row sums 6, dS 6, dQ 12 + 6, dK 12 + 6;
    add: scores 6 and their shift 6, dV 6, dP 6, row sums 3, dS 6, dQ 6, dK 6.
    """
    q, k, v = (ones(1, 1, 3, 2).requires_grad_() for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    found = count_dispatch(lambda: torch.autograd.backward(y, torch.ones_like(y)))
    assert found.complete
    assert found.operations == Operations(mul=90, add=45, exp=6)
