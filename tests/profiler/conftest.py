"""How does a test load NVIDIA's binding with a simulated library?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]  # no stubs
import pytest

from tests.conftest import nobody_else
from tests.nvml.board import Simulated, built, opened


@pytest.fixture(autouse=True, scope="module")
def alone() -> Iterator[None]:
    """All tests here measure undisturbed, and so do the fixtures of their modules."""
    with pytest.MonkeyPatch.context() as patch:
        nobody_else(patch)
        yield


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once."""
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def boards(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Simulated]]:
    """Makes so many simulated boards, and a binding that sees them and no others."""
    library = opened(library_path)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def made(count: int = 1) -> list[Simulated]:
        library.sim_reset(count)
        pynvml.nvmlInit()
        return [Simulated(pynvml, library, index) for index in range(count)]

    return made


@pytest.fixture
def board(boards: Callable[..., list[Simulated]]) -> Simulated:
    """One simulated board at rest: 80 W, counter and power refreshed every 100 ms."""
    found = boards(1)[0]
    found.counter()
    found.instant()
    return found
