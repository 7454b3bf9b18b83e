"""Does every line of tests/slow.txt name a test?"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = (ROOT / "tests/slow.txt").read_text().splitlines()


def test_the_list_names_each_test_once_and_in_order() -> None:
    assert sorted(set(SLOW)) == SLOW


def test_every_slow_test_exists() -> None:
    gone = [name for name in SLOW if not exists(*name.split("::"))]
    assert gone == [], "these lines leave tests/slow.txt"


def exists(path: str, function: str) -> bool:
    """Whether the file has a test, or an example of a function, of this name."""
    file, name = ROOT / path, function.rpartition(".")[2]
    return file.exists() and f" {name}" in file.read_text()
