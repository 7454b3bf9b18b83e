"""How much processor time and memory do commands on recorded runs take for 10,000 records?

python -m benchmarks.many_records

The records are those of tables/measured, with other lengths, temperatures and loads. Beside each
command stands its time as a multiple of the time in which Python's json reads the same file.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.timing import environment
from costmodel.data import data_dir

NUMBER = 10_000
STEP = 64
"""The lengths are multiples of the chunk lengths of the modules."""
JSON = "import json, sys\nfor line in open(sys.argv[1], 'rb'):\n    json.loads(line)"


def records(number: int) -> Iterator[str]:
    """Yield lines: the records of tables/measured in turn, two rounds at each length."""
    chance = random.Random(7)
    files = sorted(data_dir("measured").glob("*/*.jsonl"))
    known = [json.loads(line) for file in files for line in file.open(encoding="utf-8")]
    for k in range(number):
        record = known[k % len(known)]
        at, round_ = divmod(k // len(known), 2)
        length = dict.fromkeys({"l", "t"} & record["sizes"].keys(), STEP * (1 + at))
        facts = record["environment"]
        state = {"temperature_C": chance.randint(30, 70), "load_average": chance.random()}
        environment = facts | {"state": facts["state"] | state}
        changed = {
            "id": f"{k:032x}",
            "sizes": record["sizes"] | length,
            "sweep": record.get("sweep", {}) | {"round": round_},
            "environment": environment,
        }
        yield f"{json.dumps(record | changed, ensure_ascii=False)}\n"


def spent(arguments: Sequence[str]) -> tuple[float, float]:
    """(user seconds, largest resident MB) of a process that runs this Python."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(arguments)} ended with {code}")
    return used.ru_utime, used.ru_maxrss / 1024


def main() -> None:
    """Print seconds of processor time and memory of each command."""
    print(environment("torch", "msgspec"))
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder, "records.jsonl"))
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(records(NUMBER))
        size = Path(source).stat().st_size / 2**20
        print(f"{NUMBER:,} records, {size:,.0f} MB\n")
        commands = {
            "merge": ("merge", source, "--allow-mixed", "-o", str(Path(folder, "one.jsonl"))),
            "statement": ("statement", "--from", source),
            "scaling": ("scaling", source),
            "plot": ("plot", source, "-o", str(Path(folder, "figure.svg"))),
            "reconcile": ("reconcile", "--from", source),
        }
        one, most = spent(["-c", JSON, source])
        print(f"{'json.loads of each line':<26}{one:6.1f} s of processor time, {most:5.0f} MB")
        for name, words in commands.items():
            user, most = spent(["-m", "cli", *words])
            said = f"{user:6.1f} s of processor time, {most:5.0f} MB"
            print(f"{name:<26}{said}; {user / one:.2f} times json")


if __name__ == "__main__":
    main()
