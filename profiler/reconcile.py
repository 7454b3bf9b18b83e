"""Why does the measurement differ from the theory? A ladder of rungs with a cause for every gap.

Rung 1 counts the equations, rung 2 the algorithm that the implementation is described to execute,
rung 3 is what it dispatched, rung 4 what the hardware executed, rung 5 what it cost. A cause is the
equations counted again under a named switch, never a subtraction of two rungs. Rung 2 is the last
of those re-counts, so the gap 1-2 is exhausted by construction; the gap 2-3 is observed, and what
stands there is unexplained. So is the gap 3-4, whose causes are what was dispatched, counted again
as the chip was seen to execute it (`ladders.hardware`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.composites import PADDINGS, REWRITES
from costmodel.conventions import PEERS, Peer
from costmodel.equations import Mixer
from costmodel.functions import CLASSES
from costmodel.phases import TRAINING_STEP, phase_name, system_of
from costmodel.rules.count import count
from costmodel.rules.counts import CountsAt
from costmodel.rules.peers import contraction_counts, no_backward
from profiler.counters.rules import nominal
from profiler.counters.zeros import MEANING
from profiler.ladders.cost import cost_of
from profiler.ladders.hardware import beyond, hardware, hardware_causes, moved
from profiler.ladders.ladder import EXHAUSTED, Cause, Classes, Ladder, PeerFigure
from profiler.ladders.reconcile_memory import memory
from profiler.modules import Implementation, without_token
from profiler.store import Measurement


@dataclass(frozen=True)
class Described:
    """The equations that an implementation executes in one phase."""

    form: str
    rewrites: tuple[str, ...]
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Array -> kernel class; empty where the description names none."""
    unbound: tuple[str, ...] = ()
    """The parameters whose slices one operation takes."""


OF_AUTOGRAD = ("quotient-gradient", "cases-gradient", "fft-gradient")
"""How torch takes gradients of what is written in operations of its own (derivatives.yaml):
whatever the module, unless a kernel below takes them otherwise."""

OF_KERNELS: Mapping[str, tuple[str, ...]] = {
    "softmax": ("softmax-gradient",),
    "fused-attention": (
        "softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient",
    ),
}  # fmt: skip
"""Kernel class -> how its own backward pass takes the gradient of what it computed; that of fused
attention is Algorithm 2 of Dao 2023, arXiv 2307.08691."""


def gradient_rewrites(kernels: Mapping[str, str], rewrites: Sequence[str]) -> tuple[str, ...]:
    """How the gradients of what these kernels computed are taken, under the rewrites of the
    forward pass: what is dense has zeros in memory."""
    used = set(kernels.values())
    own = [rewrite for kernel in used for rewrite in OF_KERNELS.get(kernel, ())]
    padding = ["padded-rows" if "convolution" in used else "padded"] * ("dense" in rewrites)
    return tuple(name for name in REWRITES if name in (*OF_AUTOGRAD, *own, *padding))


def described(mixer: Mixer, implementation: Implementation, phase: str) -> Described:
    """The description of `forward`, of its backward pass or of `step`."""
    if phase == "inference":
        form, rewrites = implementation.step_form, implementation.step_rewrites
        kernels = implementation.step_kernels
    else:
        form, rewrites = implementation.form, implementation.rewrites
        kernels = implementation.kernels
    if form is None:
        raise ValueError(
            f"{mixer.name} {implementation.name} mixes no new token: "
            f"{without_token(mixer, implementation)}"
        )
    if phase == "inference":  # "dense" widens sums over a whole sequence
        rewrites = tuple(r for r in rewrites if r != "dense")
    if phase in TRAINING_STEP:
        rewrites = (*rewrites, *gradient_rewrites(kernels or {}, rewrites))
    rewrites = tuple(r for r in REWRITES if r in rewrites)
    return Described(form, rewrites, kernels or {}, implementation.unbound)


def classes(counts: CountsAt) -> Classes:
    """Operations per class with the work done once, zero classes kept only where papers have a
    column."""
    found = counts.by_class()
    for name, number in (counts.once.by_class() if counts.once else {}).items():
        found[name] = found.get(name, 0) + number
    return {name: n for name, n in found.items() if n or name in ("mul", "add", "div", "exp")}


def difference(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    return {n: d for n in names if (d := larger.get(n, 0) - smaller.get(n, 0))}


def executed(mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]) -> Classes:
    """Rung 2: the equations counted as the implementation is described to execute them."""
    return classes(count(mixer, phase, does.form, ("strict", *does.rewrites)).at(**sizes))


def steps(
    mixer: Mixer, form: str, rewrites: Sequence[str]
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """The switches that lead from the default form to a description: name, meaning, and the form
    and rewrites with which the equations are counted again."""
    if form != mixer.default_form:
        meaning = f"form '{form}' computes the same function by other equations"
        yield f"form={form}", meaning, form, ()
    for k, rewrite in enumerate(rewrites):
        yield rewrite, REWRITES[rewrite], form, tuple(rewrites[: k + 1])


def held_steps(mixer: Mixer, does: Described) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The switches that change what is held; zeros around arrays are measured, as copies."""
    rewrites = [name for name in does.rewrites if name not in PADDINGS]
    return list(steps(mixer, does.form, rewrites))


def recounts(
    mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]
) -> tuple[Classes, Classes, tuple[Cause, ...]]:
    """Rung 1, rung 2, and the causes between them: one switch is turned at a time.

    The last re-count is rung 2, so that nothing is left between the causes and it.
    """
    first = current = executed(mixer, Described(mixer.default_form, ()), phase, sizes)
    causes: list[Cause] = []
    for name, meaning, form, rewrites in steps(mixer, does.form, does.rewrites):
        after = executed(mixer, Described(form, rewrites), phase, sizes)
        causes.append(Cause(1, 2, name, difference(after, current), meaning))
        current = after
    return first, current, tuple(c for c in causes if c.counts)


def dispatched_classes(operations: Mapping[str, Any]) -> Classes:
    """Rung 3 by class, from what the counter of dispatched operations printed."""
    return {k: operations[k] for k in CLASSES} | dict(operations["other"])


def ladder(measurement: Measurement, mixer: Mixer, implementation: Implementation) -> Ladder:
    """Reconcile one measurement with the mixer's equations.

    Raises:
        ValueError: the record holds no counts of dispatched operations.
    """
    phase = phase_name(measurement.phase)
    wanted = {*mixer.letters, "b"} | ({"t"} if phase == "inference" else set())
    sizes = {k: v for k, v in measurement.sizes.items() if k in wanted}
    does = described(mixer, implementation, phase)
    first, second, causes = recounts(mixer, does, phase, sizes)
    if "dispatch" not in measurement.counts:
        raise ValueError(f"record {measurement.id} holds no dispatched operations")
    dispatch = measurement.counts["dispatch"]
    third = dispatched_classes(dispatch["operations"])
    causes = (*causes, *zeros(measurement))
    cost, why = cost_of(measurement, mixer, does.form, sum(third.values()))
    fourth = hardware(measurement)
    counts = None if fourth is None else fourth.counts
    executing = hardware_causes(measurement)
    explained = {
        gap: sum_classes(cause.counts for cause in causes if cause.start == gap) for gap in (1, 2)
    }
    return Ladder(
        mixer=mixer.origin,
        implementation=implementation.name,
        form=does.form,
        phase=phase,
        sizes=sizes,
        dtype=measurement.dtype,
        device=measurement.device,
        rungs={"1": first, "2": second, "3": third, "4": counts, "5": cost},
        causes=(*causes, *executing),
        unexplained={
            "1-2": difference(difference(second, first), explained[1]),
            "2-3": difference(difference(third, second), explained[2]),
        }
        | ({} if fourth is None else {"3-4": beyond(third, fourth, executing)}),
        peers=tuple(
            peer_figure(peer, measurement, mixer, does, phase, sizes) for peer in PEERS.values()
        ),
        reasons={"1-2": EXHAUSTED} | unobserved(measurement) | why,
        uncounted=tuple(dispatch["unknown"]),
        memory=memory(
            measurement,
            mixer,
            held_steps(mixer, does),
            phase,
            does.kernels,
            does.rewrites,
            does.unbound,
        )
        | moved(measurement, mixer, does.form),
        hardware=fourth,
    )


def zeros(measurement: Measurement) -> tuple[Cause, ...]:
    """What the backward pass did with zeros that stand for no gradient, counted again without."""
    counted = measurement.counts.get("zeros")
    found = difference(dispatched_classes(counted), {}) if counted else {}
    return (Cause(2, 3, "zeros", found, MEANING),) if found else ()


def unobserved(measurement: Measurement) -> dict[str, str]:
    """What of rungs 3 and 4 was not seen to happen, by rung."""
    dispatch, said = measurement.counts["dispatch"], []
    if dispatch["unknown"]:
        listed = ", ".join(f"{k} ({v['calls']} calls)" for k, v in dispatch["unknown"].items())
        said.append(f"incomplete: no counting rule for {listed}")
    counted = [name for name in dispatch["by_op"] if name not in dispatch["unknown"]]
    if kinds := dict.fromkeys(filter(None, map(nominal, counted))):
        what = " and ".join(kinds)
        said.append(f"nominal for {what}: counted by documented arithmetic, not observed")
    third = {"3": "; ".join(said)} if said else {}
    return third | untold(measurement)


def untold(measurement: Measurement) -> dict[str, str]:
    """Why rung 4 is missing, or which of its classes are."""
    fourth = hardware(measurement)
    if fourth is None:
        nothing = "the record says nothing of hardware counters"
        return {"4": measurement.reasons.get("hardware", nothing)}
    classes: dict[str, list[str]] = {}
    for name, why in fourth.untold.items():
        classes.setdefault(why, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in classes.items())
    return {"4": said} if said else {}


def sum_classes(parts: Iterable[Classes]) -> Classes:
    """Per-class sums."""
    total: Classes = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def peer_figure(
    peer: Peer,
    measurement: Measurement,
    mixer: Mixer,
    does: Described,
    phase: str,
    sizes: Mapping[str, int],
) -> PeerFigure:
    """A peer's predicted and printed figure, and the causes of what lies between."""
    printed = measurement.counts.get("peers", {}).get(peer.name)
    predicted: int | None = None
    causes: list[tuple[str, int]] = []
    reasons: dict[str, str] = {}
    if phase in TRAINING_STEP:
        reasons["predicted"] = reasons["unexplained"] = no_backward(peer.name)
    elif unnamed := without_kernel(mixer, does, phase):
        reasons["predicted"] = reasons["unexplained"] = _unpredicted(unnamed, phase)
    else:
        backend = measurement.device.split(":")[0]
        known = classes_seen(printed)
        predicted, causes = predict(peer, backend, mixer, does, phase, sizes, known)
    if printed is None:
        why = measurement.reasons.get(f"peer {peer.name}", f"{peer.name} was not asked")
        reasons |= dict.fromkeys(("printed", "unexplained", "uncounted_time_share"), why)
    elif printed["uncounted_time_share"] is None:
        reasons["uncounted_time_share"] = "the time of single operations was not measured"
    return PeerFigure(
        name=peer.name,
        predicted=predicted,
        printed=None if printed is None else printed["total"],
        unit="flop" if peer.additions else "mac",
        causes=merged(causes),
        uncounted={} if printed is None else printed["uncounted"],
        uncounted_time_share=None if printed is None else printed["uncounted_time_share"],
        reasons=reasons,
    )


def without_kernel(mixer: Mixer, does: Described, phase: str) -> list[str]:
    """The equations with a contraction for which the description names no kernel class."""
    system = system_of(mixer, does.form, does.rewrites, phase)
    return [name for name in contraction_counts(system, phase) if name not in does.kernels]


def _unpredicted(unnamed: Sequence[str], phase: str) -> str:
    where = "step_kernels=" if phase == "inference" else "kernels="
    them = "it" if len(unnamed) == 1 else "them"
    return (
        f"no kernel class for {', '.join(unnamed)}: name {them} in {where} of the module's "
        f"@implementation"
    )


def classes_seen(printed: Mapping[str, Any] | None) -> frozenset[str]:
    """Kernel classes that a peer printed a figure for in some operation of their own, which its
    other versions may have no formula for."""
    names = () if printed is None else printed.get("by_op", ())
    fused = any(nominal(name) == "fused attention" for name in names)
    return frozenset({"fused-attention"} if fused else ())


def predict(
    peer: Peer,
    backend: str,
    mixer: Mixer,
    does: Described,
    phase: str,
    sizes: Mapping[str, int],
    known: Collection[str] = (),
) -> tuple[int, list[tuple[str, int]]]:
    """A peer's figure from kernel classes, with the steps that lead to it from rung 2's total;
    `known` are the classes that this version of it was seen to have a formula for."""
    system = system_of(mixer, does.form, does.rewrites, phase)
    total = sum(executed(mixer, does, phase, sizes).values())
    causes: list[tuple[str, int]] = []
    inside = predicted = 0
    for name, part in contraction_counts(system, phase).items():
        rule = peer.rule(does.kernels[name], backend, known)
        own = part.operations(sizes)
        inside += own
        if rule.per_product is None:
            causes.append((rule.meaning, -own))
            continue
        seen = part
        if rule.masked:
            wide = system_of(mixer, does.form, ("dense", *does.rewrites), phase)
            seen = contraction_counts(wide, phase)[name]
            causes.append(("masked pairs are counted", seen.operations(sizes) - own))
        exact = int(seen.products(sizes) * rule.per_product)
        figure = rule.rounded(exact)
        causes.append((rule.meaning, exact - seen.operations(sizes)))
        causes.append((f"{peer.name} rounds to {rule.digits} digits", figure - exact))
        predicted += figure
    causes.append(("operations outside contractions are not counted", inside - total))
    return predicted, causes


def merged(causes: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Equal names added up, zeros dropped."""
    total: dict[str, int] = {}
    for name, number in causes:
        total[name] = total.get(name, 0) + number
    return tuple((name, number) for name, number in total.items() if number)
