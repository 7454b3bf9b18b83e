"""Do the modules of a mixer with options compute, dispatch and hold what their equations state?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cli
import costmodel as cm
from costmodel.errors import UnknownMixer
from costmodel.language.options import joined
from costmodel.mixers import builtin, names
from costmodel.mixers.self_attention import self_attention
from profiler.counting.dispatch import count_dispatch
from profiler.mixers.self_attention import SelfAttention
from profiler.modules import Implementation, build, implementations
from profiler.proofs.equality import dispatched_equals, module_equals, state_equals, step_equals
from profiler.run.own_class import users_class
from tests.test_options import CHOICES

MADE = [
    described
    for options in CHOICES
    for described in implementations(self_attention.of(options)).values()
]
SIZES = {"l": 5, "d": 16, "n": 4, "g": 2, "w": 3, "r": 2, "K": 8, "V": 4, "e": 7, "B": 4}
OF_TORCH = {"bias", "output-bias", "bidirectional", "cross", "grouped"}
"""The options that torch's own module has; with its keys repeated, for groups."""
ROUNDING = 1e-12
"""Sums of at most 7 * 16 products of size about one, in float64."""

each = pytest.mark.parametrize("described", MADE, ids=lambda i: f"{i.mixer}-{i.name}")


def made(described: Implementation, sizes: Mapping[str, int] = SIZES) -> Any:
    return build(described, dict(sizes), device="cpu", dtype=torch.float64, seed=3)


def inputs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sequences(described: Implementation, batch: int = 2) -> tuple[Tensor, ...]:
    """x, and z where the mixer reads a second sequence."""
    x, z = inputs(batch, SIZES["l"], SIZES["d"]), inputs(batch, SIZES["e"], SIZES["d"])
    return (x, z.flip(1)) if "cross" in described.options else (x,)


def test_every_combination_has_modules() -> None:
    """The fused call is left out where values have another width than keys, and where its mask is
    not that of all earlier tokens, its softmax another, or its scores have no scale or a bias."""
    explicit = {"wide", "window", "chunked-window", "sinks", "soft-cap", "unscaled", "alibi",
                "relative-bias"}  # fmt: skip
    for options in CHOICES:
        names = ["explicit"] if explicit & {*options} else ["explicit", "sdpa"]
        assert list(implementations(self_attention.of(options))) == names
    by_name = implementations("self-attention+wide+bias")
    (found,) = by_name.values()
    assert (found.mixer, found.options) == ("self-attention+bias+wide", ("bias", "wide"))


@pytest.mark.grid(32)
@each
def test_every_combination_of_options_passes_its_proofs(described: Implementation) -> None:
    mixer = cm.mixer(described.mixer)
    assert module_equals(mixer, described).passed
    steps = "bidirectional" not in described.options
    work = dispatched_equals(mixer, described, step=steps)
    assert work.passed, work.detail
    step = step_equals(mixer, described)
    if steps:
        assert step.passed and state_equals(mixer, described).passed
    else:
        assert step.passed is None and "an output depends on later tokens" in step.detail
        assert described.step_form is None and not hasattr(made(described), "step")


def test_keys_that_are_values_are_bounded_once() -> None:
    """One comparison with each bound for each entry of queries and of keys, b l d."""
    for described in implementations("self-attention+keys-as-values+clipped").values():
        call = count_dispatch(partial(made(described), inputs(2, 5, 16)))
        softmax = 2 * 4 * ((25 if described.name == "explicit" else 15) - 5)
        assert call.operations.to_json()["other"]["compare"] == 2 * 2 * 2 * 5 * 16 + softmax


OFFERED = [
    joined(name, [option])
    for name in names()
    for option in builtin(name).offers
    if name != "self-attention"  # all its combinations are above
]


WITH_OPTIONS = [(name, own) for name in OFFERED for own in implementations(cm.mixer(name))]


def test_every_option_of_every_mixer_has_a_module() -> None:
    assert {name for name, _ in WITH_OPTIONS} == {*OFFERED}


@pytest.mark.grid(110)
@pytest.mark.parametrize(("name", "implementation"), WITH_OPTIONS)
def test_every_module_with_an_option_equals_its_equations(name: str, implementation: str) -> None:
    mixer = cm.mixer(name)
    described = implementations(mixer)[implementation]
    assert module_equals(mixer, described).passed
    work = dispatched_equals(mixer, described, step=described.step_form is not None)
    assert work.passed, work.detail


def peer(module: Any, options: tuple[str, ...]) -> nn.MultiheadAttention:
    """torch's own module with our weights, those of a group for each of its heads; its biases are
    zeros where we have none."""

    def for_all(weight: Tensor) -> Tensor:
        heads = weight.view(*weight.shape[:-1], module.g, -1)
        return heads.repeat_interleave(module.n // module.g, -2).flatten(-2)

    theirs = nn.MultiheadAttention(SIZES["d"], SIZES["n"], batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        maps = [module.W_Q.flatten(1), for_all(module.W_K), for_all(module.W_V)]
        theirs.in_proj_weight.copy_(torch.cat(maps, 1).t())
        theirs.out_proj.weight.copy_(module.W_out.flatten(0, -2).t())
        theirs.in_proj_bias.zero_()
        theirs.out_proj.bias.zero_()
        if "bias" in options:
            biases = [module.b_Q.flatten(), for_all(module.b_K), for_all(module.b_V)]
            theirs.in_proj_bias.copy_(torch.cat(biases))
        if {"bias", "output-bias"} & {*options}:
            theirs.out_proj.bias.copy_(module.b_out)
    return theirs


@pytest.mark.parametrize(
    "described",
    [described for described in MADE if {*described.options} <= OF_TORCH],
    ids=lambda i: f"{i.mixer}-{i.name}",
)
def test_variants_equal_torch_nn(described: Implementation) -> None:
    module, (x, *others) = made(described), sequences(described, 3)
    source = others[0] if others else x
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mask = None if {"bidirectional", "cross"} & {*described.options} else later
    theirs = peer(module, described.options)
    expected, _ = theirs(x, source, source, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(module(x, *others), expected, atol=ROUNDING, rtol=0)
    if described.step_form:
        state = module.initial_state(3, x.shape[1], *others)
        for i in range(x.shape[1]):
            row = module.step(x[:, i], state)
            torch.testing.assert_close(row, expected[:, i], atol=ROUNDING, rtol=0)


@each
def test_parameters_have_the_names_and_shapes_of_the_equations(described: Implementation) -> None:
    mixer = cm.mixer(described.mixer)
    sizes = {letter: SIZES[letter] for letter in mixer.letters}
    declared = {a.name: tuple(e.at(sizes) for e in a.shape) for a in mixer.parameters}
    held = {name: tuple(p.shape) for name, p in made(described).named_parameters()}
    assert held == declared
    assert sum(p.numel() for p in made(described).parameters()) == cm.parameters(mixer).at(**sizes)


@each
def test_gradients_reach_every_parameter(described: Implementation) -> None:
    module, given = made(described), sequences(described)
    module(*given).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_a_bias_is_used_at_every_place() -> None:
    """Each bias alone changes what comes out, but b_K, which a softmax does not see: it adds the
    same number to all scores of a row."""
    described = implementations("self-attention+bias")["explicit"]
    x = inputs(1, SIZES["l"], SIZES["d"])
    module = made(described)
    before = module(x).detach()
    with torch.no_grad():
        for name in ("b_Q", "b_V", "b_out"):
            getattr(module, name).add_(1.0)
            assert not torch.allclose(module(x), before)
            getattr(module, name).sub_(1.0)
        module.b_K.add_(1.0)
        torch.testing.assert_close(module(x), before, atol=1e-11, rtol=0)


def test_a_fresh_module_has_biases_of_zero() -> None:
    module = SelfAttention(d=6, l=5, n=3, options=("bias",))
    biases = {name: p for name, p in module.named_parameters() if name.startswith("b_")}
    assert biases.keys() == {"b_Q", "b_K", "b_V", "b_out"}
    assert all(not p.any() for p in biases.values())


# A second sequence.


CROSS = implementations("self-attention+cross")["explicit"]


def test_a_second_sequence_may_have_any_length() -> None:
    module, x = made(CROSS), inputs(2, 3, 16)
    for length in (1, 4, 11):
        z = inputs(2, length, 16)
        state = module.initial_state(2, 1, z)
        assert state.elements == 2 * length * 16
        rows = [module.step(x[:, i], state) for i in range(3)]  # more than it was asked to hold
        torch.testing.assert_close(torch.stack(rows, 1), module(x, z), atol=ROUNDING, rtol=0)
        assert state.position == 3 and state.elements == 2 * length * 16


def test_a_missing_or_misshapen_second_sequence_is_refused() -> None:
    module, x = made(CROSS), inputs(2, 3, 16)
    for shape in [(3, 4, 16), (2, 4, 5), (2, 0, 16), (2, 16)]:
        with pytest.raises(ValueError, match=r"z must be \(2, source length, 16\) and is \("):
            module(x, torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"z is torch\.float32 and the parameters are"):
        module(x, torch.zeros(2, 4, 16))
    with pytest.raises(ValueError, match=r"is made of z \(batch, e, d\): pass z"):
        module.initial_state(2)
    with pytest.raises(ValueError, match=r"a second sequence z: call forward\(x, z\)"):
        module.mix(x)


# What is asked for wrongly.


def test_widths_must_be_given_where_they_are_needed() -> None:
    described = implementations("self-attention+wide")["explicit"]
    with pytest.raises(ValueError, match="the option 'wide' needs the sizes K and V"):
        made(described, {"l": 5, "d": 6, "n": 3, "K": 5})
    with pytest.raises(ValueError, match="size V must be a positive integer and is 0"):
        made(described, {"l": 5, "d": 6, "n": 3, "K": 5, "V": 0})
    assert made(described, {"l": 5, "d": 5, "n": 3, "K": 5, "V": 4}).W_out.shape == (12, 5)
    with pytest.raises(ValueError, match="d must be divisible by n: d = 5 and n = 3"):
        made(implementations("self-attention+bias")["sdpa"], {"l": 5, "d": 5, "n": 3})


def test_groups_must_be_given_and_divide_the_heads() -> None:
    described = implementations("self-attention+grouped")["sdpa"]
    with pytest.raises(ValueError, match="the option 'grouped' needs the size g"):
        made(described, {"l": 5, "d": 8, "n": 4})
    with pytest.raises(ValueError, match="n = 4 heads are not divisible into g = 3 groups"):
        made(described, {"l": 5, "d": 8, "n": 4, "g": 3})


def test_names_are_read_as_everywhere() -> None:
    with pytest.raises(UnknownMixer, match="no option 'bais'; did you mean 'bias'"):
        implementations("self-attention+bais")


def test_one_token_of_a_bidirectional_mixer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["profile", "self-attention+bidirectional", "--phase", "inference", "--seconds", "0.01"]
    assert cli.run([*typed, "--l", "4", "--d", "4", "--n", "2"]) == 1
    assert "an output depends on later tokens" in capsys.readouterr().err


# Modules of a user's own.

USER = """
import torch
import costmodel as cm
from costmodel.language.options import offering
from profiler.modules import SequenceMixer, implementation


@offering({"bias": "b on the output", "double": "twice as much", "never": "no module has it"})
def scaled(chosen):
    m = cm.Mixer("NAME")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    w = m.parameter("w", d)
    b = m.parameter("b", d) if "bias" in chosen else None
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        value = x[i, a] * w[a]
        value = value * 2 if "double" in chosen else value
        y[i, a] = value if b is None else value + b[a]
    return m


@implementation("NAME", options=("bias",))
class Plain(SequenceMixer):
    factor = 1

    def __init__(self, *, d, l, options=(), device=None, dtype=None):
        super().__init__(d=d, l=l, device=device, dtype=dtype)
        self.w = self.weight(d)
        self.b = self.weight(d) if "bias" in options else None

    def mix(self, x):
        y = x * self.w
        y = y * self.factor if self.factor != 1 else y
        return y if self.b is None else y + self.b


@implementation("NAME+double", options=("bias",))
class Double(Plain):
    factor = 2
"""


def test_a_users_classes_take_options(tmp_path: Path) -> None:
    path = tmp_path / "taking.py"
    path.write_text(USER.replace("NAME", "taking-options"), encoding="utf-8")
    for options, name in [("", "Plain"), ("+bias", "Plain"), ("+double+bias", "Double")]:
        mixer = cm.mixer(f"{path}:scaled{options}")
        (found,) = implementations(mixer).values()
        assert found.module.__name__ == name
        assert module_equals(mixer, found).passed
        assert dispatched_equals(mixer, found, step=False).passed
        assert users_class(mixer, f"{path}:{name}").options == mixer.options
    with pytest.raises(ValueError, match=r"no module implements the mixer 'taking-options\+never'"):
        implementations(cm.mixer(f"{path}:scaled+never"))


def test_a_class_described_without_options_is_built_without(tmp_path: Path) -> None:
    """A class that takes no `options` is not handed any."""
    path = tmp_path / "bare.py"
    path.write_text(USER.replace("NAME", "bare-options"), encoding="utf-8")
    mixer = cm.mixer(f"{path}:scaled+double")
    (found,) = implementations(mixer).values()

    class Fixed(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(d))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w * 2

    assert module_equals(mixer, replace(found, made=Fixed)).passed
