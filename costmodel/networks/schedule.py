"""In which order do a network's parts run, and which arrays go from part to part?

A run is one execution of a part, a wire an array between runs. A path is a chain of runs, each of
which reads what the run before it wrote; the length of the longest, in dependent operations, is
the depth of a pass. A stage is a phase, or `prefill` or `decode` of generation. `recompute` says
which layers run forward again for gradients: "none", "layers" (all), or names of blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Generic, TypeVar

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import TRAINED
from costmodel.language.nodes import Array
from costmodel.language.options import listed
from costmodel.networks.assembly import Assembly
from costmodel.networks.blocks import Stack, Use, of_first_row
from costmodel.paths.chains import CriticalPath, Repeat, Step, large
from costmodel.program.phases import TRAINING_STEP
from costmodel.symbolic.polynomial import Poly, call

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
    """One run of a part: the wires read as each of the part's arrays, and the wire written; `layer`
    and the names of its block, `blocks`, where the run is in a layer."""

    network: Assembly
    use: Use
    reads: Mapping[str, tuple[Wire, ...]]
    writes: Wire
    layer: Layer | None = None
    blocks: tuple[str, ...] = ()

    def again(self, recompute: str) -> bool:
        """Whether the backward pass runs the part a second time, as `recompute` says (names of
        blocks are separated by commas). A layer in which no part has gradients runs once."""
        if self.layer is None or recompute == "none" or self.use.fixed == "all":
            return False
        named = recompute == "layers" or not {*self.blocks}.isdisjoint(listed(recompute))
        return named and self.use in in_trained_layers(self.network)


@dataclass
class _Writer:
    """Collects the runs of a forward pass in order."""

    network: Assembly
    runs: list[PartRun] = field(default_factory=list)
    layer: Layer | None = None
    blocks: tuple[str, ...] = ()
    section: str = ""
    named: dict[str, Wire] = field(default_factory=dict)
    """The rows that parts read by a name (`Use.reads`)."""

    def run(self, part: Use | None, *wires: Wire, context: Wire | None = None) -> Wire:
        """Record a run of a part that reads the arrays `wires` and, if its mixer has a second
        sequence, `context`; return the array (a wire) that the run writes. Further inputs of the
        part that `Use.reads` does not name, such as a loss's targets, are inputs of the network. No
        run is recorded for dropout, or if `part` is None: the first array passes unchanged."""
        if part is None or part.regularises:
            return wires[0]
        use = self.network.use(self.section, part)
        reads = {use.mixer.role("input").name: wires}
        # a part without names reads `wires` as its first input
        for array, name in zip(use.mixer.inputs, use.reads, strict=bool(use.reads)):
            reads[array.name] = (self.named[name],) if name else wires
        for array in use.mixer.inputs[len(use.reads) or 1 :]:
            reads[array.name] = (Wire(array.name, entries_of(use, array), source=True),)
        for array in use.mixer.arrays.values():
            if array.role == "context" and context is not None:
                reads[array.name] = (context,)
        out = Wire(use.name, entries_of(use, use.mixer.role("output")))
        self.runs.append(PartRun(self.network, use, reads, out, self.layer, self.blocks))
        if use.writes:
            self.named[use.writes] = out
        return out

    def stack(self, stack: Stack, tower: int, layers: int, memory: Wire | None) -> Wire:
        """Record the runs of one stack, entry, layers and end, and return the array at its end.
        `tower`: the number of the copy of the network; `layers`: how many layers a stack without a
        `depth` has; `memory`: the encoder's output, which cross-attention reads, if any."""
        self.section = stack.section
        first = self.network.use(self.section, stack.entry[0])
        tokens = first.mixer.role("input")
        stream = Wire("tokens", entries_of(first, tokens), source=True)
        self.named = {"tokens": stream}
        for part in stack.entry:
            stream = self.run(part, stream)
            self.named.setdefault("embedding", stream)  # the output of the first part
        self._name_stream(stream)
        for k in range(stack.depth or layers):
            block = stack.blocks[k % len(stack.blocks)]
            self.layer, self.blocks = (stack.section, tower, k), block.names
            start = entry = stream  # a sublayer's input, before and after its norm
            for sublayer in block.sublayers:
                if not sublayer.beside:  # else the sublayer reads the input of the one before
                    start = entry = stream
                if sublayer.before is not None:
                    entry = self.run(sublayer.before, start)
                for made in sublayer.makes:
                    self.run(made, entry)
                out = self.run(sublayer.part, entry, context=memory)
                out = self.run(sublayer.out, out)
                total = self.run(sublayer.residual, stream, out)
                stream = self.run(sublayer.after, total)
                self._name_stream(stream)
            self.layer = None
        for part in stack.end:
            stream = self.run(part, stream)
        if stack is not self.network.described.decoder:  # a name for messages
            stream.name = f"{stack.section}'s output"
        return stream

    def _name_stream(self, wire: Wire) -> None:
        wire.name = f"{self.section}: residual stream" if self.section else "residual stream"

    def ending(self, ends: list[Wire]) -> None:
        """Record the runs of the parts after the layers, from the last rows of each stack of layers
        (`ends`: two for a network that encodes two texts). They read the rows of the first stack,
        up to the first part that reads one row alone, such as a pooler of BERT: it reads the first
        row of every stack, side by side."""
        self.section, stream, rows = "", ends[0], True
        for part in self.network.described.ending:
            if rows and of_first_row(part):
                use, rows = self.network.use("", part), False
                entries = entries_of(use, use.mixer.role("input"))
                stream = Wire("first position's row", entries, first=tuple(ends))
            stream = self.run(part, stream)


def entries_of(use: Use, array: Array) -> Poly:
    """The number of entries of a part's array, in sizes of the network."""
    result = Poly.of(1)
    for extent in array.shape:
        result = result * extent.substitute(use.sizes)
    return result


@cache
def schedule(network: Assembly, layers: int) -> tuple[PartRun, ...]:
    """Every run of a part in a training forward pass, in order, at a number of layers, with the
    arrays that it reads and writes; dropout is left out.

    Raises:
        Unanswered: a pooler beside a head over the vocabulary, whose row no loss reads.
    """
    about = network.described
    if about.ends_with("pooler") and about.head == "vocabulary":
        raise Unanswered(
            f"{network.name}: the pooler has no gradient, since the head over the vocabulary alone "
            "has a loss: choose head none, or leave out the pooler"
        )
    writer = _Writer(network)
    memory: Wire | None = None
    for stack in about.stacks[:-1]:
        memory = writer.stack(stack, 0, layers, memory)
    ends = [writer.stack(about.decoder, k, layers, memory) for k in range(about.towers)]
    writer.ending(ends)
    return tuple(writer.runs)


def readers(runs: Sequence[PartRun]) -> dict[Wire, list[tuple[int, str]]]:
    """A dict: array between parts (a wire) -> its readers, as (number of the run in `runs`, name
    that the array has in the part's equations), of which each gives the array a gradient; [] if no
    run reads it."""
    found: dict[Wire, list[tuple[int, str]]] = {}
    for k, run in enumerate(runs):
        for name, wires in run.reads.items():
            for wire in wires:
                found.setdefault(wire, []).append((k, name))
        found.setdefault(run.writes, [])
    return found


@cache
def given_arrays(network: Assembly) -> dict[Use, frozenset[str]]:
    """A dict: part -> the names of its arrays that get no gradients: inputs of the network, frozen
    parameters, and arrays that no trained parameter changes.

    A part that stands for equal parts of several layers gets a gradient if one of them needs it:
    with FFNs alone trained, attention needs none in layer 1 and one in layer 2, so it gets one.
    """

    def adapters(use: Use) -> frozenset[str]:
        return frozenset() if use.fixed == "all" else use.adapters

    found: dict[Use, frozenset[str]] = {}
    wanted: dict[Use, set[str]] = {}  # part -> its inputs that a trained parameter changes in a run
    changing: set[Wire] = set()  # the wires that a trained parameter changes
    period = layers_of(network)
    # a second period shows which arrays later layers change
    layers = 2 * period if network.layers is None else min(2 * period, network.layers)
    for run in schedule(network, layers if network.described.freezes else period):
        use = run.use
        given = {name for name, wires in run.reads.items() if all(w.source for w in wires)}
        through = {
            name
            for name, wires in run.reads.items()
            if any(not changing.isdisjoint(_joined_wires(wire)) for wire in wires)
        }
        through = set() if use.fixed == "all" else through  # as under torch.no_grad
        if through or network.trains(use) or adapters(use):
            changing.add(run.writes)
        found[use] = found.get(use, frozenset()) | given
        wanted.setdefault(use, set()).update(through)
    if not network.described.freezes:
        return found
    for use, given_ in found.items():
        arrays = use.mixer.arrays.values()
        fixed = {a.name for a in arrays if a.role in ("input", "context")} - wanted[use]
        if not network.trains(use):
            fixed |= {a.name for a in arrays if a.role == "parameter"} - adapters(use)
        found[use] = given_ | fixed
    return found


@cache
def in_trained_layers(network: Assembly) -> frozenset[Use]:
    """The parts of the layers in which an array of some part gets a gradient."""
    layers: dict[Layer | None, set[Use]] = {}
    for run in schedule(network, layers_of(network)):
        layers.setdefault(run.layer, set()).add(run.use)
    trained = (uses for uses in layers.values() if any(has_gradient(network, use) for use in uses))
    return frozenset[Use]().union(*trained)


def has_gradient(network: Assembly, use: Use) -> bool:
    """Whether an array of a part, an input or a parameter, gets a gradient."""
    arrays, given = use.mixer.arrays.values(), given_arrays(network)[use]
    return any(array.role in TRAINED and array.name not in given for array in arrays)


def layers_of(network: Assembly) -> int:
    """A number of layers at which every part has a run: one period, or all if they are fewer."""
    period = network.described.period
    return min(network.layers or period, period)


ENDS = 2
"""The number of periods at either end of a stack that may differ from those in its middle."""


@dataclass(frozen=True)
class Repetition:
    """Two small numbers of layers that stand for a large one, as every period adds the same.

    `more` is `few` and one period, the large number is `few` and `times` periods. The layers
    numbered in `between`, from 0, are those of `more` without a counterpart among `few`.
    """

    few: int
    more: int
    times: int
    between: range


def repetition(network: Assembly, layers: int) -> Repetition | None:
    """Two small numbers of layers, `few` and `more`, and a factor `times`: any count (operations,
    elements) at `layers` is count(few) + times * (count(more) - count(few)), since each further
    period of layers adds the same. None unless `layers` is greater than `more`."""
    period = network.described.period
    few = layers % period + 2 * ENDS * period
    if layers <= few + period:
        return None
    between = range(ENDS * period, (ENDS + 1) * period)
    return Repetition(few, few + period, (layers - few) // period, between)


PASS: Mapping[str, str] = {"inference": "inference", "decode": "inference", "prefill": "prefill"}
"""Stage -> the pass in which a part must run (`Use.when`); `training` for all other stages."""


@dataclass(frozen=True, eq=False)
class Beside:
    """Paths through parts of one layer that run beside each other, of which the longest counts;
    made by `beside`, so that equal steps are one object."""

    ways: frozenset[frozenset[tuple[Passing, int]]]

    @cached_property
    def times(self) -> Sequence[Mapping[Passing, int]]:
        """The paths, each as a dict: step -> how often the path takes it."""
        return [dict(way) for way in self.ways]

    @cached_property
    def in_order(self) -> list[Path]:
        """The paths, in an order that does not change from run to run."""
        found = [{step: Poly.of(n) for step, n in way} for way in self.ways]
        return sorted(found, key=lambda path: sorted(map(_name, path)))


@cache
def beside(ways: frozenset[frozenset[tuple[Passing, int]]]) -> Beside:
    """The step for these paths."""
    return Beside(ways)


Passing = tuple[Use | None, str] | Beside
"""A step of a path: (part, phase); (None, "sum of gradients: NAME") for the last addition where
several parts give gradients of the array NAME; or paths beside each other."""

Path = Mapping[Passing, Poly]
"""A path through a network: step -> how often the path takes it."""


def _name(step: Passing) -> str:
    if isinstance(step, Beside):
        return " ".join(name for path in step.in_order for name in sorted(map(_name, path)))
    use, phase = step
    return f"{phase} {use.name if use else ''}"


@cache
def paths(network: Assembly, stage: str, recompute: str = "none") -> tuple[Path, ...]:
    """The candidates for the longest path of dependent runs through a network in a stage (a phase,
    `prefill` or `decode`), each a dict: (part, phase) -> how often the path passes the part, at the
    network's number of layers (in L if this is open): of gpt-2 in training, (FFN, "training") -> L,
    (residual sum, "training") -> 2*L. Parts that run in parallel are on different paths.

    Raises:
        Unanswered: the order of the parts is not known.
        Unsupported: the paths change with the number of layers.
    """
    layers = network.layers
    again = None if layers is None else repetition(network, layers)
    if layers is not None and again is None:
        found = _paths(schedule(network, layers), stage, recompute, PASSED)
        return tuple({key: Poly.of(n) for key, n in path.items()} for path in found)
    # each layer beyond `few` passes the parts as often as the one between `few` and `more`
    few, more = (2, 3) if again is None else (again.few, again.more)
    beyond = Poly.atom("L") - 2 if again is None else Poly.of(again.times)
    one, two = (_paths(schedule(network, n), stage, recompute, PASSED) for n in (few, more))
    first = _paths(schedule(network, 1), stage, recompute, PASSED) if again is None else one
    if not len(first) == len(one) == len(two):
        raise Unsupported(
            "the paths through the network change with its number of layers: give --L"
        )
    single = call("Max", 0, Poly.of(2) - Poly.atom("L"))  # 1 at L = 1, else 0
    every: list[Path] = []
    for least, a, b in zip(first, one, two, strict=True):
        times = {key: Poly.of(a[key]) + beyond * (b[key] - a[key]) for key in a}
        if again is None:  # the number for one layer need not be in line with those for more
            times = {
                key: n + single * (least[key] - (2 * a[key] - b[key])) for key, n in times.items()
            }
        every.append(times)
    return tuple(every)


class Passed(Counter["Passing"]):
    """A path as a multiset of its steps."""

    def __add__(self, other: Passed) -> Passed:  # type: ignore[override]  # a path stays a path
        """The path, then the other one: the sum of two counters, in a fifth of the time of
        `Counter.__add__`, which looks for numbers below 1; here every number is 1 or more."""
        found = Passed(self)
        for step, times in other.items():
            found[step] += times
        return found


@dataclass(frozen=True)
class Walk:
    """A path through runs, in order, with its length.

    Args:
        steps: the run and the phase in which the path passes it; in a backward pass also AGAIN, a
            forward pass that recomputation repeats, and SUM, the last addition of a sum of
            gradients of several parts.
    """

    steps: tuple[tuple[PartRun, str], ...] = ()
    length: int = 0

    def __add__(self, other: Walk) -> Walk:
        """The path, then the other one."""
        return Walk(self.steps + other.steps, self.length + other.length)


AGAIN, SUM = "again", "sum of gradients"

W = TypeVar("W", Passed, Walk)


@dataclass(frozen=True)
class _PathRules(Generic[W]):
    """How paths are kept while they are followed.

    Args:
        none: the path without steps.
        step: a run and a phase -> the path of this step alone.
        longest: those of several paths that may be longest.
        in_layer: all runs, a run and the paths to its end -> these, some joined (`Beside`).
    """

    none: W
    step: Callable[[PartRun, str], W]
    longest: Callable[[Sequence[W]], list[W]]
    in_layer: Callable[[Sequence[PartRun], PartRun, list[W]], list[W]]


def _paths(runs: Sequence[PartRun], stage: str, recompute: str, rules: _PathRules[W]) -> list[W]:
    """The paths through these runs in a stage: forward paths, backward paths, or, in a training
    step, each forward path followed by each backward path. A path that another path covers is left
    out. `rules` says how a path is represented, and which of several paths are followed further."""
    found = [rules.none]
    if stage != "backward":
        found = _forward(runs, stage, rules)
    if stage in TRAINING_STEP:
        back = _backward(runs, recompute, rules)
        found = [one + other for one in found for other in back]
    return found


def _forward(runs: Sequence[PartRun], stage: str, rules: _PathRules[W]) -> list[W]:
    """The paths through the forward passes of these runs in a stage, from the network's inputs to
    the arrays that no run reads; a run that does not take part in the stage begins a path anew.
    `rules` says how a path is represented, and which of several paths are followed further."""
    wanted = PASS.get(stage, "training")
    phase = "inference" if wanted == "inference" else "training"
    active = [run for run in runs if wanted in run.use.when]
    # a wire of first rows, as a pooler's input, stands for the wires whose rows it joins
    read = {
        w for run in active for ws in run.reads.values() for one in ws for w in _joined_wires(one)
    }
    at: dict[Wire, list[W]] = {}  # array -> the paths to it
    for run in runs:
        wires = [one for ws in run.reads.values() for wire in ws for one in _joined_wires(wire)]
        before = [path for wire in wires for path in at.get(wire, [rules.none])]
        here = wanted in run.use.when
        own = rules.step(run, phase) if here else rules.none
        ways = rules.longest([path + own for path in before] or [own]) if here else [rules.none]
        at[run.writes] = rules.in_layer(runs, run, ways)
    ends = [path for run in active if run.writes not in read for path in at[run.writes]]
    return rules.longest(ends) or [rules.none]


def _joined_wires(wire: Wire) -> tuple[Wire, ...]:
    """The wires whose first rows a wire joins; the wire itself if it joins none."""
    return wire.first or (wire,)


def _backward(runs: Sequence[PartRun], recompute: str, rules: _PathRules[W]) -> list[W]:
    """The paths through the backward passes of these runs, in order of time: from the last run to a
    run no input of which needs a gradient. A run whose readers pass no gradient on is on no path.
    Before a backward pass come a step `SUM` if its output has several gradients (their last
    addition; the others are done by then), and a step `AGAIN` if the run's forward pass is computed
    again. `rules`: see `_forward`."""
    given = given_arrays(runs[0].network)  # part -> its arrays without gradients
    through: dict[Wire, list[int]] = {}  # array -> the numbers of the runs that give its gradients
    read = set[Wire]()
    for wire, reading in readers(runs).items():
        giving = [k for k, name in reading if name not in given[runs[k].use]]
        for one in _joined_wires(wire):
            through.setdefault(one, []).extend(giving)
            read |= {one} if reading else set()
    after: dict[int, list[W]] = {}  # number of a run -> the paths to the end of its backward pass
    written = {run.writes for run in runs if has_gradient(run.network, run.use)}
    ends: list[W] = []
    for k in reversed(range(len(runs))):
        run, later = runs[k], [n for n in through.get(runs[k].writes, []) if n in after]
        if run.writes not in written or (run.writes in read and not later):
            continue  # no gradient is needed, or none arrives
        before = [path for reader in later for path in after[reader]] or [rules.none]
        own = rules.step(run, "backward")
        if run.again(recompute):
            own = rules.step(run, AGAIN) + own
        if len(later) > 1:
            own = rules.step(run, SUM) + own
        after[k] = rules.in_layer(runs, run, rules.longest([path + own for path in before]))
        handed = {
            w
            for name, wires in run.reads.items()
            for one in wires
            for w in _joined_wires(one)
            if name not in given[run.use]
        }
        if handed.isdisjoint(written):
            ends = rules.longest(ends + after[k])
    return ends


def _joined_in_layer(runs: Sequence[PartRun], run: PartRun, found: list[Passed]) -> list[Passed]:
    """The paths `found` to the end of a run, of which those that differ in parts of the run's layer
    alone are joined: to one path whose step `Beside` holds the differing pieces, so that layers do
    not multiply the number of paths."""
    if len(found) < 2 or run.layer is None:
        return found
    own = _parts_of_layers(tuple(runs))[run.layer]
    alike: list[list[Passed]] = []
    for path in found:
        for group in alike:
            apart = path.items() ^ group[0].items()
            if not any(isinstance(x, Beside) or x[0] not in own for x, _ in apart):
                group.append(path)
                break
        else:
            alike.append([path])
    return [*map(_as_one_path, alike)]


@cache
def _parts_of_layers(runs: tuple[PartRun, ...]) -> Mapping[Layer | None, set[Use | None]]:
    """A dict: layer -> its parts, and None for sums of gradients."""
    found: dict[Layer | None, set[Use | None]] = {}
    for run in runs:
        found.setdefault(run.layer, {None}).add(run.use)
    return found


def _as_one_path(found: Sequence[Passed]) -> Passed:
    """The paths as one, whose step `Beside` holds what they differ in: of norm, A, FFN and norm, B,
    FFN the path norm, Beside(A or B), FFN. A single path as it is."""
    if len(found) == 1:
        return found[0]
    common: Counter[Passing] = found[0]
    for path in found[1:]:
        common = common & path
    ways = (path - common for path in found)
    return Passed(common) + Passed({beside(frozenset(frozenset(w.items()) for w in ways)): 1})


def _longest(found: Sequence[Passed]) -> list[Passed]:
    """The paths that may be longest: those that pass every part at most as often as another path
    does are left out."""
    kept_paths: list[tuple[Passed, Ways]] = []
    for path in found:
        ways = _ways(path)
        if any(_covers(*other, path) for other in kept_paths):
            continue
        kept_paths = [other for other in kept_paths if not _covers(path, ways, other[0])]
        kept_paths.append((path, ways))
    return [path for path, _ in kept_paths]


Ways = Sequence[tuple[Beside, Mapping[Passing, int]]]
"""The steps `Beside` of a path, each with one of its paths; a step comes once for each."""


def _ways(path: Passed) -> Ways:
    return [(step, way) for step in path if isinstance(step, Beside) for way in step.times]


def _covers(path: Passed, ways: Ways, other: Passed) -> bool:
    """Whether `path`, or `path` with one of the paths of a step `Beside` put in (its `ways`),
    passes each part at least as often as `other` does, so that `other` is never longer."""
    missing = next((one for one, n in other.items() if n > path.get(one, 0)), None)
    if missing is None:
        return True
    # a step `Beside` that `other` passes as often is needed for itself, and puts nothing in
    own = [way for step, way in ways if missing in way and other[step] < path[step]]
    if not own:
        return False
    lacking = other - path
    return any(all(number <= way.get(one, 0) for one, number in lacking.items()) for way in own)


def _one_step(run: PartRun, phase: str) -> Passed:
    """The path of one step, a multiset: {(part, phase): 1}."""
    if phase == SUM:
        return Passed({(None, f"{SUM}: {run.writes.name}"): 1})
    return Passed({(run.use, "training" if phase == AGAIN else phase): 1})


PASSED = _PathRules(Passed(), _one_step, _longest, _joined_in_layer)
"""Paths as multisets of steps, of which no two differ in a layer's parts alone."""

BACK = frozenset(("backward", AGAIN, SUM))
"""The phases of a backward pass."""


@dataclass(frozen=True)
class Piece:
    """A piece of a path, in order.

    Args:
        place: the section of the stack whose layers the piece passes, and whether backwards; None
            outside of layers.
        steps: the steps of the parts of one layer, or outside of layers.
        inner: in place of `steps`, the pieces of several layers.
        times: how often the piece comes, one after another.
    """

    place: tuple[str, bool] | None
    steps: tuple[Step | Repeat, ...] = ()
    inner: tuple[Piece, ...] = ()
    times: Poly = Poly.of(1)

    @property
    def number(self) -> int:
        """How often the piece comes, an integer; SizeError if that is a formula in L."""
        return self.times.at({})

    @property
    def layers(self) -> int:
        """How many layers the piece passes each time; 1 for a piece outside of layers too."""
        return sum(one.layers * one.number for one in self.inner) or 1


def longest_in_order(
    network: Assembly, layers: int | None, stage: str, recompute: str,
    path: Callable[[Use, str], CriticalPath], sizes: Mapping[str, int],
) -> tuple[Piece, ...]:  # fmt: skip
    """The longest path through a network in a stage (a phase, `prefill` or `decode`), in order,
    with layers of equal steps as one piece.

    Args:
        layers: the number of layers; None: the number stays L, of layers that are equal.
        path: the path through one run of a part in a phase, in sizes of the network.
        sizes: the sizes at which paths are compared; other sizes are large.

    Raises:
        Unanswered: the order of the parts is not known.
        Unsupported: the path changes with the number of layers.
    """

    @cache
    def passed(use: Use, phase: str) -> CriticalPath:
        if phase == SUM:
            return CriticalPath((Step("add", SUM, Poly),))
        return path(use, "training" if phase == AGAIN else phase)

    @cache
    def length(use: Use, phase: str) -> int:
        number = passed(use, phase).length
        return number.at(large(number.letters) | dict(sizes))

    def step(run: PartRun, phase: str) -> Walk:
        return Walk(((run, phase),), length(run.use, phase))

    def longest(walks: Sequence[Walk]) -> list[Walk]:
        return [max(walks, key=lambda walk: walk.length)] if walks else []

    rules: _PathRules[Walk] = _PathRules(Walk(), step, longest, lambda runs, run, walks: walks)
    number = Poly.atom("L") if layers is None else Poly.of(layers)
    again = None if layers is None else repetition(network, layers)
    few = again.few if again else layers or 2 * ENDS
    # `longest` keeps one path of several
    (walk,) = _paths(schedule(network, few), stage, recompute, rules)
    pieces = _folded([*_layer_by_layer(walk.steps, passed)])
    fixed = {stack.section for stack in network.described.stacks if stack.depth is not None}
    return _with_layers_left_out(pieces, number - few, fixed)


def _with_layers_left_out(
    pieces: Sequence[Piece], further: Poly, fixed: Collection[str]
) -> tuple[Piece, ...]:
    """The pieces of a walk through few layers, for a path through `further` layers more: in each
    stack but the `fixed` ones, forward and backward, the piece of most layers comes so much more
    often. Unsupported if its layers do not divide `further`."""
    # (stack, whether backwards) -> the piece of most layers
    most: dict[tuple[str, bool], Piece] = {}
    for piece in pieces:
        if piece.place is not None and piece.place[0] not in fixed:
            known = most.setdefault(piece.place, piece)
            most[piece.place] = max(known, piece, key=lambda one: one.layers * one.number)
    counted = further.constant() or 0
    if any(counted % piece.layers for piece in most.values()):
        raise Unsupported(
            "the path through the network changes with its number of layers: give --L"
        )
    return tuple(
        replace(piece, times=piece.times + further * (Poly.of(1) / piece.layers))
        if piece.place is not None and most.get(piece.place) is piece
        else piece
        for piece in pieces
    )


def _layer_by_layer(
    walk: Iterable[tuple[PartRun, str]], path: Callable[[Use, str], CriticalPath]
) -> Iterator[Piece]:
    """Yield the pieces of a path that passes `walk`, runs with their phases in order: each layer,
    forward or backward, and what lies outside of layers; `path` gives the steps in one part. The
    forward passes of a layer that is computed again stand before the layer's gradients."""
    for (layer, back), several in groupby(walk, lambda step: (step[0].layer, step[1] in BACK)):
        steps = [*several]
        again = [step for step in reversed(steps) if step[1] == AGAIN]
        ordered = (*again, *(step for step in steps if step[1] != AGAIN))
        taken = (step for run, phase in ordered for step in path(run.use, phase).taken)
        yield Piece(None if layer is None else (layer[0], back), tuple(taken))


def _folded(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces of a path with repetitions, one after another, as one piece with their number: a b
    a b a b c becomes 3 times (a b), then c. From each piece on, the repetition that covers most
    pieces is taken."""
    found: list[Piece] = []
    while pieces:
        covered = {s: _repetitions(pieces, s) * s for s in range(1, len(pieces) // 2 + 1)}
        repeated = {size: number for size, number in covered.items() if number > size}
        if not repeated:
            found, pieces = [*found, pieces[0]], pieces[1:]
            continue
        size = max(repeated, key=lambda s: repeated[s])
        times, window = Poly.of(covered[size] // size), pieces[:size]
        one = window[0] if len(window) == 1 else Piece(window[0].place, inner=_folded(window))
        found, pieces = [*found, replace(one, times=times)], pieces[covered[size] :]
    return tuple(found)


def _repetitions(pieces: Sequence[Piece], size: int) -> int:
    """How often the first `size` pieces come, one after another."""
    times = 1
    while pieces[times * size : (times + 1) * size] == pieces[:size]:
        times += 1
    return times
