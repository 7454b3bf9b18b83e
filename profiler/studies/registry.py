"""Which questions are put to a machine as a whole: a named plan, and a page from its records?"""

from __future__ import annotations

import difflib
import importlib

from costmodel.report.document import Document, Paragraph
from profiler.studies.study import Study, StudyError

FILES = ("extractors", "thesis_training", "additive_against_dot_product")
"""One file a study, each with a `STUDY`."""


def studies() -> dict[str, Study]:
    """Every study by its name."""
    found = (importlib.import_module(f"profiler.studies.{file}").STUDY for file in FILES)
    return {study.name: study for study in found}


def listing() -> Document:
    """Every study with its question."""
    lines = [Paragraph((f"{s.name}: {s.question}",), item=True) for s in studies().values()]
    return Document(lambda: lines)


def study(name: str) -> Study:
    """The study with this name; StudyError lists the names."""
    known = studies()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise StudyError(f"no study '{name}': {hint}there are {', '.join(known)}")
    return known[name]


__all__ = ["Study", "StudyError", "studies", "study"]
