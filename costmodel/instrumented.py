"""How often does a mixer do what a claim counts, when its equations are run entry by entry?

The equations are executed with numbers that remember what was done to them; nothing of what the
derivation uses takes part.
"""

from __future__ import annotations

from costmodel.claims import Claim
from costmodel.execution.oracle import Execution, execute
from costmodel.execution.tallying import OracleError
from costmodel.figures import QUANTITIES, mixer_of
from costmodel.findings import Sizes, completed
from costmodel.readings import Reading

LARGEST_RUN = 200_000
"""Sizes whose product, with the length once more, is larger are not run."""


def instrumented(claim: Claim, reading: Reading, sizes: Sizes) -> int | None:
    """The number of the claim's quantity that is counted while the equations run at some sizes.

    None where that says nothing: no mixer, a quantity that is not executed, another tool's
    counter, sizes that are too large.
    """
    asked = QUANTITIES.get(claim.quantity)
    if asked is None or claim.model or not claim.mixer or reading.read.peer:
        return None
    mixer = mixer_of(claim.mixer)
    whole = completed(mixer, {k: v for k, v in sizes.items() if k != "b"})
    if whole is None or _work(whole) > LARGEST_RUN:
        return None
    form = mixer.forms[reading.form or mixer.default_form]
    token = whole.get("t", whole["l"])
    length = whole["l"] + max(whole.values()) + 2 if claim.quantity == "state" else None
    given = {letter: value for letter, value in whole.items() if letter != "t"}
    run = execute(form, given, rewrites=reading.read.rewrites,
                  accounting=reading.read.accounting, length=length)  # fmt: skip
    try:
        return _tally(run, claim.quantity, reading.phase, token, sizes.get("b", 1))
    except (OracleError, ArithmeticError):
        return None


def _work(sizes: Sizes) -> int:
    product = sizes["l"]
    for value in sizes.values():
        product *= value
    return product


def _tally(run: Execution, quantity: str, phase: str, token: int, batch: int) -> int | None:
    """One quantity of a run."""
    one_token = phase == "inference"
    if quantity == "parameters":
        roles = {name: array.role for name, array in run.system.mixer.arrays.items()}
        return sum(int(v.size) for name, v in run.arrays.items() if roles[name] == "parameter")
    if quantity == "state":
        return run.state(token) * batch
    if quantity == "span":
        return run.span_inference(token) if one_token else run.span()
    if not QUANTITIES[quantity].operations:
        return None
    counts = run.counts_inference(token) if one_token else run.counts()
    once = {} if one_token else run.once()
    names = {*counts, *once} if quantity == "total" else {quantity}
    return sum(counts.get(name, 0) * batch + once.get(name, 0) for name in names)
