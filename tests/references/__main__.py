"""Compare with every package that is installed, and record what was found.

pip install -c constraints-references.txt ".[references]"; python -m tests.references
pip install -c constraints-references-2026.txt ".[references-2026]"; python -m tests.references
python -m tests.references.repositories FOLDER; REFERENCES=FOLDER python -m tests.references

The second line, in another environment, is for layers of packages that no longer have older ones;
the third one, in either, for repositories that no package index has.

Records of packages that are not installed in the version that is pinned stay as they are.
"""

from __future__ import annotations

import json

import torch

from costmodel.data import data_dir
from costmodel.report.references import Reference, recorded
from tests.references.comparison import Comparison, load


def main() -> None:
    """Write the records of all comparisons, in their order."""

    def what(one: Comparison | Reference) -> tuple[object, ...]:
        return one.mixer, one.of, tuple(one.sizes.items())

    before = {what(record): record for record in recorded()}
    found = []
    for each in load():
        if each.installed:
            found.append(each.as_record())
            print(found[-1])
        elif old := before.get(what(each)):
            found.append(vars(old))
            print(f"{each.mixer}: {each.package} is not installed as pinned, its record stays")
        else:
            print(f"{each.mixer}: {each.package} is not installed as pinned")
    text = json.dumps({"schema": 1, "torch": torch.__version__, "records": found}, indent=1)
    (data_dir("references") / "equal.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
