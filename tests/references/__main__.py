"""Compare with every package that is installed, and record what was found.

pip install -c constraints-references.txt ".[references]"; python -m tests.references

Records of packages that are not installed stay as they are.
"""

from __future__ import annotations

import json

import torch

from costmodel.data import data_dir
from costmodel.report.references import recorded
from tests.references import packages  # noqa: F401 - it fills COMPARISONS
from tests.references.comparison import COMPARISONS


def main() -> None:
    """Write the records of all comparisons, in their order."""
    before = {(record.mixer, record.of): record for record in recorded()}
    found = []
    for each in COMPARISONS:
        if each.installed:
            found.append(each.as_record())
            print(found[-1])
        elif old := before.get((each.mixer, each.of)):
            found.append(vars(old))
            print(f"{each.mixer}: {each.package} is not installed, its record stays")
        else:
            print(f"{each.mixer}: {each.package} is not installed")
    text = json.dumps({"schema": 1, "torch": torch.__version__, "records": found}, indent=1)
    (data_dir("references") / "equal.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
