"""In which order do a network's parts run, and what does each hand to the next?"""

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
"""The stack, the tower and the number of a layer."""


@dataclass(eq=False)
class Wire:
    """An array between parts; `entries` is its size for one sequence, in sizes of the network.

    `source` says that the network is given it, `first` that it is the first row of other wires.
    """

    name: str
    entries: Poly
    source: bool = False
    first: tuple[Wire, ...] = ()


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a part: which wires it reads, by its own arrays' names, and the one it writes."""

    use: Use
    reads: Mapping[str, tuple[Wire, ...]]
    writes: Wire
    layer: Layer | None = None


@dataclass
class _Writer:
    """The runs so far."""

    uses: tuple[Use, ...]
    runs: list[Run] = field(default_factory=list)
    layer: Layer | None = None

    def find(self, section: str, label: str) -> Use | None:
        """The part of a section with this label."""
        named = (use for use in self.uses if (use.section, use.label) == (section, label))
        return next(named, None)

    def run(self, use: Use | None, *wires: Wire, context: Wire | None = None) -> Wire:
        """Run a part on some wires; without a part there is nothing to run."""
        if use is None:
            return wires[0]
        reads = {use.mixer.role("input").name: wires}
        for array in use.mixer.arrays.values():
            if array.role == "context" and context is not None:
                reads[array.name] = (context,)
        out = Wire(use.name, size(use, use.mixer.role("output")))
        self.runs.append(Run(use, reads, out, self.layer))
        return out


def size(use: Use, array: Array) -> Poly:
    """The number of entries of a part's array, in sizes of the network."""
    result = Poly.of(1)
    for extent in array.shape:
        result = result * extent.substitute(use.sizes)
    return result


@cache
def schedule(network: Assembly, layers: int) -> tuple[Run, ...]:
    """Every run of a forward pass of training in its order, at a number of layers.

    Dropout is left out: it hands on what it is handed.

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
    _end(network, writer, ends)
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
    stream = writer.run(embedding, Wire("tokens", size(embedding, tokens), source=True))
    for label in (f"{c.positions} positions", "segments", "norm of the embedding"):
        stream = writer.run(writer.find(section, label), stream)
    stream.name = _named(section, "residual stream")
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


def _named(section: str, name: str) -> str:
    return f"{section}: {name}" if section else name


def _sublayer(
    writer: _Writer, section: str, use: Use | None, stream: Wire, memory: Wire | None = None
) -> Wire:
    assert use is not None
    entry = writer.run(writer.find(section, "norm, before"), stream)
    out = writer.run(use, entry, context=memory)
    total = writer.run(writer.find(section, "residual sum"), stream, out)
    following = writer.run(writer.find(section, "norm, after"), total)
    following.name = _named(section, "residual stream")
    return following


ROWS = ("pooler", "classifier", "head", "softmax", "loss")
"""What may follow the first position's row, in this order."""


def _end(network: Assembly, writer: _Writer, ends: list[Wire]) -> None:
    """Pooler, transform, head, probabilities and loss."""
    c, stream = network.choices, ends[0]
    stream = writer.run(writer.find("", "transform"), stream)
    stream = writer.run(writer.find("", "norm of the transform"), stream)
    following = [use for use in writer.uses if not use.section and use.label.split()[0] in ROWS]
    if following and (c.pooler or c.head == "classes"):
        entries = size(following[0], following[0].mixer.role("input"))
        stream = Wire("first position's row", entries, first=tuple(ends))
    for use in following:
        stream = writer.run(use, stream)


def readers(runs: tuple[Run, ...]) -> dict[Wire, list[tuple[int, str]]]:
    """Every wire, with the numbers of the runs that read it, and as which array."""
    found: dict[Wire, list[tuple[int, str]]] = {}
    for k, run in enumerate(runs):
        for name, wires in run.reads.items():
            for wire in wires:
                found.setdefault(wire, []).append((k, name))
        found.setdefault(run.writes, [])
    return found


@cache
def sources(network: Assembly) -> dict[Use, frozenset[str]]:
    """The arrays of each part that the network is given, and no part computes."""
    found: dict[Use, frozenset[str]] = {}
    for run in schedule(network, layers_of(network)):
        given = {name for name, wires in run.reads.items() if all(w.source for w in wires)}
        found[run.use] = found.get(run.use, frozenset()) | given
    return found


def layers_of(network: Assembly) -> int:
    """A number of layers at which every part has its place."""
    return network.layers or 1
