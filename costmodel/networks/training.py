"""What does the backward pass of a network cost, and which activations are kept for it?

The equations of each part give the part's gradients. Additions between parts follow from which
parts read an array (a wire, of `schedule`): k readers give an array k gradients, which cost k - 1
additions an entry. `recompute` says which layers run forward again for gradients: "none", "layers"
(all), or names of blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import TypeVar

from costmodel.errors import ModelError, Unanswered, Unsupported
from costmodel.language.equations import System
from costmodel.language.options import listed
from costmodel.networks import parts
from costmodel.networks.assembly import Assembly
from costmodel.networks.blocks import FORWARD, Use
from costmodel.networks.gradients import PartGradients, gradients, without_unwanted
from costmodel.networks.part_costs import Counting, own_parameters
from costmodel.networks.schedule import (
    SUM,
    PartRun,
    Wire,
    given_arrays,
    layers_of,
    readers,
    repetition,
    schedule,
)
from costmodel.program.wellformed import axes_of, defined
from costmodel.questions.activations import Activations, kept_entries
from costmodel.questions.counting.by_equation import count_equations
from costmodel.questions.counting.counts import Counts
from costmodel.questions.counting.peers import peer_counts, summed
from costmodel.questions.parameters import parameters
from costmodel.questions.question import Missing
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly, sum_of

K = TypeVar("K")
ONE, L = Poly.of(1), Poly.atom("L")

SCATTER = (
    "scatter: the gradient of each row that a token names is added to a table, one addition an "
    "entry, onto zeros where no other gradient stands"
)
"""What captions say of the gradient of a table whose rows are named by tokens. The count is exact
where the table has another gradient, as that of a tied head; else it is an upper bound, too large
by the entries of the rows that are written a first time."""

OF_BLOCKS = (
    "of a layer of these blocks its inputs are kept, and its forward pass is run again before its "
    "gradients"
)
RECOMPUTE: Mapping[str, str] = {
    "none": "what gradients read is kept",
    "layers": "of a layer its inputs are kept, and its forward pass is run again before its "
    "gradients",
}
"""Name -> which forward passes are run again in the backward pass; the first is the default."""


def recomputed_layers(text: str, blocks: Collection[str], option: str = "recompute") -> str:
    """Check and return what `option` says, without spaces: a name of `RECOMPUTE`, or names of
    `blocks`, separated by commas.

    Raises:
        ModelError: an unknown name, or a name of `RECOMPUTE` beside another name.
    """
    names = dict.fromkeys(listed(text)) or {text: None}
    if unknown := [name for name in names if name not in (*RECOMPUTE, *blocks)]:
        known = ", ".join(dict.fromkeys((*RECOMPUTE, *blocks)))
        raise ModelError(f"{option} '{unknown[0]}': expected one of {known}")
    if len(names) > 1 and {*names} & {*RECOMPUTE}:
        raise ModelError(f"{option} takes none, layers, or names of blocks: one of the three")
    return ",".join(names)


@dataclass(frozen=True, eq=False)
class Graph:
    """A network's parts with their gradients, under one convention."""

    network: Assembly
    counting: Counting

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The rewrites of the convention."""
        return self.counting.convention.rewrites

    def given(self, use: Use) -> frozenset[str]:
        """The names of a part's arrays that get no gradients: those that `given_arrays` finds, and
        the mask of dropout, which has no run of its own."""
        if use.regularises:
            return frozenset(array.name for array in use.mixer.inputs[1:])
        return given_arrays(self.network)[use]

    def gradients(self, use: Use) -> PartGradients:
        """The equations of a part's gradients, without gradients of the network's own inputs;
        Unsupported for an equation whose gradient is not derived."""
        form = use.form_under(self.rewrites)
        return gradients(use.mixer, form, self.rewrites, self.given(use))

    def counts(self, use: Use) -> Counts:
        """The number of operations by class of one run of a part's backward pass, in the part's own
        sizes.

        Raises:
            Unanswered: the convention is another tool's counter (`peer`), which counts no gradients
                of this part; Unsupported: an equation whose gradient is not derived.
        """
        if peer := self.counting.convention.peer:
            # tools see whole tensors, masked pairs included
            system = system_of(use.mixer, use.form_under(self.rewrites), ("dense",), "training")
            given = self.given(use)
            fixed = {array for array in use.mixer.arrays.values() if array.name in given}
            return summed(
                peer_counts(replace(system, fixed=system.fixed | fixed), "backward", peer), peer
            )
        own = self.gradients(use)
        result = Counts({}, Counts({}))
        accounting = self.counting.convention.accounting
        for counts in count_equations(own.system, "backward", accounting).values():
            result = result + counts
        for number in own.scattered.values():
            result = result + Counts({"add": number})
        return result


@cache
def gradient_entries(graph: Graph, use: Use, name: str) -> Exact:
    """How many entries of the gradient of a part's array `name` are defined by equations, as a
    formula in the network's sizes; all other entries are 0, and no addition counts for them."""
    system = graph.gradients(use).system
    wanted = use.mixer.arrays[name]
    arrays = {e.array for e in system.backward if e.array.gradient_of is wanted}
    found = Exact()
    for array in arrays:
        regions = [w for e in system.defining[array] if (w := defined(e)) is not None]
        found = found + union_size(axes_of(array), regions, ONE)
    return found.substitute(use.sizes)


@cache
def graph_of(network: Assembly, counted: Counting) -> Graph:
    """The `Graph` of a network under a convention, made once."""
    return Graph(network, counted)


def joins(graph: Graph) -> Iterator[tuple[Use, Counts | Missing]]:
    """Yield (part "sum of gradients: NAME", operations of all its runs together) for arrays that
    several parts give gradients, and weights that several parts or runs share: 2 L l d add in 2 L
    runs for the residual stream; or one pair with the reason (`Missing`) if not derived."""
    try:
        found = list(_joins_by_name(graph))
    except (Unanswered, Unsupported) as reason:
        yield Use("sums of gradients", parts.residual(), when=FORWARD), Missing(str(reason))
        return
    for name, times, number, once in found:
        if number.is_zero:
            continue
        # a part needs a mixer, here without parameters; what is yielded with it are its operations
        use = Use(f"{SUM}: {name}", parts.residual(), times, Poly(), when=FORWARD)
        added = Counts({"add": number})
        each, apart = (Counts({}), added) if once else (added, Counts({}))
        yield use, replace(each, once=apart)


def _joins_by_name(graph: Graph) -> Iterator[tuple[str, Poly, Exact, bool]]:
    """Yield each sum of gradients of one array as (name, how many such sums there are, number of
    additions of all of them, whether these are done once for a batch, not for each sequence): of
    arrays between parts, of parameters that several parts multiply with (E of a tied head and of
    one-hot rows; gpt-2, which looks rows up, has no such sum), and of parameters that one part uses
    in several runs (layers with the same weights, or "towers": sequences side by side)."""
    made = linear_in_layers(graph.network, lambda runs: _sums_between_parts(graph, runs))
    by_name: dict[str, list[tuple[Poly, Exact]]] = {}
    for (name, _), (times, number) in made.items():
        by_name.setdefault(name, []).append((times, number))
    for name, all_of in by_name.items():
        yield name, sum_of(t for t, _ in all_of), _total(n for _, n in all_of), False
    for (name, _), members in tables(graph.network).items():
        # without parts that only look rows up: `summed` has no entries of their gradient
        dense = [(use, n) for use in members if (n := graph.gradients(use).summed.get(name))]
        if len(dense) > 1:
            # all gradients are added to that of the part that owns the parameter, or to one of them
            given = sum_of(use.copies for use, _ in dense)
            own = [u.copies for u, _ in dense if name not in u.shared]
            times = given - (sum_of(own) if own else ONE)
            added = dense[0][1].substitute(dense[0][0].sizes) * times
            yield f"shared {name}", times, added, True
    again = [use for use in graph.network.uses if use.runs != use.copies]
    number = _total(
        _total(graph.gradients(use).summed.values()).substitute(use.sizes) * (use.runs - use.copies)
        for use in again
        if own_parameters(use).terms
    )
    if again:
        named = "towers" if graph.network.described.towers > 1 else "layers with the same weights"
        # the first such part's sums stand for all: others may run more often, as two norms a layer
        yield named, again[0].runs - again[0].copies, number, True


def _total(numbers: Iterable[Exact]) -> Exact:
    result = Exact()
    for number in numbers:
        result = result + number
    return result


def _sums_between_parts(graph: Graph, runs: tuple[PartRun, ...]) -> dict[tuple[str, Exact], int]:
    """A dict over the arrays between parts (wires) that several runs read, and whose gradients
    from these runs are added: (the wire's name, additions for one such wire) -> how many wires have
    this name and number. Unsupported if no reader gives every entry a gradient."""
    found: Counter[tuple[str, Exact]] = Counter()
    for wire, reading in readers(runs).items():
        if wire.source or len(reading) < 2:
            continue  # an input of the network takes no gradient, and one gradient no addition
        number = Exact.of(wire.entries)
        given = [gradient_entries(graph, runs[k].use, name) for k, name in reading]
        if all(entries.is_zero for entries in given):
            continue  # no trained parameter changes the wire
        shares = [_entries_per_wire(entries, len(runs[k].reads[name]))
                  for entries, (k, name) in zip(given, reading, strict=True)]  # fmt: skip
        if not any((share - number).is_zero for share in shares):
            raise Unsupported(
                f"no part that reads {wire.name} gives all entries a gradient, so that the number "
                "of additions of gradients is not derived: ask for phase training"
            )
        found[wire.name, _total(shares) - number] += 1
    return found


def _entries_per_wire(entries: Exact, wires: int) -> Exact:
    """The entries of an array that belong to one of the `wires` wires that it is made of; wires of
    one array have one shape, and so equal shares."""
    return entries if wires == 1 else entries * (ONE / wires)


def linear_in_layers(
    network: Assembly, tally: Callable[[tuple[PartRun, ...]], Mapping[tuple[K, Exact], int]]
) -> dict[tuple[K, Exact], tuple[Poly, Exact]]:
    """Extend a tally to the network's number of layers, L if it is open: returns key (what, number)
    -> (how often the key occurs, as a polynomial in L; number times that). A key that occurs 3
    times in 1 layer and 5 times in 2 occurs 2 L + 1 times.

    `tally` counts the keys in the runs at a small number of layers; every period of layers adds the
    same runs, so that two small numbers give the tally of any number.
    """
    again = None if network.layers is None else repetition(network, network.layers)
    if network.layers is not None and again is None:
        few, more, beyond = network.layers, network.layers, Poly()
    elif again is not None:
        few, more, beyond = again.few, again.more, Poly.of(again.times)
    else:
        few, more, beyond = 1, 2, L - 1
    one, two = (tally(schedule(network, layers)) for layers in (few, more))
    times = {
        key: Poly.of(one.get(key, 0)) + beyond * (two.get(key, 0) - one.get(key, 0))
        for key in {**one, **two}
    }
    return {key: (number, key[1] * number) for key, number in times.items() if number.terms}


@cache
def tables(network: Assembly) -> dict[tuple[str, str], list[Use]]:
    """(name of a parameter that several parts share, their section) -> these parts: of gpt-2,
    ("E", "") -> [embedding, head]. The section is "encoder", "decoder" or, in a network of one
    stack, ""; also "" for the table of embeddings that parts of several sections share."""
    found: dict[tuple[str, str], list[Use]] = {}
    for sharing in network.uses:
        for name in sorted(sharing.shared):
            having = [use for use in network.uses if name in parameters(use.mixer).arrays]
            section = sharing.section
            equal = [u for u in having if u.mixer is sharing.mixer and u.section == section]
            if any(name not in use.shared for use in equal):
                # an equal part, of another layer, counts the parameter: layers share it
                found[name, section] = equal
            else:  # the parameter of an embedding, which the head or other embeddings share
                found[name, ""] = [use for use in having if name in use.shared or use.table]
    return dict(sorted(found.items()))


def in_layers(network: Assembly) -> frozenset[Use]:
    """The set of parts that run in layers, whose forward pass `--recompute` may run again. Dropout
    has no run of its own in the schedule: it is in a layer if the last other part before it in its
    section (the encoder, say) is."""
    runs = schedule(network, layers_of(network))
    inside = {run.use for run in runs if run.layer is not None}
    begun: set[str] = set()
    for use in network.uses:
        if use.regularises and use.section in begun:
            inside.add(use)
        elif use in inside:
            begun.add(use.section)
        else:
            begun.discard(use.section)
    return frozenset(inside)


@cache
def share_again(network: Assembly, use: Use, recompute: str) -> Fraction:
    """The share (0 to 1) of a part's runs whose forward pass the backward pass runs a second time,
    as `recompute` says: 1/3 for one of three layers, 0 in layers without gradients; of dropout,
    which no run names, the share of the layers of its stack and range (`Use.ranges`)."""
    if recompute == "none" or use not in in_layers(network):
        return Fraction()

    def tally(runs: tuple[PartRun, ...]) -> Counter[tuple[bool, Exact]]:
        own = (run for run in runs if run.layer and run.layer[0] == use.section)
        layers = {(run.layer, run.again(recompute)) for run in own if run.use.ranges == use.ranges}
        mine = [run.again(recompute) for run in runs if run.use is use]
        found = [again for _, again in layers] if use.regularises else mine
        # `linear_in_layers` takes keys (what, number); the number 1 is not read
        return Counter((again, Exact.of(ONE)) for again in found)

    times = {again: n for (again, _), (n, _) in linear_in_layers(network, tally).items()}
    if True not in times:
        return Fraction()
    share = times[True] / sum_of(times.values())
    number = share.constant()
    assert number is not None, "blocks with the same parts have all runs or none in common"
    return Fraction(number)


@cache
def step_of(graph: Graph, use: Use) -> System:
    """The equations of a training step of a part, without gradients of the network's own inputs;
    Unsupported for an equation whose gradient is not derived."""
    form = use.form_under(graph.rewrites)
    system = system_of(use.mixer, form, graph.rewrites, "training-step")
    return without_unwanted(system, graph.given(use))


@cache
def activations_of(graph: Graph, use: Use) -> Activations:
    """The numbers of entries of the activations that a part's gradients read, array by array, in
    the part's sizes; rows of embeddings are parameters, and so left out."""
    own = graph.gradients(use)
    found = kept_entries(own.system)
    rows = {
        a.name for a in own.system.mixer.arrays.values() if a.role == "context"
    } - use.mixer.arrays.keys()
    return Activations({k: v for k, v in found.arrays.items() if k not in rows}, found.once)


@cache
def kept_activations(graph: Graph, recompute: str = "none") -> Mapping[Use, Activations]:
    """A dict: part -> the elements that all its runs keep of a forward pass for the gradients, in
    sizes of the network. An array between parts is kept once, by a part whose gradients read it.
    Layers that run again keep less.

    Raises:
        Unsupported: a part whose gradients are not derived, or two parts of which each keeps other
            entries of one array.
    """
    each: dict[Use, Exact] = {}
    tally = linear_in_layers(graph.network, lambda runs: _kept_entries(graph, runs, recompute))
    for (use, _), (_, number) in tally.items():
        each[use] = each.get(use, Exact()) + number
    found = {}
    for use in graph.network.uses:
        alone = Exact() if use.regularises else activations_of(graph, use).alone
        once = alone.substitute(use.sizes) * use.copies  # of weights alone: once for a batch
        found[use] = Activations({"kept": each.get(use, Exact())}, {"kept": once})
    return found


def _kept_entries(
    graph: Graph, runs: tuple[PartRun, ...], recompute: str
) -> dict[tuple[Use, Exact], int]:
    """A dict: (part, number of entries) -> how often one of these `runs` of the part keeps so many
    entries for gradients. Arrays inside a run count together for its part, unless the run is
    recomputed; an array between parts counts once, for the part that keeps it (`keeper`)."""
    found: Counter[tuple[Use, Exact]] = Counter()
    for run in runs:
        if run.again(recompute):
            continue
        between = {*run.reads, run.use.mixer.role("output").name}
        arrays = activations_of(graph, run.use).arrays
        own = _total(number for name, number in arrays.items() if name not in between)
        if not own.is_zero:
            found[run.use, own.substitute(run.use.sizes)] += 1
    ends = ends_of_wires(runs)
    for wire in ends:
        holder = keeper(graph, ends, wire, recompute)
        if holder is not None:
            found[holder] += 1
    return found


Ends = Mapping[Wire, Sequence[tuple[PartRun, str, int]]]
"""Array between parts (a wire) -> the run that writes it, then each run that reads it, with the
name that the array has in the part's equations, and how many wires are the array of this name."""


def ends_of_wires(runs: tuple[PartRun, ...]) -> Ends:
    """The ends of every wire that a run reads or writes, the network's inputs included: the run
    that writes it, then those that read it, as (run, array in the part's equations, its wires)."""
    found: dict[Wire, list[tuple[PartRun, str, int]]] = {
        wire: [] for run in runs for wires in run.reads.values() for wire in wires
    }
    for run in runs:
        found.setdefault(run.writes, []).append((run, run.use.mixer.role("output").name, 1))
    for run in runs:
        for name, wires in run.reads.items():
            for wire in dict.fromkeys(wires):
                found[wire].append((run, name, len(wires)))
    return found


def keeper(graph: Graph, ends: Ends, wire: Wire, recompute: str) -> tuple[Use, Exact] | None:
    """(part, number of entries): the part that keeps an array between parts (`wire`) for gradients.
    None if no gradient reads the array, or if it is the first row of arrays that are kept whole
    anyway.

    Raises:
        Unsupported: several parts keep different entries of the wire.
    """
    if wire.first and all(_keeps_whole_wire(graph, ends, w, recompute) for w in wire.first):
        return None
    number = Exact.of(wire.entries)
    found = list(_keepers(graph, ends, wire, recompute))
    for use, entries in found:
        if (entries - number).is_zero:
            return use, number
    if len(found) > 1:
        names = " and ".join(use.name for use, _ in found)
        raise Unsupported(
            f"{names} keep different entries of {wire.name} for the backward pass, and the number "
            "of kept entries is not derived: ask for phase training, which keeps none"
        )
    return found[0] if found else None


def _keeps_whole_wire(graph: Graph, ends: Ends, wire: Wire, recompute: str) -> bool:
    found = keeper(graph, ends, wire, recompute)
    return found is not None and (found[1] - Exact.of(wire.entries)).is_zero


def _keepers(graph: Graph, ends: Ends, wire: Wire, recompute: str) -> Iterator[tuple[Use, Exact]]:
    """Yield (part, number of a wire's entries that its gradients read) for each run that writes or
    reads the wire and whose gradients read it; in a layer that is recomputed, each run that reads
    a wire from outside the layer keeps the whole wire."""
    written = next((run for run, *_ in ends[wire] if run.writes is wire), None)
    for run, name, wires in ends[wire]:
        if run.again(recompute):
            outside = written is None or written.layer != run.layer
            if outside and run is not written:
                yield run.use, Exact.of(wire.entries)
            continue
        entries = activations_of(graph, run.use).arrays.get(name, Exact())
        if not entries.is_zero:
            yield run.use, _entries_per_wire(entries.substitute(run.use.sizes), wires)


def gradient_elements(graph: Graph) -> Poly:
    """The number of entries of the gradients of all parameters that are trained, shared ones once,
    as a formula in sizes of the network."""
    result = Poly()
    for use in graph.network.uses:
        own = graph.gradients(use)
        there = {*own.summed, *own.scattered} - use.shared
        arrays = parameters(use.mixer).arrays
        entries = sum_of(arrays[n] for n in there).substitute(use.parameter_sizes)
        result = result + entries * use.copies
    return result
