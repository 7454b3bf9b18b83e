"""Why does the measurement differ from the theory? A ladder of rungs with a cause for every gap.

Rung 1 counts the equations, rung 2 the algorithm that the implementation is described to execute,
rung 3 is what it dispatched, rung 4 what the hardware executed, rung 5 what it cost. A cause is the
equations counted again under a named switch, never a subtraction of two rungs; what no cause
explains is printed as unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.composites import REWRITES
from costmodel.conventions import PEERS, Peer
from costmodel.equations import Mixer
from costmodel.rules.count import count
from costmodel.rules.counts import CountsAt
from costmodel.rules.peers import contraction_counts
from costmodel.rules.traffic import traffic
from costmodel.tokens import phase_name, system_of
from profiler.modules import Implementation
from profiler.store import Measurement

Classes = dict[str, int]
MOSTLY_IDLE = 0.5
"""A call whose launches alone take this part of its time leaves the device mostly idle."""


@dataclass(frozen=True)
class Cause:
    """A named re-count: `counts` is what the switch adds, per class."""

    start: int
    end: int
    name: str
    counts: Classes
    meaning: str = ""

    def to_json(self) -> dict[str, Any]:
        """from, to, name, counts, meaning."""
        return {
            "from": self.start,
            "to": self.end,
            "name": self.name,
            "counts": self.counts,
            "meaning": self.meaning,
        }


@dataclass(frozen=True)
class PeerFigure:
    """What a peer was predicted to print, what it printed, and why it is not rung 3's total.

    No prediction where the implementation does not say which kernel carries each equation.
    """

    name: str
    predicted: int | None
    printed: int | None
    unit: str
    causes: tuple[tuple[str, int], ...]
    """From rung 2's total to the prediction: re-counts, in operations."""
    uncounted: Mapping[str, int] = field(default_factory=dict)
    uncounted_time_share: float | None = None
    reason: str = ""

    @property
    def unexplained(self) -> int | None:
        """printed - predicted."""
        if self.printed is None or self.predicted is None:
            return None
        return self.printed - self.predicted

    def to_json(self) -> dict[str, Any]:
        """The fields, with causes as objects."""
        return {
            "name": self.name,
            "predicted": self.predicted,
            "printed": self.printed,
            "unit": self.unit,
            "causes": [{"name": name, "counts": {"total": n}} for name, n in self.causes],
            "unexplained": self.unexplained,
            "uncounted": dict(self.uncounted),
            "uncounted_time_share": self.uncounted_time_share,
            "reason": self.reason or None,
        }


@dataclass(frozen=True)
class Ladder:
    """Theory and measurement of one implementation, rung by rung."""

    mixer: str
    implementation: str
    form: str
    phase: str
    sizes: Mapping[str, int]
    dtype: str
    device: str
    rungs: Mapping[str, Any]
    causes: tuple[Cause, ...]
    unexplained: Mapping[str, Classes]
    peers: tuple[PeerFigure, ...]
    reasons: Mapping[str, str]

    @property
    def explained(self) -> bool:
        """Whether nothing is unexplained on rungs 1 to 3, and every peer printed its prediction."""
        gaps = any(self.unexplained.values())
        return not gaps and not any(peer.unexplained for peer in self.peers)

    def to_json(self) -> dict[str, Any]:
        """The ladder as DESIGN's schema 1 prints it."""
        return {
            "mixer": self.mixer,
            "implementation": self.implementation,
            "form": self.form,
            "phase": self.phase,
            "sizes": dict(self.sizes),
            "dtype": self.dtype,
            "device": self.device,
            "rungs": dict(self.rungs),
            "causes": [cause.to_json() for cause in self.causes],
            "unexplained": {gap: dict(counts) for gap, counts in self.unexplained.items()},
            "peers": [peer.to_json() for peer in self.peers],
            "reasons": dict(self.reasons),
        }


@dataclass(frozen=True)
class Described:
    """The equations that an implementation executes in one phase."""

    form: str
    rewrites: tuple[str, ...]
    kernels: Mapping[str, str] | None


def described(mixer: Mixer, implementation: Implementation, phase: str) -> Described:
    """The description of `forward` or of `step`."""
    if phase == "inference":
        form, rewrites = implementation.step_form, implementation.step_rewrites
        kernels = implementation.step_kernels
    else:
        form, rewrites = implementation.form, implementation.rewrites
        kernels = implementation.kernels
    if form is None:
        raise ValueError(f"{mixer.name} {implementation.name} has no `step`")
    rewrites = tuple(r for r in REWRITES if r in rewrites)
    return Described(form, rewrites, kernels)


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


def recounts(
    mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]
) -> tuple[Classes, Classes, tuple[Cause, ...]]:
    """Rung 1, rung 2, and the causes between them: one switch is turned at a time."""

    def counted(form: str, rewrites: tuple[str, ...]) -> Classes:
        return classes(count(mixer, phase, form, ("strict", *rewrites)).at(**sizes))

    first = current = counted(mixer.default_form, ())
    causes: list[Cause] = []
    switches: list[tuple[str, str, str, tuple[str, ...]]] = []
    if does.form != mixer.default_form:
        meaning = f"form '{does.form}' computes the same function by other equations"
        switches.append((f"form={does.form}", meaning, does.form, ()))
    for k, rewrite in enumerate(does.rewrites):
        if rewrite == "dense" and phase == "inference":
            continue
        switches.append((rewrite, REWRITES[rewrite], does.form, does.rewrites[: k + 1]))
    for name, meaning, form, rewrites in switches:
        after = counted(form, rewrites)
        causes.append(Cause(1, 2, name, difference(after, current), meaning))
        current = after
    return first, current, tuple(c for c in causes if c.counts)


def dispatched_classes(dispatch: Mapping[str, Any]) -> Classes:
    """Rung 3 in the classes of a table's row."""
    operations = dispatch["operations"]
    return {k: operations[k] for k in ("mul", "add", "div", "exp")} | dict(operations["other"])


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
    third = dispatched_classes(dispatch)
    reasons = dict(measurement.reasons)
    if dispatch["unknown"]:
        listed = ", ".join(f"{k} ({v['calls']} calls)" for k, v in dispatch["unknown"].items())
        reasons["3"] = f"incomplete: no counting rule for {listed}"
    reasons["4"] = reasons.get("hardware", "the record says nothing of hardware counters")
    cost, why = fifth(measurement, mixer, does, phase, third)
    explained = sum_classes(cause.counts for cause in causes)
    return Ladder(
        mixer=mixer.origin,
        implementation=implementation.name,
        form=does.form,
        phase=phase,
        sizes=sizes,
        dtype=measurement.dtype,
        device=measurement.device,
        rungs={"1": first, "2": second, "3": third, "4": None, "5": cost},
        causes=causes,
        unexplained={
            "1-2": difference(difference(second, first), explained),
            "2-3": difference(third, second),
        },
        peers=tuple(
            peer_figure(peer, measurement, mixer, does, phase, sizes) for peer in PEERS.values()
        ),
        reasons=reasons | why,
    )


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
    reason = measurement.reasons.get(f"peer {peer.name}", "") if printed is None else ""
    predicted: int | None = None
    causes: list[tuple[str, int]] = []
    if does.kernels is None:
        reason = reason or "the implementation does not say which kernel carries each equation"
    else:
        backend = measurement.device.split(":")[0]
        predicted, causes = predict(peer, backend, mixer, does, does.kernels, phase, sizes)
    return PeerFigure(
        name=peer.name,
        predicted=predicted,
        printed=None if printed is None else printed["total"],
        unit="flop" if peer.additions else "mac",
        causes=merged(causes),
        uncounted={} if printed is None else printed["uncounted"],
        uncounted_time_share=None if printed is None else printed["uncounted_time_share"],
        reason=reason,
    )


def predict(
    peer: Peer,
    backend: str,
    mixer: Mixer,
    does: Described,
    kernels: Mapping[str, str],
    phase: str,
    sizes: Mapping[str, int],
) -> tuple[int, list[tuple[str, int]]]:
    """A peer's figure from kernel classes, with the steps that lead to it from rung 2's total."""
    system = system_of(mixer, does.form, does.rewrites, phase)
    total = sum(classes(count(mixer, phase, does.form, does.rewrites).at(**sizes)).values())
    causes: list[tuple[str, int]] = []
    inside = predicted = 0
    for name, part in contraction_counts(system, phase).items():
        rule = peer.rule(kernels.get(name, "elementwise"), backend)
        executed = part.operations(sizes)
        inside += executed
        if rule.per_product is None:
            causes.append((rule.meaning, -executed))
            continue
        seen = part
        if rule.masked:
            wide = system_of(mixer, does.form, ("dense", *does.rewrites), phase)
            seen = contraction_counts(wide, phase)[name]
            causes.append(("masked pairs are counted", seen.operations(sizes) - executed))
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


def fifth(
    measurement: Measurement, mixer: Mixer, does: Described, phase: str, third: Classes
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Time, memory and energy, with effective rates where they mean something."""
    readings = measurement.readings
    if "latency" not in readings:
        return None, {"5": measurement.reasons.get("latency", "latency was not measured")}
    latency = readings["latency"].value
    sizes: dict[str, Any] = dict(measurement.sizes)
    moved = traffic(mixer, phase, does.form).at(dtype=measurement.dtype, **sizes)
    executed = sum(third.values())
    cost: dict[str, Any] = {
        "latency_s": latency,
        "peak_memory_bytes": value(measurement, "peak_memory"),
        "kernels": value(measurement, "kernels"),
        "energy_J": value(measurement, "energy"),
        "energy_net_J": value(measurement, "energy_net"),
        "power_W": value(measurement, "power"),
        "compulsory_bytes": moved["compulsory"],
    }
    verdict = idleness(measurement)
    cost["verdict"] = verdict or "comparable"
    if verdict:
        return cost, {"5": verdict}
    cost["operations_per_s"] = executed / latency
    cost["bytes_per_s"] = moved["compulsory"] / latency
    if cost["energy_J"] is not None and executed:
        cost["J_per_operation"] = cost["energy_J"] / executed
    return cost, {}


def value(measurement: Measurement, name: str) -> float | None:
    """A reading's value, or None (its reason is in the record)."""
    return measurement.readings[name].value if name in measurement.readings else None


def idleness(measurement: Measurement) -> str:
    """Why rates mean nothing here: a sentence, or "" where the device is kept busy."""
    latency = measurement.readings["latency"]
    launches = measurement.readings.get("launch_estimate")
    if latency.details.get("launch_bound"):
        return "not comparable: launch-bound, the device waits for the host most of the time"
    if launches is None:
        return ""
    share = launches.value / latency.value
    if share < MOSTLY_IDLE:
        return ""
    return (
        f"not comparable: launching its {launches.details['operations']} operations alone takes "
        f"about {share:.0%} of the time, so the device is mostly idle"
    )
