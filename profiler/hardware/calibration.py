"""Do the counters count known work correctly, and what does one function execute on this chip?

Kernels of known work run under ncu, in the same session as the measurement: a matrix product, a
pass over 1 GiB, one exponential per element, and a chain of fused multiply-adds on pairs of halves.
A function executes more than its core instruction (a division its Newton steps, an exponential a
multiplication by log2 e): a kernel that applies the function once per element counts the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.hardware.metrics import OPCODES, Chip, complete_counts, executed_by, special_functions
from profiler.hardware.ncu import RANGE, Ran, Refused
from profiler.hardware.operations import PAIR, classes_of
from profiler.hardware.tiles import Product, Tile, tile_of
from profiler.records.schema import Record

SIDE = 4096
"""Rows and columns of each matrix in the matrix product."""
COPIED = 2**30
"""Bytes that the copy kernel reads; it writes as many."""
ENTRIES = 2**24
"""Elements of the tensor that a function kernel is applied to."""
TOLERANCE = 0.01
"""The accepted deviation of a counted number of operations, relative to the known number."""
CONSTANTS = 8
"""An upper bound on the half-precision instructions with which a thread writes constants."""
CHAIN = round(CONSTANTS / TOLERANCE)
"""Multiply-adds on pairs of halves per entry, so many that the `CONSTANTS` of a thread stay within
the tolerance even if the thread works on a single entry."""

GEMM, COPY, EX2, HALVES = "gemm", "copy", "ex2", "halves"
FUNCTIONS = ("exp", "div", "sqrt", "log", "sin", "cos", "tanh", "erf")
"""Operation classes that torch computes with an elementwise kernel of one function."""


def range_of(name: str) -> str:
    """The name of the NVTX range in which a calibration kernel runs.

    >>> range_of("exp")
    'costmodel_exp'
    """
    return f"{RANGE}_{name}"


NAMES = (GEMM, COPY, EX2, HALVES, *FUNCTIONS)
"""The kernels of a calibration."""


class Check(Record, frozen=True):
    """The known and the counted work of one calibration kernel, in `unit`."""

    WRITTEN = ("name", "unit", "expected", "found", "tolerance", "lacking", "holds", "reason")

    name: str
    unit: str
    expected: int
    found: int | None
    tolerance: float
    """The accepted deviation, relative to `expected`."""
    lacking: int = 0
    """Further units that may be missing: written bytes that are still in the cache."""
    reason: str = ""
    """Why `found` is None."""

    @property
    def holds(self) -> bool:
        """Whether the work was counted, within the tolerance."""
        if self.found is None:
            return False
        low = (1 - self.tolerance) * self.expected - self.lacking
        return low <= self.found <= (1 + self.tolerance) * self.expected

    @property
    def label(self) -> str:
        """The warning beside counts that were read in the same session; "" if the check holds."""
        if self.holds:
            return ""
        if self.found is None:
            return f"{self.name} not calibrated: {self.reason}"
        said = f"{self.found:,} {self.unit} counted where {self.expected:,} were executed"
        return f"calibration of {self.name} fails: {said}"


class Calibration(Record, frozen=True):
    """The checks, the scale of half-precision counts, and the operations of each function."""

    WRITTEN = ("checks", "halves", "entries", "functions", "commands")

    checks: tuple[Check, ...]
    halves: float | None
    """Half-precision operations per counted instruction (1 or 2); None if the check failed."""
    functions: Mapping[str, Mapping[str, int]]
    """Function -> the operations, by class, that the hardware executed for `ENTRIES` calls."""
    commands: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        """The warnings of all failed checks; [] if every check holds."""
        return [check.label for check in self.checks if check.label]

    @property
    def entries(self) -> int:
        """The number of calls of each function."""
        return ENTRIES


@dataclass(frozen=True)
class KernelCounts:
    """The counts of one calibration kernel: instructions by counter (`executed`), DRAM bytes
    (`moved`), instructions by opcode; None if not read."""

    executed: Mapping[str, int] | None
    moved: Mapping[str, int] | None
    opcodes: Mapping[str, int] | None
    tile: Tile | None = None
    """The tile of a matrix product, if the kernel's name contains one."""


def calibrated(
    counters: Ran | Refused, opcodes: Ran | Refused, chip: Chip, dtype: str, l2_bytes: int
) -> Calibration:
    """Make the calibration (checks of counters, and each function's operations for `ENTRIES` calls)
    from a run of its kernels with performance counters and a run with counts by opcode; of a run
    that failed, the checks hold the reason. `chip`: the metrics to read; `dtype`: the type of the
    product and the functions; `l2_bytes`: the size of the cache, in which as many written bytes may
    remain uncounted."""

    def found(name: str) -> KernelCounts:
        return counted_of(name, counters, opcodes, chip, dtype)

    why = "; ".join(run.reason for run in (counters, opcodes) if isinstance(run, Refused))
    why = why or "no kernel of the calibration was counted"
    half = half_counts(found(HALVES), why)
    # known operations per counted instruction
    halves = PAIR * ENTRIES * CHAIN / half.expected if half.holds else None
    checks = (
        product_check(found(GEMM), dtype, halves, why),
        Check(COPY, "B", 2 * COPIED, bytes_moved(found(COPY)), 0.03, l2_bytes, why),
        Check("exp", "MUFU.EX2", ENTRIES, executed_exponentials(found(EX2)), TOLERANCE, reason=why),
        Check(
            "pairs of halves",
            "HFMA2",
            ENTRIES * CHAIN,
            executed_pairs(found(HALVES)),
            TOLERANCE,
            reason=why,
        ),
        half,
    )
    functions = {name: kernel_classes(found(name), dtype, halves) for name in FUNCTIONS}
    commands = tuple(run.command for run in (counters, opcodes) if isinstance(run, Ran))
    known = {name: counts for name, counts in functions.items() if counts}
    return Calibration(checks, halves, known, commands)


def counted_of(
    name: str, counters: Ran | Refused, opcodes: Ran | Refused, chip: Chip, dtype: str
) -> KernelCounts:
    """The counts of the kernels that were launched in the NVTX range of the calibration kernel
    `name`. A part is None if its run failed or the range has no kernel; instructions by counter or
    by opcode also if a kernel lacks their metric; the tile if no kernel's name contains one."""
    executed = moved = by_opcode = tile = None
    if isinstance(counters, Ran) and (own := counters.within(range_of(name))).kernels:
        names = chip.executed(dtype)
        executed, moved = complete_counts(own.totals(names), names), own.totals(chip.moved)
        tile = next(filter(None, (tile_of(kernel.name) for kernel in own.kernels)), None)
    if isinstance(opcodes, Ran) and (own := opcodes.within(range_of(name))).kernels:
        by_opcode = own.parts(OPCODES)
    return KernelCounts(executed, moved, by_opcode, tile)


def kernel_classes(found: KernelCounts, dtype: str, halves: float | None) -> Mapping[str, int]:
    """A dict: class -> number of operations that a kernel executed; {} if the number of
    multiplications is unknown. `halves`: half-precision operations per instruction, or None."""
    if found.opcodes is None:
        return {}
    executed = classes_of(found.executed, found.opcodes, dtype, halves)
    return {} if "mul" in executed.reasons else executed.known


def product_check(found: KernelCounts, dtype: str, halves: float | None, why: str) -> Check:
    """The check of the product of two square matrices: the counted multiplications plus additions
    (None with a reason, if not counted) beside the known ones, whole tiles included. `halves`:
    half-precision operations per counted instruction, 1 or 2, or None; `why`: the reason."""
    product = Product(1, SIDE, SIDE, SIDE)
    product = product.padded(found.tile) if found.tile else product
    counted = classes_of(found.executed, found.opcodes, dtype, halves, why)
    known = counted.known
    both = known["mul"] + known["add"] if "mul" in known else None
    expected, reason = 2 * product.multiplications, counted.reasons.get("mul", "")
    return Check(GEMM, "op", expected, both, TOLERANCE, reason=reason)


def bytes_moved(found: KernelCounts) -> int | None:
    """DRAM bytes read plus written; None unless both counters have a value."""
    return None if not found.moved or len(found.moved) < 2 else sum(found.moved.values())


def executed_exponentials(found: KernelCounts) -> int | None:
    """The number of executed MUFU.EX2 instructions; None if opcodes were not read."""
    return None if found.opcodes is None else special_functions(found.opcodes).get("EX2", 0)


def executed_pairs(found: KernelCounts) -> int | None:
    """The number of executed multiply-adds on pairs of halves; None if opcodes were not read."""
    return None if found.opcodes is None else executed_by(found.opcodes).get("hfma", 0)


def half_counts(found: KernelCounts, why: str) -> Check:
    """The check of counted half-precision multiply-adds. ncu counts an instruction on a pair as one
    or as two; the expected number is whichever of the two is closer to the count."""
    chained = ENTRIES * CHAIN
    counted = None if found.executed is None else found.executed.get("hfma")
    each_half = (counted or 0) > chained * (1 + PAIR) / 2
    expected = chained * (PAIR if each_half else 1)
    return Check("halves", "hfma", expected, counted, TOLERANCE, reason=why)
