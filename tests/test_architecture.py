"""Does every file keep to its room in the house?

Imports point one way, questions know no mixer, `import costmodel` is light, data holds no code.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel import mixers
from costmodel.conventions import KERNEL_CLASSES
from profiler import modules

ROOT = Path(__file__).parents[1]

ANSWERS = "everything else in costmodel"
LAYERS = (
    ("atoms", "sizes", "data", "functions", "quantity", "polynomial", "symbols", "weightings"),
    (
        "constraints", "domains", "exact", "formula_tree", "formulas", "grid", "growth", "lengths",
        "projections", "rounding", "thresholds",
    ),
    ("expressions", "equations", "indices", "options", "traversal", "writing"),
    ("loops", "presence", "wellformed"),
    (
        "adjoint", "composites", "conventions", "execution", "gates", "load", "losses", "mixers",
        "norms", "padding", "positions", "rules", "standing", "tokens", "latest", "phases",
    ),
    ("",),
    (ANSWERS,),
    ("models",),
    (
        "asymptotics", "claim_report", "claim_text", "claims", "comparisons", "evaluation",
        "figures", "findings", "identities", "instrumented", "intervals", "network_figures",
        "printed_figures", "published", "readings", "verdicts",
    ),
    ("profiler",),
    ("cli",),
)  # fmt: skip
"""From the ground up; "" is `costmodel` itself. A file imports from its own layer or from below."""

OURS = ("costmodel", "profiler", "cli")

HEAVY = (
    "torch", "numpy", "rich", "fvcore", "pynvml", "typer", "profiler", "scipy", "matplotlib", "ray",
)  # fmt: skip
"""What `import costmodel` does not load; numpy and rich load where they are needed."""

ONLY_IN_PROFILER = {"torch", "fvcore", "pynvml", "scipy", "matplotlib", "ray"}

MACHINE_PATH = re.compile(r"""(?<![\w.~}$])/(?:home|root|Users|work|tmp|opt)/""")


def sources() -> list[Path]:
    """The files of the project's own packages."""
    return [*ROOT.glob("costmodel/**/*.py"), *ROOT.glob("profiler/**/*.py"), *ROOT.glob("cli.py")]


def text_files() -> list[Path]:
    """Every file that git tracks or would add; every file of an unpacked source archive."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name] or [
        path
        for folder in ("costmodel", "profiler", "tests", "benchmarks", "tables")
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    ]
    return [path for path in found if path.is_file()]


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> int:
    """How high one of our modules stands."""
    top, *inside = module.split(".")
    room = (inside[0] if inside else "") if top == "costmodel" else top
    listed = {name: height for height, rooms in enumerate(LAYERS) for name in rooms}
    return listed.get(room, listed[ANSWERS])


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the name of every module that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                place = ROOT / inner.replace(".", "/")
                is_module = place.is_dir() or place.with_suffix(".py").is_file()
                yield node.lineno, inner if is_module else node.module


def upward(path: Path) -> list[str]:
    """The imports of a file that point the wrong way."""
    module = module_name(path)
    own = layer(module)
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(path)
        if name.split(".")[0] in OURS and layer(name) > own
    ]


def test_every_room_exists_and_has_one_layer() -> None:
    rooms = [room for layer_ in LAYERS for room in layer_ if room != ANSWERS]
    assert len(rooms) == len(set(rooms))
    for room in rooms:
        place = ROOT / room if room in OURS else ROOT / "costmodel" / room
        assert place.is_dir() or place.with_suffix(".py").is_file(), room


def test_imports_point_one_way() -> None:
    assert [wrong for path in sources() for wrong in upward(path)] == []


def test_a_wrong_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "costmodel" / "rules" / "invented.py"
    path.parent.mkdir(parents=True)
    (path.parents[1] / "table.py").touch()
    path.write_text("def f():\n    from costmodel import table\nimport costmodel.sizes, profiler\n")
    assert upward(path) == [
        "costmodel.rules.invented:3 imports profiler",
        "costmodel.rules.invented:2 imports costmodel.table",
    ]


def test_only_the_profiler_imports_torch_and_its_kin() -> None:
    wrong = [
        f"{module_name(path)}:{line} imports {name}"
        for path in sources()
        if not module_name(path).startswith("profiler")
        for line, name in imports(path)
        if name.split(".")[0] in ONLY_IN_PROFILER
    ]
    assert wrong == []


def test_importing_costmodel_is_light() -> None:
    code = (
        "import sys, costmodel as cm; cm.count(cm.mixer('she')).at(d=4, l=4);"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_tables_hold_no_python() -> None:
    assert [str(path) for path in (ROOT / "tables").rglob("*.py*")] == []


def test_every_mixer_has_a_module_file_of_the_same_name() -> None:
    for file, names in mixers.FILES.items():
        assert all(modules.implementations(name) for name in names)
        assert (ROOT / "costmodel" / "mixers" / f"{file}.py").is_file()
        assert (ROOT / "profiler" / "modules" / f"{file}.py").is_file()


def test_every_file_of_equations_is_listed() -> None:
    files = {path.stem for path in (ROOT / "costmodel" / "mixers").glob("*.py")} - {"__init__"}
    assert files == set(mixers.FILES)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The string constants of a file that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "folder",
    ["costmodel/rules", "profiler/counters", "profiler/counters/hardware", "profiler/meters"],
)
def test_no_rule_knows_a_mixer(folder: str) -> None:
    known = {
        *mixers.names(),
        *(alias for n in mixers.names() for alias in mixers.builtin(n).aliases),
    } - {*KERNEL_CLASSES}  # a convolution is a kernel and an operation of torch as well
    named = [
        f"{path.name}:{line} names {text}"
        for path in (ROOT / folder).glob("*.py")
        for line, text in strings(path)
        if text in known
    ]
    imported = [
        f"{path.name}:{line} imports {name}"
        for path in (ROOT / folder).glob("*.py")
        for line, name in imports(path)
        if name.startswith(("costmodel.mixers", "profiler.modules"))
    ]
    assert named + imported == []


def test_no_path_of_one_machine() -> None:
    own = Path(__file__).resolve()
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        if path != own
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert named == []


RULES = (
    "constraints", "domains", "exact", "projections",
    "latest", "loops", "phases", "presence", "rules", "tokens",
)  # fmt: skip
"""What answers questions from the equations; execution answers them by running the equations."""


def test_the_oracle_shares_no_code_with_the_rules() -> None:
    wrong = [
        f"{module_name(path)}:{line} imports {name}"
        for path in (ROOT / "costmodel" / "execution").glob("*.py")
        for line, name in imports(path)
        if name.removeprefix("costmodel.").split(".")[0] in RULES
    ]
    assert wrong == []
