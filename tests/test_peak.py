"""Does the largest live set equal that of an execution and a count by hand?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.oracle.execute import run
from costmodel.oracle.live import most_live
from costmodel.questions.peak import there_before
from costmodel.questions.subject import system_of

Write = Callable[[Form, Array, Array], None]


def doubled(f: Form, x: Array, y: Array) -> None:
    """Gradients read no row of x, which is there all the same."""
    i = f.index("i", 1, x.shape[0])
    y[i] = x[i] * 2


def two_rows_back(f: Form, x: Array, y: Array) -> None:
    """A loop reads one array two rows back, and another array one row back."""
    l = x.shape[0]
    near, far = f.array("near", l), f.array("far", l)
    start, i = f.index("start", 1, cm.min_(2, l)), f.index("i", 3, l)
    near[start] = x[start] * 2
    far[start] = x[start] * 3
    y[start] = near[start] + far[start]
    near[i] = far[i - 2] * x[i]
    far[i] = near[i - 1] + y[i - 1]
    y[i] = near[i] + far[i]


def from_the_second_row(f: Form, x: Array, y: Array) -> None:
    """Of a sequence of one row, the loop writes no product."""
    l = x.shape[0]
    product, i = f.array("product", l), f.index("i", 2, l)
    y[1] = x[1] * 2
    product[i] = y[i - 1] * x[i]
    y[i] = product[i] + x[i]


def written(write: Write) -> Mixer:
    """A mixer of rows of one number."""
    m = Mixer(write.__name__)
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        write(f, x, y)
    return m


@pytest.mark.parametrize(
    ("write", "phase", "expected"),
    [
        (doubled, "training", lambda l: 2 * l),
        (doubled, "backward", lambda l: 3 * l),  # x, the gradients of y and of x
        (two_rows_back, "training", lambda l: 3 * l + 1),  # x, y, far, one row of near
        (from_the_second_row, "training", lambda l: 2 * l + (l > 1)),  # x, y, one product
    ],
)
def test_the_largest_live_set_counted_by_hand(
    write: Write, phase: str, expected: Callable[[int], int]
) -> None:
    mixer = written(write)
    system, derived = system_of(mixer, "direct", (), phase), cm.peak(mixer, phase)
    ready = system.forward.equations if phase == "backward" else ()
    for length in range(1, 8):
        executed = most_live(run(system, {"l": length}, ready=ready), phase)
        assert derived.at(l=length) == executed == expected(length)


@pytest.mark.parametrize(("phase", "rows"), [("training", 5 + 7), ("training-step", 2 * 5 + 7)])
def test_inputs_contexts_and_the_gradient_of_the_output_are_there_before(
    phase: str, rows: int
) -> None:
    found = there_before(cm.mixer("self-attention+cross"), phase)
    assert found.at({"l": 5, "e": 7, "d": 4}) == 4 * rows
