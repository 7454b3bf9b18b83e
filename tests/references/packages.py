"""How does a test load our weights into each package?"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.references.comparison import (
    Comparison,
    compared,
    fill,
    heads,
    joined,
    linear,
    made_in_float64,
)

Weights = Mapping[str, torch.Tensor]


@compared("linformer+headwise", "linformer", "linformer.LinformerSelfAttention", l=7, d=6, n=3, r=2)
@compared("linformer+headwise", "linformer", "linformer.LinformerSelfAttention", l=4, d=8, n=2, r=3)
@compared("linformer+key-value", "linformer", "linformer.LinformerSelfAttention",
          l=7, d=6, n=3, r=2)  # fmt: skip
@compared("linformer+key-value", "linformer", "linformer.LinformerSelfAttention",
          l=5, d=8, n=2, r=3)  # fmt: skip
def linformer(of: Any, ours: Weights, each: Comparison) -> Any:
    theirs = of(each.sizes["d"], each.sizes["l"], k=each.sizes["r"], heads=each.sizes["n"]).double()
    for layer, name in ((theirs.to_q, "W_Q"), (theirs.to_k, "W_K"), (theirs.to_v, "W_V")):
        linear(layer, ours[name])
    linear(theirs.to_out, ours["W_out"])
    fill((theirs.proj_k, ours["E"].t()), (theirs.proj_v, ours.get("F", ours["E"]).t()))
    return theirs


@compared("gmlp", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=5, d=3, f=4)
@compared("gmlp", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=8, d=4, f=2)
@compared("gmlp+causal", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=5, d=3, f=4)
@compared("gmlp+causal", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=8, d=4, f=2)
@compared("amlp", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=5, d=3, f=4, K=2)
@compared("amlp", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=8, d=4, f=2, K=3)
@compared("amlp+causal", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=5, d=3, f=4, K=2)
@compared("amlp+causal", "g-mlp-pytorch", "g_mlp_pytorch.gMLPBlock", l=8, d=4, f=2, K=3)
def gated(of: Any, ours: Weights, each: Comparison) -> Any:
    theirs = of(
        dim=each.sizes["d"], dim_ff=2 * each.sizes["f"], seq_len=each.sizes["l"],
        attn_dim=each.sizes.get("K"), causal="causal" in each.options,
    ).double()  # fmt: skip
    both = torch.cat([ours["W_U"], ours["W_G"]], 1), torch.cat([ours["b_U"], ours["b_G"]])
    linear(theirs.proj_in[0], *both)
    linear(theirs.proj_out, ours["W_out"], ours["b_out"])
    gate = theirs.sgu
    fill((gate.norm.weight, ours["gain"]), (gate.norm.bias, ours["bias"]))
    fill((gate.weight, ours["W"][None]), (gate.bias, ours["w"][None]))
    if theirs.attn is not None:
        linear(theirs.attn.to_qkv, torch.cat([ours[f"W_{name}"] for name in "QKV"], 1))
        linear(theirs.attn.to_out, ours["W_T"], ours["b_T"])
    return theirs


@compared("aft-full", "aft-pytorch", "aft_pytorch.AFTFull", l=7, d=5)
@compared("aft-full", "aft-pytorch", "aft_pytorch.AFTFull", l=4, d=6)
@compared("aft-simple", "aft-pytorch", "aft_pytorch.AFTSimple", l=7, d=5)
@compared("aft-simple", "aft-pytorch", "aft_pytorch.AFTSimple", l=4, d=6)
def attention_free(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their last map, which ours has not, is the identity."""
    theirs = of(each.sizes["l"], each.sizes["d"], each.sizes["d"]).double()
    for layer, name in ((theirs.to_q, "W_Q"), (theirs.to_k, "W_K"), (theirs.to_v, "W_V")):
        linear(layer, ours[name])
    linear(theirs.project, torch.eye(each.sizes["d"]))
    if "w" in ours:
        fill((theirs.wbias, ours["w"]))
    return theirs


@compared(
    "linear-attention",
    "performer-pytorch",
    "performer_pytorch.performer_pytorch.causal_linear_attention_noncuda",
    l=7, d=6, n=3, C=3,
)  # fmt: skip
@compared(
    "linear-attention",
    "performer-pytorch",
    "performer_pytorch.performer_pytorch.causal_linear_attention_noncuda",
    l=9, d=8, n=2, C=4,
)  # fmt: skip
def linear_attention(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their sum of k v^T after our maps and the feature map, nothing added to the denominator."""

    def theirs(x: torch.Tensor) -> torch.Tensor:
        Q, K, V = (heads(x, ours[f"W_{name}"], each.sizes["n"]) for name in "QKV")
        phi = torch.nn.functional.elu
        return joined(of(phi(Q) + 1, phi(K) + 1, V, chunk_size=2, eps=0.0), ours["W_out"])

    return theirs


@compared(
    "efficient-attention",
    "linear-attention-transformer",
    "linear_attention_transformer.linear_attention_transformer.linear_attn",
    l=7, d=6, n=3,
)  # fmt: skip
@compared(
    "efficient-attention",
    "linear-attention-transformer",
    "linear_attention_transformer.linear_attention_transformer.linear_attn",
    l=4, d=8, n=2,
)  # fmt: skip
def efficient_attention(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their core after our maps; it scales queries by 1/sqrt(h), which is taken back."""
    h = each.sizes["d"] // each.sizes["n"]

    def theirs(x: torch.Tensor) -> torch.Tensor:
        Q, K, V = (heads(x, ours[f"W_{name}"], each.sizes["n"]) for name in "QKV")
        return joined(of(Q, K, V) * h**0.5, ours["W_out"])

    return theirs


@compared("mlp-mixer", "mlp-mixer-pytorch", "mlp_mixer_pytorch.mlp_mixer_pytorch.FeedForward",
          l=5, d=3, f=4)  # fmt: skip
@compared("mlp-mixer", "mlp-mixer-pytorch", "mlp_mixer_pytorch.mlp_mixer_pytorch.FeedForward",
          l=8, d=2, f=3)  # fmt: skip
def token_mixing(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their layers over the axis of tokens, which are the channels of a convolution of width 1."""
    first, _, _, second, _ = layers = of(
        each.sizes["l"], each.sizes["f"], dense=lambda a, b: nn.Conv1d(a, b, kernel_size=1)
    ).double()
    fill((first.weight, ours["W_1"].t()[..., None]), (first.bias, ours["b_1"]))
    fill((second.weight, ours["W_2"].t()[..., None]), (second.bias, ours["b_2"]))
    return layers


@compared("fastformer", "espnet", "espnet2.asr.layers.fastformer.FastSelfAttention", l=5, d=6, n=3)
@compared("fastformer", "espnet", "espnet2.asr.layers.fastformer.FastSelfAttention", l=8, d=4, n=2)
def fastformer(of: Any, ours: Weights, each: Comparison) -> Any:
    theirs = of(each.sizes["d"], each.sizes["n"], 0.0).double()
    linear(theirs.query, ours["W_Q"], ours["b_Q"])
    linear(theirs.query_att, ours["w_q"], ours["b_q"])
    linear(theirs.key, ours["W_K"], ours["b_K"])
    linear(theirs.key_att, ours["w_k"], ours["b_k"])
    linear(theirs.transform, ours["W_U"], ours["b_U"])
    return lambda x: theirs(x, torch.ones(len(x), 1, x.shape[1]))


@compared(
    "restricted-attention-causal", "local-attention", "local_attention.LocalAttention",
    l=12, d=6, n=3, w=4,
)  # fmt: skip
@compared(
    "restricted-attention-causal", "local-attention", "local_attention.LocalAttention",
    l=7, d=4, n=2, w=3,
)  # fmt: skip
def last_tokens(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their exact window of w - 1 earlier tokens and the token itself."""
    core = of(window_size=each.sizes["w"] - 1, causal=True, exact_windowsize=True, autopad=True)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        Q, K, V = (heads(x, ours[f"W_{name}"], each.sizes["n"]) for name in "QKV")
        return joined(core(Q, K, V), ours["W_out"])

    return theirs


@compared("aft-local", "aft-pytorch", "aft_pytorch.AFTLocal", l=7, d=5, w=3)
@compared("aft-local", "aft-pytorch", "aft_pytorch.AFTLocal", l=9, d=4, w=2)
def nearby(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their weights of all pairs, 0 far away; they are copied in torch's default type."""
    l, d, w = (each.sizes[letter] for letter in "ldw")
    theirs = of(l, d, d, s=w).double()
    for layer, name in ((theirs.to_q, "W_Q"), (theirs.to_k, "W_K"), (theirs.to_v, "W_V")):
        linear(layer, ours[name])
    linear(theirs.project, torch.eye(d))
    for i in range(l):
        for k in range(max(0, i - w + 1), min(l, i + w)):
            fill((theirs.wbias[i, k], ours["u"][i, k - i + w - 1]))

    def called(x: torch.Tensor) -> torch.Tensor:
        with made_in_float64():
            return theirs(x)  # type: ignore[no-any-return]

    return called


LIGHT = "espnet.nets.pytorch_backend.transformer.lightconv.LightweightConvolution"


@compared("light-convolution+centred", "espnet", LIGHT, l=7, d=6, n=2, k=3)
@compared("light-convolution+centred", "espnet", LIGHT, l=9, d=4, n=1, k=5)
@compared("light-convolution", "espnet", LIGHT, l=7, d=6, n=2, k=3)
@compared("light-convolution", "espnet", LIGHT, l=9, d=4, n=1, k=5)
def light_convolution(of: Any, ours: Weights, each: Comparison) -> Any:
    """A head's channels lie n apart in theirs, side by side in ours; a causal kernel is the first
    half of theirs and its middle, the token itself last."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    centred = "centred" in each.options
    theirs = of(n, d, 0.0, k if centred else 2 * k - 1, use_kernel_mask=not centred).double()
    apart = torch.arange(d).reshape(n, d // n).t().flatten()
    linear(theirs.linear1, torch.cat([ours["W_1"][:, apart], ours["W_2"][:, apart]], 1))
    linear(theirs.linear2, ours["W_out"][apart])
    fill((theirs.weight[:, 0, :k], ours["W"] if centred else ours["W"].flip(1)))
    return lambda x: theirs(x, None, None, None)


FNET = "transformers.models.fnet.modeling_fnet.FNetBasicFourierTransform"


@compared("fnet", "transformers", FNET, l=7, d=6)
@compared("fnet", "transformers", FNET, l=4, d=5)
def fourier(of: Any, ours: Weights, each: Comparison) -> Any:
    theirs = of(SimpleNamespace(use_tpu_fourier_optimizations=False))
    return lambda x: theirs(x)[0]


KERNEL = "performer_pytorch.performer_pytorch.softmax_kernel"


@compared("performer", "performer-pytorch", KERNEL, l=7, d=6, n=3, m=5)
@compared("performer", "performer-pytorch", KERNEL, l=9, d=8, n=2, m=4)
@compared("performer+causal", "performer-pytorch", KERNEL, l=7, d=6, n=3, m=5, C=3)
@compared("performer+causal", "performer-pytorch", KERNEL, l=9, d=8, n=2, m=4, C=4)
def performer(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their features and sums after our maps, nothing added to either for stability."""
    sums = import_module("performer_pytorch.performer_pytorch")

    def theirs(x: torch.Tensor) -> torch.Tensor:
        Q, K, V = (heads(x, ours[f"W_{name}"], each.sizes["n"]) for name in "QKV")
        features = {"projection_matrix": ours["w"], "eps": 0.0}
        read, kept = of(Q, is_query=True, **features), of(K, is_query=False, **features)
        if "causal" not in each.options:
            return joined(sums.linear_attention(read, kept, V), ours["W_out"])
        causal = sums.causal_linear_attention_noncuda
        return joined(causal(read, kept, V, chunk_size=2, eps=0.0), ours["W_out"])

    return theirs


@compared("gss", "gated-state-spaces-pytorch", "gated_state_spaces_pytorch.gss.GSS",
          l=7, d=4, f=8, r=3, N=5)  # fmt: skip
@compared("gss", "gated-state-spaces-pytorch", "gated_state_spaces_pytorch.gss.GSS",
          l=9, d=3, f=6, r=2, N=4)  # fmt: skip
def gated_state_space(of: Any, ours: Weights, each: Comparison) -> Any:
    """Without their normalisation in front and what goes past the layer."""
    d, f, r, N = (each.sizes[letter] for letter in "dfrN")
    theirs = of(dim=d, dim_expansion_factor=f / d, dss_kernel_N=N, dss_kernel_H=r).double()
    theirs.norm = nn.Identity()
    linear(theirs.to_u[0], ours["W_V"])
    linear(theirs.to_v[0], ours["W_U"])
    linear(theirs.to_gate, ours["W_O"])
    linear(theirs.to_out, ours["W_out"])
    model = theirs.dss
    fill(
        (model.norm.weight, ours["gain"]),
        (model.norm.bias, ours["bias"]),
        (model.Lambda_real, ours["log_A"]),
        (model.Lambda_imag, ours["log_A_im"]),
        (model.C_real, ours["C"][..., 0]),
        (model.C_imag, ours["C"][..., 1]),
        (model.param_D, ours["D"]),
    )
    return lambda x: theirs(x) - x


NYSTROM = "transformers.models.nystromformer.modeling_nystromformer.NystromformerSelfAttention"


@compared("nystromformer", "transformers", NYSTROM, l=12, d=6, n=2, r=3)
@compared("nystromformer", "transformers", NYSTROM, l=8, d=4, n=1, r=2)
def landmarks(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their scale of the first inverse is that of the greatest matrix of a batch unless told, which
    their configuration cannot do in this version; theirs has no W_out."""
    l, d, n, r = (each.sizes[letter] for letter in "ldnr")
    theirs = of(
        SimpleNamespace(
            hidden_size=d,
            num_attention_heads=n,
            num_landmarks=r,
            segment_means_seq_len=l,
            conv_kernel_size=None,
            inv_coeff_init_option=False,
            attention_probs_dropout_prob=0.0,
        )
    ).double()
    theirs.init_option = "exact"
    for layer, name in ((theirs.query, "W_Q"), (theirs.key, "W_K"), (theirs.value, "W_V")):
        linear(layer, ours[name])
    return lambda x: theirs(x)[0] @ ours["W_out"]


MEGA = "transformers.models.deprecated.mega.modeling_mega.MegaMovingAverageGatedAttention"


@compared("mega", "transformers", MEGA, l=7, d=4, N=3, K=5, v=2)
@compared("mega", "transformers", MEGA, l=5, d=3, N=4, K=2, v=1)
@compared("mega+chunk", "transformers", MEGA, l=6, d=4, N=3, K=5, v=2, C=3)
@compared("mega+chunk", "transformers", MEGA, l=8, d=3, N=4, K=2, v=1, C=2)
def gated_averages(of: Any, ours: Weights, each: Comparison) -> Any:
    """Without the normalisation in front; averages by their step, in float64 where their transform
    is not, without omega and the silu that the paper does not print; their eta is over sqrt(N)."""
    l, d, N, K, v = (each.sizes[letter] for letter in "ldNKv")
    C = each.sizes.get("C", l)
    theirs = of(
        SimpleNamespace(
            activation="silu", attention_activation="softmax", normalization_type="layernorm",
            relative_positional_bias="simple", hidden_size=d, intermediate_size=v * d,
            shared_representation_size=K, ema_projection_size=N, max_positions=C, chunk_size=C,
            use_chunking=l > C, is_decoder=True, bidirectional=False, truncation=None,
            normalize_before_mega=True, norm_affine=True, use_feature_dropout=False,
            dropout_prob=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    ).double()  # fmt: skip
    theirs.norm, average = nn.Identity(), theirs.ema_gate
    linear(theirs.v_proj, ours["W_V"], ours["b_V"])
    linear(theirs.h_proj, ours["U_H"])
    of_averages = ("phi", "Z", "gamma", "H")
    W, b = (torch.cat([ours[f"{kind}_{name}"] for name in of_averages], -1) for kind in "Wb")
    linear(theirs.mx_proj, W, b)
    fill(
        (average.damping_factor, ours["alpha"].unsqueeze(-1)),
        (average.decay_factor, ours["delta"].unsqueeze(-1)),
        (average.ema_expansion_matrix, ours["beta"].unsqueeze(-1)),
        (average.kernel_projection_matrix, ours["eta"] * N**0.5),
        (theirs.qk_weight, torch.stack([ours["kappa_Q"], ours["kappa_K"]])),
        (theirs.qk_bias, torch.stack([ours["mu_Q"], ours["mu_K"]])),
        (theirs.rel_pos_bias.rel_pos_bias, torch.cat([ours["P"].flip(0), torch.zeros(C - 1)])),
    )

    def averages(rows: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        found, state = [], None
        for row in rows:
            taken, state = average.one_ema_step(row.unsqueeze(-1), past_state=state)
            found.append(taken)
        return torch.cat(found), state

    average.forward = averages
    earlier = torch.ones(C, C, dtype=torch.float64).tril()
    return lambda x: theirs(x.transpose(0, 1), causal_mask=earlier)[0].transpose(0, 1)


@compared(
    "longformer", "transformers",
    "transformers.models.longformer.modeling_longformer.LongformerSelfAttention",
    l=12, d=6, n=2, w=4, s=2,
)  # fmt: skip
@compared(
    "longformer", "transformers",
    "transformers.models.longformer.modeling_longformer.LongformerSelfAttention",
    l=12, d=4, n=1, w=6, s=3,
)  # fmt: skip
def window_and_global(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their softmax is taken in float64 too; theirs has no W_out."""
    l, d, n, w, s = (each.sizes[letter] for letter in "ldnws")
    theirs = of(
        SimpleNamespace(
            hidden_size=d, num_attention_heads=n, attention_window=[w],
            attention_probs_dropout_prob=0.0,
        ),
        0,
    ).double()  # fmt: skip
    for name, layer in (("Q", "query"), ("K", "key"), ("V", "value")):
        linear(getattr(theirs, layer), ours[f"W_{name}"])
        linear(getattr(theirs, f"{layer}_global"), ours[f"W_{name}_g"])
    seen_by_all = torch.arange(l) < s

    def read(x: torch.Tensor) -> Any:
        places = seen_by_all.expand(len(x), l)
        with patch.object(nn.functional, "softmax", lambda z, dim, dtype: torch.softmax(z, dim)):
            found = theirs(
                x, attention_mask=places * 1e4, is_index_masked=torch.zeros_like(places),
                is_index_global_attn=places, is_global_attn=True,
            )  # fmt: skip
        return found[0] @ ours["W_out"]

    return read
