"""Which network does a configuration of HRM-Text describe?

Two stacks of layers, L and H, run in cycles: L several times, then H once. Each run reads the sum
of the last rows of L and of H, and ends in a norm. All runs of a stack have the same weights, and
the early runs of L in a cycle pass no gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import attention, block, decoder, part, rotary
from costmodel.networks.architectures.equations import layer_rows
from costmodel.networks.blocks import Block, Description, Sublayer, Use
from costmodel.networks.configuration import Configuration
from costmodel.questions.parameters import parameters

REMARK = (
    "every token attends to earlier ones alone, where the class lets tokens of an instruction "
    "attend to one another if token_type_ids name them"
)


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of HrmTextForCausalLM or HrmTextModel: a layer for
    each run of each layer of a stack. With 2 cycles of 3 runs of L, the stacks run in the order L L
    L H L L L H. A run has `num_layers_per_stack` layers, and `num_hidden_layers` may then say the
    layers of all runs, else ModelError; without the field a run has `num_hidden_layers`."""
    c.with_class()
    high, low, n = c.size("H_cycles"), c.size("L_cycles"), c.size("num_attention_heads")
    each = c.size_or_none("num_layers_per_stack")
    if each is not None:
        c.agree(num_hidden_layers=each * high * (low + 1))
    each = each or c.size("num_hidden_layers")
    c.fields_read.update(("embedding_scale", "prefix_lm"))
    turned, share = rotary(c)
    bias = ("bias",) if c.switch("attention_bias") else ()
    ffn = parts.gated_ffn(c.activation("hidden_act"), c.switch("mlp_bias"))
    norm = parts.rms_norm(gain="")
    attending = attention(c, *bias, "gate", *turned, groups=n, **share)
    plain = block("layer", attending, part("gated FFN", ffn), norm=norm)
    runs = [*_runs(c, high, low)]  # ("L" or "H", `still`: "all" if no gradient passes, else "")
    owners, layers = _owners(runs), list[Block]()
    for k, (stack, still) in enumerate(runs):
        own = [_run(plain, f"{stack}{i + 1}", stack, still, k in owners) for i in range(each)]
        if k + 1 < len(runs):
            normed = Use("norm at the end", norm, writes=f"rows of {stack}", fixed=still)
            first = k < low  # H has no rows of its own in the first cycle
            rows = ("rows of L", "embedding" if first else "rows of H")
            joined = Use("sum of L and H", layer_rows.joined(), reads=rows, fixed=runs[k + 1][1])
            end = Sublayer(normed, joined)
            own[-1] = replace(own[-1], sublayers=(*own[-1].sublayers, end))
        layers += own
    # the row that begins L is never trained ("weights"), wherever gradients pass
    start = Use("start of L", layer_rows.moved(), fixed=runs[0][1] or "weights")
    found = decoder(
        c, "HrmText", layers, norm, {"f": c.size("intermediate_size")}, scaled=True,
        entry=(start,), remark=REMARK,
    )  # fmt: skip
    (stack_,) = found.stacks
    names = frozenset(n for use in found.parts() for n in use.shared)
    return replace(found, stacks=(replace(stack_, first=names - {"E"}),))


def _owners(runs: Sequence[tuple[str, str]]) -> Collection[int]:
    """The numbers of two of the `runs` (see `_runs`), from 0, one of L and one of H, in which the
    weights of a stack are counted: its last run with gradients."""
    with_gradients_last = sorted(range(len(runs)), key=lambda k: (runs[k][1] == "", k))
    return {runs[k][0]: k for k in with_gradients_last}.values()


def _runs(c: Configuration, high: int, low: int) -> Iterator[tuple[str, str]]:
    """Yield the runs of the stacks in order, each as ("L" or "H", "all" if no gradient passes, else
    ""). Of the `low` runs of L in each of `high` cycles the last ones have gradients: as many as
    `L_bp_cycles` lists for the cycle, or 1 in cycles before a shorter list; each run of H has."""
    given = [2] if (listed := c.get("L_bp_cycles")) is None else listed
    if not isinstance(given, list) or not all(type(one) is int for one in given):
        raise c.refused(f"'L_bp_cycles' must list a number for each cycle, got {given!r}")
    trained = [1] * (high - len(given)) + given
    for number in trained[:high]:
        for k in range(low):
            yield "L", "all" if k < low - number else ""
        yield "H", ""


def _run(plain: Block, weights: str, stack: str, still: str, owner: bool) -> Block:
    """Make a run of a layer of `stack` with the parameters named `weights`, which are counted here
    if this run is the `owner`; `still`: "all" if no gradient passes, else ""."""

    def change(use: Use) -> Use:
        names = () if owner else parameters(use.mixer).arrays
        return replace(use, fixed=still, shared=frozenset(names))

    return replace(plain.with_parts(change), name=stack, weights=weights)
