"""Losses, as equations that extend those of a forward pass.

A loss is a small system in the language of the mixers: its input x is the output of the mixer, a
target is given, and its output y is one number per sequence. Gradients start from that number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache

from costmodel.errors import Unanswered
from costmodel.language.equations import Equation, Form, Mixer, System
from costmodel.language.nodes import Array, Constant, Node, derived, reading
from costmodel.language.writing import exp, function, max_over, sum_
from costmodel.program.lowering import lower
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import identifier

Shape = tuple[Poly, ...]

SMOOTHING = Fraction(1, 10)
"""The part of the target that label smoothing spreads; the value changes no count."""


def _empty_mixer(title: str, shape: Shape) -> Mixer:
    """A mixer without equations, whose sizes are the letters of the shape."""
    m = Mixer("loss", title=title, group="part of a network")
    m.sizes(" ".join(sorted(frozenset().union(*(extent.letters for extent in shape)))))
    return m


@cache
def squared_error(shape: Shape) -> Mixer:
    """The loss as a mixer: y (1,) is the mean of the squared differences between x and a target,
    both of the given shape."""
    m = _empty_mixer("Mean squared error", shape)
    x, target, y = m.input("x", *shape), m.input("target", *shape), m.output("y", 1)
    entries = Poly.of(1)
    for extent in shape:
        entries = entries * extent
    with m.form("direct") as f:
        names = ("i", "b", *(f"b{k}" for k in range(2, len(shape))))
        at = tuple(f.index(name, 1, top) for name, top in zip(names, shape, strict=False))
        difference = f.array("difference", *shape)
        difference[at] = x[at] - target[at]
        y[1] = sum_(difference[at] * difference[at], over=at) / entries
    return m


@cache
def cross_entropy(shape: Shape, smoothed: bool = False) -> Mixer:
    """The loss as a mixer: y (1,) is the cross-entropy of scores x (l, u) and a target class (1 to
    u) per row, `target` (l,), which is minus the mean over rows of the target's log-softmax.

    `shape` is (l, u). Form `plain` takes exponentials of the scores as they are, `stable` subtracts
    each row's maximum first. `smoothed`: a tenth of the target is spread over the classes (label
    smoothing, Szegedy et al. 2015, arXiv 1512.00567, section 7): factors 9/10 and 1/(10*u).
    """
    m = _empty_mixer("Cross-entropy of scores", shape)
    l, u = shape
    x, y, target = m.input("x", l, u), m.output("y", 1), m.input("target", l, below=u)
    for name in ("plain", "stable"):
        with m.form(name) as f:
            i, c = f.index("i", 1, l), f.index("c", 1, u)
            scores = x
            if name == "stable":
                largest, scores = f.array("largest", l, cancels=True), f.array("scores", l, u)
                largest[i] = max_over(x[i, c], over=c)
                scores[i, c] = x[i, c] - largest[i]
            powers, total = f.array("powers", l, u), f.array("total", l)
            log_total, log_shares = f.array("log_total", l), f.array("log_shares", l, u)
            powers[i, c] = exp(scores[i, c])
            total[i] = sum_(powers[i, c], over=c)
            log_total[i] = function("log", total[i])
            log_shares[i, c] = scores[i, c] - log_total[i]
            row: Node = log_shares[i, target[i]]
            if smoothed:
                kept, spread = Constant(Poly.of(1 - SMOOTHING)), Constant(Poly.of(SMOOTHING) / u)
                row = kept * row + spread * sum_(log_shares[i, c], over=c)
            y[1] = -sum_(row, over=i) / l
    return m


@dataclass(frozen=True)
class Loss:
    """A loss for outputs with any number of axes, or with exactly `axes`."""

    of: Callable[[Shape], Mixer]
    """Shape of the output -> the equations of the loss."""
    axes: int | None = None
    forms_under: Mapping[str, str] = field(default_factory=dict)
    """Rewrite -> the form that it selects in place of the first form."""

    def written(self, shape: Shape, rewrites: tuple[str, ...]) -> System:
        """The equations of the loss for an output of a shape, under some rewrites."""
        mixer = self.of(shape)
        asked = [self.forms_under[r] for r in rewrites if r in self.forms_under]
        return lower(mixer.forms[(*asked, mixer.default_form)[0]], rewrites)


FORMS_OF_SCORES: Mapping[str, str] = {"safe-softmax": "stable"}
"""Rewrite -> the form of `cross_entropy` that it selects."""

BY_NAME: Mapping[str, Loss] = {
    "squared-error": Loss(squared_error),
    "cross-entropy": Loss(cross_entropy, axes=2, forms_under=FORMS_OF_SCORES),
}
"""Name of a loss, as in conventions -> the loss."""


LOSS = "loss"
SYMBOL = r"\mathcal{L}"
"""The `how` of the origin of a loss's arrays, and the LaTeX symbol of a loss."""


@cache
def with_loss(system: System, name: str, rewrites: tuple[str, ...]) -> System:
    """The equations of a forward pass with output y, followed by those of the loss `name` under the
    rewrites, on a copy of the mixer. y becomes an intermediate array, and the output is `y.loss`,
    of shape (1,). The target `y.target` becomes a context of the mixer (given for each sequence)
    without a gradient (`fixed`).

    Raises:
        Unanswered: the output has another number of axes than the loss.
    """
    loss, output = BY_NAME[name], system.mixer.role("output")
    if loss.axes not in (None, len(output.shape)):
        others = [x for x, other in BY_NAME.items() if other.axes in (None, len(output.shape))]
        raise Unanswered(
            f"loss {name} needs an output with {loss.axes} axes, and {output.name} of "
            f"{system.mixer.name} has {len(output.shape)}: expected loss {' or '.join(others)}"
        )
    written = loss.written(output.shape, rewrites)
    mixer: Mixer = copy.copy(system.mixer)
    scored = replace(output, role="intermediate", owner=mixer)
    instead = {output: scored}  # array of the forward pass -> the array in its place
    for array in system.defining:
        if array.origin and array.origin.of is output:
            instead[array] = replace(array, origin=replace(array.origin, of=scored))
    named = _arrays_after(written, scored, mixer)  # array of the loss -> the array in its place
    ends = (a for old, a in named.items() if old.role != "intermediate" and a is not scored)
    added = {a.name: a for a in ends}
    kept = {n: a for n, a in mixer.arrays.items() if a is not output}
    mixer.arrays = {**kept, **added}
    form = mixer.forms[system.form]
    mixer.forms = {form.name: Form(mixer, form.name, form.indices, form.arrays, form.equations)}
    whole = mixer.role("output")
    equations = (
        *(_with_arrays(e, instead) for e in system.equations),
        *(replace(_with_arrays(e, named), whole=whole) for e in written.equations),
    )
    targets = frozenset(a for a in added.values() if a.role == "context")
    return replace(system, mixer=mixer, equations=equations, fixed=targets)


def _arrays_after(loss: System, output: Array, owner: Mixer) -> dict[Array, Array]:
    """Array of a loss -> the array of mixer `owner` that stands for it behind the output y: the
    input is y itself, the target `y.target` (a context), an intermediate array `y.loss.NAME`, the
    result `y.loss`."""
    latex = output.latex or identifier(output.name)
    found = {loss.mixer.role("input"): output}
    for array in (*loss.mixer.arrays.values(), *loss.defining):
        of, shape = output, array.shape
        if array.role == "intermediate":
            part = array.name.replace("_", ",")
            named = derived(of, LOSS, f"loss.{array.name}", shape=shape, owner=owner, cite="",
                            cancels=array.cancels,
                            latex=rf"{SYMBOL}^{{[\mathrm{{{part}}}]}}")  # fmt: skip
        elif array.role == "input":
            named = derived(of, LOSS, array.name, role="context", shape=shape, owner=owner, cite="",
                            below=array.below, latex=rf"{{{latex}}}^{{\ast}}")  # fmt: skip
        else:
            named = derived(of, LOSS, "loss", role=array.role, shape=shape, owner=owner, cite="",
                            latex=SYMBOL)  # fmt: skip
        found.setdefault(array, named)
    return found


def _with_arrays(equation: Equation, others: Mapping[Array, Array]) -> Equation:
    """The equation with arrays replaced by those of `others`, on both sides; other arrays stay."""
    array = others.get(equation.array, equation.array)
    whole = others.get(equation.whole, equation.whole)
    return replace(equation, array=array, value=reading(equation.value, others), whole=whole)
