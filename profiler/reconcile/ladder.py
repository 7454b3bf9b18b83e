"""Why does the measurement differ from the theory? A ladder of rungs with a cause for every gap.

Rung 1 counts the equations, rung 2 the algorithm that the implementation is described to execute,
rung 3 is what it dispatched, rung 4 what the hardware executed, rung 5 what it cost. A cause is the
equations counted again under a named switch, never a subtraction of two rungs. Rung 2 is the last
of those re-counts, so the gap 1-2 is exhausted by construction; the gap 2-3 is observed, and what
stands there is unexplained. So is the gap 3-4, whose causes are what was dispatched, counted again
as the chip was seen to execute it (`reconcile.hardware`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import fit
from costmodel.program.conventions import PEERS, Peer
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.counting.peers import contraction_counts
from costmodel.questions.subject import system_of
from profiler.counting.operations import Classes
from profiler.counting.rules import nominal, nominal_words
from profiler.counting.zero_gradients import MEANING
from profiler.hardware.result import hardware_level
from profiler.modules.described import (
    Described,
    class_differences,
    description_of,
    dispatched_classes,
    executed_classes,
    sum_classes,
    switches_to,
)
from profiler.modules.registry import Implementation
from profiler.reconcile.cost import cost_of
from profiler.reconcile.hardware import beyond, hardware_causes, moved
from profiler.reconcile.levels import EXHAUSTED, Cause, Ladder, PeerFigure
from profiler.reconcile.memory import memory
from profiler.records.measurement import REASON, Measurement
from profiler.run.caveats import no_quiet_time
from profiler.run.plan import candidate_in_record


def recounts(
    mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]
) -> tuple[Classes, Classes, tuple[Cause, ...]]:
    """Rung 1, rung 2, and the causes between them: one switch is turned at a time, or several
    together where the equations cannot be counted between them.

    The last re-count is rung 2, so that nothing is left between the causes and it.
    """
    first = current = executed_classes(mixer, Described(mixer.default_form, ()), phase, sizes)
    causes: list[Cause] = []
    switches, turned = [*switches_to(mixer, does.form, does.rewrites)], 0
    for number, (_, _, form, rewrites) in enumerate(switches, 1):
        try:
            after = executed_classes(mixer, Described(form, rewrites), phase, sizes)
        except Unsupported:
            if number == len(switches):
                raise
            continue
        names, meanings, *_ = zip(*switches[turned:number], strict=True)
        counts = class_differences(after, current)
        causes.append(Cause(1, 2, " and ".join(names), counts, "; ".join(meanings)))
        current, turned = after, number
    return first, current, tuple(c for c in causes if c.counts)


def zeros(measurement: Measurement) -> tuple[Cause, ...]:
    """What the backward pass did with zeros that stand for no gradient, counted again without."""
    counted = measurement.counts.get("zeros")
    found = class_differences(dispatched_classes(counted), {}) if counted else {}
    return (Cause(2, 3, "zeros", found, MEANING),) if found else ()


def telling(measurement: Measurement) -> Collection[str]:
    """The dispatched operations that tell what a module executes: those of its forward pass, and
    the kernels of its backward pass."""
    dispatched: Collection[str] = measurement.counts["dispatch"]["by_op"]
    if "forward" not in measurement.counts:
        return dispatched
    kernels = (name for name in dispatched if "_backward" in name)
    return {*measurement.counts["forward"], *kernels}


def ladder(measurement: Measurement, mixer: Mixer, implementation: Implementation) -> Ladder:
    """Reconcile one measurement with the mixer's equations.

    Raises:
        ValueError: the record holds no counts of dispatched operations.
    """
    phase = phase_name(measurement.phase)
    wanted = {*mixer.letters, "b"} | ({"t"} if phase == "inference" else set())
    sizes = {k: v for k, v in measurement.sizes.items() if k in wanted}
    if "dispatch" not in measurement.counts:
        raise ValueError("it holds no dispatched operations")
    dispatch = measurement.counts["dispatch"]
    does = description_of(mixer, implementation, phase, telling(measurement))
    first, second, causes = recounts(mixer, does, phase, sizes)
    third = dispatched_classes(dispatch["operations"])
    causes = (*causes, *zeros(measurement))
    cost, why = cost_of(measurement, mixer, does.form, sum(third.values()))
    fourth = hardware_level(measurement)
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
            "1-2": class_differences(class_differences(second, first), explained[1]),
            "2-3": class_differences(class_differences(third, second), explained[2]),
        }
        | ({} if fourth is None else {"3-4": beyond(third, fourth, executing)}),
        peers=tuple(
            peer_figure(peer, measurement, mixer, does, phase, sizes) for peer in PEERS.values()
        ),
        reasons={"1-2": EXHAUSTED} | unobserved(measurement) | why,
        uncounted=tuple(dispatch["unknown"]),
        memory={
            **memory(measurement, mixer, does, phase),
            **moved(measurement, mixer, does.form),
        },
        hardware=fourth,
    )


def unobserved(measurement: Measurement) -> dict[str, str]:
    """What of rungs 3 and 4 was not seen to happen, by rung."""
    dispatch, said = measurement.counts["dispatch"], []
    if dispatch["unknown"]:
        listed = ", ".join(f"{k} ({v['calls']} calls)" for k, v in dispatch["unknown"].items())
        said.append(f"incomplete: no counting rule for {listed}")
    counted = [name for name in dispatch["by_op"] if name not in dispatch["unknown"]]
    said += filter(None, [nominal_words(counted)])
    third = {"3": "; ".join(said)} if said else {}
    return third | untold(measurement)


def untold(measurement: Measurement) -> dict[str, str]:
    """Why rung 4 is missing, or which of its classes are."""
    fourth = hardware_level(measurement)
    if fourth is None:
        nothing = "the record says nothing of hardware counters"
        return {"4": measurement.reasons.get("hardware", nothing)}
    classes: dict[str, list[str]] = {}
    for name, why in fourth.untold.items():
        classes.setdefault(why, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in classes.items())
    return {"4": said} if said else {}


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
    share = None if printed is None else printed["uncounted_time_share"]
    if phase in TRAINING_STEP:
        reasons["predicted"] = reasons["unexplained"] = (
            f"what {peer.name} counts of a backward pass is measured, not derived"
        )
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
    elif why := no_quiet_time(measurement):
        share, reasons["uncounted_time_share"] = None, why
    return PeerFigure(
        name=peer.name,
        predicted=predicted,
        printed=None if printed is None else printed["total"],
        unit="flop" if peer.additions else "mac",
        causes=merged(causes),
        uncounted={} if printed is None else printed["uncounted"],
        uncounted_time_share=share,
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
    total = sum(executed_classes(mixer, does, phase, sizes).values())
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


def ladders(measurements: Sequence[Measurement]) -> tuple[list[Ladder], list[str]]:
    """The ladder of every record whose mixer and implementation are known; sentences for the
    others."""
    found: list[Ladder] = []
    problems: dict[tuple[str, str], list[str]] = {}

    def tell(record: Measurement, said: str) -> None:
        problems.setdefault((record.mixer, said), []).append(record.id[:8])

    for record in measurements:
        if record.failure and "dispatch" not in record.counts:  # more than its latency is missing
            tell(record, f" keeps a failure: {record.reasons.get(REASON, 'unknown')}")
            continue
        try:
            names = (record.mixer, record.implementation, record.form)
            mixer, implementation = candidate_in_record(*names)
            fit(mixer, record.sizes)
            found.append(ladder(record, mixer, implementation))
        except ValueError as error:
            tell(record, f": {error}")
        except KeyError as error:  # counts are read as they stand
            tell(record, f" lacks {error}, which every measurement of schema 1 has")
    return found, [
        f"record {ids[0]} ({mixer}){f' and {len(ids) - 1:,} more' if ids[1:] else ''}{said}"
        for (mixer, said), ids in problems.items()
    ]
