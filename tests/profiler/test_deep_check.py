"""Does `check --deep` draw calls at which a module is wrong, and find the mistake?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
import costmodel as cm
from costmodel.proofs.check import Proof
from profiler.modules import implementations
from profiler.proofs import equality
from profiler.proofs.cases import ModuleCase
from profiler.proofs.deep import (
    KINDS,
    PRECISIONS,
    _rounded_apart,
    deep_proofs,
    findings,
    names as proof_names,
)
from profiler.proofs.draws import Draw, at_each_size, draws
from profiler.proofs.each_size import EachSize
from profiler.proofs.equality import not_reached
from profiler.proofs.history import BEFORE
from profiler.proofs.room import tensors_held
from profiler.proofs.rounding import WrongKernels, sharp
from profiler.proofs.trial import (
    KEEPS_APART,
    Decoding,
    Refused,
    Subject,
    Trial,
    other_rows,
)
from tests.stand_ins import Instead, substitute
from tests.user_mixers import PLAIN, WINDOW, Change, written


@pytest.fixture(autouse=True)
def _called_often_at_one_draw(request: pytest.FixtureRequest) -> Iterator[None]:
    """Faults that only many calls show are sought at one draw instead of three, except by the tests
    of such faults, which ask for `often`."""
    with pytest.MonkeyPatch.context() as patch:
        if "often" not in request.fixturenames:
            substitute(patch, deep_draws=1)
        yield


@pytest.fixture
def often() -> None:
    """As many draws are called many times as `check --deep` calls."""


RETURN = "return s @ self.W_out"
STEP = "return (held * self.w_win[: held.shape[1]]).sum(1) @ self.W_out"
BEGIN = "        s = x * self.w_win[0]"
MADE = "        self.w = w\n"
STATE = 'return State({"x": self.w_win.new_zeros(batch, self.w - 1, self.d)}, sliding=True)'
CLASS = '@implementation("NAME")'


def where(condition: str) -> tuple[Change, ...]:
    """The result of `forward` a tenth too large."""
    return ((RETURN, f"s = s * (1.1 if {condition} else 1.0); {RETURN}"),)


def step_where(condition: str) -> tuple[Change, ...]:
    """The result of `step` a tenth too large."""
    return ((STEP, f"{STEP} * (1.1 if {condition} else 1.0)"),)


Shows = Callable[[Draw], bool]
WRONG: dict[str, tuple[tuple[Change, ...], Shows, str, str]] = {
    "row-of-zeros": (
        ((RETURN, f"s = s + 0.1 * x.eq(0).all(-1).any(); {RETURN}"),),
        lambda c: "row of zeros" in c.values, "result", "y[1",
    ),
    "equal-rows": (
        where("x.shape[1] > 1 and x.eq(x[:, :1]).all()"),
        lambda c: c.values == "of equal rows" and c.sizes["l"] > 1, "result", "y[1",
    ),
    "all-negative": (
        where("x.shape[1] > 3 and x.lt(0).all()"),
        lambda c: c.values == "negative" and c.sizes["l"] > 3, "result", "y[1",
    ),
    "large-numbers": (where("x.abs().max() > 500"), lambda c: c.scale == 1000, "result", "y["),
    "two-threads": (
        where("torch.get_num_threads() > 1"), lambda c: c.threads > 1, "result", "y[1, 1] is",
    ),
    "in-another-thread": (
        where("__import__('threading').current_thread().name != 'MainThread'"),
        lambda c: c.threads > 1, "result", "y[1, 1] is",
    ),
    "frozen-weights": (
        where("not self.w_win.requires_grad"), lambda c: "frozen" in c.before, "result", "y[1",
    ),
    "input-without-gradient": (
        where("torch.is_grad_enabled() and not x.requires_grad"),
        lambda c: "no gradient" in c.before, "result", "with gradients recorded, y[1",
    ),
    "kept-in-few-digits": (
        (
            (MADE, f"{MADE}        self.kept = None\n"),
            (RETURN, "self.kept = self.W_out.detach() * 1 if self.W_out.dtype == torch.float32 else"
             " self.kept\n        return s @ (self.W_out if self.kept is None else"
             " self.kept.to(s.dtype))"),
        ),
        lambda c: "converted" in c.before and c.sizes["d"] > 4, "result", "y[1",
    ),
    "leaves-train-mode": (
        ((RETURN, f"y = {RETURN[7:]}; self.eval(); return y"),), lambda c: c.train, "writes",
        "forward changes the mode (train or not) of the module from True to False",
    ),
    "batch-of-3": (where("x.shape[0] >= 3"), lambda c: c.b >= 3, "result", "y[1, 1] is"),
    "batch-of-50": (where("x.shape[0] > 50"), lambda c: c.b > 50, "result", "y[1, 1] is"),
    "longer-than-200": (where("x.shape[1] > 200"), lambda c: c.sizes["l"] > 200, "result", "y[1"),
    "longer-than-900": (where("x.shape[1] > 900"), lambda c: c.sizes["l"] > 900, "result", "y[1"),
    "multiples-of-8": (where("x.shape[1] % 8 == 0"), lambda c: c.sizes["l"] == 8, "result", "y[1"),
    "power-of-two": (where("x.shape[1] == 64"), lambda c: c.sizes["l"] == 64, "result", "y[1"),
    "width-of-32": (where("self.d >= 32"), lambda c: c.sizes["d"] >= 32, "result", "y[1"),
    "width-of-250": (where("self.d > 250"), lambda c: c.sizes["d"] > 250, "result", "y[1"),
    "window-beyond-8": (where("self.w > 8"), lambda c: c.sizes["w"] > 8, "result", "y[1, 1] is"),
    "window-of-100": (where("self.w == 100"), lambda c: c.sizes["w"] == 100, "result", "y[1"),
    "sizes-together": (
        where("x.shape[1] > 40 and self.d > 6 and x.shape[0] > 1"),
        lambda c: c.b > 1 and c.sizes["l"] > 40 and c.sizes["d"] > 6, "result", "y[1",
    ),
    "train-mode": (where("self.training"), lambda c: c.train, "result", "y[1, 1] is"),
    "not-contiguous": (
        where("not x.is_contiguous()"),
        lambda c: c.layout == "transposed" and c.b > 1 and c.sizes["l"] > 1, "result", "y[1",
    ),
    "clipped": (
        ((BEGIN, f"        x = x.clamp(-20, 20)\n{BEGIN}"),),
        lambda c: c.scale > 1 and c.sizes["d"] > 4, "result", "y[",
    ),
    "with-gradients": (where("x.requires_grad"), lambda c: True, "result", "with gradients rec"),
    "kept-weights": (
        (
            (MADE, f"{MADE}        self.kept = None\n"),
            (RETURN, "self.kept = self.W_out.detach().clone() if self.kept is None else self.kept\n"
             "        return s @ self.kept"),
        ),
        lambda c: c.before == "after a call with other weights", "result", "y[1",
    ),
    "copied-otherwise": (
        (
            ("    def initial_state", "    def __deepcopy__(self, memo):\n"
             "        other = type(self)(d=self.d, l=1, w=self.w, dtype=torch.float64)\n"
             "        other.load_state_dict(self.state_dict())\n"
             "        other.W_out.data.mul_(1.5)\n        return other\n\n"
             "    def initial_state"),
        ),
        lambda c: c.before == "as a deep copy", "result",
        "the module changes the parameter W_out: W_out[1, 1] was ",
    ),
    "loaded-otherwise": (
        (
            (MADE, f"{MADE}        self.register_load_state_dict_post_hook(\n"
             "            lambda own, keys: [own.w_win.data.mul_(2)] and None)\n"),
        ),
        lambda c: c.before == "loaded from a state_dict", "result",
        "the module changes the parameter w_win: w_win[1, 1] was ",
    ),
    "kept-by-the-class": (
        (
            (CLASS, f"KEPT = {{}}\n\n\n{CLASS}"),
            (BEGIN, f"{BEGIN} * KEPT.setdefault(x.shape, 1.0 + (x.dtype == torch.float32))"),
        ),
        lambda c: c.before == "after another module of the class was called", "result", "y[1",
    ),
    "leaks-along-the-batch": (
        ((RETURN, f"s = s + 0.1 * s.flip(0) * (x.shape[0] > 4); {RETURN}"),),
        lambda c: c.b > 4, "result", "y[1",
    ),
    "draws-numbers": (
        ((RETURN, f"s = s + 1e-3 * torch.randn(s.shape) * self.training; {RETURN}"),),
        lambda c: c.train, "result", "y[1",
    ),
    "detached-weights": (
        (("x[:, :-lag] * self.w_win[lag]", "x[:, :-lag] * self.w_win[lag].detach()"),),
        lambda c: c.sizes["w"] > 1 and c.sizes["l"] > 2, "gradients",
        "the gradient of w_win[2, 1] is 0, the equations give",
    ),
    "detached-sum": (
        ((RETURN, "return s.detach() @ self.W_out"),), lambda c: True, "gradients",
        "the gradients of W_out agree; a wrong gradient of s would explain the differences",
    ),
    "no-gradient": (
        ((RETURN, "return s @ self.W_out.data"),), lambda c: True, "gradients",
        "the gradient of W_out[1, 1] is 0, the equations give",
    ),
    "gradient-of-a-transposed-gradient": (
        (
            (CLASS, f"class Same(torch.autograd.Function):\n    @staticmethod\n"
             "    def forward(ctx, s):\n        return s.clone()\n\n    @staticmethod\n"
             "    def backward(ctx, g):\n        return g * (1 if g.is_contiguous() else 1.5)\n\n\n"
             f"{CLASS}"),
            (RETURN, "return Same.apply(s @ self.W_out)"),
        ),
        lambda c: c.layout == "transposed" and c.b > 1 and c.sizes["l"] > 1, "gradients",
        "the gradients of x, w_win, W_out differ",
    ),
    "in-inference-mode": (
        where("torch.is_inference_mode_enabled()"), lambda c: True, "result",
        "in inference mode, y[1, 1] is",
    ),
    "gradient-twice-too-large": (
        ((RETURN, "y = s @ self.W_out; return y + (y - y.detach()) * (x.shape[1] > 100)"),),
        lambda c: c.sizes["l"] > 100, "gradients", "the gradients of x, w_win, W_out differ",
    ),
    "writes-into-x": (
        ((RETURN, f"y = {RETURN[7:]}\n        x.detach().mul_(2.0); return y"),),
        lambda c: True, "writes", "forward writes into its caller's x: x[1, 1, 1] was ",
    ),
    "writes-into-a-weight": (
        ((RETURN, f"y = {RETURN[7:]}; self.W_out.data.mul_(1 + 1e-9); return y"),),
        lambda c: True, "writes", "forward writes into the parameter W_out: W_out[1, 1] was ",
    ),
    "decodes-100-tokens": (
        step_where("state.position > 100"), lambda c: c.sizes["l"] > 100, "step", "y[101][1] is",
    ),
    "decodes-a-batch-of-3": (step_where("x_t.shape[0] > 2"), lambda c: c.b > 2, "step", "y[1][1]"),
    "step-writes": (
        ((STEP, f"y = {STEP[7:]}; x_t.zero_(); return y"),), lambda c: True, "writes",
        "step writes into its caller's x: x[1, 1, 1] was ",
    ),
    "returns-a-view": (
        ((STEP, f"row = {STEP[7:]}\n        self.out = getattr(self, 'out', row)\n"
          "        return self.out.copy_(row)"),),
        lambda c: c.sizes["l"] > 1, "writes", "a later step writes into the row that an earlier",
    ),
    "one-state-for-all": (
        (
            (MADE, f"{MADE}        self.room = {{}}\n"),
            (STATE, STATE.replace("self.w_win.new_zeros(batch, self.w - 1, self.d)",
             "self.room.setdefault(batch, self.w_win.new_zeros(batch, self.w - 1, self.d))")),
        ),
        lambda c: c.sizes["l"] > 6 and c.sizes["w"] > 3 and not c.before, "step", KEEPS_APART,
    ),
    "rows-shared-by-copies": (
        (
            (CLASS, "class Shared(State):\n    def __deepcopy__(self, memo):\n"
             f"        return __import__('copy').copy(self)\n\n\n{CLASS}"),
            (STATE, 'return Shared({"x": self.w_win.new_zeros(batch, length, self.d)})'),
            ('state.held("x")', 'state.held("x")[:, max(0, state.position + 1 - self.w) :]'),
        ),
        lambda c: c.sizes["l"] > 6 and c.sizes["w"] > 2 and not c.before, "step", KEEPS_APART,
    ),
}  # fmt: skip
"""Fault -> the change, the draws in which it shows, the kind of what is found, and its sentence."""


@cache
def drawn(name: str, seed: int = 0) -> tuple[Draw, ...]:
    """All draws of a mixer like the window's; they follow from its equations and the seed."""
    mixer = cm.mixer(name)
    (described,) = implementations(mixer).values()
    return tuple(draws(mixer, Subject(mixer, described).forward, seed, tuple(BEFORE)))


def said(target: str, shows: Shows, kind: str) -> list[str]:
    """The sentences of one kind at the first draw in which the fault shows: draws of normal numbers
    that keep every gradient stand first, then cheap ones."""
    mixer = cm.mixer(target)
    (described,) = implementations(mixer).values()
    plainest = sorted(
        drawn(target),
        key=lambda c: (c.values != "normal", "frozen" in c.before or "no gradient" in c.before),
    )
    draw = next(draw for draw in plainest if shows(draw))
    subject = Subject(mixer, described)
    made = (Trial, Decoding) if kind == "writes" else (Decoding if kind == "step" else Trial,)
    found = (one for way in made for one in findings(way, subject, draw))
    return [text for own, text in found if own == kind]


def proof_named(name: str, proofs: Iterator[Proof]) -> Proof:
    """The proof of this name; those after it are not made."""
    return next(proof for proof in proofs if proof.name == name)


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_drawn_and_found(name: str, tmp_path: Path) -> None:
    changes, shows, kind, sentence = WRONG[name]
    found = said(written(tmp_path, f"wrong-{name}", *changes), shows, kind)
    assert [text for text in found if sentence in text], found


AT_ONE_SIZE: dict[str, tuple[Change, str]] = {
    "one-width": ((RETURN, f"s = s * 1.1 if self.d == 24 else s; {RETURN}"), "d = 24"),
    "one-batch": ((RETURN, f"s = s * 1.1 if len(x) == 5 else s; {RETURN}"), "b = 5"),
    "a-step": ((STEP, f"y = {STEP[7:]}; return y * 1.1 if self.w == 14 else y"), "w = 14"),
    "equal-sizes": (
        (RETURN, f"s = s * 1.1 if self.d == x.shape[1] > 16 else s; {RETURN}"),
        "l = 20, d = 20",
    ),
    "work": ((RETURN, f"s = s + 0 if self.d == 56 else s; {RETURN}"), "d = 56"),
    "long": ((RETURN, f"s = s * 1.01 if x.shape[1] > 200 else s; {RETURN}"), "l = 257"),
    "gradient": ((RETURN, f"s = s.detach() if self.d == 22 else s; {RETURN}"), "d = 22"),
}
"""Fault -> the change, and the first size at which it shows."""


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", AT_ONE_SIZE)
def test_what_is_wrong_at_one_size_alone_is_found(name: str, tmp_path: Path) -> None:
    change, size = AT_ONE_SIZE[name]
    mixer = cm.mixer(written(tmp_path, f"wrong-at-{name}", change))
    (described,) = implementations(mixer).values()
    proofs = deep_proofs(mixer, described, 0, counted=True)
    proof = [next(proofs) for _ in range(1 + (name == "gradient"))][-1]
    assert proof.passed is False and size in proof.detail.partition(":")[0], proof.detail
    assert (proof.name == f"direct: {KINDS['gradients']}") is (name == "gradient")


def test_a_result_that_is_always_wrong_is_not_blamed_on_gradients(tmp_path: Path) -> None:
    always = cm.mixer(written(tmp_path, "wrong-always", *where("self.d == 3")))
    recorded = cm.mixer(written(tmp_path, "wrong-recorded", *where("x.requires_grad")))
    found = []
    for mixer in (always, recorded):
        (described,) = implementations(mixer).values()
        sizes = EachSize(Subject(mixer, described), counted=False)
        found.append(sizes.with_gradients(Draw({"l": 1, "d": 3, "w": 1})))
    assert found[0] is None and found[1] is not None and found[1][0] == "result"


def test_a_proof_at_each_size_says_that_it_compared_no_operations() -> None:
    mixer = cm.mixer("me")
    module = implementations(mixer)["toeplitz"]
    proof = next(deep_proofs(mixer, module, 0, thin=48, counted=False))
    assert proof.passed and proof.detail.endswith("; operations were not compared")


ROUNDED = {
    "fp32": "x.dtype == torch.float32",
    "bf16": "x.dtype == torch.bfloat16",
    "fp16": "x.dtype == torch.float16",
    "bf16 by autocast": "torch.is_autocast_enabled('cpu')",
}


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_wrong_in_one_type_alone_is_found_there(name: str, tmp_path: Path) -> None:
    change = (RETURN, f"s = s * (1.5 if {ROUNDED[name]} else 1.0); {RETURN}")
    mixer = cm.mixer(written(tmp_path, f"wrong-in-{name.replace(' ', '-')}", change))
    (described,) = implementations(mixer).values()
    found = {proof.name: proof for proof in deep_proofs(mixer, described, 0, thin=40)}
    verdicts = {p.name: found[f"direct: {p.name} equals fp64 up to rounding"] for p in PRECISIONS}
    shown = {name, "bf16 by autocast"} if name == "fp32" else {name}  # autocast takes fp32 weights
    assert {own for own, proof in verdicts.items() if proof.passed is False} == shown
    assert verdicts[name].detail.startswith("at b = 1, l = 1, d = 1, w = 1: y[1, 1, 1] is ")


def test_in_low_precision_the_arrays_of_the_wrong_sequence_are_compared(tmp_path: Path) -> None:
    change = (RETURN, f"s[1:] *= 1.5 if x.dtype == torch.bfloat16 else 1.0; {RETURN}")
    mixer = cm.mixer(written(tmp_path, "wrong-in-sequence-2", change))
    (described,) = implementations(mixer).values()
    draw = Draw({"l": 5, "d": 3, "w": 2}, b=2)
    bf16 = next(one for one in PRECISIONS if one.name == "bf16")
    said, _ = _rounded_apart(Subject(mixer, described), draw, bf16, decoding=False)
    assert said.startswith("y[2, ")
    assert said.endswith("; equation (1) s is the first whose values the module never computes")


IN_BF16 = {
    "five-percent-beyond-5-tokens": (
        (RETURN, f"s = s * (1.05 if {ROUNDED['bf16']} and x.shape[1] > 5 else 1.0); {RETURN}"),
        ", of which rounding explains ",
    ),
    "decoding-beyond-20-tokens": (
        (STEP, f"{STEP} * (1.1 if x_t.dtype == torch.bfloat16 and state.position > 20 else 1.0)"),
        "step[1, 2",
    ),
}
"""Fault -> the change, and a part of the sentence that names it."""


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", IN_BF16)
def test_a_small_error_of_long_sequences_in_bf16_alone_is_found(
    name: str, tmp_path: Path, instead: Instead
) -> None:
    instead(deep_reducing_s=0.2)
    change, sentence = IN_BF16[name]
    mixer = cm.mixer(written(tmp_path, f"in-bf16-{name}", change))
    (described,) = implementations(mixer).values()
    proofs = deep_proofs(mixer, described, 0, thin=24)
    proof = next(p for p in proofs if p.name == "direct: bf16 equals fp64 up to rounding")
    assert proof.passed is False and sentence in proof.detail, proof.detail


def test_a_kernel_that_torch_has_wrong_is_named_and_blames_no_module(tmp_path: Path) -> None:
    untyped: Any = torch.library
    library = untyped.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch tells that a kernel is replaced
        library.impl(
            "sinc", lambda x: torch.ones_like(x) * (1 + (x.dtype == torch.bfloat16)), "CPU"
        )
    try:
        change = (RETURN, f"s = s * torch.sinc(s.detach() * 0); {RETURN}")
        mixer = cm.mixer(written(tmp_path, "by-a-wrong-kernel", change))
        (described,) = implementations(mixer).values()
        found = {proof.name: proof for proof in deep_proofs(mixer, described, 0, thin=40)}
    finally:
        library._destroy()
    assert found["direct: fp16 equals fp64 up to rounding"].passed
    proof = found["direct: bf16 equals fp64 up to rounding"]
    assert proof.passed is None
    assert proof.detail.startswith(
        "torch's own result is wrong on this machine: aten::sinc is off by 1, where rounding"
    )


WAVE = "(100_000 * torch.nn.functional.softplus({})).cos()"
SOFTPLUS: tuple[Change, ...] = (
    ("    y[i, b] = cm.sum_(s[i, a] * W_out[a, b], over=a)",
     '    T = f.array("T", l, d)\n    T[i, b] = cm.sum_(s[i, a] * W_out[a, b], over=a)\n'
     '    y[i, b] = cm.function("cos", 100_000 * cm.function("softplus", T[i, b]))'),
    (RETURN, f"return {WAVE.format(RETURN[7:])}"),
    (STEP, f"return {WAVE.format(STEP[7:])}"),
)  # fmt: skip
"""At z = 20, torch's softplus(z) is 2e-9 below the exact value."""


@pytest.mark.grid(1)
@pytest.mark.parametrize(("threshold", "kinds"), [("20", set()), ("12", {"result", "step"})])
def test_a_module_may_approximate_softplus_as_torch_does_and_no_further(
    threshold: str, kinds: set[str], tmp_path: Path
) -> None:
    text = ("self.W_out)).cos()", f"self.W_out, threshold={threshold})).cos()")
    mixer = cm.mixer(written(tmp_path, f"of-softplus-{threshold}", *SOFTPLUS, text))
    (described,) = implementations(mixer).values()
    subject, draw = Subject(mixer, described), Draw({"l": 12, "d": 4, "w": 2}, scale=10.0)
    assert {kind for way in (Trial, Decoding) for kind, _ in findings(way, subject, draw)} == kinds


@pytest.mark.parametrize("first", [2, 3])
def test_a_fault_of_later_calls_is_no_approximation_of_softplus(first: int, tmp_path: Path) -> None:
    wrong = (
        (MADE, f"{MADE}        self.calls = 0\n"),
        (
            "return (100_000 *",
            f"self.calls += 1; return (1 + (self.calls >= {first})) * (100_000 *",
        ),
    )
    mixer = cm.mixer(written(tmp_path, f"of-softplus-from-{first}", *SOFTPLUS, *wrong))
    (described,) = implementations(mixer).values()
    subject, draw = Subject(mixer, described), Draw({"l": 12, "d": 4, "w": 2}, scale=10.0)
    assert "result" in {kind for kind, _ in findings(Trial, subject, draw)}


def test_one_infinite_entry_hides_no_wrong_entry(tmp_path: Path) -> None:
    """In bf16 every result is wrong, by parts that have no gradient; the first row is infinite."""
    wrong = "y = y + y.detach() * (0.5 * (x.dtype == torch.bfloat16))"
    first = "(torch.arange(x.shape[1]) < 1)[:, None]"
    change = (RETURN, f"y = {RETURN[7:]}; {wrong}; return y.masked_fill({first}, torch.inf)")
    mixer = cm.mixer(written(tmp_path, "one-infinite-row", change))
    (described,) = implementations(mixer).values()
    proofs = deep_proofs(mixer, described, 0, thin=80)
    found = next(p for p in proofs if p.name == "direct: bf16 equals fp64 up to rounding")
    assert found.passed is False
    assert ": y[1, 2, 1] is " in found.detail


def test_torch_is_blamed_for_no_entry_that_float64_has_too_and_no_type_refused() -> None:
    scales, weights = torch.ones(16).bfloat16(), torch.ones(16, 32, dtype=torch.int8)
    with WrongKernels(torch.bfloat16) as seen:
        assert torch.tensor([-1.0, 2.0], dtype=torch.bfloat16).log().isnan().any()
        y = torch._weight_int8pack_mm(torch.ones(2, 32).bfloat16(), weights, scales)
    assert seen.found == {} and y.eq(32).all()
    with pytest.raises(RuntimeError):
        torch._weight_int8pack_mm(torch.ones(2, 32).double(), weights, scales.double())


def test_answers_without_a_finite_entry_are_not_compared() -> None:
    infinite, none = torch.full((3,), torch.inf), torch.tensor([0.0])
    assert not sharp(none, infinite) and not sharp(none + torch.inf, infinite)
    assert sharp(none + 0.1, torch.tensor([1.0, torch.inf, torch.nan]))


def test_depthwise_convolutions_of_many_taps_return_in_every_type() -> None:
    x, taps, before = torch.ones(1, 3, 40), torch.ones(3, 1, 31), torch.backends.mkldnn.enabled
    for precision in PRECISIONS:
        with precision.around():
            y = torch.nn.functional.conv1d(x.to(precision.held), taps.to(precision.held), groups=3)
        assert y.eq(31).all(), precision.name
    assert torch.backends.mkldnn.enabled == before


@pytest.mark.usefixtures("often")
def test_a_module_that_is_wrong_from_the_41st_call_on(tmp_path: Path) -> None:
    change = (MADE, f"{MADE}        self.calls = 0\n")
    late = (RETURN, f"self.calls += 1; s = s * (1.1 if self.calls > 40 else 1.0); {RETURN}")
    mixer = cm.mixer(written(tmp_path, "wrong-in-the-end", change, late))
    (described,) = implementations(mixer).values()
    proof = proof_named(
        "direct: every call gives the same result", deep_proofs(mixer, described, 0, thin=40)
    )
    assert proof.passed is False and ": call 41, in " in proof.detail


@pytest.mark.usefixtures("often")
def test_what_is_wrong_in_low_precision_from_the_41st_call_on_is_found(tmp_path: Path) -> None:
    change = (MADE, f"{MADE}        self.calls = 0\n")
    late = "self.calls > 40 and x.dtype == torch.bfloat16"
    wrong = (RETURN, f"self.calls += 1; s = s * 1.1 if {late} else s; {RETURN}")
    mixer = cm.mixer(written(tmp_path, "wrong-in-the-end-in-bf16", change, wrong))
    (described,) = implementations(mixer).values()
    failed = [p for p in deep_proofs(mixer, described, 0, thin=40) if p.passed is False]
    (proof,) = failed
    assert proof.name == "direct: bf16 equals fp64 up to rounding"
    assert ", after 130 calls: y[1" in proof.detail


def test_a_module_that_refuses_every_size_proves_nothing(tmp_path: Path) -> None:
    change = (MADE, f'{MADE}        raise ValueError("one size too many")\n')
    mixer = cm.mixer(written(tmp_path, "refuses-all", change))
    (described,) = implementations(mixer).values()
    proofs = list(deep_proofs(mixer, described, 0, thin=60))
    assert {proof.name for proof in proofs} == set(proof_names(described))
    assert {proof.passed for proof in proofs} == {None}
    said = {proof.name: proof.detail for proof in proofs}
    assert said["direct: every call gives the same result"] == (
        "the module refuses the sizes of every call"
    )


def test_a_buffer_that_a_call_registers_is_kept(tmp_path: Path) -> None:
    lazy = (BEGIN, "        self.register_buffer('last', x * 0)\n" + BEGIN)
    mixer = cm.mixer(written(tmp_path, "registers-a-buffer", lazy))
    (described,) = implementations(mixer).values()
    draw = Draw(
        {"l": 3, "d": 2, "w": 2}, before="after the module was converted to float32 and back"
    )
    assert findings(Trial, Subject(mixer, described), draw) == []


def test_a_fault_that_shows_in_one_call_alone_is_told(tmp_path: Path) -> None:
    once = (
        (CLASS, f"CALLS = []\n\n\n{CLASS}"),
        (RETURN, f"CALLS.extend([0] * x.requires_grad); s = s + (len(CALLS) == 1); {RETURN}"),
    )
    mixer = cm.mixer(written(tmp_path, "wrong-once", *once))
    (described,) = implementations(mixer).values()
    name = "direct: module equals equations at random calls"
    proof = proof_named(name, deep_proofs(mixer, described, 0, thin=4))
    assert proof.passed is False and "with gradients recorded, y[1, 1] is " in proof.detail


def test_a_backward_pass_that_raises_fails_each_proof_that_takes_gradients(
    tmp_path: Path, instead: Instead
) -> None:
    instead(deep_reducing_s=0.2)
    over = "z = torch.exp(0 * s); s = s * z; z.add_(0) if x.shape[1] > 1 else None"
    change = (RETURN, f"{over}; {RETURN}")
    mixer = cm.mixer(written(tmp_path, "wrong-backward", change))
    (described,) = implementations(mixer).values()
    proofs = deep_proofs(mixer, described, 0, thin=40)
    taking = ["gradients of the module equal the equations'", "fp32 equals fp64 up to rounding"]
    for proof in (proof_named(f"direct: {name}", proofs) for name in taking):
        assert proof.passed is False, proof
        assert "the module fails: one of the variables needed for gradient" in proof.detail
        assert proof.detail.endswith(" instead.")  # without torch's hint


MAXIMUM: tuple[Change, ...] = (
    ('a, b = f.index("a", 1, d), f.index("b", 1, d)',
     'a, b, c = (f.index(letter, 1, d) for letter in "abc")'),
    ("W_out[a, b], over=a)", "W_out[a, b], over=a) + cm.max_over(W_out[a, c], over=(a, c))"),
    ("@ self.W_out", "@ self.W_out + self.W_out.amax()"),
)  # fmt: skip
"""Gradients of a maximum over two indices are not derived."""


def test_difference_quotients_are_counted_where_they_were_compared(tmp_path: Path) -> None:
    name = written(tmp_path, "of-a-maximum", *MAXIMUM)
    mixer = cm.mixer(name)
    (described,) = implementations(mixer).values()
    tried = drawn(name)[::20]
    smooth = [draw for draw in tried if draw.scale <= 1 and draw.values == "normal"]
    assert 0 < len(smooth) < len(tried)
    proof = proof_named(
        "direct: gradients of the module equal the equations'",
        deep_proofs(mixer, described, 0, thin=20),
    )
    assert proof.passed, proof.detail
    sized = at_each_size(mixer, Subject(mixer, described).forward, 0)[::20]
    number = len(sized) + len(smooth)
    assert sized and f"as no gradients are derived; {number} calls: " in proof.detail
    seed = next(s for s in range(50) if drawn(name, s)[0].values != "normal")
    proof = proof_named(
        "direct: gradients of the module equal the equations'",
        deep_proofs(mixer, described, seed, thin=1000),
    )
    assert proof.passed and "as no gradients are derived; 1 call: " in proof.detail


def test_what_is_called_often_has_no_step_to_name(tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, "without-steps", *PLAIN))
    (described,) = implementations(mixer).values()
    proof = proof_named(
        "direct: every call gives the same result", deep_proofs(mixer, described, 0, thin=100)
    )
    assert proof.passed and proof.detail.endswith(", with gradients")


def test_no_long_call_is_no_refusal(tmp_path: Path, instead: Instead) -> None:
    instead(deep_long_calls=range(5000, 5010))
    mixer = cm.mixer(written(tmp_path, "without-long-calls"))
    (described,) = implementations(mixer).values()
    proof = proof_named(
        "direct: decoding holds no needless memory", deep_proofs(mixer, described, 0, thin=100)
    )
    assert (proof.passed, proof.detail) == (None, "no call of 5000 to 5009 tokens is drawn")


def test_further_inputs_take_the_length_of_the_first(tmp_path: Path) -> None:
    """The module is wrong after a call with a longer sequence."""
    further = (
        ("w_win, W_out = ", "g = m.input(\"g\", l, d)\nw_win, W_out = "),
        ("W_out[a, b], over=a)", "W_out[a, b], over=a) + g[i, b]"),
        *PLAIN, ("def forward(self, x):", "def forward(self, x, g):"),
        (RETURN, f"y = {RETURN[7:]} + g; longer = x.shape[1] < self.longest\n"
         "        self.longest = max(self.longest, x.shape[1]); return y * (1.0 + 0.1 * longer)"),
        (MADE, f"{MADE}        self.longest = 0\n"),
    )  # fmt: skip
    mixer = cm.mixer(written(tmp_path, "of-two-inputs", *further))
    (described,) = implementations(mixer).values()
    draw, subject = Draw({"l": 3, "d": 2, "w": 2}), Subject(mixer, described)
    assert findings(Trial, subject, draw) == []
    after = Draw(draw.sizes, before="after calls of other lengths")
    assert [kind for kind, _ in findings(Trial, subject, after)] == ["result"]


@pytest.mark.parametrize("detached", [False, True])
def test_a_fused_kernel_may_compute_large_scores_again(
    detached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass takes exp(S - L) with the logarithm L of a sum, a rounded number of 1e7."""
    mixer = cm.mixer("self-attention")
    attend = torch.nn.functional.scaled_dot_product_attention
    if detached:
        monkeypatch.setattr(
            torch.nn.functional,
            "scaled_dot_product_attention",
            lambda q, k, v, **given: attend(q, k.detach(), v, **given),
        )
    draw = Draw({"l": 14, "d": 13, "n": 1}, values="with one large entry", scale=30)
    said = findings(Trial, Subject(mixer, implementations(mixer)["sdpa"]), draw)
    assert [kind for kind, _ in said] == ["gradients"] * detached
    assert all(text.startswith("the gradient of W_K") for _, text in said)


def test_a_step_that_fails_is_told_once(tmp_path: Path, instead: Instead) -> None:
    change = ("state.append(x=x_t", "state.append(x=x_t.unsqueeze(1)")
    mixer = cm.mixer(written(tmp_path, "fails-in-step", change))
    instead(deep_proofs=partial(deep_proofs, thin=1000))
    found = {p.name: p for p in equality.each_proof(mixer, 0)}
    step = "direct: step equals forward"
    assert [name for name, proof in found.items() if proof.passed is False] == [step]
    assert "pass x=row.squeeze(-2)" in found[step].detail
    drawn = found["direct: step equals equations at random calls"]
    assert (drawn.passed, drawn.detail) == (None, f"needs '{step}', which fails")


def test_a_step_that_fails_beside_other_steps_alone_is_told_the_cause(tmp_path: Path) -> None:
    """The module counts steps of its own, from 0 at each new state."""
    told = "raise RuntimeError('expected [1, 3], got [1, 2].')"
    count = f"self.steps += 1\n        if self.steps != state.position:\n            {told}"
    changes = (
        (STATE, f"self.steps = 0; {STATE}"),
        (STEP, f"{count}\n        {STEP}"),
    )
    mixer = cm.mixer(written(tmp_path, "counts-steps", *changes))
    (described,) = implementations(mixer).values()
    for length, cause in ((1, []), (3, [KEEPS_APART])):
        draw = Draw({"l": length, "d": 2, "w": 2})
        found = findings(Decoding, Subject(mixer, described), draw)
        assert found == [
            ("step", f"the module fails: expected [1, 3], got [1, 2]{of}") for of in cause
        ]


@pytest.mark.parametrize("batch", [1, 2])
def test_the_other_sequence_of_token_numbers_is_another_one(batch: int) -> None:
    mixer = cm.Mixer("looked-up")
    l, d, u = mixer.sizes("l d u")
    mixer.input("tokens", l, below=u)
    mixer.output("y", l, d)
    tokens = torch.tensor([[0, 4, 2, 0]] * batch)
    case = ModuleCase(mixer, {"l": 4, "d": 2, "u": 5}, torch.nn.Identity(), tokens)
    assert other_rows(case).tolist() == [[1, 0, 3, 1]] * batch


def test_a_step_is_not_blamed_where_forward_alone_is_wrong(tmp_path: Path) -> None:
    change = (RETURN, f"s = s * (1.1 if x.shape[0] > 4 else 1.0); {RETURN}")
    mixer = cm.mixer(written(tmp_path, "wrong-in-forward-alone", change))
    (described,) = implementations(mixer).values()
    draw = Draw({"l": 6, "d": 2, "w": 2}, b=5)
    assert [kind for kind, _ in findings(Trial, Subject(mixer, described), draw)] == ["result"]
    assert findings(Decoding, Subject(mixer, described), draw) == []


def test_a_result_that_requires_a_gradient_is_compared_with_the_steps(tmp_path: Path) -> None:
    change = (RETURN, f"y = {RETURN[7:]}; return y if y.requires_grad else y.requires_grad_()")
    mixer = cm.mixer(written(tmp_path, "requires-a-gradient", change))
    (described,) = implementations(mixer).values()
    draw = Draw({"l": 3, "d": 2, "w": 2})
    assert findings(Decoding, Subject(mixer, described), draw) == []


def test_a_step_in_chunks_that_is_wrong_is_told_without_an_error_of_the_blame() -> None:
    """The state of linear attention is turned round where a chunk ends."""
    mixer = cm.mixer("linear-attention")
    described = implementations(mixer)["chunked"]

    class Turned(described.module):  # type: ignore[name-defined,misc]  # chosen at run time
        def advance(self, x_t: Any, state: Any) -> Any:
            y_t = super().advance(x_t, state)
            if state.position % self.sums.C == 0:
                state.arrays["S"].copy_(state.arrays["S"].flip(-1))
            return y_t

    subject = Subject(mixer, replace(described, made=Turned))
    found = findings(Decoding, subject, Draw({"l": 2, "d": 2, "n": 1, "C": 1}))
    assert [kind for kind, _ in found] == ["step"]
    assert found[0][1].startswith("y[2][1] is "), found


def test_an_interrupt_leaves_the_proofs_found_and_names_the_others(
    tmp_path: Path, instead: Instead, capsys: pytest.CaptureFixture[str]
) -> None:
    target = written(tmp_path, "interrupted")
    (described,) = implementations(cm.mixer(target)).values()
    names = proof_names(described)

    def interrupted(*_: object, **__: object) -> Iterator[Proof]:
        yield Proof(names[0], True, "7 draws")
        assert f"{names[0]} " in capsys.readouterr().out
        raise KeyboardInterrupt

    instead(deep_proofs=interrupted)
    assert cli.run(["check", "--deep", target]) == 130
    printed = capsys.readouterr()
    assert "9 proofs in " in printed.out
    said = " ".join(printed.out.split())
    assert "not tried: b > 64, l > 1024, d > 257, other sizes > 129; more than 130 calls" in said
    assert printed.err == f"costmodel: interrupted; not reached: {', '.join(names[1:])}\n"


def test_proofs_that_are_never_tried_are_not_named_after_an_interrupt(tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, "differs"))
    (described,) = implementations(mixer).values()
    equal = "direct: module equals equations"
    assert not_reached(mixer, []) == [equal, *proof_names(described)]
    assert not_reached(mixer, [Proof(equal, True, "")]) == proof_names(described)
    assert not_reached(mixer, [Proof(equal, False, "")]) == []
    bare = tmp_path / "bare.py"
    bare.write_text(WINDOW.partition("@implementation")[0].replace("NAME", "bare"))
    assert not_reached(cm.mixer(f"{bare}:bare"), []) == ["module equals equations"]


def test_a_fault_is_told_before_the_remaining_draws(tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, "wrong-at-once", *where("x.shape[1] > 1")))
    (described,) = implementations(mixer).values()
    told: list[int] = []
    first = next(deep_proofs(mixer, described, 0, 1, lambda done, of, _: told.append(done)))
    assert first.passed is False and "y[1, 1] is" in first.detail
    assert len(told) < 20


def test_the_end_of_the_budget_says_how_many_draws_are_left(
    tmp_path: Path, instead: Instead
) -> None:
    instead(deep_budget_s=0.0)
    mixer = cm.mixer(written(tmp_path, "without-time"))
    (described,) = implementations(mixer).values()
    proofs = list(deep_proofs(mixer, described, 0))
    assert {proof.name for proof in proofs} == set(proof_names(described))
    (equal,) = (p for p in proofs if p.name == "direct: module equals equations at random calls")
    every = len(drawn(written(tmp_path, "without-time")))
    assert equal.passed
    assert equal.detail.startswith("1 call: ")
    assert equal.detail.endswith(f"; {every - 1} more left out after 0 s of processor time")


LEAKS: dict[str, tuple[Change, ...]] = {
    "kept-in-the-state": (
        (STEP, f"state.kept = [*getattr(state, 'kept', []), x_t.clone()]; {STEP}"),
    ),
    "kept-in-the-module": (
        (MADE, f"{MADE}        self.kept = []\n"), (STEP, f"self.kept += [x_t.clone()]; {STEP}"),
    ),
    "much-too-large": (
        (STATE, STATE.replace("self.w - 1,", "50 * self.w,")),
        (STEP, f"held = held[:, : self.w]; {STEP}"),
    ),
}  # fmt: skip


@pytest.mark.grid(2)
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("name", LEAKS)
def test_a_state_that_takes_more_memory_than_it_needs(name: str, tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, f"state-{name}", *LEAKS[name]))
    (described,) = implementations(mixer).values()
    proof = proof_named(
        "direct: decoding holds no needless memory", deep_proofs(mixer, described, 0, thin=30)
    )
    assert proof.passed is False and "entries for one sequence; later tokens need" in proof.detail


def test_a_state_without_a_window_holds_no_needless_memory() -> None:
    """No size of the mixer bounds how far back a token reads."""
    mixer = cm.mixer("she")
    described = implementations(mixer)["direct"]
    proof = proof_named(
        "direct: decoding holds no needless memory", deep_proofs(mixer, described, 0, thin=1000)
    )
    assert proof.passed, proof.detail


NORMS = """
import torch, torch.nn.functional as F
import costmodel as cm
from costmodel.language.macros.norms import l2_norm, layer_norm, rms_norm
from profiler.modules import implementation

m = cm.Mixer("four-norms")
l, d, n, h = m.sizes("l d n h")
x, y = m.input("x", l, d), m.output("y", l, d)
gain, bias = m.parameter("gain", d), m.parameter("bias", d)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    j, c = f.index("j", 1, n), f.index("c", 1, h)
    A, B, C = f.array("A", l, d), f.array("B", l, d), f.array("C", l, d)
    X, G = f.array("X", n, l, h), f.array("G", n, l, h)
    A[i, a] = layer_norm(x[i, a], over=a, gain=gain[a], bias=bias[a])
    B[i, a] = rms_norm(A[i, a], over=a, gain=gain[a])
    C[i, a] = l2_norm(B[i, a], over=a)
    X[j, i, c] = x[i, (j - 1) * h + c] + C[i, (j - 1) * h + c]
    G[j, i, c] = layer_norm(X[j, i, c], over=c)
    y[i, (j - 1) * h + c] = G[j, i, c] * gain[(j - 1) * h + c] + bias[(j - 1) * h + c]


@implementation("four-norms")
class Norms(torch.nn.Module):
    def __init__(self, *, d, n):
        super().__init__()
        self.d, self.n = d, n
        self.gain, self.bias = torch.nn.Parameter(torch.ones(d)), torch.nn.Parameter(torch.ones(d))

    def forward(self, x):
        z = F.layer_norm(x, (self.d,), self.gain, self.bias)
        z = F.normalize(F.rms_norm(z, (self.d,), self.gain, eps=2.0**-52), dim=-1)
        return F.group_norm((x + z).reshape(-1, self.d), self.n, self.gain, self.bias).view(x.shape)
"""


def test_norms_of_groups_of_one_channel_hold(tmp_path: Path) -> None:
    """The variance is 0 up to rounding; of one number in all torch takes no such norm."""
    (tmp_path / "norms.py").write_text(NORMS)
    mixer = cm.mixer(f"{tmp_path}/norms.py:four-norms")
    (described,) = implementations(mixer).values()
    proofs = {proof.name: proof for proof in deep_proofs(mixer, described, 0, thin=8)}
    assert [p for p in proofs.values() if p.passed is False] == []
    with pytest.raises(Refused, match="Expected more than 1 value per channel when training"):
        findings(Trial, Subject(mixer, described), Draw({"l": 1, "d": 1, "n": 1}))


def test_the_global_seed_and_the_threads_stay_as_they_are(tmp_path: Path) -> None:
    mixer = cm.mixer(written(tmp_path, "leaves-the-seed"))
    (described,) = implementations(mixer).values()
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    told: list[tuple[int, int]] = []
    proofs = list(deep_proofs(mixer, described, 0, 60, lambda done, of, _: told.append((done, of))))
    assert told == sorted(told) and {of for _, of in told} == {told[0][1]}
    assert told[0][0] == 0 < len(told) <= told[0][1]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert {proof.passed for proof in proofs} == {True}


def test_equal_seeds_draw_the_same(tmp_path: Path) -> None:
    target = written(tmp_path, "drawn-twice")
    mixer = cm.mixer(target)
    (described,) = implementations(mixer).values()
    system = Subject(mixer, described).forward
    assert tuple(draws(mixer, system, 0, tuple(BEFORE))) == drawn(target)
    assert tuple(draws(mixer, system, 1, tuple(BEFORE))) != drawn(target)


class Slotted:
    """One slot under a mangled name, in a class that names its slots by one string."""

    __slots__ = "__rows"

    def __init__(self, rows: torch.Tensor) -> None:
        self.__rows = rows


class Named(dict[str, torch.Tensor]):
    """A mapping with an attribute beside its values."""

    def __init__(self, rows: torch.Tensor, **values: torch.Tensor) -> None:
        super().__init__(values)
        self.rows = rows


def test_attributes_of_a_container_are_held_beside_its_values() -> None:
    one, two = torch.ones(3), torch.ones(2)
    assert {id(held) for held in tensors_held(Named(one, two=two))} == {id(one), id(two)}


def test_a_tensor_in_any_slot_or_partial_call_is_held() -> None:
    rows = torch.ones(3)
    assert [*tensors_held(Slotted(rows))] == [rows]
    assert [*tensors_held(partial(print, rows))] == [rows]
