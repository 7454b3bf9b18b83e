"""What do answers return at sizes that are arrays, inconsistent or unknown?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy

import costmodel as cm
from costmodel.errors import EquationError, SizeError
from costmodel.networks import model
from costmodel.program.chosen_sizes import compound_quotients, divisors
from costmodel.proofs.against_oracle import differences

SIZES = {"d": 6, "n": 2, "t": 3}

ASKED: dict[str, Callable[[], Any]] = {
    name: lambda name=name: getattr(cm, name)(cm.mixer("self-attention"))  # type: ignore[misc]
    for name in (
        "count", "span", "sequential", "path_length", "state", "parameters", "activations", "peak",
        "traffic",
    )
}  # fmt: skip
ASKED["entries moved"] = lambda: cm.traffic(cm.mixer("self-attention")).compulsory
ASKED["network"] = lambda: model("gpt-2").count("training")
ASKED["network's state"] = lambda: model("gpt-2").state()


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("lengths", [[1, 2, 4], np.array([[1, 2], [4, 1]]), np.array([5])])
def test_an_array_of_sizes_gives_an_array(name: str, lengths: Any) -> None:
    answer = ASKED[name]()
    found = answer.at(l=lengths, **SIZES)
    for where in np.ndindex(np.shape(lengths)):
        one = answer.at(l=int(np.asarray(lengths)[where]), **SIZES)
        assert _numbers(found, where) == _numbers(one, None)


def _numbers(answer: Any, where: tuple[int, ...] | None) -> Any:
    if isinstance(answer, dict):
        return {name: _numbers(value, where) for name, value in answer.items()}
    if hasattr(answer, "by_class"):
        return _numbers({**answer.by_class(), "all": answer.total}, where)
    return answer if where is None else answer[where]


def test_arrays_are_broadcast_and_numpy_integers_taken() -> None:
    count: Any = ASKED["count"]()
    grid = count.at(l=np.array([1, 2])[:, None], d=[2, 4, 8], n=np.int64(2)).total
    assert grid.shape == (2, 3)
    assert grid[1, 2] == count.at(l=2, d=8, n=2).total
    assert isinstance(count.at(l=np.int64(4), d=4, n=2).total, int)
    assert count.at(l=4, d=6, n=2, h=3) == count.at(l=4, d=6, n=2)


def test_a_sum_of_classes_stays_exact_where_no_class_is_large() -> None:
    """Multiplications and additions fit int64 each, and their sum does not."""
    count: Any = cm.count(cm.mixer("she"))
    one, found = count.at(l=60_000, d=2**16), count.at(l=[1, 60_000], d=2**16)
    assert one.mul < 2**63 < one.total
    assert found.mul.dtype == np.int64 and found.total[1] == one.total
    assert count.at(l=[1, 2], d=2).total.dtype == np.int64


def test_large_numbers_stay_exact() -> None:
    count: Any = cm.count(cm.mixer("she"))
    found = count.at(l=[2, 2**30], d=2**20).mul
    assert list(found) == [count.at(l=long, d=2**20).mul for long in (2, 2**30)]
    assert found[1] > 2**64


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"d": 128, "n": 7}, "needs d/n to be whole, got 128/7 .*; choose d divisible by n"),
        ({"zz": 3}, "unknown size 'zz': the letters are b, l, "),
        ({"l": 4.0}, "size l must be a positive integer, got 4.0"),
        ({"l": "4"}, "size l must be a positive integer, got '4'"),
        ({"l": 0}, "size l must lie in 1..2\\*\\*40, got 0"),
        ({"h": 2}, "size h is d/n: give d and n, not h = 2"),
        ({"l": [1, 2], "b": [1, 2, 3]}, "shapes that do not broadcast: "),
        ({"l": []}, "the array of size l is empty"),
        ({"l": np.array([4.5, 2])}, "size l must be a positive integer, got 4.5"),
        ({"l": np.array([2, -4])}, r"size l must lie in 1..2\*\*40, got -4"),
        ({"l": [[1, 2], [3]]}, "size l must be a positive integer or an array of such, got lists"),
    ],
)
def test_sizes_that_cannot_be_are_refused(name: str, sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(SizeError, match=said):
        ASKED[name]().at(**{"l": 4, **SIZES, **sizes})


def test_of_sizes_that_divide_in_a_row_the_first_that_does_not_is_named() -> None:
    """g divides n and n divides d: 3 divides neither 8 nor 128, and no other d would help."""
    count: Any = cm.count(cm.mixer("self-attention+grouped"))
    with pytest.raises(SizeError, match=r"needs n/g to be whole, got 8/3 .* n divisible by g"):
        count.at(d=128, l=4, n=8, g=3)


def test_a_product_of_sizes_over_another_is_whole_or_refused() -> None:
    with pytest.raises(SizeError, match=r"needs d\*v/n to be whole, got 8/3"):
        cm.parameters(cm.mixer("vlsa-trained")).at(d=8, n=3, v=1, l=4)


def test_a_size_that_lacks_is_named() -> None:
    with pytest.raises(SizeError, match="no value for size n"):
        cm.count(cm.mixer("self-attention")).at(l=4, d=8)


def test_expressions_take_letters_as_subs_of_sympy() -> None:
    found = cm.count(cm.mixer("self-attention"))
    assert found.mul.subs({"l": 2, "d": 3}) == found.at(l=2, d=3, n=1).mul
    assert found.mul.subs(sympy.Symbol("l"), 0) == 0
    assert found.subs({"l": 2}, d=3, n=1) == found.at(l=2, d=3, n=1).total
    assert str(cm.state(cm.mixer("self-attention")).subs(t="l")) == "2*d*l"
    with pytest.raises(SizeError, match="unknown size 'zz'"):
        found.subs(zz=3)


def test_expressions_take_the_letters_that_a_mixer_brings() -> None:
    mamba = cm.mixer("mamba-2")
    found = cm.count(mamba)
    assert found.subs(P=64) == found.expr.subs({"P": 64})
    assert cm.state(cm.mixer("self-attention")).subs(d=2) == 4 * cm.symbols("t")
    with pytest.raises(SizeError, match="unknown size 'P'"):
        cm.count(cm.mixer("she")).subs(P=64)


def test_symbols_stand_in_the_formulas() -> None:
    l, d = cm.symbols("l, d")
    she = cm.count(cm.mixer("she"))
    assert she.expr.free_symbols == {l, d}
    assert she.mul.subs({l: 3, d: 2}) == she.at(l=3, d=2).mul
    assert cm.symbols("P", cm.mixer("mamba-2")) in cm.count(cm.mixer("mamba-2")).expr.free_symbols
    assert cm.span(cm.mixer("me")).expr.subs(l, 128) == cm.span(cm.mixer("me")).at(l=128)


@pytest.mark.parametrize(
    ("letters", "said"),
    [
        ("l P", "unknown size 'P': the letters are b, l, "),
        ("ld", "unknown size 'ld'"),
        (" ", "expected size letters, such as 'l d', got the string ' '"),
        (3, "expected size letters, such as 'l d', got the number 3"),
    ],
)
def test_a_letter_that_is_no_size_is_told(letters: Any, said: str) -> None:
    with pytest.raises(SizeError, match=said):
        cm.symbols(letters)


@pytest.mark.parametrize("name", ["count", "span", "critical_path", "state", "traffic", "peak"])
def test_a_name_in_place_of_a_mixer_is_told(name: str) -> None:
    with pytest.raises(EquationError, match=r"expected a mixer, such as cm.mixer\('she'\), got"):
        getattr(cm, name)("she")


def test_a_mixer_in_place_of_an_answer_is_told() -> None:
    answer = r"expected an answer, such as cm.count\(cm.mixer\('she'\)\).exact_total, got the mixer"
    with pytest.raises(EquationError, match=answer):
        cm.order(cm.mixer("she"))  # type: ignore[arg-type]  # a mistake of a user


def test_an_extent_below_one_is_told_as_no_whole_number() -> None:
    """No size stands above the line of 1/(n r)."""
    mixer = cm.Mixer("quotient")
    l, d, n, r = mixer.sizes("l d n r")
    x, y, w = (
        mixer.input("x", l, d),
        mixer.output("y", l, d),
        mixer.parameter("w", d, d / (d * n * r)),
    )
    with mixer.form("direct") as form:
        i, a, q = form.index("i", 1, l), form.index("a", 1, d), form.index("q", 1, d / (d * n * r))
        y[i, a] = cm.sum_(x[i, a] * w[a, q], over=q)
    with pytest.raises(SizeError, match=r"needs 1/\(n\*r\) to be whole, got 1/6"):
        cm.count(mixer).at(l=3, d=2, n=2, r=3)
    assert compound_quotients(mixer) == {}


@pytest.mark.parametrize("ring", [["d", "n"], ["d", "n", "r"]])
def test_sizes_that_divide_each_other_are_equal(ring: list[str]) -> None:
    """d/n and n/d, or d/n, n/r and r/d: the last quotient gives no further divisor."""
    mixer = cm.Mixer("ring")
    named = dict(zip("ldnr", mixer.sizes("l d n r"), strict=True))
    x, y = mixer.input("x", named["l"], named["d"]), mixer.output("y", named["l"], named["d"])
    quotients = [named[x] / named[by] for x, by in zip(ring, [*ring[1:], "d"], strict=True)]
    with mixer.form("direct") as form:
        i, a = form.index("i", 1, named["l"]), form.index("a", 1, named["d"])
        value = x[i, a] * 1
        for k, quotient in enumerate(quotients):
            w, q = mixer.parameter(f"w{k}", quotient), form.index(f"q{k}", 1, quotient)
            value = value * cm.sum_(w[q], over=q)
        y[i, a] = value
    assert len(divisors(mixer)) == len(quotients) - 1
    assert differences(mixer, {"l": 3, "d": 2, "n": 2, "r": 2}) == []
    with pytest.raises(SizeError, match="to be whole, got 1/2"):
        cm.count(mixer).at(l=3, d=4, n=2, r=2)


def test_a_bound_of_an_equation_of_gradients_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from costmodel import Mixer, sum_\n"
        "mixer = Mixer('mine')\n"
        "l, d, n = mixer.sizes('l d n')\n"
        "x, y, w = (mixer.input('x', l, d), mixer.output('y', l, d),"
        " mixer.parameter('w', d, d / (d * n)))\n"
        "with mixer.form('direct') as form:\n"
        "    i, a, q = (form.index('i', 1, l), form.index('a', 1, d),"
        " form.index('q', 1, d / (d * n)))\n"
        "    y[i, a] = sum_(x[i, a] * w[a, q], over=q)\n",
        encoding="utf-8",
    )
    assert cm.peak(cm.mixer(f"{path}:mine"), "backward").at(l=3, d=2, n=1) == 18
