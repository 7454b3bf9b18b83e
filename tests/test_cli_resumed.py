"""Does every command read a file that was resumed after a kill in the middle of a line?"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import cli
from costmodel.commands.streams import FAILED
from profiler.records.store import append, line_of, read
from tests.growing import along_l
from tests.recorded import ATTENTION, LAUNCH_BOUND
from tests.typed import Capture

SAID = "line 2 was cut off as its writer was stopped, and was skipped"

GROWING = along_l("me", "toeplitz", (64, 128, 256, 512, 1024), lambda l: 1e-6 * l * l)

READERS = {
    "statement": (("statement", "--from", "FILE"), [ATTENTION, LAUNCH_BOUND]),
    "reconcile": (("reconcile", "--from", "FILE"), [ATTENTION, LAUNCH_BOUND]),
    "merge": (("merge", "FILE", "-o", "OUT.jsonl"), GROWING),
    "scaling": (("scaling", "FILE", "--along", "l"), GROWING),
    "plot": (("plot", "FILE", "--along", "l", "-o", "OUT.svg"), GROWING),
    "compare": (("compare", "FILE", "FILE2"), [ATTENTION, LAUNCH_BOUND]),
}


@pytest.mark.parametrize("name", READERS)
def test_a_resumed_file_is_taken_with_one_warning(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    words, (first, *others) = READERS[name]
    if name == "plot":
        pytest.importorskip("matplotlib")
    path, twin = tmp_path / "runs.jsonl", tmp_path / "twin.jsonl"
    append(path, first)
    with path.open("ab") as file:
        file.write(line_of(others[0]).encode()[:300])
    for record in others:
        append(path, record)
    for record in (first, *others):
        append(twin, replace(record, id=f"twin-{record.id}"))
    places = {"FILE": path, "FILE2": twin}
    typed = [str(places.get(w, tmp_path / w if w.startswith("OUT") else w)) for w in words]
    assert cli.run(typed) == 0
    err = capsys.readouterr().err
    assert err.count(SAID) == 1
    if name == "merge":
        assert read(tmp_path / "OUT.jsonl") == ([first, *others], [])
    path.write_bytes(path.read_bytes().replace(b'"mixer"', b'"mixer', 1))  # of a whole line
    assert cli.run([*typed, "--force"] if "-o" in typed else typed) == FAILED
    assert "line 1 is not valid JSON" in capsys.readouterr().err
