"""What does a training step of a network cost beside its forward pass, and what does it keep?

Each part's own equations give its gradients. What joins parts is counted by who reads what: an
array that k parts read gets k gradients, which cost k - 1 additions an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import gradient_name
from costmodel.networks import parts
from costmodel.networks.assembly import FORWARD, Assembly, Use
from costmodel.networks.gradients import Gradients, gradients
from costmodel.networks.part_costs import Counting, PartCost, cost, own_parameters, scaled
from costmodel.networks.schedule import Run, Wire, layers_of, readers, schedule, sources
from costmodel.program.wellformed import axes_of, defined
from costmodel.questions.activations import Activations, kept_entries
from costmodel.questions.count import count_equations
from costmodel.questions.counts import Counts
from costmodel.questions.parameters import parameters
from costmodel.questions.peers import no_backward
from costmodel.questions.question import Missing
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly, sum_of

ONE, L = Poly.of(1), Poly.atom("L")

SCATTER = (
    "scatter: the gradient of each row that a token names is added to a table, one addition an "
    "entry, onto zeros where no other gradient stands"
)
"""What a gradient costs that goes to rows named by values, as captions say it. Where the table has
another gradient, as that of a tied head, this is exact; else it is an upper bound, by as many
entries as are written a first time."""

RECOMPUTE: Mapping[str, str] = {
    "none": "what gradients read is kept",
    "layers": "of a layer its inputs are kept, and its forward pass is run again before its "
    "gradients",
}
"""What is computed again in the backward pass, by name; the first is the default."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A network's parts with their gradients, under one convention."""

    network: Assembly
    counting: Counting

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The rewrites of the convention."""
        return self.counting.convention.rewrites

    def gradients(self, use: Use) -> Gradients:
        """The equations of a part's gradients; those of what the network is given are left out.

        Raises:
            Unsupported: an equation whose gradient is not derived.
        """
        unwanted = frozenset() if use.regularises else sources(self.network)[use]
        return gradients(use.mixer, use.form_under(self.rewrites), self.rewrites, unwanted)

    def counts(self, use: Use) -> Counts:
        """The operations of one run of a part's backward pass, in the part's own sizes.

        Raises:
            Unanswered: a peer's count; Unsupported: an equation whose gradient is not derived.
        """
        if peer := self.counting.convention.peer:
            raise Unanswered(no_backward(peer))
        own = self.gradients(use)
        result = Counts({}, Counts({}))
        accounting = self.counting.convention.accounting
        for counts in count_equations(own.system, "backward", accounting).values():
            result = result + counts
        for number in own.scattered.values():
            result = result + Counts({"add": number})
        return result

    def slope(self, use: Use, name: str) -> Exact:
        """How many entries of the gradient of one of a part's arrays there are, in its sizes."""
        system = self.gradients(use).system
        wanted = gradient_name(use.mixer.arrays[name])
        arrays = {e.array for e in system.backward if e.name == wanted}
        found = Exact()
        for array in arrays:
            regions = [w for e in system.defining[array] if (w := defined(e)) is not None]
            found = found + union_size(axes_of(array), regions, ONE)
        return found


@cache
def graph_of(network: Assembly, counted: Counting) -> Graph:
    """The parts of a network with their gradients."""
    return Graph(network, counted)


def backward(graph: Graph) -> list[PartCost]:
    """What each part's gradients cost, and after them what joins parts."""
    found = []
    for use in graph.network.uses:
        own = own_parameters(use)
        if use.regularises and graph.counting.dropout == "dropout=free":
            continue
        try:
            counts = _runs(graph, use)
        except (Unanswered, Unsupported) as reason:
            found.append(PartCost(use, use.runs, own, Missing(str(reason))))
            continue
        found.append(PartCost(use, use.runs, own, counts))
    return found if graph.counting.convention.peer else [*found, *_joins(graph)]


def _runs(graph: Graph, use: Use) -> Counts:
    """All runs of a part. Gradients of weights are added up over a batch, and over the runs that
    share the weights; work on them alone is done once for each set of weights."""
    one = graph.counts(use)
    every = scaled(one, use.sizes, use.runs)
    once = scaled(one.once, use.sizes, use.copies) if one.once else None
    return replace(every, once=once)


def _joins(graph: Graph) -> Iterator[PartCost]:
    """The additions that join gradients of different parts, or of runs with the same weights."""
    try:
        found = list(_joined(graph))
    except (Unanswered, Unsupported) as reason:
        use = Use("sums of gradients", parts.residual(), when=FORWARD)
        yield PartCost(use, Poly(), Poly(), Missing(str(reason)))
        return
    for name, times, number, once in found:
        if number.is_zero:
            continue
        use = Use(f"sum of gradients: {name}", parts.residual(), times, when=FORWARD)
        added = Counts({"add": number})
        each, apart = (Counts({}), added) if once else (added, Counts({}))
        yield PartCost(use, times, Poly(), replace(each, once=apart))


def _joined(graph: Graph) -> Iterator[tuple[str, Poly, Exact, bool]]:
    """What is joined: its name, how often, the additions; whether they are once for a batch."""
    made = affine(graph.network, lambda runs: _wires(graph, runs))
    by_name: dict[str, list[tuple[Poly, Exact]]] = {}
    for (name, _), (times, number) in made.items():
        by_name.setdefault(name, []).append((times, number))
    for name, all_of in by_name.items():
        yield name, sum_of(t for t, _ in all_of), _sum(n for _, n in all_of), False
    for name, members in _tables(graph.network).items():
        dense = [(use, n) for use in members if (n := graph.gradients(use).summed.get(name))]
        if len(dense) > 1:
            added = _sum(number.substitute(use.sizes) for use, number in dense[1:])
            yield f"shared {name}", Poly.of(len(dense) - 1), added, True
    again = [use for use in graph.network.uses if use.copies.terms and use.runs != use.copies]
    number = _sum(
        _sum(graph.gradients(use).summed.values()).substitute(use.sizes) * (use.runs - use.copies)
        for use in again
        if own_parameters(use).terms
    )
    if again:
        yield "towers", again[0].runs - again[0].copies, number, True


def _sum(numbers: Iterable[Exact]) -> Exact:
    result = Exact()
    for number in numbers:
        result = result + number
    return result


def _wires(graph: Graph, runs: tuple[Run, ...]) -> dict[tuple[str, Exact], int]:
    """Wires with several readers: their name, the additions of one, and how many there are."""
    found: Counter[tuple[str, Exact]] = Counter()
    for wire, reading in readers(runs).items():
        if wire.source or len(reading) < 2:
            continue
        number = Exact.of(wire.entries)
        given = [
            graph.slope(runs[k].use, name).substitute(runs[k].use.sizes) for k, name in reading
        ]
        shares = [_share(entries, len(runs[k].reads[name]))
                  for entries, (k, name) in zip(given, reading, strict=True)]  # fmt: skip
        if not any((share - number).is_zero for share in shares):
            raise Unsupported(f"{wire.name}: no reader hands a gradient to every entry")
        found[wire.name, _sum(shares) - number] += 1
    return found


def _share(entries: Exact, wires: int) -> Exact:
    """The entries of one of the wires that an array is made of: alike, as they have one shape."""
    return entries if wires == 1 else entries * (ONE / wires)


def affine(
    network: Assembly, tally: Callable[[tuple[Run, ...]], Mapping[tuple[str, Exact], int]]
) -> dict[tuple[str, Exact], tuple[Poly, Exact]]:
    """How often each entry of a tally is there, and its number times that, at L layers.

    Every layer adds the same runs, so that one layer and two say what any number of them does.
    """
    if network.layers is not None:
        one = tally(schedule(network, network.layers))
        times = {key: Poly.of(number) for key, number in one.items()}
    else:
        one, two = (tally(schedule(network, layers)) for layers in (1, 2))
        times = {
            key: Poly.of(one.get(key, 0)) + (L - 1) * (two.get(key, 0) - one.get(key, 0))
            for key in {**one, **two}
        }
    return {key: (number, key[1] * number) for key, number in times.items() if number.terms}


def _tables(network: Assembly) -> dict[str, list[Use]]:
    """The parameters that several parts share, and these parts."""
    names = {name for use in network.uses for name in use.shared}
    return {
        name: [
            use
            for use in network.uses
            if name in use.shared or (use.table and name in parameters(use.mixer).arrays)
        ]
        for name in sorted(names)
    }


def costs(
    network: Assembly, phase: str, counted: Counting, recompute: str = "none"
) -> list[PartCost]:
    """What each part costs in a backward pass or a training step, and what joins parts.

    Args:
        recompute: `layers`: the forward pass of each layer is run again before its gradients.
    """
    graph = graph_of(network, counted)
    found = backward(graph)
    if recompute == "layers":
        again = in_layers(network)
        found = [_with_forward(graph, part) if part.use in again else part for part in found]
    return [_with_forward(graph, part) for part in found] if phase == "training-step" else found


def in_layers(network: Assembly) -> frozenset[Use]:
    """The parts of layers; the dropout of a stack's layers comes after its first part in them."""
    runs = schedule(network, layers_of(network))
    inside = {run.use for run in runs if run.layer is not None}
    begun: set[str] = set()
    for use in network.uses:
        if use.regularises and use.section in begun:
            inside.add(use)
        elif use in inside:
            begun.add(use.section)
    return frozenset(inside)


def _with_forward(graph: Graph, part: PartCost) -> PartCost:
    """A part's cost with one forward pass more; what joins parts has none."""
    if part.use not in graph.network.uses or isinstance(part.counts, Missing):
        return part
    forward = cost(part.use, "training", graph.counting).counts
    counts = forward if isinstance(forward, Missing) else _both(forward, part.counts)
    return replace(part, counts=counts)


def _both(one: Counts, two: Counts) -> Counts:
    once = (one.once or Counts({})) + (two.once or Counts({}))
    return replace(one + two, once=replace(once, peer=one.peer), peer=one.peer)


@dataclass(frozen=True)
class Kept:
    """Elements kept from the forward pass for the backward pass, by part."""

    parts: Mapping[str, Exact] = field(default_factory=dict)
    """For each sequence."""
    once: Mapping[str, Exact] = field(default_factory=dict)
    """What depends on weights alone."""

    @property
    def each(self) -> Exact:
        """The total for each sequence."""
        return _sum(self.parts.values())

    @property
    def alone(self) -> Exact:
        """The total of what depends on weights alone."""
        return _sum(self.once.values())

    def of(self, name: str) -> tuple[Exact, Exact]:
        """What a part keeps, for each sequence and of weights alone."""
        return self.parts.get(name, Exact()), self.once.get(name, Exact())


def activations_of(graph: Graph, use: Use) -> Activations:
    """What the gradients of a part read, in its own sizes; rows of tables are parameters."""
    own = graph.gradients(use)
    found = kept_entries(own.system)
    rows = {
        a.name for a in own.system.mixer.arrays.values() if a.role == "context"
    } - use.mixer.arrays.keys()
    return Activations({k: v for k, v in found.arrays.items() if k not in rows}, found.once)


@cache
def kept(graph: Graph, recompute: str = "none") -> Kept:
    """What is kept of a forward pass, by part: an array between parts once, with a part that reads
    it again.

    Raises:
        Unsupported: a part whose gradients are not derived, or that keeps a part of an array of
            which another part keeps another one.
    """
    found: dict[str, Exact] = {}
    tally = affine(graph.network, lambda runs: _all_kept(graph, runs, recompute))
    for (name, _), (_, number) in tally.items():
        found[name] = found.get(name, Exact()) + number
    once = {
        use.name: number
        for use in graph.network.uses
        if not use.regularises
        and (number := activations_of(graph, use).alone.substitute(use.sizes) * use.copies).pieces
    }
    return Kept(found, once)


def _all_kept(graph: Graph, runs: tuple[Run, ...], recompute: str) -> dict[tuple[str, Exact], int]:
    found: Counter[tuple[str, Exact]] = Counter()
    for run in runs:
        if recompute == "layers" and run.layer is not None:
            continue
        between = {*run.reads, run.use.mixer.role("output").name}
        arrays = activations_of(graph, run.use).arrays
        own = _sum(number for name, number in arrays.items() if name not in between)
        if not own.is_zero:
            found[run.use.name, own.substitute(run.use.sizes)] += 1
    for wire in between_parts(runs):
        holder = holders(graph, runs, wire, recompute)
        if holder is not None:
            found[holder] += 1
    return found


def between_parts(runs: tuple[Run, ...]) -> list[Wire]:
    """Every wire, those that the network is given too."""
    found = {w: None for run in runs for wires in run.reads.values() for w in wires}
    return list({**found, **{run.writes: None for run in runs}})


def holders(
    graph: Graph, runs: tuple[Run, ...], wire: Wire, recompute: str
) -> tuple[str, Exact] | None:
    """The part that keeps an array between parts, and how many of its entries; None if none does.

    Raises:
        Unsupported: several parts keep different entries.
    """
    if wire.first and all(_whole(graph, runs, w, recompute) for w in wire.first):
        return None
    number = Exact.of(wire.entries)
    found = list(_keepers(graph, runs, wire, recompute))
    for name, entries in found:
        if (entries - number).is_zero:
            return name, number
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise Unsupported(f"{wire.name}: {names} keep different entries of it")
    return found[0] if found else None


def _whole(graph: Graph, runs: tuple[Run, ...], wire: Wire, recompute: str) -> bool:
    found = holders(graph, runs, wire, recompute)
    return found is not None and (found[1] - Exact.of(wire.entries)).is_zero


def _keepers(
    graph: Graph, runs: tuple[Run, ...], wire: Wire, recompute: str
) -> Iterator[tuple[str, Exact]]:
    written = next((run for run in runs if run.writes is wire), None)
    ends = [] if written is None else [(written, written.use.mixer.role("output").name, 1)]
    for run in runs:
        ends += [(run, name, len(ws)) for name, ws in run.reads.items() if wire in ws]
    for run, name, wires in ends:
        again = recompute == "layers" and run.layer is not None
        if again:
            outside = written is None or written.layer != run.layer
            if outside and run is not written:
                yield run.use.name, Exact.of(wire.entries)
            continue
        entries = activations_of(graph, run.use).arrays.get(name, Exact())
        if not entries.is_zero:
            yield run.use.name, _share(entries.substitute(run.use.sizes), wires)


def gradient_elements(graph: Graph) -> Poly:
    """Entries of the gradients of all parameters, in sizes of the network."""
    result = Poly()
    for use in graph.network.uses:
        own = graph.gradients(use)
        there = {*own.summed, *own.scattered} - use.shared
        arrays = parameters(use.mixer).arrays
        result = result + sum_of(arrays[n] for n in there).substitute(use.sizes) * use.copies
    return result
