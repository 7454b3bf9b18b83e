"""Which equations does an implementation execute, by its description, and with how many operations?

The rungs of a reconciliation (`profiler/reconcile`) are counts of one call: rung 2 the count of the
described equations, rung 3 the operations that torch dispatches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from costmodel.language.equations import Mixer
from costmodel.language.functions import CLASSES
from costmodel.program.conventions import (
    FUSED_ATTENTION,
    OF_GRADIENTS,
    PADDINGS,
    REWRITES,
    convention,
    in_order,
    of_sequences,
)
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.count import counted
from costmodel.questions.counting.counts import Counts
from costmodel.questions.question import BATCH, Answers, answers
from costmodel.symbolic.piecewise import Exact
from profiler.counting.operations import Classes
from profiler.counting.rules import nominal
from profiler.modules.registry import Implementation, without_token

if TYPE_CHECKING:
    from profiler.counting.dispatch import DispatchCounts


@dataclass(frozen=True)
class Described:
    """The equations that an implementation executes in one phase."""

    form: str
    rewrites: tuple[str, ...]
    kernels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Array -> kernel class ("contraction"); empty if the description names no kernel classes."""


OF_AUTOGRAD = ("quotient-gradient", "cases-gradient", "fft-gradient")
"""The rewrites of gradients that every module executes, by autograd's formulas for single
operations (derivatives.yaml)."""


OF_KERNELS: Mapping[str, tuple[str, ...]] = {
    "softmax": ("softmax-gradient",),
    FUSED_ATTENTION: (
        "softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient",
    ),
}  # fmt: skip
"""Kernel class -> the rewrites of gradients that torch's backward operation of the class executes.
For fused attention they are Algorithm 2 of Dao 2023, arXiv 2307.08691."""


OF_OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("rsqrt", "native_layer_norm", "native_group_norm", "_fused_rms_norm"), "norm=rsqrt"
    ),
    "native_layer_norm_backward": "layer-norm-gradient",
    "native_group_norm_backward": "layer-norm-gradient",
    "_fused_rms_norm_backward": "rms-norm-gradient",
    "mean": "mean-gradient",
    "pow": "square-gradient",
    "linalg_vector_norm": "length-gradient",
    "linalg_solve_triangular": "triangle-gradient",
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min"), "comparison-gradient"),
    "threshold_backward": "comparison-gradient",
}
"""Operation of torch, dispatched in a forward or backward pass -> the rewrite that the operation,
or the formula of its gradient (derivatives.yaml), executes."""


def kernel_of(operation: str) -> str:
    """The kernel class ("softmax" or "fused-attention") whose gradients the dispatched operation of
    this name in torch computes; "" for any other operation."""
    if operation == "aten::_softmax_backward_data":
        return "softmax"
    fused = operation.endswith("_backward") and nominal(operation) == "fused attention"
    return FUSED_ATTENTION if fused else ""


def rewrites_of(dispatched: Iterable[str]) -> Iterator[str]:
    """Yield the rewrites (changes of the equations that keep their result) that dispatched
    operations execute, from torch's names, such as `aten::mean`; operations without a rewrite are
    skipped."""
    for name in dispatched:
        operation = name.removeprefix("aten::").removesuffix("_")
        if operation in OF_OPERATIONS:
            yield OF_OPERATIONS[operation]


def gradient_rewrites(used: Collection[str], rewrites: Sequence[str]) -> tuple[str, ...]:
    """The names of the rewrites (changes of the equations) of gradients that a backward pass
    executes, in the order of `REWRITES`: those of autograd, and those of the kernel classes `used`.
    After a "dense" forward pass, which stores the zeros around arrays, gradients of the zeros are
    computed: of all ("padded"), or, by a convolution, of rows of zeros before and after the
    sequence ("padded-rows"); unless `rewrites`, of the forward pass, has one of both already."""
    own = [rewrite for kernel in used for rewrite in OF_KERNELS.get(kernel, ())]
    padding = ["padded-rows" if "convolution" in used else "padded"]
    if "dense" not in rewrites or any(name in PADDINGS for name in rewrites):
        padding = []
    return tuple(name for name in REWRITES if name in (*OF_AUTOGRAD, *own, *padding))


def description_of(
    mixer: Mixer, implementation: Implementation, phase: str, dispatched: Collection[str] = ()
) -> Described:
    """The equations that an implementation executes in a phase: of `step` for inference, else of
    `forward`, with its backward pass in the phases of a training step. Further rewrites follow from
    the kernel classes, and from the operations that the phase dispatched.

    Args:
        dispatched: torch's names of these operations, such as `aten::mean`; () if unknown.

    Raises:
        ValueError: inference, and the implementation has no `step`.
    """
    if phase == "inference":
        form, rewrites = implementation.step_form, implementation.step_rewrites
        kernels = implementation.step_kernels
    else:
        form, rewrites = implementation.form, implementation.rewrites
        kernels = implementation.kernels
    if form is None:
        raise ValueError(
            f"{mixer.name} {implementation.name} cannot compute one new token: "
            f"{without_token(mixer, implementation)}"
        )
    if phase == "inference":
        rewrites = tuple(r for r in rewrites if not of_sequences(r))
    seen = [*rewrites_of(dispatched)]
    if phase in TRAINING_STEP:
        used = {*(kernels or {}).values(), *map(kernel_of, dispatched)}
        rewrites = (*rewrites, *gradient_rewrites(used, rewrites), *seen)
    else:
        rewrites = (*rewrites, *(r for r in seen if r not in OF_GRADIENTS))
    return Described(form, in_order(rewrites), kernels or {})


def by_class(counts: Counts) -> Mapping[str, Exact]:
    """Class -> the number of operations of a count for b sequences, with the work that all
    sequences share (`counts.once`) and the b - 1 additions of each entry that is summed over the
    sequences."""
    own = {name: number * BATCH for name, number in counts.classes.items()}
    shared = counts.once.classes if counts.once else {}
    found = dict.fromkeys(CLASSES, Exact()) | {"add": counts.joined * (BATCH - 1)}
    for name, number in (*own.items(), *shared.items()):
        found[name] = found.get(name, Exact()) + number
    return found


def classes_at(counts: Mapping[str, Exact], sizes: Mapping[str, int]) -> Classes:
    """Class -> the number of operations at sizes, of b sequences. Classes with 0 operations are
    kept if papers have a column for them."""
    found = {name: number.at(sizes) for name, number in counts.items()}
    return {name: n for name, n in found.items() if n or name in CLASSES}


def class_differences(larger: Classes, smaller: Classes) -> Classes:
    """`larger` minus `smaller`, per class; classes with difference 0 are left out."""
    names = dict.fromkeys([*larger, *smaller])
    return {n: d for n in names if (d := larger.get(n, 0) - smaller.get(n, 0))}


def executed_counts(mixer: Mixer, described: Described, phase: str) -> Counts:
    """The counts of the equations in the form and under the rewrites of a description."""
    return answers_about(mixer, described.form, phase, described.rewrites).of(counted)


def answers_about(mixer: Mixer, form: str, phase: str, rewrites: Collection[str] = ()) -> Answers:
    """The answers about a form in a phase under rewrites, which stay in the cache on disk."""
    return answers(mixer, form, phase_name(phase), convention(("strict", *rewrites)))


def executed_classes(
    mixer: Mixer, described: Described, phase: str, sizes: Mapping[str, int]
) -> Classes:
    """Rung 2 of a reconciliation: the operations of a description, by class, at sizes; of one
    sequence where `sizes` lack b."""
    return classes_at(by_class(executed_counts(mixer, described, phase)), {"b": 1, **sizes})


def switches_to(
    mixer: Mixer, form: str, rewrites: Sequence[str]
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield the switches (a change of form, then one rewrite each) that lead from a mixer's default
    form without rewrites to `form` with `rewrites`, as (name of the switch, its meaning, the form,
    the rewrites up to this switch)."""
    if form != mixer.default_form:
        meaning = f"form '{form}' computes the same function by other equations"
        yield f"form={form}", meaning, form, ()
    for k, rewrite in enumerate(rewrites):
        yield rewrite, REWRITES[rewrite], form, tuple(rewrites[: k + 1])


def held_rewrites(described: Described) -> tuple[str, ...]:
    """The rewrites of a description except `PADDINGS`, for the derived number of live bytes: the
    bytes of paddings are measured instead."""
    return tuple(name for name in described.rewrites if name not in PADDINGS)


def dispatched_classes(operations: Mapping[str, Any]) -> Classes:
    """Rung 3 of a reconciliation: dispatched operations by class. `operations` is the JSON form of
    `Operations`, with the other classes under "other"."""
    return {k: operations[k] for k in CLASSES} | dict(operations["other"])


def classes_of(call: DispatchCounts) -> tuple[Classes, Classes]:
    """(the operations that a call dispatches, those of them on constants of the sizes), by
    class."""
    constants = [dispatched_classes(each.to_json()) for each in call.constants.values()]
    return dispatched_classes(call.operations.to_json()), sum_classes(constants)


def dispatched_gap(
    dispatched: tuple[Classes, Classes], counted: Classes
) -> tuple[Classes, Classes]:
    """(gap, constants) by class. `gap`: the dispatched operations less the operations that a
    description counts and less `constants`. `constants`: the dispatched operations on constants of
    the sizes that the description leaves out, all of a class if the gap is smaller without them,
    else none.

    Args:
        dispatched: `classes_of` a call.

    >>> dispatched_gap(({"mul": 6, "compare": 64}, {"mul": 2, "compare": 64}), {"mul": 6})
    ({}, {'compare': 64})
    """
    found, constants = dispatched
    gap = class_differences(found, counted)
    beside = {
        name: n
        for name, n in constants.items()
        if abs(gap.get(name, 0) - n) < abs(gap.get(name, 0))
    }
    return class_differences(gap, beside), beside


def sum_classes(parts: Iterable[Classes]) -> Classes:
    """The sum of several counts, class by class."""
    total: Classes = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total
