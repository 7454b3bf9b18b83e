"""What do a prompt's pass and the steps after it cost, from the answers for l tokens and for one?

The prompt of p tokens passes through the network at once, with the head at its last position alone,
which gives the first of q new tokens. Each further one takes a step that reads the token before it:
q - 1 steps, at positions p+1 .. p+q-1, each with the state held so far. The last new token is read
by no step.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.errors import Unsupported
from costmodel.networks.assembly import LAST
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly, index_atom

PROMPT, STEPS = Poly.atom("p"), Poly.atom("q") - 1
STEP = index_atom("step")
"""The index of the steps: no size and no index of a mixer has this name."""

MOST_STEPS = 1_000_000
"""A sum without a closed form is refused beyond this number of steps."""


def at_prompt(sizes: Mapping[str, Poly]) -> dict[str, Poly]:
    """The sizes of a part as functions of the network's, with the prompt's length p in place of the
    length l and of the position t."""
    there = {"l": PROMPT, "t": PROMPT}
    return there | {x: poly.substitute(there) for x, poly in sizes.items()}


def over_steps(step: Exact) -> Exact:
    """The sum of an answer in t (one step of decoding at position t) over the steps t = p+1 ..
    p+q-1 after a prompt of p tokens, as a closed form in p and q; Unsupported if t stands inside a
    function, so that there is none."""
    at = Poly.atom(STEP)
    result = Exact()
    for guards, poly in step.pieces:
        around = {guard.substitute({"t": at}) for guard in guards}
        around |= {at - PROMPT - 1, LAST["decode"] - at}
        result = result + total((STEP,), frozenset(around), poly.substitute({"t": at}))
    return result


def over_steps_at(step: Exact, sizes: Mapping[str, int]) -> int:
    """The sum of an answer in t (one step of decoding at position t) over the steps t = p+1 ..
    p+q-1, at integer sizes, p and q among them; without a closed form it is added up step by step.

    Raises:
        Unsupported: no closed form, and more than a million steps.
    """
    try:
        return over_steps(step).at(sizes)
    except Unsupported:
        first, number = sizes["p"] + 1, sizes["q"] - 1
        if number > MOST_STEPS:
            raise Unsupported(
                f"the costs of {number:,} decoding steps have no formula and are too many to add "
                f"up one by one: give q of {MOST_STEPS + 1:,} or less"
            ) from None
        return sum(step.at({**sizes, "t": t}) for t in range(first, first + number))
