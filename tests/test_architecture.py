"""Does every file respect the layers, and the limits on size and imports?

Folders are small, questions know no mixer, `import costmodel` is light, data holds no code. That
folders are layers is held by `lint-imports`.
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
from costmodel.program.conventions import KERNEL_CLASSES
from costmodel.report.formats import FORMATS
from profiler.modules import registry

ROOT = Path(__file__).parents[1]

HEAVY = (
    "torch", "numpy", "rich", "fvcore", "pynvml", "psutil", "typer", "profiler", "scipy",
    "matplotlib", "ray", "lark", "pandas", "pyarrow",
)  # fmt: skip
"""What `import costmodel` does not load; numpy and rich load where they are needed."""

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


def folders() -> list[Path]:
    """Every folder of the project's own packages."""
    return sorted({path.parent for path in sources()} - {ROOT})


@pytest.mark.parametrize("folder", folders(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_holds_twenty_files_at_most(folder: Path) -> None:
    """But for the catalogue, which has a file for each family of mixers."""
    if folder.name == "mixers":
        pytest.skip("the catalogue has a file for each family")
    assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= 20


def test_no_file_imports_the_face_of_its_own_package() -> None:
    """`costmodel`, `profiler.modules` and the like are for users: inside, files name files."""
    faces = {"costmodel", "profiler", "profiler.modules", "profiler.networks"}
    wrong = [
        f"{module_name(path)}:{line} imports {name}"
        for path in sources()
        if module_name(path) not in (*faces, "cli")
        for line, name in imports(path)
        if name in faces
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("work", "heavy"),
    [
        ("import costmodel as cm; cm.count(cm.mixer('she')).at(d=4, l=4)", HEAVY),
        (
            "import profiler.sweep.recorded, profiler.sweep.merge, profiler.host.statement",
            ("torch",),
        ),
        (
            "import profiler.scaling.report, profiler.reconcile.report, profiler.reconcile.ladder, "
            "profiler.plots.kinds",
            ("torch",),
        ),
    ],
    ids=["costmodel", "merge and statement", "scaling, reconcile and plot"],
)
def test_imports_are_light(work: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys; {work}; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_tables_hold_no_python() -> None:
    assert [str(path) for path in (ROOT / "tables").rglob("*.py*")] == []


def test_every_mixer_has_a_module_file_of_the_same_name() -> None:
    for name in mixers.names():
        assert registry.implementations(name)
        assert (ROOT / "profiler" / "mixers" / f"{mixers.file_of(name)}.py").is_file()


def test_every_file_of_equations_brings_its_mixers() -> None:
    files = {path.stem for path in (ROOT / "costmodel" / "mixers").glob("*.py")}
    assert files - {"__init__", "load"} == {mixers.file_of(name) for name in mixers.names()}


def test_every_mixer_has_names_of_its_own_and_one_line_that_says_what_it_does() -> None:
    found = [mixers.builtin(name) for name in mixers.names()]
    called = [name for m in found for name in (m.name, *m.aliases, *m.variants)]
    assert len(called) == len(set(called))
    assert [mixer.name for mixer in found if not 0 < len(mixer.idea) <= 60] == []


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The string constants of a file that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


NAMING = {"mixers", "networks", "prediction", "commands", "tracing"}
"""Folders that may name a mixer: the catalogue, architectures that are made of mixers, kernels with
published times, the default of `explore`, and cells of torch."""


@pytest.mark.parametrize("package", ["costmodel", "profiler"])
def test_no_file_of_the_house_knows_a_mixer(package: str) -> None:
    every = [mixers.builtin(name) for name in mixers.names()]
    known = {name for mixer in every for name in (mixer.name, *mixer.aliases)}
    # a convolution is a kernel and an operation of torch as well, and `recurrent` a form
    known -= {*KERNEL_CLASSES, *(form for mixer in every for form in mixer.forms)}
    quoted = re.compile('"(' + "|".join(map(re.escape, known)) + ')"')
    files = [
        path
        for path in (ROOT / package).rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in NAMING
    ]
    named = [
        f"{path.name}:{line} names {text}"
        for path in files
        if quoted.search(path.read_text(encoding="utf-8"))  # parsing every file takes seconds
        for line, text in strings(path)
        if text in known
    ]
    assert len(files) > 100 and named == []


@pytest.mark.parametrize(
    "folder",
    ["costmodel/questions", "profiler/counting", "profiler/hardware", "profiler/meters"],
)
def test_no_rule_imports_a_mixer(folder: str) -> None:
    imported = [
        f"{path.name}:{line} imports {name}"
        for path in (ROOT / folder).rglob("*.py")
        for line, name in imports(path)
        if name.startswith(("costmodel.mixers", "profiler.modules"))
    ]
    assert imported == []


def test_no_writer_imports_another_writer() -> None:
    files = {f"costmodel.report.{one.file}" for one in FORMATS.values()}
    for own in files:
        path = ROOT / f"{own.replace('.', '/')}.py"
        others = {name for _, name in imports(path) if name.startswith(tuple(files - {own}))}
        assert others == set(), own


@pytest.mark.parametrize("file", ["explanation", "mixer_document"])
def test_a_document_of_mixers_knows_no_question(file: str) -> None:
    every = {f"costmodel.questions.{path.stem}" for path in ROOT.glob("costmodel/questions/*.py")}
    known = {name for _, name in imports(ROOT / f"costmodel/report/{file}.py")} & every
    assert known <= {f"costmodel.questions.{name}" for name in ("question", "registry", "subject")}


def test_the_command_line_names_no_format() -> None:
    named = [f"{line}: {text}" for line, text in strings(ROOT / "cli.py") if text in FORMATS]
    assert named == []


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


def test_one_file_asks_nvml() -> None:
    asking = [module_name(path) for path in sources() if "import pynvml" in path.read_text("utf-8")]
    assert asking == ["profiler.meters.nvml"]
