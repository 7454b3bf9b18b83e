"""Do layers and their derivatives equal operations counted by hand?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.counting.attention_rules import ATTENTION_RULES
from profiler.counting.backward_rules import LAYER_RULES, covered_positions
from profiler.counting.distance_rules import DISTANCE_RULES
from profiler.counting.forward_rules import ELEMENTARY_RULES
from profiler.counting.linear_algebra_rules import LINEAR_ALGEBRA_RULES
from profiler.counting.norm_rules import NORM_RULES
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.rules import RULES
from profiler.counting.selection_rules import SELECTION_RULES
from profiler.tracing.meta_run.fused import math_backend
from profiler.tracing.meta_run.observe import observe
from profiler.tracing.meta_run.target import Target, TraceError


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: Tensor) -> Any:
        return self.fn(*inputs)


def counted(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Operations, Operations]:
    """The operations of a function of tensors of these shapes, forward and backward."""
    target = Target(
        "function", lambda: (Function(fn), tuple(torch.empty(s) for s in shapes)), grad="both"
    )
    found = observe(target, {}, math_backend)
    totals = {"forward": NOTHING, "backward": NOTHING}
    for (phase, name), counted in found.by_op.items():
        assert counted.known, name
        totals[phase] += counted.operations
    return totals["forward"], totals["backward"]


def compare(n: int) -> dict[str, int]:
    return {"compare": n}


ROWS = (2, 3)
LITERALS: list[tuple[str, Callable[..., Any], tuple[int, ...], Operations, Operations]] = [
    # six entries, each by its derivative
    ("relu", F.relu, ROWS, Operations(other=compare(6)), Operations(other=compare(6))),
    ("tanh", torch.tanh, ROWS, Operations(other={"tanh": 6}), Operations(mul=12, add=6)),
    ("sigmoid", torch.sigmoid, ROWS, Operations(exp=6, add=6, div=6), Operations(mul=12, add=6)),
    ("exp", torch.exp, ROWS, Operations(exp=6), Operations(mul=6)),
    ("silu", F.silu, ROWS, Operations(mul=6, exp=6, add=6, div=6),
     Operations(mul=18, add=18, exp=6, div=6)),
    # cdf: 2 mul, erf, add; pdf: 3 mul, exp; x pdf, + cdf, times g: 2 mul, 1 add
    ("gelu", F.gelu, ROWS, Operations(mul=18, add=6, other={"erf": 6}),
     Operations(mul=42, add=12, exp=6, other={"erf": 6})),
    # rows of 3: g y, their sum 2, a difference each, times y
    ("softmax", lambda x: torch.softmax(x, -1), ROWS,
     Operations(add=10, div=6, exp=6, other=compare(4)), Operations(mul=12, add=10)),
    # sum of g 2 a row, exp(y), its product with the sum, a difference each
    ("log softmax", lambda x: torch.log_softmax(x, -1), ROWS,
     Operations(add=16, exp=6, other={"compare": 4, "log": 2}), Operations(mul=6, add=10, exp=6)),
    # the gradient of a sum is a copy, that of a mean one division an entry
    ("sum", lambda x: x.sum(-1), ROWS, Operations(add=4), NOTHING),
    ("mean", lambda x: x.mean(-1), ROWS, Operations(add=4, div=2), Operations(div=6)),
    # 3 windows of 2 in each of 2 channels; every gradient is the first at the place of its maximum
    ("max pool", lambda x: F.max_pool1d(x, 2), (1, 2, 6), Operations(other=compare(6)), NOTHING),
    # 5 windows that share entries: a place may be that of two maxima
    ("overlapping max pool", lambda x: F.max_pool1d(x, 2, 1), (1, 1, 6),
     Operations(other=compare(5)), Operations(add=5)),
    # entries 1 and 2 are copied twice, each other entry once
    ("reflection", lambda x: F.pad(x, (0, 2), "reflect"), (1, 1, 4), NOTHING, Operations(add=2)),
    # a sum and a division a window; a division, and no addition where windows share no entry
    ("average pool", lambda x: F.avg_pool2d(x, 2), (1, 1, 4, 4), Operations(add=12, div=4),
     Operations(div=4)),
    # 5 into 3 windows: [0, 2), [1, 4), [3, 5), 7 entries, two of them in two windows
    ("adaptive pool", lambda x: F.adaptive_avg_pool2d(x, (1, 3)), (1, 1, 1, 5),
     Operations(add=4, div=3), Operations(add=2, div=3)),
    # z = exp(x), g z / (z + 1)
    ("softplus", F.softplus, ROWS, Operations(add=6, exp=6, other={"log": 6}),
     Operations(mul=6, add=6, div=6, exp=6)),
    # torch's decomposition: z = exp(beta x), g z / (z + 1), beta x against the threshold
    ("softplus with a factor", lambda x: F.softplus(x, beta=2), ROWS,
     Operations(mul=6, add=6, div=6, exp=6, other={"log": 6}),
     Operations(mul=18, add=6, div=6, exp=6, other=compare(6))),
    # four halves of numbers, each converted to the type of the sums
    ("sums in another type", lambda x: x.detach().cumsum(0, dtype=torch.double), ROWS,
     Operations(add=3, other={"convert": 6}), NOTHING),
    # transforms of 6: 6 * 3 * 2 products, 6 * 3 * 3 adds, and the same back
    ("transform of any length", torch.fft.fft, (6,), Operations(mul=18, add=27),
     Operations(mul=36, add=54)),
    # 6 entries drawn, divided by 1 - p, and multiplied with; the gradient multiplied with
    ("dropout", lambda x: F.dropout(x, 0.25), ROWS, Operations(mul=6, div=6, other={"random": 6}),
     Operations(mul=6)),
    # mean (2, a division), differences 3, squares 3, sum 2, a division a row of 3; backward: the
    # mean again, a difference, times 2/(n - 1), a number, times g
    ("variance", lambda x: x.var(-1), ROWS, Operations(mul=6, add=14, div=4),
     Operations(mul=8, add=10, div=2)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "shape", "forward", "backward"), [p[1:] for p in LITERALS], ids=[p[0] for p in LITERALS]
)
def test_torch_calls_count_the_operations_written_beside_them(
    fn: Callable[..., Any], shape: tuple[int, ...], forward: Operations, backward: Operations
) -> None:
    given = counted(fn, shape)
    assert given[0] == forward
    if fn is not torch.fft.fft:
        assert given[1] == backward


def test_an_embedding_gathers_for_nothing_and_adds_its_gradient() -> None:
    # gathered for nothing; a gradient of 2 * 5 rows of 3 is added row by row
    def make() -> tuple[nn.Module, Tensor]:
        return nn.Embedding(11, 3), torch.zeros(2, 5, dtype=torch.long)

    found = observe(Target("embedding", make, grad="both"), {}, math_backend)
    assert found.quantities.get(("forward", "add"), 0) == 0
    assert found.quantities["backward", "add"] == 30


def test_embedding_scaled_by_frequency() -> None:
    """torch's decomposition divides every entry by how often its row was asked for."""

    def make() -> tuple[nn.Module, Tensor]:
        layer = nn.Embedding(11, 3, scale_grad_by_freq=True)
        return layer, torch.zeros(2, 5, dtype=torch.long)

    found = observe(Target("embedding", make, grad="both"), {}, math_backend).quantities
    assert found["backward", "add"] == found["backward", "div"] == 30


def test_bags_whose_offsets_follow_from_sizes_are_counted() -> None:
    """Ids with two axes fill every bag; calls of equal layouts have the bags of their offsets."""

    def bags(rows: Tensor, ids: Tensor) -> Tensor:
        flat, full, empty = ids.flatten(), torch.tensor([0, 5]), torch.tensor([0, 0])
        means = F.embedding_bag(ids, rows) + F.embedding_bag(flat, rows, full)
        return means + F.embedding_bag(flat, rows, empty)

    def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        return Function(bags), (torch.empty(11, 3), torch.zeros(2, 5, dtype=torch.long))

    found = observe(Target("bags", make), {}, math_backend).quantities
    # sums of 5 and 5 rows of 3, twice, then of none and 10; two sums of results
    assert found["forward", "add"] == 24 + 24 + 27 + 12
    assert found["forward", "div"] == 6 + 6 + 3


def test_torch_warns_of_nothing_in_a_run_without_data() -> None:
    """The suite turns a warning into an error, which would refuse the module."""
    loss = Function(lambda x: F.mse_loss(x, x[:, :1]))
    found = observe(Target("loss", lambda: (loss, torch.ones(1, 3, 5))), {}, math_backend)
    assert found.quantities["forward", "mul"] == 15


PLACES: list[tuple[str, Callable[[Tensor, Tensor], Tensor], dict[str, int]]] = [
    ("scatter", lambda x, i: x.detach().scatter(1, i, x.detach()), {}),
    ("sum", lambda x, i: x.detach().scatter(1, i, x.detach(), reduce="add"), {"add": 6}),
    ("product", lambda x, i: x.detach().scatter(1, i, x.detach(), reduce="multiply"), {"mul": 6}),
    ("reduced", lambda x, i: x.detach().scatter_reduce(1, i, x.detach(), "sum"), {"add": 6}),
    ("largest", lambda x, i: x.detach().scatter_reduce(1, i, x.detach(), "amax"), {"compare": 6}),
    ("by index", lambda x, i: x.detach().index_reduce(1, i[0], x.detach(), "prod"), {"mul": 6}),
    ("scaled", lambda x, i: x.detach().index_add(1, i[0], x.detach(), alpha=3),
     {"mul": 6, "add": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "expected"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_entries_that_indices_place(
    fn: Callable[[Tensor, Tensor], Tensor], expected: dict[str, int]
) -> None:
    """Six entries, each joined to the one at its place."""
    forward, _ = counted(lambda x: fn(x, torch.arange(3).expand(2, 3)), ROWS)
    given = forward.to_json()
    assert {n: k for n, k in {**given.pop("other"), **given}.items() if k} == expected


@pytest.mark.parametrize("reduced", [torch.sum, torch.prod])
def test_entries_are_converted_before_they_are_reduced(reduced: Callable[..., Tensor]) -> None:
    forward, _ = counted(lambda x: reduced(x.detach(), 1, dtype=torch.float64), ROWS)
    assert forward.to_json()["other"] == {"convert": 6}


def test_a_mean_at_places_has_no_rule() -> None:
    def averaged(x: Tensor) -> Tensor:
        return x.detach().scatter_reduce(1, torch.zeros_like(x).long(), x.detach(), "mean")

    target = Target("mean", lambda: (Function(averaged), torch.empty(2, 3)), grad="both")
    listed = observe(target, {}, math_backend).by_op
    assert [c.known for (_, n), c in listed.items() if "scatter_reduce" in n] == [False]


@pytest.mark.parametrize(
    ("windows", "kernel", "stride", "dilation"),
    [(n, k, s, d) for n in (1, 2, 5) for k in (1, 2, 3) for s in (1, 2, 4) for d in (1, 2, 3)],
)
def test_covered_positions_equal_a_count_one_by_one(
    windows: int, kernel: int, stride: int, dilation: int
) -> None:
    places = {i * stride + j * dilation for i in range(windows) for j in range(kernel)}
    assert covered_positions(windows, kernel, stride, dilation) == len(places)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (4, 1)])
def test_convolutions_term_by_term(transposed: bool, stride: int, dilation: int) -> None:
    """Sums are run product by product: R terms that fall on one place are R - 1 adds."""
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d

    def make() -> tuple[nn.Module, Tensor]:
        module = kind(2, 3, 2, stride=stride, dilation=dilation, bias=False)
        return module, torch.empty(1, 2, 9)

    found = observe(Target("convolution", make, grad="both"), {}, math_backend).quantities
    windows = 9 if transposed else (9 - dilation - 1) // stride + 1
    terms = [
        (place, window, tap)
        for window in range(windows)
        for tap in range(2)
        for place in [window * stride + tap * dilation]
    ]
    products = 2 * 3 * len(terms)
    wide, narrow = len({t[0] for t in terms}), len({t[1] for t in terms})
    y, x = (3 * wide, 2 * narrow) if transposed else (3 * narrow, 2 * wide)
    assert found["forward", "mul"] == products
    assert found["forward", "add"] == products - y
    assert found["backward", "mul"] == 2 * products
    assert found["backward", "add"] == 2 * products - x - 2 * 3 * 2


def test_no_operation_has_two_rules() -> None:
    tables = (ELEMENTARY_RULES, LAYER_RULES, NORM_RULES, ATTENTION_RULES, SELECTION_RULES,
              LINEAR_ALGEBRA_RULES, DISTANCE_RULES)  # fmt: skip
    assert len(RULES) == sum(map(len, tables))


def test_transforms_of_powers_of_two() -> None:
    # eight is a power of two: N log2 N and 3/2 N log2 N
    forward, _ = counted(lambda x: torch.fft.rfft(x).real, (5, 8))
    assert forward == Operations(mul=120, add=180)


def test_a_value_that_follows_from_sizes_may_be_looked_at() -> None:
    def masked(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        if bool((places.diff() == 1).all()):
            return x * 2.0
        return x * places.max().item()

    forward, _ = counted(masked, (5, 3))
    assert forward == Operations(mul=15)


def test_a_value_that_something_unknown_was_written_into_may_not() -> None:
    def written(x: Tensor) -> Tensor:
        held = torch.zeros(3, device=x.device)
        held += x.detach()
        return x * float(held[0])

    with pytest.raises(TraceError, match="depend on the values"):
        counted(written, (3,))
