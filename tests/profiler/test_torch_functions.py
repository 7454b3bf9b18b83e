"""Are correct user modules that call torch's norms and softmax explained without hints?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import costmodel as cm
from profiler.proofs.equality import prove_mixer
from tests.typed import Capture, printed

MAPPED = '''"""y = a function of x W along each row."""
import torch
import torch.nn.functional as F
import costmodel as cm
from costmodel.language.macros.norms import layer_norm
from profiler.modules import SequenceMixer, implementation

m = cm.Mixer("NAME", title="Mapped")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d, cite="(1)")
W = m.parameter("W", d, d)
g, o = m.parameter("g", d), m.parameter("o", d)
with m.form("direct") as f:
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    u, v = f.array("u", l, d), f.array("v", l, d)
    u[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
    v[i, b] = EQUATION
    y[i, b] = v[i, b] * g[b] + o[b]


@implementation("NAME"REWRITES)
class Mapped(SequenceMixer):
    def __init__(self, *, d, l, device=None, dtype=None):
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.W, self.g, self.o = self.weight(d, d), self.weight(d), self.weight(d)

    def mix(self, x):
        return CALL
'''


def mixer_file(folder: Path, name: str, equation: str, rewrites: str, call: str) -> Path:
    path = folder / f"{name}.py"
    text = MAPPED.replace("EQUATION", equation).replace("REWRITES", rewrites)
    path.write_text(text.replace("CALL", call).replace("NAME", name))
    return path


FOUR = '''"""Rows normalised in four ways, one after another, each followed by a linear map."""
import torch.nn.functional as F
import costmodel as cm
from costmodel.language.macros.norms import l2_norm, layer_norm, rms_norm
from profiler.modules import SequenceMixer, implementation

m = cm.Mixer("four", title="Four norms")
l, d, n = m.sizes("l d n")
x, y = m.input("x", l, d), m.output("y", l, d, cite="(1)")
W1, W2, W3, W4 = (m.parameter(f"W{k}", d, d) for k in (1, 2, 3, 4))
g1, o1, g2, g3, o3 = (m.parameter(name, d) for name in ("g1", "o1", "g2", "g3", "o3"))
with m.form("direct") as f:
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    j, c = f.index("j", 1, n), f.index("c", 1, d / n)
    p, q, r, s, u, v, w = (f.array(name, l, d) for name in "pqrsuvw")
    e = (j - 1) * (d / n) + c
    p[i, b] = layer_norm(x[i, b], over=b, gain=g1[b], bias=o1[b])
    u[i, b] = cm.sum_(p[i, a] * W1[a, b], over=a)
    q[i, b] = rms_norm(u[i, b], over=b, gain=g2[b])
    v[i, b] = cm.sum_(q[i, a] * W2[a, b], over=a)
    r[i, e] = layer_norm(v[i, e], over=c, gain=g3[e], bias=o3[e])
    w[i, b] = cm.sum_(r[i, a] * W3[a, b], over=a)
    s[i, b] = l2_norm(w[i, b], over=b)
    y[i, b] = cm.sum_(s[i, a] * W4[a, b], over=a)


@implementation("four")
class Four(SequenceMixer):
    def __init__(self, *, d, l, n, device=None, dtype=None):
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.n = n
        for k in (1, 2, 3, 4):
            setattr(self, f"W{k}", self.weight(d, d))
        for name in ("g1", "o1", "g2", "g3", "o3"):
            setattr(self, name, self.weight(d))

    def mix(self, x):
        u = F.layer_norm(x, (self.d,), self.g1, self.o1) @ self.W1
        v = F.rms_norm(u, (self.d,), self.g2) @ self.W2
        r = F.group_norm(v.flatten(0, 1), self.n, self.g3, self.o3).view(v.shape)
        return F.normalize(r @ self.W3, dim=-1) @ self.W4
'''


def four_norms(folder: Path, last: str = "@ self.W4") -> str:
    path = folder / "four.py"
    path.write_text(FOUR.replace("@ self.W4", last))
    return f"{path}:four"


def test_norms_of_torch_are_dispatched_as_the_equations_count(tmp_path: Path) -> None:
    proofs = {proof.name: proof for proof in prove_mixer(cm.mixer(four_norms(tmp_path)))}
    assert proofs["direct: module equals equations"].passed, proofs
    assert proofs["direct: dispatched equals executed"].passed, proofs


OF_NORMS = (
    "layer-norm-gradient", "mean-gradient", "square-gradient", "length-gradient",
    "comparison-gradient", "quotient-gradient",
)  # fmt: skip


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("phase", "names"),
    [("training", ()), ("backward", OF_NORMS), ("training-step", OF_NORMS)],
)
@pytest.mark.parametrize(
    ("l", "d", "n", "doctored"), [(5, 8, 2, False), (3, 12, 3, False), (3, 12, 3, True)]
)
def test_norms_of_torch_are_explained_and_a_product_more_is_not(
    tmp_path: Path, capsys: Capture, phase: str, names: tuple[str, ...], l: int, d: int, n: int,
    doctored: bool,
) -> None:  # fmt: skip
    """A product by 1 at every entry of the output, and one at every entry of its gradient."""
    mixer = four_norms(tmp_path, "@ self.W4 * 1.0" if doctored else "@ self.W4")
    sizes = ("--l", str(l), "--d", str(d), "--n", str(n))
    words = ("reconcile", mixer, *sizes, "--counts-only", "--phase", phase, "--format", "json")
    (ladder,) = json.loads(printed(capsys, *words))["ladders"]
    assert ladder["uncounted"] == []
    assert [cause["name"] for cause in ladder["causes"]] == ["norm=rsqrt", *names]
    more = l * d * (2 if phase == "training-step" else 1) if doctored else 0
    left = {name: number for name, number in ladder["unexplained"]["2-3"].items() if number}
    assert left == ({"mul": more} if more else {})
    assert not any(ladder["unexplained"]["1-2"].values())


@pytest.mark.parametrize(
    ("equation", "call"),
    [
        ("cm.maximum(cm.minimum(u[i, b], 8), -8)", ".clamp(-8, 8)"),
        ("cm.maximum(u[i, b], 1)", ".clamp(min=1)"),
        ("cm.minimum(u[i, b], 1)", ".clamp_max(1)"),
    ],
)
def test_the_gradient_of_a_bound_compares_again(
    tmp_path: Path, capsys: Capture, equation: str, call: str
) -> None:
    path = mixer_file(tmp_path, "bounded", equation, "", f"(x @ self.W){call} * self.g + self.o")
    words = ("reconcile", f"{path}:bounded", "--d", "5", "--l", "3", "--counts-only")
    out = json.loads(printed(capsys, *words, "--phase", "training-step", "--format", "json"))
    (ladder,) = out["ladders"]
    assert not ladder["unexplained"]["2-3"]["other"]
    assert [cause["name"] for cause in ladder["causes"]] == ["comparison-gradient"]


def test_the_gradient_of_a_softmax_is_explained_without_kernels(
    tmp_path: Path, capsys: Capture
) -> None:
    call = "torch.softmax(x @ self.W, -1) * self.g + self.o"
    rewrites = ', rewrites=("safe-softmax",)'
    path = mixer_file(tmp_path, "softened", "cm.softmax(u[i, b], over=b)", rewrites, call)
    words = ("reconcile", f"{path}:softened", "--d", "5", "--l", "3", "--seconds", "0.01")
    out = json.loads(printed(capsys, *words, "--phase", "training-step", "--format", "json"))
    (ladder,) = out["ladders"]
    assert ladder["uncounted"] == []
    assert all(not any(v for v in gap.values()) for gap in ladder["unexplained"].values())
    assert "softmax-gradient" in [cause["name"] for cause in ladder["causes"]]
