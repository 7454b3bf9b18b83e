"""The document that shows the proofs of a mixer."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from costmodel.proofs.check import Proof
from costmodel.proofs.tried_sizes import Sizes, all_words
from costmodel.report.document import Column, Document, Note, Paragraph, Table
from profiler.proofs.deep import any_drawn, drawn_words, untried_words

VERDICTS = {True: "holds", False: "FAILS", None: "not checked"}
COLUMNS = (
    Column("proof", "proof", numeric=False, names=True),
    Column("verdict", "verdict", numeric=False),
    Column("detail", "detail", numeric=False, wide=True),
)


NOT_TRIED = (
    "only --deep tries: larger sizes and batches, inputs such as rows of zeros, train mode, "
    "fp32, bf16 and fp16, many calls of one module, the module's own gradients, tensors kept in "
    "decoding beside the state"
)


NOT_COMPARED = (
    "of a module no proof compares path length, traffic, peak, or the tensors that a forward pass "
    "keeps for gradients: profile and reconcile measure time and memory; the proof of dispatched "
    "operations names copies, and counts them as no operation"
)


NONE_DRAWN = "no random call was made: only a module that equals its equations is called at random"


NAMES, SAID = 52, max(map(len, VERDICTS.values()))
"""The widths, in characters, of names and of verdicts in rows that are printed one by one."""


def heading(name: str) -> str:
    """The lines above rows that are printed one by one."""
    return f"{name}: proofs\n\n{_line('proof', 'verdict', 'detail')}\n"


def row(proof: Proof, width: int | None) -> str:
    """One proof as a line, broken at `width` characters but not below 40; None: not broken."""
    said = _line(proof.name, VERDICTS[proof.passed], proof.detail)
    if width is None:
        return f"{said}\n"
    broken = textwrap.wrap(said, max(width, 40), subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(broken) + "\n"


def _line(name: str, verdict: str, detail: str) -> str:
    return f"{name:<{NAMES}}  {verdict:<{SAID}}  {detail}"


def document(
    name: str,
    found: Sequence[Proof],
    tried: Mapping[str, Sequence[Sizes]] | None = None,
    seed: int | None = None,
    seconds: float = 0.0,
    *,
    rows_shown: bool = False,
) -> Document:
    """Make the document of a mixer's proofs: a table with a row for each proof, and notes; only the
    notes with `rows_shown`, if the rows were printed one by one before.

    Args:
        name: the mixer.
        tried: what is tried -> the sizes, a note for each.
        seed: the seed of random calls; the last notes then name the drawn conditions and what no
            draw tries, or that no call was drawn, and the number of verdicts and the `seconds`.
            None: the note before the last lists what `--deep` tries in addition.
    """
    rows = tuple((p.name, VERDICTS[p.passed], p.detail) for p in found)
    notes = tuple(
        Note((f"{what} are tried at {all_words(sizes)}",))
        for what, sizes in (tried or {}).items()
        if sizes
    )
    last: tuple[str, ...] = (NOT_TRIED, NOT_COMPARED)
    if seed is not None:
        drawn = (drawn_words(seed), untried_words()) if any_drawn(found) else (NONE_DRAWN,)
        last = (*drawn, NOT_COMPARED, _found_words(found, seconds))
    notes += tuple(Note((line,)) for line in last)
    table = Table(f"{name}: proofs", COLUMNS, rows, notes)
    return Document(
        lambda: [Paragraph(note.line) for note in notes] if rows_shown else [table],
        data=lambda: (
            {
                "mixer": name,
                "proofs": [asdict(p) for p in found],
                "sizes": {what: list(sizes) for what, sizes in (tried or {}).items()},
                "seed": seed,
            }
            | ({} if seed is None else {"seconds": seconds})
        ),
    )


def _found_words(found: Sequence[Proof], seconds: float) -> str:
    """The number of proofs by verdict, and the seconds that they took, in words."""
    counted = Counter(VERDICTS[proof.passed] for proof in found)
    said = ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
    return f"{len(found)} proofs in {seconds:.0f} s: {said}"
