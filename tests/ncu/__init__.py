"""How does a test put a simulated ncu on PATH, and what does the simulated ncu print?

It is never shipped. What it counted is invented; what a calibration's kernels do is written down
here by hand, from the kernels alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "program.py"
L2_BYTES = 50 * 2**20

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
XU = "smsp__thread_inst_executed_pipe_xu_pred_on.sum"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
OPCODES = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
GEMM = 2 * 4096**3
ENTRIES = 2**24


def kernel(
    name: str = "kernel",
    values: Mapping[str, int] | None = None,
    opcodes: Mapping[str, int] | None = None,
    **other: Any,
) -> dict[str, Any]:
    """One launch: what its metrics are, 0 where nothing is said, and its opcodes."""
    return {"name": name, "values": dict(values or {}), "opcodes": dict(opcodes or {}), **other}


def each(**counts: int) -> dict[str, dict[str, int]]:
    """A kernel of so many FADD, FMUL, FFMA, EX2 and RCP an entry: its values and its opcodes."""
    number = {name: count * ENTRIES for name, count in counts.items()}
    sass = {name: number[name] for name in ("fadd", "fmul", "ffma") if name in number}
    mufu = {f"MUFU.{name}": number[name] for name in number if name.isupper()}
    return {
        "values": {SASS.format(name): n for name, n in sass.items()} | {XU: sum(mufu.values())},
        "opcodes": {name.upper(): n for name, n in sass.items()} | mufu,
    }


def calibrating(**changed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the kernels of a calibration do on a chip whose counters are right, save what changed.

    An exponential is one EX2 and one multiplication, a division one RCP and four multiply-adds;
    one counted instruction of half precision stands for a pair.
    """
    chain = 800 * ENTRIES
    known: dict[str, Mapping[str, Any]] = {
        "gemm": {"values": {SASS.format("ffma"): GEMM // 2}, "opcodes": {"FFMA": GEMM // 2}},
        "copy": {"values": {READ: 2**30, WRITE: 2**30 - L2_BYTES}},
        "ex2": each(EX2=1, fmul=1),
        "halves": {"values": {SASS.format("hfma"): chain}, "opcodes": {"HFMA2": chain}},
        "exp": each(EX2=1, fmul=1),
        "div": each(RCP=1, ffma=4),
        "sqrt": each(RSQ=1, fmul=2, ffma=2),
        "log": each(LG2=1, fmul=1),
        "sin": each(ffma=9),
        "cos": each(ffma=9),
        "tanh": each(TANH=1),
        "erf": each(ffma=8),
    }
    found = {name: {**work, **changed.get(name, {})} for name, work in known.items()}
    return [
        kernel(**{"name": name, "range": f"costmodel_{name}", **work})
        for name, work in found.items()
    ]


def stand_in(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    call: Sequence[Mapping[str, Any]] = (),
    *,
    calibration: Sequence[Mapping[str, Any]] | None = None,
    **behaviour: Any,
) -> Path:
    """Put it first on PATH, on a machine that seems to have a Hopper.

    Args:
        call: the kernels of a measured call.
        calibration: those of a calibration.
        behaviour: `probe`, `probe_opcodes`, `counters`, `in_sequence`, `opcodes`: the mode of a
            run; see `program.py`.

    Returns:
        The file to which it appends its arguments, a JSON line a run.
    """
    bin_, seen = folder / "bin", folder / "seen.jsonl"
    bin_.mkdir(exist_ok=True)
    program = bin_ / "ncu"
    program.write_text(f"#!{sys.executable} -IS\n{SCRIPT.read_text(encoding='utf-8')}")
    program.chmod(0o755)
    known = {
        "call": list(call),
        "calibration": calibrating() if calibration is None else list(calibration),
        "seen": str(seen),
        **behaviour,
    }
    (bin_ / "ncu.json").write_text(json.dumps(known))
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    properties = SimpleNamespace(L2_cache_size=L2_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return seen


def runs(seen: Path) -> list[dict[str, Any]]:
    """The runs that it was asked for: `kind`, `words` and the program's own words."""
    return [json.loads(line) for line in seen.read_text().splitlines()]
