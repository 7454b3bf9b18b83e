"""How does a test load our weights into the features of Chowdhury et al. 2021, and of random
feature attention?

The layer is theirs, with its maps and sums. Nothing is added to denominators, features have no
constant entry, and a network makes frequencies of h drawn numbers, not of h/2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.references.comparison import Comparison, compared, fill, linear
from tests.references.packages import Weights
from tests.references.repositories import importable

CODE = "cs1160701/OnLearningTheKernel"
FEATURES = "fast_transformers.feature_maps.fourier_features."
FASTFOOD = "fast_transformers.feature_maps.fastfood."
AROUND = "fast_transformers.attention"
"""A package whose own code imports compiled modules, which linear attention does not need."""

of_kernels = partial(compared, package=CODE, without=(AROUND,))


def with_sums(features: nn.Module, ours: Weights, each: Comparison) -> Callable[[Tensor], Tensor]:
    """Their layer of linear attention with these features."""
    d, n = each.sizes["d"], each.sizes["n"]
    with importable(each.package, each.without):
        sums = import_module(f"{AROUND}.linear_attention").LinearAttention
        layer = import_module(f"{AROUND}.attention_layer").AttentionLayer
    inner = sums(d // n, feature_map=lambda width: features, eps=0.0)
    theirs = layer(inner, d, n, bias=False).double()
    features.new_feature_map = lambda device, dtype: None  # type: ignore[assignment]
    for name, map_ in (("Q", "query"), ("K", "key"), ("V", "value"), ("out", "out")):
        linear(getattr(theirs, f"{map_}_projection"), ours[f"W_{name}"])

    def read(x: Tensor) -> Any:
        every = SimpleNamespace(all_ones=True, float_matrix=torch.ones(x.shape[:2]))
        return theirs(x, x, x, every, every, every)

    return read


@of_kernels("gmm-rks", of=f"{FEATURES}GaussianMixtureFourierFeatures", l=5, d=8, n=2, m=3)
@of_kernels("gmm-rks", of=f"{FEATURES}GaussianMixtureFourierFeatures", l=4, d=6, n=3, m=4)
@of_kernels("gmm-prf", of=f"{FEATURES}GaussianMixturePositive", l=5, d=8, n=2, m=3)
@of_kernels("gmm-prf", of=f"{FEATURES}GaussianMixturePositive", l=4, d=6, n=3, m=4)
def mixture(of: Any, ours: Weights, each: Comparison) -> Any:
    """RKS counts four entries a frequency."""
    d, n, m = (each.sizes[letter] for letter in "dnm")
    theirs = of(d // n, n, n_dims=m if each.mixer == "gmm-prf" else 4 * m).double()
    theirs.omega = ours["w"].t()
    spread = ours["sigma"] if each.mixer == "gmm-prf" else ours["Sigma"]
    fill((theirs.mean, ours["mu"]), (theirs.sigma, spread))
    return with_sums(theirs, ours, each)


@of_kernels("fastfood-rks", of=f"{FASTFOOD}FastFoodRandomFeatures", l=5, d=8, n=2)
@of_kernels("fastfood-rks", of=f"{FASTFOOD}FastFoodRandomFeatures", l=3, d=8, n=1)
@of_kernels("fastfood-prf", of=f"{FASTFOOD}FastFoodPositiveFeatures", l=5, d=8, n=2)
@of_kernels("fastfood-prf", of=f"{FASTFOOD}FastFoodPositiveFeatures", l=3, d=8, n=1)
def fast_food(of: Any, ours: Weights, each: Comparison) -> Any:
    """PH is their Hadamard matrix, its rows in another order. The constructor of the second class
    names a class that it does not derive from; its base's runs."""
    theirs = of.__new__(of)
    base = of if each.mixer == "fastfood-rks" else of.__mro__[1]
    base.__init__(theirs, each.sizes["d"] // each.sizes["n"], learn_S=True, learn_G_B=True)
    theirs.double()
    for name in "BGS":
        fill((getattr(theirs, name), ours[f"D_{name}"]))
    theirs.P = torch.arange(theirs.query_dims).roll(1)
    of_unit_rows = of.forward.__globals__["hadamard_transform"](torch.eye(theirs.query_dims))
    fill((ours["PH"], of_unit_rows.t()[theirs.P]))
    return with_sums(theirs, ours, each)


@of_kernels("generative-rks", of=f"{FEATURES}GenerativeRandomFourierFeatures", l=5, d=8, n=2, m=6)
@of_kernels("generative-rks", of=f"{FEATURES}GenerativeRandomFourierFeatures", l=4, d=6, n=3, m=4)
@of_kernels("generative-prf", of=f"{FEATURES}GenerativePositiveRandomFeatures", l=5, d=8, n=2, m=3)
@of_kernels("generative-prf", of=f"{FEATURES}GenerativePositiveRandomFeatures", l=4, d=6, n=3, m=4)
def generated(of: Any, ours: Weights, each: Comparison) -> Any:
    """PRF counts an entry more, and divides all features by another number, which the quotient
    takes out."""
    h, m = each.sizes["d"] // each.sizes["n"], each.sizes["m"]
    more = 1 if each.mixer == "generative-prf" else 0
    theirs = of(h, [h, 2 * h, 4 * h], n_dims=2 * m + more).double()
    theirs.omega = ours["w"]
    for number, layer in enumerate(theirs.generator.generator_layers, 1):
        linear(layer.linear, ours[f"W_{number}"], ours[f"b_{number}"])
        if f"gain_{number}" in ours:
            norm = layer.batch_norm
            fill((norm.weight, ours[f"gain_{number}"]), (norm.bias, ours[f"bias_{number}"]))
    return with_sums(theirs, ours, each)


@of_kernels("rfa", of=f"{FEATURES}RandomFourierFeatures", l=5, d=8, n=2, m=3)
@of_kernels("rfa", of=f"{FEATURES}RandomFourierFeatures", l=4, d=6, n=3, m=4)
def random_features(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their features of rows over their lengths, each head's by its own frequencies; the code of
    the paper's authors (github.com/Noahs-ARK/RFA) names what it does not define."""
    d, n, m = (each.sizes[letter] for letter in "dnm")
    scale = ours["sigma"].view(n, 1, d // n)
    of_heads = []
    for own in scale * ours["w"]:
        of_heads.append(of(d // n, n_dims=2 * m, softmax_temp=1.0).double())
        of_heads[-1].omega = own.t()

    class Features(nn.Module):
        """All heads."""

        def forward(self, rows: Tensor) -> Tensor:
            """Features of rows (b, l, n, h)."""
            units = (rows / rows.norm(dim=-1, keepdim=True)).unbind(2)
            return torch.stack([of_head(u) for of_head, u in zip(of_heads, units, strict=True)], 2)

        forward_queries = forward_keys = forward

    return with_sums(Features(), ours, each)
