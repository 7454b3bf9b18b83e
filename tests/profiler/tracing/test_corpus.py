"""Are a few small models of other authors, of those in benchmarks/, traced whole?

Every model is made from a configuration, without weights. Those of transformers, timm and
torchvision need these libraries; the whole corpus is benchmarks/traced_corpus.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.traced_corpus import language, verdict
from profiler.tracing import trace
from profiler.tracing.result import Trace
from tests.profiler.tracing.test_trace import assert_classes, formula

SMALL = {"num_hidden_layers": 2, "vocab_size": 61}
WIDE = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}

LANGUAGE: dict[str, dict[str, Any]] = {
    "Bert": {**SMALL, **WIDE},
    "GPT2": {"n_layer": 2, "n_embd": 24, "n_head": 4, "vocab_size": 61, "use_cache": False},
    "Llama": {**SMALL, **WIDE, "num_key_value_heads": 2, "use_cache": False},
    "Mamba": {**SMALL, "hidden_size": 12, "state_size": 4, "use_cache": False},
}
"""Model of transformers -> its configuration, made small."""
BOTH: dict[str, dict[str, Any]] = {
    "T5": {
        "d_model": 24, "d_ff": 40, "num_layers": 1, "num_heads": 4, "d_kv": 6, "vocab_size": 61,
        "use_cache": False,
    },
}  # fmt: skip
"""Those with an encoder and a decoder."""
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet10t": ("l:32", {}),
    "convnext_atto": ("l:32", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "vit_tiny_patch16_224": ("l:16", {"depth": 2, "embed_dim": 48, "num_heads": 3}),
}
"""Model of timm -> the side of its images, and how it is made small."""


def assert_whole(found: Trace) -> None:
    """All work, parameters and saved bytes have formulas that were proven at other sizes than they
    were found at, and the products are FlopCounterMode's."""
    whole, said = verdict(found)
    assert whole, said
    assert found.proven
    assert found.flops is not None and found.flops.agrees


def test_a_decoder_layer_equals_a_count_by_hand() -> None:
    # d = nh, n = 2. l rows see each other and m rows of an encoder: four maps and two of l rows
    # and two of m, an FFN of 8 l d^2; scores and sums over l^2 and l m pairs of d; the math path
    # multiplies queries and keys by the root of the scale, l d twice, l d and m d; three norms take
    # three products an entry.
    def make(l: int, m: int, d: int, n: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        layer = nn.TransformerDecoderLayer(d, n, 4 * d, dropout=0.0, batch_first=True)
        return layer, (torch.empty(1, l, d), torch.empty(1, m, d))

    found = trace(make, over="l,m,h", let="n=2,d=n*h", grad="both")
    assert_whole(found)
    products = "14*l*(2*h)**2 + 2*m*(2*h)**2 + 2*l**2*2*h + 2*l*m*2*h + 12*l*2*h + m*2*h"
    assert found.forward["mul"] == formula(products)
    # two attentions of four maps and four biases, an FFN, three norms
    weights = "2*(4*(2*h)**2 + 4*2*h) + 8*(2*h)**2 + 5*2*h + 3*2*2*h"
    assert found.parameters == formula(weights)


def test_a_recurrent_layer_equals_a_count_by_hand() -> None:
    # Two sums of d products an entry, each with a bias, one addition to join them, a tanh.
    # Backward: g (1 - y y) takes two products and an addition; each row's gradient of y joins that
    # of the row after, the last one that of the last state; dx, and dh of all rows but the first;
    # two gradients of weights, with the zeros of the first state too; two of biases.
    found = trace(lambda d: nn.RNN(d, d, batch_first=True), over="l,d", grad="both")
    assert_whole(found)
    assert_classes(found.forward, mul="2*d**2*l", add="2*l*d*(d - 1) + 3*l*d", tanh="l*d")
    sums = "(2*l - 1)*d*(d - 1) + 2*d**2*(l - 1) + 2*d*(l - 1)"
    assert_classes(found.backward, mul="(4*l - 1)*d**2 + 2*l*d", add=f"{sums} + 2*l*d")


@pytest.mark.parametrize("name", [*LANGUAGE, *BOTH])
def test_language_models_are_traced_whole(name: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    changes = LANGUAGE.get(name) or BOTH[name]
    make = language(f"{name}Config", decoder=name in BOTH, **changes)
    found = trace(make, over="l", grad="both")
    assert_whole(found)
    module = make(1)[0]
    assert found.parameters == formula(str(sum(p.numel() for p in module.parameters())))


@pytest.mark.parametrize("name", IMAGES)
def test_image_models_are_traced_whole(name: str) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    over, changes = IMAGES[name]

    def make(l: int) -> tuple[nn.Module, torch.Tensor]:
        sized = {"img_size": l} if name.startswith("vit") else {}
        return timm.create_model(name, **changes, **sized).eval(), torch.empty(1, 3, l, l)

    assert_whole(trace(make, over=over, grad="both"))


def test_a_model_of_torchvision_is_traced_whole() -> None:
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models

    def make(l: int) -> tuple[nn.Module, torch.Tensor]:
        return models.squeezenet1_1(num_classes=7).eval(), torch.empty(1, 3, l, l)

    assert_whole(trace(make, over="l:32", grad="both"))
