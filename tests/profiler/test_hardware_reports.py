"""Which metrics does the meter ask ncu for, and which operations do the metrics mean?"""

from __future__ import annotations

import pytest

from profiler.hardware.metrics import CHIPS, OPERATIONS, operations_in_counters
from profiler.hardware.ncu import NcuRun, options
from profiler.hardware.ncu_csv import ReportError, kernels
from profiler.hardware.operations import NO_DIVISIONS, NO_OPCODES, classes_of
from tests.ncu import READ, WRITE


def test_what_is_asked_depends_on_chip_and_type_of_number() -> None:
    hopper, ampere, blackwell = CHIPS[9, 0], CHIPS[8, 0], CHIPS[12, 0]
    assert "sm__ops_path_tensor_src_fp16.sum" in hopper.executed("fp16").values()
    assert "sm__ops_path_tensor_src_fp16_dst_fp32.sum" in ampere.executed("fp16").values()
    assert hopper.moved == {"read": READ, "write": WRITE}
    assert blackwell.moved["read"] == "dram__bytes_op_read.sum"
    beyond = CHIPS[10, 0].executed("fp32").keys() - ampere.executed("fp32").keys()
    assert beyond == {"fadd2", "fmul2", "ffma2"}
    assert CHIPS[8, 6].executed("fp64") == ampere.executed("fp64")
    assert CHIPS[10, 3].executed("bf16") == CHIPS[10, 0].executed("bf16")
    for chip in CHIPS.values():
        for dtype in ("fp64", "fp32", "bf16", "fp16"):
            listed = list(chip.executed(dtype).values())
            assert len(listed) == len(set(listed))
            assert not any("_op_hgmma" in name or "_op_hmma" in name for name in listed)


def test_options_are_those_of_the_protocol() -> None:
    given = options(NcuRun("x", ("m",), "none"), ("one", "two"), "log")
    assert given.count("--nvtx-include") == 2 and "--print-metric-instances" not in given


def test_the_formula_of_single_precision() -> None:
    """fadd + fmul + 2 ffma + 2 fadd2 + 2 fmul2 + 4 ffma2, by hand."""
    counted = {"fadd": 1, "fmul": 10, "ffma": 100, "fadd2": 1000, "fmul2": 10**4, "ffma2": 10**5}
    found = operations_in_counters(counted, "f")
    assert sum(found.values()) == 1 + 10 + 200 + 2000 + 2 * 10**4 + 4 * 10**5
    assert operations_in_counters(counted, "d") == {"mul": 0, "add": 0}
    assert {name for name in OPERATIONS if name[0] == "d"} == {"dadd", "dmul", "dfma"}


# Its classes


def test_classes_of_counters_and_opcodes() -> None:
    executed = {"fadd": 3, "ffma": 5, "hfma": 7, "tensor src_tf32_dst_fp32": 100}
    opcodes = {"MUFU.EX2": 2, "MUFU.RSQ": 1, "MUFU.NEW": 4, "FSETP.GT.AND": 6, "HMMA.1688": 1}
    found = classes_of(executed, opcodes, "fp32", 2.0)
    assert found.known == {
        "mul": 55, "add": 58, "div": 0, "exp": 2, "sqrt": 1, "MUFU.NEW": 4, "compare": 6,
    }  # fmt: skip
    assert set(found.reasons) == {"convert"}


def test_halves_count_as_calibrated_and_only_where_numbers_are_halves() -> None:
    executed = {"hfma": 7, "hadd": 1}
    assert classes_of(executed, {}, "fp16", 2.0).known["mul"] == 14
    assert classes_of(executed, {}, "fp16", 1.0).known["add"] == 8
    # opcodes tell the type: fp16 in a module of bf16 writes constants
    opcodes = {"HFMA2.MMA": 4, "HFMA2.BF16_V2": 2, "HFMA2.MMA.BF16": 1, "HADD2.BF16": 1}
    found = classes_of(executed, opcodes, "bf16", 1.0).known
    assert (found["mul"], found["add"]) == (2 * 3, 2 * 3 + 2)
    assert classes_of(executed, {}, "fp32", None).known["mul"] == 0  # constants are written so
    unknown = classes_of(executed, {}, "fp16", None)
    assert "not calibrated" in unknown.reasons["mul"] and "mul" not in unknown.known
    assert classes_of({"fadd": 1}, {}, "fp16", None).known["add"] == 1


def test_a_division_of_integers_is_none_of_numbers() -> None:
    """On H100, triu divides positions: I2F, MUFU.RCP, F2I."""
    opcodes = {"MUFU.RCP": 7, "I2F.U32.RP": 4, "I2F.S32": 9, "I2FP.F32.S32": 5}
    assert classes_of({"fadd": 1}, opcodes, "fp32", None).known["div"] == 3
    untold = classes_of({"fadd": 1}, {**opcodes, "I2F.U64.RP": 5}, "fp32", None)
    assert "div" not in untold.known and untold.reasons["div"] == NO_DIVISIONS


def test_opcodes_stand_in_for_counters_unless_tensor_cores_worked() -> None:
    opcodes = {"FFMA.FTZ": 4, "HADD2.BF16": 3, "FADD32I": 2}
    assert classes_of(None, opcodes, "bf16", None).known == {
        "mul": 4,
        "add": 12,
        "div": 0,
        "exp": 0,
    }
    matrix = classes_of(None, {**opcodes, "HGMMA.64x256x16.F32.BF16": 9}, "bf16", 1.0, "forbidden")
    assert "forbidden" in matrix.reasons["mul"] and matrix.known == {"div": 0, "exp": 0}


def test_tensor_cores_that_worked_uncounted_are_no_zero() -> None:
    """Their total was not asked for: they worked on another type of numbers than the module's."""
    opcodes = {"HMMA.16816.F32": 5}
    for executed in ({"ffma": 1}, {"ffma": 1, "tensor src_tf32_dst_fp32": 0}):
        assert "tensor cores worked" in classes_of(executed, opcodes, "fp32", 1.0).reasons["add"]


def test_without_opcodes_functions_are_not_told() -> None:
    found = classes_of({"fadd": 1, "tensor src_fp16": 0}, None, "fp32", None)
    assert found.known == {"mul": 0, "add": 1}
    assert found.reasons["exp"] == found.reasons["div"] == found.reasons["other"] == NO_OPCODES


# What ncu writes


GOOD = '"ID","Kernel Name","Grid Size","Block Size","a","b"\n'


def test_reports_with_units_and_commas_are_read() -> None:
    text = f'==PROF== hello\n{GOOD}"","","","","Kbyte","byte"\n"0","k","g","b","1.5","1,048,576"\n'
    (found,) = kernels(text, ("a", "b"))
    assert found.values == {"a": 1500, "b": 1_048_576} and found.launch == ("k", "g", "b")


def test_a_cell_of_many_opcodes_is_read_whole() -> None:
    listed = "; ".join(f"OP{k}: 1" for k in range(20_000))
    (found,) = kernels(f'{GOOD}"0","k","g","b","20000 ({listed})","1"\n', ("a", "b"))
    assert len(found.parts["a"]) == found.values["a"] == 20_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table"),
        (GOOD, "no kernel"),
        (GOOD.replace(',"b"\n', "\n"), "no column b"),
        (f'{GOOD}"0","k","g","b","1"\n', "5 of 6 columns"),
        (f'{GOOD}"","","","","Furlong",""\n"0","k","g","b","1","1"\n', "'Furlong'"),
        (f'{GOOD}"0","k","g","b","1.000.000","1"\n', "no number"),
        (f'{GOOD}"0","k","g","b","-1","1"\n', "no number"),
        (f'{GOOD}"0","k","g","b","5 (X: 2; Y: 2)","1"\n', "add up to 4, not 5"),
        (f'{GOOD}"0","k","g","b","4 (2; 2)","1"\n', "without its opcodes"),
    ],
)  # fmt: skip
def test_a_table_that_is_none(text: str, said: str) -> None:
    with pytest.raises(ReportError, match="ncu") as raised:
        kernels(text, ("a", "b"))
    assert said in str(raised.value)
