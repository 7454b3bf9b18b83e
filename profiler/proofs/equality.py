"""Does a mixer do what its author claims? The proofs of `check` for a mixer and its modules.

Well formed; causality equals execution; counts equal instrumented execution; forms agree; module
equals equations; dispatched equals executed; state held equals derived state; step equals forward.
A proof that fails names the smallest sizes at which something differs, and the first equation whose
values or counts differ; of dispatched operations it names the classes. A proof that depends on one
that fails is not checked, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from costmodel.errors import ConventionError, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.lowering import lower
from costmodel.program.phases import inference_reason
from costmodel.proofs.check import Proof, prove
from costmodel.proofs.tried_sizes import Sizes, module_sizes, words
from costmodel.proofs.unread import unread_words
from costmodel.questions.evaluate import evaluate_all
from costmodel.questions.state import state
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.piecewise import Exact
from profiler.counting.operations import CONSTANTS, Classes
from profiler.modules.base import State
from profiler.modules.described import (
    Described,
    by_class,
    classes_at,
    classes_of,
    description_of,
    dispatched_gap,
    executed_counts,
)
from profiler.modules.registry import Implementation, NoModule, implementations, without_token
from profiler.proofs.blame import (
    Blame,
    Other,
    Recorder,
    blame_in_words,
    blamed_step,
    first_difference,
    first_unseen,
)
from profiler.proofs.cases import (
    BATCH,
    TOLERANCE,
    ModuleCase,
    case,
    prove_cases,
    unwritten,
    write_in_words,
)
from profiler.proofs.deep import Progress, deep_proofs, names as deep_names
from profiler.proofs.remedies import UNEXPLAINED, dispatched, rewrites_meant
from profiler.proofs.room import tensors_held
from profiler.proofs.rounding import IN_SINGLE, SingleInside, single_allowance
from profiler.proofs.trial import decoded, row_apart
from profiler.records.reading import reason_of
from profiler.records.words import told_apart

EQUAL = "module equals equations"
DISPATCHED = "dispatched equals executed"
STATE = "state held equals derived state"


def prove_mixer(
    mixer: Mixer, seed: int | None = None, progress: Progress = lambda done, of, what: None
) -> list[Proof]:
    """Every proof of a mixer; see `each_proof`."""
    return [*each_proof(mixer, seed, progress)]


def each_proof(
    mixer: Mixer, seed: int | None = None, progress: Progress = lambda done, of, what: None
) -> Iterator[Proof]:
    """Yield the proofs of a mixer's equations, then of each of its modules, each as soon as it is
    found; one of modules, which is not checked, if a proof of the equations fails. With a seed,
    each module that equals its equations is also tried by calls that the seed draws; `progress`
    gets the trials done, their number, and what is tried."""
    proofs = prove(mixer)
    yield from proofs
    if failed := [proof.name for proof in proofs if proof.passed is False]:
        yield Proof(EQUAL, None, f"needs '{failed[0]}', which fails")
        return
    try:
        found = implementations(mixer)
    except ValueError as error:
        yield Proof(EQUAL, None if isinstance(error, NoModule) else False, str(error))
        return
    for implementation in found.values():
        own = _module_proofs(mixer, implementation)
        yield from own
        if seed is not None and own[0].passed:
            step = own[-1]  # a step that fails would fail, or hide, each proof of random calls
            yield from deep_proofs(
                mixer,
                implementation,
                seed,
                progress=progress,
                counted=bool(own[1].passed),
                step_fault=f"needs '{step.name}', which fails" * (step.passed is False),
            )


def not_reached(mixer: Mixer, found: Sequence[Proof]) -> list[str]:
    """The names of the proofs of `check --deep` that are missing in `found` after an interrupt. The
    drawn proofs of a module are included unless the module differs from its equations."""
    done = {proof.name: proof.passed for proof in found}
    names: list[str] = []
    try:
        for implementation in implementations(mixer).values():
            equal = f"{implementation.name}: {EQUAL}"
            names += [equal, *(deep_names(implementation) if done.get(equal, True) else ())]
    except ValueError:  # `each_proof` says why the mixer has no module
        names = [EQUAL]
    return [name for name in names if name not in done]


def _module_proofs(mixer: Mixer, implementation: Implementation) -> list[Proof]:
    """The proofs of one module, in the order in which they are printed. For a module that differs
    from its equations the proofs of its counts and state are not checked, and for a module whose
    step fails that of its state: these would repeat the failure. A module whose step is not checked
    (it has none, or tokens cannot be computed one by one) has no proof of its state."""
    equal, step = module_equals(mixer, implementation), step_equals(mixer, implementation)
    state = f"{implementation.name}: {STATE}"
    if not equal.passed:
        reason = f"needs '{equal.name}', which {'fails' if equal.passed is False else 'is open'}"
        counts = Proof(f"{implementation.name}: {DISPATCHED}", None, reason)
        held = [] if step.passed is None else [Proof(state, None, reason)]
        return [equal, counts, *held, step]
    held = [] if step.passed is None else [Proof(state, None, f"needs '{step.name}', which fails")]
    if step.passed:
        held = [state_equals(mixer, implementation)]
    return [equal, dispatched_equals(mixer, implementation, step=bool(step.passed)), *held, step]


def module_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """Make the proof that `forward` gives the equations' result, that parameters have the same
    names and shapes, and that each buffer of the equations has values, equal to the module's if it
    registers a buffer of this name. The proof fails if the mixer lacks the form."""
    noted: set[str] = set()

    def apart(found: ModuleCase) -> str:
        apart = _parameters_apart(found) or _buffers_apart(found)
        return apart or forward_apart(found, implementation.form, noted=noted)[0]

    def blame_at(sizes: Mapping[str, int]) -> Blame | None:
        found = case(mixer, implementation, sizes)
        if _parameters_apart(found) or _buffers_apart(found):
            return None
        return forward_apart(found, implementation.form, blames=True)[1]

    name = f"{implementation.name}: {EQUAL}"
    if implementation.form not in mixer.forms:
        return Proof(name, False, _no_form(mixer, implementation.form, "form"))
    blamed = partial(blame_in_words, mixer, blame_at=blame_at)
    return _noting(prove_cases(name, mixer, implementation, apart, blamed=blamed), noted)


def _noting(proof: Proof, noted: Collection[str]) -> Proof:
    """A proof that holds with what was noted of its comparisons at the end of its detail."""
    said = "; ".join((proof.detail, *noted))
    return replace(proof, detail=said) if proof.passed else proof


def _no_form(mixer: Mixer, form: str, option: str) -> str:
    """A sentence which says that a mixer lacks the form of an `option` of @implementation."""
    return (
        f"{mixer.name} has no form '{form}': write {option}= in @implementation, one of "
        f"{', '.join(mixer.forms)}"
    )


def _parameters_apart(case: ModuleCase) -> str:
    """A sentence for each parameter that only the equations or only the module has, or whose shapes
    differ, sorted and joined by "; ", with a remedy for those of submodules; "" if there is
    none."""
    declared = {a.name: tuple(e.at(case.sizes) for e in a.shape) for a in case.mixer.parameters}
    held = {name: tuple(p.shape) for name, p in case.module.named_parameters()}
    parts = [
        f"the equations have a parameter {name} {declared[name]}, the module has none of that name"
        for name in declared.keys() - held.keys()
    ]
    parts += [
        f"the module has a parameter {name} {held[name]}, the equations have none of that name"
        for name in held.keys() - declared.keys()
    ]
    parts += [
        f"the module's parameter {name} is {held[name]}, the equations' is {shape}"
        for name, shape in declared.items()
        if held.get(name, shape) != shape
    ]
    lacking, inner = declared.keys() - held.keys(), [name for name in held if "." in name]
    remedy = (
        f"the module itself holds the parameters of the equations, in place of {inner[0]}: self."
        f"{min(lacking)} = torch.nn.Parameter(...), of which forward calls torch.nn.functional"
        if lacking and inner
        else ""
    )
    return "; ".join([*sorted(parts), *filter(None, [remedy])])


def _buffers_apart(case: ModuleCase) -> str:
    """A sentence on the first buffer (untrained array) of the equations that has no values in them
    and none in the module, or whose shape or entry in the module differs from the equations'; "" if
    there is none. A buffer that the module does not register, or whose values the equations leave
    open, cannot differ. Entries are named by indices from 1."""
    arrays = case.arrays()
    for buffer in case.mixer.buffers:
        name = buffer.name
        if name not in arrays:
            return f"{name} has no values in the equations, and the module registers no such buffer"
        found, expected = case.registered.get(name, arrays[name]), arrays[name]
        if found.shape != expected.shape:
            return (
                f"the module's buffer {name} is {found.shape}, the equations' is {expected.shape}"
            )
        same = np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        for where in zip(*(~same).nonzero(), strict=True):
            entry = ", ".join(str(k + 1) for k in where)
            own, known = float(found[where]), float(expected[where])
            both = told_apart(own, "the equations' is", known)
            single = own == float(np.float32(own)) and np.isclose(own, known, rtol=1e-6, atol=0)
            remedy = ": the module has it in fp32, fill it in float64" if single else ""
            return f"{name}[{entry}] is {both}{remedy}"
    return ""


def forward_apart(
    case: ModuleCase, form: str, *, blames: bool = False, noted: set[str] | None = None
) -> tuple[str, Blame | None]:
    """Call `forward` and return (words on a tensor of the caller that it changes, or on the first
    entry of its result that differs from the equations, "" if there is neither; with `blames` the
    equation whose values the module never computes). The blame is None if entries agree, `blames`
    is False, a tensor is changed, or the result has a wrong type or shape. A module that computes
    in float32 inside may err as much as that explains, and `noted` gets a clause that says so."""
    kept = unwritten(case)
    with torch.no_grad(), SingleInside() as inside:
        y = case.forward()
    if said := write_in_words(kept, "forward"):
        return said, None
    if not isinstance(y, torch.Tensor):
        expected = f"a tensor {tuple(case.x.shape)}"
        return f"forward returns {type(y).__name__}, expected {expected}", None
    output = case.mixer.role("output")
    wanted = (len(case.x), *(extent.at(case.sizes) for extent in output.shape))
    if y.shape != wanted:
        return f"forward returns {tuple(y.shape)}, expected {wanted}", None
    for sample in range(len(case.x)):
        arrays = evaluate_all(case.mixer, case.arrays(sample), case.sizes, form)
        known = torch.from_numpy(arrays[output.name])
        place = first_difference(y[sample], known, "the equations give")
        if place and inside.found:
            (set() if noted is None else noted).add(IN_SINGLE)
            allowed = single_allowance(case.forward)
            place = first_difference(y[sample], known, "the equations give", allowed=allowed)
        if place:
            of = f" in sequence {sample + 1} of a batch of {len(case.x)}" if sample else ""
            if not blames:
                return f"{place}{of}", None
            recorder = Recorder(len(case.x), sample)
            with torch.no_grad(), recorder:
                case.forward()
            return f"{place}{of}", first_unseen(
                case.mixer, form, arrays, recorder, Other(case, form, sample)
            )
    return "", None


def step_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """Make the proof that `step`, called token by token, gives the rows of `forward`. It stays open
    if the module has no step, or the equations cannot compute one token after another; it fails if
    the mixer lacks the form of the step."""
    name = f"{implementation.name}: step equals forward"
    form = implementation.step_form
    if form is None:
        return Proof(name, None, without_token(mixer, implementation))
    if form not in mixer.forms:
        option = "form" if form == implementation.form else "step_form"
        return Proof(name, False, _no_form(mixer, form, option))
    reason = inference_reason(lower(mixer.forms[form]))
    if reason is not None:
        return Proof(name, None, reason)

    def blame_at(sizes: Mapping[str, int]) -> Blame | None:
        return _step_apart(case(mixer, implementation, sizes), form, blames=True)[1]

    noted: set[str] = set()

    def apart(found: ModuleCase) -> str:
        return _step_apart(found, form, noted=noted)[0]

    blamed = partial(blame_in_words, mixer, blame_at=blame_at)
    return _noting(prove_cases(name, mixer, implementation, apart, blamed=blamed), noted)


def _step_apart(
    case: ModuleCase, form: str, *, blames: bool = False, noted: set[str] | None = None
) -> tuple[str, Blame | None]:
    """Decode token by token and return (words on a tensor of the caller that a call changes, or on
    the first row of `step` that differs from the row of `forward`, "" if there is neither; with
    `blames` the equation whose values `step` never computes, or that `forward` is wrong). The blame
    is None if rows agree, `blames` is False, a tensor is changed, or a row has a wrong type or
    shape. `noted` is that of `forward_apart`."""
    kept = unwritten(case)
    inside = SingleInside()

    @cache
    def explained() -> float:
        """The difference of rows that rounding to float32 explains."""
        rows = partial(decoded, case, case.x.shape[1])
        return single_allowance(case.forward) + single_allowance(rows)

    with torch.no_grad():
        with inside:
            whole = case.forward()
        if said := write_in_words(kept, "forward"):
            return said, None
        state = case.initial_state()
        for token in range(case.x.shape[1]):
            with inside, _naming_rows(state):
                row = case.step(token + 1, state)
            if said := write_in_words(kept, "step"):
                return said, None
            if said := row_apart(row, whole[:, token].shape, token + 1):
                return said, None
            for sample in range(len(case.x)):
                known = whole[sample, token]
                place = first_difference(row[sample], known, "forward gives", (token,))
                allowed = 0.0
                if place and inside.found:
                    (set() if noted is None else noted).add(IN_SINGLE)
                    allowed = explained()
                    place = first_difference(row[sample], known, "forward gives", (token,), allowed)
                if place and not blames:
                    return place, None
                if place:
                    own = row[sample]
                    return place, _step_or_forward(case, form, token, sample, own, allowed)
    return "", None


@contextmanager
def _naming_rows(state: Any) -> Iterator[None]:
    """A context in which an error of torch about sizes says where a `State` keeps rows of tokens,
    with the shapes of the rows that the state holds."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(state, State) or "size" not in str(error):
            raise
        rows = (name for name in state.arrays if name not in state.carried)
        held = [
            f"{name} {tuple(state.held(name).shape)}"
            for name in rows
            if state.arrays[name].ndim > 1
        ]
        if not held:
            raise
        raise RuntimeError(
            f"{reason_of(error).rstrip('.')}; axis -2 of an array of a State holds the rows of "
            f"tokens, and here the shapes are {', '.join(held)}"
        ) from error


def _step_or_forward(
    case: ModuleCase, form: str, token: int, sample: int, row: torch.Tensor, allowed: float
) -> Blame:
    """The equation whose values `step` never computes at a token (from 0), where its `row` differs
    from the row of `forward`; a Blame without array if the row agrees with the equations, up to
    the error `allowed`, so that `forward` is wrong."""
    expected = evaluate_all(case.mixer, case.arrays(sample), case.sizes, form)
    known = torch.from_numpy(expected[case.mixer.role("output").name][token])
    if not first_difference(row, known, "the equations give", allowed=allowed):
        return Blame("", "step agrees with the equations, forward differs")
    found = blamed_step(case, form, token, sample)
    return replace(found, words=f"in step, {found.words}")


def dispatched_equals(mixer: Mixer, implementation: Implementation, *, step: bool) -> Proof:
    """Make the proof that `forward` and, if `step`, the step at every token dispatch the operations
    that the equations count under the implementation's description (the form and rewrites that its
    @implementation names). A failure names the rewrites with which the description would agree, or
    what the nearest ones leave."""
    proof = _dispatched_as_described(mixer, implementation, step)
    if proof.passed is not False:
        return proof
    remedy = rewrites_meant(mixer, implementation, step=step) or UNEXPLAINED
    if remedy.startswith(UNEXPLAINED) and not proof.detail.endswith("@implementation"):
        remedy = ""  # the equations are to be corrected, not the description
    return replace(proof, detail=f"{proof.detail}{remedy}")


def _dispatched_as_described(mixer: Mixer, implementation: Implementation, step: bool) -> Proof:
    """Make the proof that `forward` and, if `step`, the step at every token dispatch the operations
    of the description (the form and rewrites in @implementation). The proof stays open (passed
    None), with the reasons, if an operation or the equations cannot be counted."""
    name = f"{implementation.name}: {DISPATCHED}"
    phases = ("training", "inference") if step else ("training",)  # of `forward` and `step`
    left: dict[str, None] = {}  # as keys, the reasons why operations cannot be compared
    noted: dict[str, str] = {}  # phase -> a sentence on its operations on constants
    copied: dict[str, str] = {}  # phase -> a sentence on the tensors that its last call copies
    described = cache(partial(description_of, mixer, implementation))

    @cache
    def executed(phase: str, names: frozenset[str]) -> Mapping[str, Exact]:
        return by_class(executed_counts(mixer, described(phase, names), phase))

    def remedy(meant: Described, phase: str, sizes: Sizes, *, fewer: bool) -> str:
        """Words on what to correct: the equations, if the module does `fewer` operations and the
        equations define entries that nothing reads; else the description."""
        if fewer and (spare := unread_words(mixer.forms[meant.form], sizes)):
            return (
                f"the equations define and count {spare}, which nothing reads: reduce the "
                "equation's range to the entries that are read"
            )
        prefix = "step_" if phase == "inference" else ""
        return (
            f"if intended, describe these operations by {prefix}rewrites= or {prefix}form= of "
            "@implementation"
        )

    def apart(case: ModuleCase) -> str:
        """A sentence on the first call whose dispatched operations differ from those that the
        equations count, with advice; "" if none does, or they are not comparable: `left` then gets
        the reason. A call equal but for operations on constants gives `noted` a sentence."""
        for phase in phases:
            for t, call in dispatched(case, phase):  # t: the token of a step, 0 of `forward`
                left.update((f"no counting rule for {op}", None) for op in call.unknown)
                if left:
                    return ""
                sizes = dict(case.sizes) | {"b": BATCH} | ({"t": t} if t else {})
                names = frozenset(call.by_op)
                try:
                    counted = classes_at(executed(phase, names), sizes)
                except ConventionError as error:
                    return f"the rewrites of its description do not go together: {error}"
                except (Unsupported, Unanswered) as reason:
                    left[f"not counted: {reason}"] = None
                    return ""
                gap, beside = dispatched_gap(classes_of(call), counted)
                more = _on_constants(beside)
                if gap:
                    meant = described(phase, names)
                    advice = remedy(meant, phase, case.sizes, fewer=min(gap.values()) < 0)
                    more = f", without {more}" * bool(more)
                    return f"{_unexplained(meant, phase, t, gap)}{more}; {advice}"
                if more:
                    noted[phase] = (
                        f"beside its description {_call(phase, t)} at {words(case.sizes)} "
                        f"dispatches {more}"
                    )
                if clones := call.by_op.get("aten::clone"):
                    copied[phase] = (
                        f"{_call(phase, t)} at {words(case.sizes)} copies tensors: "
                        f"{clones.calls:,} aten::clone (of clone, contiguous, reshape)"
                    )
        return ""

    done = " and ".join(("forward", "step")[: len(phases)]) + ", every class,"
    proof = prove_cases(name, mixer, implementation, apart, done)
    if left and proof.passed:
        return Proof(name, None, "; ".join(left))
    return _noting(proof, [*noted.values(), *copied.values()])


def _call(phase: str, t: int) -> str:
    """The name of a call: in the phase "inference" the step of token `t` (from 1), else forward."""
    return f"step at token {t}" if phase == "inference" else "forward"


def _on_constants(beside: Classes) -> str:
    """Words on operations on constants of the sizes, by class; "" without any."""
    parts = ", ".join(f"{n:,} {name}" for name, n in beside.items())
    return f"{parts} in {CONSTANTS}" * bool(parts)


def _unexplained(described: Described, phase: str, t: int, gap: Mapping[str, int]) -> str:
    """The words on a call, `forward` or in the phase "inference" the step of token `t`, for each
    operation class in `gap`: it dispatches more operations (above 0) or fewer than described."""
    rewrites = ", ".join(described.rewrites) or "none"
    parts = {
        word: ", ".join(f"{abs(n):,} {name}" for name, n in gap.items() if n * sign > 0)
        for word, sign in (("more", 1), ("fewer", -1))
    }
    apart = " and ".join(f"{operations} {word}" for word, operations in parts.items() if operations)
    return (
        f"{_call(phase, t)} of a batch of {BATCH} dispatches {apart} than its description (form "
        f"'{described.form}', rewrites: {rewrites})"
    )


SAY_ELEMENTS = (
    ", counted in all tensors of the state, since a {} does not tell which entries are in use: if "
    "some are unused, return a profiler.modules.State, or an object with an attribute `elements`, "
    "the number of entries in use for one sequence"
)


def _elements(state: Any) -> int:
    """The number of entries that a state holds for one sequence: the entries in use of a `State`
    by the batch, or the attribute `elements` of another class, which counts one sequence."""
    if isinstance(state, State):
        return sum(tensor.numel() for tensor in state.in_use.values()) // BATCH
    return int(state.elements)


MOST_FEWER = 3
"""The largest number of superfluous rows that `_state_remedy` recognises."""

Mend = Callable[[State], State]
"""Makes the state as it would be after a remedy."""


def _state_remedy(mixer: Mixer, implementation: Implementation, derived: Amount) -> str:
    """The first remedy, in words, with which a `State` would hold as many entries as later tokens
    need (`derived`), after every token at all sizes tried: fewer rows, arrays named in `carried`,
    or the axis of tokens moved. "" if there is none, or the state is no `State`, or its entries
    cannot be counted, as of an array of one axis outside `carried`."""
    # words -> remedy, of those right after every token so far; `<x 1>`: the rows of x less one
    left: Mapping[str, Mend] | None = None
    rows: list[tuple[Sizes, dict[str, int]]] = []  # (sizes, array -> its rows before any token)
    for sizes in module_sizes(mixer):
        found = case(mixer, implementation, sizes)
        state = found.initial_state()
        if not isinstance(state, State) or any(
            array.ndim < 2 for name, array in state.arrays.items() if name not in state.carried
        ):
            return ""
        rows.append((sizes, {n: a.shape[-2] for n, a in state.arrays.items() if a.ndim > 1}))
        left = dict(_remedies(state)) if left is None else left
        for t in range(1, found.x.shape[1] + 1):
            with torch.no_grad():
                found.step(t, state)
            needed = derived.at(**{**sizes, "t": t})
            left = {said: mend for said, mend in left.items() if _elements(mend(state)) == needed}
    said = next(iter(left or ()), "")
    for name in rows[0][1]:
        for k in range(MOST_FEWER + 1):
            said = said.replace(f"<{name} {k}>", _rows_words(rows, name, k))
    return said


def _rows_words(rows: Sequence[tuple[Sizes, Mapping[str, int]]], name: str, fewer: int) -> str:
    """The number of rows of an array less `fewer`, in words: "w - 1", "w" or "w + 1" if the same
    holds at all tried sizes for a size w; else "2 fewer", or "some" for `fewer` 0.

    Args:
        rows: the tried sizes, each with the number of rows of every array.
    """
    for letter in rows[0][0]:
        apart = {held[name] - sizes[letter] - fewer for sizes, held in rows}
        if len(apart) == 1 and (by := apart.pop()):
            return f"{letter} {'+' if by > 0 else '-'} {abs(by)}"
        if not apart:  # the one difference, 0, was taken out above
            return letter
    return f"{fewer} fewer" if fewer else "some"


def _remedies(state: State) -> Iterator[tuple[str, Mend]]:
    """Yield each remedy for a state with the wrong number of entries: in words, where `<x 1>`
    stands for the number of rows of x less one, and as a function: state -> a mended copy."""
    rows = [name for name in state.arrays if name not in state.carried]
    several = [(name,) for name in rows] + [tuple(rows)] * (len(rows) > 1)
    for fewer in range(1, MOST_FEWER + 1):
        for names in several:
            held = " and ".join(f"<{name} 0> rows of {name}" for name in names)
            need = " and ".join(f"<{name} {fewer}>" for name in names)
            yield (
                f"; the State has {held}, the equations need {need}",
                partial(_fewer, names, fewer),
            )
    for names in several:
        yield (
            (
                f"; if each token replaces all of {', '.join(names)}, say "
                f"State(..., carried={names})"
            ),
            partial(_carried, names),
        )
    for axis in range(-1, -min((state.arrays[name].ndim for name in rows), default=0) - 1, -1):
        yield (
            (
                f"; a State expects tokens along the last axis but one, and here tokens seem to "
                f"lie along axis {axis}: store {', '.join(rows)} with that axis moved, or return "
                f"an object with an attribute `elements`"
            ),
            partial(_moved, axis),
        )


def _fewer(names: Sequence[str], fewer: int, state: State) -> State:
    """A copy of the state without the last `fewer` rows (axis -2) of the arrays `names`."""
    shown = {
        name: state.arrays[name].narrow(-2, 0, max(0, state.arrays[name].shape[-2] - fewer))
        for name in names
    }
    return _like(state, shown)


def _carried(names: Sequence[str], state: State) -> State:
    """The state with the arrays `names` in use as a whole."""
    return _like(state, {}, names)


def _moved(axis: int, state: State) -> State:
    """The state with `axis` of its arrays moved to the last but one, the axis of tokens."""
    rows = [name for name in state.arrays if name not in state.carried]
    moved = {name: state.arrays[name].movedim(axis, -2) for name in rows}
    return _like(state, moved)


def _like(state: State, arrays: Mapping[str, torch.Tensor], carried: Sequence[str] = ()) -> State:
    """A plain `State` like this one, which may be of a user's class, with some arrays replaced and
    further ones carried."""
    held, whole = {**state.arrays, **arrays}, (*state.carried, *carried)
    return State(held, state.position, state.newest_first, state.sliding, whole, state.sinks)


def state_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """Make the proof that after every token the state holds as many entries as later tokens need.
    The proof stays open (passed None) if that number is not derived, or if a state that is no
    `State` and has no attribute `elements` holds another number: some entries may be unused."""
    name = f"{implementation.name}: {STATE}"
    try:
        derived = state(mixer, implementation.step_form)
    except (Unsupported, Unanswered) as reason:
        return Proof(name, None, f"not derived: {reason}")
    left: dict[str, None] = {}  # as keys, sentences on states that do not say what is in use

    def apart(case: ModuleCase) -> str:
        """A sentence on the first token after which the state holds another number of elements than
        later tokens need; "" without one, or if the state has no `elements` (`left` gets it)."""
        state = case.initial_state()
        says = hasattr(state, "elements")
        for t in range(1, case.x.shape[1] + 1):
            with torch.no_grad():
                case.step(t, state)
            needed = derived.at(**{**case.sizes, "t": t})
            if says:
                held = _elements(state)
            else:
                held = sum(tensor.numel() for tensor in tensors_held(state)) // BATCH
            if held == needed:
                continue
            read = ", ".join(derived.arrays) or "nothing"
            said = (
                f"after token {t} the state holds {held} elements for one sequence, later tokens "
                f"need {needed} (of {read})"
            )
            if says:
                return said
            left[f"at {words(case.sizes)}: {said}{SAY_ELEMENTS.format(type(state).__name__)}"] = (
                None
            )
            return ""
        return ""

    proof = prove_cases(name, mixer, implementation, apart, "after every token")
    if proof.passed is False:
        remedy = _state_remedy(mixer, implementation, derived)
        return replace(proof, detail=f"{proof.detail}{remedy}")
    return Proof(name, None, next(iter(left))) if left and proof.passed else proof
