"""The answers of the equations about the call of one record: all that a ladder asks costmodel.

A *description* (`Described`) says which form, rewrites and kernel classes an implementation
executes. A *peer* is another tool's counter of operations: torch's FlopCounterMode, or fvcore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.program.conventions import FUSED_ATTENTION, PEERS, Peer
from costmodel.program.element_types import element_bytes
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.activations import activations_of
from costmodel.questions.count import contracted
from costmodel.questions.counting.empty_sums import reads_nothing, spared
from costmodel.questions.counting.peers import Contraction
from costmodel.questions.question import BATCH
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import traffic_of
from costmodel.symbolic.piecewise import Exact
from profiler.counting.operations import Classes
from profiler.counting.rules import nominal
from profiler.modules.described import (
    Described,
    answers_about,
    by_class,
    class_differences,
    classes_at,
    description_of,
    executed_counts,
    held_rewrites,
    switches_to,
)
from profiler.modules.registry import Implementation
from profiler.reconcile.arrays import Arrays
from profiler.reconcile.levels import Cause
from profiler.reconcile.live_sets import APART, live_sets
from profiler.records.measurement import Measurement
from profiler.run.lower_bounds import readings_below

UNREAD = "arrays that nothing reads at these sizes, as decays at l = 1, get no gradient in autograd"
NOTHING_KEPT = "only a phase with gradients keeps tensors for a backward pass"


@dataclass(frozen=True)
class Prediction:
    """The figure that a peer is predicted to print, in the peer's unit; or None and the `reason`.

    `causes` are (name, added operations): added to the total of rung 2, they give the figure.
    """

    figure: int | None = None
    causes: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Held:
    """The bytes that the equations hold, and the arrays that hold the bytes. `reason` says why
    `bytes` or `arrays` is None; `compared` is false in a phase whose bytes are not compared."""

    bytes: int | None = None
    arrays: Arrays | None = None
    reason: str = ""
    compared: bool = True


@dataclass(frozen=True)
class Derived:
    """What the equations say of one call (operations, bytes), at its sizes."""

    form: str
    phase: str
    sizes: Mapping[str, int]
    first: Classes
    """Rung 1: the operations of the equations, by class."""
    second: Classes
    """Rung 2: the operations of the equations as the implementation executes them."""
    causes: tuple[Cause, ...]
    """The re-counts between rung 1 and rung 2."""
    peers: Mapping[str, Prediction]
    moved: Mapping[str, int]
    """Bytes moved: `compulsory`, if every input is read and every result written once, and
    `unfused`, if every equation reads its operands from memory and writes its result to memory; {}
    if they are unknown."""
    unmoved: str
    """Why the bytes moved are unknown; "" if they are known."""
    held: Mapping[str, Held]
    """`activations`: what is kept for the backward pass; `peak`: the largest live set."""
    below: Mapping[str, str]
    """Name of each reading that is below its lower bound -> a sentence."""


def derived(measurement: Measurement, mixer: Mixer, implementation: Implementation) -> Derived:
    """What the equations say of the call that a record measured, at its sizes: operations, what
    other counters should print, bytes moved and held, and readings below their lower bounds.

    Raises:
        Unanswered, Unsupported: the equations do not say how many operations the call executes.
    """
    printed = measurement.counts.get("peers", {})
    executed = _executed(
        mixer,
        implementation,
        phase_name(measurement.phase),
        measurement.device.split(":")[0],
        frozenset(telltale_operations(measurement)),
        tuple(classes_seen(printed.get(name)) for name in PEERS),
    )
    found = _of_call(executed, tuple(measurement.sizes.items()), measurement.dtype)
    return replace(found, below=readings_below(measurement, mixer, found.form))


@lru_cache(maxsize=256)
def _of_call(executed: Executed, measured: tuple[tuple[str, int], ...], dtype: str) -> Derived:
    """What the equations say of a call at its sizes (`measured`: pairs of a letter and its number),
    with `below` empty, since readings differ from call to call: the calls of one point, such as all
    rounds of a sweep, share one answer. The answer's sizes are those that the equations have."""
    wanted = {*executed.mixer.letters, "b"} | ({"t"} if executed.phase == "inference" else set())
    every = dict(measured)
    sizes = {k: v for k, v in measured if k in wanted}
    first, second, causes = recounts(executed, sizes)
    moved = executed.moved
    known = {} if isinstance(moved, str) else moved
    return Derived(
        executed.does.form,
        executed.phase,
        sizes,
        first,
        second,
        causes,
        predictions(executed, sizes, sum(second.values())),
        {name: element_bytes(dtype) * number.at(every) for name, number in known.items()},
        moved if isinstance(moved, str) else "",
        bytes_held(executed, dtype, every),
        {},
    )


ByClass = Mapping[str, Exact]
"""Class -> the number of operations for b sequences."""


@dataclass(frozen=True, eq=False)
class Executed:
    """What the equations answer about all calls of an implementation in one phase, in the sizes;
    each answer is derived once.

    Args:
        does: the equations that the implementation executes.
        backend: the device's type, `cpu` or `cuda`.
        known: for each counter in `PEERS` the classes for which this version has a formula.
    """

    mixer: Mixer
    does: Described
    phase: str
    backend: str
    known: tuple[frozenset[str], ...]

    @cached_property
    def counted(self) -> tuple[ByClass, list[tuple[str, str, ByClass]]]:
        """(the operations of the default form as published; a list of (name, meaning, operations
        after it) for each switch, as `recounts` explains). A switch after which the equations
        cannot be counted is joined to the next: "form=stream and safe-softmax"."""
        first = self._operations(Described(self.mixer.default_form, ()))
        found: list[tuple[str, str, ByClass]] = []
        # the last count is that after the first `turned` switches
        switches, turned = [*switches_to(self.mixer, self.does.form, self.does.rewrites)], 0
        for number, (_, _, form, rewrites) in enumerate(switches, 1):
            try:
                after = self._operations(Described(form, rewrites))
            except Unsupported:
                if number == len(switches):
                    raise
                continue
            names, meanings, *_ = zip(*switches[turned:number], strict=True)
            found.append((" and ".join(names), "; ".join(meanings), after))
            turned = number
        return first, found

    def unread(self, sizes: Mapping[str, int]) -> Classes:
        """The operations of the equations on gradients that nothing reads at these sizes, which
        autograd does not compute (`empty_sums.spared`); {} in a phase without gradients."""
        of = self.mixer, self.does.form, self.does.rewrites
        if self.phase not in TRAINING_STEP or not reads_nothing(system_of(*of, "training"), sizes):
            return {}
        found = by_class(spared(system_of(*of, self.phase), self.phase, sizes))
        return {name: n for name, n in classes_at(found, sizes).items() if n}

    def _operations(self, does: Described) -> ByClass:
        """The operations, for b sequences, of the equations that a description executes."""
        return by_class(executed_counts(self.mixer, does, self.phase))

    @cached_property
    def contractions(self) -> Mapping[str, Contracted]:
        """Name of an array -> the operations of the contraction that defines the array."""
        return self._contractions(self.does.rewrites)

    @cached_property
    def masked(self) -> Mapping[str, Contracted]:
        """As `contractions`, with masked pairs counted too."""
        return self._contractions(("dense", *self.does.rewrites))

    def _contractions(self, rewrites: tuple[str, ...]) -> Mapping[str, Contracted]:
        about = answers_about(self.mixer, self.does.form, self.phase, rewrites)
        found = about.of(contracted)
        return {name: Contracted.of(part) for name, part in found.items()}

    @cached_property
    def moved(self) -> Mapping[str, Exact] | str:
        """`compulsory` and `unfused` -> entries moved for b sequences; or why they are unknown."""
        try:
            found = answers_about(self.mixer, self.does.form, self.phase).of(traffic_of)
        except (Unsupported, Unanswered) as error:
            return str(error)
        return {"compulsory": found.compulsory.exact, "unfused": found.unfused.exact}

    @cached_property
    def activations(self) -> Exact | str:
        """The number of entries kept for the backward pass for b sequences, as a formula in the
        sizes; or, as a sentence, why it is unknown."""
        try:
            rewrites = held_rewrites(self.does)
            about = answers_about(self.mixer, self.does.form, self.phase, rewrites)
            found = about.of(activations_of)
            return found.each * BATCH + found.alone
        except (Unsupported, Unanswered) as error:
            return str(error)

    @cached_property
    def live_sets(self) -> tuple[Exact, ...] | str:
        """The elements held at each moment (`live_sets`); or why they are unknown."""
        try:
            return live_sets(self.mixer, self.does, self.phase)
        except (Unsupported, Unanswered) as error:
            return str(error)

    @cached_property
    def system(self) -> System | str:
        """The equations whose arrays tensors hold, or why there are none. They leave out `dense`:
        the arrays' entries are unmasked, so that a dense tensor has more."""
        plain = tuple(name for name in held_rewrites(self.does) if name != "dense")
        try:
            return system_of(self.mixer, self.does.form, plain, self.phase)
        except (Unsupported, Unanswered) as error:
            return str(error)


@dataclass(frozen=True)
class Contracted:
    """The multiplications of a contraction and all its operations, for b sequences."""

    products: Exact
    operations: Exact

    def at(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """(multiplications, operations) at sizes."""
        return self.products.at(sizes), self.operations.at(sizes)

    @staticmethod
    def of(part: Contraction) -> Contracted:
        """The numbers of a contraction."""
        products = part.multiplications * BATCH + part.once_multiplications
        return Contracted(products, products + part.additions * BATCH + part.once_additions)


@lru_cache(maxsize=1024)
def _executed(
    mixer: Mixer,
    implementation: Implementation,
    phase: str,
    backend: str,
    telltale: frozenset[str],
    known: tuple[frozenset[str], ...],
) -> Executed:
    """The `Executed` that all calls of one kind share, with what is derived for it so far.
    `telltale`: the names of operations by which `description_of` knows the rewrites."""
    does = description_of(mixer, implementation, phase, telltale)
    return Executed(mixer, does, phase, backend, known)


def telltale_operations(measurement: Measurement) -> Collection[str]:
    """The names of torch operations that show which rewrites of the equations a module executes:
    without a backward pass all operations; with one, those of the forward pass (`counts["forward"]`
    lists their names) and those named backward, such as `aten::_softmax_backward_data`."""
    dispatched: Collection[str] = measurement.counts.get("dispatch", {}).get("by_op", ())
    if "forward" not in measurement.counts:
        return dispatched
    backward = (name for name in dispatched if "_backward" in name)
    return {*measurement.counts["forward"], *backward}


def recounts(
    executed: Executed, sizes: Mapping[str, int]
) -> tuple[Classes, Classes, tuple[Cause, ...]]:
    """(rung 1, rung 2, causes): the operations by class of the default form as published, those of
    the equations that the module executes, and what makes the difference.

    A switch is one change of form or one rewrite. The switches lead from the default form to
    the executed one, for instance `form=stream`, then `safe-softmax`. The equations are counted
    again after each switch: a cause is the difference from the count before. A switch after which
    the equations cannot be counted forms one cause with the next switch. The last count is rung 2,
    so the causes add up to the whole gap; causes without a difference are left out. In a phase with
    gradients, the cause `unread` takes away the operations on gradients that nothing reads at these
    sizes.

    Raises:
        Unsupported: the equations cannot be counted before the first or after the last switch.
    """
    start, steps = executed.counted
    first = current = classes_at(start, sizes)
    causes: list[Cause] = []
    for name, meaning, counts in steps:
        after = classes_at(counts, sizes)
        if added := class_differences(after, current):
            causes.append(Cause(1, 2, name, added, meaning))
        current = after
    if spare := executed.unread(sizes):
        causes.append(Cause(1, 2, "unread", class_differences({}, spare), UNREAD))
        current = class_differences(current, spare)
    return first, current, tuple(causes)


def predictions(executed: Executed, sizes: Mapping[str, int], total: int) -> dict[str, Prediction]:
    """A dict: name of a peer (another project's operation counter) -> the `Prediction` of the total
    that the peer prints for the call, of which rung 2 has `total` operations. In a phase with
    gradients, or if the description states no kernel class for some contraction, each prediction is
    only a reason. The keys are "torch" and "fvcore"."""
    if executed.phase in TRAINING_STEP:
        of_gradients = "the count of {} for a backward pass is only measured, not derived"
        return {name: Prediction(reason=of_gradients.format(name)) for name in PEERS}
    unnamed = [name for name in executed.contractions if name not in executed.does.kernels]
    if unnamed:
        return dict.fromkeys(PEERS, Prediction(reason=_unpredicted(unnamed, executed.phase)))
    own = {name: part.at(sizes) for name, part in executed.contractions.items()}
    masked = cache(lambda name: executed.masked[name].at(sizes))
    return {
        name: predict(peer, executed, own, masked, total, classes)
        for (name, peer), classes in zip(PEERS.items(), executed.known, strict=True)
    }


def _unpredicted(unnamed: Sequence[str], phase: str) -> str:
    """The message that says why no figure is predicted: the contractions that define the arrays
    `unnamed` have no kernel class, which the module's @implementation would state."""
    where = "step_kernels=" if phase == "inference" else "kernels="
    them = "it" if len(unnamed) == 1 else "them"
    return (
        f"no kernel class for {', '.join(unnamed)}: name {them} in {where} of the module's "
        f"@implementation"
    )


def classes_seen(printed: Mapping[str, Any] | None) -> frozenset[str]:
    """{"fused-attention"} if a peer's printed figures include operations of fused attention, else
    {}. Only some versions of a peer have a formula for this kernel class."""
    names = () if printed is None else printed.get("by_op", ())
    fused = any(nominal(name) == "fused attention" for name in names)
    return frozenset({FUSED_ATTENTION} if fused else ())


def predict(
    peer: Peer,
    executed: Executed,
    contractions: Mapping[str, tuple[int, int]],
    masked: Callable[[str], tuple[int, int]],
    total: int,
    known: Collection[str],
) -> Prediction:
    """Predict the total that a peer (another project's operation counter) prints for the call, by
    the peer's rule for the kernel class of each contraction, with the causes (name, added
    operations).

    Summed, the causes lead from the operations of the executed equations to the figure. Operations
    outside contractions, and contractions of classes that the peer does not count, are subtracted.
    For each other contraction masked pairs are added if the peer counts them, the peer's operations
    per product replace the strict count (19 of 10 products become 20), and the figure is rounded.

    Args:
        contractions, masked: array -> (multiplications, operations) of its contraction at the
            call's sizes, without and with masked pairs.
        total: the operations of rung 2, of all classes.
        known: the classes for which this version of the peer has a formula.
    """
    causes: dict[str, int] = {}

    def add(cause: str, number: int) -> None:
        causes[cause] = causes.get(cause, 0) + number

    inside = predicted = 0
    for name, (products, own) in contractions.items():
        rule = peer.rule(executed.does.kernels[name], executed.backend, known)
        inside += own
        if rule.per_product is None:
            add(rule.meaning, -own)
            continue
        operations = own
        if rule.masked:
            products, operations = masked(name)
            add("masked pairs are counted", operations - own)
        exact = int(products * rule.per_product)
        figure = rule.rounded(exact)
        add(rule.meaning, exact - operations)
        add(f"{peer.name} rounds to {rule.digits} digits", figure - exact)
        predicted += figure
    add("operations outside contractions are not counted", inside - total)
    return Prediction(predicted, tuple((cause, n) for cause, n in causes.items() if n))


def bytes_held(executed: Executed, dtype: str, sizes: Mapping[str, int]) -> dict[str, Held]:
    """A dict with the keys `activations` (kept for the backward pass) and `peak` (the most at one
    time) -> the bytes that the equations hold, and their arrays with shapes, by which tensors are
    named. If bytes or arrays are unknown, they are None with a reason."""
    phase, system = executed.phase, executed.system
    arrays = None if isinstance(system, str) else Arrays(system, sizes)

    def held(elements: Callable[[], int | str], apart: str) -> Held:
        """The bytes of `elements()`, or the reason why they are unknown, and the arrays of the
        equations; `apart` is "" or the reason why the bytes are not compared, which is then all
        that is returned."""
        if apart:
            return Held(reason=apart, compared=False)
        number = elements()
        if isinstance(number, str):
            return Held(reason=number)
        reason = system if isinstance(system, str) else ""
        return Held(number * element_bytes(dtype), arrays, reason)

    def kept() -> int | str:
        found = executed.activations
        return found if isinstance(found, str) else found.at(sizes)

    def most() -> int | str:
        found = executed.live_sets
        return found if isinstance(found, str) else max(moment.at(sizes) for moment in found)

    return {
        "activations": held(kept, "" if phase in TRAINING_STEP else NOTHING_KEPT),
        "peak": held(most, APART.get(phase, "")),
    }
