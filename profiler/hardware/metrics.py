"""Which metric of ncu counts which operations, on which chip?

Metrics are named as PerfWorks lists them for each chip (libnvperf_host of CUPTI 12.9, of 13.5 for
GB110). Of tensor cores only the total per number type is read: ncu also lists parts of each total
(dense, sparse, by instruction) as separate metrics, and a sum of all metrics would count each
operation twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

STEPS: Mapping[str, Mapping[str, int]] = {
    "add": {"add": 1},
    "mul": {"mul": 1},
    "fma": {"mul": 1, "add": 1},
}
OPERATIONS: Mapping[str, Mapping[str, int]] = {
    **{kind + name: steps for kind in "fdh" for name, steps in STEPS.items()},
    **{f"f{name}2": dict.fromkeys(steps, 2) for name, steps in STEPS.items()},
}
"""Counted instruction -> multiplications and additions per thread: single (f), double (d) and half
precision (h), and pairs of single precision (fadd2). A half-precision instruction may work on a
pair: the calibration finds how many operations ncu's count stands for."""
XU = "xu"
"""Instructions of the special-function unit (XU): MUFU, and int/float conversions."""
TENSOR = "tensor "
"""Prefix of the names of tensor core totals: operations, a multiply-add as two, padding
included."""
OPCODES = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"
"""Instructions executed per thread, by opcode. Instrumented (patched) SASS code counts them, which
needs no permission to read performance counters."""


def sass(name: str) -> str:
    """The name of ncu's metric that counts one SASS instruction, once per thread whose predicate
    was true.

    >>> sass("ffma")
    'smsp__sass_thread_inst_executed_op_ffma_pred_on.sum'
    """
    return f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum"


@dataclass(frozen=True)
class Chip:
    """A chip, with the counter names that differ between chips."""

    name: str
    tensor: Mapping[str, tuple[str, ...]] = field(hash=False)
    """Number type of a module -> the tensor core totals to add; no operation is in two totals."""
    dram: tuple[str, str] = ("dram__bytes_read.sum", "dram__bytes_write.sum")
    pairs: bool = False
    """Whether the chip has instructions on pairs of single-precision numbers (fadd2, ffma2)."""

    def executed(self, dtype: str) -> dict[str, str]:
        """The counters to read for a module of this number type: quantity -> metric of ncu."""
        names = [n for n in OPERATIONS if self.pairs or not n.endswith("2")]
        totals = {TENSOR + kind: f"sm__ops_path_tensor_{kind}.sum" for kind in self.tensor[dtype]}
        xu = {XU: "smsp__thread_inst_executed_pipe_xu_pred_on.sum"}
        return {name: sass(name) for name in names} | xu | totals

    @property
    def moved(self) -> dict[str, str]:
        """The counters of DRAM traffic in bytes: "read" and "write" -> metric of ncu."""
        return dict(zip(("read", "write"), self.dram, strict=True))


TF32 = "src_tf32_dst_fp32"
"""The tensor core total on fp32 inputs rounded to TF32; 0 unless TF32 is switched on."""

AMPERE: Mapping[str, tuple[str, ...]] = {
    "bf16": ("src_bf16_dst_fp32",),
    "fp16": ("src_fp16_dst_fp16", "src_fp16_dst_fp32"),
    "fp32": (TF32,),
    "fp64": ("src_fp64",),
}
HOPPER: Mapping[str, tuple[str, ...]] = {**AMPERE, "fp16": ("src_fp16",)}


def halves_alone(name: str) -> Mapping[str, tuple[str, ...]]:
    """Number type -> tensor core totals of a chip before Ampere, whose tensor cores take fp16 only:
    the total `name` for fp16, none for other types."""
    return {"bf16": (), "fp16": (name,), "fp32": (), "fp64": ()}


CHIPS: Mapping[tuple[int, int], Chip] = {
    (7, 0): Chip("GV100", halves_alone("src_fp16_dst_fp32")),
    (7, 5): Chip("TU102", halves_alone("src_fp16_bf16_tf32_dst_fp32")),
    (8, 0): Chip("GA100", AMPERE),
    (8, 6): Chip("GA102", AMPERE),
    (8, 9): Chip("AD102", AMPERE),
    (9, 0): Chip("GH100", HOPPER),
    (10, 0): Chip("GB100", AMPERE, pairs=True),
    (10, 3): Chip("GB110", AMPERE, pairs=True),
    (12, 0): Chip("GB202", AMPERE, ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum")),
}
"""Compute capability -> chip. For other chips the counter names are not known."""


def complete_counts(read: Mapping[str, int], names: Collection[str]) -> dict[str, int] | None:
    """The counters in `read` (name -> count) whose sums are complete: None if one of `names` in
    `OPERATIONS` was not read; no tensor core total if one of the totals was not read (their sum
    would be too small).

    >>> complete_counts({"fadd": 1, "fmul": 2}, ["fadd", "fmul"])
    {'fadd': 1, 'fmul': 2}
    >>> complete_counts({"fadd": 1}, ["fadd", "fmul"]) is None
    True
    """
    absent = {*names} - {*read}
    if not absent.isdisjoint(OPERATIONS):
        return None
    part = any(name.startswith(TENSOR) for name in absent)
    return {name: n for name, n in read.items() if not (part and name.startswith(TENSOR))}


def operations_in_counters(executed: Mapping[str, int], kinds: str) -> dict[str, int]:
    """The numbers of multiplications and additions outside tensor cores, from counted instructions
    (name -> count).

    `kinds` holds the first letters of the precisions to include, such as "fd". A multiply-add is
    one multiplication and one addition, an instruction on pairs counts twice.

    >>> operations_in_counters({"fadd": 1, "ffma": 10, "hmul": 100, "xu": 5}, "f")
    {'mul': 10, 'add': 11}
    """
    found = {"mul": 0, "add": 0}
    for name, steps in OPERATIONS.items():
        if name[0] in kinds:
            for step, number in steps.items():
                found[step] += number * executed.get(name, 0)
    return found


INSTRUCTIONS: Mapping[str, str] = {
    **{name.upper(): name for name in OPERATIONS if name[0] != "h"},
    **{f"F{name.upper()}32I": f"f{name}" for name in STEPS},
    **{f"H{name.upper()}2{constant}": f"h{name}" for name in STEPS for constant in ("", "_32I")},
}
"""Opcode without modifiers -> the instruction of `OPERATIONS` that counts it. 32I marks opcodes
with an immediate operand."""

MUFU = "MUFU."


def executed_by(opcodes: Mapping[str, int]) -> dict[str, int]:
    """The counts per arithmetic instruction (`fadd`, ...), added up from counts per opcode. They
    replace the performance counters where these may not be read.

    >>> executed_by({"FADD.FTZ": 2, "FADD": 1, "HFMA2.MMA": 4, "MUFU.EX2": 8})
    {'fadd': 3, 'hfma': 4}
    """
    found: dict[str, int] = {}
    for opcode, number in opcodes.items():
        name = INSTRUCTIONS.get(opcode.partition(".")[0])
        if name is not None:
            found[name] = found.get(name, 0) + number
    return found


def special_functions(opcodes: Mapping[str, int]) -> dict[str, int]:
    """The numbers of executed MUFU instructions (special functions) by function: EX2, RCP, RSQ, ...

    >>> special_functions({"MUFU.EX2": 3, "MUFU.EX2.F16": 1, "MUFU.RCP": 2, "FADD": 9})
    {'EX2': 4, 'RCP': 2}
    """
    found: dict[str, int] = {}
    for opcode, number in opcodes.items():
        if opcode.startswith(MUFU):
            function = opcode.removeprefix(MUFU).partition(".")[0]
            found[function] = found.get(function, 0) + number
    return found
