"""How often does a mixer do what a claim counts, when its equations are run entry by entry?

The equations are executed with numbers that remember what was done to them; nothing of what the
derivation uses takes part.
"""

from __future__ import annotations

from collections import Counter

from costmodel.claims.claim import Claim
from costmodel.claims.findings import Sizes, completed
from costmodel.claims.interpretations import Reading
from costmodel.claims.quantities import mixer_of
from costmodel.errors import OracleError
from costmodel.language.equations import JOINED, STEP, Mixer
from costmodel.oracle.execute import Execution, execute, run as run_system
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.registry import CLAIMED
from costmodel.questions.subject import system_of

LARGEST_RUN = 200_000
"""Sizes whose product, with the length once more, is larger are not run."""


def instrumented(claim: Claim, reading: Reading, sizes: Sizes) -> int | None:
    """The number of the claim's quantity that is counted while the equations run at some sizes.

    None where that says nothing: no mixer, a quantity that is not executed, another tool's
    counter, sizes that are too large.
    """
    asked = CLAIMED.get(claim.quantity)
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
    if reading.phase in TRAINING_STEP:
        run = _training_step(mixer, reading, given)
    else:
        run = execute(form, given, rewrites=reading.read.rewrites,
                      accounting=reading.read.accounting, length=length)  # fmt: skip
    try:
        return _tally(run, claim.quantity, reading.phase, token, sizes.get("b", 1))
    except (OracleError, ArithmeticError):
        return None


def _training_step(mixer: Mixer, reading: Reading, sizes: Sizes) -> Execution:
    """A run of the equations of the gradients, those of the forward pass being ready before them
    where the backward pass alone is asked for."""
    names = reading.read
    system = system_of(mixer, reading.form or None, names.rewrites, reading.phase)
    return run_system(
        system,
        sizes,
        accounting=names.accounting,
        dense="dense" in names.rewrites,
        ready=system.forward.equations if reading.phase == "backward" else (),
    )


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
    if CLAIMED[quantity].unit != "operations":
        return None
    counts, once = (run.counts_inference(token), {}) if one_token else _operations(run)
    names = {*counts, *once} if quantity == "total" else {quantity}
    joined = _joined(run) * (batch - 1) if "add" in names else 0
    return sum(counts.get(name, 0) * batch + once.get(name, 0) for name in names) + joined


def _operations(run: Execution) -> tuple[Counter[str], Counter[str]]:
    """Operations by class that each sequence takes, and those that are done once a step: on weights
    alone, or on their gradients once these are added up."""
    each, once = Counter[str](), Counter[str]()
    for instance in run.instances:
        kind = run.system.backward.get(run.system.equations[instance.equation])
        alone = kind == STEP if kind else not instance.given
        (once if alone else each).update(instance.operations)
    return each, once


def _joined(run: Execution) -> int:
    """The entries that each further sequence of a batch is added to: gradients of weights."""
    kinds = run.system.backward
    of_weights = {k for k, e in enumerate(run.system.equations) if kinds.get(e) == JOINED}
    written = [entry for i in run.instances if i.equation in of_weights for entry in i.writes]
    return sum(not run.trace.memory[entry].empty for entry in written)
