"""Where is the code of repositories that no package index has, and which commit is checked out?

    python -m tests.references.repositories FOLDER
    REFERENCES=FOLDER python -m tests.references

The first line fetches, from GitHub, every repository of `constraints-references-repositories.txt`
at the commit that stands there; comparisons import from it whatever the second line names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock, patch

ROOT = Path(__file__).parents[2]
REPOSITORIES = "references-repositories"
VARIABLE = "REFERENCES"


def is_repository(package: str) -> bool:
    """Whether a name is OWNER/NAME, of a repository, and not of a package index."""
    return "/" in package


def place(repository: str) -> Path:
    """The folder of a repository; an ImportError without one."""
    folder = os.environ.get(VARIABLE)
    found = Path(folder or ".").resolve() / repository
    if folder is None or not (found / ".git").exists():
        raise ImportError(f"{repository} is not in the folder that {VARIABLE} names")
    return found


def commit(repository: str) -> str:
    """The commit that is checked out."""
    return _git(place(repository), "rev-parse", "HEAD").strip()


@contextmanager
def importable(repository: str, without: Sequence[str] = ()) -> Iterator[None]:
    """A block that imports from a repository; its modules are forgotten afterwards, since several
    repositories have a module `src`.

    Args:
        without: modules that a comparison does not need and that are not installed, or need a GPU's
            compiler. A package of the repository stands there if its own `__init__` is not run.
    """
    root = place(repository)
    before = set(sys.modules)
    try:
        with patch.object(sys, "path", [str(root), *sys.path]):
            sys.modules.update({name: _bare(root, name) for name in without})
            yield
    finally:
        new = set(sys.modules) - before
        for name in [each for each in new if each in without or _is_of(sys.modules[each], root)]:
            del sys.modules[name]


def _is_of(module: ModuleType, root: Path) -> bool:
    """Whether a module's file, or a folder of a package without one, is in a repository."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(place and Path(place).is_relative_to(root) for place in places)


def _bare(root: Path, name: str) -> ModuleType | MagicMock:
    """A package without its own code, or something that answers to every name."""
    folder = root.joinpath(*name.split("."))
    if not folder.is_dir():
        return MagicMock(__file__=None)
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    return package


def pinned(kind: str) -> dict[str, str]:
    """Package -> version, or repository -> commit, in the file of constraints of this kind."""
    lines = (ROOT / f"constraints-{kind}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def fetch(folder: Path) -> None:
    """Check every repository out in a folder, at its commit."""
    for repository, wanted in pinned(REPOSITORIES).items():
        own = folder / repository
        own.mkdir(parents=True, exist_ok=True)
        _git(own, "init", "-q")
        _git(own, "fetch", "-q", "--depth=1", f"https://github.com/{repository}", wanted)
        _git(own, "checkout", "-q", wanted)
        print(repository, wanted)


def _git(folder: Path, *words: str) -> str:
    asked = ["git", "-C", str(folder), *words]
    return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
