"""Does the list of slow tests name tests that there are?"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = (ROOT / "tests/slow.txt").read_text().splitlines()


def test_the_list_names_each_test_once_and_in_order() -> None:
    assert sorted(set(SLOW)) == SLOW


def test_every_slow_test_exists() -> None:
    for name in SLOW:
        path, _, function = name.partition("::")
        assert f" {function.rpartition('.')[2]}" in (ROOT / path).read_text(), name
