"""Rung 5 of a ladder: the time, memory and energy of a call, and its rates if they mean anything.

A *rate* is an amount per second or joule: operations per second, bytes per second, J per operation.
A *ceiling* is the highest rate that the device reached in a measurement of its own.
"""

from __future__ import annotations

from typing import Any

from profiler.meters.ceilings import COPY, product_name
from profiler.meters.intervals import processes_in
from profiler.reconcile.derived import Derived
from profiler.records.grades import grade_of
from profiler.records.measurement import Measurement
from profiler.records.quantities import QUANTITIES
from profiler.records.reading import Unavailable, details_of_time
from profiler.run.caveats import contention, idleness
from profiler.run.lower_bounds import bandwidth, ceiling

INTERVAL = ("ci_low", "ci_high")
"""The ends of the interval of a median."""


NO_INTERVAL = "too few samples for an interval of the median"
"""The reason for a missing interval in a record without a reason."""


COMPARABLE = "comparable"
"""The verdict on a time that includes nothing but the call."""

RATES = ("operations_per_s", "bytes_per_s", "J_per_operation")


def cost_of(
    measurement: Measurement, theory: Derived, executed: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """The costs (rung 5) of a call that dispatched `executed` operations: its time, memory and
    energy as measured, and rates.

    Returns:
        Two dicts. Quantity -> value (seconds, bytes, joules, and rates per second or operation),
        with `verdict` among the quantities: "comparable", or a sentence that says why rates would
        mislead. And quantity -> reason, for every value that is None; if the verdict forbids rates,
        it is also the reason under "5".

    Time, memory and energy may each be missing. Rates are given only if the call kept the device
    busy, no other process used the device, and every reading reaches its lower bound
    (`theory.below`: the readings that do not)."""
    readings = measurement.readings
    cost, why = latency_of(measurement)
    for each in (each for each in QUANTITIES.values() if each.cost):
        cost[each.cost_key] = None
        if each.reading not in readings:
            why[each.cost_key] = measurement.reason(each.reading)
        else:
            value = readings[each.reading].value
            cost[each.cost_key] = round(value) if each.unit in ("1", "B") else value
    compulsory = theory.moved["compulsory"]
    verdict = why.get("latency_s") or "; ".join(theory.below.values())
    verdict = verdict or contention(measurement) or idleness(measurement)
    cost |= {"compulsory_bytes": compulsory, "verdict": verdict or COMPARABLE}
    cost |= dict.fromkeys(RATES)
    if verdict:
        return with_ceilings(cost, why | dict.fromkeys(("5", *RATES), verdict), measurement)
    cost["operations_per_s"] = executed / cost["latency_s"]
    cost["bytes_per_s"] = compulsory / cost["latency_s"]
    if cost["energy_J"] is None:
        why["J_per_operation"] = why["energy_J"]
    elif not executed:
        why["J_per_operation"] = "no operation was dispatched"
    else:
        cost["J_per_operation"] = cost["energy_J"] / executed
    return with_ceilings(cost, why, measurement)


OF_LATENCY = ("latency_s", "latency_p20_s", "latency_p80_s", "latency_samples",
              "latency_stop_rule", "latency_processes", "latency_grade",
              *(f"latency_{end}_s" for end in INTERVAL))  # fmt: skip
"""The keys of rung 5 that describe the latency."""


def latency_of(measurement: Measurement) -> tuple[dict[str, Any], dict[str, str]]:
    """Two dicts: the figures about a call's latency in seconds (median, percentiles, confidence
    interval, number of samples, stopping rule), by key; and a reason for every None among them.

    `latency_processor_s`, the processor time of one call, is present only if the call ran in one
    thread and its processor time was recorded."""
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
            why[f"latency_{end}_s"] = latency.details.get("ci_missing", NO_INTERVAL)
    return cost, why


def with_ceilings(
    cost: dict[str, Any], why: dict[str, str], measurement: Measurement
) -> tuple[dict[str, Any], dict[str, str]]:
    """Add further figures to the costs of a call (quantity -> value) and return both dicts, costs
    and reasons (quantity -> why its value is None): the best rates of the device (ceilings)
    measured in the same process, the call's rates as shares of the ceilings, and the data sheet's
    bandwidth.

    A share is None if the ceiling or the call's rate is; `why` receives a reason for each None."""
    environment = measurement.environment
    tops = {"operations_per_s": product_name(measurement.dtype), "bytes_per_s": COPY}
    for key, name in tops.items():
        top = ceiling(environment, name)
        measured, share = f"ceiling_{key}", f"{key}_share"
        cost[measured] = cost[share] = None
        if isinstance(top, Unavailable):
            why |= dict.fromkeys((measured, share), top.reason)
            continue
        cost[measured] = top.value
        if cost[key] is None:
            why[share] = why[key]
        else:
            cost[share] = cost[key] / top.value
    cost["datasheet_bytes_per_s"] = bandwidth(environment)
    if cost["datasheet_bytes_per_s"] is None:
        why["datasheet_bytes_per_s"] = "the width and the clock of the memory are unknown"
    return cost, why
