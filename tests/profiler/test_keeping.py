"""Are bytes told apart that hold values, copies of them, masks and rests of storages?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from profiler.meters.memory.keeping import (
    CLASSES,
    ByteClasses,
    held_at_most,
    kept_by,
    named_entry_bytes,
)

ROWS, WIDTH = 5, 3
ONE = 4 * ROWS * WIDTH
"""Bytes of one array (5, 3) in float32."""


def given() -> tuple[Tensor, Tensor]:
    """x (5, 3) and a weight (3, 3), both wanting gradients."""
    return torch.randn(ROWS, WIDTH).requires_grad_(), torch.randn(WIDTH, WIDTH).requires_grad_()


def kept(call: Callable[[Tensor, Tensor], Tensor]) -> dict[str, int]:
    """The classes that hold bytes, of what a call keeps."""
    x, weight = given()
    found = kept_by(lambda: call(x, weight), [weight], [x])
    return {name: n for name, n in found.by_class().items() if n}


def test_an_input_and_a_result_are_values() -> None:
    assert kept(lambda x, w: torch.tanh(x @ w)) == {"values": 2 * ONE}


def test_a_parameter_is_not_counted_and_its_copy_is_named() -> None:
    turned = kept(lambda x, w: x @ w.t().contiguous())
    assert turned == {"values": ONE, "copies of parameters": 4 * WIDTH * WIDTH}


def test_a_copy_stands_for_a_value_that_is_not_kept_itself() -> None:
    """exp keeps its result, and the product its turned copy: the copy is one more."""
    both = kept(lambda x, w: w @ torch.exp(x).t().contiguous())
    assert both == {"values": ONE, "copies": ONE}
    alone = kept(lambda x, w: w @ (x + 1).t().contiguous())
    assert alone == {"values": ONE}


def test_zeros_around_a_value_are_no_values() -> None:
    padded = kept(lambda x, w: torch.nn.functional.pad(x, (0, 0, 2, 0)) @ w)
    assert padded == {"values": ONE, "copies": 4 * 2 * WIDTH}


def test_masks_are_named() -> None:
    def masked(x: Tensor, w: Tensor) -> Tensor:
        return x.masked_fill(torch.ones(ROWS, WIDTH, dtype=torch.bool), 0.0) @ w

    assert kept(masked) == {"values": ONE, "masks": ROWS * WIDTH}


def test_the_rest_of_a_storage_is_named() -> None:
    """Of x w + 1 only the first column is needed again."""
    found = kept(lambda x, w: torch.sin((x @ w)[:, :1]))
    assert found == {"values": ONE + 4 * ROWS, "whole storages": ONE - 4 * ROWS}


def test_what_is_computed_into_a_copy_is_a_value() -> None:
    """A copy of x that is multiplied in place is another value than x."""
    found = kept(lambda x, w: torch.sin(x) + torch.sin(x.clone().mul_(2.0)) @ w)
    assert found == {"values": 3 * ONE}  # x, 2 x, sin(2 x)


def test_what_is_saved_for_its_shape_alone_is_unread() -> None:
    """A transform of x + 1 asks for no entry of it, the exponential beside it for its own."""
    found = kept(lambda x, w: torch.fft.rfft(x + 1, dim=0).real.sum() + torch.exp(x).sum())
    assert found == {"values": ONE, "unread": ONE}


def test_entries_that_meet_no_gradient_are_unread() -> None:
    """Of tanh(x) one row is used: the gradients of the others are zeros that stand for nothing."""
    found = kept(lambda x, w: torch.tanh(x)[:1] * 2)
    assert found == {"values": 4 * WIDTH, "unread": ONE - 4 * WIDTH}


def test_gradients_of_zero_are_gradients() -> None:
    """A product with zeros is one with numbers."""
    assert kept(lambda x, w: torch.tanh(x) * torch.zeros(ROWS, WIDTH))["values"] == ONE


def test_what_a_condition_chose_from_is_a_branch() -> None:
    """exp(x) is kept for its own gradient, beside what is made of it and multiplied by w."""
    above = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    chosen = kept(lambda x, w: torch.where(above, x + 1, torch.exp(x)) @ w)
    assert chosen == {"values": ONE, "branches": ONE, "masks": ROWS * WIDTH}

    def read_twice(x: Tensor, w: Tensor) -> Tensor:
        power = torch.exp(x)
        return torch.where(above, x + 1, power) @ w + torch.sin(power)

    assert kept(read_twice) == {"values": 2 * ONE, "masks": ROWS * WIDTH}


def test_a_running_sum_starts_with_a_copy() -> None:
    """Its first row is the first of what is summed, which is kept, too."""

    def running(x: Tensor, w: Tensor) -> Tensor:
        y = torch.exp(x)
        return torch.sin(y.cumsum(0))

    row = 4 * WIDTH
    assert kept(running) == {"values": 2 * ONE - row, "copies": row}


def test_zeros_to_start_from_are_constants() -> None:
    assert kept(lambda x, w: x.new_zeros(ROWS, WIDTH) @ w) == {"constants": ONE}


def test_a_parameter_s_parts_beside_each_other_are_a_copy_of_it() -> None:
    turned = kept(lambda x, w: x @ torch.stack([w[2], w[0], w[1]]))
    assert turned == {"values": ONE, "copies of parameters": 4 * WIDTH * WIDTH}


def test_values_whose_storage_is_gone_are_not_taken_for_others() -> None:
    """Storages are reused: two copies of two values are two values."""

    def two(x: Tensor, w: Tensor) -> Tensor:
        one = w @ (x + 1).t().contiguous()
        other = w @ (x + 2).t().contiguous()
        return one + other

    assert kept(two) == {"values": 2 * ONE}


def test_the_worst_moment() -> None:
    """x + 1, its square and the square's exponential: two at a time."""
    x = torch.randn(ROWS, WIDTH)
    found = held_at_most(lambda: torch.exp(torch.square(x + 1)), [], [x])
    assert found.values == found.total == 2 * ONE


def test_nothing_new_is_held_by_a_view() -> None:
    x = torch.randn(ROWS, WIDTH)
    assert held_at_most(lambda: x.t()[1:], [], [x]).total == 0


def causes(call: Callable[[Tensor], object]) -> dict[str, int]:
    """What the worst moment of a call of x consists of."""
    x = torch.randn(ROWS, WIDTH)
    found = held_at_most(lambda: call(x), [], [x])
    assert found.values + sum(found.causes.values()) == found.total
    return {"values": found.values} | {name: n for name, n in found.causes.items() if n}


def test_a_name_that_is_not_read_again_holds_on() -> None:
    """x + 1 stays while its square's exponential is taken."""

    def named(x: Tensor) -> Tensor:
        more = x + 1
        y = torch.exp(torch.square(more))
        del more
        return y

    assert causes(named) == {"values": 2 * ONE, "held on": ONE}


def test_sums_of_gradients_are_formed_in_place_where_they_may() -> None:
    """The gradients of 2 x and 3 x, each its own, and their sum, while the output is there; where
    both terms are the gradient of the output itself, their sum is another array."""
    gradient = torch.randn(ROWS, WIDTH)

    def of(f: Callable[[Tensor], Tensor]) -> dict[str, int]:
        return causes(lambda x: torch.autograd.backward([f(x.requires_grad_())], [gradient]))

    own = of(lambda x: 2 * x + 3 * x)
    assert own == {"values": 3 * ONE, "summed in place": -ONE, "held on": ONE}
    assert of(lambda x: x + x) == {"values": ONE, "held on": ONE}


def test_what_nothing_reads_of_several_results_is_beside_them() -> None:
    """The mean of each row, and one over its standard deviation, for a gradient that is not taken;
    read, they are values."""
    normed = causes(lambda x: torch.native_layer_norm(x, [WIDTH], None, None, 1e-5)[0])
    assert normed == {"values": ONE, "beside results": 2 * 4 * ROWS}

    def read(x: Tensor) -> Tensor:
        y, mean, _ = torch.native_layer_norm(x, [WIDTH], None, None, 1e-5)
        return y.mul_(mean)

    assert causes(read)["beside results"] == 4 * ROWS


def test_what_is_made_of_rows_holds_them_once_more() -> None:
    """Rows of a result of their own, then all of them in one."""

    def rows(x: Tensor) -> Tensor:
        return torch.stack([row + 1 for row in x.unbind(0)])

    assert causes(rows) == {"values": ONE, "copies": ONE}


def test_a_copy_of_what_was_there_is_no_value() -> None:
    assert causes(lambda x: x.t().contiguous()) == {"values": 0, "copies": ONE}


def test_the_worst_moment_is_looked_for_again_without_copies() -> None:
    """Two values at once, x + 1 and its square, and later one of them in three copies."""

    def copied(x: Tensor) -> Tensor:
        y = torch.square(x + 1)
        return torch.stack([y.clone(), y.clone(), y.clone()]).sum(0)

    assert causes(copied)["values"] == 2 * ONE


@pytest.mark.parametrize(
    ("views", "entries"),
    [
        (lambda t: [t, t.t(), t.view(-1), t.view(5, 1, 3)], 15),
        (lambda t: [t[:2], t[2:]], 15),
        (lambda t: [t[:2], t[:2].t()], 6),
        (lambda t: [t[:1].expand(5, 3)], 3),
        (lambda t: [t, t[:2]], 15),
    ],
)
def test_entries_that_views_name(views: Callable[[Tensor], list[Tensor]], entries: int) -> None:
    """Of one storage of 15: in another order or shape they are the same, and never more."""
    assert named_entry_bytes(views(torch.zeros(5, 3))) == 4 * entries


def test_classes_have_a_meaning() -> None:
    assert list(CLASSES) == list(ByteClasses().by_class())
    assert ByteClasses(1, 2, 3, 4, 5, 6, 7, 8, 9).total == 45
