"""The one file that asks NVML: boards, their facts, sensors and processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from profiler.meters.energy.protocol import SensorError
from profiler.records.reading import reason_of

INSTALL = "pip install nvidia-ml-py"
UPGRADE = "pip install --upgrade nvidia-ml-py"
NOT_FOUND = (2, 6)
""""Invalid argument" and "not found": drivers return either one if no board has the UUID."""
EXPLAINED = {
    1: "NVML is not initialised",
    3: "not supported by this device",
    4: "no permission to read this device",
    6: "NVML knows no such board",
    9: "the NVIDIA driver is not loaded",
    10: "NVML did not answer in time",
    12: "library not found: there is no NVIDIA driver on this machine",
    13: "the driver is too old for this function",
    15: "the GPU is lost",
    16: "the GPU must be reset",
    18: "driver and library versions differ: reload the driver",
}
INSTANT = 186
"""The field NVML_FI_DEV_POWER_INSTANT, in mW."""
BOARD, MODULE = 0, 1
"""The scopes NVML_POWER_SCOPE_GPU and _MODULE."""
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The union member of a field's value, indexed by nvmlValueType_t."""
SLOWDOWNS = {
    74: "power-capped",  # NVML_FI_DEV_PERF_POLICY_POWER
    75: "throttled",  # NVML_FI_DEV_PERF_POLICY_THERMAL
    269: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    270: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    271: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}
"""Field that counts the time for which the clocks were held down -> label."""
POWER_CAP = "software power cap"
HELD_DOWN: Mapping[int, str] = {
    0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}  # fmt: skip
EVENTS: Mapping[int, str] = {
    0x1: "idle", 0x2: "application clocks", 0x4: POWER_CAP, 0x10: "sync boost",
    0x100: "display clocks", **HELD_DOWN,
}  # fmt: skip
"""Bit of nvmlDeviceGetCurrentClocksEventReasons -> the cause of a lowered clock; those of
`HELD_DOWN` are heat and hardware brakes."""
VIRTUAL = {0: "none", 1: "passthrough", 2: "vGPU", 3: "vGPU host", 4: "vSGA host"}
"""The values of nvmlGpuVirtualizationMode_t."""
SWITCH = {0: "off", 1: "on"}
"""The values of nvmlEnableState_t, and of the MIG mode."""
ALLOWANCE_BYTES = 2 * 2**30
"""An upper bound on the memory of contexts, libraries and the driver, besides torch's; more memory
belongs to another process."""
NOT_LISTED = "NVML does not list this process by its number here (as in a container)"


def load_nvml() -> Any:
    """Load and return NVIDIA's Python binding of NVML, initialised; SensorError, with one sentence,
    if that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # older packages announce a replacement
            import pynvml  # type: ignore[import-untyped]  # no stubs
    except ImportError:
        raise SensorError(f"the package nvidia-ml-py is not installed ({INSTALL})") from None
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise SensorError(
            f"another package named pynvml hides NVIDIA's (pip uninstall pynvml; {INSTALL})"
        )
    ask_nvml(pynvml, "nvmlInit")
    return pynvml


def ask_nvml(nvml: Any, name: str, *args: Any) -> Any:
    """Call an NVML function by name and return its value; an NVMLError, and a function that this
    binding lacks, become a SensorError with one sentence."""
    function = getattr(nvml, name, None)
    if function is None:
        raise SensorError(f"nvidia-ml-py has no {name}: take a newer version ({UPGRADE})")
    try:
        return function(*args)
    except nvml.NVMLError as error:
        code = int(getattr(error, "value", 0) or 0)
        raise SensorError(EXPLAINED.get(code, reason_of(error)), code) from None


def handle_of(nvml: Any, properties: Any) -> Any:
    """NVML's handle of the board with the UUID, or else the PCI bus id, of torch's device.

    An index would be wrong: NVML counts boards by bus, and CUDA_VISIBLE_DEVICES hides and reorders
    devices. The UUID may be that of a part of a board (MIG). SensorError: NVML knows no such board.
    """
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        address = (
            f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}"
            f":{properties.pci_device_id:02x}.0"
        )
        return ask_nvml(nvml, "nvmlDeviceGetHandleByPciBusId", address.encode())
    text = str(uuid)
    names = [text] if text.startswith(("GPU-", "MIG-")) else [f"GPU-{text}", f"MIG-{text}"]
    for name in names[:-1]:
        try:
            return ask_nvml(nvml, "nvmlDeviceGetHandleByUUID", name.encode())
        except SensorError as error:
            if error.code not in NOT_FOUND:
                raise
    return ask_nvml(nvml, "nvmlDeviceGetHandleByUUID", names[-1].encode())


def board_handle(nvml: Any, device: str | torch.device) -> Any:
    """NVML's handle of the board of torch's CUDA device."""
    return handle_of(nvml, torch.cuda.get_device_properties(torch.device(device)))


def all_boards() -> list[Board]:
    """Every board that NVML sees; SensorError if NVML does not tell."""
    nvml = load_nvml()
    places = range(ask_nvml(nvml, "nvmlDeviceGetCount"))
    return [Board(nvml, ask_nvml(nvml, "nvmlDeviceGetHandleByIndex", place)) for place in places]


class Board:
    """One NVIDIA board, or a part of one, and what NVML answers about it.

    A method raises SensorError if the board refuses to answer, unless it says otherwise.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        """`nvml`: the binding, as `load_nvml` returns it; `handle`: NVML's of the board."""
        self.nvml, self.handle = nvml, handle

    @classmethod
    def of(cls, device: str | torch.device) -> Board:
        """The board of torch's CUDA device, found by UUID."""
        nvml = load_nvml()
        return cls(nvml, board_handle(nvml, device))

    def ask(self, name: str, *args: Any) -> Any:
        """The value of an NVML function of boards."""
        return ask_nvml(self.nvml, name, self.handle, *args)

    def maybe(self, name: str, *args: Any) -> Any:
        """The value of an NVML function of boards; None if the board refuses to answer."""
        try:
            return self.ask(name, *args)
        except SensorError:
            return None

    def text(self, name: str) -> str:
        """The text of an NVML function of boards; older bindings return bytes."""
        return decoded(self.ask(name))

    def mode(self, names: Mapping[int, str], name: str) -> str:
        """The current mode of a board: its word in `names` (number -> word), or `mode 7`."""
        told = self.ask(name)
        number = told if isinstance(told, int) else told[0]  # (current, after the next start)
        return names.get(number, f"mode {number}")

    def field(self, number: int, scope: int = BOARD) -> float | None:
        """The value of the field with this number of NVML, for a scope (the board, or its module);
        None if the board does not have the field.

        The call succeeds even for a failed field, with the value 0: each field has its own return
        code.
        """
        told = self.maybe("nvmlDeviceGetFieldValues", [(number, scope)])
        if told is None or told[0].nvmlReturn != self.nvml.NVML_SUCCESS:
            return None
        return float(getattr(told[0].value, VALUES[told[0].valueType]))

    @property
    def split(self) -> bool:
        """Whether MIG is on: torch then sees parts of the board. Boards without MIG refuse the
        question."""
        mode = self.maybe("nvmlDeviceGetMigMode")
        return bool(mode and mode[0])

    def power_limit_W(self) -> float:
        """The enforced power cap, in watts."""
        return float(self.ask("nvmlDeviceGetEnforcedPowerLimit")) / 1000

    def sm_clock_MHz(self) -> int:
        """The clock of the multiprocessors (NVML_CLOCK_SM)."""
        return int(self.ask("nvmlDeviceGetClockInfo", 1))

    def clock_events(self) -> list[str]:
        """The names of the current causes of lowered clocks: names of `EVENTS`, or unknown bits in
        hexadecimal."""
        try:
            bits = int(self.ask("nvmlDeviceGetCurrentClocksEventReasons"))
        except SensorError:
            if not hasattr(self.nvml, older := "nvmlDeviceGetCurrentClocksThrottleReasons"):
                raise
            bits = int(self.ask(older))
        unknown = bits & ~sum(EVENTS)
        known = [name for bit, name in sorted(EVENTS.items()) if bits & bit]
        return known + ([f"0x{unknown:x}"] if unknown else [])

    def held_clocks(self) -> dict[int, int]:
        """A dict: field of `SLOWDOWNS` -> nanoseconds for which the clocks were held down since the
        driver was loaded, for the fields that the board has."""
        read = {number: self.field(number) for number in SLOWDOWNS}
        return {number: int(value) for number, value in read.items() if value is not None}

    def processes(self) -> list[Any]:
        """NVML's entries of the processes that compute on the board: `pid`, `usedGpuMemory`."""
        return list(self.ask("nvmlDeviceGetComputeRunningProcesses"))

    def processes_apart(self, own: int | None = None) -> tuple[list[Any], list[Any]]:
        """Two lists of NVML's entries of processes on the board: of this process (`own`: its id),
        and of others.

        In a container NVML lists the process ids of the host. SensorError if the list has other
        ids alone, as this process cannot be told from the others then; an empty list is accepted.
        """
        number, listed = os.getpid() if own is None else own, self.processes()
        mine = [process for process in listed if process.pid == number]
        others = [process for process in listed if process.pid != number]
        if others and not mine:
            raise SensorError(NOT_LISTED)
        return mine, others

    def own_bytes(self, own: int | None = None) -> int:
        """The bytes of the board's memory that NVML attributes to this process (`own`: its id);
        SensorError if NVML does not list the process or its memory."""
        mine, _ = self.processes_apart(own)
        if not mine:
            raise SensorError(NOT_LISTED)
        return held_bytes(mine)

    def signs_of_others(self, own_bytes: int) -> str | None:
        """Evidence, in words, that other processes compute on the board: more than one process, or
        more memory in use than this process explains. "" without evidence, None if the board tells
        neither.

        Process ids are no evidence: inside a container NVML gives the host's ids, or lists no or
        only some processes, so that a plausible list does not identify the owner of the memory.
        """
        processes = self.maybe("nvmlDeviceGetComputeRunningProcesses")
        memory = self.maybe("nvmlDeviceGetMemoryInfo")
        if processes is not None and len(processes) > 1:
            return f"{len(processes)} processes compute on this board, one was expected"
        if memory is not None and memory.used > own_bytes + ALLOWANCE_BYTES:
            return f"{memory.used - own_bytes} bytes of the board's memory are held by others"
        return None if processes is None and memory is None else ""

    def facts(
        self, questions: Mapping[str, Question], reasons: dict[str, str], prefix: str
    ) -> dict[str, Any]:
        """A dict: name -> fact, for the facts that NVML returns; for the other facts, `reasons`
        gets the error under `prefix` + name."""
        found = {}
        for name, question in questions.items():
            try:
                found[name] = question(self)
            except SensorError as error:
                reasons[f"{prefix}{name}"] = reason_of(error)
        return found


def held_bytes(processes: Iterable[Any]) -> int:
    """The bytes that these processes hold; SensorError if the driver does not tell."""
    held = [process.usedGpuMemory for process in processes]
    if None in held:
        raise SensorError("the driver does not report how many bytes each process holds")
    return int(sum(held))


def decoded(value: str | bytes) -> str:
    """A string of NVML as str; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


Question = Callable[[Board], Any]
"""A function of a board that returns a fact."""

IDENTITY: Mapping[str, Question] = {
    "uuid": lambda board: board.text("nvmlDeviceGetUUID"),
    "driver": lambda board: decoded(ask_nvml(board.nvml, "nvmlSystemGetDriverVersion")),
    "power_limit_W": Board.power_limit_W,
    "mig_mode": lambda board: board.mode(SWITCH, "nvmlDeviceGetMigMode"),
    "virtualisation": lambda board: board.mode(VIRTUAL, "nvmlDeviceGetVirtualizationMode"),
    "ecc": lambda board: board.mode(SWITCH, "nvmlDeviceGetEccMode"),
    "persistence": lambda board: board.mode(SWITCH, "nvmlDeviceGetPersistenceMode"),
    "max_sm_clock_MHz": lambda board: board.ask("nvmlDeviceGetMaxClockInfo", 1),
    "max_memory_clock_MHz": lambda board: board.ask("nvmlDeviceGetMaxClockInfo", 2),
    "memory_bus_bits": lambda board: board.ask("nvmlDeviceGetMemoryBusWidth"),
}
"""Facts that identify a board; clocks 1 and 2 are NVML_CLOCK_SM and NVML_CLOCK_MEM."""

STATE: Mapping[str, Question] = {
    "temperature_C": lambda board: board.ask("nvmlDeviceGetTemperature", 0),
    "power_W": lambda board: board.ask("nvmlDeviceGetPowerUsage") / 1000,
    "sm_clock_MHz": Board.sm_clock_MHz,
    "memory_clock_MHz": lambda board: board.ask("nvmlDeviceGetClockInfo", 2),
    "clock_events": Board.clock_events,
    "used_memory_bytes": lambda board: board.ask("nvmlDeviceGetMemoryInfo").used,
    "compute_processes": lambda board: len(board.processes()),
    "other_processes": lambda board: len(board.processes_apart()[1]),
    "other_memory_bytes": lambda board: held_bytes(board.processes_apart()[1]),
}
"""Facts that vary from run to run; sensor 0 is NVML_TEMPERATURE_GPU."""
