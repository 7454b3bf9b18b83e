"""How are operations counted? Named accountings, rewrites and peers; the first is the default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.composites import REWRITES, SCALES

ACCOUNTINGS: Mapping[str, str] = {
    "strict": "a sum of R terms takes R-1 additions",
    "mac": "a sum of R terms takes R additions (one per multiply-add)",
}


@dataclass(frozen=True)
class Peer:
    """What another tool counts: operations per multiply-add of each kernel class.

    `per_product` maps a kernel class to counted operations per real product of a reduction;
    classes that are absent are not counted at all. `masked` lists the classes in which the tool
    counts pairs that a causal mask leaves out.
    """

    name: str
    meaning: str
    additions: bool
    """Whether a multiply-add counts as two operations."""


PEERS: Mapping[str, Peer] = {
    "torch": Peer(
        "torch", "FlopCounterMode: 2 per multiply-add of dense contractions, nothing else", True
    ),
    "fvcore": Peer(
        "fvcore", "FlopCountAnalysis: 1 per multiply-add of dense contractions, nothing else", False
    ),
}


class ConventionError(ValueError):
    """A convention that does not exist or does not combine; the message lists the choices."""


@dataclass(frozen=True)
class Convention:
    """One accounting and any rewrites, or one peer alone."""

    accounting: str = "strict"
    rewrites: tuple[str, ...] = ()
    peer: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names as given on the command line."""
        return (self.peer,) if self.peer else (self.accounting, *self.rewrites)

    @property
    def caption(self) -> str:
        """What a caption says about it."""
        if self.peer:
            return PEERS[self.peer].meaning
        parts = [ACCOUNTINGS[self.accounting]]
        scale = next((r for r in self.rewrites if r in SCALES), SCALES[0])
        parts.append(REWRITES[scale])
        if "safe-softmax" in self.rewrites:
            parts.append(REWRITES["safe-softmax"])
        else:
            parts.append("no maximum is subtracted in softmax")
        if "dense" in self.rewrites:
            parts.append(REWRITES["dense"])
        else:
            parts.append("masked pairs are not computed")
        return "; ".join(parts)


def convention(names: str | Sequence[str] | Convention = ()) -> Convention:
    """Read `a,b` or a sequence of names: one accounting and any rewrites, or one peer alone.

    Raises:
        ConventionError: an unknown name (with the nearest known one) or a mixture with a peer.
    """
    if isinstance(names, Convention):
        return names
    parts = names.split(",") if isinstance(names, str) else list(names)
    parts = list(dict.fromkeys(p.strip() for p in parts if p.strip()))
    known = [*ACCOUNTINGS, *REWRITES, *PEERS]
    for part in parts:
        if part not in known:
            near = difflib.get_close_matches(part, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConventionError(
                f"unknown convention '{part}'{hint} One accounting ({', '.join(ACCOUNTINGS)}) and "
                f"any rewrites ({', '.join(REWRITES)}), or one peer alone ({', '.join(PEERS)})."
            )
    peers = [p for p in parts if p in PEERS]
    accountings = [p for p in parts if p in ACCOUNTINGS]
    scales = [p for p in parts if p in SCALES]
    if peers and len(parts) > 1:
        raise ConventionError(f"peer '{peers[0]}' stands alone: it cannot be combined")
    if len(accountings) > 1 or len(scales) > 1:
        raise ConventionError(f"choose one of {', '.join(accountings + scales)}")
    if peers:
        return Convention(peer=peers[0])
    rewrites = tuple(sorted(p for p in parts if p in REWRITES and p != SCALES[0]))
    return Convention(accountings[0] if accountings else "strict", rewrites)
