"""The studies: built-in ones by name, and plans of a user's as TOML files."""

from __future__ import annotations

from pathlib import Path

from costmodel.data import data_dir
from costmodel.errors import did_you_mean
from costmodel.report.document import Document, Paragraph
from profiler.studies.grid import GridStudy
from profiler.studies.plan import StudyPlan, load
from profiler.studies.study import StudyError
from profiler.studies.training import TrainingStudy

Study = GridStudy | TrainingStudy


def studies() -> dict[str, Study]:
    """A dict: name -> study, for all built-in studies; a TOML plan has the name of its file."""
    files = sorted(data_dir("studies").glob("*.toml"))
    return {file.stem: planned(file.stem, file) for file in files}


def planned(name: str, file: Path) -> Study:
    """The study of the plan in a file."""
    plan = load(file)
    return GridStudy(name, plan) if isinstance(plan, StudyPlan) else TrainingStudy(name, plan)


def listing() -> Document:
    """The built-in studies with their questions, as a document."""
    lines = [Paragraph((f"{s.name}: {s.plan.question}",), item=True) for s in studies().values()]
    own = "These come with the project; `costmodel study FILE.toml` takes a plan of your own."
    return Document(lambda: [*lines, Paragraph((own,))])


def study(name: str) -> Study:
    """The built-in study with a name, or a user's plan, FILE.toml. Raises StudyError: there is no
    such study; the message lists the names."""
    if name.endswith(".toml"):
        return planned(name, Path(name))
    known = studies()
    if name not in known:
        raise StudyError(
            f"no study '{name}': {did_you_mean(name, known)}known studies are "
            f"{', '.join(known)}; for a plan of your own, give FILE.toml"
        )
    return known[name]
