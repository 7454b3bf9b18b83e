"""Does a command read correct answers of earlier commands from disk?"""

from __future__ import annotations

import ast
import os
import pickle
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import costmodel as cm
from costmodel import Mixer, Unanswered
from costmodel.errors import SizeError
from costmodel.program.conventions import Convention
from costmodel.questions import kept
from costmodel.questions.count import counted
from costmodel.questions.question import EVERY, Answers, answers
from costmodel.questions.state import state_of
from profiler.modules import registry
from profiler.modules.described import Described
from profiler.reconcile.derived import Executed
from profiler.reconcile.live_sets import live_sets
from tests.stand_ins import Instead

ROOT = Path(__file__).parents[1]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "costmodel" / "answers.sqlite"
    kept.keep_in(None)


def ask(mixer: Mixer, phase: str = "inference") -> Answers:
    return Answers(mixer, mixer.default_form, phase, Convention())


def filled(file: Path) -> None:
    """A file with the operations and the state of SHE."""
    kept.keep_in(file)
    ask(cm.mixer("she")).of(counted)
    ask(cm.mixer("she")).of(state_of)
    kept.write()
    kept.keep_in(file)


def refuse(*about: object) -> object:
    raise AssertionError("derived again")


def named(question: object) -> str:
    return f"{question.__module__}.{question.__qualname__}"  # type: ignore[attr-defined]  # a function


def test_an_answer_on_disk_is_not_derived_again(file: Path) -> None:
    filled(file)
    about = ask(cm.mixer("she"))
    found = about.derived(named(counted), lambda: refuse(about))
    assert found == ask(cm.mixer("she")).of(counted) == cm.count(cm.mixer("she"), "inference")
    with pytest.raises(SizeError, match="got 0"):  # as of an answer that is derived
        found.at(d=0, l=1, t=1)


def test_a_reason_on_disk_is_raised(file: Path) -> None:
    mixer = cm.mixer("she")
    for _ in range(2):
        kept.keep_in(file)
        with pytest.raises(Unanswered, match="form 'direct' works token by token"):
            Answers(mixer, "fft", "inference", Convention()).of(counted)
        kept.write()


def test_other_sources_have_other_answers(file: Path, instead: Instead) -> None:
    filled(file)
    instead(fingerprint=lambda: "other sources")
    kept.keep_in(file)
    with pytest.raises(AssertionError, match="derived again"):
        ask(cm.mixer("she")).derived(named(counted), lambda: refuse(ask(cm.mixer("she"))))


@pytest.mark.parametrize("phase", ["training", "training-step"])
def test_what_reconcile_asks_of_equations_is_kept(phase: str, file: Path, instead: Instead) -> None:
    mixer = cm.mixer("she")
    does = Described(mixer.default_form, ("quotient-gradient",) * (phase != "training"))

    def asked() -> list[object]:
        answers.cache_clear()
        live_sets.cache_clear()
        of = Executed(mixer, does, phase, "cpu", ())
        found: list[object] = [of.counted, of.moved, of.live_sets]
        return [*found, of.activations if phase == "training-step" else of.contractions]

    kept.keep_in(file)
    first = asked()
    kept.write()
    kept.keep_in(file)
    instead(system_of=refuse)
    assert asked() == first


def test_descriptions_of_modules_on_disk_need_no_torch(file: Path, instead: Instead) -> None:
    kept.keep_in(file)
    instead(files_read=set())
    described = registry.implementations("she")
    kept.write()
    code = (
        "import sys; from pathlib import Path; from costmodel.questions import kept; "
        "from profiler.modules.registry import implementations; "
        f"kept.keep_in(Path({str(file)!r})); found = implementations('she'); "
        "print(found, 'torch' in sys.modules); print(found['direct'].module.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    module = described["direct"].module
    assert done.stdout.splitlines() == [f"{described} False", module.__name__]


def test_a_file_of_modules_that_cannot_be_imported_is_tried_again(
    instead: Instead,
) -> None:
    def without_torch(file: str) -> None:
        raise ModuleNotFoundError(file)

    instead(files_read=set(), described_in=without_torch)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            registry.implementations("she")


def test_a_mixer_of_a_user_s_own_is_derived(file: Path) -> None:
    mixer = Mixer("she")  # by its name alone it could be taken for the built-in mixer
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] * 3
    filled(file)
    assert ask(mixer, "training").of(counted).at(l=5, d=2).total == 10
    assert ask(mixer).of(counted).at(l=5, d=2, t=5).total == 2


@pytest.mark.parametrize("damage", ["text", "cut", "table", "row"])
def test_a_broken_file_is_made_anew(file: Path, damage: str) -> None:
    filled(file)
    if damage == "text":
        file.write_text("no database\n" * 1000)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    else:
        with sqlite3.connect(file) as opened:
            opened.execute(
                "DROP TABLE answers" if damage == "table" else "UPDATE answers SET answer = x'80'"
            )
        opened.close()
    kept.keep_in(file)
    assert ask(cm.mixer("she")).of(counted) == cm.count(cm.mixer("she"), "inference")
    filled(file)
    about = ask(cm.mixer("she"))
    about.derived(named(counted), lambda: refuse(about))


def test_an_answer_that_another_program_wrote_is_derived(file: Path) -> None:
    """One changed bit of an answer, an answer of another kind, and one that would run a command."""
    filled(file)
    ran = file.with_name("ran")
    with sqlite3.connect(file) as opened:
        ((key, answer),) = opened.execute("SELECT key, answer FROM answers LIMIT 1").fetchall()
        for k, changed in enumerate(
            [
                answer[:-9] + bytes([answer[-9] ^ 1]) + answer[-8:],
                pickle.dumps(5),
                kept._digest(kept.fingerprint(), key, pickle.dumps(Command(str(ran))))
                + pickle.dumps(Command(str(ran))),
            ]
        ):
            opened.execute("UPDATE answers SET answer = ? WHERE key = ?", (changed, key))
            opened.commit()
            kept.keep_in(file)
            about = ask(cm.mixer("she"))
            assert about.of(counted) == cm.count(cm.mixer("she"), "inference"), k
            assert about.of(state_of).at(l=3, d=2, t=3) == 6, k
    opened.close()
    assert not ran.exists()


class Command:
    """An answer that writes a file where it is read without care."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.file}",)


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    filled(tmp_path / "taken" / "costmodel" / "answers.sqlite")
    kept.keep_in(None)


def test_a_large_file_is_emptied_and_small_again(file: Path, instead: Instead) -> None:
    filled(file)
    with sqlite3.connect(file) as opened:
        opened.execute("INSERT INTO answers VALUES ('older', 'me', ?)", (bytes(10**6),))
    instead(kept_bytes=10**6)
    kept.keep_in(file)
    ask(cm.mixer("me")).of(counted)
    kept.write()
    kept.keep_in(file)
    assert kept._store is not None
    assert {key.split()[0] for key in kept._store.known} == {"me"}
    assert file.stat().st_size < 10**6


def test_commands_share_the_file_and_print_what_they_derive(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "cli"]
    table = [
        "table",
        "she",
        "convolution",
        "self-attention+bias",
        "--phase",
        "all",
        "--form",
        "all",
    ]
    here = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "COSTMODEL_CACHE": "1"}

    def printed(*words: str) -> bytes:
        return subprocess.run([*run, *words], cwd=ROOT, env=here, capture_output=True).stdout

    derived = printed("--no-cache", *table)
    assert not (tmp_path / "costmodel").exists()
    with ThreadPoolExecutor(2) as pool:
        assert {*pool.map(lambda _: printed(*table), range(2)), printed(*table)} == {derived}
    assert (tmp_path / "costmodel" / "answers.sqlite").exists()


BESIDE = """
import os, pathlib, sys
import costmodel as cm
from costmodel.questions import kept, question
from costmodel.report import mixer_document, mixer_table

kept.usable_processes, mixer_table.MANY = lambda: 2, 4
kept.keep_in(pathlib.Path(sys.argv[1]))
parent, derived = os.getpid(), set()

def begun(rows, request, values=mixer_table._values):
    name = rows[0].mixer.name
    if os.getpid() == parent:
        print(name)
    elif name == sys.argv[2]:
        raise ValueError("this process fails")
    values(rows, request)

def noted(mixer, key, derive):
    return kept.kept(mixer, key, lambda: (derived.add(mixer.name), derive())[1])

mixer_table._values, question.kept = begun, noted
mixers = tuple(map(cm.mixer, ("she", "he", "we", "me")))
mixer_table.table(mixer_table.Request(mixers[:1]))  # too few rows for two processes
every = mixer_table.Request(mixers, named=False)  # as `--all`: no note derives other forms
mixer_document.document(mixer_table.table(every)).parts()
print(*sorted(derived))
"""


@pytest.mark.parametrize(
    ("failing", "here"), [("", "self-attention she we"), ("he", "he me self-attention she we")]
)
def test_another_process_derives_half_of_the_answers(
    tmp_path: Path, failing: str, here: str
) -> None:
    run = [sys.executable, "-c", BESIDE, str(tmp_path / "answers.sqlite"), failing]
    printed = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["she", "we", here]


def test_tasks_are_carried_out_where_no_process_can_be_forked(
    file: Path, monkeypatch: pytest.MonkeyPatch, instead: Instead
) -> None:
    def refused() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    instead(usable_processes=lambda: 2)
    kept.keep_in(file)
    done: list[int] = []
    kept.ahead([partial(done.append, k) for k in range(4)])
    assert done == [0, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_an_error_of_a_task_ends_the_other_processes(
    file: Path, tmp_path: Path, instead: Instead
) -> None:
    def fails() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        raise ValueError("this task fails")

    def lasts() -> None:
        (tmp_path / "begun").touch()
        time.sleep(60)
        (tmp_path / "ended").touch()

    instead(usable_processes=lambda: 2)
    kept.keep_in(file)
    with pytest.raises(ValueError, match="this task fails"):
        kept.ahead([fails, lasts])
    with pytest.raises(ChildProcessError):  # no process is left
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("phase", EVERY)
def test_every_figure_of_a_table_is_kept(file: Path, phase: str) -> None:
    from costmodel.questions.registry import FIGURES
    from costmodel.report.mixer_table import Request, table

    def values() -> list[object]:
        request = Request((cm.mixer("linear-attention"),), phases=(phase,), given={"l": (7,)})
        row = table(request).blocks[0].rows[0]
        about = Answers(row.mixer, row.form, row.phase, row.about.convention)
        object.__setattr__(row, "about", about)
        return [row.figure(figure) for figure in FIGURES.values()]

    kept.keep_in(file)
    first = values()
    kept.write()
    kept.keep_in(file)
    assert values() == first
    assert kept._store is not None and not kept._store.new


def test_the_package_has_the_names_that_type_checkers_see() -> None:
    text = Path(cm.__file__).read_text(encoding="utf-8")
    seen = {
        (node.module, alias.asname)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("costmodel.")
        for alias in node.names
        if alias.asname
    }
    places: dict[str, str] = vars(cm)["PLACES"]
    assert seen == {(place, name) for place, names in places.items() for name in names.split()}
    assert all(getattr(cm, name) is not None for _, name in seen)
