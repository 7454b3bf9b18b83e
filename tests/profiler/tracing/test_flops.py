"""Does a trace agree with torch's FlopCounterMode, and name what FlopCounterMode omits?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiler.tracing import trace
from profiler.tracing.meta_run.flop_counter import FlopCounter
from tests.profiler.tracing import modules
from tests.profiler.tracing.test_trace import convolution


def test_flop_counter_prints_twice_our_products() -> None:
    found = trace(modules.attention, over="l,h,n", let="d=n*h", grad="both").flops
    assert found is not None
    assert found.agrees
    # at l = 5, h = 3, n = 2: 12 maps of 5*6*6 and 6 products of 2 heads, 5*5*3
    assert sum(found.printed.values()) == 2 * (12 * 180 + 6 * 150)
    assert 0 < found.share_left_out < 1
    assert "aten::_safe_softmax" in found.left_out


def flops_of_convolution(**options: Any) -> FlopCounter:
    found = trace(convolution(1, **options), over="l,d", grad="both").flops
    assert found is not None
    return found


@pytest.mark.grid(3)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2}, {"dilation": 2}], ids=str)
def test_flop_counter_agrees_on_convolutions(transposed: bool, options: dict[str, int]) -> None:
    assert flops_of_convolution(transposed=transposed, **options).agrees


def test_flop_counter_forgets_the_groups_of_a_weights_gradient() -> None:
    # g groups: the input's gradient is right, the weight's is printed g times too large
    found = flops_of_convolution(groups=5)
    assert found.agrees and "ignores groups of convolutions" in str(found)
    products = found.products["aten::convolution_backward"] // 2
    assert found.ungrouped == {"aten::convolution_backward": 4 * products}
    assert found.printed["aten::convolution_backward"] == 2 * (products + 5 * products)
    assert found.printed["aten::convolution"] == 2 * found.products["aten::convolution"]


def test_the_peer_of_nothing_that_is_counted() -> None:
    class Ordered(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.polygamma(1, x)

    said = str(trace(Ordered, over="l,d").flops)
    assert said == (
        "FlopCounterMode prints 0; no operation has a counting rule, so there is nothing to compare"
    )
    assert "no operation is counted" in str(trace(nn.Identity, over="l,d", grad="both").flops)
