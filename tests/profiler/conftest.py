"""How does a test load NVIDIA's binding with a simulated library, and prove equations that stand in
several files once?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from re import MULTILINE, split

import pynvml  # type: ignore[import-untyped]  # no stubs
import pytest

from costmodel.language.equations import Mixer
from costmodel.proofs.check import Proof, prove
from tests.conftest import nobody_else
from tests.nvml.board import Simulated, built, opened
from tests.stand_ins import Instead


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


PROVEN: dict[str, list[Proof]] = {}
"""Equations as a file writes them -> their proofs."""


@pytest.fixture
def proven_once(instead: Instead) -> None:
    """Files of a user's that differ in their modules alone have the proofs of one of them about
    their equations: the tests are about the proofs of modules."""

    def once(mixer: Mixer) -> list[Proof]:
        written = equations_of(mixer)
        if written not in PROVEN:
            PROVEN[written] = prove(mixer)
        return PROVEN[written]

    instead(prove=once)


def equations_of(mixer: Mixer) -> str:
    """A mixer's file up to its first module, which comes after all equations, or the whole file;
    the name of a built-in mixer."""
    path = Path(mixer.origin.rpartition(":")[0])
    if not path.is_file():
        return mixer.name
    text = path.read_text(encoding="utf-8").replace(mixer.name, "NAME")
    before, *rest = split("^(?:@|class )", text, maxsplit=1, flags=MULTILINE)
    return text if ".form(" in "".join(rest) else before
