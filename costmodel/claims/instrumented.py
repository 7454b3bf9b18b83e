"""The value of a claimed quantity, counted while the oracle executes the equations entry by entry.

The oracle computes with numbers that record their operations, and shares no rule with the
derivation. An instance is one equation at one point of its indices.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from costmodel.claims.claim import Claim
from costmodel.claims.findings import Sizes, completed
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import mixer_of
from costmodel.errors import OracleError, TooMuch
from costmodel.language.equations import JOINED, STEP, Mixer
from costmodel.language.functions import CLASSES
from costmodel.language.nodes import Reduce
from costmodel.oracle.execute import Execution, execute, random_arrays, run as run_system
from costmodel.program.conventions import computes_masked
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.registry import CLAIMED
from costmodel.questions.subject import system_of
from costmodel.symbolic.effort import limited

EXECUTED = 100_000
"""Units of `symbolic.effort` that one execution may take: entries of arrays, points of ranges,
comparisons and steps of transforms. They take about a second and 50 MB."""


def instrumented(claim: Claim, interpretation: Interpretation, sizes: Sizes) -> int | None:
    """The claim's quantity, counted while the equations are executed entry by entry; sizes that
    `sizes` lacks are chosen so that they fit.

    None for a claim about a network or about no mixer, for a quantity that an execution does not
    count, under a convention that imitates another tool's counter (`peer`), for sizes that do
    not fit the mixer, and if the execution fails or takes more effort than `EXECUTED`.
    """
    asked = CLAIMED.get(claim.quantity)
    if asked is None or claim.model or not claim.mixer or interpretation.parsed_convention.peer:
        return None
    mixer = mixer_of(claim.mixer)
    # one sequence is executed, and its operations are counted b times
    whole = completed(mixer, {k: v for k, v in sizes.items() if k != "b"})
    if whole is None:
        return None
    token = whole.get("t", whole["l"])
    # the state of token t is what later tokens read: the run goes on until a window or a period as
    # long as any size has ended
    length = whole["l"] + max(whole.values()) + 2 if claim.quantity == "state" else None
    given = {**whole, "l": length or whole["l"]}
    given.pop("t", None)
    try:
        with limited(EXECUTED):
            run = _execution(mixer, interpretation, tuple(given.items()))
            return _executed_quantity(run, claim, interpretation.phase, token, sizes.get("b", 1))
    except (OracleError, ArithmeticError, TooMuch):
        return None


@lru_cache(maxsize=1)
def _execution(
    mixer: Mixer, interpretation: Interpretation, given: tuple[tuple[str, int], ...]
) -> Execution:
    """The execution of a mixer at the sizes `given`: of the forward pass, or, in a phase of
    training, of the forward pass and its gradients; for the phase `backward` the values of the
    forward pass are given and not counted. Only the last execution is kept in memory, for the
    further columns of its row."""
    sizes, names = dict(given), interpretation.parsed_convention
    form = mixer.forms[interpretation.form or mixer.default_form]
    if interpretation.phase not in TRAINING_STEP:
        return execute(
            form,
            sizes,
            rewrites=names.rewrites,
            accounting=names.accounting,
            arrays=random_arrays(form, sizes),
        )
    system = system_of(mixer, interpretation.form or None, names.rewrites, interpretation.phase)
    return run_system(
        system,
        sizes,
        accounting=names.accounting,
        dense=computes_masked(names.rewrites),
        arrays=random_arrays(system.mixer.forms[system.form], sizes),
        ready=system.forward.equations if interpretation.phase == "backward" else (),
    )


def _executed_quantity(
    run: Execution, claim: Claim, phase: str, token: int, batch: int
) -> int | None:
    """The claim's quantity in an execution for `batch` sequences: parameters, the entries of the
    state, the span in levels of operations, or a number of operations; None for any other. `token`:
    the new token of inference, and the token after which the state is held."""
    quantity, one_token = claim.quantity, phase == "inference"
    if quantity == "parameters":
        roles = {name: array.role for name, array in run.system.mixer.arrays.items()}
        return sum(int(v.size) for name, v in run.arrays.items() if roles[name] == "parameter")
    if quantity == "state":
        return run.state(token) * batch
    if quantity == "span":
        return run.span_inference(token) if one_token else run.span()
    if CLAIMED[quantity].unit != "operations":
        return None
    # class -> operations: `counts` of each sequence, `once` for a batch (work on weights alone)
    counts, once = (
        (run.counts_inference(token), {}) if one_token else _operations_each_and_once(run)
    )
    # the quantities that are sums -> the classes that they leave out
    left_out = {"total": (), "other": (*CLASSES, *claim.without)}
    sums = quantity in left_out
    names = {*counts, *once}.difference(left_out[quantity]) if sums else {quantity}
    # weights' gradients of the sequences after the first are added to those of the first
    joined = _batch_additions(run) * (batch - 1) if "add" in names else 0
    return sum(counts.get(name, 0) * batch + once.get(name, 0) for name in names) + joined


def _operations_each_and_once(run: Execution) -> tuple[Counter[str], Counter[str]]:
    """(each, once): operations by class, per sequence and once per batch. Once per batch are
    operations on weights alone, and on gradients of weights already summed over the batch."""
    each, once = Counter[str](), Counter[str]()
    for instance in run.instances:
        kind = run.system.backward.get(run.system.equations[instance.equation])
        # an equation of a gradient has a kind; forward work is on weights if it reads no input
        alone = kind == STEP if kind else not instance.given
        (once if alone else each).update(instance.operations)
    return each, once


def _batch_additions(run: Execution) -> int:
    """The additions that each sequence after the first takes: one for each entry of a weight's
    gradient that is summed over the batch, except scatters and entries that are empty sums."""
    kinds = run.system.backward
    of_weights = {
        k
        for k, e in enumerate(run.system.equations)
        if kinds.get(e) == JOINED and not (isinstance(e.value, Reduce) and e.value.scatters)
    }
    written = [entry for i in run.instances if i.equation in of_weights for entry in i.writes]
    return sum(not run.trace.memory[entry].empty for entry in written)
