"""How does a test load our weights into somebody else's attention of one kind or another?"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tests.references.comparison import Comparison, compared, fill, heads, joined, linear
from tests.references.packages import Weights

LUONG = "torchnlp.nn.attention.Attention"


@compared("dot-product-attention", "pytorch-nlp", LUONG, l=7, d=5)
@compared("dot-product-attention", "pytorch-nlp", LUONG, l=4, d=6)
@compared("general-attention", "pytorch-nlp", LUONG, l=7, d=5)
@compared("general-attention", "pytorch-nlp", LUONG, l=4, d=6)
def luong(of: Any, ours: Weights, each: Comparison) -> Any:
    """Each row attends, by their weights, to the rows up to itself; the layer behind, over state
    and context, is left out."""
    d = each.sizes["d"]
    theirs = of(d, each.mixer.split("-")[0]).double()
    if "W_a" in ours:
        linear(theirs.linear_in, ours["W_a"])

    def read(x: Tensor) -> Tensor:
        up_to = (x[:, : i + 1] for i in range(x.shape[1]))
        return torch.cat([theirs(rows[:, -1:], rows)[1] @ rows for rows in up_to], 1)

    return read


ADDITIVE = "espnet.nets.pytorch_backend.rnn.attentions.AttAdd"


@compared("additive-attention", "espnet", ADDITIVE, l=7, d=5, f=3)
@compared("additive-attention", "espnet", ADDITIVE, l=4, d=3, f=6)
def bahdanau(of: Any, ours: Weights, each: Comparison) -> Any:
    """Each row attends to the rows up to itself; scores are multiplied by 1, not by their 2."""
    d, f = each.sizes["d"], each.sizes["f"]
    theirs = of(d, d, f).double()
    linear(theirs.mlp_dec, ours["W_a"])
    linear(theirs.mlp_enc, ours["U_a"])
    linear(theirs.gvec, ours["v_a"][:, None])

    def of_last(rows: Tensor) -> Any:
        theirs.reset()
        return theirs(rows, [rows.shape[1]] * len(rows), rows[:, -1], None, scaling=1.0)[0]

    return lambda x: torch.stack([of_last(x[:, : i + 1]) for i in range(x.shape[1])], 1)


@compared("local-attention", "local-attention", "local_attention.LocalAttention",
          l=8, d=6, n=3, B=3)  # fmt: skip
@compared("local-attention", "local-attention", "local_attention.LocalAttention",
          l=9, d=4, n=2, B=4)  # fmt: skip
@compared("local-attention+causal", "local-attention", "local_attention.LocalAttention",
          l=8, d=6, n=3, B=3)  # fmt: skip
@compared("local-attention+causal", "local-attention", "local_attention.LocalAttention",
          l=9, d=4, n=2, B=4)  # fmt: skip
@compared("restricted-attention", "local-attention", "local_attention.LocalAttention",
          l=8, d=6, n=3, w=5)  # fmt: skip
@compared("restricted-attention", "local-attention", "local_attention.LocalAttention",
          l=12, d=4, n=2, w=3)  # fmt: skip
def nearby(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their core, of their blocks alone or of as many rows before as after; the rows that fill the
    last block are masked."""
    n, wide = each.sizes["n"], each.sizes.get("B") or each.sizes["w"] // 2
    around = {"look_backward": 1, "look_forward": 1, "exact_windowsize": True}
    inside = {"look_backward": 0, "look_forward": 0, "causal": "causal" in each.options}
    core = of(window_size=wide, autopad=True, **(inside if "B" in each.sizes else around))

    def read(x: Tensor) -> Tensor:
        rows = (heads(x, ours[f"W_{name}"], n) for name in "QKV")
        return joined(core(*rows, mask=torch.ones(x.shape[:2], dtype=torch.bool)), ours["W_out"])

    return read


@compared("set-transformer", "isab-pytorch", "isab_pytorch.ISAB", l=7, d=6, n=3, r=4)
@compared("set-transformer", "isab-pytorch", "isab_pytorch.ISAB", l=4, d=8, n=2, r=2)
def inducing_points(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their heads are 64 wide and scores divided by the root of that; the paper's are d/n wide, and
    its scores divided by the root of d."""
    d, n, r = (each.sizes[letter] for letter in "dnr")
    theirs = of(dim=d, heads=n, num_latents=r)
    for name, matrices in (("attn1", "U"), ("attn2", "W")):
        attention = import_module(of.__module__).Attention(d, n, d // n)
        attention.scale = d**-0.5
        setattr(theirs, name, attention.double())
        linear(attention.to_q, ours[f"{matrices}_Q"])
        linear(attention.to_kv, torch.cat([ours[f"{matrices}_{each}"] for each in "KV"], 1))
        linear(attention.to_out, ours[f"{matrices}_out"])
    theirs.double()
    fill((theirs.latents, ours["I"]))
    return lambda x: theirs(x)[0]


SCORES = "synth.synthesizer.modules."
of_scores = partial(compared, package="10-zin/Synthesizer", without=("synth.synthesizer",))


@of_scores("synthesizer-dense", of=f"{SCORES}DenseAttention", l=5, d=6, n=3)
@of_scores("synthesizer-dense", of=f"{SCORES}DenseAttention", l=4, d=8, n=2)
@of_scores("synthesizer-dense+causal", of=f"{SCORES}DenseAttention", l=5, d=6, n=3)
@of_scores("synthesizer-dense+causal", of=f"{SCORES}DenseAttention", l=4, d=8, n=2)
@of_scores("synthesizer-random", of=f"{SCORES}RandomAttention", l=5, d=6, n=3)
@of_scores("synthesizer-random", of=f"{SCORES}RandomAttention", l=4, d=8, n=2)
@of_scores("synthesizer-random+causal", of=f"{SCORES}RandomAttention", l=5, d=6, n=3)
@of_scores("synthesizer-random+causal", of=f"{SCORES}RandomAttention", l=4, d=8, n=2)
@of_scores("synthesizer-factorized-random", of=f"{SCORES}FactorizedRandomAttention",
           l=5, d=6, n=3, r=2)  # fmt: skip
@of_scores("synthesizer-factorized-random", of=f"{SCORES}FactorizedRandomAttention",
           l=4, d=8, n=2, r=3)  # fmt: skip
def synthesizer(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their attention between our maps. In the dense one, all their heads share the layers behind
    the first one: here each head has its own copy. Their numbers of positions are drawn by the
    constructor, which in the factorized one names another class: these are given afterwards."""
    d, l, n = (each.sizes[letter] for letter in "dln")
    earlier = torch.ones(l, l)
    earlier = (earlier.tril() if "causal" in each.options else earlier)[None, None]

    def of_heads(x: Tensor, values: Tensor) -> Tensor:
        if "W_F" in ours:
            found = []
            for j, rows in enumerate(heads(x, ours["W_F"], n).unbind(1)):
                one = of(l, d // n, d // n).double().eval()
                linear(one.w_1, torch.eye(d // n))
                linear(one.w_2, ours["W"][j])
                found.append(one(rows[:, None], values[:, j : j + 1], l, earlier)[0])
            return torch.cat(found, 1)
        theirs = of.__new__(of)
        torch.nn.Module.__init__(theirs)
        theirs.dropout = torch.nn.Identity()
        if "R" in ours:
            theirs.random_attn = ours["R"][None]
        else:
            theirs.random_attn_1 = ours["R_1"][None]
            theirs.random_attn_2 = ours["R_2"].mT[None]
        return theirs(values, l, earlier)[0]  # type: ignore[no-any-return]

    return lambda x: joined(of_heads(x, heads(x, ours["W_V"], n)), ours["W_out"])
