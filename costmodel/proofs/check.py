"""The proofs of a mixer that need only its equations, and no module.

The equations are well formed; they are causal or not, as derived; derived answers equal
instrumented execution; gradients are correct; all forms have equal values. A proof that fails names
the first equation that differs and the smallest sizes at which it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from costmodel.errors import EquationError, OracleError, SizeError, Unsupported
from costmodel.language.equations import Form, Mixer
from costmodel.oracle.execute import execute, random_arrays
from costmodel.program.lowering import lower
from costmodel.program.phases import inference_reason, underivable
from costmodel.program.recurrences import blocks
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import check_form, check_order
from costmodel.proofs.against_oracle import TOLERANCE, OracleComparison, Sizes, causal, general
from costmodel.proofs.gradients import GradientComparison
from costmodel.proofs.tried_sizes import equation_sizes, fits, module_sizes, words
from costmodel.proofs.unread import unread_words
from costmodel.questions.counting.by_equation import count_equations
from costmodel.questions.counting.counts import with_once
from costmodel.questions.evaluate import evaluate_all

FEW = 17
"""To find the smallest sizes that fail, each value of a size below this one is tried."""


@dataclass(frozen=True)
class Proof:
    """One proof: passed (True), failed (False; `detail` says where), or not checked (None)."""

    name: str
    passed: bool | None
    detail: str


def prove(mixer: Mixer) -> list[Proof]:
    """The proofs about a mixer's equations, each passed, failed or not checked, in order; only the
    first one, that they are well formed, unless that passes."""
    proofs = [_well_formed(mixer)]
    if not proofs[0].passed:
        return proofs
    return [
        *proofs,
        *_causality(mixer),
        *_equal_execution(mixer),
        *_gradients(mixer),
        *_forms_agree(mixer),
    ]


def first_apart(
    mixer: Mixer, apart: Callable[[Sizes], str], tried: Iterable[dict[str, int]] | None = None
) -> tuple[dict[str, int], str] | None:
    """The smallest sizes at which `apart` returns a text, and this text; None if `apart` returns ""
    at all sizes of `tried` (default: `equation_sizes`).

    Smallest: if any single size is lowered by one, or to a value below `FEW`, `apart` returns "" or
    the sizes do not fit the mixer.
    """
    for sizes in equation_sizes(mixer) if tried is None else tried:
        if said := apart(sizes):
            return _shrunk(mixer, sizes, said, apart)
    return None


def _shrunk(
    mixer: Mixer, sizes: dict[str, int], said: str, apart: Callable[[Sizes], str]
) -> tuple[dict[str, int], str]:
    """The sizes and the text after lowering one size after the other while `apart` returns a text.
    `said` is the text at the given sizes. Every value below `FEW` is tried; a larger size is
    lowered by its distance to `FEW`, half of it, a quarter, ..., as each run may take a minute."""
    for letter, value in sizes.items():
        gaps = ((value - FEW) >> k for k in range(max(0, value - FEW).bit_length()))
        for lower_value in (*range(1, min(value, FEW)), *(value - gap for gap in gaps)):
            smaller = {**sizes, letter: lower_value}
            if fits(mixer, smaller) and (still := apart(smaller)):
                return _shrunk(mixer, smaller, still, apart)
    return sizes, said


def _well_formed(mixer: Mixer) -> Proof:
    """The proof that the equations of every form are in order and execute with finite outputs at
    all sizes tried; not checked (neither passed nor failed) if an analysis refuses the
    equations."""
    name = "well formed"

    def stopped(sizes: Sizes) -> str:
        """Why a form has no finite output at these sizes; "" if all forms have one."""
        for form in mixer.forms.values():
            try:
                output = execute(form, sizes).output
            except (OracleError, ArithmeticError) as error:
                return f"form '{form.name}' does not run: {error}"
            if not abs(output).max(initial=0) < inf:
                return f"form '{form.name}' has an output that is not finite at {words(sizes)}"
        return ""

    try:
        _ = mixer.default_form
        for role in ("input", "output"):
            mixer.role(role)
        for form in mixer.forms.values():
            check_form(lower(form))
            check_order(lower(form))
            tokens(lower(form))
        apart = first_apart(mixer, stopped)
    except Unsupported as error:
        return Proof(name, None, str(error.told(mixer.home)))
    except (EquationError, SizeError) as error:
        return Proof(name, False, str(error))
    if apart is not None:
        return Proof(name, False, apart[1])
    forms = ", ".join(mixer.forms)
    tried = f"tried at {len(equation_sizes(mixer))} sets of sizes; forms: {forms}"
    return Proof(name, True, "; ".join([tried, *_unread(mixer)]))


def _unread(mixer: Mixer) -> Iterator[str]:
    """Yield a note on each parameter that no form reads, each array that a form declares and never
    defines, and each form that defines entries which nothing reads, with the smallest sizes."""
    read = {a for form in mixer.forms.values() for e in form.equations for a in e.value.arrays}
    for array in mixer.parameters:
        if array not in read:
            yield f"no form reads {array.name}, which is counted among the parameters: leave it out"
    for name, form in mixer.forms.items():
        defined = {equation.name for equation in form.equations}
        for declared in (array for array in form.arrays if array not in defined):
            yield (
                f"form '{name}' declares {declared} and never defines it: give it an equation or "
                f"leave it out ({form.array_places[declared]})"
            )
        found = first_apart(mixer, partial(unread_words, form))
        if found is not None:
            sizes, entries = found
            yield (
                f"form '{name}' defines and counts entries that nothing reads, as {entries} at "
                f"{words(sizes)}: reduce the equation's range to the entries that are read"
            )


def _causality(mixer: Mixer) -> Iterator[Proof]:
    """Yield a proof for each form: it is derived as causal if and only if its execution at the
    sizes tried reads no later token. Not checked for a form whose causality is not derived."""
    for name, form in mixer.forms.items():
        reason = inference_reason(lower(form))
        apart = first_apart(mixer, partial(_not_causal, form))
        said = reason or "causal"
        agree: bool | None = (reason is None) == (apart is None)
        if underivable(lower(form)):
            agree = None
        shown = said
        if agree is not True:
            shown = _disagree(said, apart)
        yield Proof(f"{name}: causality equals execution", agree, shown)


def _not_causal(form: Form, sizes: Sizes) -> str:
    return "" if causal(form, sizes) else "not causal"


def _disagree(said: str, apart: tuple[dict[str, int], str] | None) -> str:
    """The derived and the executed causality in words, for a proof that fails."""
    executed = f"not causal at {words(apart[0])}" if apart else "causal at all sizes tried"
    return f"derived: {said}; executed: {executed}"


def _equal_execution(mixer: Mixer) -> Iterator[Proof]:
    """Yield a proof for each form: at all sizes tried, its values and every figure that an
    execution tallies are equal in the derivation and the execution."""
    for form in mixer.forms:
        made = OracleComparison(mixer, form)
        apart = first_apart(mixer, partial(_differing, made, first_equation_apart))
        said = f"of the equations, not of a module: {', '.join(made.compared)}"
        done = [said] * bool(made.compared)
        proof = _proof(f"{form}: counts equal instrumented execution", apart, done)
        yield from _and_unanswered(proof, made, shown="counts" in made.compared)


def _differing(
    made: OracleComparison, where: Callable[[Mixer, str, Sizes], str] | None, sizes: Sizes
) -> str:
    """The first answer that differs at some sizes, in words; "" if none differs. `where` returns a
    phrase to put in front, such as the first equation that differs; None for no phrase."""
    made.apart.clear()
    made.at(sizes)
    if not made.apart:
        return ""
    return (where(made.mixer, made.form, sizes) if where else "") + made.apart[0]


def _and_unanswered(proof: Proof, made: OracleComparison, *, shown: bool) -> Iterator[Proof]:
    """Yield a proof, and if questions of the comparison `made` have no derived answer, an open
    proof (neither passed nor failed) that lists them by reason.

    Args:
        shown: whether the proof compared enough to stand by itself; if not, and it did not fail,
            one open proof takes the place of both.

    Questions about one token are not listed for a form that is derived not to be causal.
    """
    form = lower(made.mixer.forms[made.form])
    # the reason of a form that is not causal, which the proof of causality tells already
    undefined = None if underivable(form) else inference_reason(form)
    missing: dict[tuple[str, bool], dict[str, None]] = {}
    for line in made.refused:  # such as `counts at t=3: REASON`
        question, _, reason = line.partition(": ")
        name = general(question)
        if reason != undefined:
            asked = missing.setdefault((reason, name in made.compared), {})
            asked[name.replace(", ", " of ")] = None  # `counts, backward`: counts of backward
    said = [
        f"{', '.join(questions)} {'is' if len(questions) == 1 else 'are'} "
        f"{'derived at some sizes only' if partly else 'not derived'}: {reason}"
        for (reason, partly), questions in missing.items()
    ]
    if proof.passed and not shown:
        yield replace(
            proof, passed=None, detail="; ".join([proof.detail] * bool(proof.detail) + said)
        )
        return
    yield proof
    if said:
        yield Proof(f"{proof.name}, other answers", None, "; ".join(said))


def _gradient_questions(answered: Iterable[str]) -> Iterator[str]:
    """Yield phrases that name the compared questions about gradients: the costs, `counts, depths of
    the backward pass and the training step`, and the values, `gradient of x, gradient of W`."""
    parts = [question.partition(", ")[::2] for question in answered]
    costs = dict.fromkeys(name for name, phase in parts if phase)
    values = [name for name, phase in parts if not phase]
    if costs:
        yield f"{', '.join(costs)} of the backward pass and the training step"
    if values:
        yield ", ".join(values)


def _gradients(mixer: Mixer) -> Iterator[Proof]:
    """Yield a proof for each form: values and costs of its gradients equal those of its execution
    at all sizes tried."""
    for form in mixer.forms:
        made = GradientComparison(mixer, form)
        apart = first_apart(mixer, partial(_differing, made, None))
        done = _gradient_questions(made.compared)
        proof = _proof(f"{form}: gradients of the equations equal execution", apart, done, "; ")
        yield from _and_unanswered(proof, made, shown=bool(made.compared))


def _proof(
    name: str, apart: tuple[dict[str, int], str] | None, done: Iterable[str], between: str = ", "
) -> Proof:
    """A proof by comparison. If `apart` is None, nothing differs: passed, with what was compared
    (`done`, joined by `between`) as detail; else failed, with the sizes and the difference in
    `apart`."""
    said = f"at {words(apart[0])}: {apart[1]}" if apart else between.join(done)
    return Proof(name, apart is None, said)


def first_equation_apart(mixer: Mixer, form: str, sizes: Sizes) -> str:
    """The phrase "NAME is the first equation that differs; " for the author's first equation whose
    derived operations (class -> number) in a forward pass at `sizes` differ from the executed ones;
    "" if none differs or the operations are not derived."""
    run = execute(mixer.forms[form], sizes)
    try:
        derived = count_equations(run.system, "training")
    except Unsupported:
        return ""
    executed: dict[str, Counter[str]] = {}
    for instance in run.instances:
        part = run.system.equations[instance.equation].part_of
        executed.setdefault(part, Counter()).update(instance.operations)
    for name, counts in derived.items():
        # + leaves out classes with 0 operations
        if with_once(counts.at(**sizes)) != dict(+executed.get(name, Counter())):
            return f"{name} is the first equation that differs; "
    return ""


def _forms_agree(mixer: Mixer) -> Iterator[Proof]:
    """Yield a proof for each other form: it has the output of the first form at all sizes at which
    modules are tried, a long sequence among them; a failure names the first array, in order of
    evaluation, that differs."""
    first, *others = mixer.forms
    for other in others:

        def differing(sizes: Sizes, other: str = other) -> str:
            """The first array of both forms, in order of evaluation, whose values differ, and the
            largest difference of the outputs, in words; "" for equal outputs."""
            arrays = random_arrays(mixer.forms[first], sizes)
            one, two = (evaluate_all(mixer, arrays, sizes, form) for form in (first, other))
            output = mixer.role("output").name
            if not _differ(one[output], two[output]):
                return ""
            parted = (
                name
                for name, where in evaluated(mixer.forms[other], two)
                if name in one and _differ(one[name], two[name], where)
            )
            furthest = abs(one[output] - two[output]).max()
            return f"{next(parted)} is the first array that differs; {output} by {furthest:.3g}"

        found = first_apart(mixer, differing, module_sizes(mixer))
        yield _proof(f"{other}: equals {first}", found, ["the same numbers"])


def evaluated(form: Form, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a form in the order of evaluation, as (name, index of entries): `...` for
    a whole array, (:, ..., row), with the row from 0, for each row of a loop in its direction.
    `values`: name -> the array's values."""
    written = {e.name for e in form.equations}
    for block in blocks(lower(form)):
        names = dict.fromkeys(e.name for e in block.equations if e.name in written)
        if not block.is_loop:
            yield from ((name, ...) for name in names)
            continue
        axes = {array.name: axis for array, axis in block.axes.items()}
        last = max(values[name].shape[axes[name]] for name in names)
        for row in range(last)[:: block.step]:
            for name in names:
                if row < values[name].shape[axes[name]]:
                    yield name, (*[slice(None)] * axes[name], row)


def _differ(one: Any, two: Any, where: Any = ...) -> bool:
    """Whether two arrays differ in shape, or beyond rounding in the entries at `where`: nan differs
    from every number, an infinity from every other one."""
    if one.shape != two.shape:
        return True
    left, right = one[where], two[where]
    scale = max(1.0, float(abs(one[abs(one) < inf]).max(initial=0)))
    return not bool(((left == right) | (abs(left - right) <= TOLERANCE * scale)).all())
