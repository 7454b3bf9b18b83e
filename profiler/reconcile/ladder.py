"""Reconciles a measurement with the equations: a *ladder* of rungs, with causes for each gap.

A *rung* is one count of the operations of a call. Rung 1 counts the equations; rung 2 the algorithm
of the implementation's description (`reconcile.derived` asks for both); rung 3 the dispatched
operations; rung 4 the operations that the hardware executed; rung 5 is time, memory and energy.
The *gap* 1-2 is the difference between rungs 1 and 2. A *cause* of a gap is a re-count under a
named switch, never a subtraction of two rungs: `dense`, for instance, counts masked pairs too.
Rung 2 is the last re-count of the equations, so its causes explain the gap 1-2 by construction.
The gaps 2-3 and 3-4 are observed, and may have an unexplained rest; the causes of 3-4 re-count the
dispatched operations (`reconcile.hardware`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.prediction.boards import Board
from costmodel.program.chosen_sizes import fit
from costmodel.program.conventions import PEERS, Peer
from costmodel.program.phases import TRAINING_STEP
from profiler.counting.operations import CONSTANTS, ZERO_GRADIENTS, Classes
from profiler.counting.rules import nominal_words
from profiler.hardware.result import hardware_level
from profiler.modules.described import (
    class_differences,
    dispatched_classes,
    dispatched_gap,
    sum_classes,
)
from profiler.modules.registry import Implementation
from profiler.reconcile.cost import cost_of
from profiler.reconcile.derived import Prediction, derived
from profiler.reconcile.hardware import hardware_causes, moved, unexplained_by_class
from profiler.reconcile.levels import EXHAUSTED, Cause, Ladder, PeerFigure
from profiler.reconcile.memory import memory
from profiler.reconcile.predicted import predicted_s
from profiler.records.measurement import REASON, Measurement
from profiler.run.caveats import no_quiet_time
from profiler.run.in_record import candidate_in_record
from profiler.run.lower_bounds import limits_on


def dispatch_causes(measurement: Measurement, second: Classes) -> tuple[Cause, ...]:
    """The causes of the gap 2-3; `second` is rung 2. `zeros`: the backward pass computed with zeros
    in place of absent gradients. `constants`: the operations on constants of the sizes, such as
    torch.arange makes, that the description leaves out (`dispatched_gap`); older records count
    none. A cause without operations is left out."""
    dispatch, counted = measurement.counts["dispatch"], measurement.counts.get("zeros")
    zeros = class_differences(dispatched_classes(counted), {}) if counted else {}
    constants = sum_classes(map(dispatched_classes, dispatch.get("constants", {}).values()))
    found = class_differences(dispatched_classes(dispatch["operations"]), zeros)
    _, beside = dispatched_gap((found, constants), second)
    named = (("zeros", zeros, ZERO_GRADIENTS), ("constants", beside, CONSTANTS))
    return tuple(Cause(2, 3, name, n, meaning) for name, n, meaning in named if n)


@cache
def remedy(mixer: Mixer, implementation: Implementation, phase: str) -> str:
    """The sentence of `check` that other rewrites of @implementation explain what forward (of the
    phase "inference": forward and step) dispatches beyond the description; "" if none does, or the
    description is right, or torch is not installed."""
    try:
        from profiler.proofs.remedies import rewrites_meant
    except ModuleNotFoundError:
        return ""
    said = rewrites_meant(mixer, implementation, step=phase == "inference").removeprefix("; ")
    own = f"rewrites={implementation.rewrites} "
    if not said.endswith("explains the whole difference") or said.startswith(own):
        return ""
    return f"{said} of the forward pass" if phase in TRAINING_STEP else said


def ladder(
    measurement: Measurement,
    mixer: Mixer,
    implementation: Implementation,
    on: Board | None = None,
    *,
    advise: bool = True,
) -> Ladder:
    """Reconcile one measurement with the mixer's equations: five views of one call (rungs), and why
    neighbouring views differ. Rungs 1 to 4 are numbers of operations by class: of the equations as
    published (1), as the implementation evaluates them (2), of the operations that torch dispatched
    (3), and as the hardware executed (4, None without hardware counters). Rung 5 is the measured
    time (s), memory (bytes) and energy (J), and the least and the predicted time (s) on the board
    `on`. `unexplained` is what no named cause explains; `peers` are other projects' counters;
    `reasons` say why a figure is missing. With `advise`, the module runs at small sizes to find
    rewrites that explain an unexplained rest. ValueError: no dispatched operations were counted."""
    if "dispatch" not in measurement.counts:
        raise ValueError(f"torch operations were not counted: run costmodel reconcile {mixer.name}")
    theory, dispatch = derived(measurement, mixer, implementation), measurement.counts["dispatch"]
    third = dispatched_classes(dispatch["operations"])
    causes = (*theory.causes, *dispatch_causes(measurement, theory.second))
    limits: Mapping[str, float] | str
    try:
        limits = limits_on(measurement, mixer, theory.form, on)
    except (Unanswered, Unsupported) as reason:
        limits = str(reason)
    cost, why = cost_of(measurement, theory, sum(third.values()), limits)
    cost["predicted_s"] = None
    try:
        cost["predicted_s"] = predicted_s(dispatch, measurement.dtype, on, measurement.compiled)
    except Unanswered as reason:
        why["predicted_s"] = str(reason)
    fourth = hardware_level(measurement)
    executing = hardware_causes(measurement)
    explained = {
        gap: sum_classes(cause.counts for cause in causes if cause.start == gap) for gap in (1, 2)
    }
    first, second = theory.first, theory.second
    rest = class_differences(class_differences(third, second), explained[2])
    advise = advise and bool(rest) and not dispatch["unknown"]
    if advise and (said := remedy(mixer, implementation, theory.phase)):
        why = {"2-3": said, **why}
    return Ladder(
        mixer=mixer.origin,
        implementation=implementation.name,
        form=theory.form,
        phase=theory.phase,
        sizes=theory.sizes,
        dtype=measurement.dtype,
        device=measurement.device,
        rungs={
            "1": first,
            "2": second,
            "3": third,
            "4": None if fourth is None else fourth.counts,
            "5": cost,
        },
        causes=(*causes, *executing),
        unexplained={
            "1-2": class_differences(class_differences(second, first), explained[1]),
            "2-3": rest,
        }
        | ({} if fourth is None else {"3-4": unexplained_by_class(third, fourth, executing)}),
        peers=tuple(
            peer_figure(peer, measurement, theory.peers[name]) for name, peer in PEERS.items()
        ),
        reasons={"1-2": EXHAUSTED} | unobserved(measurement) | why,
        uncounted=tuple(dispatch["unknown"]),
        memory={**memory(measurement, theory), **moved(measurement, theory.moved)},
        hardware=fourth,
    )


def unobserved(measurement: Measurement) -> dict[str, str]:
    """A dict of sentences: what the counts of dispatched operations (key "3") and of operations
    that the hardware executed ("4") leave out or do not observe; a count that observed all
    operations has no key.

    "3": dispatched operations without a counting rule, and operations counted by an algorithm that
    their kernel may not run. "4": the hardware's counts, or some class of operations, are missing.
    """
    dispatch, said = measurement.counts["dispatch"], []
    if dispatch["unknown"]:
        listed = ", ".join(f"{k} ({v['calls']} calls)" for k, v in dispatch["unknown"].items())
        said.append(f"incomplete: no counting rule for {listed}")
    counted = [name for name in dispatch["by_op"] if name not in dispatch["unknown"]]
    said += filter(None, [nominal_words(counted)])
    third = {"3": "; ".join(said)} if said else {}
    return third | unread_classes(measurement)


def unread_classes(measurement: Measurement) -> dict[str, str]:
    """{"4": a sentence on why the number of executed operations of some class is unknown}, or why
    no hardware counters were read; {} if every class is known."""
    fourth = hardware_level(measurement)
    if fourth is None:
        nothing = "the record holds no hardware counters"
        return {"4": measurement.reasons.get("hardware", nothing)}
    classes: dict[str, list[str]] = {}
    for name, why in fourth.untold.items():
        classes.setdefault(why, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in classes.items())
    return {"4": said} if said else {}


def peer_figure(peer: Peer, measurement: Measurement, predicted: Prediction) -> PeerFigure:
    """What another project's operation counter (a peer: torch's FlopCounterMode, or fvcore) printed
    for the call, beside the equations' prediction of this figure with the causes that lead to the
    prediction from rung 2. `reasons` say why a figure is None, also `unexplained`, printed less
    predicted. Unit: `flop` if the peer counts additions, else `mac`. The share of the time in
    operations that the peer does not count is None if the peer printed nothing, if single
    operations were not timed, or if the call's latency is missing or was disturbed."""
    printed = measurement.counts.get("peers", {}).get(peer.name)
    reasons = dict.fromkeys(("predicted", "unexplained"), predicted.reason)
    reasons = {name: why for name, why in reasons.items() if why}
    share = None if printed is None else printed["uncounted_time_share"]
    if printed is None:
        why = measurement.reasons.get(f"peer {peer.name}", f"{peer.name} was not asked")
        reasons |= dict.fromkeys(("printed", "unexplained", "uncounted_time_share"), why)
    elif share is None:
        reasons["uncounted_time_share"] = "the time of single operations was not measured"
    elif why := no_quiet_time(measurement):
        share, reasons["uncounted_time_share"] = None, why
    return PeerFigure(
        name=peer.name,
        predicted=predicted.figure,
        printed=None if printed is None else printed["total"],
        unit="flop" if peer.additions else "mac",
        causes=predicted.causes,
        uncounted={} if printed is None else printed["uncounted"],
        uncounted_time_share=share,
        reasons=reasons,
    )


def ladders(
    measurements: Iterable[Measurement], on: Board | None = None, *, advise: bool = False
) -> tuple[list[Ladder], list[str]]:
    """The ladders (a record's operations by equations, torch and hardware, and its cost, with the
    least time on the board `on`) of the records that can be reconciled, and a sentence for each
    problem. `advise` looks for rewrites that explain what is unexplained: it takes seconds for each
    module, which must be the one that was measured.

    No error is raised: a problem is a record of a failure before any count, that names a mixer or
    implementation that does not exist, has sizes that its mixer refuses, or lacks a count. Records
    of one mixer with one problem share a sentence.
    """
    found: list[Ladder] = []
    problems: dict[tuple[str, str], list[str]] = {}
    candidate = cache(candidate_in_record)  # thousands of records are of few candidates

    def note_problem(record: Measurement, said: str) -> None:
        problems.setdefault((record.mixer, said), []).append(record.id[:8])

    for record in measurements:
        if record.failure and "dispatch" not in record.counts:  # with counts, only time is missing
            note_problem(record, f" keeps a failure: {record.reasons.get(REASON, 'unknown')}")
            continue
        try:
            names = (record.mixer, record.implementation, record.form)
            mixer, implementation = candidate(*names)
            fit(mixer, record.sizes)
            found.append(ladder(record, mixer, implementation, on, advise=advise))
        except ValueError as error:
            note_problem(record, f": {error}")
        except KeyError as error:  # counts are read without a check that each key is present
            note_problem(record, f" lacks {error}, which every measurement of schema 1 has")
    return found, [
        f"record {ids[0]} ({mixer}){said}{f' (and {len(ids) - 1:,} more)' if ids[1:] else ''}"
        for (mixer, said), ids in problems.items()
    ]
