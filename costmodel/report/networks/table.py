"""The tables of a network's costs: lines and values, by phase and combination of sizes.

A line holds the values of one part, a sheet the lines at one combination of sizes in one stage: the
phase itself, or for `generate` prefill and decode. A sheet is *settled* if all its sizes have
numbers; else its values are formulas in the remaining letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.errors import ModelError, SizeError, Unanswered
from costmodel.language.functions import CLASSES
from costmodel.networks import training
from costmodel.networks.blocks import Description, Use
from costmodel.networks.generation import generation
from costmodel.networks.memory_budget import MemoryBudget, MemoryLine, MemoryOptions
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import Counting, PartCost
from costmodel.program.chosen_sizes import Given, combinations, given_sizes, listed
from costmodel.program.phases import PHASES as NAMES, TRAINING_STEP
from costmodel.questions.counting.counts import Counts, answered
from costmodel.questions.question import EVERY, Missing, Value
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS

BATCH = Poly.atom("b")

STAGES: Mapping[str, tuple[str, ...]] = {"generate": ("prefill", "decode")}
"""Phase -> its stages, for phases with several; any other phase is its own only stage."""

BY_LETTER: Mapping[str, tuple[str, ...]] = {"inference": ("t",), "generate": ("p", "q")}
"""Phase -> the sizes that only this phase depends on."""


def phases(text: str) -> tuple[str, ...]:
    """The phases for the name or alias of a phase, "both" or "all".

    Raises:
        ModelError: an unknown name.
    """
    several = {"both": ("training", "inference"), "all": EVERY}
    if text in several:
        return several[text]
    known = {name: phase for name, phase in NAMES.items() if name != "prefill"}
    known["generate"] = "generate"
    if text == "prefill":
        raise ModelError("--phase prefill: the prompt's forward pass is a part of --phase generate")
    if text not in known:
        raise ModelError(f"--phase '{text}': expected one of {', '.join(known)}, both, all")
    return (known[text],)


@dataclass(frozen=True)
class Request:
    """The options of a network's tables.

    Args:
        given: the sizes given by the user, which replace the network's own.
        kept: sizes that stay letters, even if the network has a value for them.
        symbolic: all sizes that are not given stay letters (b is 1 unless given).
        memory_options: the options of a training step that change its memory.
    """

    described: Description
    given: Given = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    phases: tuple[str, ...] = ("training", "inference")
    counting: Counting = field(default_factory=Counting)
    symbolic: bool = False
    memory_options: MemoryOptions = field(default_factory=MemoryOptions)


def asked(typed: Mapping[str, str | None]) -> tuple[Given, frozenset[str]]:
    """The values of the sizes on the command line, and the sizes to keep as letters (`--l l`)."""
    kept = frozenset(letter for letter, text in typed.items() if text == letter)
    return given_sizes({x: text for x, text in typed.items() if x not in kept}), kept


@dataclass(frozen=True)
class Line:
    """The values of one part, or of all parts together."""

    name: str
    runs: Value
    parameters: Value
    classes: Mapping[str, Value] | Missing
    """Class -> operations of b sequences; zeros may be left out."""
    once: Mapping[str, Value] | Missing
    total: Value
    state: Value
    peer: str | None = None
    kept: Value = None
    """The activations of b sequences that are kept for the backward pass, in elements."""

    def value(self, column: str) -> Value:
        """The value of a column; Missing for counts that the part or a tool (`peer`) lacks."""
        if column in ("runs", "parameters", "total", "state", "kept"):
            found: Value = getattr(self, column)
            return found
        if column == "part":
            return self.name
        if column == "once":
            return self.once if isinstance(self.once, Missing) else _added(self.once.values())
        if isinstance(self.classes, Missing):
            return self.classes
        if column == "other":
            return _added(v for c, v in self.classes.items() if c not in CLASSES)
        try:
            answered(column, self.peer)
        except Unanswered as reason:
            return Missing(str(reason))
        return self.classes.get(column, 0)

    @property
    def other(self) -> Mapping[str, Value] | Missing:
        """The operations other than mul, add, div and exp, by class; Missing without counts."""
        if isinstance(self.classes, Missing):
            return self.classes
        return {c: v for c, v in self.classes.items() if c not in CLASSES}


def _added(found: Iterable[Value]) -> Value:
    """The sum of integers and formulas; an integer if there are no formulas."""
    exact, number = Exact(), 0
    for value in found:
        if isinstance(value, Exact):
            exact = exact + value
        elif isinstance(value, int):
            number += value
    return exact + Exact.of(Poly.of(number)) if exact.pieces else number


@dataclass(frozen=True)
class Sheet:
    """A network in one stage of a phase at one combination of sizes."""

    request: Request
    network: Network
    stage: str
    sizes: Mapping[str, int]
    """The sizes with a value."""
    letters: tuple[str, ...]
    """All sizes that the network has in the stage."""
    lines: tuple[Line, ...]
    total: Line
    tables: Value
    """The parameters of the embeddings' tables; the total includes them."""
    memory: tuple[MemoryLine, ...] = ()
    """The memory of a training step: numbers if all sizes have values, else formulas."""


def letters_of(net: Network, phase: str) -> tuple[str, ...]:
    """The sizes that a network has in a phase, in the order of `LETTERS`."""
    found = {"b", *BY_LETTER.get(phase, ())}
    for use in net.uses:
        found |= use.runs.letters | use.copies.letters
        for letter in ("l", *use.mixer.letters):
            found |= use.sizes.get(letter, Poly.atom(letter)).letters
    return tuple(letter for letter in LETTERS if letter in found)


def sheets(request: Request) -> list[Sheet]:
    """A sheet for every stage of every phase at every combination of sizes.

    Raises:
        SizeError: sizes that do not fit; ModelError: layers of several kinds without a number L.
        Unanswered: generation by a network without a head over the vocabulary.
    """
    found = []
    for phase in request.phases:
        for sizes in _combinations(request, phase):
            net = _network(request, sizes)
            letters = letters_of(net, phase)
            found += _stages(request, net, phase, sizes, letters)
    return found


def _given(request: Request) -> dict[str, tuple[int, ...] | str]:
    """Size -> its values, or the letter that it equals: those given, else the network's own unless
    the table is symbolic; without the sizes that the user keeps as letters."""
    own: dict[str, tuple[int, ...]] = {}
    if not request.symbolic:
        sizes = request.described.sizes
        own = {x: v if isinstance(v, tuple) else (v,) for x, v in sizes.items()}
    found = {**own, **request.given}
    return {x: v for x, v in found.items() if x not in request.kept}


def _changed(request: Request) -> Description:
    """The network's description without its formulas for sizes that are given or kept as letters,
    so that these sizes are no longer computed from others."""
    formulas = {
        letter: poly
        for letter, poly in request.described.formulas.items()
        if letter not in request.given and letter not in request.kept
    }
    return replace(request.described, formulas=formulas)


def _combinations(request: Request, phase: str) -> list[dict[str, int]]:
    """All combinations of the sizes that have values; the other sizes stay letters.

    A network whose layers have several kinds needs the number L of layers to be built: L then gets
    a value in every combination.

    Raises:
        SizeError: a size without a value and without a default; ModelError: such a network without
            a number L.
    """
    given = _given(request)
    described = _changed(request)
    if described.patterned:
        if (request.symbolic and "L" not in given) or "L" in request.kept:
            network(replace(described, sizes={}))  # raises the ModelError
        given.setdefault("L", (LETTERS["L"].default or 1,))
    sample = {"L": listed(given).get("L", (1,))[0]} if described.patterned else {}
    letters = letters_of(network(described, **sample), phase)
    letters = tuple(x for x in LETTERS if x in letters or (x == "L" and described.patterned))
    if request.symbolic:
        named = [x for x in letters if x in given or x == "b"]
    else:
        named = [x for x in letters if x not in request.kept]
    missing = [x for x in named if x not in given and x != "t" and LETTERS[x].default is None]
    if missing:
        raise SizeError(f"size {missing[0]} has no default: give --{missing[0]}")
    # the default of t is l: where l stays a letter, t does too
    if "t" in named and "t" not in given and "l" in request.kept:
        named.remove("t")
    return combinations(named, given)


def _network(request: Request, sizes: Mapping[str, int]) -> Network:
    described = _changed(request)
    layers = {"L": sizes["L"]} if described.patterned else {}
    return network(described, **layers)


def _stages(
    request: Request, net: Network, phase: str, sizes: Mapping[str, int], letters: tuple[str, ...]
) -> list[Sheet]:
    """The sheets of all stages of a phase at one combination of sizes. Where all sizes have numbers
    they must fit the network, and a part whose weights end before a position has no counts."""
    numbers = {x: v for x, v in sizes.items() if x in letters or x == "L"}
    settled = set(letters) <= set(numbers)
    if settled:
        net.fit(numbers)
    if phase != "generate":
        recompute = request.memory_options.recompute
        costs = {phase: training.costs(net, phase, request.counting, recompute)
                 if phase in TRAINING_STEP else net.costs(phase, request.counting)}  # fmt: skip
    else:
        made = generation(net, request.counting)
        decode = made.decode_at(numbers) if settled else made.decode
        costs = {"prefill": made.prefill, "decode": decode}
    found = []
    for stage, parts in costs.items():
        ends = net.beyond(stage, numbers, request.counting) if settled else {}
        parts = [_blocked(part, ends[part.use]) if part.use in ends else part for part in parts]
        found.append(_sheet(request, net, stage, numbers, letters, parts, settled))
    return found


def _blocked(part: PartCost, reason: str) -> PartCost:
    """A part whose weights end before a position (a table of positions): its counts are Missing
    with the reason, and so is its state unless it is 0."""
    if isinstance(part.counts, Missing):
        return part
    missing = Missing(reason)
    held = isinstance(part.state, Missing) or not part.state.is_zero
    return replace(part, counts=missing, state=missing if held else part.state)


def _sheet(
    request: Request,
    net: Network,
    stage: str,
    sizes: Mapping[str, int],
    letters: tuple[str, ...],
    parts: Sequence[PartCost],
    settled: bool,
) -> Sheet:
    """The sheet of one stage: a line per part and their total, in phases with gradients with the
    activations, and for a training step with its memory."""
    lines = tuple(_line(part, sizes, settled) for part in parts)
    own = net.parameters()
    tables = Exact.of(own.poly - own.without_tables.poly)
    total = _line(_together(net, parts, own.poly), sizes, settled)
    total = replace(total, runs=None)
    tables_there = _settle(tables, sizes, settled)
    if stage not in TRAINING_STEP:
        return Sheet(request, net, stage, sizes, letters, lines, total, tables_there)
    held = MemoryBudget(net, request.counting, request.memory_options, sizes if settled else None)
    lines = tuple(
        replace(line, kept=_kept(held.kept_by(line.name), sizes, settled)) for line in lines
    )
    total = replace(total, kept=_kept(held.kept, sizes, settled))
    found = held.lines() if stage == "training-step" else ()
    memory = tuple(one.at(sizes, settled=settled) for one in found)
    return Sheet(request, net, stage, sizes, letters, lines, total, tables_there, memory)


def _kept(found: Exact | Missing, sizes: Mapping[str, int], settled: bool) -> Value:
    return found if isinstance(found, Missing) else _settle(found, sizes, settled)


def _together(net: Network, parts: Sequence[PartCost], parameters: Poly) -> PartCost:
    """The sum of all parts; counts or state are Missing if those of a part are, with its reason."""
    use: Use = replace(net.uses[0], label="total", section="")
    state, classes, once = Exact(), dict[str, Exact](), dict[str, Exact]()
    peer, joined = None, Exact()
    lacking: dict[str, Missing] = {}
    for part in parts:
        for name, found in (("counts", part.counts), ("state", part.state)):
            if isinstance(found, Missing) and name not in lacking:
                says = any(found.reason.startswith(f"{other.use.name}: ") for other in parts)
                named = found.reason if says else f"{part.use.name}: {found.reason}"
                lacking[name] = Missing(named)
        # `lacking` replaces the sums at the end: a sum that lacks a part is not shown
        if isinstance(part.state, Exact):
            state = state + part.state
        if isinstance(part.counts, Missing):
            continue
        peer, joined = part.counts.peer, joined + part.counts.joined
        for name, value in part.counts.classes.items():
            classes[name] = classes.get(name, Exact()) + value
        for name, value in part.counts.once.classes.items() if part.counts.once else ():
            once[name] = once.get(name, Exact()) + value
    counts = Counts(classes, Counts(once, peer=peer), peer, joined)
    return PartCost(
        use, Poly(), parameters, lacking.get("counts", counts), lacking.get("state", state)
    )


def _line(part: PartCost, sizes: Mapping[str, int], settled: bool) -> Line:
    """The values of one part for b sequences: numbers if `settled`, else formulas. Counts are those
    of one sequence times b; gradients of weights are besides added up over the batch, b - 1 times
    for each of the `joined` entries; work done once is not multiplied."""
    parameters = _settle(Exact.of(part.parameters), sizes, settled)
    runs = _settle(Exact.of(part.runs), sizes, settled)
    state: Value = part.state if isinstance(part.state, Missing) else None
    if isinstance(part.state, Exact):
        state = _settle(part.state * BATCH, sizes, settled)
    if isinstance(part.counts, Missing):
        missing = part.counts
        return Line(part.use.name, runs, parameters, missing, missing, missing, state)
    counts = part.counts
    each = {c: v * BATCH for c, v in counts.classes.items()}
    if counts.joined.pieces:
        each["add"] = each.get("add", Exact()) + counts.joined * (BATCH - 1)
    classes = {c: _settle(v, sizes, settled) for c, v in each.items()}
    inside = counts.once.classes if counts.once else {}
    once = {c: _settle(v, sizes, settled) for c, v in inside.items()}
    return Line(
        part.use.name,
        runs,
        parameters,
        classes,
        once,
        _added([*classes.values(), *once.values()]),
        state,
        counts.peer,
    )


def _settle(answer: Exact, sizes: Mapping[str, int], settled: bool) -> Value:
    """An answer at sizes: a number if `settled` (all sizes have values), else a formula."""
    if settled:
        return answer.rational(sizes)
    return answer.substitute({x: Poly.of(v) for x, v in sizes.items()})
