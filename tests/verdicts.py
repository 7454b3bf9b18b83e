"""Which verdict does the committed page of published claims give each claim?

tests/test_verification_page.py holds the page to `costmodel verify`, so that a test of verdicts
need not derive them again.
"""

from __future__ import annotations

from pathlib import Path

from costmodel.claims.records import load

PAGE = Path(__file__).parents[1] / "tables" / "generated" / "verification.md"


def on_the_page(path: Path) -> dict[str, str]:
    """The id of each claim of a file -> its verdict, such as `agrees` or `disagrees (recorded
    misprint)`, from the row of the claim: the rows stand in the order of the file."""
    claims = load(path)
    title = f"### {claims[0].source}: "
    section = PAGE.read_text(encoding="utf-8").partition(title)[2].partition("\n###")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    found = {}
    for claim, row in zip(claims, rows, strict=True):
        verdict, _, told = row.removeprefix("| ").partition(" | ")
        assert told.replace("\\", "").startswith(claim.place)
        found[claim.id] = verdict
    return found
