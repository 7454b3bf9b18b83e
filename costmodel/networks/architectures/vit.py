"""Which network does a configuration of ViT describe?

An image is cut into patches; a linear map makes each a row, after the row of a class token. The
number of rows follows from the sizes of image and patches.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.networks import parts
from costmodel.networks.architectures.decoder import block, classified, mixer, part, unread
from costmodel.networks.blocks import FORWARD, ONE, PASSES, Description, Stack, Use
from costmodel.networks.configuration import Configuration
from costmodel.symbolic.polynomial import Poly

MASKED = "ViTForMaskedImageModeling"
WHOLE = "no patch is masked, and no loss is counted"


def read(c: Configuration) -> Description:
    """Describe the network of a configuration of ViTForImageClassification, of ViTModel with its
    pooler, or of ViTForMaskedImageModeling, which maps each patch to its pixels. Its l rows are one
    for the class and one for each patch. ModelError for patches larger than the image."""
    c.with_class()
    c.fields_read.update(("encoder_stride", "attention_probs_dropout_prob"))
    named = c.architecture("ViTForImageClassification", "ViTModel", MASKED)
    c.fields_read.add("pooler_output_size")  # of the pooler, that ViTModel has alone
    norm, d = parts.layer_norm(), c.size("hidden_size")
    (wide, high), (p, q) = (_pair(c, name) for name in ("image_size", "patch_size"))
    if not (patches := (wide // p) * (high // q)):
        raise c.refused(f"patches of {p} x {q} pixels are larger than the image, {wide} x {high}")
    rows = patches + 1  # and the class token's
    pixels = c.size("num_channels") * p * q
    entry = [
        Use("patches", parts.patches(), sizes={"r": Poly.of(pixels)}),
        Use(
            "learned positions", parts.positions("learned"), sizes={"u": Poly.of(rows)},
            table=True, rows=rows,
        ),
    ]  # fmt: skip
    drop = None
    if c.some("hidden_dropout_prob"):
        drop = Use("dropout", parts.dropout(), when=FORWARD, regularises=True)
        entry.append(drop)
    bias = "bias" if c.switch("qkv_bias") else "output-bias"
    n = c.size("num_attention_heads")
    if c.get("head_dim") is None:
        c.divide("num_attention_heads", "hidden_size")
    layer = block(
        "self-attention",
        mixer("self-attention", (bias, "bidirectional"), n=n, h=c.size_or_none("head_dim")),
        part("FFN", parts.ffn(c.activation("hidden_act"))),
        norm=norm,
        dropout=drop,
    )
    ends = _pooled(c) if named == "ViTModel" else classified(c)
    if named == MASKED:
        entry.append(unread("row of a masked patch, not read", Poly.atom("d")))
        of_patch = c.size("num_channels") * c.size("encoder_stride") ** 2  # pixels
        made = {"l": Poly.of(patches), "f": Poly.of(of_patch)}
        ends = (Use("pixels of each patch", parts.dense(), sizes=made, when=PASSES),)
    return Description(
        c.name,
        (Stack(tuple(entry), (layer,), (Use("norm at the end", norm),)),),
        ends,
        "encoder",
        source=c.source,
        remark=WHOLE if named == MASKED else "",
        sizes={
            "d": d, "L": c.size("num_hidden_layers"), "f": c.size("intermediate_size"), "l": rows,
        },
        dtype=c.dtype,
        model_type=c.fields["model_type"],
    )  # fmt: skip


def _pair(c: Configuration, name: str) -> Sequence[int]:
    """The two sides (in pixels) of an image or a patch, from a field that holds one number for
    both, or two; ModelError for another value."""
    value = c.get(name)
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise c.refused(f"'{name}' must be a positive integer or a list of two, got {value!r}")
    return sides


def _pooled(c: Configuration) -> tuple[Use, ...]:
    """Make the part after the layers of a class without a head: the pooler, a linear map of the
    first row and an activation; ModelError for an unknown activation."""
    width = c.size_or_none("pooler_output_size")
    activation = c.activation("pooler_act")
    sizes = {"l": ONE, "f": Poly.atom("d") if width is None else Poly.of(width)}
    return (Use("pooler", parts.dense(activation), sizes=sizes, when=PASSES),)
