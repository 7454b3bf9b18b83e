"""In which order do a network's parts run, and which arrays go from part to part?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from costmodel.errors import Unanswered
from costmodel.language.nodes import Array
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks.assembly import Assembly, Use
from costmodel.symbolic.polynomial import Poly

Layer = tuple[str, int, int]
"""A layer by its stack, its tower, and its number in the stack."""


@dataclass(eq=False)
class Wire:
    """An array between parts; `entries` is its size for one sequence, in sizes of the network.

    `source`: the array is an input of the network. `first`: the array is the first row of these
    wires, joined where there are several towers.
    """

    name: str
    entries: Poly
    source: bool = False
    first: tuple[Wire, ...] = ()


@dataclass(frozen=True, eq=False)
class PartRun:
    """One run of a part: the wires read as each of the part's arrays, and the wire written."""

    use: Use
    reads: Mapping[str, tuple[Wire, ...]]
    writes: Wire
    layer: Layer | None = None


@dataclass
class _Writer:
    """Collects the runs of a forward pass in order."""

    uses: tuple[Use, ...]
    runs: list[PartRun] = field(default_factory=list)
    layer: Layer | None = None

    def find(self, section: str, label: str) -> Use | None:
        """The part of a section with this label, None if there is none."""
        named = (use for use in self.uses if (use.section, use.label) == (section, label))
        return next(named, None)

    def run(self, use: Use | None, *wires: Wire, context: Wire | None = None) -> Wire:
        """Run a part on some wires, giving the wire it writes; without a part, the first wire."""
        if use is None:
            return wires[0]
        reads = {use.mixer.role("input").name: wires}
        for array in use.mixer.arrays.values():
            if array.role == "context" and context is not None:
                reads[array.name] = (context,)
        out = Wire(use.name, entries_of(use, use.mixer.role("output")))
        self.runs.append(PartRun(use, reads, out, self.layer))
        return out


def entries_of(use: Use, array: Array) -> Poly:
    """The number of entries of a part's array, in sizes of the network."""
    result = Poly.of(1)
    for extent in array.shape:
        result = result * extent.substitute(use.sizes)
    return result


@cache
def schedule(network: Assembly, layers: int) -> tuple[PartRun, ...]:
    """Every run of a training forward pass in order, at a number of layers; dropout is left out.

    Raises:
        Unanswered: a pooler beside a head over the vocabulary, whose row no loss reads.
    """
    c, writer = network.choices, _Writer(network.uses)
    if c.pooler and c.head == "vocabulary":
        raise Unanswered(
            f"{network.name}: no loss reads the pooler's row beside a head over the vocabulary, so "
            f"that it has no gradient"
        )
    if c.kind == "encoder-decoder":
        memory = _stack(network, writer, "encoder", 0, layers)
        ends = [_stack(network, writer, "decoder", 0, layers, memory)]
    else:
        ends = [_stack(network, writer, "", tower, layers) for tower in range(c.towers)]
    _after_layers(network, writer, ends)
    return tuple(writer.runs)


def _stack(
    network: Assembly, writer: _Writer, section: str, tower: int, layers: int,
    memory: Wire | None = None,
) -> Wire:  # fmt: skip
    """The input and the layers of one stack; `memory` is the encoder's output."""
    c = network.choices
    embedding = writer.find(section, "embedding")
    assert embedding is not None
    tokens = embedding.mixer.role("input")
    stream = writer.run(embedding, Wire("tokens", entries_of(embedding, tokens), source=True))
    for label in (f"{c.positions} positions", "segments", "norm of the embedding"):
        stream = writer.run(writer.find(section, label), stream)
    stream.name = _with_section(section, "residual stream")
    mixers = c.encoder_mixers if section == "encoder" else c.mixers
    for k in range(layers):
        writer.layer = (section, tower, k)
        own = writer.find(section, load_mixer(mixers[k % len(mixers)]).origin)
        stream = _sublayer(writer, section, own, stream)
        if memory is not None:
            cross = writer.find(section, load_mixer(c.cross).origin)
            stream = _sublayer(writer, section, cross, stream, memory)
        if c.ffn:
            stream = _sublayer(writer, section, writer.find(section, "FFN"), stream)
        writer.layer = None
    stream = writer.run(writer.find(section, "norm at the end"), stream)
    if section == "encoder":
        stream.name = "encoder's output"
    return stream


def _with_section(section: str, name: str) -> str:
    return f"{section}: {name}" if section else name


def _sublayer(
    writer: _Writer, section: str, use: Use | None, stream: Wire, memory: Wire | None = None
) -> Wire:
    assert use is not None
    entry = writer.run(writer.find(section, "norm, before"), stream)
    out = writer.run(use, entry, context=memory)
    total = writer.run(writer.find(section, "residual sum"), stream, out)
    following = writer.run(writer.find(section, "norm, after"), total)
    following.name = _with_section(section, "residual stream")
    return following


ROWS = ("pooler", "classifier", "head", "softmax", "loss")
"""The parts that may read the first position's row, in this order."""


def _after_layers(network: Assembly, writer: _Writer, ends: list[Wire]) -> None:
    """Pooler, transform, head, probabilities and loss."""
    c, stream = network.choices, ends[0]
    stream = writer.run(writer.find("", "transform"), stream)
    stream = writer.run(writer.find("", "norm of the transform"), stream)
    following = [use for use in writer.uses if not use.section and use.label.split()[0] in ROWS]
    if following and (c.pooler or c.head == "classes"):
        entries = entries_of(following[0], following[0].mixer.role("input"))
        stream = Wire("first position's row", entries, first=tuple(ends))
    for use in following:
        stream = writer.run(use, stream)


def readers(runs: tuple[PartRun, ...]) -> dict[Wire, list[tuple[int, str]]]:
    """Every wire with its readers: the number of each run, and the array as which the run reads."""
    found: dict[Wire, list[tuple[int, str]]] = {}
    for k, run in enumerate(runs):
        for name, wires in run.reads.items():
            for wire in wires:
                found.setdefault(wire, []).append((k, name))
        found.setdefault(run.writes, [])
    return found


@cache
def given_arrays(network: Assembly) -> dict[Use, frozenset[str]]:
    """Part -> the names of its arrays that are inputs of the network, computed by no part."""
    found: dict[Use, frozenset[str]] = {}
    for run in schedule(network, layers_of(network)):
        given = {name for name, wires in run.reads.items() if all(w.source for w in wires)}
        found[run.use] = found.get(run.use, frozenset()) | given
    return found


def layers_of(network: Assembly) -> int:
    """A number of layers at which every part has a run: one period, or fewer where there are."""
    period = network.choices.period
    return min(network.layers or period, period)


ENDS = 2
"""Periods at either end of a stack: what is next to its input or output differs from the rest."""


@dataclass(frozen=True)
class Repetition:
    """Two small numbers of layers that stand for a large one, as every period adds the same.

    `few` and `more` differ by one period, `times` says how often that period comes beside `few`.
    Of `more` layers those in `between` come beside the ones of `few`.
    """

    few: int
    more: int
    times: int
    between: range


def repetition(network: Assembly, layers: int) -> Repetition | None:
    """The small numbers of layers for a large one; None where it is small itself."""
    period = network.choices.period
    few = layers % period + 2 * ENDS * period
    if layers <= few + period:
        return None
    between = range(ENDS * period, (ENDS + 1) * period)
    return Repetition(few, few + period, (layers - few) // period, between)
