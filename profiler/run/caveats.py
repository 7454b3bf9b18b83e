"""Caveats of a measurement: the device was shared, or mostly idle, so that rates are meaningless.

A time is *quiet* if its call had the device to itself, else *busy*; *labels* name what disturbed or
limits a reading (`records.grades`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from profiler.meters.intervals import confidence_of
from profiler.records.grades import (
    GRAPH_DIFFERS,
    GRAPH_GAIN,
    ONE_SAMPLE,
    QUIET,
    disturbed_by,
    undisturbed,
)
from profiler.records.measurement import Measurement
from profiler.records.reading import NOT_RECORDED, Reading, details_of_time
from profiler.records.words import scaled

MOSTLY_IDLE = 0.5
"""The device is mostly idle if launches alone take this share of a call's time."""


SPREAD = 2.0
"""The device was contended if the samples' p80 is more than this many times their p20."""


KNOWN = 0.05
"""A median gives no rates if its interval reaches farther than this share of the median."""


def spread_words(p20: float, p80: float) -> str:
    """`1.2 ms to 3.4 ms`, from seconds."""
    return f"{scaled(p20, 's')} to {scaled(p80, 's')}"


def stopped(rule: str) -> str:
    """Words on when sampling stopped, from the name of the rule that stopped it; of an unknown rule
    its name."""
    return {
        "median settled": "once the median had settled",
        "stable noise": "once the noise no longer changed",
        "rounds done": "after all rounds",
        "processes done": "after all processes",
        "busy device": "because others used the device",
        NOT_RECORDED: "by a rule that is not recorded",
    }.get(rule, f"by the {rule}")


def processes_words(timed: Iterable[tuple[int, str]]) -> list[str]:
    """Sentences on the meaning of the intervals of quiet times (measured while no other program
    used the device): one for each number of processes that an interval spans.

    Args:
        timed: for each time the number of processes that its interval spans, and its grade.
    """
    said = []
    for number in sorted({number for number, grade in timed if grade == QUIET}):
        if number == 1:
            said.append(
                "time: of one process; its interval, from blocks of calls, covers the noise within "
                "this process: other processes and hours may lie outside (--processes K)"
            )
        else:
            said.append(
                f"time: median of {number} processes, with an interval that holds the median of "
                f"all such processes with {confidence_of(number):.1%} or more"
            )
    return said


def no_quiet_time(measurement: Measurement) -> str:
    """Why shares of the time are unknown: the latency is missing or was disturbed; else ""."""
    latency = measurement.readings.get("latency")
    if latency is None:
        return measurement.reason("latency")
    return "" if undisturbed(latency) else "the device was not quiet while it was timed"


def contention(measurement: Measurement) -> str:
    """Why the latency of a record that has one is not comparable, as a sentence of `disturbance` or
    `variation`; "" if it is comparable."""
    return disturbance(measurement) or variation(measurement)


def disturbance(measurement: Measurement) -> str:
    """Why the latency of a record that has one is not comparable, as a sentence: the device was
    disturbed while it was timed, or there is one sample; "" if neither holds."""
    labels = measurement.readings["latency"].labels
    if by := disturbed_by(labels):
        return f"not comparable: the device was disturbed while it was timed ({by})"
    if ONE_SAMPLE in labels:
        return "not comparable: the time has one sample; a longer --seconds takes more"
    return ""


def variation(measurement: Measurement) -> str:
    """Why the latency of a record that has one is not comparable, with a cause: its median is not
    known to `KNOWN`, or its samples spread by more than `SPREAD`, from the host's launches where
    the replays of the call's CUDA graph are steady, else from other programs. "" if neither."""
    latency = measurement.readings["latency"]
    details = details_of_time(latency)
    spread = _is_spread(latency)
    if _is_known(latency) and not spread:
        return ""
    what = f"the median is not known to {KNOWN:.0%}"
    if spread:
        what = f"the samples spread from {spread_words(details['p20'], details['p80'])}"
    stop = stopped(details["stop_rule"])
    said = f"not comparable: {what} ({details['n']} samples, stopped {stop}),"
    if _has_steady_replays(measurement):
        return (
            f"{said} while the replays of its CUDA graph are steady, as the host's launches vary; "
            "compare the replays"
        )
    # only a call that runs in several threads of the CPU could run in fewer
    one = measurement.device.startswith("cuda") or measurement.environment.get("threads") == 1
    threads = "" if one else "fewer threads (OMP_NUM_THREADS=1), "
    longer = " or a longer --seconds" if details["stop_rule"] == "time cap" else ""
    return (
        f"{said} as if other programs used the machine; {threads}a quieter machine{longer} may help"
    )


def _is_spread(latency: Reading) -> bool:
    """Whether the samples lie too far from each other for a median to mean anything."""
    details = details_of_time(latency)
    return bool(details["p80"] > SPREAD * details["p20"])


def _has_steady_replays(measurement: Measurement) -> bool:
    """Whether the call was replayed as a CUDA graph, undisturbed and with the call's result, and
    the median of the replays is known well enough."""
    replayed = measurement.readings.get("latency_graph")
    if replayed is None or not undisturbed(replayed) or GRAPH_DIFFERS in replayed.labels:
        return False
    return _is_known(replayed) and not _is_spread(replayed)


def _is_known(latency: Reading) -> bool:
    """Whether the median is known well enough: sampling stopped by a rule that makes sure of it, or
    the interval reaches at most `KNOWN` of the median to either side."""
    if details_of_time(latency)["stop_rule"] in ("median settled", "rounds done", "processes done"):
        return True
    ends = [abs(end - latency.value) for end in latency.interval or ()]
    return bool(ends) and max(ends) <= KNOWN * latency.value


def idleness(measurement: Measurement) -> str:
    """Why rates of a record with a latency are meaningless, as a sentence: launches keep the device
    idle most of the time; "" if the device is kept busy, or the launches' time is not estimated."""
    latency = measurement.readings["latency"]
    launches = measurement.readings.get("launch_estimate")
    gain = latency.details.get("graph_gain", inf)  # older records lack the gain of a CUDA graph
    if latency.details.get("launch_bound") and gain > GRAPH_GAIN:
        said = "; compare the replays" if _has_steady_replays(measurement) else ""
        return f"not comparable: launch-bound, the device waits for the host most of the time{said}"
    if launches is None:
        return ""
    share = launches.value / latency.value
    if share < MOSTLY_IDLE:
        return ""
    return (
        f"not comparable: launching {launches.details['operations']} operations takes about "
        f"{share:.0%} of the time, so the device is mostly idle"
    )
