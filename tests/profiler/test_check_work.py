"""Does `check` find work that the description lacks, and a state that holds too much?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.program.conventions import PADDINGS
from profiler.modules import implementation, implementations
from profiler.modules.described import description_of, executed_counts
from profiler.proofs.equality import (
    dispatched_equals,
    module_equals,
    prove_mixer,
    state_equals,
    step_equals,
)
from tests.profiler.test_check import EQUATIONS_HOLD, MODULE, STATE, STEP, WORK, checked, verdicts
from tests.user_mixers import Change, written

pytestmark = pytest.mark.usefixtures("proven_once")

WORKS_OTHERWISE: dict[str, tuple[tuple[Change, ...], str]] = {
    "adds-nothing": (
        (("return s @ self.W_out", "return s @ self.W_out + 0"),),
        "at l = 1, d = 1, w = 1: forward of a batch of 2 dispatches 2 add more than its "
        "description (form 'direct', rewrites: none); if intended, describe these operations by "
        "rewrites= or form= of @implementation",
    ),
    "scales-in-step": (
        ((".sum(1) @ self.W_out", ".sum(1) @ (self.W_out * 2 / 2)"),),
        "at l = 1, d = 1, w = 1: step at token 1 of a batch of 2 dispatches 1 mul, 1 div more than "
        "its description (form 'direct', rewrites: none); if intended, describe these operations "
        "by step_rewrites= or step_form= of @implementation",
    ),
    "described-as-dense": (
        (('@implementation("NAME")', '@implementation("NAME", rewrites=("dense",))'),),
        "at l = 2, d = 1, w = 1: forward of a batch of 2 dispatches 4 mul, 4 add fewer than its "
        "description (form 'direct', rewrites: dense); ",
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


SQUARES = """
import torch
import costmodel as cm
from profiler.modules import implementation

m = cm.Mixer("squares")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
with m.form("direct") as f:
    i, r, a = f.index("i", 1, l), f.index("r", 2, l), f.index("a", 1, d)
    z = f.array("z", l, d)
    z[i, a] = x[i, a] * x[i, a]
    y[1, a] = x[1, a]
    y[r, a] = z[r, a] + x[r, a]


@implementation("squares", kernels={"z": "elementwise", "y": "elementwise"})
class Squares(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.cat([x[:, :1], x[:, 1:] * x[:, 1:] + x[:, 1:]], dim=1)
"""


def test_entries_that_nothing_reads_explain_missing_work(tmp_path: Path) -> None:
    """The equations are to be corrected, not the description of the module."""
    (tmp_path / "squares.py").write_text(SQUARES, encoding="utf-8")
    proofs = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/squares.py:m"))}
    assert proofs[MODULE].passed and proofs[WORK].passed is False
    assert proofs[WORK].detail.endswith(
        "dispatches 2 mul fewer than its description (form 'direct', rewrites: none); the "
        "equations define and count z[1, 1], which nothing reads: reduce the equation's range to "
        "the entries that are read"
    )


def test_entries_that_nothing_reads_explain_no_further_work(tmp_path: Path) -> None:
    text = SQUARES.replace("x[:, 1:] * x[:, 1:] +", "(x * x)[:, 1:] +").replace(
        "dim=1)", "dim=1) + 0.0"
    )
    (tmp_path / "squares.py").write_text(text, encoding="utf-8")
    proofs = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/squares.py:m"))}
    assert proofs[WORK].passed is False and " add more than its description" in proofs[WORK].detail
    assert "nothing reads" not in proofs[WORK].detail


PADDED: tuple[Change, ...] = (
    (
        "        s = x * self.w_win[0]\n"
        "        for lag in range(1, min(self.w, x.shape[1])):\n"
        "            s[:, lag:] += x[:, :-lag] * self.w_win[lag]\n",
        "        rows = torch.nn.functional.pad(x.transpose(1, 2), (self.w - 1, 0))\n"
        "        taps = self.w_win.flip(0).T.unsqueeze(1)\n"
        "        s = torch.nn.functional.conv1d(rows, taps, groups=self.d).transpose(1, 2)\n",
    ),
)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "rewrites", [(), ("dense",), ("padded",), ("padded-rows",), ("dense", "padded")], ids=",".join
)
def test_a_convolution_over_padded_rows_is_told_the_rewrites_that_explain_it(
    rewrites: tuple[str, ...], tmp_path: Path
) -> None:
    """The remedy that the message names, typed as it stands there, holds."""
    described = ('@implementation("NAME")', f'@implementation("NAME", rewrites={rewrites})')
    proof = checked(tmp_path, f"padded-{'-'.join(rewrites)}", *PADDED, described)[WORK]
    assert proof.passed is False
    (remedy,) = re.findall("; (rewrites=.*) explains the whole difference", proof.detail)
    again = (described[0], f'@implementation("NAME", {remedy})')
    proofs = checked(tmp_path, f"remedied-{'-'.join(rewrites)}", *PADDED, again)
    assert set(verdicts(proofs).values()) == {True}


def test_a_convolution_with_torchs_order_of_taps_pads_rows_beside_a_term(tmp_path: Path) -> None:
    """The last tap meets the newest row, and the row itself is added to the sum."""
    summed = ("w_win[i - j + 1, b], over=j)", "w_win[w - i + j, b], over=j) + x[i, b]")
    mixer = cm.mixer(written(tmp_path, "ordered", summed, *PADDED, (".flip(0)", ""), (
        "groups=self.d).transpose(1, 2)", "groups=self.d).transpose(1, 2) + x"
    )))  # fmt: skip
    found = replace(implementations(mixer)["direct"], rewrites=("dense", "padded-rows"))
    assert module_equals(mixer, found).passed
    assert dispatched_equals(mixer, found, step=False).passed


@pytest.mark.parametrize(
    ("rewrites", "step_rewrites", "remedy"),
    [
        ((), (), "rewrites=('safe-softmax', 'scale=mul')"),
        (("scale=folded",), ("scale=folded",), "rewrites=('safe-softmax', 'scale=mul')"),
        (
            ("safe-softmax", "scale=mul"),
            ("scale=folded",),
            "step_rewrites=('safe-softmax', 'scale=mul')",
        ),
        (
            ("dense",),
            ("scale=mul",),
            "rewrites=('safe-softmax', 'scale=mul'), step_rewrites=('safe-softmax', 'scale=mul')",
        ),
    ],
)
def test_fused_attention_is_told_every_rewrite_that_its_description_lacks(
    rewrites: tuple[str, ...], step_rewrites: tuple[str, ...], remedy: str
) -> None:
    mixer = cm.mixer("self-attention")
    right = implementations(mixer)["sdpa"]
    wrong = replace(right, rewrites=rewrites, step_rewrites=step_rewrites)
    proof = dispatched_equals(mixer, wrong, step=True)
    assert proof.detail.endswith(f"; {remedy} explains the whole difference")
    assert dispatched_equals(mixer, right, step=True).passed


def test_work_that_no_rewrites_explain_is_said_so(tmp_path: Path) -> None:
    """With what is left at the largest sizes: one addition more for each entry of the result."""
    proof = checked(tmp_path, "adds-nothing-more", *WORKS_OTHERWISE["adds-nothing"][0])[WORK]
    assert proof.detail.endswith(
        "@implementation; no rewrites that were tried explain the difference. The results equal "
        "the equations': the operations alone differ, and forward at l = 67, d = 2, w = 2, b = 2 "
        "dispatches 268 add (in aten::add, aten::add_) more. If they are meant, a form with the "
        "same operations, named by form=, explains them"
    )


def test_copies_are_named_with_the_operation_and_the_number_of_calls(tmp_path: Path) -> None:
    """Of the result, once. The module as it is copies nothing."""
    mixer = cm.mixer(
        written(tmp_path, "copies", ("return s @ self.W_out", "return (s @ self.W_out).clone()"))
    )
    proof = dispatched_equals(mixer, implementations(mixer)["direct"], step=False)
    assert proof.passed
    assert proof.detail.endswith(
        "; forward at l = 67, d = 2, w = 2 copies tensors: 1 aten::clone (of clone, contiguous, "
        "reshape)"
    )
    mixer = cm.mixer(written(tmp_path, "copies-nothing"))
    proof = dispatched_equals(mixer, implementations(mixer)["direct"], step=False)
    assert "copies" not in proof.detail


def test_work_that_differs_at_few_sizes_is_told_at_the_last_of_these(tmp_path: Path) -> None:
    """A module that takes a multiplication and an addition more for each entry of 5 tokens."""
    more = ("return s @", "s = s - 0 * s if s.shape[1] == 5 else s\n        return s @")
    mixer = cm.mixer(written(tmp_path, "five", more))
    proof = dispatched_equals(mixer, implementations(mixer)["direct"], step=False)
    assert "forward at l = 5, d = 2, w = 2, b = 2 dispatches 20 mul (in" in proof.detail


RUNNING = """
import torch
import costmodel as cm
from profiler.modules import implementation

NAME = cm.Mixer("NAME")
l, d = NAME.sizes("l d")
x, y = NAME.input("x", l, d), NAME.output("y", l, d)
with NAME.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    k = f.index("k", 1, i)
    y[i, a] = cm.max_over(x[k, a], over=k)


@implementation("NAME")
class Largest(torch.nn.Module):
    def __init__(self, *, l, d):
        super().__init__()

    def forward(self, x):
        return torch.cummax(x, 1).values
"""


def test_a_running_maximum_is_told_to_be_a_recurrence(tmp_path: Path) -> None:
    (tmp_path / "running.py").write_text(RUNNING.replace("NAME", "running"), encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path}/running.py:running")
    proof = dispatched_equals(mixer, implementations(mixer)["direct"], step=False)
    assert proof.detail.endswith(
        " 8,580 compare fewer. If they are meant, a form with the same operations, named by form=, "
        "explains them (aten::cummax: a recurrence, each row from the row before)"
    )


ONLINE = """
import torch
import costmodel as cm
from profiler.modules import implementation

NAME = cm.Mixer("NAME")
l, d = NAME.sizes("l d")
x, y, W = NAME.input("x", l, d), NAME.output("y", l, d), NAME.parameter("W", d, d)
with NAME.form("direct") as f:
    i, a, c = f.index("i", 1, l), f.index("a", 1, d), f.index("c", 1, d)
    k = f.index("k", 1, LAST)
    Q, Z, A = f.array("Q", l, d), f.array("Z", l, l), f.array("A", l, l)
    Q[i, c] = cm.sum_(x[i, a] * W[a, c], over=a)
    Z[i, k] = cm.sum_(Q[i, c] * x[k, c], over=c)
    A[i, k] = cm.softmax(Z[i, k], over=k)
    y[i, a] = cm.sum_(A[i, k] * x[k, a], over=k)


@implementation("NAME")
class InBlocks(torch.nn.Module):
    def __init__(self, *, d):
        super().__init__()
        self.W = torch.nn.Parameter(torch.empty(d, d))

    def forward(self, x):
        return torch.cat([self.rows(x, at) for at in range(0, x.shape[1], ROWS)], dim=1)

    def rows(self, x, at):
        q = x[:, at : at + ROWS] @ self.W
        most = total = summed = None
        end = min(at + ROWS, x.shape[1]) if CAUSAL else x.shape[1]
        for begin in range(0, end, KEYS):
            keys = x[:, begin : min(begin + KEYS, end)]
            z = torch.bmm(q, keys.transpose(1, 2))
            if CAUSAL and begin + KEYS > at:
                later = torch.ones(z.shape[1:], dtype=torch.bool).triu(at - begin + 1)
                z = z.masked_fill(later, float("-inf"))
            new = z.amax(-1, keepdim=True)
            if most is not None:
                new = torch.maximum(most, new)
            p = torch.exp(z - new)
            now, read = p.sum(-1, keepdim=True), torch.bmm(p, keys)
            if most is not None:
                scale = torch.exp(most - new)
                now, read = total * scale + now, summed * scale + read
            most, total, summed = new, now, read
        return summed / total
"""


FROM_ZERO = (
    "most, total = torch.full_like(q[..., :1], -torch.inf), torch.zeros_like(q[..., :1])\n"
    "        summed = torch.zeros_like(q)"
)


@pytest.mark.parametrize(
    ("rows", "keys", "causal", "start", "told"),
    [
        (5, 5, True, "", "('dense=5', 'online=5')"),
        (2, 3, True, "", "('dense=2', 'online=3')"),
        (5, 5, False, FROM_ZERO, "('online=5', 'zero-state')"),
        (48, 48, False, "", "('online=64',)"),
    ],
)
def test_a_softmax_in_blocks_is_told_how_many_keys_a_block_has(
    rows: int, keys: int, causal: bool, start: str, told: str, tmp_path: Path
) -> None:
    name = f"blocks_{rows}_{keys}_{causal}".lower()
    text = ONLINE.replace("LAST", "i" if causal else "l").replace("CAUSAL", str(causal))
    text = text.replace("ROWS", str(rows)).replace("KEYS", str(keys))
    text = text.replace("most = total = summed = None", start) if start else text
    found = {}
    for way, option in (("told", ""), ("described", f", rewrites={told}")):
        own = text.replace('@implementation("NAME"', f'@implementation("NAME"{option}')
        (tmp_path / f"{way}.py").write_text(own.replace("NAME", f"{name}_{way}"), encoding="utf-8")
        mixer = cm.mixer(f"{tmp_path}/{way}.py:{name}_{way}")
        (described,) = implementations(mixer).values()
        found[way] = dispatched_equals(mixer, described, step=False)
    assert found["described"].passed and found["told"].passed is False
    unclear = (
        " (a block of 34 to 66 keys counts the same at the sizes tried: write the module's own "
        "number)"
    )
    assert found["told"].detail.endswith(
        f"; rewrites={told} explains the whole difference{unclear * (rows == 48)}"
    )


def test_declared_paddings_hold_in_every_phase(tmp_path: Path) -> None:
    for name in PADDINGS:
        told = ('@implementation("NAME")', f'@implementation("NAME", rewrites={("dense", name)})')
        mixer = cm.mixer(written(tmp_path, f"declared-{name}", *PADDED, told))
        (described,) = implementations(mixer).values()
        for phase in ("training", "inference", "training-step"):
            does = description_of(mixer, described, phase)
            assert [r for r in does.rewrites if r in PADDINGS] == [name] * (phase != "inference")
            assert executed_counts(mixer, does, phase).at(b=2, l=5, d=3, w=2, t=4).total


@pytest.mark.parametrize("option", ["rewrites", "step_rewrites", "options"])
def test_one_text_in_place_of_a_tuple_of_names_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=rf"{option}='padded' is one string: expected a tuple of"):
        implementation("window", **{option: "padded"})  # type: ignore[arg-type]  # the mistake


def test_an_operation_without_a_rule_is_not_checked(tmp_path: Path) -> None:
    change = ("return s @ self.W_out", "torch.linalg.svdvals(s); return s @ self.W_out")
    proof = checked(tmp_path, "without-a-rule", change)[WORK]
    assert (proof.passed, proof.detail) == (None, "no counting rule for aten::_linalg_svd")


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


def test_a_state_of_one_row_too_many(tmp_path: Path) -> None:
    """The remedy holds at all sizes, not at the smallest alone, where every axis has one entry."""
    proofs = checked(
        tmp_path,
        "one-row-too-many",
        ("new_zeros(batch, self.w - 1, self.d)", "new_zeros(batch, self.w, self.d)"),
        ('torch.cat([state.held("x"), x_t.unsqueeze(1)], 1).flip(1)', 'state.held("x").flip(1)'),
        ("        held = ", "        state.append(x=x_t)\n        held = "),
        (".flip(1)\n        state.append(x=x_t)\n", ".flip(1)\n"),
    )
    assert verdicts(proofs) == {
        **EQUATIONS_HOLD, MODULE: True, WORK: True, STATE: False, STEP: True,
    }  # fmt: skip
    assert proofs[STATE].detail.endswith("; the State has w rows of x, the equations need w - 1")


OTHER_STATES: dict[str, tuple[Change, ...]] = {
    "arrays-of-other-ranks": (
        ("new_zeros(batch, self.w - 1, self.d)}",
         "new_zeros(batch, self.w - 1, self.d), 'z': self.w_win.new_zeros(batch, 1, 2, 1)}"),
        ("state.append(x=x_t)", "state.append(x=x_t, z=x_t.new_zeros(len(x_t), 1, 1))"),
    ),
    "a-class-of-its-own": (
        ('@implementation("NAME")', 'class Rows(State):\n    def __init__(self, rows):\n'
         '        super().__init__({"x": rows}, sliding=True)\n\n\n@implementation("NAME")'),
        ('State({"x": self.w_win.new_zeros(batch, self.w - 1, self.d)}, sliding=True)',
         "Rows(self.w_win.new_zeros(batch, self.w, self.d))"),
        ('torch.cat([state.held("x"), x_t', 'torch.cat([state.held("x")[:, -self.w :], x_t'),
        (".flip(1)\n", ".flip(1)[:, : self.w]\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_STATES)
def test_a_remedy_is_sought_for_every_state(name: str, tmp_path: Path) -> None:
    proof = checked(tmp_path, name, *OTHER_STATES[name])[STATE]
    assert proof.passed is False
    assert "the state holds" in proof.detail


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
        "at l = 1, d = 1, w = 1: after token 1 the state holds 1 elements for one sequence, later "
        "tokens need 0 (of x), counted in all tensors of the state, since a Rows does not tell"
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


MASKED = """
import torch
import costmodel as cm
from profiler.modules import implementation

m = cm.Mixer("NAME")
l, d, w = m.sizes("l d w")
x, y = m.input("x", l, d), m.output("y", l, d)
W_Q, W_K = m.parameter("W_Q", d, d), m.parameter("W_K", d, d)
with m.form("direct") as f:
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    j = f.index("j", cm.max_(1, i - w + 1), i)
    Q, K = f.array("Q", l, d), f.array("K", l, d)
    Z, A = f.array("Z", l, l), f.array("A", l, l)
    Q[i, b] = cm.sum_(x[i, a] * W_Q[a, b], over=a)
    K[i, b] = cm.sum_(x[i, a] * W_K[a, b], over=a)
    Z[i, j] = cm.scaled(cm.sum_(Q[i, a] * K[j, a], over=a), by=d)
    A[i, j] = cm.softmax(Z[i, j], over=j)
    y[i, b] = cm.sum_(A[i, j] * x[j, b], over=j)


@implementation("NAME", rewrites=("dense", "safe-softmax", "scale=mul"))
class Masked(torch.nn.Module):
    def __init__(self, *, d, w, dtype=None):
        super().__init__()
        self.w = w
        self.W_Q = torch.nn.Parameter(torch.empty(d, d, dtype=dtype))
        self.W_K = torch.nn.Parameter(torch.empty(d, d, dtype=dtype))

    def forward(self, x):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        seen = seen & ~seen.tril(-self.w)
        heads = (part.unsqueeze(1) for part in (x @ self.W_Q, x @ self.W_K, x))
        return torch.nn.functional.scaled_dot_product_attention(*heads, seen).squeeze(1)
"""


@pytest.mark.grid(2)
@pytest.mark.parametrize("scale", ["mul", "root"])
def test_a_boolean_mask_of_fused_attention_is_told_the_rewrite_that_adds_it(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch adds 0 or minus infinity for it: forward and backward then agree at every size. Without
    an axis of heads torch has no fused kernel, and scales queries and keys."""
    masked = MASKED.replace(".unsqueeze(1)" if scale == "root" else "", "")
    masked = masked.replace(".squeeze(1)" if scale == "root" else "", "")
    text = masked.replace("NAME", f"mask-{scale}")
    (tmp_path / "mask.py").write_text(text, encoding="utf-8")
    proofs = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/mask.py:m"))}
    assert proofs[MODULE].passed and proofs[WORK].passed is False
    told = f"rewrites=('dense', 'safe-softmax', 'mask=add', 'scale={scale}')"
    assert proofs[WORK].detail.endswith(f"; {told} explains the whole difference")
    old = "rewrites=('dense', 'safe-softmax', 'scale=mul')".replace("'", '"')
    text = masked.replace(old, told).replace("NAME", f"mask-added-{scale}")
    (tmp_path / "added.py").write_text(text, encoding="utf-8")
    added = f"{tmp_path}/added.py:m"
    assert {p.name: p for p in prove_mixer(cm.mixer(added))}[WORK].passed
    sizes = ("--d", "3", "--l", "5", "--w", "2", "--phase", "training-step", "--counts-only")
    assert cli.run(["reconcile", added, *sizes, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["summary"]
    assert row["unexplained"] == 0 and row["dispatched"] > row["derived"]


IN_BLOCKS = """
    def forward(self, x):
        found, Q, K = [], x @ self.W_Q, x @ self.W_K
        for first in range(0, x.shape[1], 2):
            begin, last = max(0, first - self.w + 1), min(x.shape[1], first + 2)
            pairs = torch.ones(last - first, last - begin, dtype=torch.bool)
            seen = pairs.tril(first - begin) & ~pairs.tril(first - begin - self.w)
            scores = Q[:, first:last] @ K[:, begin:last].mT * self.W_K.shape[0] ** -0.5
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            found.append(weights @ x[:, begin:last])
        return torch.cat(found, 1)
"""


@pytest.mark.parametrize(
    ("wrong", "work"),
    [
        ({}, True),
        ({".tril(first - begin) &": ".tril(first - begin + 1) &"}, None),
        ({"** -0.5": "** -0.5 * 1.01"}, None),
    ],
    ids=["right", "a-row-too-far", "another-scale"],
)
def test_attention_in_blocks_is_told_how_many_rows_a_block_has(
    wrong: dict[str, str], work: bool | None, tmp_path: Path
) -> None:
    """Blocks of two rows, of which the window leaves out keys of both the first and the last."""
    told = "rewrites=('dense=2', 'safe-softmax', 'scale=mul')"
    text = MASKED.partition("\n    def forward")[0] + IN_BLOCKS
    text = text.replace('"dense", "safe-softmax", "scale=mul"', '"scale=root",')
    for right, instead in wrong.items():
        text = text.replace(right, instead)
    for name, rewrites in (("told", ""), ("described", told)):
        own = text.replace("NAME", f"in-blocks-{name}")
        if rewrites:
            own = re.sub(r"rewrites=\(.*?\)", rewrites, own)
        (tmp_path / f"{name}.py").write_text(own, encoding="utf-8")
        proofs = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/{name}.py:m"))}
        assert proofs[MODULE].passed is (work is True)
        if work and not rewrites:
            assert proofs[WORK].detail.endswith(f"; {told} explains the whole difference")
        else:
            assert proofs[WORK].passed is work


ROW_BY_ROW = """
import torch
import costmodel as cm
from profiler.modules import State, implementation

m = cm.Mixer("NAME")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    j = f.index("j", 1, i)
    Z, A = f.array("Z", l, l), f.array("A", l, l)
    Z[i, j] = cm.scaled(cm.sum_(x[i, a] * x[j, a], over=a), by=d)
    A[i, j] = cm.softmax(Z[i, j], over=j)
    y[i, a] = cm.sum_(A[i, j] * x[j, a], over=j)


@implementation("NAME", rewrites=("dense", "safe-softmax", "mask=add", "scale=root"))
class RowByRow(torch.nn.Module):
    def __init__(self, *, d, dtype=None):
        super().__init__()
        self.d, self.dtype = d, dtype

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    def initial_state(self, batch, length):
        return State({"x": torch.zeros(batch, length, self.d, dtype=self.dtype)})

    def step(self, x_t, state):
        state.append(x=x_t)
        x = state.held("x")
        row = torch.nn.functional.scaled_dot_product_attention(x_t.unsqueeze(1), x, x)
        return row.squeeze(1)
"""


def test_a_step_that_scales_every_key_again_is_told_the_rewrite(tmp_path: Path) -> None:
    """As torch does in a call of fused attention without an axis of heads."""
    told = "step_rewrites=('safe-softmax', 'scale=root-each')"
    for name, described in (("told", ""), ("described", f", {told}")):
        text = ROW_BY_ROW.replace('"scale=root")', f'"scale=root"){described}')
        (tmp_path / f"{name}.py").write_text(text.replace("NAME", f"row-by-row-{name}"), "utf-8")
        proofs = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/{name}.py:m"))}
        assert proofs[STEP].passed and proofs[WORK].passed is bool(described)
        if not described:
            assert proofs[WORK].detail.endswith(f"; {told} explains the whole difference")
