"""What does the first hour on an NVIDIA GPU show: do the GPU tests pass, what does the board reach,
what do attention, the Extractors and shipped layers cost, and which claims about GPUs hold?

    python -m benchmarks.gpu_hour -o FOLDER              every stage that is not done, in order
    python -m benchmarks.gpu_hour -o FOLDER energy       one stage, anew
    python -m benchmarks.gpu_hour -o FOLDER --minutes 5  what is cut off after five minutes goes on
                                                         with the next run
    python -m benchmarks.gpu_hour -o FOLDER page         the page of what the stages found, printed
    python -m benchmarks.gpu_hour lacks                  the packages that this machine lacks; anew
                                                         after packing: what those need in turn
    python -m benchmarks.gpu_hour pack NAME...           their wheels into `wheels/`, to be carried

It needs torch and this checkout, and no network: packages that are missing are taken from
`wheels/`. A stage takes less than ten minutes, stands alone and leaves STAGE.json beside the
records that it measured; where a sensor, a counter or a permission is missing it ends with the
reason and exit code 0. It is done when all of its commands ended well on the device that is asked
for; one that is not goes on from its records. Clocks, limits and modes of the board stay as they
are. `--device cpu --small` runs all of it as far as a machine without a GPU can.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "wheels"
CLAIMS = Path(__file__).with_name("gpu_claims.toml")
LARGEST_PACK = 64 * 2**20
STAGE_S = 570.0
"""A stage ends before ten minutes are over."""
OWN = "torch", "ray", "matplotlib"
"""Not looked for: torch is there, and no stage needs the others."""
TESTS = "tests/profiler/"
NUMERIC = "modules", "reconcile", "networks"
KINDS = "passed", "failed", "error", "skipped"
SHIPPED = (
    "self-attention:sdpa", "self-attention+grouped:sdpa", "mla:absorbed", "mla:expanded",
    "mamba-2:chunked", "retnet:chunked", "gla:chunked", "mlstm:chunked", "mamba:scan",
    "rg-lru:scan",
)  # fmt: skip
BY_ROWS = "gated-deltanet:chunked-wy", "kda:chunked-wy", "rwkv-7:chunked", "mamba:recurrent"
"""Layers whose modules loop over rows: minutes for a sequence, so one token alone."""
METERS = ("ceilings", "compare", "counters", "doctor", "environment", "latency_disturbance",
          "latency_kinds", "measure", "memory", "memory_saved", "sweep_processes")  # fmt: skip


@dataclass
class Hour:
    """Where the stages run, and what they leave."""

    folder: Path
    device: str = "cuda"
    small: bool = False
    """Sizes and times at which nothing is learned but that everything runs."""
    anew: bool = False
    """Whether records of an earlier run of a stage are left out."""
    ends: float = float("inf")
    """When all stages end, in seconds of `time.monotonic`."""
    path: list[str] = field(default_factory=list)
    """Where packages are that were carried along."""

    def sizes(self, l: int | str, d: int, n: int) -> list[str]:
        """The options of a call's sizes; several lengths are a list."""
        l, d, n = (8, 4, 2) if self.small else (l, d, n)
        return ["--l", str(l), "--d", str(d), "--n", str(n), "--device", self.device]

    def seconds(self, number: float) -> list[str]:
        """The option of how long a latency is sampled."""
        return ["--seconds", str(0.02 if self.small else number)]


class Stage:
    """A stage as it runs: its commands, each with the time that is left, and what they found."""

    def __init__(self, hour: Hour, name: str) -> None:
        self.hour, self.name, self.began = hour, name, time.monotonic()
        self.found: dict[str, Any] = {"stage": name, "device": hour.device, "commands": []}

    def run(self, title: str, *words: str, **variables: str) -> str:
        """What a command prints; its exit code and its last words are kept. One whose time is over
        is interrupted, as from the keyboard, and keeps what it measured; none starts after that."""
        began = time.monotonic()
        if (left := min(self.began + STAGE_S, self.hour.ends) - began) <= 0:
            late = {"code": 1, "seconds": 0.0, "said": ["not started: the time is over"]}
            self.found["commands"].append({"title": title, **late})
            return ""
        search = os.pathsep.join([*self.hour.path, str(ROOT)])
        env = {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1", **variables}
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            out, said = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                out, said = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                out, said = process.communicate()
        self.found["commands"].append({
            "title": title, "code": process.returncode, "seconds": time.monotonic() - began,
            "said": (said.strip() or out.strip() * bool(process.returncode)).splitlines()[-12:],
        })  # fmt: skip
        print(f"{self.name}: {title}: exit code {process.returncode}", flush=True)
        return out

    def cost(self, *words: str, **variables: str) -> str:
        """What `costmodel` prints."""
        return self.run(" ".join(["costmodel", *words[:1]]), "cli.py", *words, **variables)

    def json(self, key: str, *words: str) -> Any:
        """What `costmodel` prints as JSON, kept under a key; None where it did not end well."""
        with suppress(ValueError):
            self.found[key] = json.loads(self.cost(*words, "--format", "json"))
        return None if failed(self.found["commands"][-1:]) else self.found.get(key)

    def test(self, title: str, files: Sequence[str], *words: str) -> None:
        """The GPU tests of these files, counted."""
        chosen = [f"{TESTS}test_{name}.py" for name in files]
        asked = ["-q", "-rf", "-p", "no:cacheprovider", "-m", "gpu", *words, *chosen]
        out = self.run(f"tests of {title}", "-m", "pytest", *asked)
        ends = re.findall(r"(\d+) (passed|failed|error|skipped)", out)
        counted = self.found.setdefault("tests", dict.fromkeys(KINDS, 0))
        for number, kind in ends:
            counted[kind] += int(number)
        if self.found["commands"][-1]["code"] not in (0, 1):  # cut off, or nothing was collected
            self.found["tests were cut off"] = True
        if counted["passed"] and not self.found.get("tests were cut off"):
            self.found["tests failing"] = counted["failed"] + counted["error"]
        else:
            self.found.pop("tests failing", None)
        lines = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
        self.found.setdefault("failed tests", []).extend(lines)

    def records(self, name: str) -> str:
        """A file of records of this stage, gone on with where it is not run anew; those of another
        kind of device are kept beside it, and come back when their device is asked for."""
        path = self.hour.folder / f"{name}.jsonl"
        own = kind_of({"device": self.hour.device})
        if others := {kind_of(each) for each in held(self.hour.folder, path.name)} - {own}:
            path.replace(path.with_stem("-".join([name, *sorted(others)])))
        if (before := path.with_stem(f"{name}-{own}")).exists():
            before.replace(path)
        if self.hour.anew:
            path.unlink(missing_ok=True)
        return str(path)

    def why_not(self, needed: str) -> str:
        """Why this machine cannot measure something; "" where it can."""
        before = next(held(self.hour.folder, "doctor.json"), {})
        told = before.get("doctor") if before.get("device") == self.hour.device else None
        told = told or self.json("doctor", "doctor", "--device", self.hour.device)
        if told is None and (said := self.found["commands"][-1]["said"]):
            return str(said[-1])
        from profiler.hardware.ncu import PERMISSION  # packages that were carried are there now

        told = told or {"measures": []}
        found = {each["what"]: each for each in told["measures"]}
        if needed not in found:
            return f"doctor does not tell whether {needed} can be measured"
        verdict, said = found[needed]["verdict"], str(found[needed]["said"])
        if PERMISSION in said:
            self.found["partly without permission"] = int(verdict == "partly")
        return "" if verdict in ("yes", "partly") else said


def doctor(stage: Stage) -> None:
    """What can be measured here."""
    stage.json("doctor", "doctor", "--device", stage.hour.device)


def numbers(stage: Stage) -> None:
    """The tests that compare numbers."""
    stage.test("numbers", NUMERIC if not stage.hour.small else NUMERIC[:1])


def meters(stage: Stage) -> None:
    """The tests that look at meters: minutes, most of them in fresh processes."""
    if not stage.hour.small:
        stage.test("meters", METERS)


def board(stage: Stage) -> None:
    """What the board reaches, as a file that --board takes."""
    seconds = "5" if stage.hour.small else "45"
    stage.cost("calibrate", "--device", stage.hour.device, "--seconds", seconds, "--force",
               "-o", str(stage.hour.folder / "board.toml"))  # fmt: skip


def shipped(stage: Stage) -> None:
    """Layers that models ship, in both phases, beside the times that the board predicts."""
    hour = stage.hour
    kept = stage.records("shipped")
    for mixers, phase in ((SHIPPED, "both"), (BY_ROWS, "inference")):
        taken = mixers[:1] if hour.small else mixers
        stage.cost("sweep", *taken, *hour.sizes(2048, 2048, 16), "--C", "64", "--phase", phase,
                   "--dtype", "bf16", "--rounds", "1", *hour.seconds(0.5), "-o", kept)  # fmt: skip
    own = hour.folder / "board.toml"
    on = ["--board", str(own)] if own.exists() else []
    stage.json("ladders", "reconcile", "--from", kept, *on)


def whole(stage: Stage) -> None:
    """Self-attention and the Extractors; one beside itself; with and without the
    profiler of kernels left attached."""
    hour = stage.hour
    mixers = ["self-attention"] if hour.small else ["self-attention", "she", "he", "we", "me"]
    kept = stage.records("whole")
    stage.cost("sweep", *mixers, *hour.sizes(1024, 1024, 16), "--rounds", "1",
               *hour.seconds(1.0), "-o", kept)  # fmt: skip
    ladders = stage.json("ladders", "reconcile", "--from", kept)
    if ladders and not failed(stage.found["commands"]):
        stage.found["unexplained operations"] = sum(x["unexplained"] for x in ladders["summary"])
    if hour.small:
        return
    itself = stage.json("itself", "compare", "self-attention:sdpa", "self-attention:sdpa",
                         *hour.sizes(512, 512, 8))  # fmt: skip
    if itself and not itself["rows"][0]["refused"]:
        stage.found["itself differs"] = int(itself["rows"][0]["differs"])
    for kept, down in (("attached", "0"), ("torn-down", "1")):
        # a point is timed first and profiled last: two of the three follow a session of another
        stage.cost("profile", "me", "--impl", "toeplitz", *hour.sizes("64,80,96", 64, 1),
                   *hour.seconds(1.0), "-o", stage.records(kept), TEARDOWN_CUPTI=down)  # fmt: skip
    stage.cost("profile", "self-attention", "--impl", "explicit", *hour.sizes(64, 64, 1),
               *hour.seconds(0.2), "-o", stage.records("no-workspace"),
               CUBLAS_WORKSPACE_CONFIG=":0:0")  # fmt: skip
    stage.test("whole measurements", ["gpu"])


def energy(stage: Stage) -> None:
    """Joules by the board's counter, the same in a fresh process."""
    if reason := stage.why_not("energy"):
        stage.found["reason"] = reason
        return
    stage.test("a fresh process", ["energy_gpu"], "-k", "fresh")  # alone: no second context
    stage.cost("profile", "self-attention", "--impl", "sdpa", "--energy",
               *stage.hour.sizes(1024, 1024, 16), "--b", "8", "--dtype", "bf16",
               *stage.hour.seconds(1.0),
               "-o", stage.records("energy"))  # fmt: skip


def joules(stage: Stage) -> None:
    """Whether they are additive, proportional, and alike in short and long windows."""
    if reason := stage.why_not("energy"):
        stage.found["reason"] = reason
        return
    stage.test("joules", ["energy_gpu"], "-k", "not fresh")


def counters(stage: Stage) -> None:
    """Hardware counters by ncu, with their calibration in the records; beside them
    nsight-python, and bytes by NVML's GPM."""
    if reason := stage.why_not("hardware counters"):
        stage.found["reason"] = reason
        return
    kept = stage.records("counters")
    for dtype in ("fp32", "bf16"):
        stage.cost("profile", "self-attention", "--impl", "explicit", "--b", "4", "--counters",
                   *stage.hour.sizes(256, 512, 8), "--dtype", dtype,
                   *stage.hour.seconds(0.5), "-o", kept)  # fmt: skip
    stage.json("ladders", "reconcile", "--from", kept)
    out = stage.run("nsight-python", "-m", "benchmarks.counters_against_nsight")
    stage.found["nsight-python"] = out.splitlines()
    if told := re.search(r"they differ by at most ([\d.]+)", out):
        stage.found["nsight-python differs by"] = float(told[1])
    if told := re.search(r"GPM tells ([\d.]+)", stage.run("GPM", "-m", "benchmarks.gpm_bytes")):
        stage.found["GPM ratio"] = float(told[1])


def calibration(stage: Stage) -> None:
    """Whether counters of known work, and of a whole mixer, are what they must be."""
    if reason := stage.why_not("hardware counters"):
        stage.found["reason"] = reason
        return
    stage.test("counters", ["hardware_gpu"])


def studies(stage: Stage) -> None:
    """A shard of a grid, and training steps in turns."""
    hour = stage.hour
    largest = "64" if hour.small else "512"
    stage.cost("study", "extractors", "--device", hour.device, "--largest",
               "128" if hour.small else largest, "--shard", "1/20" if hour.small else "1/4",
               *hour.seconds(0.2), "-o", stage.records("extractors"))  # fmt: skip
    if not hour.small:
        stage.cost("study", "thesis-training", "--device", hour.device, "--rounds", "7",
                   "--largest", "3", "-o", stage.records("training"))  # fmt: skip


EACH = (doctor, board, shipped, whole, energy, counters, numbers, joules, calibration, meters,
        studies)  # fmt: skip
"""Records come first: a machine that is lent for minutes leaves them."""
STAGES = {each.__name__: each for each in EACH}


def run(hour: Hour, name: str) -> int:
    """Run a stage and keep what it found; 1 where a command failed that was to succeed."""
    stage = Stage(hour, name)
    target = hour.folder / f"{name}.json"
    if hour.anew:
        target.unlink(missing_ok=True)
    STAGES[name](stage)
    stage.found["seconds"] = time.monotonic() - stage.began
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps(stage.found, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(target)
    if reason := stage.found.get("reason"):
        print(f"{name}: not measured: {reason}")
    return int(bool(failed(stage.found["commands"])))


def failed(commands: Sequence[Mapping[str, Any]]) -> list[str]:
    """The titles of the commands that did not end well; 5: no test was there to be run."""
    return [each["title"] for each in commands if each["code"] not in (0, 5)]


def done(hour: Hour, name: str) -> bool:
    """Whether a stage ended well on the device that is asked for."""
    found = next(held(hour.folder, f"{name}.json"), None)
    return bool(found and found["device"] == hour.device and not failed(found["commands"]))


# What the stages say of the claims


@dataclass(frozen=True)
class Claim:
    """A sentence about GPUs, and the figure that decides it."""

    id: str
    says: str
    stage: str
    """The file STAGE.json, or FILE.jsonl of records, that the figure is in."""
    path: tuple[str, ...] = ()
    """Where it stands; () where nothing measures it yet."""
    per: tuple[tuple[str, ...], ...] = ()
    """What it is divided by: figures of the same record."""
    against: str = ""
    """Another file whose figure it is divided by."""
    scale: float = 1.0
    least: float = float("-inf")
    most: float = float("inf")

    @property
    def condition(self) -> str:
        """Between which figures it holds."""
        ends = [f"{self.least:g} or more"] * (self.least > float("-inf"))
        ends += [f"{self.most:g} or less"] * (self.most < float("inf"))
        return "exactly " + f"{self.least:g}" if self.least == self.most else " and ".join(ends)

    def figure(self, folder: Path) -> float | None:
        """The median over what the file holds; None where nothing is known."""
        found = self.figures(folder, self.stage)
        if self.against:
            others = self.figures(folder, self.against)
            if not (found and others):
                return None
            return statistics.median(found) / statistics.median(others)
        return statistics.median(found) if found else None

    def figures(self, folder: Path, name: str) -> list[float]:
        """Those of a file that were found on a GPU."""
        on_gpu = (each for each in held(folder, name) if kind_of(each) == "cuda")
        return [value for each in on_gpu if (value := self.of(each)) is not None]

    def of(self, values: Mapping[str, Any]) -> float | None:
        """The figure of one record, or of a stage."""
        found = number_at(values, self.path)
        under = [number_at(values, path) for path in self.per]
        if found is None or not all(under):
            return None
        for each in under:
            found /= each or 1.0
        return found * self.scale


def claims(path: Path = CLAIMS) -> list[Claim]:
    """Every claim of the file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    return [
        Claim(**{
            **each, "path": tuple(each.get("path", ())),
            "per": tuple(tuple(path) for path in each.get("per", ())),
        })
        for each in found
    ]  # fmt: skip


def number_at(values: Any, path: Sequence[str]) -> float | None:
    """The number at a path of keys; of a list the number of its entries; None where there is
    none."""
    if not path:
        return None
    for key in path:
        if not isinstance(values, Mapping) or key not in values:
            return None
        values = values[key]
    if isinstance(values, list):
        return float(len(values))
    return float(values) if isinstance(values, int | float) else None


def kind_of(values: Mapping[str, Any]) -> str:
    """The kind of device that something was found on: `cuda` for `cuda:0`."""
    return str(values.get("device")).partition(":")[0]


class UnreadableError(ValueError):
    """A stage's file that is no JSON; one sentence says what to do."""


def held(folder: Path, name: str) -> Iterator[Mapping[str, Any]]:
    """What a file of a folder holds: its records, without lines that were cut off, or itself."""
    path = folder / name
    if not path.exists():
        return
    records = path.suffix == ".jsonl"
    for text in path.read_bytes().splitlines() if records else [path.read_bytes()]:
        try:
            yield json.loads(text)
        except ValueError:
            if not records:
                said = f"{path} cannot be read: remove it, or name its stage to run it anew"
                raise UnreadableError(said) from None


def page(folder: Path) -> str:
    """What the stages found, and which claims they settle, in Markdown."""
    lines = ["# The first hour on a GPU", ""]
    for name in STAGES:
        found = next(held(folder, f"{name}.json"), None)
        if found is None:
            lines.append(f"- **{name}**: not run")
            continue
        tests = ", ".join(f"{n} {kind}" for kind, n in found.get("tests", {}).items() if n)
        bad = failed(found["commands"])
        said = [found.get("reason", ""), f"tests: {tests}" if tests else ""]
        said += [f"failed: {', '.join(bad)}"] if bad else []
        device = f" on {found['device']}, {found['seconds']:.0f} s"
        lines.append(f"- **{name}**{device}. {'; '.join(filter(None, said))}".rstrip(" .") + ".")
        lines += [f"    - {line}" for line in found.get("failed tests", [])]
    lines += ["", "| claim | figure | holds at | verdict |", "|---|---|---|---|"]
    for claim in claims():
        figure = claim.figure(folder)
        verdict = "open"
        if figure is not None:
            verdict = "held" if claim.least <= figure <= claim.most else "refuted"
        shown = "-" if figure is None else f"{figure:.4g}"
        lines.append(f"| {claim.id}: {claim.says} | {shown} | {claim.condition} | {verdict} |")
    return "\n".join(lines) + "\n"


# What a bare machine lacks


def lacks() -> list[str]:
    """The packages that the project and its tests need and this machine has not, those that a
    package here or in `wheels/` needs included."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*about["dependencies"], "pytest>=9", "hypothesis>=6"]
    found, seen = [], set(OWN)
    while wanted:
        requirement = wanted.pop()
        name = re.split(r"[<>=~!\[( ]", requirement)[0]
        if name in seen or ";" in requirement:  # needed by some machines, or for extras
            continue
        seen.add(name)
        try:
            wanted += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            found.append(name)
    return sorted(found)


def pack(names: Sequence[str]) -> None:
    """Wheels of these packages, made here, for a machine without a network."""
    WHEELS.mkdir(exist_ok=True)
    pinned = {line.partition("==")[0].lower(): line for line in
              (ROOT / "constraints.txt").read_text(encoding="utf-8").split()}  # fmt: skip
    asked = [pinned.get(name.lower(), name) for name in names]
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(WHEELS), *asked]
    subprocess.run(pip, check=True)
    size = sum(each.stat().st_size for each in WHEELS.glob("*.whl"))
    print(f"{size / 2**20:.1f} MiB in {WHEELS.name}/")
    if size > LARGEST_PACK:
        raise SystemExit(f"more than {LARGEST_PACK / 2**20:.0f} MiB: pack less")


def carried() -> list[str]:
    """A folder with the packages of `wheels/`, where there are any."""
    wheels = [str(each) for each in WHEELS.glob("*.whl")] if WHEELS.exists() else []
    if not wheels:
        return []
    target = tempfile.mkdtemp(prefix="costmodel-wheels-")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, target, *wheels], check=True)
    sys.path.insert(0, target)
    return [target]


def main(typed: Sequence[str] | None = None) -> int:
    """Do what is asked; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_hour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", help=f"{', '.join(STAGES)}, page, lacks or pack NAME..."
    )
    parser.add_argument("-o", "--output", type=Path, help="the folder of what is found")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="all stages end then")
    parser.add_argument("--small", action="store_true", help="sizes that show only that it runs")
    asked = parser.parse_args(typed)
    if asked.words[:1] == ["lacks"]:
        carried()
        print("\n".join(lacks()))
        return 0
    if asked.words[:1] == ["pack"]:
        if not asked.words[1:]:
            parser.error("pack which packages? give their names, pack NAME...")
        pack(asked.words[1:])
        return 0
    if unknown := [word for word in asked.words if word not in (*STAGES, "page")]:
        parser.error(f"no stage {unknown[0]}: there are {', '.join(STAGES)}, page, lacks and pack")
    if "page" in asked.words and asked.words != ["page"]:
        parser.error("page is no stage: ask for it alone")
    if asked.output is None:
        parser.error("give it a folder, -o FOLDER")
    try:
        asked.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the folder {asked.output}: {error.strerror}")
    if asked.small and asked.device != "cpu":
        parser.error("--small shows only that everything runs: give it --device cpu")
    try:
        code = 0
        if asked.words != ["page"]:
            ends = time.monotonic() + 60 * asked.minutes
            hour = Hour(asked.output.resolve(), asked.device, asked.small, bool(asked.words), ends)
            todo = asked.words or [name for name in STAGES if not done(hour, name)]
            hour.path = carried()
            if missing := lacks():
                parser.error(
                    f"this machine lacks {', '.join(missing)}: pack them, and carry wheels/"
                )
            code = max([run(hour, x) if time.monotonic() < ends else 1 for x in todo], default=0)
        print(page(asked.output), end="")
    except UnreadableError as error:
        parser.error(str(error))
    return code


if __name__ == "__main__":
    sys.exit(main())
