"""How is a claim read from a line such as `mul = 4*l*d^2 + 2*l^2*d` or `total = O(l^2*d)`?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from costmodel.claims.claim import Claim, validate
from costmodel.claims.comparisons import path_steps
from costmodel.claims.quantities import phases_of, quantity
from costmodel.errors import PublishedError, TooMuch
from costmodel.questions.question import Figure
from costmodel.symbolic.effort import limited

EXAMPLES = "'mul = 4*l*d^2 + 2*l^2*d', 'total = O(l^2*d)'"

_ORDER = re.compile(r"O\s*\((.*)\)", re.DOTALL)


def claims_of(
    texts: Sequence[str], mixer: str, phase: str, form: str = "", names: Sequence[str] = ("strict",)
) -> list[Claim]:
    """The claims about a mixer that lines of text state.

    Args:
        mixer: a name, or FILE.py:NAME.
        phase: training, inference, backward or training-step, where a quantity depends on it.
        names: the convention.

    Raises:
        PublishedError: a line that cannot be read; the message says what was expected.
    """
    return [_claim(text, str(k), mixer, phase, form, names) for k, text in enumerate(texts, 1)]


def _claim(text: str, name: str, mixer: str, phase: str, form: str, names: Sequence[str]) -> Claim:
    left, *parts = (part.strip() for part in text.split("="))
    try:
        with limited():
            if not left or not all(parts) or len(parts) not in (1, 2):
                raise ValueError(f"expected QUANTITY = FORMULA, such as {EXAMPLES}")
            asked = quantity("_".join(re.split(r"[\s_-]+", left)))
            claim = Claim(
                id=name,
                source="--claim",
                place=name,
                claimed=text,
                mixer=mixer,
                phase=_phase(asked, phase),
                form=form,
                quantity=asked.claim,
                convention=tuple(names),
                **_stated(asked, parts),
            )
            validate(claim)
            if claim.steps:
                path_steps(claim.steps)
    except (ValueError, TooMuch) as reason:
        raise PublishedError(f"claim '{text}': {reason}") from None
    return claim


def _phase(asked: Figure, phase: str) -> str:
    """The phase of a quantity that exists in one only; none where it depends on no phase."""
    known = phases_of(asked)
    return phase if len(known) > 1 else "".join(known)


def _stated(asked: Figure, parts: Sequence[str]) -> dict[str, Any]:
    """The kind of claim, and what it states."""
    if asked.claim == "critical_path":
        return {"kind": "path", "steps": " ".join(parts)}
    if order := _ORDER.fullmatch(parts[0]):
        if len(parts) > 1:
            raise ValueError("O(...) stands alone: nothing equals it")
        return {"kind": "order", "formula": order[1]}
    return {"kind": "formula", "formula": parts[0], "equals": "".join(parts[1:])}
