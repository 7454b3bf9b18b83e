"""Does the largest live set equal that of an execution and a count by hand?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.oracle.execute import run
from costmodel.oracle.live import most_live
from costmodel.questions.peak import there_before
from costmodel.questions.subject import system_of
from tests import systems
from tests.systems import examples

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


def over_channels(f: Form, x: Array, y: Array) -> None:
    """y[1, b] alone reads p[1, b]. At two channels, axis 0 of p fits the loop too."""
    l, d = x.shape
    product, b = f.array("p", l, d), f.index("b", 2, d)
    i, row = f.index("i", 1, l), f.index("row", 2, l)
    y[i, 1] = x[i, 1] * 2
    product[1, b] = y[1, b - 1] * x[1, b]
    y[1, b] = product[1, b] + x[1, b]
    y[row, b] = y[row, b - 1] + x[row, b]


def from_one_channel(f: Form, x: Array, y: Array) -> None:
    """All channels of y read channel 1 of p, which reads channel 1 of y: a loop over rows alone,
    from the last to the first."""
    l, d = x.shape
    product, b, i = f.array("p", l, d), f.index("b", 1, d), f.index("i", 1, l - 1)
    y[l, b] = x[l, b] * 2
    product[i, 1] = y[i + 1, 1] * x[i, 1]
    y[i, b] = product[i, 1] + x[i, b]


@pytest.mark.parametrize(
    ("write", "products"),
    [(over_channels, lambda l, d: d > 1), (from_one_channel, lambda l, d: l > 1)],
)
def test_a_loop_of_two_axes_holds_one_product(
    write: Write, products: Callable[[int, int], bool]
) -> None:
    """Beside the input and the output, of l*d entries each."""
    m = Mixer(write.__name__)
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        write(f, x, y)
    system, derived = system_of(m, "direct", (), "training"), cm.peak(m)
    for sizes in ({"l": n, "d": k} for n in (1, 3) for k in range(1, 6)):
        expected = 2 * sizes["l"] * sizes["d"] + products(sizes["l"], sizes["d"])
        assert derived.at(**sizes) == most_live(run(system, sizes), "training") == expected


def test_rows_of_equally_many_entries_by_two_equations_are_not_proven_equal() -> None:
    """Each row of p has min(d, w) entries, row 1 by an equation of its own."""
    m = Mixer("two-equations")
    l, d, w = m.sizes("l d w")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        p, b, c = f.array("p", l, d), f.index("b", 1, d), f.index("c", 1, cm.min_(d, w))
        i, s = f.index("i", 2, l), f.array("s", l)
        p[1, c] = x[1, c] * 2
        s[1] = cm.sum_(p[1, c], over=c)
        p[i, c] = s[i - 1] * x[i, c]
        s[i] = cm.sum_(p[i, c], over=c)
        k = f.index("k", 1, l)
        y[k, b] = s[k] * x[k, b]
    with pytest.raises(Unsupported, match="p: not all rows of the recurrence are proven to have"):
        cm.peak(m)


@settings(max_examples=examples(45), deadline=None)
@given(systems.loops_in_pieces(), systems.sizes())
def test_random_loops_in_pieces_hold_what_an_execution_holds(
    mixer: Mixer, drawn: dict[str, int]
) -> None:
    sizes = {letter: size for letter, size in drawn.items() if letter in ("l", *mixer.letters)}
    for phase in ("training", "backward", "training-step"):
        try:
            system, derived = system_of(mixer, "direct", (), phase), cm.peak(mixer, phase)
        except Unsupported:  # a part of a gradient that needs entries on both sides of its row
            continue
        ready = system.forward.equations if phase == "backward" else ()
        executed = most_live(run(system, sizes, ready=ready), phase)
        assert derived.at(**sizes) == executed


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
