"""Which network does a configuration of LongCat-Flash describe?"""

from __future__ import annotations

from dataclasses import replace

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import block, decoder, mixture, part, unread
from costmodel.networks.architectures.equations import layer_rows
from costmodel.networks.architectures.plain import ABSORBED, latent
from costmodel.networks.blocks import Description, Use
from costmodel.networks.configuration import Configuration
from costmodel.symbolic.polynomial import Poly

IDLE = (
    "a token goes through as many experts as the configuration says, where the class returns the "
    "token itself for each chosen expert without weights (zero_expert_num): figures of experts are "
    "upper bounds"
)
SCALES = "products of queries, of latent rows and of chosen scores with constants are not counted"


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of LongcatFlashForCausalLM or LongcatFlashModel. A
    layer is attention, FFN, attention, FFN; experts read the normed rows that the first FFN reads,
    and their output is added to that of the second. Parts name the rows that they `reads`, by what
    other parts `writes`."""
    c.with_class()
    number, norm = c.size("num_layers"), parts.rms_norm()
    c.agree(num_hidden_layers=2 * number)
    c.fields_read.add("routed_scaling_factor")
    width, f = c.size("moe_intermediate_size"), c.size("intermediate_size")
    activation = c.activation("hidden_act")
    experts = mixture(c, "softmax", width, correction="buffer", activation=activation)
    attending, ffn = latent(c), part("gated FFN", parts.gated_ffn(activation), f=f)
    layer = block("layer", *(attending, ffn) * 2, norm=norm)
    first, beside, other, last = layer.sublayers
    assert beside.before is not None
    beside = replace(beside, before=replace(beside.before, writes="normed, first"))
    made = replace(experts, reads=("normed, first",), writes="experts")
    joined = Use("sum of FFN and experts", layer_rows.joined(), reads=("FFN", "experts"))
    last = replace(last, part=joined, makes=(made, replace(last.part, writes="FFN")))
    layer = replace(layer, sublayers=(first, beside, other, last))
    idle = c.number("zero_expert_num")
    # the maps to gate and up, 2 * width rows of d channels, of each idle expert of each layer
    rows = Poly.of(2 * idle * width * number) * Poly.atom("d")
    return decoder(
        c, "LongcatFlash", [layer] * number, norm, {"f": f},
        entry=[unread("gates of experts without weights, not read", rows)] if idle else (),
        remark="; ".join((ABSORBED, SCALES, *([IDLE] if idle else ()))),
    )  # fmt: skip
