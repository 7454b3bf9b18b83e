"""Does a mixer hold what its author claims? The proofs that the built-in mixers get, on any mixer.

Well formed; causal or not; counts equal instrumented execution; forms agree; module equals
equations; step equals forward. A proof that fails says where: the first equation that differs and
the smallest sizes at which it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.check import Proof, prove, small_sizes
from costmodel.equations import Mixer
from costmodel.rules.evaluate import evaluate_all
from profiler.counters.call import tensors_in
from profiler.meters.interface import reason_of
from profiler.modules import Implementation, Unsupported, build, implementations

if TYPE_CHECKING:
    import numpy as np

    Values = Mapping[str, np.ndarray[Any, Any]]

TOLERANCE = 1e-9
"""Relative to the largest output: sums of some dozen float64 numbers in another order."""


def check(mixer: Mixer) -> list[Proof]:
    """Every proof of a mixer's equations, then of each of its modules."""
    proofs = prove(mixer)
    if not all(proof.passed for proof in proofs):
        return proofs
    try:
        found = implementations(mixer.name)
    except ValueError:
        missing = "no module implements it: describe one with profiler.modules.implementation"
        return [*proofs, Proof("module equals equations", None, missing)]
    for implementation in found.values():
        proofs += [module_equals(mixer, implementation), step_equals(mixer, implementation)]
    return proofs


@dataclass(frozen=True)
class Case:
    """A module in float64 with the equations' arrays at the same weights."""

    mixer: Mixer
    implementation: Implementation
    sizes: Mapping[str, int]
    module: nn.Module
    x: torch.Tensor

    def arrays(self) -> Values:
        """x and the parameters, as the equations name them."""
        named = {name: p.detach().numpy() for name, p in self.module.named_parameters()}
        return named | {self.mixer.role("input").name: self.x[0].numpy()}

    def expected(self) -> Values:
        """Every array of the implementation's form."""
        return evaluate_all(self.mixer, self.arrays(), self.sizes, self.implementation.form)


def cases(mixer: Mixer, implementation: Implementation) -> Iterator[Case]:
    """The module at sizes that grow, one random sequence each."""
    for sizes in small_sizes(mixer):
        module = build(
            implementation, dict(sizes) | {"b": 1}, device="cpu", dtype=torch.float64, seed=1
        ).eval()
        shape = tuple(extent.at(sizes) for extent in mixer.role("input").shape)
        generator = torch.Generator().manual_seed(2)
        x = torch.randn((1, *shape), generator=generator, dtype=torch.float64)
        yield Case(mixer, implementation, sizes, module, x)


def _attempt(
    name: str, mixer: Mixer, implementation: Implementation, compare: Callable[[Case], str]
) -> Proof:
    """The first case in which `compare` has something to say fails the proof."""
    proven = 0
    try:
        for case in cases(mixer, implementation):
            if apart := compare(case):
                return Proof(name, False, f"at {_words(case.sizes)}: {apart}")
            proven += 1
    except (Unsupported, ValueError, TypeError, RuntimeError, AttributeError) as error:
        return Proof(name, False, f"it does not run: {reason_of(error)}")
    return Proof(name, True, f"to {TOLERANCE:g} in float64 at {proven} sets of sizes")


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{letter} = {value}" for letter, value in sizes.items())


def module_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """`forward` gives what the equations give, parameters of the same names and shapes."""
    return _attempt(
        f"{implementation.name}: module equals equations", mixer, implementation, _forward_apart
    )


def _forward_apart(case: Case) -> str:
    declared = {a.name: tuple(e.at(case.sizes) for e in a.shape) for a in case.mixer.parameters}
    held = {name: tuple(p.shape) for name, p in case.module.named_parameters()}
    if held != declared:
        return f"its parameters are {held}, the equations' are {declared}"
    expected = case.expected()
    output = case.mixer.role("output").name
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        found = case.module(case.x)
    place = _first_difference(found[0], torch.from_numpy(expected[output]))
    if not place:
        return ""
    unseen = _first_unseen(case, expected, recorder.seen)
    return f"{place}; {unseen}"


def _first_difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    """The first entry of y that differs beyond rounding, or ""."""
    if found.shape != expected.shape:
        return f"y is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    apart = (found - expected).abs() > TOLERANCE * max(1.0, float(expected.abs().max()))
    apart |= found.isnan()
    if not apart.any():
        return ""
    where = tuple(int(k) for k in apart.nonzero()[0])
    entry = ", ".join(str(k + 1) for k in where)
    return (
        f"y[{entry}] is {float(found[where]):.6g}, the equations give {float(expected[where]):.6g}"
    )


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Keeps every tensor that a call computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen += [t.detach().clone() for t in tensors_in(result) if t.is_floating_point()]
        return result


def _first_unseen(case: Case, expected: Values, seen: list[torch.Tensor]) -> str:
    """Which equation's values the module never computes, in any order of its axes."""
    known = [_sorted(tensor) for tensor in seen]
    matched: list[str] = []
    for equation in case.mixer.forms[case.implementation.form].equations:
        wanted = _sorted(torch.from_numpy(expected[equation.name]))
        if not any(k.shape == wanted.shape and torch.allclose(k, wanted) for k in known):
            before = f"it computes {', '.join(matched)} as the equations do" if matched else ""
            where = f"equation {equation.array.cite} " if equation.array.cite else ""
            first = f"{where}{equation.name} is the first whose values it never computes"
            return "; ".join(filter(None, (before, first)))
        matched.append(equation.name)
    return "it computes every equation's values, and returns others"


def _sorted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().sort().values


def step_equals(mixer: Mixer, implementation: Implementation) -> Proof:
    """`step`, token by token, gives the rows of `forward`."""
    name = f"{implementation.name}: step equals forward"
    if implementation.step_form is None:
        return Proof(name, None, "it has no `step`")
    return _attempt(name, mixer, implementation, _step_apart)


def _step_apart(case: Case) -> str:
    with torch.no_grad():
        whole = case.module(case.x)
        state = case.module.initial_state(1, case.x.shape[1])  # type: ignore[operator]
        for token in range(case.x.shape[1]):
            row = case.module.step(case.x[:, token], state)  # type: ignore[operator]
            if place := _first_difference(row, whole[:, token]):
                return f"token {token + 1} parts from forward: {place}"
    return ""
