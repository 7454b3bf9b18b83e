"""Are right modules of a user's own that call torch's norms and softmax explained, with no hint?"""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_layer_norm_of_torch_is_dispatched_as_the_equations_count(tmp_path: Path) -> None:
    call = "F.layer_norm(x @ self.W, (self.d,), self.g, self.o)"
    path = mixer_file(tmp_path, "normed", "layer_norm(u[i, b], over=b)", "", call)
    proofs = {proof.name: proof for proof in prove_mixer(cm.mixer(f"{path}:normed"))}
    assert proofs["direct: dispatched equals executed"].passed, proofs


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
