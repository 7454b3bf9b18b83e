"""The operations that the hardware executed, by the classes of `profiler/counting`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler.hardware.metrics import TENSOR, executed_by, operations_in_counters, special_functions

FUNCTIONS: Mapping[str, str] = {
    "EX2": "exp", "RCP": "div", "RCP64H": "div", "RSQ": "sqrt", "RSQ64H": "sqrt", "SQRT": "sqrt",
    "LG2": "log", "SIN": "sin", "COS": "cos", "TANH": "tanh",
}  # fmt: skip
"""Function of a MUFU instruction -> the operation class that uses one MUFU per operation."""
COMPARISONS: Mapping[str, int] = {
    **dict.fromkeys(("FMNMX", "FSETP", "FSET", "DMNMX", "DSETP", "DSET"), 1),
    **dict.fromkeys(("FMNMX3", "HMNMX2", "HSETP2", "HSET2"), 2),
}
"""Opcode without modifiers -> comparisons: 2 for three operands or a pair of halves, else 1."""
MATRIX = ("HMMA", "HGMMA", "DMMA", "QMMA", "QGMMA", "OMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA")
"""Floating-point opcodes of tensor cores."""
PAIR = 2
"""Half-precision numbers per half-precision instruction."""
INTEGER_DIVISION = re.compile(r"I2F\b.*\.RP")
"""A conversion that rounds up, with which a division of integers by a MUFU.RCP begins."""
HALF = ("bf16", "fp16")
"""Number types with half-precision arithmetic. In modules of other types, half-precision
instructions write constants and are not counted; nor are those on fp16 in a module of bf16, which
opcodes tell (`HFMA2.MMA` beside `HFMA2.BF16`)."""

NO_OPCODES = (
    "instructions were not read by opcode, so that functions and comparisons are not told apart"
)
NO_DIVISIONS = (
    "conversions that begin a division of integers outnumber reciprocals, so that divisions of "
    "other numbers are not told apart"
)
UNTOLD: Mapping[str, str] = {"convert": "opcodes do not tell conversions from shifts"}
"""Operation class that opcodes do not identify -> the reason why it is not counted."""


@dataclass(frozen=True)
class ExecutedClasses:
    """Class -> number of operations; for classes of unknown number, class -> reason."""

    known: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


def classes_of(
    executed: Mapping[str, int] | None,
    opcodes: Mapping[str, int] | None,
    dtype: str,
    halves: float | None,
    without: str = "",
) -> ExecutedClasses:
    """The numbers of executed operations of a call by class, from counters and opcodes, with a
    reason for each class of unknown number.

    Args:
        executed: name -> number, of instructions (`ffma`) and of tensor core totals (names that
            begin with `TENSOR`); None if they were not read.
        opcodes: opcode with modifiers (`FADD.FTZ`) -> instructions of all threads; None if they
            were not read.
        dtype: the number type of the module, of which only those of `HALF` count halves.
        halves: half-precision operations per counted instruction; None if not calibrated.
        without: why `executed` was not read.
    """
    known: dict[str, int] = {}
    reasons = dict(UNTOLD)
    arithmetic = arithmetic_of(executed, opcodes, dtype, halves, without)
    if isinstance(arithmetic, str):
        reasons |= dict.fromkeys(("mul", "add"), arithmetic)
    else:
        known |= arithmetic
    if opcodes is None:
        reasons |= dict.fromkeys(("div", "exp", "other"), NO_OPCODES)
        return ExecutedClasses(known, reasons)
    known |= {"div": 0, "exp": 0}
    for function, number in special_functions(opcodes).items():
        name = FUNCTIONS.get(function, f"MUFU.{function}")
        known[name] = known.get(name, 0) + number
    # a division of integers has a MUFU.RCP too, and is no operation of a class
    integer = sum(n for opcode, n in opcodes.items() if INTEGER_DIVISION.fullmatch(opcode))
    known["div"] -= integer
    if known["div"] < 0:
        del known["div"]
        reasons["div"] = NO_DIVISIONS
    compared = sum(
        n * COMPARISONS.get(opcode.partition(".")[0], 0) for opcode, n in opcodes.items()
    )
    return ExecutedClasses(known | ({"compare": compared} if compared else {}), reasons)


def arithmetic_of(
    executed: Mapping[str, int] | None,
    opcodes: Mapping[str, int] | None,
    dtype: str,
    halves: float | None,
    without: str,
) -> dict[str, int] | str:
    """The numbers of multiplications and additions, or, as a string, why they are unknown. Opcodes
    replace counters that were not read, unless tensor cores worked: opcodes do not give their
    number of operations. `executed`: instruction (`ffma`) -> number, `opcodes`: opcode (`FADD.FTZ`)
    -> number, each None if not read, `executed` for the reason `without`; `dtype`: the module's
    number type; `halves`: half-precision operations per instruction, None if not calibrated."""
    matrix = None if executed is None else tensor_total(executed)
    # whether tensor cores worked; None without opcodes
    worked = None if opcodes is None else any(o.partition(".")[0] in MATRIX for o in opcodes)
    if worked and not matrix:
        return f"tensor cores worked, and their totals were not read{without and f': {without}'}"
    if worked is None and matrix is None:
        return without or "neither totals of tensor cores nor opcodes were read"
    if executed is None:  # an opcode of half precision stands for the operations of a pair
        executed, halves = executed_by(opcodes or {}), PAIR
    plain, half = operations_in_counters(executed, "fd"), operations_in_counters(executed, "h")
    if dtype == "bf16" and opcodes is not None:  # fp16 instructions only write constants there
        own = {opcode: n for opcode, n in opcodes.items() if "BF16" in opcode}
        half, halves = operations_in_counters(executed_by(own), "h"), PAIR
    if dtype in HALF and halves is None and any(half.values()):
        return "what a counted instruction of half precision stands for was not calibrated"
    scale = halves or 0 if dtype in HALF else 0
    of_tiles = (matrix or 0) / 2  # a multiply-add counts two: one mul, one add
    return {name: round(plain[name] + scale * half[name] + of_tiles) for name in ("mul", "add")}


def tensor_total(executed: Mapping[str, int]) -> int | None:
    """Operations of tensor cores, a multiply-add as two, padding included; None if not read."""
    totals = [number for name, number in executed.items() if name.startswith(TENSOR)]
    return sum(totals) if totals else None
