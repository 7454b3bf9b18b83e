"""Which network does a configuration of Zamba or Zamba2 describe?

Most layers are Mamba alone, in Zamba2 Mamba-2. In a hybrid layer a block of attention and FFN comes
first, whose weights all hybrid layers share, or every `num_mem_blocks`-th one of them; a linear map
of the layer follows. Mamba reads the sum of the layer's rows and of what the block made; the
residual sum adds to the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import (
    block,
    conv_bias,
    decoder,
    map_biases,
    mixer,
    part,
    rotary,
    unread,
)
from costmodel.networks.architectures.equations import layer_rows, mamba_heads, shared_block
from costmodel.networks.blocks import Block, Description, Use
from costmodel.networks.configuration import Configuration
from costmodel.questions.parameters import parameters
from costmodel.symbolic.polynomial import Poly, sum_of

PLAIN, HYBRID = KINDS = ("linear_attention", "hybrid")
BY_DEFAULT = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})
"""The hybrid layers of the 54 of Zamba2-2.7B, counted from 0: the class's default."""

ONLY_NUMBERS = (
    "time_step_min", "time_step_max", "time_step_floor", "use_mamba_kernels", "use_conv_bias",
    "use_mem_eff_path", "chunk_size", "num_logits_to_keep", "use_long_context",
)  # fmt: skip
"""How steps start, kernels, a bias that the class has anyway, scores of a prompt, and the longest
context."""


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of Zamba2ForCausalLM or Zamba2Model. ModelError for
    a list of layers of another length than their number, or heads that do not fit the widths. With
    an untied head the class shares no block, and each block keeps adapters of other layers."""
    c.with_class().require({"use_shared_block_lora": (True,), "use_shared_mlp_lora": (True,)})
    c.fields_read.update(ONLY_NUMBERS)
    kinds = _kinds(c, [HYBRID if k in BY_DEFAULT else PLAIN for k in range(54)])
    inner, heads = _inner(c)
    c.agree(conv_kernel=c.size("mamba_d_conv"), expand=c.size("mamba_expand"))
    norm, sets = parts.rms_norm(), c.size("num_mem_blocks")
    state = mixer(
        "mamba-2", map_biases(c, "add_bias_linear"), n=heads, P=inner // heads,
        N=c.size("mamba_d_state"), G=c.size("mamba_ngroups"), k=c.size("mamba_d_conv"),
    )  # fmt: skip
    plain = block("mamba-2", state, norm=norm)
    made = [_hybrid(c, plain, k, sets) for k in range(kinds.count(HYBRID))]
    hybrid = iter(made)  # the hybrid layers in order
    layers = [next(hybrid) if kind == HYBRID else plain for kind in kinds]
    entry = [] if c.switch("tie_word_embeddings") else _adapters_of_others(made, sets)
    return decoder(c, "Zamba2", layers, norm, state="fp32", entry=entry)


def _adapters_of_others(made: Sequence[Block], sets: int) -> list[Use]:
    """A list of one part: the parameters of the adapters, read by no token, that each hybrid layer
    in `made` keeps for all others of its set; [] without such others. `sets`: the number of sets,
    dealt in turn: of 4 layers in 2 sets, layer 0 keeps those of layer 2, 1 of 3, and back."""
    others = sum(len(made[k % sets :: sets]) - 1 for k in range(len(made)))
    if not others:
        return []
    uses = [use for one in made[0].sublayers for use in one.makes]
    number = sum_of(
        size.substitute(use.sizes)
        for use in uses
        for name, size in parameters(use.mixer).arrays.items()
        if name.startswith(("A_", "B_"))
    )
    return [unread("adapters of other layers, not read", number * others)]


def _hybrid(c: Configuration, plain: Block, k: int, sets: int) -> Block:
    """Make the hybrid layer number `k` (counted among hybrid layers, from 0): a block of attention
    and FFN before the Mamba-2 layer `plain`. Of `sets` sets of weights the block has number k mod
    `sets`, and a tied network counts them in the first layer that has them."""
    d, n = c.size("hidden_size"), _heads(c)
    g, h, r = c.size_or_none("num_key_value_heads") or n, 2 * d // n, c.size("adapter_rank")
    f = c.size_or_none("intermediate_size") or 4 * d
    c.agree(
        attention_hidden_size=2 * d, attention_head_dim=h, head_dim=h, kv_channels=d // n,
        mamba_headdim=c.size("mamba_expand") * d // c.size("n_mamba_heads"),
        num_query_groups=n, ffn_hidden_size=f, gated_linear_unit=True,
        hybrid_layer_ids=[i for i, one in enumerate(c.listing("layers_block_type") or ())
                          if one == HYBRID] or [*sorted(BY_DEFAULT)],
    )  # fmt: skip
    adapted, turned = c.switch("use_shared_attention_adapter"), c.switch("use_mem_rope")
    if adapted and (g != n or n * h != 2 * d):
        raise c.refused(
            "use_shared_attention_adapter = true needs num_attention_heads = num_key_value_heads, "
            f"a number that divides 2 * hidden_size = {2 * d}: got {n} and {g}"
        )
    if turned and h % 2:
        raise c.refused(
            "use_mem_rope = true needs heads of an even width, got 2 * hidden_size // "
            f"num_attention_heads = {h}"
        )
    rotary(c)  # refuses parameters that are not known here
    at, which = k % sets + 1, f", shared block {k % sets + 1}" if sets > 1 else ", shared block"
    sizes = {"r": r} if adapted else {}
    uses: tuple[Use, ...] = (
        part(f"norm of rows and embedding{which}", shared_block.beside_embedding(at)),
        part(f"attention{which}", shared_block.attention(at, turned, adapted),
             n=n, g=g, K=h, **sizes),
        part(f"norm{which}", shared_block.norm(at)),
        part(f"gated FFN{which}",
             shared_block.gated_ffn(
                 at, c.activation("hidden_act"), adapted=True, biased=c.switch("add_bias_linear")
             ), f=f, r=r),
    )  # fmt: skip
    return _around(plain, uses, later=k >= sets and c.switch("tie_word_embeddings"))


def read_1(c: Configuration) -> Description:
    """Describe the network of a configuration of ZambaForCausalLM or ZambaModel, of which all
    hybrid layers share one block, unless the head is untied. ModelError for heads that do not fit
    the widths."""
    c.with_class().require({"hidden_mamba_act": ("silu",)})
    c.fields_read.update((*ONLY_NUMBERS, "use_associative_scan"))
    number, d = c.size("num_hidden_layers"), c.size("hidden_size")
    period, offset = c.size("attn_layer_period"), c.number("attn_layer_offset")
    first = [PLAIN, PLAIN, HYBRID]
    usual = [*first, *(HYBRID if k % period == offset else PLAIN for k in range(number - 3))]
    kinds, (inner, heads), n = _kinds(c, usual), _inner(c), _heads(c)
    c.agree(attention_hidden_size=2 * d)
    rank = c.get("mamba_dt_rank")
    rank = -(-d // 16) if rank == "auto" else c.size("mamba_dt_rank")
    norm, g = parts.rms_norm(), c.size("num_key_value_heads")
    biases = (*conv_bias(c, "mamba_conv_bias"), *map_biases(c, "mamba_proj_bias"))
    state = part(
        "mamba of heads", mamba_heads.mamba(biases), n=heads, E=inner, R=rank,
        N=c.size("mamba_d_state"), k=c.size("mamba_d_conv"),
    )  # fmt: skip
    ffn = shared_block.gated_ffn(1, c.activation("hidden_act"))
    h = c.size_or_none("attention_head_dim") or 2 * d // n
    uses = (
        part("norm of rows and embedding, shared block", shared_block.beside_embedding(1)),
        part("attention, shared block", shared_block.attention(1), n=n, g=g, K=h),
        part("norm, shared block", shared_block.norm(1)),
        part("gated FFN, shared block", ffn, f=c.size("intermediate_size")),
    )
    plain = block("mamba", state, norm=norm)
    ties = c.switch("tie_word_embeddings")
    # whether an earlier layer is hybrid -> the hybrid layer, which then shares the block's weights
    made = {later: _around(plain, uses, later and ties) for later in (False, True)}
    hybrid = [kind == HYBRID for kind in kinds]
    layers = [made[any(hybrid[:k])] if own else plain for k, own in enumerate(hybrid)]
    return decoder(c, "Zamba", layers, norm, state="fp32")


def _heads(c: Configuration) -> int:
    """The number of heads of queries; ModelError if the heads of keys do not divide them."""
    c.divide("num_key_value_heads", "num_attention_heads")
    return c.size("num_attention_heads")


def _kinds(c: Configuration, usual: Sequence[str]) -> Sequence[str]:
    """The kind of each layer, as `layers_block_type` lists them, else as `usual` does; ModelError
    for a list of another length than the number of layers."""
    listed, number = c.get("layers_block_type"), c.size("num_hidden_layers")
    found = usual if listed is None else listed
    return c.layer_types(number, KINDS, found, "layers_block_type") or ()


def _inner(c: Configuration) -> tuple[int, int]:
    """The number of Mamba's inner channels and of its heads, which must divide it (ModelError)."""
    inner, heads = c.size("mamba_expand") * c.size("hidden_size"), c.size("n_mamba_heads")
    if inner % heads:
        raise c.refused(
            f"n_mamba_heads = {heads} does not divide mamba_expand * hidden_size = {inner}"
        )
    return inner, heads


def _around(plain: Block, uses: tuple[Use, ...], later: bool) -> Block:
    """Make a hybrid layer around the layer `plain`, whose block has the parts `uses`: norm,
    attention, norm and FFN. Each part names the rows that it `reads` ("": the layer's rows), by
    what other parts `writes`. `later`: an earlier layer has the parameters of the block."""
    if later:
        uses = tuple(replace(use, shared=_of_block(use)) for use in uses)
    both, attending, normed, ffn = uses
    first, *_ = plain.sublayers
    assert first.before is not None
    mapped = Use("map of the block", parts.dense(bias=False), sizes={"f": Poly.atom("d")})
    makes = (
        replace(both, reads=("", "embedding"), writes="two rows"),
        replace(attending, reads=("two rows",), writes="attended"),
        replace(normed, reads=("attended",), writes="attended, normed"),
        replace(ffn, reads=("attended, normed",), writes="of the block"),
        replace(mapped, reads=("of the block",), writes="mapped"),
        Use("sum with the block", layer_rows.joined(), reads=("", "mapped"), writes="sum"),
        replace(first.before, reads=("sum",), writes="normed"),
    )
    inside = replace(first, part=replace(first.part, reads=("normed",)), before=None, makes=makes)
    return Block("hybrid", (inside,))


def _of_block(use: Use) -> frozenset[str]:
    """The names of a part's parameters that belong to its block, all but those of adapters."""
    return frozenset(n for n in parameters(use.mixer).arrays if not n.startswith(("A_", "B_")))
