"""Is a module without equations measured like a mixer, and compared with its trace?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
from costmodel.commands.streams import FAILED
from profiler.counting.operations import Operations
from profiler.records.keys import key_of
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading, Unavailable
from profiler.records.store import append, read
from profiler.run.called import dispatched_by
from profiler.run.energy_tokens import per_token
from profiler.run.measure import inputs_of
from profiler.run.plain import with_inputs
from profiler.run.plan import Plan, request_of, requests
from profiler.run.prepare import prepare
from profiler.run.request import Request, request_json
from profiler.run.subject import measurable, subject
from profiler.scaling.derived import OPERATIONS, Predictions
from profiler.scaling.series import series_of
from profiler.sweep.points import Point
from profiler.tracing.meta_run.target import Made
from tests.sweeping import record_of
from tests.typed import Capture, printed, refused

FILE = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, *, l, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
    def forward(self, x):
        return self.lin(x).relu()

class Two(nn.Module):
    def __init__(self, d, k=3):
        super().__init__()
        self.wide, self.back = nn.Linear(d, k * d), nn.Linear(k * d, d)
    def forward(self, x, other):
        return self.back(self.wide(x)) * other

def placed(b, l, d):
    return Two(d), (torch.empty(b, l, d), torch.empty(b, l, d))

def named(b, l, d, k=2):
    return Two(d, k), {"other": torch.empty(b, l, d), "x": torch.empty(b, l, d)}

def short(b, l, d):
    return Two(d), torch.empty(b, l, d)

class Nothing(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x

class Several(nn.Module):
    def __init__(self, d, p=0.25, s=None):
        super().__init__()
        self.lin, self.dropout = nn.Linear(d, d), nn.Dropout(p)
    def forward(self, x):
        return self.dropout(self.lin(x)), {"sum": x.sum(-1)}

def looked_up(b, l, u, d):
    return nn.Embedding(u, d), torch.ones(b, l, dtype=torch.long)

def sliding(b, l, k=3):
    return nn.Conv1d(5, 5, k, padding=k // 2), torch.empty(b, 5, l)

class Attending(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
    def forward(self, query, key, value, *, scale):
        assert query is key is value[0]
        return self.lin(query @ key.mT @ value[0]) * scale

def one_thrice(b, l, d):
    x = torch.empty(b, l, d)
    return Attending(d), {"query": x, "key": x, "value": [x], "scale": 0.5}

class Normed(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
    def forward(self, x):
        return self.norm(x)

class Valued(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x

class Failing(nn.Module):
    def forward(self, x):
        return x @ x

class Yields(nn.Module):
    def forward(self, x):
        yield x @ x.mT

class Unbuilt(nn.Module):
    def __init__(self, d):
        raise ValueError("never")

class Hidden(nn.Module):
    def __init__(self, hidden):
        super().__init__()

class Other:
    pass

ones = torch.ones
"""

SIZES = {"b": (2,), "l": (3,), "d": (4,), "u": (7,)}
TYPED = ("--d", "4", "--l", "3", "--seconds", "0.02", "--device", "cpu")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, one for all tests, so that what was traced is traced once."""
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def file(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, named from a folder of the test's own."""
    (tmp_path / "own.py").symlink_to(written)
    monkeypatch.chdir(tmp_path)
    return written


def asked(path: Path, name: str, phase: str = "training", **more: Any) -> Request:
    """The one request of a class or function of the file."""
    plan = Plan([measurable(f"{path}:{name}")], SIZES, (phase,), device="cpu", **more)
    (found,) = requests(plan)
    return found


def traced(request: Request) -> Operations | Unavailable | None:
    return subject(request.mixer).traced(request.phase, request.sizes)


# Counted


@pytest.mark.grid(4)
@pytest.mark.parametrize("phase", ["training", "backward", "training-step"])
@pytest.mark.parametrize(
    "name", ["named", "one_thrice", "Nothing", "Several", "looked_up", "sliding", "Normed"]
)
def test_as_many_operations_are_traced_as_dispatched(file: Path, name: str, phase: str) -> None:
    request = asked(file, name, phase)
    assert dispatched_by(prepare(request)).operations == traced(request)


def test_operations_counted_by_hand(file: Path) -> None:
    """Of b l = 6 rows: products with 4 x 4 weights, sums of 4 terms and the bias, and relu."""
    expected = Operations(6 * 16, 6 * 16, other={"compare": 6 * 4})
    assert traced(asked(file, "Plain")) == expected
    assert dispatched_by(prepare(asked(file, "Plain"))).operations == expected


def test_a_module_that_cannot_be_traced_is_dispatched(file: Path) -> None:
    request = asked(file, "Valued")
    assert dispatched_by(prepare(request)).operations.add == 2 * 3 * 4 - 1
    found = traced(request)
    assert isinstance(found, Unavailable) and "depend on the values" in found.reason


def test_dropout_is_part_of_a_training_step_alone(file: Path) -> None:
    assert "random" not in traced(asked(file, "Several")).other  # type: ignore[union-attr]
    assert "random" in traced(asked(file, "Several", "training-step")).other  # type: ignore[union-attr]


# Built


@pytest.mark.parametrize(
    ("name", "sizes", "inputs"),
    [
        ("Plain", {"b": 2, "l": 3, "d": 4}, {"x": (2, 3, 4)}),
        ("Nothing", {"b": 2, "l": 3, "d": 4}, {"x": (2, 3, 4)}),
        ("Several", {"b": 2, "l": 3, "d": 4}, {"x": (2, 3, 4)}),
        ("placed", {"b": 2, "l": 3, "d": 4}, {"x": (2, 3, 4), "other": (2, 3, 4)}),
        ("named", {"b": 2, "l": 3, "d": 4, "k": 2}, {"other": (2, 3, 4), "x": (2, 3, 4)}),
        ("looked_up", {"b": 2, "l": 3, "d": 4, "u": 7}, {"input": (2, 3)}),
        ("one_thrice", {"b": 2, "l": 3, "d": 4}, {"query": (2, 3, 4)}),
        ("sliding", {"b": 2, "l": 3, "k": 3}, {"input": (2, 5, 3)}),
    ],
)
def test_plain_modules_take_sizes_and_inputs(
    file: Path, name: str, sizes: dict[str, int], inputs: dict[str, tuple[int, ...]]
) -> None:
    request = asked(file, name)
    assert request.sizes == sizes
    work = prepare(request)
    assert {key: tuple(x.shape) for key, x in inputs_of(work).items()} == inputs


def test_parameters_and_inputs_repeat_and_follow_the_seed(file: Path) -> None:
    def results(seed: int) -> torch.Tensor:
        return prepare(asked(file, "named", dtype="fp64", seed=seed)).once()  # type: ignore[no-any-return]

    assert results(5).dtype == torch.float64
    assert torch.equal(results(5), results(5)) and not torch.equal(results(5), results(6))


def test_a_process_that_is_told_of_it_measures_the_same(file: Path) -> None:
    request = asked(file, "named")
    assert request_of(json.loads(json.dumps(request_json(request)))) == request
    assert key_of(record_of(request)) == Point(request).key


def test_tokens_without_a_length_are_not_known(file: Path) -> None:
    found = record_of(asked(file, "sliding"), readings={"energy": Reading("energy", 6.0, "J")})
    assert per_token(found)["J_per_token"].value == 1  # type: ignore[union-attr]
    del found.sizes["l"]  # type: ignore[attr-defined]
    assert "no b or no l" in per_token(found)["J_per_token"].reason  # type: ignore[union-attr]


# Printed


def test_profile_shows_what_is_traced_where_equations_would_derive(
    file: Path, capsys: Capture
) -> None:
    out = printed(capsys, "profile", "own.py:Plain", *TYPED, "-o", "r.jsonl")
    heading = next(line for line in out.splitlines() if line.startswith("mixer"))
    assert "operations  traced" in heading
    assert "operations of a module without equations" in out
    printed(capsys, "profile", "own.py:Plain", *TYPED, "-o", "r.jsonl")
    records, problems = read(Path("r.jsonl"))
    assert problems == [] and len(records) == 2 and len({r.id for r in records}) == 2
    for record in records:
        assert (record.mixer, record.implementation, record.form) == ("own.py:Plain", "module", "")
        assert record.counts["traced"] == record.counts["dispatch"]["operations"]
        assert record.readings["latency"].value > 0 and "energy" in {
            *record.readings,
            *record.reasons,
        }
    out = printed(capsys, "statement", "--from", "r.jsonl")
    assert "2 runs of 1 implementation of 1 mixer" in out


def test_inputs_without_a_name_in_forward_are_numbered_from_the_first() -> None:
    class Added(torch.nn.Module):
        def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
            return sum(more, x)

    args = tuple(torch.zeros(k + 2) for k in range(3))
    found = with_inputs(Added(), Made(Added(), args, {}, True), torch.device("cpu"))
    assert [*found.inputs] == ["x", "input 2", "input 3"]


def test_profile_of_mixers_has_no_such_column(capsys: Capture) -> None:
    out = printed(capsys, "profile", "me", "--impl", "fft", *TYPED)
    assert "traced" not in out


def test_profile_beside_a_mixer_with_its_implementation(file: Path, capsys: Capture) -> None:
    words = "profile own.py:Plain me:fft me:fft --seconds 0.01 --format json"
    found = json.loads(printed(capsys, *words.split(), *TYPED))["measurements"]
    assert [(each["mixer"], each["implementation"]) for each in found] == [
        ("own.py:Plain", "module"), ("me", "fft"),
    ]  # fmt: skip


REFUSED = {
    "Plain me --impl fft": "--impl fft leaves nothing to measure of own.py:Plain, which has module"
    ": name an implementation with its mixer, such as me:fft",
    "Two": "own.py:Two cannot be called with x (b, l, d) alone: missing a required argument: 'oth",
    "short": "own.py:short cannot be called with its inputs: missing a required argument: 'other'; "
    "correct the inputs that it returns",
    "Yields": "a call of own.py:Yields runs nothing: its forward is written with `yield`; return",
    "Unbuilt": "own.py:Unbuilt cannot be built at b=1, l=3, d=4: never",
    "Other": "own.py:Other makes a Other: expected a torch.nn.Module, or a pair (module, inp",
    "Hidden": "own.py:Hidden needs hidden: name a Python function that takes the sizes and returns",
    "ones": "own.py:ones does not say which sizes it takes: ",
    "Plian": "own.py has no 'Plian': did you mean 'Plain'?",
    "Plain --impl own.py:Two": (
        "own.py:Plain has no equations, so own.py:Two cannot implement them: name own.py:Two"
    ),
    "Plain --impl fft": "no implementation 'fft': Plain has module, and a class of your own is giv",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_measured_is_one_sentence(file: Path, words: str, capsys: Capture) -> None:
    sentence = refused(capsys, "profile", *f"own.py:{words}".split(), *TYPED)
    assert sentence.startswith(REFUSED[words])


FAILS = {
    ("Failing", "training"): "Failing module (fp32): the call failed: ",
    ("Plain", "inference"): "Plain: it has no equations, so that one new token cannot be measured",
    ("Failing", "backward"): "Failing module (fp32): the call failed: ",
}


@pytest.mark.parametrize(("name", "phase"), FAILS)
def test_what_fails_is_one_sentence(file: Path, name: str, phase: str, capsys: Capture) -> None:
    words = ("profile", f"own.py:{name}", "--phase", phase, *TYPED)
    assert refused(capsys, *words, code=FAILED).startswith(FAILS[name, phase])


def test_sweep_plans_it_beside_mixers(file: Path, capsys: Capture) -> None:
    words = ("sweep", "own.py:Plain", "me", "--l", "2,3", "--d", "4", "--device", "cpu", "--plan")
    rows = [line.split()[:2] for line in printed(capsys, *words).splitlines()]
    assert ["own.py:Plain", "module"] in rows and ["me", "fft"] in rows


def test_compare_holds_it_against_a_mixer(file: Path, capsys: Capture) -> None:
    words = (
        "compare",
        "own.py:Plain",
        "me:fft",
        "--d",
        "4",
        "--l",
        "3",
        "--rounds",
        "6",
        "--processes",
        "1",
    )
    out = printed(capsys, *words, "--device", "cpu", "-o", "c.jsonl", "--format", "json")
    assert [m["mixer"] for m in json.loads(out)["measurements"]] == ["own.py:Plain", "me"]
    assert "Plain module" in printed(capsys, "compare", "c.jsonl")


# Held against equations


WITHOUT = "own.py:Plain has no equations to compare with: `costmodel trace own.py:Plain --over "


def test_reconcile_says_that_there_is_nothing_to_hold_it_against(
    file: Path, capsys: Capture
) -> None:
    assert refused(capsys, "reconcile", "own.py:Plain", *TYPED).startswith(WITHOUT)
    record = record_of(asked(Path("own.py"), "Plain"))
    append(Path("r.jsonl"), record)
    for own in ((), ("--own", "own.py")):
        sentence = refused(capsys, "reconcile", "--from", "r.jsonl", *own, code=FAILED)
        assert sentence.startswith(f"record {record.id[:8]} (own.py:Plain): {WITHOUT}")


def test_scaling_gives_the_reason_why_nothing_is_derived(file: Path) -> None:
    records: list[Measurement] = []
    for l in (3, 5):
        plan = Plan([measurable("own.py:Plain")], {"l": (l,), "d": (4,)}, device="cpu")
        records += map(record_of, requests(plan))
    (series,) = series_of(records, "l")
    assert str(Predictions(series).of(OPERATIONS)).startswith(WITHOUT)


def test_every_command_about_equations_names_the_others(file: Path, capsys: Capture) -> None:
    commands: dict[str, Callable[[str], str]] = {
        "table": lambda name: refused(capsys, "table", name),
        "explain": lambda name: refused(capsys, "explain", name),
    }
    for said in (command("own.py:Plain") for command in commands.values()):
        assert "is a class, not a mixer" in said and "`costmodel profile own.py:Plain`" in said
    assert cli.run(["check", "own.py:Plain"]) != 0
    assert "--impl own.py:Plain" in capsys.readouterr().err
