"""Does `check` find a single mistake in a mixer, and name its place and smallest sizes?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cli
import costmodel as cm
from costmodel.errors import UnknownMixer
from costmodel.mixers import names
from costmodel.proofs.check import Proof, prove
from costmodel.proofs.tried_sizes import sizes_tried
from costmodel.questions.counting.by_equation import count_equations
from profiler.mixers.extractor import VECTOR_FFT, WeFft
from profiler.mixers.self_attention import ExplicitSelfAttention, FusedSelfAttention
from profiler.mixers.sorting import Reformer, gathered
from profiler.modules import State, implementations
from profiler.modules.attention import EXPLICIT, SDPA
from profiler.proofs.blame import Multisets, Recorder, first_difference
from profiler.proofs.cases import case, write_in_words
from profiler.proofs.deep import findings
from profiler.proofs.draws import Draw
from profiler.proofs.equality import (
    _buffers_apart,
    dispatched_equals,
    forward_apart,
    module_equals,
    prove_mixer,
    step_equals,
)
from profiler.proofs.report import document
from profiler.proofs.rounding import IN_SINGLE
from profiler.proofs.trial import Subject, Trial
from tests.printing import printed
from tests.stand_ins import Instead
from tests.user_mixers import PLAIN, Change, written

pytestmark = pytest.mark.usefixtures("proven_once")

EQUATIONS_HOLD = {
    "well formed": True,
    "direct: causality equals execution": True,
    "direct: counts equal instrumented execution": True,
    "direct: gradients of the equations equal execution": True,
}
MODULE, STEP = "direct: module equals equations", "direct: step equals forward"
WORK = "direct: dispatched equals executed"
STATE = "direct: state held equals derived state"


def checked(folder: Path, name: str, *changes: Change) -> dict[str, Proof]:
    """The proofs of the window mixer with these changes, by name."""
    return {p.name: p for p in prove_mixer(cm.mixer(written(folder, name, *changes)))}


def verdicts(proofs: dict[str, Proof]) -> dict[str, bool | None]:
    """What each proof found."""
    return {name: proof.passed for name, proof in proofs.items()}


OF_A_MODULE = ("module equals equations", "dispatched equals executed")
OF_A_TOKEN = ("state held equals derived state", "step equals forward")


UNDERIVED = {"strided-attention", "deltanet", "gated-deltanet", "kda", "mamba-2", "rwkv-7"}
"""Mixers with a form whose span, or another such answer, is refused with its reason."""


def test_parameters_of_a_submodule_are_told_where_they_belong(tmp_path: Path) -> None:
    linear = (
        ("self.W_out = self.weight(d, d)", "self.out = torch.nn.Linear(d, d, bias=False)"),
        ("@ self.W_out", "@ self.out.weight.T"),
    )
    mixer = cm.mixer(written(tmp_path, "submodule", *linear))
    assert module_equals(mixer, implementations(mixer)["direct"]).detail.endswith(
        "; the module itself holds the parameters of the equations, in place of out.weight: "
        "self.W_out = torch.nn.Parameter(...), of which forward calls torch.nn.functional"
    )


@pytest.mark.grid(60)
@pytest.mark.parametrize("name", names())
def test_built_in_mixers_hold(name: str) -> None:
    """Among them: every form's answers, gradients too, are what its execution tallies, and every
    module dispatches what the equations count."""
    proofs, found = prove_mixer(cm.mixer(name)), implementations(name)
    stepless = {f"{own}: step equals forward" for own, it in found.items() if not it.step_form}
    open_ = {p.name: p for p in proofs if p.passed is not True}
    underived = [open_.pop(own) for own in [*open_] if own.endswith(", other answers")]
    assert all(p.passed is None and " not derived: " in p.detail for p in underived)
    assert bool(underived) == (name in UNDERIVED)
    assert open_.keys() == stepless
    for proof in proofs:
        if proof.name in stepless:
            assert proof.passed is None
            assert proof.detail.startswith(
                (
                    "not causal: ",
                    "form 'fft' transforms the whole token axis at once",
                    "form 'direct' chooses from the whole token axis at once",
                )
            )
    assert {p.name for p in proofs} >= {
        f"{own}: {proof}"
        for own, it in found.items()
        for proof in (*OF_A_MODULE, *(OF_A_TOKEN if it.step_form else ()))
    }


def test_a_kernel_class_of_what_no_equation_computes_is_refused(tmp_path: Path) -> None:
    change = ('@implementation("NAME")', '@implementation("NAME", kernels={"z": "elementwise"})')
    proof = checked(tmp_path, "window-with-a-class-too-many", change)["module equals equations"]
    assert (
        proof.passed is False and "for z, which no equation computes: the equations" in proof.detail
    )


def test_a_sliding_window_holds(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "window-that-holds")
    assert verdicts(proofs) == dict.fromkeys((*EQUATIONS_HOLD, MODULE, WORK, STATE, STEP), True)
    assert proofs["direct: causality equals execution"].detail == "causal"
    assert proofs[MODULE].detail == "to 1e-09 in float64 at 13 sets of sizes"


def test_chunks_of_one_row_are_tried_at_several_rows() -> None:
    """The row before a chunk is read as the last place from 2 on of the chunk before."""
    mixer = cm.Mixer("row-before", source="a test")
    l, C = mixer.sizes("l C")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i = f.index("i", 2, l)
        y[1] = x[1] * 1
        y[i] = x[i] + x[i - 1]
    with mixer.form("chunked") as f:
        q, g = f.index("q", 1, l // C + 1), f.index("g", 2, l // C + 1)
        e = f.index("e", 2, cm.min_(C, l - (q - 1) * C))
        u = f.index("u", 1, cm.min_(1, l - (g - 1) * C))
        z = f.index("z", cm.max_(2, C), C)
        y[1] = x[1] * 1
        y[(q - 1) * C + e] = x[(q - 1) * C + e] + x[(q - 1) * C + e - 1]
        y[(g - 1) * C + u] = x[(g - 1) * C + u] + cm.sum_(x[(g - 2) * C + z], over=z)
    proofs = {proof.name: proof for proof in prove(mixer)}
    assert proofs["chunked: equals direct"].passed is False
    assert proofs["chunked: equals direct"].detail.startswith("at l = 2, C = 1: ")


def test_an_answer_that_is_not_derived_is_not_said_to_hold() -> None:
    mixer = cm.Mixer("triple", source="a test")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        j = f.index("j", 1, i)
        k = f.index("k", 1, j)
        y[i, a] = cm.sum_(x[j, a] * x[k, a], over=(j, k))
    proofs = {proof.name: proof for proof in prove(mixer)}
    open_proof = proofs.pop("direct: gradients of the equations equal execution, other answers")
    assert open_proof.passed is None
    assert open_proof.detail == (
        "span of backward, span of training-step are not derived: the depth is not monotone in "
        "index j"
    )
    assert verdicts(proofs) == EQUATIONS_HOLD
    assert not [proof for proof in proofs.values() if "not derived" in proof.detail]
    compared = proofs["direct: counts equal instrumented execution"].detail
    assert compared.startswith("of the equations, not of a module: ") and "path length" in compared
    printed = document(mixer.name, [*proofs.values()]).parts()
    assert any("of a module no proof compares path length" in str(part) for part in printed)


def test_a_form_without_derived_tokens_names_the_questions_that_need_them() -> None:
    """The form executes as a causal one, so answers about one token are lacking."""
    mixer = cm.Mixer("flattened", source="a test")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        rows = f.array("rows", l * d)
        rows[(i - 1) * d + a] = 2 * x[i, a]
        y[i, a] = rows[(i - 1) * d + a] + 1
    proofs = {proof.name: proof for proof in prove(mixer)}
    open_proof = proofs.pop("direct: counts equal instrumented execution, other answers")
    asked, _, reason = open_proof.detail.partition(" are not derived: ")
    assert open_proof.passed is None
    assert {"counts of one token", "state of one token"} <= {*asked.split(", ")}
    assert reason.startswith(
        "which tokens each entry depends on is not derived: the last token that rows depends on"
    )
    assert verdicts(proofs) == {**EQUATIONS_HOLD, "direct: causality equals execution": None}


SUM = "s[i, b] = cm.sum_(x[j, b] * w_win[i - j + 1, b], over=j)\n"
WRONG_EQUATIONS: dict[str, tuple[tuple[Change, ...], str]] = {
    "lag-from-2": (
        (("w_win[i - j + 1, b]", "w_win[i - j + 2, b]"),),
        "s reads w_win outside its extents (w, d)",
    ),
    "row-before-the-first": (
        (("cm.sum_(x[j, b]", "cm.sum_(x[j - 1, b]"),),
        "s reads x outside its extents (l, d)",
    ),
    "window-beyond-its-weights": (
        (("cm.max_(1, i - w + 1)", "cm.max_(1, i - w)"),),
        "s reads w_win outside its extents (w, d)",
    ),
    "defined-twice": (
        (("over=a)\n", "over=a)\n    y[i, b] = s[i, b] + 0\n"),),
        "two equations of y define one entry",
    ),
    "never-defined": (
        (("y[i, b] =", "y[i, 1] ="), ("W_out[a, b]", "W_out[a, 1]")),
        "y is not defined everywhere",
    ),
    "read-before-defined": (
        ((f"    {SUM}", ""), ("over=a)\n", f"over=a)\n    {SUM}")),
        "y reads s before it is complete",
    ),
    "extents-that-differ": (
        (('f.array("s", l, d', 'f.array("s", l, w'),),
        "s is defined outside its extents (l, w)",
    ),
}


@pytest.mark.parametrize("name", WRONG_EQUATIONS)
def test_equations_that_cannot_run_say_where(name: str, tmp_path: Path) -> None:
    changes, expected = WRONG_EQUATIONS[name]
    proofs = checked(tmp_path, name, *changes)
    assert verdicts(proofs) == {"well formed": False, "module equals equations": None}
    assert proofs["module equals equations"].detail == "needs 'well formed', which fails"
    assert proofs["well formed"].detail.startswith(expected)


DOES_NOT_IMPORT: dict[str, tuple[tuple[Change, ...], str]] = {
    "missing-import": (
        (("import torch", "import no_such_package"),),
        "does not import: ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "syntax": ((("l, d, w = m", "l, d, w = = m"),), "is no Python: "),
    "unbound-index": (
        (("y[i, b] = cm.sum_(s[i, a] * W_out[a, b], over=a)", "y[i, b] = s[i, a] * W_out[a, b]"),),
        "does not import: y: index a of s is unbound; put it on the left side or reduce over it",
    ),
    "axes": (
        (("w_win[i - j + 1, b]", "w_win[i - j + 1]"),),
        "does not import: w_win has 2 axes but is indexed with 1",
    ),
    "not-affine": (
        (("w_win[i - j + 1, b]", "w_win[i * j, b]"),),
        "does not import: an index of w_win: index 'i*j' in not-affine multiplies",
    ),
    "squared-index": (
        (("w_win[i - j + 1, b]", "w_win[i * i, b]"),),
        "index 'i**2' in squared-index is not affine: index i is multiplied by itself",
    ),
    "index-in-a-function": (
        (("w_win[i - j + 1, b]", "w_win[i // w + 1, b]"),),
        "in index-in-a-function is not affine: an index stands inside a function; the chunk",
    ),
    "unknown-letter": ((('"l d w"', '"l d j"'),), "does not import: unknown size 'j'"),
    "letter-of-networks": (
        (('"l d w"', '"l d q"'),),
        "does not import: letter-of-networks declares size 'q', which means new "
        "tokens after the prompt of a network and is no size of a mixer: take another letter",
    ),
    "no-output": (
        (("y[i, b] = cm.sum_", "s[i, b] = cm.sum_"),),
        "does not import: form 'direct' of no-output never defines its output",
    ),
    "kernel-class": (
        (('@implementation("NAME")', '@implementation("NAME", kernels={"s": "matmul"})'),),
        "the kernel class of s is 'matmul' and must be one of complex-contraction",
    ),
    "decorator-without-a-call": (
        (('@implementation("NAME")', "@implementation"),),
        "does not import: implementation takes the name of a mixer, got the class Window: write "
        "@implementation('NAME') above the class (line ",
    ),
    "decorator-without-a-name": (
        (('@implementation("NAME")', "@implementation()"),),
        "implementation takes the name of a mixer: write @implementation('NAME') above the class",
    ),
    "decorator-with-another-word": (
        (('@implementation("NAME")', '@implementation("NAME", kernel={})'),),
        "does not import: implementation takes mixer, name, form, ",
    ),
    "function-in-place-of-a-class": (
        (('@implementation("NAME")', '@implementation("NAME")\ndef one(x): return x'),),
        "implementation('function-in-place-of-a-class') stands above the function one: expected a "
        "class that derives from torch.nn.Module (line ",
    ),
    "class-of-another-kind": (
        (('@implementation("NAME")', '@implementation("NAME")\nclass One: pass'),),
        "stands above the class One: expected a class that derives from torch.nn.Module",
    ),
    "rewrite": (
        (('@implementation("NAME")', '@implementation("NAME", rewrites=("dens",))'),),
        "unknown rewrite 'dens': the rewrites are dense, safe-softmax",
    ),
    "step-rewrite": (
        (('@implementation("NAME")', '@implementation("NAME", step_rewrites=("zero_state",))'),),
        "unknown rewrite 'zero_state': the rewrites are dense, safe-softmax",
    ),
}


@pytest.mark.parametrize("name", DOES_NOT_IMPORT)
def test_a_file_that_does_not_import_is_one_sentence(name: str, tmp_path: Path) -> None:
    changes, expected = DOES_NOT_IMPORT[name]
    with pytest.raises(UnknownMixer) as refused:
        checked(tmp_path, name, *changes)
    assert expected in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))
    assert ("Error" in expected) is ("Error" in str(refused.value))  # of Python, and of no own word


def test_a_mixer_that_looks_ahead_is_not_causal_and_has_no_step_to_prove(tmp_path: Path) -> None:
    proofs = checked(
        tmp_path,
        "looks-ahead",
        ('f.index("j", cm.max_(1, i - w + 1), i)', 'f.index("j", i, l)'),
        ('m.parameter("w_win", w, d)', 'm.parameter("w_win", l, d)'),
        ("self.w = w", "self.w = w = l"),
        ("w_win[i - j + 1, b]", "w_win[j - i + 1, b]"),
        ("s[:, lag:] += x[:, :-lag]", "s[:, :-lag] += x[:, lag:]"),
    )
    assert verdicts(proofs) == {**EQUATIONS_HOLD, MODULE: True, WORK: True, STEP: None}
    assert proofs["direct: causality equals execution"].detail.startswith("not causal")
    assert proofs[STEP].detail == proofs["direct: causality equals execution"].detail


WRONG_MODULES: dict[str, tuple[tuple[Change, ...], str]] = {
    "wrong-sign": (
        (("s[:, lag:] += x", "s[:, lag:] -= x"),),
        r"^at l = 2, d = 1, w = 2: y\[2, 1\] is \S+, the equations give \S+; equation \(1\) s is "
        r"the first whose values the module never computes$",
    ),
    "kernel-reversed": (
        (("self.w_win[lag]", "self.w_win[-lag]"),),
        r"^at l = 2, d = 1, w = 3: y\[2, 1\] is .* equation \(1\) s is the first",
    ),
    "sees-later-rows": (
        (("s[:, lag:] += x[:, :-lag]", "s[:, :-lag] += x[:, lag:]"),),
        r"^at l = 2, d = 1, w = 2: y\[1, 1\] is .* equation \(1\) s is the first",
    ),
    "wrong-output-map": (
        (("return s @ self.W_out", "return s @ self.W_out.t()"),),
        r"^at l = 1, d = 2, w = 1: y\[1, 1\] is .*; the module computes s as the equations do; "
        r"equation \(2\) y is the first whose values the module never computes$",
    ),
    "last-sign": (
        (("return s @ self.W_out", "return -(s @ self.W_out)"),),
        r"the module computes the values of every equation but returns other values$",
    ),
    "mixes-the-batch": (
        (("return s @ self.W_out", "s[1:] = s[:1]; return s @ self.W_out"),),
        r"^at l = 1, d = 1, w = 1: y\[1, 1\] is .* in sequence 2 of a batch of 2; ",
    ),
    "not-a-number": (
        (("return s @ self.W_out", "return s @ self.W_out * float('nan')"),),
        r"^at l = 1, d = 1, w = 1: y\[1, 1\] is nan, the equations give ",
    ),
    "drops-a-row": (
        (("return s @ self.W_out", "return (s @ self.W_out)[:, 1:]"),),
        r"^at l = 1, d = 1, w = 1: forward returns \(2, 0, 1\), expected \(2, 1, 1\)$",
    ),
    "returns-nothing": (
        (("return s @ self.W_out", "return None"),),
        r"^at l = 1, d = 1, w = 1: forward returns NoneType, expected a tensor \(2, 1, 1\)$",
    ),
    "misnamed-parameter": (
        (("self.w_win", "self.kernel"),),
        r"^at l = 1, d = 1, w = 1: the equations have a parameter w_win \(1, 1\), the module has "
        r"none of that name; the module has a parameter kernel \(1, 1\), the equations have none",
    ),
    "misshaped-parameter": (
        (
            ("self.w_win = self.weight(w, d)", "self.w_win = self.weight(d, w)"),
            ("self.w_win[", "self.w_win.t()["),
        ),
        r"^at l = 1, d = 1, w = 2: the module's parameter w_win is \(1, 2\), the equations' is "
        r"\(2, 1\)$",
    ),
    "raises": (
        (("return s @ self.W_out", "return [][0]"),),
        r"^at l = 1, d = 1, w = 1: the module fails: IndexError: list index out of range$",
    ),
    "unknown-form": (
        (('@implementation("NAME")', '@implementation("NAME", "direct", form="fast")'),),
        r"^unknown-form has no form 'fast': write form= in @implementation, one of direct$",
    ),
    "wants-another-size": (
        (("l, w, device", "l, w, heads, device"),),
        r"^at l = 1, d = 1, w = 1: the module fails: "
        r"wants-another-size direct needs the size heads",
    ),
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", WRONG_MODULES)
def test_a_wrong_module_fails_where_it_parts(name: str, tmp_path: Path) -> None:
    changes, pattern = WRONG_MODULES[name]
    proofs = checked(tmp_path, name, *changes)
    assert {k: v for k, v in verdicts(proofs).items() if k in EQUATIONS_HOLD} == EQUATIONS_HOLD
    assert proofs[MODULE].passed is False
    for other in (WORK, STATE):
        assert proofs[other].passed is None
        assert proofs[other].detail == f"needs '{MODULE}', which fails"
    assert re.search(pattern, proofs[MODULE].detail), proofs[MODULE].detail


def test_a_description_without_a_form_takes_the_only_form(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "window-without-direct", ('form("direct")', 'form("banded")'))
    expected = dict.fromkeys((*EQUATIONS_HOLD, MODULE, WORK, STATE, STEP), True)
    assert verdicts(proofs) == {
        name.replace("direct", "banded"): passed for name, passed in expected.items()
    }


def test_a_wrong_step_fails_where_it_parts(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "step-in-the-wrong-order", (".flip(1)", ""))
    expected = {**EQUATIONS_HOLD, MODULE: True, WORK: True, STATE: None, STEP: False}
    assert verdicts(proofs) == expected
    assert proofs[STATE].detail == f"needs '{STEP}', which fails"
    found = proofs[STEP].detail
    assert found.startswith("at l = 2, d = 1, w = 2: y[2, 1] is ")
    assert "forward gives " in found
    assert found.endswith(
        "in step, equation (1) s is the first whose values the module never computes"
    )


def test_rows_on_another_axis_say_where_a_state_has_them(tmp_path: Path) -> None:
    changes = (
        ("new_zeros(batch, self.w - 1, self.d)", "new_zeros(batch, self.d, self.w - 1)"),
        ('torch.cat([state.held("x"), x_t.unsqueeze(1)], 1)',
         'torch.cat([state.held("x"), x_t.unsqueeze(2)], 2).transpose(1, 2)'),
    )  # fmt: skip
    proof = checked(tmp_path, "window-on-another-axis", *changes)[STEP]
    assert proof.passed is False
    assert "the rows of tokens, and here the shapes are x (2, 0, 0)" in proof.detail


def test_a_wrong_forward_is_not_blamed_on_step(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "forward-alone", ("s[:, lag:] += x", "s[:, lag:] -= x"))
    assert proofs[STEP].passed is False
    assert proofs[STEP].detail.endswith("step agrees with the equations, forward differs")


WRITING: dict[str, tuple[Change, str]] = {
    "step-into-x": (("held = torch.cat([", "x_t.mul_(2); held = torch.cat(["),
                    "step writes into its caller's x: x[1, 1, 1] was "),
    "step-into-a-weight": ((".flip(1)", ".flip(1); self.w_win.mul_(2)"),
                           "step writes into the parameter w_win: w_win[1, 1] was "),
    "forward-into-x": (("s = x * self", "s = x.mul_(2) * self"),
                       "forward writes into its caller's x: x[1, 1, 1] was "),
}  # fmt: skip
"""Mistake -> the change, and the sentence."""


@pytest.mark.parametrize("name", WRITING)
def test_a_call_that_writes_into_what_it_was_given_is_blamed(name: str, tmp_path: Path) -> None:
    change, said = WRITING[name]
    mixer = cm.mixer(written(tmp_path, name, change))
    (described,) = implementations(mixer).values()
    module, step = module_equals(mixer, described), step_equals(mixer, described)
    assert step.detail.startswith(f"at l = 1, d = 1, w = 1: {said}")
    assert module.passed is said.startswith("step")
    assert module.passed or module.detail == step.detail


def test_a_state_without_arrays_counts_tokens_and_has_no_capacity() -> None:
    state = State({})
    state.append()
    assert (state.position, state.elements) == (1, 0)
    for asked in ("batch", "capacity"):
        with pytest.raises(ValueError, match="holds no array, from whose shape"):
            getattr(state, asked)


def test_a_step_of_another_shape(tmp_path: Path) -> None:
    change = (".sum(1) @ self.W_out", ".sum(1, keepdim=True) @ self.W_out")
    found = checked(tmp_path, "step-shape", change)[STEP].detail
    assert found == "at l = 1, d = 1, w = 1: step returns (2, 1, 1) at token 1, expected (2, 1)"


def test_a_plain_module_without_step_is_not_checked_for_one(tmp_path: Path) -> None:
    proofs = checked(tmp_path, "plain-module", *PLAIN)
    assert verdicts(proofs) == {**EQUATIONS_HOLD, MODULE: True, WORK: True, STEP: None}
    assert proofs[STEP].detail == "it has no `step`"


def test_a_mixer_without_a_module_says_how_to_give_it_one(tmp_path: Path) -> None:
    change = ('@implementation("NAME")', '@implementation("other-than-NAME")')
    proofs = checked(tmp_path, "no-module", change)
    assert verdicts(proofs) == {**EQUATIONS_HOLD, "module equals equations": None}
    said = proofs["module equals equations"].detail
    assert '@implementation("no-module")' in said
    assert said.endswith("; its file describes modules of 'other-than-no-module'")


@pytest.mark.parametrize(("change", "plain", "strict"), [
    ((), 0, 0), (('@implementation("NAME")', '@implementation("other-than-NAME")'), 0, 1),
])  # fmt: skip
def test_strictly_every_proof_is_checked(
    change: Change | tuple[()], plain: int, strict: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = written(tmp_path, "window", *([change] if change else []))
    assert (cli.run(["check", name]), cli.run(["check", name, "--strict"])) == (plain, strict)
    assert ("not checked" in capsys.readouterr().out) == (plain != strict)


def test_a_second_form_that_computes_something_else(tmp_path: Path) -> None:
    second = (
        '\nwith m.form("late") as f:\n'
        '    i, b = f.index("i", 1, l), f.index("b", 1, d)\n'
        '    j, a = f.index("j", cm.max_(1, i - w + 1), i), f.index("a", 1, d)\n'
        '    s = f.array("s", l, d)\n'
        "    s[i, b] = cm.sum_(x[j, b] * w_win[1, b], over=j)\n"
        "    y[i, b] = cm.sum_(s[i, a] * W_out[a, b], over=a)\n"
    )
    proofs = checked(tmp_path, "two-forms", ("over=a)\n", f"over=a)\n{second}"))
    assert proofs["late: equals direct"].passed is False
    assert proofs["late: equals direct"].detail.startswith(
        "at l = 2, d = 1, w = 2: s is the first array that differs; y by "
    )
    assert not any(MODULE in name for name in proofs)


def test_a_rule_that_miscounts_is_held_against_the_execution(
    tmp_path: Path, instead: Instead
) -> None:
    """R additions for a sum of R terms: the first sum that has any term shows it."""
    instead(
        count_equations=lambda system, phase, accounting="": count_equations(system, phase, "mac")
    )
    found = {p.name: p for p in prove(cm.mixer(written(tmp_path, "miscounted")))}
    counts = found["direct: counts equal instrumented execution"]
    assert counts.passed is False
    assert counts.detail.startswith(
        "at l = 1, d = 1, w = 1: s is the first equation that differs; counts: derived "
    )


ALONG_BOTH_AXES = """
    s[r, 1] = 1 * x[r, 1]
    s[r, c] = s[r - 1, c] + s[r, c - 1]
"""


def test_a_question_that_the_rules_cannot_answer_is_no_crash(tmp_path: Path) -> None:
    """A recurrence along two axes is refused in words, and the module, which could not be compared,
    is not blamed."""
    proofs = checked(
        tmp_path,
        "along-two-axes",
        (
            "s[i, b] = cm.sum_(",
            'r, c = f.index("r", 2, l), f.index("c", 2, d)\n    s[1, b] = cm.sum_(',
        ),
        ("x[j, b] * w_win[i - j + 1, b], over=j)", "w_win[o, b], over=o)\n" + ALONG_BOTH_AXES),
        ("a, b =", 'o = f.index("o", 1, w)\n    a, b ='),
    )
    assert proofs["well formed"].passed is None
    why = "s needs itself: a recurrence reads earlier rows"
    assert proofs["well formed"].detail.startswith(why)
    assert proofs[MODULE].passed is None
    assert proofs[MODULE].detail.startswith(f"the equations cannot be evaluated: {why}")


def test_a_sum_over_no_term_is_zero(tmp_path: Path) -> None:
    """The first row has no row before it; the module, which adds its own row, parts from that."""
    change = ('f.index("j", cm.max_(1, i - w + 1), i)', 'f.index("j", 1, i - 1)')
    lags = ('m.parameter("w_win", w, d)', 'm.parameter("w_win", l, d)')
    proofs = checked(tmp_path, "empty-sum", change, lags)
    assert {k: v for k, v in verdicts(proofs).items() if k in EQUATIONS_HOLD} == EQUATIONS_HOLD
    assert proofs[MODULE].passed is False
    assert re.match(
        r"at l = 1, d = 1, w = 1: y\[1, 1\] is \S+, the equations give 0;", proofs[MODULE].detail
    )


def test_sizes_that_fit_no_small_numbers(tmp_path: Path) -> None:
    change = ("w_win, W_out =", 'm.parameter("never", l / 1000)\nw_win, W_out =')
    proofs = checked(tmp_path, "no-small-sizes", change)
    assert proofs["well formed"].passed is False
    assert (
        "no-small-sizes: at none of the sizes tried are all extents whole numbers"
        in proofs["well formed"].detail
    )


LATE = """
import torch
import costmodel as cm
from profiler.modules import State, implementation

m = cm.Mixer("late")
l, d = m.sizes("l d")
x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", l, d)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    j = f.index("j", 1, i)
    y[i, a] = cm.sum_(x[j, a] * w[i - j + 1, a], over=j)


def mixed(newest, w):
    if newest.shape[1] > LAST:
        newest = torch.cat([newest[:, :1], newest[:, :1], newest[:, 2:]], 1)
    return (newest * w[: newest.shape[1]]).sum(1)


@implementation("late", kernels={"y": "reduction"})
class Late(torch.nn.Module):
    def __init__(self, *, l, d):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(l, d))

    def forward(self, x):
        return torch.stack([mixed(x[:, :i].flip(1), self.w) for i in range(1, x.shape[1] + 1)], 1)

    def initial_state(self, batch, length):
        return State({"x": self.w.new_zeros(batch, length, self.w.shape[1])}, newest_first=True)

    def step(self, x_t, state):
        state.append(x=x_t)
        return mixed(state.held("x"), self.w)
"""


GATED = """
import torch
import costmodel as cm
from profiler.modules import implementation

m = cm.Mixer("gated")
l, d = m.sizes("l d")
x, y, w, u = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d), m.parameter("u", d)
with m.form("direct") as f:
    i, t, a = f.index("i", 1, l), f.index("t", 2, l), f.index("a", 1, d)
    g, h = f.array("g", l, d), f.array("h", l, d)
    g[1, a] = w[a] * x[1, a]
    g[t, a] = w[a] * x[t, a] + u[a] * h[t - 1, a]
    h[i, a] = cm.function("tanh", g[i, a])
    y[i, a] = h[i, a] + x[i, a]


@implementation("gated")
class Gated(torch.nn.Module):
    def __init__(self, *, d):
        super().__init__()
        self.w, self.u = (torch.nn.Parameter(torch.empty(d)) for _ in "wu")

    def forward(self, x):
        rows, h = [], torch.zeros_like(x[:, 0])
        for x_t in x.unbind(1):
            h = torch.sigmoid(self.w * x_t + self.u * h)
            rows.append(h + x_t)
        return torch.stack(rows, 1)
"""


@pytest.mark.parametrize("l", [1, 3])
def test_the_first_equation_that_differs_is_the_first_to_be_evaluated(
    l: int, tmp_path: Path
) -> None:
    """The first row of g is right, and the later ones are wrong because h is."""
    (tmp_path / "gated.py").write_text(GATED, encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path / 'gated.py'}:m")
    (gated,) = implementations(mixer).values()
    _, found = forward_apart(case(mixer, gated, {"l": l, "d": 2}), "direct", blames=True)
    assert found is not None and found.array == "h"


FORMS = """
import costmodel as cm

m = cm.Mixer("forms")
l, d = m.sizes("l d")
x, y, w, u = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d), m.parameter("u", d)
for name, activation in {"direct": "tanh", "other": "sigmoid"}.items():
    with m.form(name) as f:
        i, t, a = f.index("i", 1, l), f.index("t", 2, l), f.index("a", 1, d)
        g, h = f.array("g", l, d), f.array("h", l, d)
        g[1, a] = w[a] * x[1, a]
        g[t, a] = w[a] * x[t, a] + u[a] * h[t - 1, a]
        h[i, a] = cm.function(activation, g[i, a])
        y[i, a] = g[i, a] + x[i, a]
"""


def test_the_first_array_in_which_forms_differ_is_the_first_to_be_evaluated(
    tmp_path: Path,
) -> None:
    """The second row of g differs because the first row of h does."""
    (tmp_path / "forms.py").write_text(FORMS, encoding="utf-8")
    proofs = {proof.name: proof for proof in prove(cm.mixer(f"{tmp_path / 'forms.py'}:m"))}
    assert proofs["other: equals direct"].detail.startswith(
        "at l = 2, d = 1: h is the first array that differs; y by "
    )


@pytest.mark.parametrize("last", [6, 40])
def test_a_module_that_is_right_up_to_a_late_token(last: int, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE.replace("LAST", str(last)), encoding="utf-8")
    mixer = cm.mixer(f"{tmp_path / 'late.py'}:m")
    (late,) = implementations(mixer).values()
    detail = module_equals(mixer, late).detail
    assert detail.startswith(f"at l = {last + 1}, d = 1: y[{last + 1}, 1] is ")


def test_every_bound_is_crossed(tmp_path: Path) -> None:
    """Lengths below, at and above each window and their sum, in both orders of two windows."""
    changes = (
        ('"l d w"', '"l d w s"'),
        ("l, d, w =", "l, d, w, s_ ="),
        ("cm.max_(1, i - w + 1), i", "cm.max_(1, i - w + 1, i - s_ + 1), i"),
    )
    tried = sizes_tried(cm.mixer(written(tmp_path, "two-windows", *changes)))["equations"]
    for w, s in ((2, 3), (3, 2)):
        lengths = {sizes["l"] for sizes in tried if (sizes["w"], sizes["s"]) == (w, s)}
        assert lengths >= set(range(1, w + s + 2))


def test_the_sizes_that_were_tried_are_said() -> None:
    tried = sizes_tried(cm.mixer("restricted-attention"))
    found = document("mine", [Proof("well formed", True, "")], tried)
    text = " ".join(printed(found, "rich", width=200).split())
    assert "modules are tried at" in text
    assert "l = 1 to 7, 67 with d = 2, n = 1, w = 2" in text
    said = json.loads(printed(found, "json"))["sizes"]
    assert said["modules"][-1] == {"l": 67, "d": 2, "n": 1, "w": 2}
    assert said["equations"] == said["modules"][:-1]


def test_what_a_fused_kernel_hides_is_not_blamed() -> None:
    """The scores never exist in `sdpa`, but the weighted sum that reads them is right."""

    class WrongOutputMap(FusedSelfAttention):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (heads.transpose(1, 2) for heads in self._project(x))
            return self.attend(q, k, v, causal=True).transpose(1, 2).flatten(2) @ self.W_out.t()

    claimed = replace(implementations("self-attention")["sdpa"], made=WrongOutputMap)
    proof = module_equals(cm.mixer("self-attention"), claimed)
    assert proof.passed is False
    assert proof.detail.endswith(
        "the module computes Q, K, V, R as the equations do; "
        "equation (17) y is the first whose values "
        "the module never computes"
    )


class ScaledValues(ExplicitSelfAttention):
    """Scales the values before they are summed."""

    def _keys_and_values(
        self, x: torch.Tensor, first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = super()._keys_and_values(x, first)
        return k, 1.5 * v


def seeing_one_row_ahead(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / by**0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)
    return torch.softmax(scores.masked_fill(later, -torch.inf) if causal else scores, -1) @ v


def fused_and_one_row_ahead(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=by**-0.5)


def otherwise(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    by: int,
    causal: bool,
    axis: int = -1,
    power: float = 0.5,
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / by**power
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf) if causal else scores, axis) @ v


class Unscaled(ExplicitSelfAttention):
    """Leaves out the scale of the scores."""

    way = replace(EXPLICIT, compute=partial(otherwise, power=0.0))


class OtherAxis(ExplicitSelfAttention):
    """Takes the softmax of columns."""

    way = replace(EXPLICIT, compute=partial(otherwise, axis=-2))


def biased(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    return otherwise(q + 0.5, k, v, by=by, causal=causal)


def fused_and_scaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    compute = torch.nn.functional.scaled_dot_product_attention
    return compute(q, 1.5 * k, v, is_causal=causal, scale=by**-0.5)


class BiasedQueries(ExplicitSelfAttention):
    """Adds a bias to the queries after they are computed."""

    way = replace(EXPLICIT, compute=biased)


def all_changed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    return otherwise(q + 0.5, 1.5 * k, v - 0.25, by=by, causal=causal)


class AllChanged(ExplicitSelfAttention):
    """Changes queries, keys and values after they are computed."""

    way = replace(EXPLICIT, compute=all_changed)


class ScaledKeysFused(FusedSelfAttention):
    """Scales the keys after they are computed."""

    way = replace(SDPA, compute=fused_and_scaled)


class AheadExplicit(ExplicitSelfAttention):
    """Sees one later row."""

    way = replace(EXPLICIT, compute=seeing_one_row_ahead)


class AheadFused(FusedSelfAttention):
    """Sees one later row, in one operation."""

    way = replace(SDPA, compute=fused_and_one_row_ahead)


class NegatedKeysInStep(ExplicitSelfAttention):
    """Negates the keys of a step."""

    def _row(
        self, x_t: torch.Tensor, q_t: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: int = 0
    ) -> torch.Tensor:
        return super()._row(x_t, q_t, -k, v, at)


class OffByOne(Reformer):
    """Gathers the values one place off."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        q, v = self.heads(x @ self.W_Q), self.heads(x @ self.W_V)
        products = q @ self.H
        at = torch.argsort(torch.cat([products, -products], dim=-1).argmax(-1), stable=True)
        q, v = gathered(q, at), gathered(v, at.roll(1, -1))
        k = q / torch.sqrt((q * q).sum(-1, keepdim=True))
        rows = gathered(self.attend(q, k, v), torch.argsort(at, stable=True))
        return rows.transpose(1, 2).flatten(2) @ self.W_out


BLAMED: dict[str, tuple[type[torch.nn.Module], str, str, str]] = {
    "an array that equals another one at l = 1": (
        ScaledValues, "self-attention", "explicit",
        "the module computes Q, K, V, Z, A as the equations do; "
        "it reads other values in the place of V in equation (15)-(16) R",
    ),
    "one of the arrays that one operation reads": (
        ScaledKeysFused, "self-attention", "sdpa",
        "the module computes Q, K, V as the equations do; "
        "it reads other values in the place of K in equation (13) Z",
    ),
    "queries with a bias": (
        BiasedQueries, "self-attention", "explicit",
        "the module computes Q, K, V as the equations do; "
        "it reads other values in the place of Q in equation (13) Z",
    ),
    "queries, keys and values": (
        AllChanged, "self-attention", "explicit",
        "the module computes Q, K, V as the equations do; it reads other values "
        "in the place of Q and K in equation (13) Z and of V in equation (15)-(16) R",
    ),
    "scores without a scale": (
        Unscaled, "self-attention", "explicit",
        "the module computes Q, K, V as the equations do; "
        "equation (13) Z is the first whose values the module never computes",
    ),
    "weights along another axis": (
        OtherAxis, "self-attention", "explicit",
        "the module computes Q, K, V, Z as the equations do; "
        "equation (14) A is the first whose values the module never computes",
    ),
    "a mask, where row 2 of l = 2 is right": (
        AheadExplicit, "self-attention", "explicit",
        "the module computes Q, K, V, Z as the equations do; "
        "equation (14) A is the first whose values the "
        "module never computes",
    ),
    "arrays that one operation computes": (
        AheadFused, "self-attention", "sdpa",
        "the module computes Q, K, V as the equations do; "
        "equation (13) Z is the first whose values the "
        "module never computes; "
        "one operation computes Z, A, R together, so that the fault may lie in any",
    ),
    "a step whose weights at token 2 are swapped": (
        NegatedKeysInStep, "self-attention", "explicit",
        "in step, the module computes Q, K, V as the equations do; "
        "it reads other values in the place of K in equation (13) Z",
    ),
    "rows in another order": (
        OffByOne, "reformer", "explicit",
        "the module computes Q, V, D, P, g, at, back, Q_S, K_S, Z, A as the equations do; "
        "equation V_S is "
        "the first whose entries the module orders in another way",
    ),
}  # fmt: skip


@pytest.mark.grid(2)
@pytest.mark.parametrize("kind", BLAMED)
def test_the_array_with_the_fault_is_blamed(kind: str) -> None:
    module, mixer, name, sentence = BLAMED[kind]
    claimed = replace(implementations(mixer)[name], made=module)
    prove = step_equals if sentence.startswith("in step") else module_equals
    proof = prove(cm.mixer(mixer), claimed)
    assert proof.passed is False
    assert proof.detail.endswith(sentence), proof.detail


def test_infinite_entries_hide_no_difference_and_are_none() -> None:
    assert first_difference(torch.tensor([1.0, inf]), torch.tensor([5.0, inf]), "not")
    assert not first_difference(torch.tensor([5.0, inf]), torch.tensor([5.0, inf]), "not")
    held = {"M": np.array([[0.0, -inf], [0.0, 0.0]])}
    mixer = SimpleNamespace(buffers=[SimpleNamespace(name="M")])
    case: Any = SimpleNamespace(mixer=mixer, registered=held, arrays=lambda: held)
    assert not _buffers_apart(case)


def test_memory_without_values_is_no_number_of_a_call() -> None:
    with Recorder(1) as recorder:
        torch.empty(5).copy_(torch.full((5,), 7.0))
        torch.ones(3).new_empty(2)
    assert sorted(len(seen) for seen in recorder.seen) == [3, 5, 5]


def test_a_recorded_complex_number_stays_when_it_is_changed_in_place() -> None:
    with Recorder(1) as recorder:
        torch.full((2,), 1 + 2j).mul_(3)
    assert [seen.tolist() for seen in recorder.seen] == [[1, 2] * 2, [3, 6] * 2]


def test_infinite_numbers_hide_no_missing_number_in_low_precision() -> None:
    with Multisets(1) as recorder:
        torch.tensor([-inf, 2.0, 1.0]).bfloat16()
    assert recorder.has(np.array([1.0, 2.0, -inf]))
    assert not recorder.has(np.array([1.0, 3.0, -inf]))


def test_check_deep_blames_the_array_with_the_fault() -> None:
    """One token draws attention to one row, which equals that row's value."""
    mixer = cm.mixer("self-attention")
    claimed = replace(implementations(mixer)["explicit"], made=ScaledValues)
    trial = Trial(Subject(mixer, claimed), Draw({"l": 1, "d": 1, "n": 1}), 0)
    (said,) = [text for kind, text in trial.findings() if kind == "result"]
    assert "reads other values in the place of V in equation (15)-(16) R" in said


def clamped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool
) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1) / by**0.5).clamp(-20, 20)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf) if causal else scores, -1) @ v


def with_softmax_in_fp32(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, by: int, causal: bool, part: float = 1.0
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / (part * by**0.5)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, -torch.inf) if causal else scores
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


@pytest.mark.parametrize("part", [1.0, 1.001])
def test_a_softmax_in_fp32_is_compared_up_to_its_rounding(part: float) -> None:
    class InSingle(ExplicitSelfAttention):
        way = replace(EXPLICIT, compute=partial(with_softmax_in_fp32, part=part))

    mixer = cm.mixer("self-attention")
    claimed = replace(implementations(mixer)["explicit"], made=InSingle)
    subject, draw = Subject(mixer, claimed), Draw({"l": 5, "d": 6, "n": 2})
    whole, found = module_equals(mixer, claimed), findings(Trial, subject, draw)
    if part == 1.0:
        steps = dispatched_equals(mixer, claimed, step=True)
        assert whole.passed and whole.detail.endswith(IN_SINGLE) and steps.passed
        assert found == [] and subject.noted == {IN_SINGLE}
    else:
        assert whole.passed is False and found
        assert "equation (13) Z is the first whose values the module never" in whole.detail


def test_weights_that_are_zeros_and_ones_are_blamed_by_their_places() -> None:
    """Each 0 and 1 of a saturated softmax is also among the weights of clamped scores."""

    class Clamped(ExplicitSelfAttention):
        way = replace(EXPLICIT, compute=clamped)

    mixer = cm.mixer("self-attention")
    claimed = replace(implementations(mixer)["explicit"], made=Clamped)
    trial = Trial(Subject(mixer, claimed), Draw({"l": 5, "d": 6, "n": 2}, scale=300.0), 0)
    (said,) = [text for kind, text in trial.findings() if kind == "result"]
    assert said.endswith(
        "the module computes Q, K, V, Z as the equations do; equation (14) A is the first whose "
        "values the module never computes at their places"
    )


def test_transforms_are_compared_as_the_equations_write_them() -> None:
    """A conjugate in the product: both transforms are right, their product is not."""

    def conjugated(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        l = x.shape[-2]
        points = 2 * (1 << (l - 1).bit_length())
        product = torch.fft.rfft(x, points, dim=-2) * torch.fft.rfft(kernel, points, dim=0).conj()
        mixed: torch.Tensor = torch.fft.irfft(product, points, dim=-2)
        return mixed[..., :l, :]

    class Conjugated(WeFft):
        algorithm = replace(VECTOR_FFT, compute=conjugated)

    claimed = replace(implementations("we")["fft"], made=Conjugated)
    proof = module_equals(cm.mixer("we"), claimed)
    assert proof.passed is False
    said = "computes x_f, w_f as the equations do; it reads other values in the place of w_f in "
    assert said + "equation e_f" in proof.detail


def test_proofs_print_in_every_format() -> None:
    found = [
        Proof("well formed", True, "4 sets of small sizes; forms: direct"),
        Proof("direct: module equals equations", False, "at l = 2, d = 1, w = 2: y[2, 1] is 3"),
        Proof("direct: step equals forward", None, "it has no `step`"),
    ]
    said = json.loads(printed(document("mine.py:mine", found), "json"))
    assert said["schema"] == 1 and said["mixer"] == "mine.py:mine"
    assert [p["passed"] for p in said["proofs"]] == [True, False, None]
    assert said["proofs"][1].keys() == {"name", "passed", "detail"}
    wide = printed(document("mine.py:mine", found), "rich")
    assert "direct: module equals equations  FAILS        at l = 2, d = 1, w = 2:" in wide
    assert "direct: step equals forward      not checked  it has no `step`" in wide
    assert "| well formed | holds | 4 sets" in printed(document("mine.py:mine", found), "markdown")


def test_random_calls_are_named_if_some_were_made() -> None:
    """A module that differs from its equations is called at no random sizes."""
    plain = Proof("direct: module equals equations", False, "")
    drawn = Proof("direct: every call gives the same result", True, "")
    none, some = (
        printed(document("mine", [plain, *more], seed=3), "markdown") for more in ([], [drawn])
    )
    assert "no random call was made" in none and "--seed 3" not in none
    assert "--seed 3" in some and "no random call was made" not in some


def test_a_narrow_terminal_wraps_the_detail_and_loses_none_of_it() -> None:
    detail = "at l = 2, d = 1, w = 2: " + " ".join(f"word{k}" for k in range(40))
    narrow = printed(document("mine", [Proof("well formed", False, detail)]), "rich", width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert [word for word in detail.split() if word not in narrow] == []


RECURRENCE = """
import torch
import costmodel as cm
from profiler.modules import State, implementation

m = cm.Mixer("NAME")
l, d, u = m.sizes("l d u")
x, y, W = m.input("x", l, d), m.output("y", l, d), m.parameter("W", d, u)
with m.form("direct") as f:
    i, r, a, b = f.index("i", 1, l), f.index("r", 2, l), f.index("a", 1, d), f.index("b", 1, u)
    K, S = f.array("K", l, u), f.array("S", l, u, d)
    K[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
    S[1, b, a] = K[1, b] * x[1, a]
    S[r, b, a] = S[r - 1, b, a] + K[r, b] * x[r, a]
    y[i, a] = cm.sum_(K[i, b] * S[i, b, a], over=b)


@implementation("NAME", step_rewrites=("zero-state",))
class Recurrence(torch.nn.Module):
    def __init__(self, *, d, u):
        super().__init__()
        self.W = torch.nn.Parameter(torch.empty(d, u))

    def forward(self, x):
        k, S, rows = x @ self.W, None, []
        for t in range(x.shape[1]):
            new = k[:, t, :, None] * x[:, t, None, :]
            S = new if S is None else S + new
            rows.append((k[:, t, :, None] * S).sum(1))
        return torch.stack(rows, 1)

    def zeros(self, batch):
        return self.W.new_zeros(batch, *self.W.T.shape)

    def initial_state(self, batch, length):
        return HELD

    def step(self, x_t, state):
        k = x_t @ self.W
        S = READ
        S = S + k[:, :, None] * x_t[:, None, :]
        WRITE
        return (k[:, :, None] * S).sum(1)
"""
HELD: dict[str, tuple[tuple[str, str, str], bool, str]] = {
    "tuple": (("(self.zeros(batch),)", "state[0].clone()", "state[0].copy_(S)"), True, ""),
    "dictionary": (('{"S": self.zeros(batch)}', 'state["S"]', 'state["S"] = S'), True, ""),
    "batch-last": (
        ('State({"S": self.zeros(batch).movedim(0, -1).clone()}, carried=("S",))',
         'state.held("S").movedim(-1, 0)', "state.append(S=S.movedim(0, -1))"), True, "",
    ),
    "not-carried": (
        ('State({"S": self.zeros(batch)})', 'state.arrays["S"].clone()',
         'state.arrays["S"].copy_(S); state.position += 1'), False,
        "say State(..., carried=('S',))",
    ),
    "of-one-axis": (
        ('State({"S": self.zeros(batch), "n": self.W.new_zeros(batch)}, carried=("S",))',
         'state.arrays["S"].clone()', 'state.arrays["S"].copy_(S); state.position += 1'), False,
        "n is (2,), without an axis of tokens: say State(..., carried=('n',))",
    ),
    "more-than-in-use": (
        ('{"S": self.zeros(batch), "T": self.zeros(2 * batch)}', 'state["S"]', 'state["S"] = S'),
        False, "a dict does not tell which entries are in use",
    ),
}  # fmt: skip


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", HELD)
def test_a_state_of_any_shape_is_counted(name: str, tmp_path: Path) -> None:
    (held, read, write), holds, sentence = HELD[name]
    text = RECURRENCE.replace("HELD", held).replace("READ", read).replace("WRITE", write)
    (tmp_path / "held.py").write_text(text.replace("NAME", f"held-{name}"))
    found = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/held.py:held-{name}"))}
    assert found[MODULE].passed and found[STEP].passed and found[WORK].passed
    assert (found[STATE].passed is True) == holds and sentence in found[STATE].detail


def test_the_rewrite_that_explains_a_step_is_named(tmp_path: Path) -> None:
    (held, read, write), _, _ = HELD["tuple"]
    text = RECURRENCE.replace("HELD", held).replace("READ", read).replace("WRITE", write)
    text = text.replace(', step_rewrites=("zero-state",)', "").replace("NAME", "undescribed-step")
    (tmp_path / "step.py").write_text(text)
    found = {p.name: p for p in prove_mixer(cm.mixer(f"{tmp_path}/step.py:undescribed-step"))}
    assert found[WORK].detail.endswith("=('zero-state',) explains the whole difference")


def test_a_write_is_told_by_the_entry_that_changed() -> None:
    """An entry that was NaN and still is has not changed."""
    nan = float("nan")
    kept = {"its caller's x": (torch.tensor([nan, 9.0]), torch.tensor([nan, 2.0]))}
    assert "x[2] was 2" in write_in_words(kept, "forward")
    assert write_in_words(kept, "forward") == ""  # restored
