"""Rung 5 of a ladder: the time, memory and energy of a call, and its rates if they mean anything.

A *rate* is an amount per second or joule: operations per second, bytes per second, J per operation.
The *floor* is the least time that a board which the user names allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.prediction.columns import longest
from profiler.meters.intervals import processes_in
from profiler.reconcile.derived import Derived
from profiler.records.grades import grade_of
from profiler.records.measurement import Measurement
from profiler.records.quantities import QUANTITIES
from profiler.records.reading import INTERVAL, details_of_time
from profiler.run.caveats import disturbance, idleness, variation

COMPARABLE = "comparable"
"""The verdict on a time that includes nothing but the call."""

RATES = ("operations_per_s", "bytes_per_s", "J_per_operation")

FLOOR = ("floor_s", "bound", "bound_share", "rest_s")
"""The keys of rung 5 that hold the time against its floor."""


def cost_of(
    measurement: Measurement, theory: Derived, executed: int, limits: Mapping[str, float] | str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The costs (rung 5) of a call that dispatched `executed` operations: its time, memory and
    energy as measured, and rates: 10**6 operations in 1 ms have `operations_per_s` 1e9.

    Returns:
        Two dicts. Quantity -> value (seconds, bytes, joules, and rates per second or operation),
        with `verdict` among the quantities: "comparable", or a sentence that says why rates would
        mislead. And quantity -> reason, for every value that is None; if the verdict forbids rates,
        it is also the reason under "5".

    `limits`: limit -> the seconds that this limit alone takes on a board, or why they are unknown.
    Time, memory and energy may each be missing. Rates are given only if there is a time, every
    reading reaches its lower bound (`theory.below`: the readings that do not), no disturbance was
    seen, the call kept the device busy, and its time varied little.
    """
    readings = measurement.readings
    cost, why = latency_of(measurement)
    for each in (each for each in QUANTITIES.values() if each.cost):
        cost[each.cost_key] = None
        if each.reading not in readings:
            why[each.cost_key] = measurement.reason(each.reading)
        else:
            value = readings[each.reading].value
            cost[each.cost_key] = round(value) if each.unit in ("1", "B") else value
    for name in ("latency_graph", "energy"):
        if name in readings:
            cost[f"{name}_labels"] = list(readings[name].labels)
    compulsory = theory.moved.get("compulsory")
    if compulsory is None:
        why["compulsory_bytes"] = why["bytes_per_s"] = theory.unmoved
    verdict = why.get("latency_s") or "; ".join(theory.below.values())
    # a call that waits for launches varies with them: the launches are the reason
    verdict = verdict or disturbance(measurement)
    verdict = verdict or idleness(measurement) or variation(measurement)
    cost |= {"compulsory_bytes": compulsory, "verdict": verdict or COMPARABLE}
    cost |= dict.fromkeys(RATES)
    if verdict:
        return with_floor(cost, why | dict.fromkeys(("5", *RATES), verdict), limits)
    cost["operations_per_s"] = executed / cost["latency_s"]
    if compulsory is not None:
        cost["bytes_per_s"] = compulsory / cost["latency_s"]
    if cost["energy_J"] is None:
        why["J_per_operation"] = why["energy_J"]
    elif not executed:
        why["J_per_operation"] = "no operation was dispatched"
    else:
        cost["J_per_operation"] = cost["energy_J"] / executed
    return with_floor(cost, why, limits)


OF_LATENCY = ("latency_s", "latency_p20_s", "latency_p80_s", "latency_samples",
              "latency_stop_rule", "latency_processes", "latency_grade",
              *(f"latency_{end}_s" for end in INTERVAL))  # fmt: skip
"""The keys of rung 5 that describe the latency."""


def latency_of(measurement: Measurement) -> tuple[dict[str, Any], dict[str, str]]:
    """Two dicts: the figures about a call's latency in seconds (median, percentiles, confidence
    interval, number of samples, stopping rule), by key; and a reason for every None among them.

    `latency_processor_s`, the processor time of one call, is present only if the call ran in one
    thread and its processor time was recorded.
    """
    latency = measurement.readings.get("latency")
    if latency is None:
        missing = measurement.reason("latency")
        nothing: dict[str, Any] = dict.fromkeys(OF_LATENCY)
        return nothing | {"latency_labels": []}, dict.fromkeys(OF_LATENCY, missing)
    details = details_of_time(latency)
    cost: dict[str, Any] = {
        "latency_s": latency.value,
        "latency_p20_s": details["p20"],
        "latency_p80_s": details["p80"],
        "latency_samples": details["n"],
        "latency_stop_rule": details["stop_rule"],
        "latency_processes": processes_in(latency),
        "latency_grade": grade_of(latency),
        "latency_labels": list(latency.labels),
    }
    if measurement.environment.get("threads") == 1 and latency.details.get("processor_s"):
        cost["latency_processor_s"] = latency.details["processor_s"]
    why: dict[str, str] = {}
    for end in INTERVAL:
        cost[f"latency_{end}_s"] = latency.details.get(end)
        if cost[f"latency_{end}_s"] is None:
            why[f"latency_{end}_s"] = latency.why_no_interval
    return cost, why


def with_floor(
    cost: dict[str, Any], why: dict[str, str], limits: Mapping[str, float] | str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The costs of a call (quantity -> value) and the reasons `why`, with the floor of the time on
    a board, the limit that sets the floor (`bound`), the share of this limit that the call reached,
    and the rest of the time above the floor. `cost` itself is changed.

    Args:
        limits: limit -> the seconds that this limit alone takes, or why they are unknown.
    """
    cost |= dict.fromkeys(FLOOR)
    if isinstance(limits, str):
        return cost, why | dict.fromkeys(FLOOR, limits)
    cost["bound"], cost["floor_s"] = longest(limits)
    if cost["latency_s"] is None:
        return cost, why | dict.fromkeys(("bound_share", "rest_s"), why["latency_s"])
    cost["bound_share"] = cost["floor_s"] / cost["latency_s"]
    cost["rest_s"] = cost["latency_s"] - cost["floor_s"]
    return cost, why
