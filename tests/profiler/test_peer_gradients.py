"""Does FlopCounterMode print for a backward pass what the convention `torch` predicts?

It prints for a module what is derived where the module carries every contraction out as one, which
its forward pass shows. Left out are convolutions: FlopCounterMode ignores their groups in the
gradient of the weight.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import cli
import costmodel as cm
from profiler.modules import implementations
from profiler.networks.twin import all_sizes, twin
from profiler.proofs.cases import BATCH, case
from tests.profiler.test_networks import KINDS, given, loss
from tests.small import complete

PHASES = ("training", "training-step")


def printed(run: Callable[[], torch.Tensor], phase: str) -> int:
    """FlopCounterMode's figure of a forward pass, or of one with its backward pass."""
    with FlopCounterMode(display=False) as mode:
        result = run()
        if phase == "training-step":
            result.backward(torch.ones_like(result))  # type: ignore[no-untyped-call]  # torch's
    return int(mode.get_total_flops())


@pytest.mark.parametrize(("name", "implementation"), [
    ("self-attention", "explicit"),
    ("self-attention+cross", "explicit"),
    ("restricted-attention", "explicit"),
    ("synthesizer-dense", "explicit"),
    ("set-transformer", "explicit"),
    ("linformer", "explicit"),
    ("nystromformer", "explicit"),
    ("lstm", "explicit"),
    ("mlp-mixer", "explicit"),
    ("fnet", "matrix"),
    ("me", "toeplitz"),
])  # fmt: skip
def test_a_module_s_gradients_are_contractions_as_large(name: str, implementation: str) -> None:
    mixer, one = cm.mixer(name), implementations(name)[implementation]
    made = case(mixer, one, complete(mixer, {"l": 7, "d": 6, "n": 2}))
    made.x.requires_grad_(True)
    for tensor in made.beside.values():
        tensor.requires_grad_(tensor.is_floating_point())
    for phase in PHASES:
        derived = cm.count(mixer, phase, one.form, "torch").at(b=BATCH, **made.sizes)
        assert printed(made.forward, phase) == derived.total, phase


@pytest.mark.parametrize(
    "name", ["gpt-2", "bert-base", "transformer-base", "chen-v1", "terroa-ssa"]
)
def test_a_network_s_gradients_are_contractions_as_large(name: str) -> None:
    """No token gets a gradient, so that a product of one-hot rows has that of the table alone."""
    network = KINDS[name]
    net, data = twin(network).eval(), given(network.choices, BATCH)
    sizes = {x: v for x, v in all_sizes(network).items() if x not in network.choices.widths}
    for phase in PHASES:
        derived = network.count(phase, "torch").at(b=BATCH, **sizes)
        assert printed(lambda: loss(net, data), phase) == derived.total, phase


def test_a_training_step_of_gpt_2_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Three times a forward pass, a multiply-add being two: 12 layers of 12 d^2 weights, of scores
    and weighted rows over all pairs, and the head."""
    d, l, u = 768, 1024, 50_257
    total = 3 * 2 * l * (12 * (12 * d * d + 2 * l * d) + u * d)
    assert total == 874_944_921_600
    words = ["model", "gpt-2", "--phase", "training-step", "--l", "1024", "--convention", "torch"]
    assert cli.run([*words, "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert f"{total:,}" in said and "scatter" not in said
    assert "as large, for the gradient of each factor that gets one" in said


def test_an_explanation_has_them_at_the_equation_of_the_forward_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of QK' and of what it weighs, b = 1 and d = 128: two contractions of d l^2 each."""
    words = ["explain", "self-attention", "--phase", "backward", "--convention", "torch"]
    assert cli.run([*words, "--l", "64", "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert "torch: a contraction has one more, as large" in said
    rows = {line.split("|")[1].strip(): line for line in said.splitlines() if "%)" in line}
    for name in ("Z", "R"):
        (row,) = (row for key, row in rows.items() if key.strip("$").startswith(name))
        assert f"{2 * 2 * 128 * 64**2:,}" in row


def test_a_counter_of_forward_passes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table", "me", "--phase", "backward", "--convention", "fvcore", "--format", "markdown"]
    assert cli.run(words) == 0
    assert "fvcore counts forward passes only" in capsys.readouterr().out
