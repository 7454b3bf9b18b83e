"""The paragraph on compute, error bars and software that a paper may print about its records.

It answers the checklists of conferences (NeurIPS: experiments' compute resources and statistical
significance; ACL: computing infrastructure, runtime or energy): device, memory, time, energy,
software, number of runs, error bars and their computation. A sentence is printed if the records
have all of its facts (else "" is yielded in its place); missing facts are listed at the end, with
their reasons. A *group* holds the records of one machine with one set of software, and their common
facts (`machine_groups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from costmodel.report.document import Document, Paragraph, Strong
from costmodel.symbolic.sizes import in_order
from profiler.host.machine_groups import Group, machine_groups
from profiler.meters.intervals import CONFIDENCE, processes_in
from profiler.records.environments import environment_differences
from profiler.records.grades import QUIET, grade_of, undisturbed
from profiler.records.measurement import Measurement
from profiler.records.quantities import LATENCIES
from profiler.records.reading import Reading
from profiler.records.words import PHASES, scaled

OUTSIDE = (
    "The records name neither the provider of the machine and its storage, nor the compute of "
    "preliminary, failed or discarded runs."
)
KINDS_OF_LATENCY = {
    "latency": "with warm caches", "latency_cold": "with cold caches",
    "latency_graph": "of CUDA graph replays",
}  # fmt: skip
EXPECTED = {
    "latency": "latency", "peak_memory": "memory", "energy": "energy", "compile": "compiling",
}  # fmt: skip
"""Reading that every measurement should have -> its name; `compile` only if it was asked for."""


def document(records: Sequence[Measurement]) -> Document:
    """The statement as a document."""
    return Document(lambda: paragraphs(records))


def paragraphs(records: Sequence[Measurement]) -> list[Paragraph]:
    """The paragraphs on compute of a paper: one per group (a machine with one set of software), and
    one on what records never state. Raises ValueError: there are no records."""
    if not records:
        raise ValueError("expected one record or more, got none")
    found = machine_groups(records)
    texts = []
    for number, group in enumerate(found, start=1):
        told = [text for part in PARTS for text in part(group) if text]
        if len(found) > 1:
            apart = environment_differences(found[0].facts, group.facts)
            beside = f", which differs from the first in {'; '.join(apart) or 'unknown facts'}"
            told = [f"Environment {number} of {len(found)}{beside * (number > 1)}.", *told]
        texts.append(" ".join(told))
    first, *others = [*texts, OUTSIDE]
    lead = Paragraph((Strong("Compute resources."), f" {first}"))
    return [lead, *(Paragraph((text,)) for text in others)]


def said(words: str, fact: Any) -> str:
    """Words around a fact; "" if the fact is unknown."""
    return words.format(fact) if fact else ""


def machine(group: Group) -> Iterator[str]:
    """Yield sentences on board, processor, memory, and the facts that vary from run to run (their
    values before anything ran, where they differ from those afterwards)."""
    threads = group.fact("threads")
    number = "an unknown number of threads" if threads is None else plural(threads, "thread")
    host = f"{group.fact('cpu') or 'a processor whose name is not recorded'} ({host_facts(group)})"
    where = f"{board(group)}; host" if group.on_gpu else f"a CPU with {number}"
    yield f"Measurements ran on {where}: {host}."
    last, first = (state(group, when) for when in ("state", "state_before"))
    yield said("When the records were written: {}.", comma_list(last.values()))
    changed = comma_list(text for name, text in first.items() if text != last[name])
    yield said("Before anything ran: {}.", changed)


def board(group: Group) -> str:
    """The GPU in words, with its known facts in brackets, and how many boards."""
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
        fact(group, "MIG {}", "gpu.mig_mode"),
        fact(group, "virtualisation {}", "gpu.virtualisation"),
    ])  # fmt: skip
    return f"{number}{group.fact('device_name') or 'an unnamed NVIDIA GPU'} ({known})"


def host_facts(group: Group) -> str:
    """Words on the host's cores, cache, main memory, and limits of their use; facts not recorded
    are left out, but main memory is said to be unknown."""
    container, limit = group.fact("container"), group.fact("cpu_limit")
    return comma_list([
        fact(group, "{} cores", "cores"),
        fact(group, "{} L3 cache", "caches.L3", mebibytes),
        fact(group, "{} main memory", "host_memory_bytes", gibibytes)
        or "main memory not recorded",
        fact(group, "governor {}", "cpu_governor"),
        f"limited to {limit:g} processors" if isinstance(limit, int | float) else None,
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


def state(group: Group, when: str) -> dict[str, str]:
    """A dict: name of a fact of `STATES` -> the fact in words, as a range over the records; "" if
    unknown. `when`: "state", as a record was written, or "state_before", before its measurement."""
    seen = {name: group.states(name, when) for name in STATES}
    return {
        name: said(STATES[name], values and ends(values, lambda v: f"{v:g}"))
        for name, values in seen.items()
    }


def runs(group: Group) -> Iterator[str]:
    """Yield sentences on the numbers of records, implementations and mixers, on dates, sizes,
    types, phases, seeds, failures, and how many runs torch.compile compiled."""
    records = group.records
    first, last = (end(r.created for r in records) for end in (min, max))
    implementations = plural(len({(r.mixer, r.implementation) for r in records}), "implementation")
    mixers = plural(len({r.mixer for r in records}), "mixer")
    when = f"between {first} and {last}" if first != last else f"at {first}"
    dtypes = ", ".join(dict.fromkeys(r.dtype for r in records))
    phases = ", ".join(PHASES[p] for p in dict.fromkeys(r.phase for r in records))
    all_runs = plural(len(records), "run")
    yield (
        f"{all_runs} of {implementations} of {mixers} {when}, sizes {sizes(group)}, {dtypes}, "
        f"{phases}."
    )
    yield said("Seeds: {}.", seeds(group))
    lost = Counter(str(r.failure.get("kind", "unknown cause")) for r in records if r.failure)
    yield said("Failed: {}.", lost and f"{lost.total()} of them: {numbered(lost)}")
    compiled = sum(r.compiled for r in records)
    some = "all runs" if compiled == len(records) else f"{compiled} of {all_runs}"
    yield said(
        "In {} latency and energy are of what torch.compile made of the module; memory and "
        "operations are of the module itself.",
        compiled and some,
    )


def seeds(group: Group) -> str:
    """The recorded seeds, sorted, as text: `0, 1`; "" if no record has one."""
    found = {record.counts["seed"] for record in group.records if "seed" in record.counts}
    return ", ".join(map(str, sorted(found)))


def sizes(group: Group) -> str:
    """Words on each size with its values, "l = 128, 256; d = 64"; with more than four values, the
    first, the last and their number."""
    found = []
    for letter in in_order({letter for r in group.records for letter in r.sizes}):
        values = sorted({r.sizes[letter] for r in group.records if letter in r.sizes})
        if values:
            few = ", ".join(map(str, values))
            many = f"{values[0]} to {values[-1]} ({len(values)} values)"
            found.append(f"{letter} = {few if len(values) <= 4 else many}")
    return "; ".join(found) or "not recorded"


def quiet(group: Group, name: str) -> list[Reading]:
    """The readings of this name with the grade "quiet"."""
    return [r for r in group.readings(name) if grade_of(r) == QUIET]


def latencies(group: Group) -> list[Reading]:
    """All readings of a call's duration: with warm and cold caches, and of graph replays."""
    return [reading for name in LATENCIES for reading in group.readings(name)]


def times(group: Group) -> Iterator[str]:
    """Yield sentences on times of compiling and of calls (quiet: medians with intervals; of one
    undisturbed sample, without an interval; busy: estimates; see `records.grades`), why sampling
    stopped, and how long all timed calls took."""
    yield said(
        "Compiling took {}, which no latency includes.", readings_words(quiet(group, "compile"))
    )
    busy = []
    for name, kind in KINDS_OF_LATENCY.items():
        warm = " (calls back to back)" if name == "latency" else ""
        median = readings_words(quiet(group, name))
        yield said(f"Medians of latency {kind}{warm}: {{}}.", median)
        others = [r for r in group.readings(name) if grade_of(r) != QUIET]
        once = readings_words([r for r in others if undisturbed(r)])
        yield said(f"Latency {kind}, without an interval: {{}}.", once)
        estimate = readings_words([r for r in others if not undisturbed(r)])
        busy += [f"{kind} {estimate}"] if estimate else []
    yield said(
        "Estimates of a busy machine (each a low quantile of short timed intervals, or of times on "
        "a processor, in a range from below the least to the median, without a confidence): {}.",
        "; ".join(busy),
    )
    stopped = Counter(r.details.get("stop_rule", "not recorded") for r in latencies(group))
    yield said("Why sampling stopped: {}.", numbered(stopped))
    yield said(
        "The timed calls took {} in all; building, warming up, counting and energy measurements "
        "come on top and are not recorded.",
        timed_calls(group),
    )


def timed_calls(group: Group) -> str:
    """The total time of timed calls in words, a lower bound of the compute time; "" if unknown."""
    timed = latencies(group)
    known = [seconds for reading in timed if (seconds := timed_s(reading))]
    rest = len(timed) - len(known)
    lacking = f" ({plural(rest, 'reading')} without this figure)" if rest else ""
    return f"{scaled(sum(known), 's')}{lacking}" if known else ""


def timed_s(reading: Reading) -> float | None:
    """The total seconds of a reading's timed calls in all its processes; None if unknown.

    An older record gives the seconds per call of each region (`samples`) and the calls in a region
    (`block`), except if its samples are means over a round (`comparison`).
    """
    if "sampled_s" in reading.details:
        return float(reading.details["sampled_s"])
    if "comparison" in reading.details or "block" not in reading.details:
        return None
    return float(sum(reading.samples)) * int(reading.details["block"])


def readings_words(readings: Sequence[Reading]) -> str:
    """Readings of one name in words: `1 ms to 2 ms in 5 runs, 20 samples each`; "" for none."""
    if not readings:
        return ""
    name, unit = readings[0].name, readings[0].unit
    whole = unit == "B"
    values = ends([r.value for r in readings], lambda v: f"{v:,.0f}" if whole else scaled(v, unit))
    told = f"{values}{' B' * whole} in {plural(len(readings), 'run')}"
    if whole or name == "compile":
        return told
    numbers = [len(reading.samples) for reading in readings]
    noun = "trial" if unit == "J" else "sample"
    return f"{told}, {ends(numbers, str)} {noun}{'s' * (max(numbers) > 1)} each"


def memory_and_energy(group: Group) -> Iterator[str]:
    """Yield sentences on the peak memory of calls, repeated runs of one call whose peaks differ,
    and joules per call, gross and net of idle power."""
    peaks, joules = group.readings("peak_memory"), group.readings("energy")
    yield said("Peak memory of a call beyond weights and inputs: {}.", readings_words(peaks))
    loose = sum(r.details.get("agree") is False for r in peaks)
    yield said("Repeated runs did not agree to the byte in {}.", loose and plural(loose, "run"))
    gains = sorted({float(r.details["systematic"]) for r in joules if "systematic" in r.details})
    methods = sorted({str(r.details.get("method", "not recorded")) for r in joules})
    error = ", ".join(f"{gain:.0%}" for gain in gains) or "unknown size"
    if joules:
        yield (
            f"Gross energy a call: {readings_words(joules)}, method: {', '.join(methods)}; the "
            f"sensor's systematic error of {error} comes on top."
        )
    yield said("Energy net of idle power: {}.", readings_words(group.readings("energy_net")))


def counters(group: Group) -> Iterator[str]:
    """Yield sentences on the tool that read hardware counters, and on the labels of the counts or,
    without labels, that it counted known kernels correctly; none if no record has counters."""
    read = [r.counts["hardware"] for r in group.records if "hardware" in r.counts]
    labels = dict.fromkeys(label for found in read for label in found["labels"])
    if not read:
        return
    yield said(
        f"Hardware counters of {plural(len(read), 'run')} were read by Nsight Compute {{}} in "
        "processes of their own, in which kernels ran one by one and nothing was timed; clocks "
        "were left alone.",
        ", ".join(dict.fromkeys(found["ncu"] for found in read)),
    )
    yield said("Labels of the counts: {}.", "; ".join(labels))
    if not labels:
        yield "Kernels of known work, counted in the same way, were counted rightly."


def bars(group: Group) -> Iterator[str]:
    """Yield sentences on error bars (the variation that they cover, their widths) and on labels."""
    timed = [r for name in LATENCIES for r in quiet(group, name)]
    joules = group.readings("energy")
    # readings of one process, and readings with a value from each of several
    alone = [r for r in timed if processes_in(r) == 1]
    spanning = [r for r in (*timed, *joules) if processes_in(r) > 1]
    timed_bar, processes_bar = widest(alone, "its median"), widest(spanning, "its median")
    energy_bar = widest([r for r in joules if processes_in(r) == 1], "its mean")
    yield said(
        "Error bars of latency are 95 % confidence intervals of the median, by order statistics of "
        "blocks of samples within one process, whatever their distribution; the widest is {} to "
        "one side.",
        timed_bar,
    )
    yield said(
        "Error bars of energy are confidence intervals of the mean of trials by Student's t, which "
        "takes them as normal; the widest is {} to one side.",
        energy_bar,
    )
    if spanning and processes_bar:
        levels = sorted({float(r.details.get("confidence", CONFIDENCE)) for r in spanning})
        yield (
            f"Error bars of {plural(len(spanning), 'reading')} span "
            f"{ends([processes_in(r) for r in spanning], str)} fresh processes, one value each, by "
            "order statistics, with a confidence of "
            f"{' or '.join(f'{level:.1%}' for level in levels)}; the widest is {processes_bar} to "
            "one side."
        )
    if timed_bar or energy_bar or processes_bar:
        unseen = "processes, machines" if alone else "machines"
        yield f"Differences between {unseen} and days are in no error bar."
    yield said("Labels of readings: {}.", labels(group))


def labels(group: Group) -> str:
    """The labels of all readings, or `none`; "" if no reading states its labels."""
    readings = [reading for record in group.records for reading in record.readings.values()]
    told = [reading.details["labels"] for reading in readings if "labels" in reading.details]
    return numbered(Counter(label for each in told for label in each)) or ("none" if told else "")


def widest(readings: Sequence[Reading], of: str) -> str:
    """Words for the largest distance from a value to an end of its interval, relative to the value:
    `3.2% of its median`, where `of` is "its median"; "" without intervals."""
    found = [
        max(abs(end - reading.value) for end in reading.interval) / abs(reading.value)
        for reading in readings
        if reading.interval is not None and reading.value
    ]
    if not found:
        return ""
    width = max(found)
    return f"{width:.1%} of {of}" if width < 1 else f"{width:.3g} times {of}"


PROGRAMS = {
    "python": "Python", "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "triton": "Triton",
    "numpy": "NumPy", "nvidia_ml_py": "nvidia-ml-py", "ncu": "Nsight Compute",
    "package": "costmodel",
}  # fmt: skip


def software(group: Group) -> Iterator[str]:
    """Yield two sentences: on versions; and on the settings and environment variables that affect
    speed or precision. An unknown version is left out, a sentence without a fact is ""."""
    versions = [f"{name} {group.fact(each)}" for each, name in PROGRAMS.items() if group.fact(each)]
    versions += [said("revision {}", group.fact("revision"))]
    yield said("Software: {}.", comma_list(versions) + said(" on {}", group.fact("platform")))
    chosen = [f"{name} = {value}" for name, value in (group.facts.get("settings") or {}).items()]
    set_ = [f"{name}={value}" for name, value in (group.facts.get("variables") or {}).items()]
    torch_settings = ["torch: " + ", ".join(chosen)] if chosen else []
    yield said("Settings: {}.", "; ".join([*torch_settings, *set_]))


def missing(group: Group) -> Iterator[str]:
    """Yield two sentences: on the readings of `EXPECTED` that some records lack, with their
    reasons, and latencies without an interval; and on the facts that no record states."""
    found = []
    for name, words in EXPECTED.items():
        asked = [r for r in group.records if name != "compile" or r.compiled]
        lacking = [r for r in asked if name not in r.readings]
        reasons = dict.fromkeys(r.reasons[name] for r in lacking if name in r.reasons)
        some = f" in {plural(len(lacking), 'run')}" if len(lacking) < len(asked) else ""
        if lacking:
            found.append(f"{words}{some}" + (f" ({'; '.join(reasons)})" if reasons else ""))
    if bare := sum(r.interval is None for r in latencies(group)):
        found.append(f"an interval of {plural(bare, 'latency', 'latencies')}")
    yield said("Not measured: {}.", "; ".join(found))
    recorded = {
        "seeds": seeds(group),
        "how long the timed calls took": timed_calls(group),
        "disturbances": labels(group),
        "the revision of costmodel": group.fact("revision"),
    }
    needed = ["python", "torch", "package", *(["cuda", "cudnn", "triton"] * group.on_gpu)]
    recorded |= {f"the version of {PROGRAMS[name]}": group.fact(name) for name in needed}
    unknown = [words for words, fact in recorded.items() if not fact]
    yield said("Not recorded: {}.", ", ".join(unknown))


PARTS: tuple[Callable[[Group], Iterator[str]], ...] = (
    machine, runs, times, memory_and_energy, counters, bars, software, missing,
)  # fmt: skip
"""The sentences on one machine's records, in order; "" for a sentence with an unknown fact."""


def fact(
    group: Group, words: str, name: str, shown: Callable[[Any], Any] = lambda value: value
) -> str | None:
    """A fact of the environment in words: `words` with the fact, as `shown` makes it readable, in
    place of {}; None if the fact is unknown."""
    value = group.fact(name)
    if value is None:
        return None
    value = shown(value)
    return words.format(f"{value:g}" if isinstance(value, float) else value)


def comma_list(known: Iterable[str | None]) -> str:
    """The known facts, separated by commas; None and "" are left out."""
    return ", ".join(text for text in known if text)


def numbered(found: Mapping[str, int]) -> str:
    """`median settled (2), time cap (1)`, most frequent first."""
    return ", ".join(f"{name} ({number})" for name, number in Counter(found).most_common())


def ends(values: Sequence[Any], words: Callable[[Any], str]) -> str:
    """`1.2 ms to 3.4 ms`, or one value if both ends have equal words."""
    low, high = words(min(values)), words(max(values))
    return low if low == high else f"{low} to {high}"


def plural(number: int, noun: str, several: str = "") -> str:
    """`1 run`, `2 runs`; `several` is the plural of a noun that does not just add an s."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def gibibytes(value: float) -> str:
    """Bytes in GiB."""
    return f"{value / 2**30:.4g} GiB"


def mebibytes(value: float) -> str:
    """Bytes in MiB."""
    return f"{value / 2**20:.4g} MiB"
