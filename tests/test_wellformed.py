"""Is a malformed mixer refused with a sentence that names the mistake and its place?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, irfft, rfft
from costmodel.errors import Refused, SizeError, Unsupported
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import fit
from costmodel.program.lowering import lower
from costmodel.program.wellformed import check_form
from costmodel.proofs.against_oracle import Sizes
from costmodel.proofs.check import _differ, first_apart, prove
from costmodel.symbolic.polynomial import padded
from tests.small import complete

Write = Callable[[Any, Any, Any, Any], None]


def mixer(write: Write) -> cm.Mixer:
    """A mixer over l tokens of width d whose one form `write` fills in."""
    made = cm.Mixer("bad")
    l, d, _ = made.sizes("l d w")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def indices(made: Any, f: Any) -> tuple[Any, ...]:
    l, d = made.arrays["x"].shape
    i = f.index("i", 1, l)
    return l, d, i, f.index("j", 1, i), f.index("a", 1, d)


def transposed(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[a, i] = x[i, a]


def past_the_end(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = x[i + 1, a]


def before_the_start(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = x[i - 1, a]


def weights_too_short(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, j, a = indices(m, f)
    w = m.parameter("w", cm.Mixer("other").sizes("w")[0])
    y[i, a] = cm.sum_(x[j, a] * w[i - j + 1], over=j)


def first_row_missing(m: Any, f: Any, x: Any, y: Any) -> None:
    l, _, _, _, a = indices(m, f)
    rest = f.index("rest", 2, l)
    y[rest, a] = x[rest, a]


def first_row_twice(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    first = f.index("first", 1, 1)
    y[first, a] = x[first, a]
    y[i, a] = x[i, a] + x[i, a]


def reads_what_nobody_defines(m: Any, f: Any, x: Any, y: Any) -> None:
    l, _, i, j, a = indices(m, f)
    z = f.array("z", l, l)
    z[i, j] = cm.sum_(x[i, a] * x[j, a], over=a)
    k = f.index("k", 1, l)
    y[i, a] = cm.sum_(z[i, k] * x[k, a], over=k)


def rows_twice_by_one_equation(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    z, k = f.array("z", l + 1, d), f.index("k", 1, 2)
    z[i + k - 1, a] = x[i, a]
    y[i, a] = z[i, a]


FORMS: dict[Write, str] = {
    transposed: "y is defined outside its extents (l, d)",
    past_the_end: "y reads x outside its extents (l, d)",
    before_the_start: "y reads x outside its extents (l, d)",
    weights_too_short: "y reads w outside its extents (w)",
    first_row_missing: "y is not defined everywhere",
    first_row_twice: "two equations of y define one entry",
    rows_twice_by_one_equation: "the equation of z defines one entry twice",
    reads_what_nobody_defines: "y reads entries of z that no equation defines",
}


@pytest.mark.parametrize(("write", "message"), FORMS.items(), ids=[w.__name__ for w in FORMS])
@pytest.mark.parametrize("ask", [cm.count, cm.span, cm.traffic, cm.critical_path, cm.state])
def test_every_question_refuses(write: Write, message: str, ask: Callable[..., Any]) -> None:
    with pytest.raises(EquationError) as caught:
        ask(mixer(write))
    assert str(caught.value).startswith(message)
    assert "for instance at l = " in str(caught.value)


def twice_from_row_11(m: Any, f: Any, x: Any, y: Any) -> None:
    l, _, i, _, a = indices(m, f)
    k = f.index("k", 11, l)
    y[i, a] = x[i, a]
    y[k, a] = x[k, a] + x[k, a]


def past_a_table_of_10(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = x[i, a] * m.parameter("p", 10)[i]


@pytest.mark.parametrize(("write", "said"), [
    (twice_from_row_11, "two equations of y define one entry (at l = 11, d = 3)"),
    (past_a_table_of_10, "y reads p outside its extents (10): index i is 11 on axis 1, which holds "
     "1..10 (at l = 11, d = 3)"),
])  # fmt: skip
def test_equations_are_refused_at_the_sizes_at_which_they_are_wrong(
    write: Write, said: str
) -> None:
    found = cm.count(mixer(write))
    assert found.at(l=7, d=3).total is not None
    with pytest.raises(EquationError, match=re.escape(said)):
        found.at(l=11, d=3)


def test_an_example_is_looked_for_among_the_first_points_alone() -> None:
    said = "y reads p outside its extents (10) (at l = 11, d = 100000)"
    with pytest.raises(EquationError, match=re.escape(said)):
        cm.count(mixer(past_a_table_of_10)).at(l=11, d=100_000)


def never_read(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    z = f.array("z", l, d)
    z[i, a] = x[i, a] * x[i, a]
    y[i, a] = x[i, a]


def read_by_itself_alone(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    first, rest, z = f.index("first", 1, 1), f.index("rest", 2, l), f.array("z", l, d)
    z[first, a] = x[first, a]
    z[rest, a] = z[rest - 1, a] + x[rest, a]
    y[i, a] = x[i, a]


def read_by_what_nobody_reads(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    z, u = f.array("z", l, d), f.array("u", l, d)
    z[i, a] = x[i, a] * x[i, a]
    u[i, a] = z[i, a] + x[i, a]
    y[i, a] = x[i, a]


NEEDLESS = "z is defined, but the output does not depend on it: remove or read z"


@pytest.mark.parametrize("write", [never_read, read_by_itself_alone, read_by_what_nobody_reads])
@pytest.mark.parametrize("ask", [cm.count, cm.span, cm.state, cm.traffic])
def test_an_array_that_the_output_does_not_need_is_refused(
    write: Write, ask: Callable[..., Any]
) -> None:
    with pytest.raises(EquationError, match=NEEDLESS):
        ask(mixer(write))


def transformed(length: Callable[[Any], Any]) -> cm.Mixer:
    """x, transformed over `length(l)` points and back; its `copy` is x itself."""
    made = cm.Mixer("transformed")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("fft") as f:
        i, a, points = f.index("i", 1, l), f.index("a", 1, d), length(l)
        q, p = f.index("q", 1, points / 2 + 1), f.index("p", 1, 2)
        z = f.array("z", points / 2 + 1, 2, d)
        z[q, p, a] = rfft(x[i, a], over=i, length=points)
        y[i, a] = irfft(z[q, p, a], over=(q, p), length=points)
    with made.form("copy") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a]
    return made


def test_a_form_is_looked_at_where_its_extents_are_whole() -> None:
    """One point has no half: at l = 1 there is no such transform, elsewhere there is."""
    made = transformed(padded)
    assert all(proof.passed is not False for proof in prove(made))
    assert cm.count(made).at(l=4, d=3).mul == 2 * 3 * 8
    with pytest.raises(SizeError, match=r"whole, got 3/2 \(l = 1\); choose another value of l$"):
        fit(made, {"l": 1, "d": 3})


def test_bins_do_not_cover_as_many_rows() -> None:
    """The bins of a transform of l points cover its l rows up to l = 3 alone."""

    def write(m: Any, f: Any, x: Any, y: Any) -> None:
        l, d, i, _, a = indices(m, f)
        q, p = f.index("q", 1, padded(l) / 2 + 1), f.index("p", 1, 2)
        z = f.array("z", padded(l) / 2 + 1, 2, d)
        z[q, p, a] = rfft(x[i, a], over=i, length=padded(l))
        y[q, a] = z[q, 1, a] - z[q, 2, a]

    with pytest.raises(EquationError, match=r"y is not defined everywhere .*l = 4"):
        cm.count(mixer(write))


def unbound(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, j, a = indices(m, f)
    y[i, a] = x[j, a]


def reduced_over_the_left_side(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = cm.sum_(x[i, a], over=i)


def softmax_inside(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = 1 + cm.softmax(x[i, a], over=a)


def transform_inside(m: Any, f: Any, x: Any, y: Any) -> None:
    _, d, i, _, a = indices(m, f)
    q, p = f.index("q", 1, 2), f.index("p", 1, 2)
    z = f.array("z", 2, 2, d)
    z[q, p, a] = rfft(x[i, a], over=i, length=2) * 2
    y[i, a] = irfft(z[q, p, a], over=(q, p), length=2)


def axes(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = x[i]


def not_affine(m: Any, f: Any, x: Any, y: Any) -> None:
    l, _, i, _, a = indices(m, f)
    y[i, a] = x[i * l + 2, a]


def rounded_bound(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    k = f.index("k", 1, i // 2)
    y[i, a] = cm.sum_(x[k, a], over=k)


def blocks_of_a_sum(m: Any, f: Any, x: Any, y: Any) -> None:
    _, d, i, _, a = indices(m, f)
    z, e = f.array("z", 2 * d + 2), f.index("e", 1, d + 1)
    z[(i - 1) * (d + 1) + e] = x[i, a] * x[i, a]


def defines_the_input(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    x[i, a] = y[i, a]


WRITING: dict[Write, str] = {
    unbound: "y: index j of x is unbound",
    reduced_over_the_left_side: "y: index i is on the left side and reduced over",
    softmax_inside: "y: softmax must be the whole right side",
    transform_inside: "z: rfft must be the whole right side",
    axes: "x has 2 axes but is indexed with 1",
    not_affine: "an index of x: index 'i*l + 2' in bad multiplies an index",
    rounded_bound: "index k is bounded by floor(i/2), which rounds i: bound k by",
    blocks_of_a_sum: "an index of z: blocks of d + 1 entries in bad have a sum of sizes as",
    defines_the_input: "x is declared by m.input, and no equation may define it",
}


@pytest.mark.parametrize(("write", "message"), WRITING.items(), ids=[w.__name__ for w in WRITING])
def test_writing_it_is_refused(write: Write, message: str) -> None:
    with pytest.raises(EquationError) as caught:
        mixer(write)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("letter", ["b", "t"])
def test_batch_and_position_are_no_sizes_of_a_mixer(letter: str) -> None:
    with pytest.raises(EquationError, match=f"declares size '{letter}'"):
        cm.Mixer("bad").sizes(f"l d {letter}")


def along_two_axes(m: Any, f: Any, x: Any, y: Any) -> None:
    """H[i,a] from H[i-1,a] and H[i,a-1]: no order of rows of one axis computes it."""
    l, d, i, _, a = indices(m, f)
    H, one, rest = f.array("H", l, d), f.index("one", 1, 1), f.index("rest", 2, l)
    later = f.index("later", 2, d)
    H[one, a] = x[one, a]
    H[rest, one] = x[rest, one]
    H[rest, later] = H[rest - 1, later] + H[rest, later - 1]
    y[i, a] = H[i, a]


@pytest.mark.parametrize("ask", [cm.count, cm.span, cm.critical_path])
def test_a_recurrence_along_two_axes_is_refused_not_miscounted(ask: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match="H needs itself: a recurrence reads earlier rows"):
        ask(mixer(along_two_axes))


def itself(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    A = f.array("A", l, d)
    A[i, a] = A[i, a] + x[i, a]
    y[i, a] = A[i, a]


def each_other(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    A, C, D = (f.array(name, l, d) for name in "ACD")
    A[i, a] = C[i, a] + x[i, a]
    C[i, a] = D[i, a] * 2
    D[i, a] = A[i, a]
    y[i, a] = D[i, a]


def in_one_row(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    A, C = f.array("A", l, d), f.array("C", l, d)
    one, rest = f.index("one", 1, 1), f.index("rest", 2, l)
    A[one, a] = x[one, a]
    A[rest, a] = A[rest - 1, a] + C[rest, a]
    C[i, a] = A[i, a] * x[i, a]
    y[i, a] = C[i, a]


def before_and_after(m: Any, f: Any, x: Any, y: Any) -> None:
    l, d, i, _, a = indices(m, f)
    A, C = f.array("A", l, d), f.array("C", l, d)
    one, rest = f.index("one", 1, 1), f.index("rest", 2, l)
    early, last = f.index("early", 1, l - 1), f.index("last", l, l)
    A[last, a] = x[last, a]
    A[early, a] = C[early + 1, a]
    C[one, a] = x[one, a]
    C[rest, a] = A[rest - 1, a]
    y[i, a] = C[i, a]


def all_rows(m: Any, f: Any, x: Any, y: Any) -> None:
    l, _, _, _, a = indices(m, f)
    one, rest, k = f.index("one", 1, 1), f.index("rest", 2, l), f.index("k", 1, l)
    y[one, a] = x[one, a]
    y[rest, a] = cm.sum_(y[k, a], over=k)


CIRCLES: dict[Write, str] = {
    itself: "A[1, 1] needs A[1, 1] (for instance at l = 1,",
    each_other: "A[1, 1] needs C[1, 1], which needs D[1, 1], which needs A[1, 1] (",
    in_one_row: "A[2, 1] needs C[2, 1], which needs A[2, 1] (for instance at l = 2,",
    before_and_after: "A[1, 1] needs C[2, 1], which needs A[1, 1] (for instance at l = 2,",
    all_rows: "y[2, 1] needs y[2, 1] (for instance at l = 2,",
}


@pytest.mark.parametrize(("write", "said"), CIRCLES.items(), ids=[w.__name__ for w in CIRCLES])
def test_what_no_order_computes_is_not_well_formed(write: Write, said: str) -> None:
    (proof,) = prove(mixer(write))
    assert proof.passed is False
    words = "no order of computation satisfies the equations: "
    assert words in proof.detail and said in proof.detail
    for ask in (cm.count, cm.span, cm.state):
        with pytest.raises(Refused, match=r"needs? (itself|each other)"):
            ask(mixer(write))


@pytest.mark.parametrize("name", names())
def test_the_built_in_mixers_are_well_formed(name: str) -> None:
    for form in builtin(name).forms:
        check_form(lower(builtin(name).forms[form]))
        sizes = complete(builtin(name), {"l": 3, "d": 4, "n": 2})
        assert cm.count(builtin(name), form=form).at(**sizes).total > 0


def test_a_form_may_split_its_first_row_from_the_rest() -> None:
    """At l = 1 the rest has no row: nothing is added, and no chain is left."""
    made = cm.Mixer("split")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        first, rest, a = f.index("first", 1, 1), f.index("rest", 2, l), f.index("a", 1, d)
        y[first, a] = x[first, a]
        y[rest, a] = x[rest, a] + x[rest - 1, a]
    assert [cm.count(made).at(l=n, d=3).add for n in (1, 2, 5)] == [0, 3, 12]
    assert [cm.span(made).at(l=n, d=3) for n in (1, 2, 5)] == [0, 1, 1]
    assert cm.critical_path(made, sizes={"l": 1, "d": 3}).steps == ()
    assert cm.critical_path(made, sizes={"l": 2, "d": 3}).steps == ("add",)
    assert str(cm.state(made).expr) == "d"


@pytest.mark.parametrize("name", ["W%_#", "", "a b", "1x", "Ω"])
def test_a_name_that_a_format_could_not_print_is_refused(name: str) -> None:
    made = cm.Mixer("bad")
    (l,) = made.sizes("l")
    with pytest.raises(EquationError, match="is no name"):
        made.parameter(name, l)


def divided_by_zero(m: Any, f: Any, x: Any, y: Any) -> None:
    _, _, i, _, a = indices(m, f)
    y[i, a] = x[i, a] / 0


def test_a_division_by_zero_is_refused() -> None:
    with pytest.raises(EquationError, match="y: a division by 0"):
        mixer(divided_by_zero)


def test_check_says_what_is_not_supported_without_failing_it() -> None:
    (proof,) = prove(mixer(along_two_axes))
    assert proof.passed is None
    assert "a recurrence reads earlier rows" in proof.detail


@pytest.mark.parametrize("step", [1, -1])
def test_an_equation_that_nobody_checked_stays_inside_its_arrays(step: int) -> None:
    """What it reads beyond an end is 0; what it defines there is refused."""

    def reads(m: Any, f: Any, x: Any, y: Any) -> None:
        _, _, i, _, a = indices(m, f)
        y[i, a] = x[i + step, a]

    def defines(m: Any, f: Any, x: Any, y: Any) -> None:
        _, _, i, _, a = indices(m, f)
        y[i + step, a] = x[i, a]

    shifted, beyond = mixer(reads), mixer(defines)
    shifted.checked = beyond.checked = True
    sizes, x = {"l": 3, "d": 2, "w": 1}, np.arange(1.0, 7.0).reshape(3, 2)
    expected = [x[i + step] if 0 <= i + step < 3 else [0, 0] for i in range(3)]
    assert (cm.evaluate(shifted, {"x": x}, sizes) == expected).all()
    with pytest.raises(EquationError, match=r"^y is defined outside its extent 3 on axis 1$"):
        cm.evaluate(beyond, {"x": x}, sizes)


def _with(text: str, x: Any, d: Any) -> object:
    return eval(text, {"x": x, "d": d, "cm": cm})


@pytest.mark.parametrize(("text", "said"), [
    ("x * 0.5", r"write Fraction\('0.5'\)"),
    ("1e-05 + x", r"write Fraction\('1e-05'\)"),
    ("x / 2.0", r"write Fraction\('2.0'\)"),
    ("cm.scaled(x, by=0.5)", r"write Fraction\('0.5'\)"),
    ("x ** 2", r"x \* x for x \*\* 2"),
    ("x ** 0.5", r'a square root is function\("sqrt", ...\)'),
    ("d ** 0.5", r'a square root is function\("sqrt", ...\)'),
])  # fmt: skip
def test_a_constant_that_is_not_exact_is_told_what_to_write(text: str, said: str) -> None:
    m = cm.Mixer("m", source="a test")
    l, d = m.sizes("l d")
    x = m.input("x", l, d)
    with pytest.raises(TypeError, match=said), m.form("direct") as f:
        _with(text, x[f.index("i", 1, l), f.index("a", 1, d)], d)


def flattened_twice() -> cm.Mixer:
    """Each of n heads of w channels reads its row of one of g groups: head H of group G is head
    (G - 1)*(n/g) + H."""
    made = cm.Mixer("flattened-twice")
    l, d, n, g, w = made.sizes("l d n g w")
    x, y = made.input("x", l, d), made.output("y", l, d)
    V, K = made.parameter("W_V", d, n * w), made.parameter("W_K", d, g * w)
    with made.form("direct") as f:
        i, a, b, c = (f.index("i", 1, l), *(f.index(x, 1, d) for x in "ab"), f.index("c", 1, w))
        G, H, e = f.index("G", 1, g), f.index("H", 1, n / g), f.index("e", 1, n * w)
        k = f.index("k", 1, g * w)
        v, q, s = f.array("v", l, n * w), f.array("q", l, g * w), f.array("s", l, n)
        v[i, e] = cm.sum_(x[i, a] * V[a, e], over=a)
        q[i, k] = cm.sum_(x[i, a] * K[a, k], over=a)
        head = (G - 1) * (n / g) + H
        s[i, head] = cm.sum_(v[i, (head - 1) * w + c] * q[i, (G - 1) * w + c], over=c)
        j = f.index("j", 1, n)
        y[i, b] = cm.sum_(s[i, j], over=j) * x[i, b]
    return made


def test_an_index_may_be_flattened_twice() -> None:
    """Of g = 2 groups with n = 6 heads of w = 5: each head multiplies its 5 channels."""
    made = flattened_twice()
    assert all(proof.passed is not False for proof in prove(made))
    found = cm.count(made).at(l=7, d=3, n=6, g=2, w=5)
    assert found.mul == 7 * (3 * 30 + 3 * 10 + 6 * 5 + 3)


def test_a_flattening_within_one_that_is_too_wide_is_refused() -> None:
    """Channels up to w + 1 of heads that are w wide."""

    def too_wide(m: Any, f: Any, x: Any, y: Any) -> None:
        _, d, i, _, a = indices(m, f)
        w = m.sizes("w")[0]
        G, H, c = f.index("G", 1, d), f.index("H", 1, d), f.index("c", 1, w + 1)
        W = m.parameter("W", d * d * w)
        y[i, a] = cm.sum_(W[((G - 1) * d + H - 1) * w + c], over=(G, H, c)) * x[i, a]

    with pytest.raises(EquationError, match=r"^an index of W: index .* multiplies an index"):
        mixer(too_wide)


def test_the_shortest_wrong_sequence_is_found_in_few_tries() -> None:
    tried: list[int] = []

    def apart(sizes: Sizes) -> str:
        tried.append(sizes["l"])
        return "wrong" if sizes["l"] > 64 else ""

    found = first_apart(cm.mixer("self-attention"), apart, [{"l": 67, "d": 2, "n": 1}])
    assert found == ({"l": 65, "d": 1, "n": 1}, "wrong")
    assert len(tried) < 100


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda x: cm.function("log", -x * x), "does not run: log has no value at -"),
        (lambda x: x / (x - x), "does not run: y: float division by zero at sizes l=1, d=1"),
        (lambda x: cm.function("rsqrt", x - x), "does not run: y: float division by zero at sizes"),
        (lambda x: cm.exp(x + 10000), "has an output that is not finite at l = 1, d = 1"),
        (lambda x: cm.exp(x + 10000) - cm.exp(x + 10000), "has an output that is not finite"),
    ],
)
def test_a_form_without_finite_numbers_is_not_well_formed(
    value: Callable[[Any], Any], why: str
) -> None:
    def write(m: Any, f: Any, x: Any, y: Any) -> None:
        _, _, i, _, a = indices(m, f)
        y[i, a] = value(x[i, a])

    (proof,) = prove(mixer(write))
    assert proof.passed is False and why in proof.detail


@pytest.mark.parametrize(
    ("one", "two", "differ"),
    [
        ([1.0, np.nan], [1.0, np.nan], True),
        ([np.inf, 2.0], [1.0, 2.0], True),
        ([np.inf, 2.0], [np.inf, 3.0], True),
        ([np.inf, 2.0], [np.inf, 2.0 + 1e-12], False),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_forms_differ_in_numbers_that_are_not_finite(
    one: list[float], two: list[float], differ: bool
) -> None:
    assert _differ(np.array(one), np.array(two)) is differ
