"""The paragraph on compute, error bars and software that a paper may print about its records.

It answers the checklists of conferences (NeurIPS: experiments' compute resources and statistical
significance; ACL: computing infrastructure, runtime or energy): device, memory, time, energy,
software, number of runs, error bars and their computation. A sentence is printed if the records
have all of its facts; missing facts are listed at the end, with their reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from costmodel.report.document import Document, Paragraph, Strong
from costmodel.symbolic.sizes import LETTERS
from profiler.host.environment import environment_differences
from profiler.host.machine_groups import Group, machine_groups
from profiler.meters.ceilings import ceilings_words
from profiler.meters.intervals import CONFIDENCE, processes_in
from profiler.records.grades import BUSY, QUIET, grade_of
from profiler.records.measurement import Measurement
from profiler.records.quantities import LATENCIES
from profiler.records.reading import Reading
from profiler.records.words import PHASES, scaled

SENTENCES = (
    "Measurements ran on {gpu}; host: {host}.",
    "Measurements ran on a CPU with {threads}: {processor}.",
    "When the records were written: {state}.",
    "Before anything ran: {state_before}.",
    "{runs} of {implementations} of {mixers} {when}, sizes {sizes}, {dtypes}, {phases}.",
    "Seeds: {seeds}.",
    "Failed: {failed}.",
    "In {compiled} latency and energy are of what torch.compile made of the module; memory and "
    "operations are of the module itself.",
    "Compiling took {compile}, which is in no latency.",
    "Medians of latency with warm caches (calls back to back): {latency}.",
    "Medians of latency with cold caches: {latency_cold}.",
    "Medians of latency of CUDA graph replays: {latency_graph}.",
    "Estimates of a busy machine (each a low quantile of short regions, between the least time "
    "that the call needs and the median of the regions, without a confidence): {estimates}.",
    "Why sampling stopped: {stopped}.",
    "The timed calls took {spent} in all; building, warming up, counting and energy measurements "
    "come on top and are not recorded.",
    "Peak memory of a call beyond weights and inputs: {peak_memory}.",
    "Repeated runs did not agree to the byte in {loose}.",
    "Gross energy a call: {energy}, method: {method}; the sensor's systematic error of "
    "{systematic} comes on top.",
    "Energy net of idle power: {energy_net}.",
    "Hardware counters of {counted} were read by Nsight Compute {ncu} in processes of their own, "
    "in which kernels ran one by one and nothing was timed; clocks were left alone.",
    "Kernels of known work, counted in the same way, {calibrated}.",
    "Error bars of latency are 95 % confidence intervals of the median, by order statistics of "
    "blocks of samples within one process, whatever their distribution; the widest is {timed_bar} "
    "to one side.",
    "Error bars of energy are confidence intervals of the mean of trials by Student's t, which "
    "takes them as normal; the widest is {energy_bar} to one side.",
    "Error bars of {spanning} span {processes} fresh processes, one value each, by order "
    "statistics, with a confidence of {confidence}; the widest is {processes_bar} to one side.",
    "Differences between {unseen} and days are in no error bar.",
    "Labels of readings: {labels}.",
    "At best the device reached, in the same processes: {ceilings}.",
    "Software: {software}.",
    "Settings: {settings}.",
    "Not measured: {unmeasured}.",
    "Not recorded: {unrecorded}.",
)
"""The sentences in order; a sentence with an unknown fact is left out."""

OUTSIDE = (
    "The records do not say who provided the machine, what storage it has, nor what compute went "
    "into preliminary, failed or discarded runs."
)
KINDS_OF_LATENCY = ("with warm caches", "with cold caches", "of CUDA graph replays")
EXPECTED = {
    "latency": "latency", "peak_memory": "memory", "energy": "energy", "compile": "compiling",
}  # fmt: skip
"""Reading that every measurement should have -> its name; `compile` only if it was asked for."""
RECORDED = {
    "seeds": "seeds", "spent": "how long the timed calls took", "labels": "disturbances",
    "revision": "the revision of costmodel",
}  # fmt: skip
"""Fact that every record should have -> its name."""


def document(records: Sequence[Measurement]) -> Document:
    """The statement as a document."""
    return Document(lambda: paragraphs(records))


def paragraphs(records: Sequence[Measurement]) -> list[Paragraph]:
    """One paragraph per machine, and one on what no record states.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("expected one record or more, got none")
    found = machine_groups(records)
    texts = []
    for number, group in enumerate(found, start=1):
        said = sentences(facts(group))
        if len(found) > 1:
            apart = environment_differences(found[0].facts, group.facts)
            beside = f", which differs from the first in {'; '.join(apart) or 'unknown facts'}"
            said = [f"Environment {number} of {len(found)}{beside * (number > 1)}.", *said]
        texts.append(" ".join(said))
    first, *others = [*texts, OUTSIDE]
    lead = Paragraph((Strong("Compute resources."), f" {first}"))
    return [lead, *(Paragraph((text,)) for text in others)]


def sentences(found: Mapping[str, str]) -> list[str]:
    """The sentences whose facts are all known."""
    named = {text: [name for _, name, *_ in Formatter().parse(text) if name] for text in SENTENCES}
    return [
        text.format_map(found)
        for text, names in named.items()
        if all(name in found for name in names)
    ]


def facts(group: Group) -> dict[str, str]:
    """Name of a placeholder in `SENTENCES` -> its words, for every known fact of a machine's
    records."""
    every: dict[str, str | None] = {
        **machine(group),
        **plan(group.records),
        **{name: readings_words(medians_of(group, name)) for name in (*LATENCIES, "compile")},
        "estimates": estimates(group),
        **times(group),
        **memory(group),
        **energy(group),
        **counters(group),
        **bars(group),
        "ceilings": ceilings_words(r.environment for r in group.records),
        **software(group),
    }
    found = {name: text for name, text in every.items() if text}
    lacking = [words for name, words in RECORDED.items() if name not in found]
    found["unmeasured"] = "; ".join(unmeasured(group))
    found["unrecorded"] = ", ".join([*lacking, *unknown_versions(group)])
    return {name: text for name, text in found.items() if text}


def machine(group: Group) -> dict[str, str | None]:
    """Board, processor, memory, and the facts that vary from run to run."""
    threads = group.fact("threads")
    host = f"{group.fact('cpu') or 'a processor whose name is not recorded'} ({host_facts(group)})"
    last, first = (state(group, when) for when in ("state", "state_before"))
    where = {
        "threads": "an unknown number of threads" if threads is None else plural(threads, "thread"),
        "processor": host,
    }
    return {
        **({"gpu": board(group), "host": host} if group.on_gpu else where),
        "state": comma_list(last.values()),
        "state_before": comma_list(text for name, text in first.items() if text != last[name]),
    }


def board(group: Group) -> str:
    """The GPU in words, with the number of boards."""
    boards = {(r.environment.get("gpu") or {}).get("uuid") for r in group.records} - {None}
    number = f"{len(boards)} boards of the type " if len(boards) > 1 else ""
    known = comma_list([
        fact(group, "{} memory", "device_memory_bytes", gibibytes),
        fact(group, "{} multiprocessors", "multiprocessors"),
        fact(group, "{} L2 cache", "l2_bytes", mebibytes),
        fact(group, "compute capability {}", "compute_capability"),
        fact(group, "power limit {} W", "gpu.power_limit_W"),
        fact(group, "driver {}", "gpu.driver"),
        fact(group, "ECC {}", "gpu.ecc"),
        fact(group, "MIG {}", "gpu.mig_mode", lambda value: {0: "off", 1: "on"}.get(value, value)),
        fact(group, "virtualisation {}", "gpu.virtualisation"),
    ])  # fmt: skip
    return f"{number}{group.fact('device_name') or 'an unnamed NVIDIA GPU'} ({known})"


def host_facts(group: Group) -> str:
    """Cores, caches, main memory, and their limits."""
    container = group.fact("container")
    return comma_list([
        fact(group, "{} cores", "cores"),
        fact(group, "{} L3 cache", "caches.L3", mebibytes),
        fact(group, "{} main memory", "host_memory_bytes", gibibytes)
        or "main memory not recorded",
        fact(group, "governor {}", "cpu_governor"),
        fact(group, "limited to {} processors", "cpu_limit") if isinstance(
            group.fact("cpu_limit"), int | float) else None,
        f"in a container ({container})" if container not in (None, "none found") else None,
    ])  # fmt: skip


STATES = {
    "temperature_C": "GPU temperature {} C",
    "sm_clock_MHz": "SM clock {} MHz",
    "memory_clock_MHz": "memory clock {} MHz",
    "cpu_MHz": "first core's clock {} MHz",
    "load_average": "load average {}",
    "other_processes": "other processes on the GPU {}",
}
"""Fact that varies from run to run -> its words."""


def state(group: Group, when: str) -> dict[str, str | None]:
    """Temperature, clocks and other users, as far as recorded."""
    seen = {name: group.states(name, when) for name in STATES}
    return {
        name: STATES[name].format(ends(values, lambda v: f"{v:g}")) if values else None
        for name, values in seen.items()
    }


def plan(records: Sequence[Measurement]) -> dict[str, str | None]:
    """Numbers of records, implementations and mixers, dates, sizes, seeds and failures."""
    days = sorted(r.created for r in records)
    seeds = sorted({r.counts["seed"] for r in records if "seed" in r.counts})
    lost = Counter(str(r.failure.get("kind", "unknown cause")) for r in records if r.failure)
    compiled = sum(r.compiled for r in records)
    some = f"{compiled} of {plural(len(records), 'run')}"
    return {
        "runs": plural(len(records), "run"),
        "implementations": plural(
            len({(r.mixer, r.implementation) for r in records}), "implementation"
        ),
        "mixers": plural(len({r.mixer for r in records}), "mixer"),
        "when": f"between {days[0]} and {days[-1]}" if days[0] != days[-1] else f"at {days[0]}",
        "sizes": sizes(records),
        "dtypes": ", ".join(dict.fromkeys(r.dtype for r in records)),
        "phases": ", ".join(PHASES.get(p, p) for p in dict.fromkeys(r.phase for r in records)),
        "seeds": ", ".join(map(str, seeds)),
        "failed": f"{lost.total()} of them: {numbered(lost)}" if lost else None,
        "compiled": ("all runs" if compiled == len(records) else some) if compiled else None,
    }


def sizes(records: Sequence[Measurement]) -> str:
    """Each size with its values; with more than four, the first, the last and their number."""
    found = []
    for letter in LETTERS:
        values = sorted({r.sizes[letter] for r in records if letter in r.sizes})
        if values:
            few = ", ".join(map(str, values))
            many = f"{values[0]} to {values[-1]} ({len(values)} values)"
            found.append(f"{letter} = {few if len(values) <= 4 else many}")
    return "; ".join(found) or "not recorded"


def medians_of(group: Group, name: str) -> list[Reading]:
    """The readings of this name that are no estimates of a busy machine."""
    return [r for r in group.readings(name) if grade_of(r) == QUIET]


def estimates(group: Group) -> str:
    """The estimates of a busy machine, by latency; "" if there are none."""
    found = {
        words: readings_words([r for r in group.readings(name) if grade_of(r) == BUSY])
        for name, words in zip(LATENCIES, KINDS_OF_LATENCY, strict=True)
    }
    return "; ".join(f"{words} {said}" for words, said in found.items() if said)


def readings_words(readings: Sequence[Reading]) -> str | None:
    """`1.2 ms to 1.4 ms in 5 runs, 20 to 100 samples each`; None without readings of one name."""
    if not readings:
        return None
    name = readings[0].name
    whole = readings[0].unit == "B"
    values = ends(
        [r.value for r in readings],
        lambda value: f"{value:,.0f}" if whole else scaled(value, readings[0].unit),
    )
    said = f"{values}{' B' * whole} in {plural(len(readings), 'run')}"
    if whole or name == "compile":
        return said
    numbers = [len(reading.samples) for reading in readings]
    noun = "trial" if readings[0].unit == "J" else "sample"
    return f"{said}, {ends(numbers, str)} {noun}{'s' * (max(numbers) > 1)} each"


def times(group: Group) -> dict[str, str | None]:
    """Why sampling stopped, and the total time of timed calls, a lower bound of the compute
    time."""
    timed = [reading for name in LATENCIES for reading in group.readings(name)]
    known = [seconds for reading in timed if (seconds := timed_s(reading))]
    rest = len(timed) - len(known)
    lacking = f" ({plural(rest, 'reading')} without this figure)" if rest else ""
    return {
        "stopped": numbered(Counter(r.details.get("stop_rule", "not recorded") for r in timed)),
        "spent": f"{scaled(sum(known), 's')}{lacking}" if known else None,
    }


def timed_s(reading: Reading) -> float | None:
    """Seconds of a reading's timed calls in all its processes; None if unknown."""
    if "sampled_s" in reading.details:
        return float(reading.details["sampled_s"])
    if "comparison" in reading.details or "block" not in reading.details:
        return None
    return float(sum(reading.samples)) * int(reading.details["block"])


def memory(group: Group) -> dict[str, str | None]:
    """Peak memory of calls, and the number of runs that do not agree to the byte."""
    loose = sum(r.details.get("agree") is False for r in group.readings("peak_memory"))
    return {
        "peak_memory": readings_words(group.readings("peak_memory")),
        "loose": plural(loose, "run") if loose else None,
    }


def energy(group: Group) -> dict[str, str | None]:
    """Joules per call, with trials and systematic error."""
    readings = group.readings("energy")
    gains = {float(r.details["systematic"]) for r in readings if "systematic" in r.details}
    methods = {str(r.details.get("method", "not recorded")) for r in readings}
    return {
        "energy": readings_words(group.readings("energy")),
        "energy_net": readings_words(group.readings("energy_net")),
        "systematic": ", ".join(f"{gain:.0%}" for gain in sorted(gains)) or "unknown size",
        "method": ", ".join(sorted(methods)),
    }


def counters(group: Group) -> dict[str, str | None]:
    """The tool that read hardware counters, and whether it counted known kernels correctly."""
    read = [r.counts["hardware"] for r in group.records if "hardware" in r.counts]
    labels = dict.fromkeys(label for found in read for label in found["labels"])
    if not read:
        return {}
    return {
        "counted": plural(len(read), "run"),
        "ncu": ", ".join(dict.fromkeys(found["ncu"] for found in read)),
        "calibrated": f"tell: {'; '.join(labels)}" if labels else "were counted rightly",
    }


def bars(group: Group) -> dict[str, str | None]:
    """Error bars: the variation that they cover, and their widths; and labels."""
    timed = [r for name in LATENCIES for r in medians_of(group, name)]
    joules = group.readings("energy")
    alone = [r for r in timed if processes_in(r) == 1]
    spanning = [r for r in (*timed, *joules) if processes_in(r) > 1]
    levels = sorted({float(r.details.get("confidence", CONFIDENCE)) for r in spanning})
    found = {
        "timed_bar": widest(alone, "its median"),
        "energy_bar": widest([r for r in joules if processes_in(r) == 1], "its mean"),
        "processes_bar": widest(spanning, "its median"),
    }
    told = [
        reading.details["labels"]
        for record in group.records
        for reading in record.readings.values()
        if "labels" in reading.details
    ]
    labels = Counter(label for each in told for label in each)
    return found | {
        "spanning": plural(len(spanning), "reading"),
        "processes": ends([processes_in(r) for r in spanning], str) if spanning else None,
        "confidence": " or ".join(f"{level:.1%}" for level in levels),
        "unseen": ("processes, machines" if alone else "machines") if any(found.values()) else None,
        "labels": (numbered(labels) or "none") if told else None,
    }


def widest(readings: Sequence[Reading], of: str) -> str | None:
    """The largest distance from a value to an end of its interval, relative to the value; None
    without intervals."""
    found = [
        max(float(high) - reading.value, reading.value - float(low)) / abs(reading.value)
        for reading in readings
        if (low := reading.details.get("ci_low")) is not None
        and (high := reading.details.get("ci_high")) is not None
        and reading.value
    ]
    if not found:
        return None
    width = max(found)
    return f"{width:.1%} of {of}" if width < 1 else f"{width:.3g} times {of}"


PROGRAMS = {
    "python": "Python", "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "triton": "Triton",
    "numpy": "NumPy", "nvidia_ml_py": "nvidia-ml-py", "ncu": "Nsight Compute",
    "package": "costmodel",
}  # fmt: skip


def software(group: Group) -> dict[str, str | None]:
    """Versions, and the settings and variables that affect speed or precision."""
    versions = [f"{said} {group.fact(name)}" for name, said in PROGRAMS.items() if group.fact(name)]
    revision, platform = group.fact("revision"), group.fact("platform")
    chosen = [f"{name} = {value}" for name, value in (group.facts.get("settings") or {}).items()]
    set_ = [f"{name}={value}" for name, value in (group.facts.get("variables") or {}).items()]
    on = f" on {platform}" if platform else ""
    return {
        "software": comma_list([*versions, revision and f"revision {revision}"]) + on,
        "revision": revision,
        "settings": "; ".join([*(["torch: " + ", ".join(chosen)] if chosen else []), *set_]),
    }


def unknown_versions(group: Group) -> list[str]:
    """The programs whose versions a paper needs and no record states."""
    needed = ["python", "torch", "package", *(["cuda", "cudnn", "triton"] * group.on_gpu)]
    return [f"the version of {PROGRAMS[name]}" for name in needed if not group.fact(name)]


def unmeasured(group: Group) -> list[str]:
    """The readings that some records lack, with their reasons; latencies without an interval."""
    found = []
    for name, words in EXPECTED.items():
        asked = [r for r in group.records if name != "compile" or r.compiled]
        lacking = [r for r in asked if name not in r.readings]
        reasons = dict.fromkeys(r.reasons[name] for r in lacking if name in r.reasons)
        some = f" in {plural(len(lacking), 'run')}" if len(lacking) < len(asked) else ""
        if lacking:
            found.append(f"{words}{some}" + (f" ({'; '.join(reasons)})" if reasons else ""))
    timed = [r for name in LATENCIES for r in group.readings(name)]
    if bare := sum(r.details.get("ci_low") is None for r in timed):
        found.append(f"an interval of {plural(bare, 'latency', 'latencies')}")
    return found


def fact(
    group: Group, words: str, name: str, shown: Callable[[Any], Any] = lambda value: value
) -> str | None:
    """A fact of the environment in words; None if unknown."""
    value = group.fact(name)
    if value is None:
        return None
    value = shown(value)
    return words.format(f"{value:g}" if isinstance(value, float) else value)


def comma_list(known: Iterable[str | None]) -> str:
    """The known facts, separated by commas."""
    return ", ".join(text for text in known if text)


def numbered(found: Mapping[str, int]) -> str:
    """`median settled (2), time cap (1)`, most frequent first."""
    return ", ".join(f"{name} ({number})" for name, number in Counter(found).most_common())


def ends(values: Sequence[Any], words: Callable[[Any], str]) -> str:
    """`1.2 ms to 3.4 ms`, or one value if both ends have equal words."""
    low, high = words(min(values)), words(max(values))
    return low if low == high else f"{low} to {high}"


def plural(number: int, noun: str, several: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def gibibytes(value: float) -> str:
    """Bytes in GiB."""
    return f"{value / 2**30:.4g} GiB"


def mebibytes(value: float) -> str:
    """Bytes in MiB."""
    return f"{value / 2**20:.4g} MiB"
