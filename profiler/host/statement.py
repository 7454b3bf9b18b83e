"""Which paragraph on compute, error bars and software may a paper print about these records?

It answers what the checklists of conferences ask (NeurIPS: experiments' compute resources and
statistical significance; ACL: computing infrastructure, runtime or energy): device, memory, time,
energy, software, number of runs, error bars and how they were computed. It says only what the
records say, and names what they lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from costmodel.report.document import Document, Paragraph, Strong
from costmodel.symbolic.sizes import LETTERS
from profiler.host.environment import environment_differences, flat
from profiler.host.statement_groups import Group, machine_groups
from profiler.host.statement_hardware import counters_sentences
from profiler.host.statement_words import (
    comma_list,
    counted_range,
    gibibytes,
    mebibytes,
    mode,
    named_value,
    noun_range,
    plural,
    relative,
    value_range,
    whole_ends,
)
from profiler.meters.ceilings import ceilings_words
from profiler.meters.intervals import CONFIDENCE, processes_in
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.records.words import PHASES, scaled

LATENCIES = {
    "latency": "latency with warm caches (calls back to back)",
    "latency_cold": "latency with cold caches",
    "latency_graph": "latency of CUDA graph replays",
}

OUTSIDE = (
    "The records do not say who provided the machine, what storage it has, nor what compute went "
    "into preliminary, failed or discarded runs."
)


def document(records: Sequence[Measurement]) -> Document:
    """The statement as a document."""
    return Document(lambda: paragraphs(records))


def paragraphs(records: Sequence[Measurement]) -> list[Paragraph]:
    """One paragraph for each machine, and what no record says.

    Raises:
        ValueError: no records.
    """
    if not records:
        raise ValueError("expected one record or more, got none")
    found = machine_groups(records)
    texts = []
    for number, group in enumerate(found, start=1):
        said = sentences(group)
        if len(found) > 1:
            said = [*environment_difference(number, found), *said]
        texts.append(" ".join(said))
    first, *others = [*texts, OUTSIDE]
    lead = Paragraph((Strong("Compute resources."), f" {first}"))
    return [lead, *(Paragraph((text,)) for text in others)]


def environment_difference(number: int, found: Sequence[Group]) -> list[str]:
    """Which environment a paragraph is about, and in what it differs from the first."""
    group = found[number - 1]
    said = f"Environment {number} of {len(found)}"
    if number == 1:
        return [f"{said}."]
    apart_ = environment_differences(found[0].facts, group.facts)
    return [f"{said}, which differs from the first in {'; '.join(apart_) or 'unknown facts'}."]


def sentences(group: Group) -> list[str]:
    """Everything that is said about a group of records."""
    return [
        device(group),
        *state_sentences(group),
        runs(group),
        *compiled_sentences(group),
        *latency_sentences(group),
        spent(group),
        memory_sentence(group),
        energy_sentence(group),
        *counters_sentences(group),
        *bars(group),
        labels_sentence(group),
        *ceilings_sentence(group),
        software(group),
        *settings_sentence(group),
    ]


def device(group: Group) -> str:
    """The device and its memory."""
    return gpu(group) if group.on_gpu else cpu(group)


def gpu(group: Group) -> str:
    """The board, then the host."""
    boards = {flat(record.environment).get("gpu.uuid") for record in group.records} - {None}
    number = f"{len(boards)} boards of the type " if len(boards) > 1 else ""
    facts = [
        with_unit(group, "device_memory_bytes", gibibytes, "memory"),
        with_unit(group, "multiprocessors", str, "multiprocessors"),
        with_unit(group, "l2_bytes", mebibytes, "L2 cache"),
        named_value("compute capability", group.fact("compute_capability")),
        named_value("power limit", group.fact("gpu.power_limit_W"), " W"),
        named_value("driver", group.fact("gpu.driver")),
        named_value("ECC", group.fact("gpu.ecc")),
        named_value("MIG", mode(group.fact("gpu.mig_mode"))),
        named_value("virtualisation", group.fact("gpu.virtualisation")),
    ]
    name = group.fact("device_name") or "an NVIDIA GPU whose name is not recorded"
    return f"Measurements ran on {number}{name} ({comma_list(facts)}); host: {host(group)}."


def cpu(group: Group) -> str:
    """The processor."""
    threads = group.fact("threads")
    said = f" with {plural(threads, 'thread')}" if threads is not None else ""
    return f"Measurements ran on a CPU{said}: {host(group)}."


def host(group: Group) -> str:
    """Processor, cores, caches and main memory."""
    name = group.fact("cpu") or "a processor whose name is not recorded"
    caches = group.facts.get("caches") or {}
    kept = group.fact("cpu_limit")
    container = group.fact("container")
    facts = [
        with_unit(group, "cores", str, "cores"),
        with_unit(group, "caches.L3", mebibytes, "L3 cache") if "L3" in caches else None,
        with_unit(group, "host_memory_bytes", gibibytes, "main memory")
        or "main memory not recorded",
        named_value("governor", group.fact("cpu_governor")),
        f"limited to {kept:g} processors" if isinstance(kept, int | float) else None,
        f"in a container ({container})" if container not in (None, "none found") else None,
    ]
    return f"{name} ({comma_list(facts)})"


STATES = {
    "temperature_C": ("GPU temperature", " C"),
    "sm_clock_MHz": ("SM clock", " MHz"),
    "memory_clock_MHz": ("memory clock", " MHz"),
    "cpu_MHz": ("first core's clock", " MHz"),
    "load_average": ("load average", ""),
    "other_processes": ("other processes on the GPU", ""),
}
"""Fact that varies from run to run -> its words and its unit."""


def state_sentences(group: Group) -> list[str]:
    """Temperature, clocks and other users as far as they were recorded: when the records were
    written, and before anything ran where the values differ."""
    last, first = (
        {
            name: noun_range(group.states(name, when), unit, words)
            for name, (words, unit) in STATES.items()
        }
        for when in ("state", "state_before")
    )
    other = [text for name, text in first.items() if text != last[name]]
    said = {"When the records were written": last.values(), "Before anything ran": other}
    return [f"{when}: {text}." for when, facts in said.items() if (text := comma_list(facts))]


def runs(group: Group) -> str:
    """How many records there are, of what, from when, and with which seeds."""
    records = group.records
    subjects = len({(r.mixer, r.implementation) for r in records})
    mixers = len({r.mixer for r in records})
    days = sorted(r.created for r in records)
    when = f"between {days[0]} and {days[-1]}" if days[0] != days[-1] else f"at {days[0]}"
    phases = ", ".join(PHASES.get(p, p) for p in dict.fromkeys(r.phase for r in records))
    dtypes = ", ".join(dict.fromkeys(r.dtype for r in records))
    seeds = sorted({r.counts["seed"] for r in records if "seed" in r.counts})
    seeded = f"; seed {', '.join(map(str, seeds))}" if seeds else "; seeds not recorded"
    lost = Counter(str(r.failure.get("kind", "unknown cause")) for r in records if r.failure)
    why_lost = ", ".join(f"{kind} {number}" for kind, number in lost.most_common())
    failed = f"; {lost.total()} of them failed ({why_lost})" if lost else ""
    return (
        f"{plural(len(records), 'run')} of {plural(subjects, 'implementation')} of "
        f"{plural(mixers, 'mixer')} {when}, sizes {sizes(records)}, {dtypes}, {phases}"
        f"{seeded}{failed}."
    )


def sizes(records: Sequence[Measurement]) -> str:
    """Each size with its values; with its first and last value where there are many."""
    found = []
    for letter in LETTERS:
        values = sorted({r.sizes[letter] for r in records if letter in r.sizes})
        if values:
            few = ", ".join(map(str, values))
            many = f"{values[0]} to {values[-1]} ({len(values)} values)"
            found.append(f"{letter} = {few if len(values) <= 4 else many}")
    return "; ".join(found) or "not recorded"


def compiled_sentences(group: Group) -> list[str]:
    """Which runs were of compiled calls, how long compiling took, and where it failed."""
    asked = [record for record in group.records if record.compiled]
    if not asked:
        return []
    readings = group.readings("compile")
    every = len(asked) == len(group.records)
    which = "all runs" if every else f"{len(asked)} of {plural(len(group.records), 'run')}"
    found = [
        f"In {which} latency and energy are of what torch.compile made of the module; memory and "
        f"operations are of the module itself."
    ]
    if readings:
        values = [reading.value for reading in readings]
        found.append(
            f"Compiling took {value_range(values, 's')} a call, {scaled(sum(values), 's')} in all, "
            f"which is in no latency."
        )
    lost = [record for record in asked if "compile" in record.reasons]
    if lost:
        found.append(f"It failed in {plural(len(lost), 'run')}{why(group, 'compile')}.")
    return found


def latency_sentences(group: Group) -> list[str]:
    """The range of each kind of latency, or that none was measured."""
    found = []
    for name, said in LATENCIES.items():
        readings = group.readings(name)
        if readings:
            values = [reading.value for reading in readings]
            numbers = [len(reading.samples) for reading in readings]
            rules = Counter(r.details.get("stop_rule", "not recorded") for r in readings)
            how = ", ".join(f"{rule} {number}" for rule, number in rules.most_common())
            found.append(
                f"Medians of {said}: {value_range(values, 's')} in {plural(len(readings), 'run')}, "
                f"{counted_range(numbers, 'sample')} each (why sampling stopped: {how})."
            )
    if not found:
        return [f"Latency was not measured{why(group, 'latency')}."]
    return found


def spent(group: Group) -> str:
    """The total time of the timed calls, a lower bound of the time computed."""
    known, unknown = 0.0, 0
    for name in LATENCIES:
        for reading in group.readings(name):
            if seconds := timed_s(reading):
                known += seconds
            else:
                unknown += 1
    if not known:
        return "How long the timed calls took in all is not recorded."
    rest = f" ({plural(unknown, 'reading')} without this figure)" if unknown else ""
    return (
        f"The timed calls took {scaled(known, 's')} in all{rest}; building, warming up, counting "
        f"and energy measurements come on top and are not recorded."
    )


def timed_s(reading: Reading) -> float | None:
    """Seconds that a reading's timed calls took in all its processes; None where this is
    unknown."""
    if "sampled_s" in reading.details:
        return float(reading.details["sampled_s"])
    if "comparison" in reading.details or "block" not in reading.details:
        return None
    return float(sum(reading.samples)) * int(reading.details["block"])


def memory_sentence(group: Group) -> str:
    """Peak memory of calls."""
    readings = group.readings("peak_memory")
    if not readings:
        return f"Memory was not measured{why(group, 'peak_memory')}."
    values = [round(reading.value) for reading in readings]
    loose = sum(reading.details.get("agree") is False for reading in readings)
    agreed = f"; in {loose} of them repeated runs did not agree" if loose else ""
    return (
        f"Peak memory of a call beyond weights and inputs: {whole_ends(values)} B in "
        f"{plural(len(readings), 'run')}{agreed}."
    )


def energy_sentence(group: Group) -> str:
    """Joules per call, with trials and systematic error, or why there are none."""
    readings = group.readings("energy")
    missing = len(group.records) - len(readings)
    if not readings:
        return f"Energy was not measured{why(group, 'energy')}."
    trials = [len(reading.samples) for reading in readings]
    gains = {float(r.details["systematic"]) for r in readings if "systematic" in r.details}
    systematic = (
        f"the sensor's systematic error of {', '.join(f'{gain:.0%}' for gain in sorted(gains))} "
        f"comes on top"
        if gains
        else "the sensor's systematic error is not recorded"
    )
    rest = (
        f" It was not measured in {plural(missing, 'run')}{why(group, 'energy')}."
        if missing
        else ""
    )
    net = group.readings("energy_net")
    beside = f" (net of idle power {value_range([r.value for r in net], 'J')})" if net else ""
    methods = ", ".join(sorted({str(r.details.get("method", "not recorded")) for r in readings}))
    return (
        f"Gross energy a call: {value_range([r.value for r in readings], 'J')}{beside} in "
        f"{plural(len(readings), 'run')}, {counted_range(trials, 'trial')} each, "
        f"method: {methods}; {systematic}.{rest}"
    )


def bars(group: Group) -> list[str]:
    """Error bars: what they are, which variation they cover, and how wide they are."""
    timed = [r for name in LATENCIES for r in group.readings(name)]
    joules = group.readings("energy")
    found: list[str] = []
    alone = [reading for reading in timed if processes_in(reading) == 1]
    if widths := known_widths(alone):
        found.append(
            f"Error bars of latency are 95 % confidence intervals of the median, by order "
            f"statistics of blocks of samples within one process, whatever their distribution; the "
            f"widest is {relative(max(widths), 'its median')} to one side."
        )
    if lacking := sum(half_width(reading) is None for reading in timed):
        found.append(f"{plural(lacking, 'latency', 'latencies')} without interval.")
    if widths := known_widths([r for r in joules if processes_in(r) == 1]):
        found.append(
            f"Error bars of energy are confidence intervals of the mean of trials by Student's t, "
            f"which takes them as normal; the widest is {relative(max(widths), 'its mean')} to one "
            f"side."
        )
    if spanning := [r for r in (*timed, *joules) if processes_in(r) > 1]:
        numbers = [processes_in(reading) for reading in spanning]
        levels = sorted({float(r.details.get("confidence", CONFIDENCE)) for r in spanning})
        said = " or ".join(f"{level:.1%}" for level in levels)
        found.append(
            f"Error bars of {plural(len(spanning), 'reading')} span "
            f"{whole_ends(numbers)} fresh processes, one value each, by "
            f"order statistics, with a confidence of {said}; the widest is "
            f"{relative(max(known_widths(spanning)), 'its median')} to one side."
        )
    if found:
        unseen = "machines" if not alone else "processes, machines"
        found.append(f"Differences between {unseen} and days are in no error bar.")
    return found


def known_widths(readings: Sequence[Reading]) -> list[float]:
    """The half-widths of those that have an interval."""
    found = map(half_width, readings)
    return [width for width in found if width is not None]


def half_width(reading: Reading) -> float | None:
    """The larger distance of an interval's ends from the value, relative to it."""
    low, high = reading.details.get("ci_low"), reading.details.get("ci_high")
    if low is None or high is None or not reading.value:
        return None
    return float(max(high - reading.value, reading.value - low) / abs(reading.value))


def labels_sentence(group: Group) -> str:
    """The labels of readings, with how often each occurs."""
    told = [
        reading.details["labels"]
        for record in group.records
        for reading in record.readings.values()
        if "labels" in reading.details
    ]
    if not told:
        return "Whether measurements were disturbed is not recorded."
    found = Counter(label for each in told for label in each)
    listed_ = ", ".join(f"{label} ({number})" for label, number in found.most_common())
    return f"Labels of readings: {listed_}." if found else "No reading is labelled as disturbed."


def ceilings_sentence(group: Group) -> list[str]:
    """The measured ceilings of the device."""
    said = ceilings_words(record.environment for record in group.records)
    return [f"At best the device reached, in the same processes: {said}."] if said else []


PROGRAMS = {
    "python": "Python", "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "triton": "Triton",
    "numpy": "NumPy", "nvidia_ml_py": "nvidia-ml-py", "ncu": "Nsight Compute",
    "package": "costmodel",
}  # fmt: skip


def software(group: Group) -> str:
    """Versions, and which of them are unknown."""
    known = [f"{said} {group.fact(name)}" for name, said in PROGRAMS.items() if group.fact(name)]
    needed = ("cuda", "cudnn", "triton") if group.on_gpu else ()
    missing = [
        said
        for name, said in PROGRAMS.items()
        if not group.fact(name) and (name in needed or name in ("python", "torch", "package"))
    ]
    revision = group.fact("revision")
    at = f", revision {revision}" if revision else ", revision not recorded"
    rest = f" Not recorded: the version of {', '.join(missing)}." if missing else ""
    platform = group.fact("platform")
    on = f" on {platform}" if platform else ""
    return f"Software: {', '.join(known)}{at}{on}.{rest}"


def settings_sentence(group: Group) -> list[str]:
    """Settings and variables that change speed or precision."""
    chosen = [f"{name} = {value}" for name, value in (group.facts.get("settings") or {}).items()]
    set_ = [f"{name}={value}" for name, value in (group.facts.get("variables") or {}).items()]
    facts = [*(["torch: " + ", ".join(chosen)] if chosen else []), *set_]
    return [f"Settings: {'; '.join(facts)}."] if facts else []


def why(group: Group, name: str) -> str:
    """The reasons that the records give, in brackets."""
    reasons = dict.fromkeys(r.reasons[name] for r in group.records if name in r.reasons)
    return f" ({'; '.join(reasons)})" if reasons else ""


def with_unit(group: Group, name: str, words: Any, noun: str) -> str | None:
    """`139.8 GiB memory`, None where the value is unknown."""
    value = group.fact(name)
    return None if value is None else f"{words(value)} {noun}"
