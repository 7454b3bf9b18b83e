"""The sentences that describe a network: its choices, sizes, convention, notes and source.

Parts (`Use`: a mixer, a norm, a linear map) make up sublayers, these make up blocks, and a stack
has blocks in turn between an entry and an end (networks/blocks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from costmodel.language.nodes import Gather, Position, refs
from costmodel.networks.blocks import Block, Description, Use, of_first_row
from costmodel.networks.choices import Choices
from costmodel.networks.network import Network
from costmodel.networks.training import OF_BLOCKS, RECOMPUTE, SCATTER
from costmodel.program.conventions import PEERS
from costmodel.program.phases import TRAINING_STEP
from costmodel.report.document import Equal, Formula, Line, letter, listed
from costmodel.report.mixer_document import size
from costmodel.report.networks.table import Request, Sheet
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS


def described(description: Description) -> str:
    """A sentence that describes a network: its choices (layers, embedding, norms, head, ...), or,
    if it was not built from choices, its blocks."""
    if (c := description.choices) is None:
        return _blocks(description)
    parts = [_layers(c), f"{c.embedding} embedding{_SCALES[c.scale]}", _positions(c)]
    if c.segments:
        parts.append(f"{c.segments} kinds of segments")
    if c.embedding_norm:
        parts.append("a norm of the embedding")
    parts.append(_NORMS[c.norm])
    parts.append(f"FFN with {c.activation}" if c.ffn else "no FFN")
    parts += [_head(c), _biases(c), _dropout(c)]
    return "; ".join(part for part in parts if part)


def _blocks(description: Description) -> str:
    """A sentence with the parts, each label once, of the entry, of each different layer, and of the
    end of a network (of its decoder); sums of residuals and absent parts are left out."""

    def named(label: str, uses: Iterable[Use | None]) -> str:
        labels = [use.label for use in uses if use is not None and use.label != "residual sum"]
        return f"{label}: {', '.join(dict.fromkeys(labels))}"

    stack = description.decoder
    different = {block.equal: block for block in stack.blocks}.values()
    layers = [
        named("layer" if len(different) == 1 else f"layers of kind {k}", _around(block))
        for k, block in enumerate(different, 1)
    ]
    ends = named("end", (*stack.end, *description.ending))
    return "; ".join([f"{description.kind}: {named('entry', stack.entry)}", *layers, ends])


def _around(block: Block) -> Iterator[Use | None]:
    """Yield the parts of a block in order; None for a norm, dropout or sum that is absent."""
    for sublayer in block.sublayers:
        yield from sublayer.around


_SCALES = {"none": "", "tokens": " times sqrt(d)", "all": " and learned positions times sqrt(d)"}
_NORMS = {"pre": "norm before each sublayer and at the end", "post": "norm after each residual sum",
          "none": "no norm"}  # fmt: skip


def _positions(c: Choices) -> str:
    rows = f", a table of {c.position_rows} rows" if c.position_rows else ""
    return f"positions: {c.positions}{rows if c.positions == 'learned' else ''}"


def _layers(c: Choices) -> str:
    if c.kind != "encoder-decoder":
        return f"{c.kind} of {_turns(c.mixers)}"
    return f"encoder of {_turns(c.encoder_mixers)}, decoder of {_turns(c.mixers)} and {c.cross}"


def _turns(mixers: tuple[str, ...]) -> str:
    return mixers[0] if len(set(mixers)) == 1 else f"{', '.join(mixers)} in turn"


def _head(c: Choices) -> str:
    """A phrase on the network's head and loss, or that there is none."""
    if c.head == "none":
        return "a pooler and no head" if c.pooler else "no head"
    words = {"vocabulary": "head over the vocabulary", "classes": "classifier"}[c.head]
    tied = ", tied to the embedding" if c.tied else ""
    softmax = " with softmax" if c.output == "probabilities" else ""
    loss = ", cross-entropy in a forward pass" if c.loss else ", no loss"
    smoothed = " with label smoothing" if c.smoothing and c.loss else ""
    return f"{words}{softmax}{tied}{loss}{smoothed}"


def _biases(c: Choices) -> str:
    """The places of a network outside of its mixers that have biases, as a phrase: "biases in FFN
    and norms, a mixer's own by its options"."""
    places = [
        *(["FFN"] if c.biases and c.ffn else []),
        *(["norms"] if c.norm_bias and c.norm != "none" else []),
        *(["head"] if c.head_bias or (c.head == "classes" and c.biases) else []),
        *(["pooler"] if c.biases and c.pooler else []),
    ]
    return f"biases in {' and '.join(places) or 'none of these'}, a mixer's own by its options"


def _dropout(c: Choices) -> str:
    if not c.dropout:
        return "no dropout"
    return "dropout after the embedding and after each sublayer, not of attention weights"


def sizes_line(sheets: Sequence[Sheet]) -> Line:
    """A line with the sizes of `sheets` (one stage's costs at sizes each) with all their values:
    those given or without a number; the network's own and defaults, where not given; those computed
    from others; and given sizes that no part has."""
    request = sheets[0].request
    letters = [x for x in LETTERS if any(x in s.letters or x in s.sizes for s in sheets)]
    values = {x: tuple(dict.fromkeys(s.sizes[x] for s in sheets if x in s.sizes)) for x in letters}
    numbers = [x for x in letters if values[x]]
    own = request.described.sizes if not request.symbolic else {}
    taken = [x for x in numbers if x not in request.given]
    one = {x: values[x][0] for x in numbers if len(values[x]) == 1}  # sizes with one value
    groups = {
        "": [size(LETTERS[x], *values[x]) for x in letters if x in request.given or not values[x]],
        "of the network ": [size(LETTERS[x], *values[x]) for x in taken if x in own],
        "by default ": [size(LETTERS[x], *values[x]) for x in taken if x not in own],
        "with ": [_follows(x, poly, one) for x, poly in _widths(sheets[0].network).items()],
    }
    parts = [(lead, *listed(members)) for lead, members in groups.items() if members]
    line: Line = ("sizes: ", *listed(parts, "; "))
    unused = [x for x in request.given if x not in letters]
    return (*line, f" ({', '.join(unused)} is a size of none of its parts)") if unused else line


def _widths(net: Network) -> Mapping[str, Poly]:
    """Width -> its formula in other sizes, for the widths of parts; without lengths (l, u)."""
    used = {x for use in net.uses for x in use.mixer.letters if x not in ("l", "u")}
    return {x: poly for x, poly in net.described.formulas.items() if x in used}


def _follows(name: str, poly: Poly, sizes: Mapping[str, int]) -> Line:
    """A width in words, with its formula, and its number if all sizes of the formula have one."""
    value = (str(poly.rational(sizes)),) if poly.letters <= set(sizes) else ()
    return (f"{LETTERS[name].meaning} ", Equal((letter(name), Formula(poly), *value)))


def convention_line(request: Request) -> str:
    """The convention's name and its meaning; without a phase of gradients, that none is counted."""
    counted = request.counting
    caption = counted.caption(dropout=request.described.dropout)
    backward = "" if {*request.phases} & {*TRAINING_STEP} else "; no backward pass"
    return f"convention: {','.join(counted.names)} ({caption}){backward}"


def training_notes(sheet: Sheet) -> Iterator[str]:
    """Yield the notes below the costs of a network in one stage (`sheet`), a phase with gradients:
    what gradient is given without a loss, how a tool (`peer`) or the equations count gradients,
    what activations are, which parts have adapters, are trained and are recomputed."""
    c = sheet.network.described
    if not c.ends_with("loss"):
        yield "no loss: the gradient of the network's output is given"
    if peer := sheet.request.counting.convention.peer:
        yield f"{peer}: {PEERS[peer].gradients or 'it counts forward passes only'}"
    else:
        yield from _counted_of_gradients(sheet)
    masks = "; dropout masks are not counted" if c.dropout else ""
    yield ("activations: entries of the forward pass that equations of gradients read; an array "
           f"between two parts counts once{masks}")  # fmt: skip
    if c.adapters:
        yield (
            f"adapters: {', '.join(c.adapters)} (parts=rank r); each linear map x W of these "
            f"parts is x W + (x A) B, with A and B of rank r"
        )
    adapters = (f"the adapters of {one.rpartition('=')[0]}" for one in c.adapters)
    if patterns := (*adapters, *c.trained):
        yield (
            f"trained: {', '.join(patterns)}; other parts are frozen; gradients run back to the "
            f"first trained kind of part, and among layers to the first layer whose number is "
            f"given, or to layer 1 if none is"
        )
    if (recompute := sheet.request.memory_options.recompute) != "none":
        yield f"recompute {recompute}: {RECOMPUTE.get(recompute, OF_BLOCKS)}"


def _counted_of_gradients(sheet: Sheet) -> Iterator[str]:
    """Yield the notes on gradients that tools count in different ways: those of gathers, x[p[i]],
    of the loss, and sums of an array's several gradients. `sheet`: the network's costs in one
    stage."""
    c, uses = sheet.network.described, sheet.network.uses
    if any(isinstance(p, Gather) for use in uses for p in _table_positions(use)):
        yield SCATTER
    if c.ends_with("loss"):
        yield ("the loss reads one entry per row: the gradient of the row is zero elsewhere, "
               "and these zeros are added like other numbers")  # fmt: skip
    if any(map(of_first_row, c.ending)):
        yield ("the head gives a gradient to the first position only; the zeros of the other "
               "rows count like other numbers")  # fmt: skip
    yield ("sums of gradients: an array that k parts read gets k gradients, which cost k - 1 "
           "additions per entry; gradients of parameters are added up over the batch")  # fmt: skip


def _table_positions(use: Use) -> Iterator[Position]:
    """Yield the positions (as in x[i]) at which a part of a network reads its tables of embeddings;
    nothing for a part without a table."""
    if use.table:
        for form in use.mixer.forms.values():
            for equation in form.equations:
                for ref, _ in refs(equation.value):
                    if ref.array.role == "parameter":
                        yield from ref.positions


def source_lines(c: Description) -> Iterator[str]:
    """Yield lines with the source of the configuration, the choices taken from elsewhere, and a
    remark, as far as there are any."""
    if c.source:
        place = f", {c.place}" if c.place else ""
        yield f"source: {c.source}{place}"
    if c.assumed:
        taken = "; ".join(f"{name}: {where}" for name, where in c.assumed.items())
        yield f"not printed there: {taken}"
    if c.remark:
        yield f"remark: {c.remark}"
