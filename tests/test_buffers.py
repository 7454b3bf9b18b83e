"""Do proofs and modules use the values of a buffer?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import costmodel as cm
from costmodel import EquationError
from costmodel.language.buffers import buffer_values
from costmodel.language.macros.positions import rotary
from costmodel.oracle.execute import execute, random_arrays
from costmodel.proofs.check import prove
from profiler.proofs.equality import prove_mixer


def retention(decay: Any, powers: Any) -> cm.Mixer:
    """One head of retention, by powers of a decay and by a recurrence.

    Sun et al. 2023, arXiv 2307.08621, eqs. (5) and (6), without projections.
    """
    made = cm.Mixer("retention")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    D, gamma = made.buffer("D", l, l, value=powers), made.buffer("gamma", 1, value=decay)
    with made.form("parallel") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        j = f.index("j", 1, i)
        A = f.array("A", l, l)
        A[i, j] = cm.sum_(x[i, a] * x[j, a], over=a) * D[i, j]
        y[i, b] = cm.sum_(A[i, j] * x[j, b], over=j)
    with made.form("recurrent") as f:
        i, a, b, t = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d), f.index("t", 2, l)
        S = f.array("S", l, d, d)
        S[1, a, b] = x[1, a] * x[1, b]
        S[t, a, b] = gamma[1] * S[t - 1, a, b] + x[t, a] * x[t, b]
        y[i, b] = cm.sum_(x[i, a] * S[i, a, b], over=a)
    return made


def power(i: int, j: int, sizes: Any) -> float:
    return 0.75 ** (i - j)


def test_forms_that_need_the_values_are_equal() -> None:
    (equal,) = [
        p for p in prove(retention((0.75,), power)) if p.name == "recurrent: equals parallel"
    ]
    assert equal.passed
    (apart,) = [
        p for p in prove(retention((0.5,), power)) if p.name == "recurrent: equals parallel"
    ]
    assert apart.passed is False


def test_values_are_no_cost() -> None:
    for form in ("parallel", "recurrent"):
        with_values, without = retention((0.75,), power), retention(None, None)
        for ask in (cm.count, cm.span, cm.traffic):
            assert str(ask(with_values, form=form)) == str(ask(without, form=form))


def test_evaluate_takes_the_values_unless_others_are_given() -> None:
    made, sizes = retention((0.75,), power), {"l": 3, "d": 2}
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    decay = np.array([[0.75 ** (i - j) if i >= j else 0 for j in range(3)] for i in range(3)])
    found = cm.evaluate(made, {"x": x}, sizes)
    assert found.dtype == np.float32
    assert np.allclose(found, (x @ x.T * decay) @ x, rtol=1e-6)
    assert np.allclose(cm.evaluate(made, {"x": x, "D": np.zeros((3, 3))}, sizes), 0)
    run = execute(made.forms["recurrent"], sizes)
    assert np.allclose(run.output, cm.evaluate(made, run.arrays, sizes, "parallel"))


def test_rotations_and_an_order_of_rows() -> None:
    """Rotary embedding of the rows in reverse order, by tables of values and of positions."""
    made = cm.Mixer("turned")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)

    def angle(i: int, c: int, sizes: dict[str, int]) -> float:
        return float(i * 10_000.0 ** (-2 * ((c - 1) % (sizes["d"] // 2)) / sizes["d"]))

    cos = made.buffer("cos", l, d, value=lambda i, c, sizes: np.cos(angle(i, c, sizes)))
    sin = made.buffer("sin", l, d, value=lambda i, c, sizes: np.sin(angle(i, c, sizes)))
    back = made.buffer("back", l, below=l, value=lambda i, sizes: sizes["l"] + 1 - i)
    with made.form("direct") as f:
        i, c, p = f.index("i", 1, l), f.index("c", 1, d), f.index("p", 1, d / 2)
        z = f.array("z", l, d)
        z[i, c] = x[back[i], c]
        y[i, c] = rotary(z[i, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c])
    sizes = {"l": 3, "d": 4}
    x_values = np.random.default_rng(0).normal(size=(3, 4))
    pairs = (x_values[::-1, :2] + 1j * x_values[::-1, 2:]) * np.exp(
        1j * np.arange(1, 4)[:, None] * 10_000.0 ** (-np.arange(2) / 2)
    )
    found = cm.evaluate(made, {"x": x_values}, sizes)
    assert np.allclose(found, np.hstack([pairs.real, pairs.imag]))


def test_values_that_do_not_fit_are_refused() -> None:
    made = cm.Mixer("bad")
    (l,) = made.sizes("l")
    table = made.buffer("table", l, value=[1.0, 2.0])
    far = made.buffer("far", l, below=l, value=lambda i, sizes: i + 1)
    assert list(buffer_values(table, {"l": 2})) == [1.0, 2.0]
    with pytest.raises(
        EquationError, match=r"the table of table has shape \(2,\): expected \(3,\)"
    ):
        buffer_values(table, {"l": 3})
    with pytest.raises(EquationError, match=r"far\[3\] is 4: expected a position in 1\.\.3"):
        buffer_values(far, {"l": 3})
    wide = made.buffer("wide", l, below=l, value=lambda i, sizes: 2**70)
    with pytest.raises(EquationError, match=r"wide has the number 118\d+ at \(1\), .* below 2\^63"):
        buffer_values(wide, {"l": 3})
    with pytest.raises(
        EquationError, match=r"table2 has the number 118\d+ at \(2\), .* below 2\^63"
    ):
        made.buffer("table2", l, below=l, value=[1, 2**70])
    with pytest.raises(EquationError, match="the table of rows has rows of different lengths"):
        made.buffer("rows", l, l, value=[[1, 2], [3]])
    with pytest.raises(EquationError, match="the table of rows has rows of different lengths"):
        made.buffer("rows", l, l, value=[np.ones((2, 2)), np.ones((2, 3))])


def test_proofs_take_the_values() -> None:
    arrays = random_arrays(retention((0.75,), power).forms["parallel"], {"l": 2, "d": 1})
    assert arrays["D"].tolist() == [[1, 0.75**-1], [0.75, 1]] and arrays["gamma"] == [0.75]


HELD = """
import torch
import costmodel as cm
from profiler.modules import Mixer, implementation

m = cm.Mixer("NAME")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
gamma = m.buffer("gamma", d, value=lambda c, sizes: 0.5 ** c)
with m.form("direct") as f:
    i, c = f.index("i", 1, l), f.index("c", 1, d)
    y[i, c] = x[i, c] * gamma[c]


@implementation("NAME")
class Scaled(Mixer):
    def __init__(self, *, d, l, device=None, dtype=None):
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.register_buffer("gamma", 0.5 ** torch.arange(1, d + 1, device=device, dtype=dtype))

    def initial_state(self, batch, length=None):
        return None

    def mix(self, x):
        return x * self.gamma

    def advance(self, x_t, state):
        return x_t * self.gamma
"""


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("held", "", "", ""),
        (
            "other",
            "torch.arange(1, d + 1",
            "torch.arange(0, d + 0",
            "gamma[1] is 1, the equations' is 0.5",
        ),
        (
            "in-fp32",
            "0.5 ** torch",
            "(0.5 + 2**-24) ** torch",
            "gamma[1] is 0.5000001, the equations' is 0.5 (a difference of 6e-08): the module has "
            "it in fp32, fill it in float64",
        ),
        ("wide", "d + 1, device", "d + 2, device", "buffer gamma is (2,), the equations' is (1,)"),
        ("given-by-the-module", ", value=lambda c, sizes: 0.5 ** c", "", ""),
        (
            "by-nobody",
            ", value=lambda c, sizes: 0.5 ** c",
            "",
            "gamma has no values in the equations",
        ),
    ],
)
def test_a_module_s_buffer_is_held_against_the_equations(
    name: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = HELD.replace("NAME", name).replace(old, new) if old else HELD.replace("NAME", name)
    if name == "by-nobody":
        text = text.replace('"gamma", 0.5', '"decay", 0.5').replace("self.gamma", "self.decay")
    file = tmp_path / f"{name.replace('-', '_')}.py"
    file.write_text(text)
    proofs = {proof.name: proof for proof in prove_mixer(cm.mixer(f"{file}:m"))}
    (equal,) = [proof for key, proof in proofs.items() if key.endswith("module equals equations")]
    assert equal.passed is (not said), equal.detail
    assert said in equal.detail


@pytest.mark.parametrize(
    ("entry", "came"),
    [
        ('"no"', "the string 'no'"),
        ('float("nan")', "the number nan"),
        ("None", "nothing (None)"),
        ('exec(\'raise type("E", (Exception,), {"__str__": lambda self: 3})\')', "the error E"),
        ("1 / (i - j)", "the error ZeroDivisionError: division by zero"),
    ],
)
def test_an_entry_that_is_no_number_is_told(
    entry: str, came: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "entries.py"
    path.write_text(f"""import costmodel as cm
m = cm.Mixer("entries")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
I = m.buffer("I", l, l, value=lambda i, j, sizes: {entry})
with m.form("direct") as f:
    i, j, a = f.index("i", 1, l), f.index("j", 1, l), f.index("a", 1, d)
    y[i, a] = cm.sum_(I[i, j] * x[j, a], over=j)
""")
    assert cli.run(["check", f"{path}:m"]) == 1
    said = f"the table of I has {came} at (1, 1), expected a finite number ({path}, line 5)"
    assert said in capsys.readouterr().out
