"""How far is a module from a published implementation with the same weights?

A comparison names the mixer, the package and what it has there, and how our weights are given to
it. `python -m tests.references` runs those whose packages are installed and writes what it found to
`tables/references/equal.json`, which `costmodel list` reads; so the suite itself needs no package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distribution, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import costmodel as cm
from costmodel.language.options import split
from profiler.modules import registry
from tests.mixers.held import drawn, forward, module_of, stepped
from tests.references.repositories import (
    REPOSITORIES,
    commit,
    importable,
    is_repository,
    pinned,
    place,
)

Given = Callable[[Any, Mapping[str, Tensor], "Comparison"], Any]
"""Called with what the package has, our weights by name and the comparison; returns their function
of sequences (b, l, d). A buffer that must be special is written into our weights."""


@dataclass(frozen=True)
class Comparison:
    """One mixer beside somebody else's code."""

    mixer: str
    package: str
    """As pip names it, or OWNER/NAME of a repository."""
    of: str
    """The class or function, as MODULE.NAME, or FILE.py:NAME for a file of the package or
    repository."""
    sizes: Mapping[str, int]
    given: Given
    without: tuple[str, ...] = ()
    """Modules of a repository that its import does without: see `importable`."""
    pins: str = "references"
    """The kind of the file of constraints that has the package's version."""

    @property
    def options(self) -> tuple[str, ...]:
        """The mixer's options."""
        return split(self.mixer)[1]

    @property
    def installed(self) -> str | None:
        """The version or commit that is installed; None if this is not the one that is pinned."""
        of = commit if is_repository(self.package) else version
        try:
            found = of(self.package)
        except ImportError:  # PackageNotFoundError is one
            return None
        return found if pinned(self.pins).get(self.package, found) == found else None

    def theirs(self) -> Any:
        """The class or function of the package; a file is loaded by itself, since importing its
        package may need a GPU's compiler. Kernels of triton that the import defines are run by
        triton's interpreter, on a CPU."""
        if is_repository(self.package):
            with importable(self.package, self.without):
                return self._loaded(place(self.package))
        with patch.dict(os.environ, TRITON_INTERPRET="1"), with_own_code(self.of):
            return self._loaded(None)

    def _loaded(self, root: Path | None) -> Any:
        """What `of` names; a file is that of the installed package, or of a folder."""
        file, colon, name = self.of.partition(":")
        if not colon:
            module, _, name = self.of.rpartition(".")
            return getattr(import_module(module), name)
        path = root / file if root else distribution(self.package).locate_file(file)
        spec = spec_from_file_location(file.removesuffix(".py").replace("/", "_"), str(path))
        assert spec is not None and spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return getattr(loaded, name)

    def errors(self) -> tuple[float, float | None]:
        """The largest distance between any of our modules and theirs, relative to their largest
        number: of two whole sequences, and token by token where a module has a step. A size that
        modules alone have, as the rows of a chunk, is 3 unless given."""
        others = {*cm.mixer(self.mixer).letters} - {"h", "t"}
        sizes = dict.fromkeys(others, 3) | dict(self.sizes)
        arrays = drawn(self.mixer, sizes)
        weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
        theirs = self.given(self.theirs(), weights, self)
        x = arrays["x"]
        with torch.no_grad():
            both = theirs(torch.from_numpy(np.stack([x, 1 - x]))).numpy()
        whole, steps = [], []
        for name, described in registry.implementations(cm.mixer(self.mixer)).items():
            ours = module_of(self.mixer, name, sizes, arrays)
            whole += [_distance(y, e) for y, e in zip(forward(ours, x, 1 - x), both, strict=True)]
            if described.step_form is not None:
                steps.append(_distance(stepped(ours, x), both[0]))
        return max(whole), max(steps) if steps else None

    def as_record(self) -> dict[str, object]:
        """What is recorded of it, for the version that is installed."""
        whole, steps = self.errors()
        return {
            "mixer": self.mixer,
            "package": self.package,
            "version": self.installed,
            "of": self.of,
            "sizes": dict(self.sizes),
            "whole": whole,
            "steps": steps,
        }


@contextmanager
def with_own_code(of: str) -> Iterator[None]:
    """A block that imports `of`; no import but that of `fla` itself finds `fla`, whose kernels
    transformers calls in place of its own functions where `fla` can be imported."""
    kept = sys.modules.get("fla")
    if not of.startswith("fla."):
        sys.modules["fla"] = None  # type: ignore[assignment]  # how an import is refused
    try:
        yield
    finally:
        if kept is not None:
            sys.modules["fla"] = kept
        elif sys.modules.get("fla") is None:
            sys.modules.pop("fla", None)


def _distance(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


COMPARISONS: list[Comparison] = []
"""Every comparison, in the order of the files; `load` fills it."""


def load() -> list[Comparison]:
    """`COMPARISONS`, from all files of this folder."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if not file.stem.startswith(("test_", "__")):
            import_module(f"{__package__}.{file.stem}")
    return COMPARISONS


def compared(
    mixer: str, package: str, of: str, without: tuple[str, ...] = (), **sizes: int
) -> Callable[[Given], Given]:
    """The decorated function gives our weights to what the package has. A file whose packages are
    pinned in constraints of another kind names the kind as `PINS`."""
    own = REPOSITORIES if is_repository(package) else None

    def add(given: Given) -> Given:
        pins = own or getattr(given, "__globals__", {}).get("PINS", Comparison.pins)
        COMPARISONS.append(Comparison(mixer, package, of, sizes, given, without, pins))
        return given

    return add


def then_three(x: Tensor, read: Callable[[slice], Tensor]) -> Tensor:
    """What `read` gives of all rows of x (b, l, d) but three, then of each of the three."""
    rows = [slice(x.shape[1] - 3), *(slice(i, i + 1) for i in range(x.shape[1] - 3, x.shape[1]))]
    return torch.cat([read(some) for some in rows], 1)


@contextmanager
def made_in_float64() -> Iterator[None]:
    """A block in which new tensors have float64 unless told."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def fill(*pairs: tuple[Tensor, Tensor]) -> None:
    """Copy into each of their weights one of ours."""
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.copy_(ours)


def linear(layer: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    """Give a linear layer W (in, out) and a bias, 0 where we have none."""
    fill((layer.weight, weight.t()))
    if layer.bias is not None:
        fill((layer.bias, torch.zeros(len(layer.bias)) if bias is None else bias))


def heads(x: Tensor, weight: Tensor, n: int) -> Tensor:
    """x W, (b, n, l, h)."""
    return (x @ weight).reshape(*x.shape[:2], n, -1).transpose(1, 2)


def joined(of_heads: Tensor, weight: Tensor) -> Tensor:
    """The rows of all heads side by side, times W_out."""
    return of_heads.transpose(1, 2).flatten(2) @ weight
