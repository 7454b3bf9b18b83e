"""What does one way to call a module show: result, gradients, one token after another, and what is
written where it must not be?"""

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
from costmodel.language.equations import Mixer, System
from costmodel.questions.evaluate import evaluate_all
from costmodel.questions.subject import system_of
from profiler.counting.mode import DispatchMode
from profiler.modules.registry import Implementation, build
from profiler.proofs.blame import Recorder, first_unseen, sources, values_of_token
from profiler.proofs.cases import TOLERANCE, ModuleCase, inputs, reason_with_kind
from profiler.proofs.draws import LAYOUTS, VALUES, Draw, evaluated_points
from profiler.proofs.history import BEFORE
from profiler.proofs.rounding import ALLOWED, NEARLY_DOUBLE, SPARE, allowances

Kind = Literal["result", "gradients", "writes", "step"]
Finding = tuple[Kind, str]
Grown = Mapping[str, np.ndarray[Any, Any]]
Mode = Callable[[], AbstractContextManager[Any]]

STEP = 1e-6
"""By which arrays change in a difference quotient: half of the digits of float64."""
QUOTIENT = 1e-4
"""By how much a quotient of such differences may be off: its curvature is of the order of STEP and
its rounding of TOLERANCE/STEP."""


LARGE = 1e150
"""About the root of the largest number of float64."""

NEARBY, JUMPS = 1e-11, 3
"""By how much numbers change where a jump is looked for, and how often."""

NUMBER_BY_NUMBER = 5000
"""How many points the oracle runs through, one by one, to say where a step differs."""


TORCH_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default type": (torch.get_default_dtype, torch.set_default_dtype),
    "whether torch records gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the number of torch's threads": (torch.get_num_threads, torch.set_num_threads),
}
"""What a call leaves as it is -> how torch tells it and sets it."""


class Refused(Exception):
    """Sizes that a module's class refuses to be built with, or torch; the message says why."""


def refused_by_torch(error: Exception) -> bool:
    """Whether a function of torch says that it does not take such sizes, as `F.group_norm` in
    groups of one number."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    place = str(frames[-1].f_globals.get("__name__")) if frames else ""
    return isinstance(error, ValueError) and place.partition(".")[0] == "torch"


@dataclass(frozen=True)
class Subject:
    """A module class, and the equations that it is held against."""

    mixer: Mixer
    implementation: Implementation

    @cached_property
    def convention(self) -> tuple[str, ...]:
        """How the equations are evaluated: a softmax overflows only where the module's does."""
        safe = [r for r in self.implementation.rewrites if r == "safe-softmax"]
        return ("strict", *safe)

    @cached_property
    def forward(self) -> System:
        """The equations that `forward` is held against."""
        return system_of(self.mixer, self.implementation.form, self.convention[1:], "training")

    @cached_property
    def trained(self) -> tuple[tuple[str, ...], System | None]:
        """How the equations of the gradients are evaluated, with those of `forward`, and they; None
        where they are not derived. That of a maximum may not be where others are."""
        form = self.implementation.form
        for convention in dict.fromkeys((self.convention, ("strict",))):
            try:
                return convention, system_of(self.mixer, form, convention[1:], "training-step")
            except (Unsupported, Unanswered):
                continue
        return self.convention, None

    @cached_property
    def leaves_of(self) -> dict[str, frozenset[str]]:
        """Array -> the inputs, contexts and parameters that it is computed from."""
        given = {a.name for a in self.mixer.arrays.values() if a.role not in ("output", "buffer")}
        reads = sources(self.mixer.forms[self.implementation.form].equations)
        return {name: frozenset(found & given) for name, found in reads.items()}

    def built(self, draw: Draw, dtype: torch.dtype = torch.float64) -> ModuleCase:
        """The module and its inputs, after what happens before the call."""
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
        given = {"": x} | {name: valued(value, draw.values) for name, value in beside.items()}
        beside = {name: laid(_cast(value, dtype), draw.layout) for name, value in given.items()}
        case = ModuleCase(self.mixer, draw.sizes, module, beside.pop(""), beside)
        return BEFORE[draw.before](self.implementation, case) if draw.before else case


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def valued(values: Tensor, kind: str) -> Tensor:
    """Numbers (b, rows, ...) of one of `VALUES` made of normal ones; positions stay positions."""
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
    elif kind == "of equal rows":  # the least position is within the bound of every one
        made[:] = values[:, :1] if values.is_floating_point() else values.amin(1, keepdim=True)
    elif kind == "of equal channels":
        made[:] = values[..., :1] if values.is_floating_point() else values.amin(-1, keepdim=True)
    elif kind == "with one large entry" and values.is_floating_point():
        made[:, middle].view(len(values), -1)[:, 0] *= 1000
    return made


def laid(values: Tensor, layout: str) -> Tensor:
    """The same values in another layout."""
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
    """A module called in one way, beside what the equations give."""

    def __init__(self, subject: Subject, draw: Draw, most: int) -> None:
        """`most`: at how many points the equations of the gradients are evaluated at most; beyond,
        gradients are held against difference quotients."""
        self.subject, self.draw = subject, draw
        self.case = subject.built(draw)
        arrays = [self.case.arrays(sample) for sample in range(draw.b)]
        self.arrays: list[Grown] = [{name: np.array(v) for name, v in a.items()} for a in arrays]
        chance = torch.Generator().manual_seed(5)
        shape = (draw.b, *(e.at(draw.sizes) for e in subject.mixer.role("output").shape))
        gradient = torch.randn(shape, generator=chance, dtype=torch.float64)
        if draw.values == "of equal rows":  # as the gradient of a sum, one number in memory
            self.gradient = gradient.flatten()[0].expand(shape)
        else:
            self.gradient = laid(gradient, draw.layout)
        self.before, self.settings = self._held(), self._settings()
        training = subject.trained[1]
        costs = evaluated_points(training, draw.sizes) * draw.b if training else 0
        self.training = training if costs <= most else None
        self.expected = cache(self._expected)

    def _held(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What is the caller's, by name, with a copy: what the module is called with, its
        parameters, the buffers of the equations."""
        module, mixer = self.case.module, self.subject.mixer
        named = {f"its caller's {a.name}": t for a, t in self.case.given().items()}
        named["its caller's gradient"] = self.gradient
        named |= {f"the parameter {name}": p for name, p in module.named_parameters()}
        buffers = {array.name for array in mixer.buffers}
        named |= {f"the buffer {n}": b for n, b in module.named_buffers() if n in buffers}
        return {name: (tensor.detach(), tensor.detach().clone()) for name, tensor in named.items()}

    def _settings(self) -> dict[str, Any]:
        """What a call leaves as it is beside numbers."""
        found = {name: of_now() for name, (of_now, _) in TORCH_SETTINGS.items()}
        for name, module in self.case.module.named_modules():
            found[f"the mode (train or not) of {name or 'the module'}"] = module.training
        for name, parameter in self.case.module.named_parameters():
            found[f"requires_grad of {name}"] = parameter.requires_grad
            found[f"whether {name} has a gradient"] = parameter.grad is not None
        return found

    def _expected(self, sample: int) -> Grown:
        """Every array of the equations for one sequence, gradients too where they are compared."""
        return self._evaluated(self.arrays[sample], sample)

    def _evaluated(self, arrays: Grown, sample: int) -> Grown:
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
        """What is wrong, in words."""
        with torch.no_grad(), DispatchMode():
            first = self.case.forward()
        yield from self.written("forward")
        if said := self.result_apart(first):
            yield "result", said
            return
        kept = first.clone()
        found = answers(self.case, self.gradient)
        if said := self.result_apart(found[self.output], torch.enable_grad):
            yield "result", f"with gradients recorded, {said}"
            return
        with torch.inference_mode():
            unrecorded = self.case.forward()
        if said := self.result_apart(unrecorded, torch.inference_mode):
            yield "result", f"in inference mode, {said}"
            return
        if said := self.gradients_apart(found):
            yield "gradients", said
        if not same(first, kept):
            yield "writes", "a later call writes into the result of an earlier one"
        yield from self.written("the backward pass")

    def written(self, who: str) -> Iterator[Finding]:
        """What of the caller's was written since the beginning; its values are put back."""
        for name, value in self._settings().items():
            if (before := self.settings.get(name, value)) != value:
                yield "writes", f"{who} changes {name} from {before} to {value}"
                if name in TORCH_SETTINGS:
                    TORCH_SETTINGS[name][1](before)
                return
        for name, (tensor, copied) in self.before.items():
            if not same(tensor, copied):
                found = tensor.clone()
                tensor.copy_(copied)
                where = tuple(int(k) for k in (found != copied).nonzero()[0])
                entry = f"[{', '.join(str(k + 1) for k in where)}]" if where else ""
                yield (
                    "writes",
                    f"{who} writes into {name}: {name.split()[-1]}{entry} was "
                    f"{float(copied[where]):.6g} and is {float(found[where]):.6g}",
                )
                return

    def result_apart(self, y: Any, mode: Mode = torch.no_grad) -> str:
        """Where a result differs from the equations', and by which equation; "" if nowhere. `mode`
        is what the call ran in."""
        if not isinstance(y, Tensor):
            return f"forward returns {type(y).__name__}, expected a tensor"
        if y.shape != self.gradient.shape:
            return f"forward returns {tuple(y.shape)}, expected {tuple(self.gradient.shape)}"
        for sample in range(self.draw.b):
            expected = self.expected(sample)
            said = self.apart(y[sample].detach(), expected[self.output], self.output, self.output)
            if said:
                of = f" in sequence {sample + 1} of {self.draw.b}" if self.draw.b > 1 else ""
                return f"{said}{of}; {self.blamed(expected, mode)}"
        return ""

    def blamed(self, expected: Grown, mode: Mode) -> str:
        """From which equation on a call in this mode differs."""
        recorder, case = Recorder(), self.case
        with mode(), recorder:
            case = recorded(case) if mode is torch.enable_grad else case
            case.forward()
        form = self.subject.implementation.form
        return first_unseen(self.subject.mixer, form, expected, recorder.has)

    def apart(self, found: Tensor, expected: np.ndarray[Any, Any], name: str, answer: str) -> str:
        """The first entry that differs beyond rounding, in words; an entry that the equations leave
        without a finite value may be anything."""
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
        return (
            f"{name}[{entry}] is {float(found[where]):.6g}, the equations give "
            f"{float(known[where]):.6g}"
        )

    def allowed(self, answer: str, off: Tensor) -> float:
        """By how much an answer may be off: by rounding, and by a tie that is broken in another
        way; by nothing where the module alone has no number."""
        return self.slack(answer) + self.jump(answer) if off.isfinite().all() else 0.0

    def jump(self, answer: str) -> float:
        """By how much an answer of the equations jumps at these numbers: by how much it changes
        where they change a little. Numbers that are equal or 0 may lie at a kink or a tie."""
        if self.draw.values == VALUES[0]:
            return 0.0
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
        return ALLOWED * jump * self.draw.b

    def array_of(self, answer: str) -> str:
        """The array of the equations that holds an answer; "" where none does."""
        if not answer.startswith(GRADIENT):
            return self.output
        return self.gradients.get(answer.removeprefix(GRADIENT), "")

    @cached_property
    def gradients(self) -> dict[str, str]:
        """Array -> the array of the equations that is its gradient."""
        backward = self.training.backward if self.training else ()
        return {e.array.gradient_of.name: e.name for e in backward if e.array.gradient_of}

    def slack(self, answer: str) -> float:
        """The error of an answer by rounding at these inputs, however ill their condition is."""
        case = self.subject.built(self.draw)
        tokens = self.draw.sizes["l"] if answer == "step" else 0
        exact = answers(case, self.gradient, tokens)
        with sdpa_kernel(SDPBackend.MATH):  # the steps of attention, which a kernel hides
            again = allowances(lambda: answers(case, self.gradient, tokens), exact, NEARLY_DOUBLE)
        return again[answer] * 2.0**-SPARE

    def gradients_apart(self, found: Mapping[str, Tensor]) -> str:
        """Where the module's gradients differ from the equations', and in which arrays alone."""
        if self.training is None:
            return self.quotients_apart(found)
        names = self.gradients
        given = {array.name for array in self.case.given()}
        said: dict[str, str] = {}
        right = []
        for answer, tensor in found.items():
            name = answer.removeprefix(GRADIENT)
            if name == answer:
                continue
            each = [self.expected(sample).get(names.get(name, "")) for sample in range(self.draw.b)]
            known = [np.zeros(tensor.shape[name in given :]) if e is None else e for e in each]
            with np.errstate(invalid="ignore"):  # an infinite number may meet its negative
                total = np.stack(known) if name in given else np.sum(known, axis=0)
            if self.beyond_squares:
                tensor = torch.where(tensor.isfinite(), tensor, torch.from_numpy(total))
            if apart := self.apart(tensor, total, answer, answer):
                said[name] = apart
            else:
                right.append(name)
        return self._through(said, right)

    @cached_property
    def beyond_squares(self) -> bool:
        """Whether a square of a number of the equations leaves float64's range: a gradient of a
        quotient may then be finite by one formula alone."""
        numbers = [np.abs(v) for k in range(self.draw.b) for v in self.expected(k).values()]
        return any(((v > LARGE) | ((v > 0) & (v < 1 / LARGE))).any() for v in numbers)

    def _through(self, said: Mapping[str, str], right: list[str]) -> str:
        """What differs, and the arrays of which all that differs are made."""
        if not said:
            return ""
        wrong = frozenset(said)
        through = [
            name
            for name, leaves in self.subject.leaves_of.items()
            if leaves == wrong and len(leaves) > 1 and name != self.output
        ]
        parts = [said[min(said, key=lambda name: name in {a.name for a in self.case.given()})]]
        parts += [f"those of {', '.join(said)} differ"] * (len(said) > 1)
        parts += [f"those of {', '.join(right)} are right"] * bool(right)
        parts += [f"they differ as if {' or '.join(through)} passed on another one"] * bool(through)
        return "; ".join(parts)

    def quotients_apart(self, found: Mapping[str, Tensor]) -> str:
        """Where the slopes along random directions differ from difference quotients of the
        module's own result."""
        if self.draw.scale > 1 or self.draw.values != VALUES[0]:  # far numbers, and kinks
            return ""
        tensors = {answer: t for answer, t in leaves(self.case).items() if t.is_floating_point()}
        if not self._slopes_differ(tensors, found):
            return ""
        for answer, tensor in tensors.items():
            if said := self._slopes_differ({answer: tensor}, found):
                return f"{answer} along a direction is {said}"
        return ""

    def _slopes_differ(self, along: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
        """The slope and the quotient where they differ in each of three directions: one of them
        may cross a kink or a choice."""
        said = ""
        for seed in range(3):
            chance = torch.Generator().manual_seed(seed)
            ways = {
                answer: torch.randn(t.shape, generator=chance, dtype=t.dtype)
                / max(1, t.numel()) ** 0.5
                for answer, t in along.items()
            }
            near, far = (self._quotient(along, ways, step) for step in (STEP, 10 * STEP))
            slope = sum(float((found[answer] * way).sum()) for answer, way in ways.items())
            rounding = abs(near - far)  # a tenth of it is left in the second quotient
            if abs(far - slope) <= QUOTIENT * max(1.0, abs(far)) + rounding:
                return ""
            said = f"{slope:.6g}, by differences {far:.6g}"
        return said

    def _quotient(
        self, along: Mapping[str, Tensor], ways: Mapping[str, Tensor], step: float
    ) -> float:
        """The difference quotient of the result, weighed by its gradient, along these ways."""
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
    """What is asked a gradient of, by the name of its answer."""
    given = {f"{GRADIENT}{a.name}": t for a, t in case.given().items() if t.is_floating_point()}
    given = given if case.asks else {}
    named = case.module.named_parameters()
    return given | {
        f"{GRADIENT}{n}": p for n, p in named if p.requires_grad and p.is_floating_point()
    }


def recorded(case: ModuleCase) -> ModuleCase:
    """The same call, whose inputs ask for gradients."""
    given = [t.detach() for t in case.call]
    given = [t.requires_grad_() if case.asks and t.is_floating_point() else t for t in given]
    return replace(case, x=given[0], beside=dict(zip(case.beside, given[1:], strict=True)))


def answers(case: ModuleCase, gradient: Tensor, tokens: int = 0) -> dict[str, Tensor]:
    """The result, the gradients, and the rows of so many tokens one after another, by name."""
    asked = recorded(case)
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
    """The rows of the first tokens, one after another."""
    with torch.no_grad():
        state = case.initial_state()
        rows = [case.step(t, state) for t in range(1, tokens + 1)]
    return torch.stack(rows, dim=1)


def same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors hold the same values, those that are not numbers too."""
    return bool(((one == two) | ((one != one) & (two != two))).all())


def largest(values: Tensor) -> float:
    """The largest absolute entry."""
    return float(values.abs().max()) if values.numel() else 0.0


class Decoding(Trial):
    """One token after another, with another sequence's state in between."""

    def findings(self) -> Iterator[Finding]:
        """What is wrong, in words."""
        case, l = self.case, self.draw.sizes["l"]
        x = case.x
        swapped = -x.flip(0) if x.is_floating_point() else x.flip(0)
        other = ModuleCase(case.mixer, case.sizes, case.module, swapped, case.beside)
        rows: dict[str, list[Tensor]] = {
            "": [],
            " of another sequence": [],
            " of a copied state": [],
        }
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            state, second = case.initial_state(), other.initial_state()
            twin = None
            for t in range(1, l + 1):
                row = case.step(t, state)
                if said := row_apart(row, self.gradient[:, 0].shape, t):
                    yield "step", said
                    return
                kept.append((row, row.clone()))
                if t % 3 == 0:
                    rows[" of another sequence"].append(other.step(t // 3, second).clone())
                if twin is not None and len(rows[" of a copied state"]) < 3:
                    at = len(rows[" of a copied state"]) + l // 2 + 1
                    rows[" of a copied state"].append(case.step(at, twin).clone())
                if t == l // 2:
                    twin = copied_state(state)
                    case.forward()
        yield from self.written("step")
        if not all(same(row, copied) for row, copied in kept):
            yield "writes", "a later step writes into the row that an earlier one returned"
        rows[""] = [copied for _, copied in kept]
        with torch.no_grad():
            beside = other.forward()
        for of, found in rows.items():
            begins = l // 2 if "copied" in of else 0
            for k, row in enumerate(found):
                for sample in range(self.draw.b):
                    known = self.expected(sample)[self.output][begins + k]
                    if "another" in of:
                        known = beside[sample, k].numpy()
                    place = f"{self.output}[{begins + k + 1}]"
                    if said := self.apart(row[sample], known, place, "step"):
                        inside = f" in sequence {sample + 1} of {self.draw.b}" * (self.draw.b > 1)
                        yield (
                            "step",
                            f"{said}{of}{inside}{self._step_blamed(of, begins + k, sample)}",
                        )
                        return

    def _step_blamed(self, of: str, token: int, sample: int) -> str:
        """From which equation on a step differs, by the entries of arrays of this token alone; ""
        where the equations are not run number by number in a moment."""
        system = self.subject.forward
        if of or evaluated_points(system, self.draw.sizes, row_points=0) > NUMBER_BY_NUMBER:
            return ""
        with torch.no_grad():
            state = self.case.initial_state()
            for t in range(1, token + 1):
                self.case.step(t, state)
            recorder = Recorder()
            with recorder:
                self.case.step(token + 1, state)
        form = self.subject.implementation.step_form or ""
        values = values_of_token(
            self.subject.mixer, form, self.arrays[sample], self.draw.sizes, token + 1
        )
        return f"; in step, {first_unseen(self.subject.mixer, form, values, recorder.has)}"


def row_apart(row: Any, wanted: torch.Size, token: int) -> str:
    """That a step returns something else than a row of this shape; "" if a row."""
    if not isinstance(row, Tensor):
        return (
            f"step returns a {type(row).__name__} at token {token}, expected a tensor "
            f"{tuple(wanted)}: what a state holds is replaced in place"
        )
    if row.shape != wanted:
        return f"step returns {tuple(row.shape)} at token {token}, expected {tuple(wanted)}"
    return ""


def copied_state(state: Any) -> Any:
    """A copy of a state that shares nothing; None where a state refuses to be copied."""
    try:
        return copy.deepcopy(state)
    except Exception:  # a state of a user's own may hold what cannot be copied: no copy is compared
        return None
