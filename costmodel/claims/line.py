"""Read claims from lines of text such as `mul = 4*l*d^2 + 2*l^2*d` or `total = O(l^2*d)`.

Behind an O(...) may stand which sizes grow as others do: `total = O(l*d), B growing as sqrt(l)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from costmodel.claims.as_printed import quantity_word
from costmodel.claims.asymptotics import OrderClaim
from costmodel.claims.claim import Claim
from costmodel.claims.comparisons import FormulaClaim, PathClaim
from costmodel.claims.quantities import phases_of, quantity
from costmodel.errors import FormulaError, PublishedError, TooMuch
from costmodel.language.formula_text import Symbols, printed, symbol_name
from costmodel.questions.question import Figure
from costmodel.symbolic.effort import limited
from costmodel.symbolic.formulas import FUNCTIONS, GROWING, WHERE
from costmodel.symbolic.sizes import is_letter

EXAMPLES = "'mul = 4*l*d^2 + 2*l^2*d', 'total = O(l^2*d)'"

_ORDER = re.compile(
    r"\$?(?:\\mathcal\s*)?(\{O\}|O|\\?Theta|\u0398)\s*(?:\\left)?\((.*?)(?:\\right)?\)\s*\$?",
    re.DOTALL,
)
_RELATION = re.compile(r"[<>\u2264\u2265\u2248]=?|==|\\[lg]eq?\b")
_LITTLE = re.compile(r"o\s*\((.*)\)", re.DOTALL)
_CALL = re.compile(r"[$\\]*([^\W\d_]+)\s*(?:\\left)?\(.*\)\s*\$?", re.DOTALL)
_GROWING = re.compile(r"[,;]?\s*(?:with\s+|and\s+)?([\w\\{}]+) growing as ([^,;]+)$")


def claims_of(
    texts: Sequence[str],
    mixer: str,
    phase: str,
    form: str = "",
    names: Sequence[str] = ("strict",),
    symbols: Symbols | None = None,
) -> list[Claim]:
    """The claims about a mixer in lines of text, one claim per line.

    Args:
        mixer: a name, or FILE.py:NAME.
        phase: training, inference, backward or training-step, for quantities that depend on it.
        form: the name of a form; "" for the mixer's default form.
        names: the names of the convention.
        symbols: symbol in the texts -> our letter for the size.

    Raises:
        PublishedError: a line that cannot be read; the message says what was expected.
    """
    return [
        _claim(text, str(k), mixer, phase, form, names, symbols or {})
        for k, text in enumerate(texts, 1)
    ]


def _claim(
    text: str,
    name: str,
    mixer: str,
    phase: str,
    form: str,
    names: Sequence[str],
    symbols: Symbols,
) -> Claim:
    """The claim in one line of text, such as `total = O(l*B) with B growing as sqrt(l)`, about a
    form of a mixer in a phase; `name`, the number of the line, is its id and place, `names` are
    those of the convention, and `symbols` maps symbols in the text to our letters.

    Raises:
        PublishedError: the line cannot be read; the message says what was expected.
    """
    left, *parts = (part.strip() for part in text.split("="))
    growing = {}  # letter of a size -> the formula that it grows as
    try:
        if sign := _RELATION.search(text):
            said, formula = text[: sign.start()].strip(" ="), text[sign.end() :].strip()
            upper = sign[0][0] in "<\u2264" or sign[0].startswith("\\l")
            bound = f", or '{said} = O({formula})' for an upper bound" if upper else ""
            raise ValueError(
                f"'{sign[0]}' is no sign of a claim: write '{said} = {formula}'{bound}"
            )
        with limited():
            while parts and (found := _GROWING.search(parts[-1])):
                parts[-1] = parts[-1][: found.start()]
                letter = symbols.get(symbol_name(found[1]), found[1])
                growing[letter] = printed(found[2], symbols, growing=True).text
            if not left or not all(parts) or len(parts) not in (1, 2):
                raise ValueError(f"expected QUANTITY = FORMULA, such as {EXAMPLES}")
            asked = quantity(quantity_word(left))
            stating = claim_class(asked, parts, symbols, growing)
            claim = stating(
                id=name,
                source="--claim",
                place=name,
                claimed=text,
                mixer=mixer,
                phase=phase_of(asked, phase),
                form=form,
                quantity=asked.name,
                convention=tuple(names),
            )
            claim.validate()
    except (ValueError, TooMuch) as reason:
        raise PublishedError(f"claim '{text}': {reason}") from None
    return claim


def phase_of(asked: Figure, phase: str) -> str:
    """`phase` if a figure exists in several phases; else its only phase, or "" if it has none."""
    known = phases_of(asked)
    return phase if len(known) > 1 else "".join(known)


def claim_class(
    asked: Figure, parts: Sequence[str], symbols: Symbols, growing: Mapping[str, str] | None = None
) -> Callable[..., Claim]:
    """The class of a claim with its formulas filled in; the caller adds the other fields, such as
    the mixer: ["O(l*d)"] gives OrderClaim with `formula`, ["l*d + d", "(l + 1)*d"] FormulaClaim
    with `formula` and `equals`, its simplification.

    Args:
        asked: the figure that the claim is about; a critical path is read as steps.
        parts: the right sides of the claim: a path, O(...), or a formula and a simplification.
        symbols: symbol in `parts` -> our letter for the size.
        growing: size -> its growth, stated behind an O(...); None of a cell in a table, where
            O(...) means the order itself, not an upper bound.

    Raises:
        ValueError: a growth without O(...), an equation behind O(...), more than two formulas, or
            one that cannot be read.
    """
    if little := _LITTLE.fullmatch(parts[0]):
        raise ValueError(
            f"'{parts[0]}' has a small o: write O({little[1]}) for an upper bound, or "
            f"\u0398({little[1]}) for the order"
        )
    if growing and not _ORDER.fullmatch(parts[0]):
        raise ValueError("'growing as' may follow an O(...) only")
    if asked.name == "critical_path":
        return partial(PathClaim, steps=" ".join(parts))
    if order := _ORDER.fullmatch(parts[0]):
        if len(parts) > 1:
            raise ValueError(f"O(...) ends the claim: leave out '= {parts[1]}'")
        formula = printed(order[2], symbols, growing=True).text
        bound = growing is not None and "O" in order[1]
        return partial(OrderClaim, formula=formula, growing=growing or {}, bound=bound)
    if len(parts) > 2:
        raise ValueError(
            f"expected a formula and at most one simplification, got {len(parts)} formulas"
        )
    try:
        formula, *equals = (printed(part, symbols).text for part in parts)
    except FormulaError as reason:
        sign = _CALL.fullmatch(parts[0])
        if not sign or is_letter(sign[1]) or sign[1] in (*FUNCTIONS, WHERE, "sum", *GROWING):
            raise
        raise FormulaError(f"{reason}; the signs of growth are O(...) and \u0398(...)") from None
    return partial(FormulaClaim, formula=formula, equals="".join(equals))
