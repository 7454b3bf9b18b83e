"""Is the compile time kept apart from the calls?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.meters.compilation import Compiled, compile_call, relative_difference
from profiler.meters.timers import ClockTimer
from tests.fake_devices import MS, Clock, Work, refused

ROOT = Path(__file__).parents[2]

NO_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile on a CPU needs a C++ compiler",
)


def compiled_on(clock: Clock, work: Callable[..., Any], fn: Callable[..., Any]) -> Any:
    """With a compiler that gives `work` for `fn`, on a fake clock."""
    return compile_call(fn, timer=ClockTimer(clock), compiler=lambda _: work)


def made(found: Any) -> Compiled:
    assert isinstance(found, Compiled), found
    return found


def test_compile_is_what_came_before_the_first_settled_call() -> None:
    """10 s of compiling, 1 s of tuning, then calls of 2 ms."""
    clock = Clock()
    work = Work(clock, 10_000 * MS, 1_000 * MS, 2 * MS)
    found = made(compiled_on(clock, work, lambda: None))
    assert found.reading.name == "compile"
    assert found.reading.unit == "s"
    assert found.reading.value == pytest.approx(11.0)
    assert found.reading.details["calls"] == 3  # two that compile, and the first settled one
    assert found.reading.details["settled_call_s"] == pytest.approx(2e-3)
    assert found.fn is work


def test_a_call_of_compile_and_work_gives_its_compiling_alone() -> None:
    clock = Clock()
    found = made(compiled_on(clock, Work(clock, 10_002 * MS, 2 * MS), lambda: None))
    assert found.reading.value == pytest.approx(10.002)
    clock = Clock()  # nothing to compile
    assert made(compiled_on(clock, Work(clock, 2 * MS), lambda: None)).reading.value == 0


def test_calls_that_never_settle_are_a_reason() -> None:
    clock = Clock()
    work = Work(clock, *[MS, 2 * MS] * 100)
    assert "in 50 calls" in refused(compiled_on(clock, work, lambda: None))


def test_without_a_compiler_its_own_reason_is_given() -> None:
    def failing(fn: Callable[..., Any]) -> Callable[..., Any]:
        try:
            raise FileNotFoundError("No working C++ compiler found")
        except FileNotFoundError as error:
            raise RuntimeError("backend='inductor' raised") from error

    found = compile_call(lambda: torch.ones(1), compiler=failing)
    assert refused(found) == "torch.compile: FileNotFoundError: No working C++ compiler found"


WITHOUT_COMPILER = """
import torch
from profiler.meters.compilation import compile_call
print(compile_call(lambda x: torch.softmax(x + x, -1), (torch.randn(3, 4),)).reason)
"""


@pytest.mark.grid
def test_a_missing_compiler_is_a_reason_from_torch_itself() -> None:
    """In a process of its own: torch remembers which compilers it has found."""
    environment = os.environ | {"CXX": "no-such-compiler"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_COMPILER],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("torch.compile: ")
    assert "compiler" in done.stdout.lower()


def test_resets_run_before_every_call() -> None:
    clock, resets = Clock(), []
    work = Work(clock, MS)
    made(compile_call(work, reset=lambda: resets.append(1), timer=ClockTimer(clock),
                      compiler=lambda fn: fn))  # fmt: skip
    assert len(resets) == work.calls


def test_what_the_compiled_call_gives_is_held_against_the_call() -> None:
    one, two = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 4.2])
    assert relative_difference([one], [two]) == pytest.approx(0.05)
    assert relative_difference([one], [one]) == 0
    assert relative_difference([], []) is None
    assert relative_difference([one], [torch.ones(3)]) is None


def test_entries_that_are_not_finite_are_equal_or_have_no_difference() -> None:
    one, lost = torch.tensor([1.0, 4.0]), torch.tensor([1.0, float("nan")])
    endless = torch.tensor([2.0, float("-inf")])
    assert relative_difference([one, lost], [one, lost]) == 0
    assert relative_difference([endless], [endless + 0.1]) == pytest.approx(0.05)
    assert relative_difference([one, one], [one, lost]) is None
    assert relative_difference([endless], [-endless]) is None


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[NO_COMPILER, pytest.mark.grid])]
)
def test_a_real_module_is_compiled(backend: str) -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 4)

    @torch.no_grad()
    def call(value: torch.Tensor) -> torch.Tensor:
        return torch.softmax(layer(value), -1)

    compiler = partial(torch.compile, backend=backend)
    tried = (  # a busy machine may settle at no call
        compile_call(call, (x,), compiler=compiler) for _ in range(3)
    )
    found = made(next((one for one in tried if isinstance(one, Compiled)), None))
    assert found.reading.value > 10 * found.reading.details["settled_call_s"]
    assert found.reading.details["graph_breaks"] == 0
    assert found.reading.details["difference"] < 1e-5  # rounding of float32
    assert torch.allclose(found.fn(x), call(x), atol=1e-6)
