"""The schema of a record: the type and the bounds of every fact that a command reads.

Files of records may come from anybody, so every fact that a command reads has its type and bounds
here. Other facts are kept as they are, so that newer versions may add some; they too are finite
numbers, texts without control characters, lists and objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal, Required, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Struct


class RecordError(ValueError):
    """A value is not a record; one sentence names the field and says why."""


LARGEST = 2**63 - 1
"""The largest magnitude of a whole number in a record."""
DEEPEST = 30
"""The largest depth of nested objects and lists in a record."""

Text = Annotated[str, Meta(max_length=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Size = Annotated[int, Meta(ge=1, le=2**53)]
Number = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | Annotated[float, Meta(ge=-1e30, le=1e30)]
Amount = Annotated[int, Meta(ge=0, le=LARGEST)] | Annotated[float, Meta(ge=0, le=1e30)]
PHASES = r"\A(training|inference|backward|training-step)\Z"
DEVICES = r"\A(cpu|cuda)(:[0-9]{1,4})?\Z"
IN_WORDS: Mapping[str, str] = {
    PHASES: "training, inference, backward or training-step",
    DEVICES: "cpu, cuda, or cuda with a number, cuda:0",
}
"""Pattern of a text -> the texts that fit the pattern, for messages."""
Phase = Annotated[str, Meta(pattern=PHASES)]
Device = Annotated[str, Meta(pattern=DEVICES)]
Samples = Annotated[tuple[Number, ...], Meta(max_length=1_000_000)]


class LiveTensor(TypedDict, total=False):
    """A tensor that was alive, or `number` equal ones of `bytes` each: the `operation` that made
    it, in the autograd `node` ("" in a forward pass), its `shape` and the shapes of its `views`,
    its `name` if the call returns it under one, and the `cause` if it is no array of equations."""

    operation: Required[Text]
    node: Required[Text]
    shape: Required[list[Count] | None]
    dtype: Required[Text | None]
    bytes: Required[Count]
    cause: Required[Text]
    name: Required[Text]
    views: Required[list[list[Count]]]
    number: Required[Size]


class Details(TypedDict, total=False):
    """How a reading was obtained. Of a time: `block`, calls in a timed region (a sample is the time
    of one of them); `n`, samples; `blocks`, samples in each block; `sampled_s`, seconds of all
    timed calls; `processor_s`, seconds of a call on a processor. Of bytes: `agree`, whether
    repeated runs agree; `allocated`, in whole blocks of the allocator. Of an energy: `systematic`
    and `common_error`, relative errors that its trials share."""

    agree: bool
    allocated: Amount
    alone_s: list[Amount]
    block: Size
    blocks: list[Size]
    candidate: Name
    ci_high: Number | None
    ci_low: Number | None
    ci_missing: Text
    common_error: Amount
    comparison: Name
    confidence: Amount
    disturbances: list[Text]
    grade: Literal["quiet", "busy"]
    graph_gain: Amount
    idle_W: Amount
    labels: list[Text]
    launch_bound: bool
    left_out_blocks: Count
    method: Text
    n: Count
    operations: Count
    order_seed: Count
    p20: Amount
    p80: Amount
    processes: list[dict[str, Any]]
    processor_s: Amount | None
    released: Count
    rounding: Count
    sampled_s: Amount
    side: Size
    stop_rule: Text
    systematic: Amount
    tensors: list[LiveTensor]


class Operations(TypedDict):
    """Numbers of operations by class."""

    mul: Count
    add: Count
    div: Count
    exp: Count
    other: dict[str, Count]


class DispatchedOperation(TypedDict, total=False):
    """Totals over the calls of one torch operation."""

    calls: Count
    operations: Operations
    bytes_read: Count
    bytes_written: Count
    products: list[Annotated[list[Count], Meta(min_length=5, max_length=5)]]


class UncountedOperation(TypedDict, total=False):
    """The calls of a torch operation that has no counting rule."""

    calls: Required[Count]
    bytes_touched: Count
    reason: Text


class Dispatch(TypedDict, total=False):
    """The figures of the dispatch counter."""

    operations: Required[Operations]
    constants: dict[str, Operations]
    by_op: Required[dict[str, DispatchedOperation]]
    unknown: Required[dict[str, UncountedOperation]]
    launched: Required[Count]
    complete: bool
    dispatched: Count


class Peer(TypedDict, total=False):
    """The figures that another counter (torch's, fvcore's) printed, in `unit`."""

    total: Required[Count]
    unit: Required[Literal["flop", "mac"]]
    uncounted: Required[dict[str, Count]]
    uncounted_time_share: Required[Annotated[float, Meta(ge=0, le=1)] | None]
    by_op: dict[str, Count]
    moved: dict[str, Count]
    name: Text


class Calibration(TypedDict, total=False):
    """The hardware counters' figures for kernels of known work."""

    halves: Required[Amount | None]
    entries: Required[Size]
    functions: Required[dict[str, dict[str, Count]]]


class Hardware(TypedDict, total=False):
    """The figures of a GPU's hardware counters."""

    chip: Required[Text]
    ncu: Required[Text]
    executed: Required[dict[str, Count] | None]
    opcodes: Required[dict[str, Count] | None]
    tiles: Required[list[tuple[Count, Count, Count]]]
    calibration: Required[Calibration]
    labels: Required[list[Text]]
    reasons: Required[dict[str, Text]]


class Network(TypedDict, total=False):
    """How a network was trained."""

    optimiser: Text
    learning_rate: Amount
    steps: Size
    steps_a_visit: Size
    data: Text


class Counts(TypedDict, total=False):
    """The figures of all counters: `forward`, the names of a forward pass's operations beside a
    backward pass; `zeros`, the backward pass's operations on zeros for missing gradients; `traced`,
    those of the formulas of a module without equations; `call`, how the call was made."""

    seed: Count
    call: dict[str, Any]
    dispatch: Dispatch
    forward: list[Name]
    zeros: Operations
    traced: Operations
    peers: dict[str, Peer]
    hardware: Hardware
    network: Network


class Options(TypedDict, total=False):
    """The options of a request that the other fields of its record do not hold."""

    compile: bool
    shared: bool
    energy: bool
    energy_window_s: Amount
    energy_trials: Size
    counters: bool


class Place(TypedDict, total=False):
    """The place of a record in a sweep or a comparison."""

    round: Count
    turn: Count
    order_seed: Count
    process: Count
    plan: Name
    comparison: Name
    processes: Size
    worker: Text
    options: Options


class Failure(TypedDict, total=False):
    """Why nothing was measured: the kind, and bytes requested and free."""

    kind: Name
    requested: Text
    free: Text


class Board(TypedDict, total=False):
    """Facts that distinguish one GPU from another."""

    uuid: Text
    driver: Text
    power_limit_W: Amount
    mig_mode: Text
    virtualisation: Text
    ecc: Text
    persistence: Text
    max_sm_clock_MHz: Amount
    max_memory_clock_MHz: Amount
    memory_bus_bits: Count


class State(TypedDict, total=False):
    """Facts that vary from run to run."""

    load_average: Amount
    cpu_MHz: Amount
    temperature_C: Number
    power_W: Amount
    sm_clock_MHz: Amount
    memory_clock_MHz: Amount
    clock_events: list[Text]
    used_memory_bytes: Count
    compute_processes: Count
    other_processes: Count
    other_memory_bytes: Count


class Environment(TypedDict, total=False):
    """Machine, software and state; null means unknown, as in records of older versions."""

    python: Text | None
    torch: Text | None
    numpy: Text | None
    triton: Text | None
    nvidia_ml_py: Text | None
    package: Text | None
    revision: Text | None
    cuda: Text | None
    cudnn: Text | None
    ncu: Text | None
    platform: Text | None
    cpu: Text | None
    cpu_governor: Text | None
    cpu_limit: Amount | Text | None
    cpu_max_MHz: Amount | None
    cpu_boost: Text | None
    cores: Count | None
    usable_cores: Count | None
    physical_cores: Count | None
    caches: dict[str, Count] | None
    host_memory_bytes: Count | None
    container: Text | None
    threads: Count | None
    interop_threads: Count | None
    variables: dict[str, Text] | None
    settings: dict[str, Any] | None
    device: Text | None
    device_name: Text | None
    compute_capability: Text | None
    multiprocessors: Count | None
    device_memory_bytes: Count | None
    l2_bytes: Count | None
    gpu: Board | None
    state: State | None
    state_before: State | None
    command: Text | None
    reasons: dict[str, Text] | None


Kind = TypeVar("Kind")


class Record(Struct, frozen=True):
    """Fields that are written as JSON values by `to_json`, and read and checked by `checked`."""

    WRITTEN: ClassVar[tuple[str, ...]] = ()
    """The names of the fields and properties that are written, in order; () for all fields."""

    def written(self) -> dict[str, Any]:
        """A dict: name -> what is written: JSON values, tuples and records."""
        return {name: getattr(self, name) for name in self.WRITTEN or self.__struct_fields__}

    def to_json(self) -> dict[str, Any]:
        """What is written, as JSON values; RecordError for other values (see `plain`)."""
        found: dict[str, Any] = plain(self)
        return found


def checked(value: Any, kind: type[Kind], where: str) -> Kind:
    """`value` converted to the type `kind`; RecordError names the wrong field, below `where`, and
    what was expected, a pattern in words (`IN_WORDS`).

    >>> checked({"round": -1}, Place, "sweep")
    Traceback (most recent call last):
    ...
    profiler.records.schema.RecordError: sweep.round: expected `int` >= 0
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        place = (where + with_key(value, kind, path.rstrip("`"))).lstrip(".")
        expected = said[:1].lower() + said[1:]
        for pattern, words in IN_WORDS.items():
            expected = expected.replace(f"`str` matching regex {pattern!r}", words)
        raise RecordError(f"{place}: {expected}" if place else expected) from None


def with_key(value: Any, kind: type, path: str) -> str:
    """The path of a wrong field in a message of msgspec, such as `.readings[...].value`, with the
    key of the mapping in place of `[...]`: the first key whose entry fails to convert to `kind` if
    it stands alone in the mapping."""
    head, dots, tail = path.partition("[...]")
    alone = deepcopy(value)
    holder = alone
    for step in re.findall(r"\w+", head):
        holder = holder[int(step) if isinstance(holder, list) else step]
    for key, item in [*holder.items()] if dots else []:
        holder.clear()
        holder[key] = item
        try:
            msgspec.convert(alone, kind)
        except msgspec.ValidationError:
            return f"{head}.{key}{tail}"
    return path


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that could command a terminal, and lone surrogates; tabs and newlines are allowed."""


def plain(value: Any, where: str = "", depth: int = 0) -> Any:
    """A copy of nested JSON values, records among them, with each control character replaced by
    U+FFFD. `where`: their place in the record, for messages; `depth`: how many containers are
    around them.

    Raises:
        RecordError: a number is not finite, a whole number is beyond 2**63 - 1, nesting is deeper
            than `DEEPEST`, or a value is no JSON.

    >>> plain({"reasons": {"energy": "\\x1b[31mno NVML"}})
    {'reasons': {'energy': '\ufffd[31mno NVML'}}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError(f"{where} is not a finite number")
        return value
    if isinstance(value, int):
        if abs(value) > LARGEST:
            raise RecordError(
                f"{where}: expected a whole number of at most 63 bits, got {value.bit_length()} "
                "bits"
            )
        return value
    if isinstance(value, str):
        return CONTROL.sub("\ufffd", value)
    if depth == DEEPEST:
        raise RecordError(f"{where}: nested deeper than {DEEPEST} levels")
    if isinstance(value, Record):
        value = value.written()
    if isinstance(value, Mapping):
        return {
            plain(key): plain(item, f"{where}.{plain(key)}".lstrip("."), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value)]
    raise RecordError(
        f"{where}: JSON has no {type(value).__name__}: expected a string, a number, a list or an "
        "object"
    )


def within_limits(value: Any, depth: int = 0) -> Any:
    """Check nested JSON values and return them as they are; only for values whose texts are known
    to have no control character, and whose numbers are finite. `depth`: how many containers are
    around them. Raises RecordError: an integer is too large, or nesting too deep."""
    if depth == DEEPEST:
        raise RecordError(f"nested deeper than {DEEPEST} levels")
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    kinds = {*map(type, inside)}
    if int in kinds and (largest := max(abs(x) for x in inside if type(x) is int)) > LARGEST:
        raise RecordError(
            f"expected a whole number of at most 63 bits, got {largest.bit_length()} bits"
        )
    if dict in kinds or list in kinds:
        for each in inside:
            if type(each) is dict or type(each) is list:
                within_limits(each, depth + 1)
    return value
