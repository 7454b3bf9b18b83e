"""What does an implementation execute, as its description says, counted by the equations?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.language.equations import Mixer
from costmodel.language.functions import CLASSES
from costmodel.program.conventions import PADDINGS, REWRITES
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.count import count
from costmodel.questions.counts import CountsAt
from profiler.counting.operations import Classes
from profiler.modules.registry import Implementation, without_token


@dataclass(frozen=True)
class Described:
    """The equations that an implementation executes in one phase."""

    form: str
    rewrites: tuple[str, ...]
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Array -> kernel class; empty where the description names none."""
    unbound: tuple[str, ...] = ()
    """The parameters whose slices one operation takes."""


OF_AUTOGRAD = ("quotient-gradient", "cases-gradient", "fft-gradient")
"""How torch takes gradients of what is written in operations of its own (derivatives.yaml):
whatever the module, unless a kernel below takes them otherwise."""


OF_KERNELS: Mapping[str, tuple[str, ...]] = {
    "softmax": ("softmax-gradient",),
    "fused-attention": (
        "softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient",
    ),
}  # fmt: skip
"""Kernel class -> how its own backward pass takes the gradient of what it computed; that of fused
attention is Algorithm 2 of Dao 2023, arXiv 2307.08691."""


def gradient_rewrites(kernels: Mapping[str, str], rewrites: Sequence[str]) -> tuple[str, ...]:
    """How the gradients of what these kernels computed are taken, under the rewrites of the
    forward pass: what is dense has zeros in memory."""
    used = set(kernels.values())
    own = [rewrite for kernel in used for rewrite in OF_KERNELS.get(kernel, ())]
    padding = ["padded-rows" if "convolution" in used else "padded"] * ("dense" in rewrites)
    return tuple(name for name in REWRITES if name in (*OF_AUTOGRAD, *own, *padding))


def described(mixer: Mixer, implementation: Implementation, phase: str) -> Described:
    """The description of `forward`, of its backward pass or of `step`."""
    if phase == "inference":
        form, rewrites = implementation.step_form, implementation.step_rewrites
        kernels = implementation.step_kernels
    else:
        form, rewrites = implementation.form, implementation.rewrites
        kernels = implementation.kernels
    if form is None:
        raise ValueError(
            f"{mixer.name} {implementation.name} mixes no new token: "
            f"{without_token(mixer, implementation)}"
        )
    if phase == "inference":  # "dense" widens sums over a whole sequence
        rewrites = tuple(r for r in rewrites if r != "dense")
    if phase in TRAINING_STEP:
        rewrites = (*rewrites, *gradient_rewrites(kernels or {}, rewrites))
    rewrites = tuple(r for r in REWRITES if r in rewrites)
    return Described(form, rewrites, kernels or {}, implementation.unbound)


def classes(counts: CountsAt) -> Classes:
    """Operations per class with the work done once, zero classes kept only where papers have a
    column."""
    found = counts.by_class()
    for name, number in (counts.once.by_class() if counts.once else {}).items():
        found[name] = found.get(name, 0) + number
    return {name: n for name, n in found.items() if n or name in ("mul", "add", "div", "exp")}


def difference(larger: Classes, smaller: Classes) -> Classes:
    """Per class, zeros left out."""
    names = dict.fromkeys([*larger, *smaller])
    return {n: d for n in names if (d := larger.get(n, 0) - smaller.get(n, 0))}


def executed(mixer: Mixer, does: Described, phase: str, sizes: Mapping[str, int]) -> Classes:
    """Rung 2: the equations counted as the implementation is described to execute them."""
    return classes(count(mixer, phase, does.form, ("strict", *does.rewrites)).at(**sizes))


def steps(
    mixer: Mixer, form: str, rewrites: Sequence[str]
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """The switches that lead from the default form to a description: name, meaning, and the form
    and rewrites with which the equations are counted again."""
    if form != mixer.default_form:
        meaning = f"form '{form}' computes the same function by other equations"
        yield f"form={form}", meaning, form, ()
    for k, rewrite in enumerate(rewrites):
        yield rewrite, REWRITES[rewrite], form, tuple(rewrites[: k + 1])


def held_steps(mixer: Mixer, does: Described) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The switches that change what is held; zeros around arrays are measured, as copies."""
    rewrites = [name for name in does.rewrites if name not in PADDINGS]
    return list(steps(mixer, does.form, rewrites))


def dispatched_classes(operations: Mapping[str, Any]) -> Classes:
    """Rung 3 by class, from what the counter of dispatched operations printed."""
    return {k: operations[k] for k in CLASSES} | dict(operations["other"])


def sum_classes(parts: Iterable[Classes]) -> Classes:
    """Per-class sums."""
    total: Classes = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total
