"""What is wrong when a module is called in one drawn way: its result, its gradients, its decoded
rows, or its writes into tensors of the caller?

An answer is one of the tensors compared: the result, a gradient, or the rows of decoding. A draw is
one way to call (`draws.py`). An error is allowed up to the slack, which rounding explains, and the
jump, which a discontinuity of the equations explains.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from traceback import walk_tb
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.buffers import last_positions
from costmodel.language.equations import Mixer, System
from costmodel.questions.evaluate import evaluate_all
from costmodel.questions.subject import system_of
from profiler.counting.mode import DispatchMode
from profiler.modules.building import build
from profiler.modules.registry import Implementation, without_token
from profiler.proofs.blame import (
    Blame,
    Other,
    Recorder,
    blame_in_words,
    blamed_step,
    first_unseen,
    sources,
)
from profiler.proofs.cases import (
    TOLERANCE,
    ModuleCase,
    inputs,
    reason_with_kind,
    same,
    unwritten,
    write_in_words,
)
from profiler.proofs.draws import LAYOUTS, VALUES, Draw, evaluated_points
from profiler.proofs.history import EVENTS
from profiler.proofs.rounding import (
    ALLOWED,
    IN_SINGLE,
    NEARLY_DOUBLE,
    SPARE,
    Digits,
    ExactSoftplus,
    SingleInside,
    allowances,
    errors,
)
from profiler.records.words import told_apart

Kind = Literal["result", "gradients", "writes", "step"]
Finding = tuple[Kind, str]
"""A fault: its kind, and a sentence."""
SequenceArrays = Mapping[str, np.ndarray[Any, Any]]
"""Name of an array -> its values, for one sequence."""
Mode = Callable[[], AbstractContextManager[Any]]
"""Makes the context of a call: torch.no_grad, torch.enable_grad or torch.inference_mode."""

STEP = 1e-6
"""The step of a difference quotient. The quotient of 10 * `STEP` is taken too, and the difference
of both estimates their rounding."""
QUOTIENT = 1e-4
"""The allowed error of a difference quotient: curvature contributes about STEP, and rounding about
TOLERANCE/STEP."""


COARSE = 10_000
"""For a module that computes in float32 inside, the step is so many times as large, and the allowed
error, relative to the quotient or 1, as many times as the square root of this number."""

LARGE = 1e150
"""About the square root of the largest number of float64."""

NEARBY, JUMPS = 1e-11, 3
"""The size of the perturbations of inputs that find a jump of the equations, and their number."""

NUMBER_BY_NUMBER = 5000
"""A step is blamed up to this number of points, since the oracle evaluates one after another."""


TORCH_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default type": (torch.get_default_dtype, torch.set_default_dtype),
    "whether torch records gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the number of torch's threads": (torch.get_num_threads, torch.set_num_threads),
}
"""A global setting of torch that a call must not change -> the functions that get and set it."""


class Refused(Exception):
    """A module's class, or torch, refuses the sizes; the message says why."""


def refused_by_torch(error: Exception) -> bool:
    """Whether torch itself raised a ValueError, as `F.group_norm` does for groups of one number."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    place = str(frames[-1].f_globals.get("__name__")) if frames else ""
    return isinstance(error, ValueError) and place.partition(".")[0] == "torch"


@dataclass(frozen=True)
class Subject:
    """A module class, and the equations that it is compared with."""

    mixer: Mixer
    implementation: Implementation
    step_fault: str = ""
    """Why steps are not tried although the module has a step; "" if they are tried."""

    @cached_property
    def convention(self) -> tuple[str, ...]:
        """The rewrites under which the equations are evaluated: their softmax subtracts the maximum
        only if the module's does, so that both overflow at the same inputs."""
        safe = [r for r in self.implementation.rewrites if r == "safe-softmax"]
        return ("strict", *safe)

    @cached_property
    def forward(self) -> System:
        """The equations that `forward` is compared with."""
        return system_of(self.mixer, self.implementation.form, self.convention[1:], "training")

    @cached_property
    def trained(self) -> tuple[tuple[str, ...], System | None]:
        """(rewrites, the equations of forward and backward pass under these rewrites); None in
        place of the equations if gradients cannot be derived. The obstacle may be the gradient of
        the maximum in a safe softmax, so the plain softmax is tried next."""
        form = self.implementation.form
        for convention in dict.fromkeys((self.convention, ("strict",))):
            try:
                return convention, system_of(self.mixer, form, convention[1:], "training-step")
            except (Unsupported, Unanswered):
                continue
        return self.convention, None

    def training(self, draw: Draw, most: int) -> System | None:
        """The equations of forward and backward pass; None if no gradients are derived, or a draw
        evaluates these equations at more than `most` points."""
        system = self.trained[1]
        costs = evaluated_points(system, draw.sizes) * draw.b if system else 0
        return system if costs <= most else None

    @cached_property
    def stepless(self) -> str:
        """Why the module cannot mix one new token, or its steps are not tried; "" if they are."""
        return self.step_fault or without_token(self.mixer, self.implementation)

    @cached_property
    def leaves_of(self) -> dict[str, frozenset[str]]:
        """A dict: array -> the inputs, contexts and parameters on which it depends."""
        given = {a.name for a in self.mixer.arrays.values() if a.role not in ("output", "buffer")}
        reads = sources(self.mixer.forms[self.implementation.form].equations)
        return {name: frozenset(found & given) for name, found in reads.items()}

    @cached_property
    def blames(self) -> dict[tuple[Draw, Any], Blame | None]:
        """Cache of `Trial.blamed`, by draw and way of calling: the reduction of a failure asks for
        the same blames at every step. None for a call that is right."""
        return {}

    @cached_property
    def noted(self) -> set[str]:
        """Clauses on how answers were compared, such as up to float32 rounding."""
        return set()

    def built(self, draw: Draw, dtype: torch.dtype = torch.float64) -> ModuleCase:
        """Build the module and its inputs in the type `dtype` as a draw says (sizes, mode, layout,
        values), carry out the draw's event (`before`), such as a training step, and return both as
        the case to call. Raises Refused: the class refuses the sizes."""
        sizes = dict(draw.sizes) | {"b": draw.b}
        try:
            module = build(self.implementation, sizes, device="cpu", dtype=dtype, seed=1)
        except ValueError as error:
            raise Refused(reason_with_kind(error)) from error
        module.train(draw.train)
        x, beside = inputs(self.mixer, draw.sizes, draw.b)
        x = valued(x, draw.values)
        if x.is_floating_point():
            x = x * draw.scale
        # x is named "" among the further inputs and contexts, such as an encoder's rows
        given = {"": x} | {name: valued(value, draw.values) for name, value in beside.items()}
        beside = {name: laid(_cast(value, dtype), draw.layout) for name, value in given.items()}
        case = ModuleCase(self.mixer, draw.sizes, module, beside.pop(""), beside)
        return EVENTS[draw.before](self.implementation, case) if draw.before else case

    def moved(self, draw: Draw, case: ModuleCase) -> str:
        """Whether the event before the call (`draw.before`) changed a parameter: a sentence on the
        first parameter of the case with other values than in a fresh module of the same seed; ""
        if none has. The parameter gets the fresh module's values."""
        if not draw.before:
            return ""
        sizes = dict(draw.sizes) | {"b": draw.b}
        module = build(self.implementation, sizes, device="cpu", dtype=torch.float64, seed=1)
        now = dict(case.module.named_parameters())
        with torch.no_grad():
            kept = {
                f"the parameter {name}": (now[name], parameter)
                for name, parameter in module.named_parameters()
                if name in now
            }
            return write_in_words(kept, "the module", "changes")


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def valued(values: Tensor, kind: str) -> Tensor:
    """Turn normal numbers or positions (b, rows, ...) into numbers of one kind of `VALUES`
    ("negative", "zeros", ...). A kind that would make positions invalid ("negative", "with one
    large entry") leaves them as they are."""
    middle = values.shape[1] // 2
    made = values.clone()
    if kind == "negative" and values.is_floating_point():
        made = -made.abs()
    elif kind == "positive":
        made = made.abs()
    elif kind == "rectified":
        made = made.clamp(min=0)
    elif kind == "with a row of zeros":
        made[:, middle] = 0
    elif kind == "zeros from the middle on":
        made[:, middle:] = 0
    elif kind == "zeros":
        made.zero_()
    elif kind == "of equal rows":  # the least position is within the bounds of all rows
        made[:] = values[:, :1] if values.is_floating_point() else values.amin(1, keepdim=True)
    elif kind == "of equal channels":
        made[:] = values[..., :1] if values.is_floating_point() else values.amin(-1, keepdim=True)
    elif kind == "with one large entry" and values.is_floating_point():
        made[:, middle].view(len(values), -1)[:, 0] *= 1000
    return made


def laid(values: Tensor, layout: str) -> Tensor:
    """The values (b, rows, ...) themselves for the first of `LAYOUTS`, else a copy in that layout
    of memory: axes reversed in memory, every second entry of the last axis, or part of a tensor
    with three rows more."""
    if layout == LAYOUTS[1]:
        room = values.new_empty(*reversed(values.shape))
        view = room.permute(*reversed(range(room.ndim)))
    elif layout == LAYOUTS[2]:
        view = values.new_empty(*values.shape[:-1], 2 * values.shape[-1])[..., ::2]
    elif layout == LAYOUTS[3]:
        view = values.new_empty(values.shape[0], values.shape[1] + 3, *values.shape[2:])[:, 2:-1]
    else:
        return values
    return view.copy_(values)


class Trial:
    """A module called in one drawn way, and the arrays of its equations for the same inputs.

    `case` is the module with its inputs, `output` the name of its result; `expected(sample)` gives
    array -> values by the equations, for one sequence, counted from 0; `gradient` (b, l, ...) is
    that of a loss with respect to the result."""

    def __init__(self, subject: Subject, draw: Draw, most: int) -> None:
        """Build the module of a draw, and draw `gradient`. `most`: the most points at which the
        equations of gradients are evaluated; beyond, gradients are compared with difference
        quotients. `before`: the tensors that calls must not change, with copies."""
        self.subject, self.draw = subject, draw
        self.case = subject.built(draw)
        # a sentence if the event before the call changed a parameter, else ""
        self.moved = subject.moved(draw, self.case)
        arrays = [self.case.arrays(sample) for sample in range(draw.b)]
        self.arrays: list[SequenceArrays] = [
            {name: np.array(v) for name, v in a.items()} for a in arrays
        ]
        chance = torch.Generator().manual_seed(5)
        shape = (draw.b, *(e.at(draw.sizes) for e in subject.mixer.role("output").shape))
        gradient = torch.randn(shape, generator=chance, dtype=torch.float64)
        if draw.values == "of equal rows":  # one number in memory, as in the gradient of a sum
            self.gradient = gradient.flatten()[0].expand(shape)
        else:
            self.gradient = laid(gradient, draw.layout)
        self.before = unwritten(self.case, gradient=self.gradient)
        self.settings = self._settings()
        self.training = subject.training(draw, most)
        self.expected = cache(self._expected)
        self.single: dict[str, float] = {}
        """Answer -> its error that rounding to float32 explains, of a module that computes in it
        inside."""
        self.coarse = 1
        """`COARSE` for difference quotients of a module that computes in float32 inside."""

    def _settings(self) -> dict[str, Any]:
        """A dict: name -> value of the settings that a call must not change: torch's, the mode of
        every module, and whether a parameter requires and has a gradient."""
        found = {name: of_now() for name, (of_now, _) in TORCH_SETTINGS.items()}
        for name, module in self.case.module.named_modules():
            found[f"the mode (train or not) of {name or 'the module'}"] = module.training
        for name, parameter in self.case.module.named_parameters():
            found[f"requires_grad of {name}"] = parameter.requires_grad
            found[f"whether {name} has a gradient"] = parameter.grad is not None
        return found

    def _expected(self, sample: int) -> SequenceArrays:
        """Every array of the equations for one sequence, given or computed (`_evaluated`)."""
        return self._evaluated(self.arrays[sample], sample)

    def _evaluated(self, arrays: SequenceArrays, sample: int) -> SequenceArrays:
        """A dict: name -> values of the given `arrays` and of those computed from them: in a
        forward pass and, if `training`, a backward pass from sequence `sample` of `gradient`."""
        form, sizes = self.subject.implementation.form, self.draw.sizes
        if self.training is None:
            return evaluate_all(self.subject.mixer, arrays, sizes, form, self.subject.convention)
        arrays = {**arrays, self.training.given.name: self.gradient[sample].numpy()}
        convention = self.subject.trained[0]
        return evaluate_all(self.subject.mixer, arrays, sizes, form, convention, "training-step")

    @property
    def output(self) -> str:
        """The name of the output."""
        return self.subject.mixer.role("output").name

    def findings(self) -> Iterator[Finding]:
        """Yield (kind, sentence) for what differs from the equations, and for tensors or settings
        that were changed, as the module is called without gradients, with gradients and in
        inference mode; the first wrong result ends the trial. An error of the call with gradients
        is a finding on the gradients, but for a ValueError of torch's own, which is raised."""
        if self.moved:
            yield "result", self.moved
            return
        with torch.no_grad(), DispatchMode():  # outside of a mode torch would compile torch.cond
            first = self.case.forward()
        yield from self.written("forward")
        if said := self.result_apart(first):
            yield "result", said
            return
        kept = first.clone()
        try:
            found = answers(self.case, self.gradient)
        except Exception as error:  # a module of a user's own may raise anything
            if refused_by_torch(error):
                raise
            found = {}
            yield "gradients", f"the module fails: {reason_with_kind(error)}"
        if found and (said := self.result_apart(found[self.output], torch.enable_grad)):
            yield "result", f"with gradients recorded, {said}"
            return
        with torch.inference_mode():
            unrecorded = self.case.forward()
        if said := self.result_apart(unrecorded, torch.inference_mode):
            yield "result", f"in inference mode, {said}"
            return
        if found and (said := self.gradients_apart(found)):
            yield "gradients", said
        if not same(first, kept):
            yield "writes", "a later call writes into the result of an earlier call"
        yield from self.written("the backward pass")

    def written(self, who: str) -> Iterator[Finding]:
        """Yield the finding on the first setting that a call changed or, if none, the first tensor
        of the caller that it changed; nothing if neither. The tensor, or a setting of torch, is
        restored. `who` is the subject of the sentence: "forward"."""
        for name, value in self._settings().items():
            if (before := self.settings.get(name, value)) != value:
                yield "writes", f"{who} changes {name} from {before} to {value}"
                if name in TORCH_SETTINGS:
                    TORCH_SETTINGS[name][1](before)
                return
        if said := write_in_words(self.before, who):
            yield "writes", said

    def result_apart(self, y: Any, mode: Mode = torch.no_grad) -> str:
        """Words on a result y of another type or shape than `gradient`, or on its first entry that
        differs from the equations, with the equation whose values the module never computes in a
        further call in `mode`, the context of the call that gave y; "" if none differs."""
        if not isinstance(y, Tensor):
            return f"forward returns {type(y).__name__}, expected a tensor"
        if y.shape != self.gradient.shape:
            return f"forward returns {tuple(y.shape)}, expected {tuple(self.gradient.shape)}"
        for sample in range(self.draw.b):
            expected = self.expected(sample)
            said = self.apart(y[sample].detach(), expected[self.output], self.output, self.output)
            if said:
                of = f" in sequence {sample + 1} of {self.draw.b}" if self.draw.b > 1 else ""
                own = self.blame(mode, sample)
                return f"{said}{of}{self.blamed(mode, own, lambda trial: trial.wrong(mode))}"
        return ""

    def wrong(self, mode: Mode) -> Blame | None:
        """The equation whose values the module never computes in the first sequence whose result
        differs, in a call in this mode (with gradients, without, ...); None if none differs."""
        with mode():
            y = (
                requiring_gradients(self.case) if mode is torch.enable_grad else self.case
            ).forward()
        for sample in range(self.draw.b):
            known = self.expected(sample)[self.output]
            if self.apart(y[sample].detach(), known, self.output, self.output):
                return self.blame(mode, sample)
        return None

    def blame(self, mode: Mode, sample: int) -> Blame:
        """The first equation, as a `Blame`, whose values for sequence `sample` (from 0) never occur
        among the tensors that a call in this mode (with or without gradients) computes."""
        recorder = Recorder(self.draw.b, sample)
        with mode(), recorder:
            (requiring_gradients(self.case) if mode is torch.enable_grad else self.case).forward()
        form = self.subject.implementation.form
        other = Other(self.case, form, sample)
        return first_unseen(self.subject.mixer, form, self.expected(sample), recorder, other)

    def blamed(self, way: Any, own: Blame, wrong: Callable[[Any], Blame | None]) -> str:
        """Words on the equation whose values a failing module never computes; taken at larger
        sizes, if there are any, at which fewer arrays hold equal numbers.

        Args:
            way: the way of calling (a mode, or "step"), a key of the cache `Subject.blames`.
            own: the missed equation at this draw's sizes.
            wrong: that of a trial at other sizes; None if its call is right.
        """
        known, sizes = self.subject.blames, self.draw.sizes

        def blame_at(wide: Mapping[str, int]) -> Blame | None:
            """The equation whose values the module never computes at sizes `wide`; None if the call
            is right there or fails."""
            if wide == sizes:
                return own
            draw = replace(self.draw, sizes=wide)
            if (draw, way) not in known:
                known[draw, way] = None  # kept if `wrong` raises: an error blames no array
                known[draw, way] = wrong(type(self)(self.subject, draw, 0))
            return known[draw, way]

        return blame_in_words(self.subject.mixer, sizes, blame_at)

    def apart(self, found: Tensor, expected: np.ndarray[Any, Any], name: str, answer: str) -> str:
        """A sentence on the first entry of `found` (from the module) that differs from `expected`
        (from the equations) beyond rounding, or on different shapes; "" if none differs. Entries
        for which the equations give no finite value are not compared. `name` ("y[2]", a decoded
        row) begins the sentence; `answer` ("y", "step", ...) selects the estimate of rounding."""
        if found.shape != expected.shape:
            return f"{name} is {tuple(found.shape)}, the equations' is {expected.shape}"
        known = torch.from_numpy(np.asarray(expected, np.float64))
        finite = known.isfinite()
        off = torch.where(finite, (found.double() - known).abs().nan_to_num(torch.inf), 0.0)
        scale = max(1.0, float(known[finite].abs().max()) if finite.any() else 0.0)
        wrong = off > TOLERANCE * scale
        if wrong.any() and (allowed := self.allowed(answer, off[wrong])):
            wrong = off > TOLERANCE * scale + allowed
        if not wrong.any():
            return ""
        where = tuple(int(k) for k in wrong.nonzero()[0])
        entry = ", ".join(str(k + 1) for k in where)
        both = told_apart(float(found[where]), "the equations give", float(known[where]))
        return f"{name}[{entry}] is {both}"

    def allowed(self, answer: str, off: Tensor) -> float:
        """The error of an answer that rounding, or a tie broken in another way, explains; 0 if an
        entry of `off`, the errors to explain, is not finite."""
        return self.slack(answer) + self.jump(answer) if off.isfinite().all() else 0.0

    def jump(self, answer: str) -> float:
        """The largest error of an answer ("y", "step", "the gradient of x") that a discontinuity of
        the equations explains, such as a tie between maxima, at which equal or zero inputs may lie:
        `ALLOWED` times the largest change of the equations' answer under small perturbations of the
        inputs, times the number of sequences. Absolute; 0.0 for normal inputs."""
        if self.draw.values == VALUES[0]:
            return 0.0
        # positions and other indices (`below` is their bound) stay
        given = {array.name for array in self.case.given() if array.below is None}
        chance, jump = np.random.default_rng(11), 0.0
        for sample in range(self.draw.b):
            known = self.expected(sample)
            for _ in range(JUMPS):
                near = {
                    name: values + NEARBY * chance.standard_normal(values.shape)
                    for name, values in self.arrays[sample].items()
                    if name in given
                }
                found = self._evaluated({**self.arrays[sample], **near}, sample)
                name = self.array_of(answer)
                if name in known:
                    with np.errstate(invalid="ignore"):
                        off = np.abs(found[name] - known[name])
                    jump = max(jump, float(off[np.isfinite(off)].max(initial=0.0)))
        return ALLOWED * jump * self.draw.b  # a parameter's gradient adds up those of sequences

    def array_of(self, answer: str) -> str:
        """The name of the equations' array that holds an answer (the result, a gradient, or the
        decoded rows): the output for the result and the rows; "" for a gradient without an
        array."""
        if not answer.startswith(GRADIENT):
            return self.output
        return self.gradients.get(answer.removeprefix(GRADIENT), "")

    @cached_property
    def gradients(self) -> dict[str, str]:
        """A dict: name of an array -> name of the array that holds its gradient."""
        backward = self.training.backward if self.training else ()
        return {e.array.gradient_of.name: e.name for e in backward if e.array.gradient_of}

    def slack(self, answer: str) -> float:
        """The largest error of an entry that rounding explains, in an answer (a result, gradient or
        decoded rows) at these inputs. Of a module that computes in float32 inside, the error of
        float32; else an estimate by runs in fewer digits, plus the distance to the answer with an
        exact softplus, which torch's approximates. The error is absolute."""
        if answer in self.single:
            return self.single[answer]
        case = self.subject.built(self.draw)
        tokens = self.draw.sizes["l"] if answer == "step" else 0

        def answer_all() -> dict[str, Tensor]:
            """The answers, from the same random numbers in every run: a difference between two runs
            is rounding's, and not that of a module that draws noise."""
            torch.default_generator.manual_seed(0)
            return answers(case, self.gradient, tokens)

        with torch.random.fork_rng(devices=[]):
            with SingleInside() as inside:
                exact = answer_all()
            if inside.found:
                self.subject.noted.add(IN_SINGLE)
                found = allowances(answer_all, exact, Digits.of(torch.float32))
                self.single |= {name: float(sizes[0]) for name, sizes in found.items()}
                return self.single[answer]
            with sdpa_kernel(SDPBackend.MATH):  # so that each step of attention is rounded
                allowed = allowances(answer_all, exact, NEARLY_DOUBLE)[answer][0]
            # a fused kernel computes the weights again from rounded logarithms of sums, exp(S - L)
            fused = allowances(answer_all, exact, NEARLY_DOUBLE)[answer][0]
            case = self.subject.built(self.draw)  # its first call, as that of `exact` was
            with ExactSoftplus() as softplus:
                closer = answer_all()[answer]
        approximated = errors(closer, exact[answer]).abs().max() if closer.numel() else 0.0
        if not softplus.used:  # calls that differ without a softplus are no approximation
            approximated = 0.0
        return float(torch.maximum(allowed, fused)) * 2.0**-SPARE + float(approximated)

    def gradients_apart(self, found: Mapping[str, Tensor]) -> str:
        """A sentence on the first entry of a gradient that differs from the equations, with the
        arrays whose gradients differ and those whose gradients agree; "" if none differs. Without
        equations of gradients, gradients are compared with difference quotients of the module's
        result. `found`: the module's answers by name, of which those named "the gradient of x" (an
        input: (b, l, ...), a parameter: its shape, summed over sequences) are compared."""
        if self.training is None:
            return self.quotients_apart(found)
        names = self.gradients
        given = {array.name for array in self.case.given()}
        said: dict[str, str] = {}  # array with a wrong gradient -> sentence
        right = []  # arrays whose gradients agree
        for answer, tensor in found.items():
            name = answer.removeprefix(GRADIENT)
            if name == answer:
                continue
            each = [self.expected(sample).get(names.get(name, "")) for sample in range(self.draw.b)]
            # an input's gradient has a batch axis, which the equations' arrays lack; a gradient
            # without an array is 0
            known = [np.zeros(tensor.shape[name in given :]) if e is None else e for e in each]
            with np.errstate(invalid="ignore"):  # inf - inf may occur
                total = np.stack(known) if name in given else np.sum(known, axis=0)
            if self.beyond_squares:  # squares overflow, which another formula of a quotient avoids
                tensor = torch.where(tensor.isfinite(), tensor, torch.from_numpy(total))
            if apart := self.apart(tensor, total, answer, answer):
                said[name] = apart
            else:
                right.append(name)
        return self._differing_words(said, right)

    @cached_property
    def beyond_squares(self) -> bool:
        """Whether the square of some number of the equations over- or underflows in float64: the
        gradient of a quotient may then be finite by one formula and not by another."""
        numbers = [np.abs(v) for k in range(self.draw.b) for v in self.expected(k).values()]
        return any(((v > LARGE) | ((v > 0) & (v < 1 / LARGE))).any() for v in numbers)

    def _differing_words(self, said: Mapping[str, str], right: list[str]) -> str:
        """Words on the first wrong gradient, on which gradients differ and agree, and on the arrays
        that depend on exactly the inputs and parameters whose gradients differ: such an array may
        pass its gradient on wrongly. "" if no gradient differs.

        Args:
            said: array -> the entry of its gradient that differs, in words.
            right: the arrays whose gradients agree.
        """
        if not said:
            return ""
        wrong = frozenset(said)
        through = [
            name
            for name, leaves in self.subject.leaves_of.items()
            if leaves == wrong and len(leaves) > 1 and name != self.output
        ]
        # a parameter's gradient before that of an input
        parts = [said[min(said, key=lambda name: name in {a.name for a in self.case.given()})]]
        parts += [f"the gradients of {', '.join(said)} differ"] * (len(said) > 1)
        parts += [f"the gradients of {', '.join(right)} agree"] * bool(right)
        cause = f"a wrong gradient of {' or '.join(through)} would explain the differences"
        parts += [cause] * bool(through)
        return "; ".join(parts)

    def quotients_apart(self, found: Mapping[str, Tensor]) -> str:
        """Words on the first gradient whose slope along a random direction differs from the
        difference quotient of the module's own result; "" if none does, or quotients do not show
        gradients at this draw. All gradients are tested together first."""
        if not self.draw.smooth:
            return ""
        with torch.no_grad(), SingleInside() as inside:
            self.case.forward()
        self.coarse = COARSE if inside.found else 1
        tensors = {answer: t for answer, t in leaves(self.case).items() if t.is_floating_point()}
        if not self._slope_words(tensors, found):
            return ""
        for answer, tensor in tensors.items():
            if said := self._slope_words({answer: tensor}, found):
                return f"{answer}, along a random direction, is {said}"
        return ""

    def _slope_words(self, along: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
        """Words on the slope by the gradients and the difference quotient of the result, if they
        differ along each of three random directions, since one may cross a kink; "" if they agree
        along one. A direction moves all tensors of `along`; `found` holds their gradients."""
        said = ""
        for seed in range(3):
            chance = torch.Generator().manual_seed(seed)
            ways = {
                answer: torch.randn(t.shape, generator=chance, dtype=t.dtype)
                / max(1, t.numel()) ** 0.5
                for answer, t in along.items()
            }
            near, far = (
                self._quotient(along, ways, step)
                for step in (self.coarse * STEP, 10 * self.coarse * STEP)
            )
            slope = sum(float((found[answer] * way).sum()) for answer, way in ways.items())
            rounding = abs(near - far)  # the quotient of the larger step has a tenth of it
            near_enough = QUOTIENT * self.coarse**0.5 * max(1.0, abs(far))
            if abs(far - slope) <= near_enough + rounding:
                return ""
            said = told_apart(slope, "its difference quotient", far)
        return said

    def _quotient(
        self, along: Mapping[str, Tensor], ways: Mapping[str, Tensor], step: float
    ) -> float:
        """The central difference quotient (F(x + step v) - F(x - step v)) / (2 step) of F, the sum
        of result * gradient over all entries. x: the tensors `along` (answer -> tensor), which are
        restored; v: the directions `ways` (answer -> tensor of the same shape)."""
        own = {answer: along[answer].detach().clone() for answer in ways}
        ends = []
        with torch.no_grad():
            for sign in (step, -step):
                for answer, way in ways.items():
                    along[answer].copy_(own[answer] + sign * way)
                ends.append(self.case.forward())
            for answer, values in own.items():
                along[answer].copy_(values)
        return float(((ends[0] - ends[1]) * self.gradient).sum()) / (2 * step)


GRADIENT = "the gradient of "


def leaves(case: ModuleCase) -> dict[str, Tensor]:
    """A dict of the tensors whose gradients are taken, by the names of the answers ("the gradient
    of x"): inputs and contexts if the case asks for them, and parameters that require gradients."""
    given = {f"{GRADIENT}{a.name}": t for a, t in case.given().items() if t.is_floating_point()}
    given = given if case.asks else {}
    named = case.module.named_parameters()
    return given | {
        f"{GRADIENT}{n}": p for n, p in named if p.requires_grad and p.is_floating_point()
    }


def requiring_gradients(case: ModuleCase) -> ModuleCase:
    """The same case with detached inputs, which require gradients if the case asks for them."""
    given = [t.detach() for t in case.call]
    given = [t.requires_grad_() if case.asks and t.is_floating_point() else t for t in given]
    return replace(case, x=given[0], beside=dict(zip(case.beside, given[1:], strict=True)))


def answers(case: ModuleCase, gradient: Tensor, tokens: int = 0) -> dict[str, Tensor]:
    """Call a module, and return its answers by name: the result (b, l, ...), the gradients of
    sum(result * gradient), and as "step" the decoded rows of the first `tokens` tokens, if any. A
    tensor on which the result does not depend has the gradient 0."""
    asked = requiring_gradients(case)
    wanted = leaves(asked)
    with torch.enable_grad():
        y = asked.forward()
    slopes: tuple[Tensor | None, ...] = (None,) * len(wanted)
    if y.requires_grad:
        slopes = torch.autograd.grad(
            y, list(wanted.values()), gradient.to(y.dtype), allow_unused=True
        )
    found = {case.mixer.role("output").name: y.detach()}
    for (name, tensor), slope in zip(wanted.items(), slopes, strict=True):
        found[name] = torch.zeros_like(tensor) if slope is None else slope.detach()
    if tokens:
        found["step"] = decoded(case, tokens)
    return found


def decoded(case: ModuleCase, tokens: int) -> Tensor:
    """The rows (batch, tokens, ...) of the first tokens, decoded one by one."""
    with torch.no_grad():
        state = case.initial_state()
        rows = [case.step(t, state) for t in range(1, tokens + 1)]
    return torch.stack(rows, dim=1)


def other_rows(case: ModuleCase) -> Tensor:
    """Other rows for the input (batch, l, ...) of a case: its batch in reverse order, negated; each
    token number is replaced by the next, the largest by the first, as the batch may be one sequence
    and no number may exceed the bound of its entry."""
    rows, array = case.x.flip(0), case.mixer.role("input")
    if rows.is_floating_point():
        return -rows
    return (rows + 1) % torch.from_numpy(last_positions(array, case.sizes)).clamp(min=1)


OF_ANOTHER = ", in a step of another sequence"
OF_A_COPY = ", in a step of a copied state"
"""Which step gave a wrong row, in words; a step of the sequence itself is not named."""


KEEPS_APART = (
    "; decoding the sequence alone succeeds, so that forward, or steps of another sequence or of a "
    "copied state, change what later steps read: step must keep all that later steps need in the "
    "state that it is given, none of it in the module, and a copied state must share no tensor"
)
"""The likely cause of an error or a wrong row that steps give only beside other steps."""


class Decoding(Trial):
    """Decodes a sequence, with steps of another sequence and of a copied state in between, which
    must not influence each other. The copied state goes on with rows of the other sequence, as a
    beam search does: a row that two states share is then wrong in one of them."""

    def findings(self) -> Iterator[Finding]:
        """Yield, after decoding, (kind, sentence) for tensors, settings or earlier rows that steps
        changed, and for the first wrong row (`_wrong_row`). A row of a wrong shape is the only
        finding. The other sequence is `other_rows`; the copy holds l // 2 rows of this sequence,
        and goes on with the other's."""
        case, l = self.case, self.draw.sizes["l"]
        x = case.x
        swapped = other_rows(case)
        other = ModuleCase(case.mixer, case.sizes, case.module, swapped, case.beside)
        parted = replace(other, x=torch.cat([x[:, : l // 2], swapped[:, l // 2 :]], dim=1))
        # words that follow a sentence -> decoded rows: of this sequence, of the other, of the copy
        rows: dict[str, list[Tensor]] = {"": [], OF_ANOTHER: [], OF_A_COPY: []}
        kept: list[tuple[Tensor, Tensor]] = []  # (row as returned, its copy) of this sequence
        with torch.no_grad():
            state, second = case.initial_state(), other.initial_state()
            twin = None
            # every third step one of the other sequence; from l // 2 on, up to three of the copy
            for t in range(1, l + 1):
                row = case.step(t, state)
                if said := row_apart(row, self.gradient[:, 0].shape, t):  # gradient: (b, l, ...)
                    yield "step", said
                    return
                kept.append((row, row.clone()))
                if t % 3 == 0:
                    rows[OF_ANOTHER].append(other.step(t // 3, second).clone())
                if twin is not None and len(rows[OF_A_COPY]) < 3:
                    at = len(rows[OF_A_COPY]) + l // 2 + 1
                    rows[OF_A_COPY].append(parted.step(at, twin).clone())
                if t == l // 2:
                    twin = copied_state(state)
                    case.forward()  # must not influence the steps either
        yield from self.written("step")
        if not all(same(row, copied) for row, copied in kept):
            yield "writes", "a later step writes into the row that an earlier step returned"
        rows[""] = [copied for _, copied in kept]
        yield from self._wrong_row(rows, {"": case, OF_ANOTHER: other, OF_A_COPY: parted})

    def _wrong_row(
        self, rows: Mapping[str, list[Tensor]], cases: Mapping[str, ModuleCase]
    ) -> Iterator[Finding]:
        """Yield a finding on the first of the decoded `rows` that differs from the equations (rows
        of the other sequence and of the copy: and from `forward` of their `cases`), if any. The
        sentence ends with `KEEPS_APART` if decoding that sequence alone gives the right row, else,
        of this sequence, with the blame. The keys are words on a sequence, "" for this one."""
        with torch.no_grad():
            wholes = {of: one.forward() for of, one in cases.items() if of and rows[of]}
        # k: the number of a row's token, from 0; the copied state's first row is that of l // 2
        for of, found in rows.items():
            begins = self.draw.sizes["l"] // 2 if of == OF_A_COPY else 0
            for k, row in enumerate(found, start=begins):
                for sample in range(self.draw.b):
                    if of:
                        known = wholes[of][sample, k].detach().numpy()
                    else:
                        known = self.expected(sample)[self.output][k]
                    place = f"{self.output}[{k + 1}]"
                    said = self.apart(row[sample], known, place, "step")
                    if said and of:  # forward may be wrong in place of step
                        known = self._of_another(cases[of], sample)[k]
                        said = self.apart(row[sample], known, place, "step")
                    if said:
                        inside = f" in sequence {sample + 1} of {self.draw.b}" * (self.draw.b > 1)
                        alone = decoded(cases[of], k + 1)[sample, k]
                        right_alone = not self.apart(alone, known, place, "step")
                        blamed = "" if right_alone or of else self._step_blamed(k, sample)
                        yield "step", f"{said}{of}{inside}{KEEPS_APART * right_alone}{blamed}"
                        return

    def cause(self) -> str:
        """The likely cause of an error that `findings` raised in another trial of the same draw
        (`KEEPS_APART`); "" if the steps of one sequence alone raise an error too."""
        try:
            decoded(self.case, self.draw.sizes["l"])
        except Exception:  # a module of a user's own may raise anything
            return ""
        return KEEPS_APART

    def _of_another(self, other: ModuleCase, sample: int) -> np.ndarray[Any, Any]:
        """The equations' result (l, ...) for one sequence of a case with other inputs."""
        subject, arrays = self.subject, other.arrays(sample)
        form, sizes = subject.implementation.form, self.draw.sizes
        found = evaluate_all(subject.mixer, arrays, sizes, form, subject.convention)
        return found[self.output]

    def _step_blamed(self, token: int, sample: int) -> str:
        """Words on the first equation whose entries of this token a step never computes."""
        own = self._step_blame(token, sample)
        return self.blamed("step", own, lambda trial: trial.wrong_step())

    def wrong_step(self) -> Blame | None:
        """Decode, and find the equation whose values the step never computes at the first token
        whose decoded row differs from the equations; None if no row differs."""
        rows = decoded(self.case, self.draw.sizes["l"])
        for token in range(rows.shape[1]):
            for sample in range(self.draw.b):
                known = self.expected(sample)[self.output][token]
                if self.apart(rows[sample, token], known, self.output, "step"):
                    return self._step_blame(token, sample)
        return None

    def _step_blame(self, token: int, sample: int) -> Blame:
        """Find the first equation whose values the step of a token (from 0) never computes; a Blame
        without words if the equations have too many points to be evaluated number by number."""
        points = evaluated_points(self.subject.forward, self.draw.sizes, row_points=0)
        if points > NUMBER_BY_NUMBER:
            return Blame("", "")
        form = self.subject.implementation.step_form or ""
        found = blamed_step(self.case, form, token, sample)
        return replace(found, words=f"in step, {found.words}")


def row_apart(row: Any, wanted: torch.Size, token: int) -> str:
    """A sentence if the step of a token (from 1) returned no tensor of shape `wanted`; else ""."""
    if not isinstance(row, Tensor):
        return (
            f"step returns a {type(row).__name__} at token {token}, expected a tensor "
            f"{tuple(wanted)}: step returns the row alone and updates its state in place"
        )
    if row.shape != wanted:
        return f"step returns {tuple(row.shape)} at token {token}, expected {tuple(wanted)}"
    return ""


def copied_state(state: Any) -> Any:
    """A deep copy of a state; None if copying raises an error."""
    try:
        return copy.deepcopy(state)
    except Exception:  # a user's state may hold objects that refuse: no copy is compared then
        return None
