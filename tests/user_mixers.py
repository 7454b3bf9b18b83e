"""Which user's mixer do the tests take, and how does a test write it with one mistake?

A gated sum over a sliding window: w rows back, one weight per distance and channel.
"""

from __future__ import annotations

from pathlib import Path

WINDOW = '''"""s[i] = a weighted sum of the last w rows, y = s W_out."""
import torch
import costmodel as cm
from profiler.modules import Mixer, State, implementation

m = cm.Mixer("NAME", title="Window")
l, d, w = m.sizes("l d w")
x, y = m.input("x", l, d), m.output("y", l, d, cite="(2)")
w_win, W_out = m.parameter("w_win", w, d), m.parameter("W_out", d, d)
with m.form("direct") as f:
    i = f.index("i", 1, l)
    j = f.index("j", cm.max_(1, i - w + 1), i)
    a, b = f.index("a", 1, d), f.index("b", 1, d)
    s = f.array("s", l, d, cite="(1)")
    s[i, b] = cm.sum_(x[j, b] * w_win[i - j + 1, b], over=j)
    y[i, b] = cm.sum_(s[i, a] * W_out[a, b], over=a)


@implementation("NAME")
class Window(Mixer):
    def __init__(self, *, d, l, w, device=None, dtype=None):
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.w = w
        self.w_win = self.weight(w, d)
        self.W_out = self.weight(d, d)

    def initial_state(self, batch, length=None):
        return State({"x": self.w_win.new_zeros(batch, self.w - 1, self.d)}, sliding=True)

    def mix(self, x):
        s = x * self.w_win[0]
        for lag in range(1, min(self.w, x.shape[1])):
            s[:, lag:] += x[:, :-lag] * self.w_win[lag]
        return s @ self.W_out

    def advance(self, x_t, state):
        held = torch.cat([state.held("x"), x_t.unsqueeze(1)], 1).flip(1)
        state.append(x=x_t)
        return (held * self.w_win[: held.shape[1]]).sum(1) @ self.W_out
'''

Change = tuple[str, str]

PLAIN: tuple[Change, ...] = (
    ("class Window(Mixer)", "class Window(torch.nn.Module)"),
    ("super().__init__(d=d, l=l, device=device, dtype=dtype)", "super().__init__()"),
    ("self.weight(w, d)", "torch.nn.Parameter(torch.empty(w, d))"),
    ("self.weight(d, d)", "torch.nn.Parameter(torch.empty(d, d))"),
    ("def mix", "def forward"),
    ("def advance", "def _advance"),
)
"""The window's module as a torch.nn.Module without a step."""


def changed(*changes: Change, text: str = WINDOW) -> str:
    """The text with each first string, which must occur in it, replaced by the second."""
    for old, new in changes:
        assert old in text, f"the mixer of the tests no longer holds {old!r}"
        text = text.replace(old, new)
    return text


def written(folder: Path, name: str, *changes: Change) -> str:
    """`FILE.py:NAME` of the window mixer in a file of its own, with these changes.

    Names of mixers are shared by a process, so every test takes another one.
    """
    path = folder / f"{name.replace('-', '_')}.py"
    path.write_text(changed(*changes).replace("NAME", name), encoding="utf-8")
    return f"{path}:{name}"
