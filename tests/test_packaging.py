"""Does an installed package work away from the checkout, and does the README run as printed?"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from costmodel.networks.presets import presets

ROOT = Path(__file__).parents[1]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "cli.py", "costmodel", "profiler", "tables")
CACHES = shutil.ignore_patterns("__pycache__")


def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, unpacked somewhere else."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install -e '.[dev]'")
    copy = tmp_path_factory.mktemp("copy")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=CACHES)
        else:
            shutil.copy(ROOT / name, copy / name)
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(copy / done.stdout.split()[-1]) as wheel:
        wheel.extractall(place)
    shutil.rmtree(copy)
    return place


def python(place: Path, *arguments: str) -> str:
    """Run Python with the unpacked wheel first, in a folder that holds nothing of ours."""
    empty = place / "elsewhere"
    empty.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_packages_and_the_data(installed: Path) -> None:
    for folder, inside in (("costmodel", "costmodel"), ("profiler", "profiler")):
        source = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        found = {
            path.relative_to(installed / inside) for path in (installed / inside).rglob("*.py")
        }
        assert found == source
    assert (installed / "cli.py").is_file()
    tables = {path.relative_to(ROOT / "tables") for path in (ROOT / "tables").rglob("*.*")}
    tables = {path for path in tables if path.parts[0] != "generated"}  # which no command reads
    data = installed / "costmodel" / "_tables"
    assert {path.relative_to(data) for path in data.rglob("*.*")} == tables
    (information,) = installed.glob("*.dist-info")
    assert {path.name for path in installed.iterdir()} - {information.name, "elsewhere"} == {
        "cli.py",
        "costmodel",
        "profiler",
    }
    assert "costmodel = cli:main" in (information / "entry_points.txt").read_text()
    assert (information / "licenses" / "LICENSE").is_file()


def test_wheel_finds_its_own_data(installed: Path) -> None:
    code = (
        "import costmodel, costmodel.data as data; print(costmodel.__file__);"
        "print(data.data_dir('published'))"
    )
    module, folder = map(Path, python(installed, "-c", code).splitlines())
    assert module.is_relative_to(installed)
    assert folder == installed / "costmodel" / "_tables" / "published"


def test_an_installed_wheel_answers_every_command(installed: Path) -> None:
    table = python(installed, "-m", "cli", "table", "me", "--d", "128", "--l", "128")
    assert "2,097,152" in table
    published = installed / "costmodel" / "_tables" / "published" / "chen-2023-v2.json"
    typed = (["model", "--list"], ["verify", str(published)], ["study", "--list"])
    code = f"import cli; print(*map(cli.run, {typed}))"
    *printed, codes = python(installed, "-c", code).splitlines()
    assert codes == "0 0 0"
    assert all(any(line.startswith(f"{name} ") for line in printed) for name in presets())
    assert any(line.startswith("- extractors: ") for line in printed)


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    extras = project()["optional-dependencies"]
    declared = [*project()["dependencies"], *extras["dev"], *extras["docs"]]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    for requirement in declared:
        found = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
        assert found, f"{requirement}: expected NAME>=OLDEST"
        name, oldest = found.groups()
        assert name in pins, f"{name} has no pin"
        assert release(pins[name]) >= release(oldest)
    assert pins["torch"] == "2.13.0"


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def test_readme_prints_two_commands_of_one_line() -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash to run .ci/run with")
    done = subprocess.run(
        ["bash", ".ci/run", "--commands"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    main_job, tests = done.stdout.splitlines()
    assert "costmodel table" in main_job
    assert "costmodel reconcile" in main_job
    assert "pytest" in tests
    for command in (main_job, tests):
        assert "venv" in command
        assert "pip install" in command
        assert "-c constraints.txt" in command


def test_license_and_supported_versions() -> None:
    table = project()
    text = (ROOT / "LICENSE").read_text()
    assert table["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert table["requires-python"] == ">=3.11,<3.14"
    assert table["scripts"] == {"costmodel": "cli:main"}


def test_changelog_starts_with_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == project()["version"]
