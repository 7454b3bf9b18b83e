"""Does `check` find work that the description lacks, and a state that holds too much?"""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodel as cm
from profiler.modules import implementations
from profiler.proofs.equality import state_equals, step_equals
from tests.profiler.test_check import EQUATIONS_HOLD, MODULE, STATE, STEP, WORK, checked, verdicts
from tests.user_mixers import Change

WORKS_OTHERWISE: dict[str, tuple[tuple[Change, ...], str]] = {
    "adds-nothing": (
        (("return s @ self.W_out", "return s @ self.W_out + 0"),),
        "at l = 1, d = 1, w = 1: forward of a batch of 2 dispatches +2 add beyond its description "
        "(form 'direct', rewrites: none); where it means to, describe it by rewrites= or form= of "
        "@implementation",
    ),
    "scales-in-step": (
        ((".sum(1) @ self.W_out", ".sum(1) @ (self.W_out * 2 / 2)"),),
        "at l = 1, d = 1, w = 1: step at token 1 of a batch of 2 dispatches +1 mul, +1 div beyond "
        "its description (form 'direct', rewrites: none); where it means to, describe it by "
        "step_rewrites= or step_form= of @implementation",
    ),
    "described-as-dense": (
        (('@implementation("NAME")', '@implementation("NAME", rewrites=("dense",))'),),
        "at l = 2, d = 1, w = 1: forward of a batch of 2 dispatches -",
    ),
}


@pytest.mark.parametrize("name", WORKS_OTHERWISE)
def test_work_that_the_description_does_not_have_fails(name: str, tmp_path: Path) -> None:
    changes, begins = WORKS_OTHERWISE[name]
    proofs = checked(tmp_path, name, *changes)
    assert verdicts(proofs) == {
        **EQUATIONS_HOLD, MODULE: True, WORK: False, STATE: True, STEP: True,
    }  # fmt: skip
    assert proofs[WORK].detail.startswith(begins)


def test_an_operation_without_a_rule_is_not_checked(tmp_path: Path) -> None:
    change = ("return s @ self.W_out", "s.i0_; s.clone().i0_(); return s @ self.W_out")
    proof = checked(tmp_path, "without-a-rule", change)[WORK]
    assert (proof.passed, proof.detail) == (None, "no counting rule for aten::i0_")


WHOLE_PAST: tuple[Change, ...] = (
    (
        'State({"x": self.w_win.new_zeros(batch, self.w - 1, self.d)}, sliding=True)',
        'State({"x": self._rows(batch, length, self.d)})',
    ),
    ('torch.cat([state.held("x"), x_t', 'torch.cat([state.held("x")[:, -self.w :], x_t'),
    (".flip(1)\n", ".flip(1)[:, : self.w]\n"),
)


def test_a_state_that_holds_more_than_later_tokens_need(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "whole-past", *WHOLE_PAST)
    assert verdicts(proofs) == {
        **EQUATIONS_HOLD, MODULE: True, WORK: True, STATE: False, STEP: True,
    }  # fmt: skip
    assert proofs[STATE].detail == (
        "at l = 1, d = 1, w = 1: after token 1 the state holds 1 elements for one sequence, later "
        "tokens need 0 (of x)"
    )


def test_a_state_of_another_kind_is_not_checked(tmp_path: Path) -> None:
    bare = (
        "class Rows:\n    def __init__(self, rows):\n        self.rows = rows\n\n\n"
        '@implementation("NAME")'
    )
    proofs = checked(
        tmp_path,
        "rows-alone",
        ('@implementation("NAME")', bare),
        ('State({"x": self.w_win', "Rows(self.w_win"),
        ("self.w - 1, self.d)}, sliding=True)", "0, self.d))"),
        ("def advance", "def step"),
        ('torch.cat([state.held("x"), x_t.unsqueeze(1)], 1).flip(1)',
         "torch.cat([state.rows, x_t.unsqueeze(1)], 1)[:, -self.w :].flip(1)"),
        ("state.append(x=x_t)", "state.rows = held.flip(1)"),
        ("class Window(Mixer)", "class Window(torch.nn.Module)"),
        ("super().__init__(d=d, l=l, device=device, dtype=dtype)",
         "super().__init__(); self.d = d"),
        ("self.weight(w, d)", "torch.nn.Parameter(torch.empty(w, d))"),
        ("self.weight(d, d)", "torch.nn.Parameter(torch.empty(d, d))"),
        ("def mix", "def forward"),
    )  # fmt: skip
    assert (proofs[WORK].passed, proofs[STEP].passed) == (True, True)
    assert proofs[STATE].passed is None
    assert proofs[STATE].detail.startswith(
        "its state has no `elements`: let initial_state return a"
    )


CARRIED = """
import torch
import costmodel as cm
from profiler.modules import State, implementation

m = cm.Mixer("carried-CARRIED")
l, d, n, K, V = m.sizes("l d n K V")
x, y = m.input("x", l, d), m.output("y", l, d)
W, U, R = m.parameter("W", d, n, K), m.parameter("U", d, n, V), m.parameter("R", n, K, V, d)
with m.form("direct") as f:
    i, t, a, b = f.index("i", 1, l), f.index("t", 2, l), f.index("a", 1, d), f.index("b", 1, d)
    j, c, e = f.index("j", 1, n), f.index("c", 1, K), f.index("e", 1, V)
    k, v = f.array("k", l, n, K), f.array("v", l, n, V)
    S = f.array("S", l, n, K, V)
    k[i, j, c] = cm.sum_(x[i, a] * W[a, j, c], over=a)
    v[i, j, e] = cm.sum_(x[i, a] * U[a, j, e], over=a)
    S[1, j, c, e] = k[1, j, c] * v[1, j, e]
    S[t, j, c, e] = S[t - 1, j, c, e] + k[t, j, c] * v[t, j, e]
    y[i, b] = cm.sum_(S[i, j, c, e] * R[j, c, e, b], over=(j, c, e))


@implementation("carried-CARRIED")
class Carried(torch.nn.Module):
    def __init__(self, *, d, n, K, V):
        super().__init__()
        self.W = torch.nn.Parameter(torch.empty(d, n, K))
        self.U = torch.nn.Parameter(torch.empty(d, n, V))
        self.R = torch.nn.Parameter(torch.empty(n, K, V, d))

    def products(self, x):
        k, v = (torch.einsum("...a,ajc->...jc", x, w) for w in (self.W, self.U))
        return k.unsqueeze(-1) * v.unsqueeze(-2)

    def forward(self, x):
        return torch.einsum("bljce,jced->bld", self.products(x).cumsum(1), self.R)

    def initial_state(self, batch, length):
        return State({"S": self.R.new_zeros(batch, *self.R.shape[:-1])}, STATE)

    def step(self, x_t, state):
        S = self.products(x_t)
        if state.position:
            S = state.arrays["S"] + S
        if state.carried:
            state.append(S=S)
        else:
            state.arrays["S"].copy_(S)
            state.position += 1
        return torch.einsum("bjce,jced->bd", S, self.R)
"""


@pytest.mark.parametrize("said", ["sliding=True", "carried=('S',)"])
def test_a_state_of_any_shape_is_said_to_be_carried(said: str, tmp_path: Path) -> None:
    """(batch, heads, keys, values), which has no axis of tokens; what is said works."""
    text = CARRIED.replace("STATE", said).replace("CARRIED", said[:3])
    (tmp_path / "carried.py").write_text(text, encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path / 'carried.py'}:m")
    (described,) = implementations(mixer).values()
    assert step_equals(mixer, described).passed
    proof = state_equals(mixer, described)
    assert proof.passed is (said != "sliding=True"), proof.detail
    if not proof.passed:
        assert proof.detail.endswith("say State(..., carried=('S',))")
