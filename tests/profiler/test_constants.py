"""Are operations on constants of the sizes told apart from operations on data?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
from torch import Tensor

import costmodel as cm
from costmodel.language.equations import Mixer
from profiler.counting.dispatch import count_dispatch
from profiler.modules import Implementation, implementations
from profiler.modules.described import classes_of
from profiler.proofs.cases import case
from profiler.proofs.draws import Draw
from profiler.proofs.each_size import EachSize
from profiler.proofs.equality import dispatched_equals, module_equals
from profiler.proofs.trial import Subject
from profiler.reconcile.levels import Ladder
from tests.ladders import reconciled
from tests.user_mixers import written

EQUATIONS = '''"""s[i] = p[i] x[i], y[i] = the sum of D[i, j] s[j] up to i; modules of them."""
import math
import torch
import costmodel as cm
from profiler.modules import implementation

decays = cm.Mixer("decays-by-hand")
l, d = decays.sizes("l d")
x, y = decays.input("x", l, d), decays.output("y", l, d)
p = decays.buffer("p", l, value=lambda i, sizes: i / sizes["l"])
D = decays.buffer("D", l, l, value=lambda i, j, sizes: math.exp(j - i))
for name in ("direct", "bounded"):
    with decays.form(name) as f:
        i, j, a = f.index("i", 1, l), f.index("j", 1, f.index("i", 1, l)), f.index("a", 1, d)
        s, c = f.array("s", l, d), f.array("c", l, d)
        if name == "bounded":
            c[i, a] = cm.minimum(cm.maximum(x[i, a], -9), 9)
        s[i, a] = (c if name == "bounded" else x)[i, a] * p[i]
        y[i, a] = cm.sum_(D[i, j] * s[j, a], over=j)
'''

MODULE = """

@implementation("decays-by-hand", "{name}", rewrites=("dense",){options})
class Class{at}(torch.nn.Module):
    def __init__(self, *, l, dtype=None):
        super().__init__()
        i = torch.arange(l, dtype=dtype)
        self.register_buffer("held_p", (i + 1) / l)
        self.register_buffer("held_D", torch.exp(i - i[:, None]).tril())

    def forward(self, x):
        l, p, D = x.shape[1], self.held_p, self.held_D
        i = torch.arange(l, dtype=x.dtype)
{code}
        return D @ (x * p[:, None])
"""

BESIDE: dict[str, tuple[str, dict[str, int]]] = {
    "buffers of __init__": ("pass", {}),
    "positions": ("p = (i + 1) / l", {"add": 67, "div": 67}),
    "a decay": ("D = torch.exp(i - i[:, None]).tril()", {"add": 67**2, "exp": 67**2}),
    "a mask compared": (
        "D = torch.where(torch.ones(l, l).tril() > 0, D, 0.0)",
        {"compare": 67**2},
    ),
    "a mask filled": ("D = D.masked_fill(torch.ones(l, l).triu(1).bool(), 0)", {"compare": 67**2}),
    "turned by angles": (
        "angle = i * 100.0 ** (-i / l)\n"
        "p = (torch.cos(angle) ** 2 + torch.sin(angle) ** 2) * torch.linspace(1 / l, 1, l)",
        {"mul": 6 * 67, "add": 3 * 67, "div": 67, "pow": 67, "cos": 67, "sin": 67},
    ),
    "of a shape alone": (
        "p = torch.ones_like(x[0, :, 0]).cumsum(0) / x.new_full((l,), l)", {"add": 66, "div": 67},
    ),
    "in place": (
        "p = torch.empty(l, dtype=x.dtype)\n"
        "torch.add(i, 1, out=p)\n"
        "p /= torch.tensor(l, dtype=x.dtype)",
        {"add": 67, "div": 67},
    ),
}  # fmt: skip
"""Modules with the equations' results, and their operations on constants at l = 67, d = 2."""

DATA: dict[str, tuple[str, str]] = {
    "one product more": ("p = (i + 1) / l\nx = x * 1", "2 mul more"),
    "a constant with data": ("x = x * (torch.ones(l, dtype=x.dtype))[:, None]", "2 mul more"),
    "a constant overwritten": (
        "z = torch.zeros(x.shape, dtype=x.dtype)\nz[:] = x\nx = z * 1", "2 mul more",
    ),
    "one entry overwritten": (
        "z = torch.ones(l, dtype=x.dtype)\nz[0] = x[0, 0, 0]\nz * 2", "1 mul more",
    ),
    "of a buffer": ("p = p * 1", "1 mul more"),
}  # fmt: skip
"""Modules that do more operations on data, and how many more at l = 1, d = 1."""

BOUNDED = "x = x.clamp(min=-9, max=9)"

Modules = tuple[str, Mixer, dict[str, Implementation]]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Modules:
    """The path of the mixer with all these modules, the mixer, and the modules by name."""
    path = tmp_path_factory.mktemp("constants") / "decays.py"
    codes = {name: (code, "") for name, (code, _) in (BESIDE | DATA).items()}
    codes |= {"clamps": (BOUNDED, ""), "clamps, told": (BOUNDED, ', form="bounded"')}
    classes = (
        MODULE.format(name=name, options=options, at=at, code=indent(code, 8 * " "))
        for at, (name, (code, options)) in enumerate(codes.items())
    )
    path.write_text(EQUATIONS + "".join(classes), encoding="utf-8")
    mixer = cm.mixer(f"{path}:decays")
    return f"{path}:decays", mixer, implementations(mixer)


@pytest.mark.parametrize("name", BESIDE)
def test_operations_on_constants_lie_beside_the_description(name: str, modules: Modules) -> None:
    _, mixer, found = modules
    assert module_equals(mixer, found[name]).passed
    proof = dispatched_equals(mixer, found[name], step=False)
    beside = BESIDE[name][1]
    said = proof.detail.removeprefix("forward, every class, at 9 sets of sizes")
    parts = ", ".join(f"{n:,} {of}" for of, n in beside.items())
    assert proof.passed and said == bool(beside) * (
        f"; beside its description forward at l = 67, d = 2 dispatches {parts} in operations on "
        "constants of the sizes (as torch.arange makes them; a buffer would hold the results)"
    )
    at = Draw({"l": 5, "d": 3})
    assert EachSize(Subject(mixer, found[name]), counted=True).fault(at) == ""


@pytest.mark.parametrize("name", DATA)
def test_operations_on_data_are_of_the_description(name: str, modules: Modules) -> None:
    _, mixer, found = modules
    proof = dispatched_equals(mixer, found[name], step=False)
    without = name == "one product more"
    assert proof.passed is False
    assert f"forward of a batch of 2 dispatches {DATA[name][1]} than its desc" in proof.detail
    assert (", without 1 add, 1 div in operations on constants of" in proof.detail) == without
    at = Draw({"l": 5, "d": 3})
    assert " mul" in EachSize(Subject(mixer, found[name]), counted=True).fault(at)


def test_a_bound_that_no_value_reaches_is_work_of_another_form(modules: Modules) -> None:
    """The sentence tells how equations write comparisons; a form with them agrees."""
    _, mixer, found = modules
    proof = dispatched_equals(mixer, found["clamps"], step=False)
    assert proof.passed is False and proof.detail.endswith(
        "The results equal the equations': the operations alone differ, and forward at l = 67, "
        "d = 2, b = 2 dispatches 536 compare (in aten::clamp) more. If they are meant, a form with "
        "the same operations (comparisons: cm.maximum, cm.minimum, cm.max_over), named by form=, "
        "explains them"
    )
    assert module_equals(mixer, found["clamps, told"]).passed
    assert dispatched_equals(mixer, found["clamps, told"], step=False).passed


@pytest.mark.parametrize("phase", ["training", "backward", "training-step"])
def test_a_reconciliation_names_them(phase: str, modules: Modules) -> None:
    path, _, found = modules

    def causes(name: str) -> tuple[dict[str, Any], Ladder]:
        made = reconciled(path, found[name], {"l": 5, "d": 3, "b": 2}, phase)
        return {cause.name: cause.counts for cause in made.causes if cause.start == 2}, made

    forward = phase != "backward"
    expected = {"constants": {"add": 5, "div": 5}} if forward else {}
    named, made = causes("positions")
    assert (named, made.unexplained["2-3"]) == (expected, {})
    named, made = causes("one product more")
    assert named == expected
    assert made.unexplained["2-3"] == {"mul": 60 if phase == "training-step" else 30}


def test_a_step_has_constants_of_its_own(tmp_path: Path) -> None:
    change = ("        state.append(", "        torch.arange(3) / 2\n        state.append(")
    mixer = cm.mixer(written(tmp_path, "step-with-a-constant", change))
    proof = dispatched_equals(mixer, *implementations(mixer).values(), step=True)
    assert proof.passed and proof.detail.endswith(
        "; beside its description step at token 67 at l = 67, d = 2, w = 2 dispatches 3 div in "
        "operations on constants of the sizes (as torch.arange makes them; a buffer would hold the "
        "results)"
    )


def of_data(x: Tensor) -> dict[str, Callable[[], Any]]:
    """Calls whose results depend on data, on chance or on gradients."""
    weight = torch.ones(3, requires_grad=True)
    return {
        "random": lambda: torch.rand(3) * 2,
        "random of a shape": lambda: torch.rand_like(x) * 2,
        "random in place": lambda: torch.empty(3).normal_() * 2,
        "dropout": lambda: torch.nn.functional.dropout(torch.ones(3)) * 2,
        "a place": lambda: torch.ones(int(x.argmax()) + 1) * 2,
        "a list of places": lambda: torch.ones(len(x.long().tolist())) * 2,
        "rows chosen": lambda: torch.ones(len(x[x > 0])) * 2,
        "places of entries": lambda: torch.ones(len(x.nonzero())) * 2,
        "written out": lambda: torch.add(torch.ones(3), 1, out=x),
        "gradients": lambda: torch.autograd.backward((weight * 2).sum()),
        "sparse": lambda: x.to_sparse() * 2,
    }


@pytest.mark.parametrize("name", of_data(torch.ones(3)))
def test_what_depends_on_data_is_no_constant(name: str) -> None:
    assert not count_dispatch(of_data(torch.ones(3))[name]).constants


@pytest.fixture
def doubles_like() -> Iterator[Any]:
    """An operator whose name ends as those of torch that read a shape alone."""
    libraries: Any = torch.library  # torch leaves it untyped
    library = libraries.Library("costmodel_test", "FRAGMENT")
    library.define("doubles_like(Tensor x) -> Tensor")
    library.impl("doubles_like", lambda x: x * 2, "CompositeExplicitAutograd")
    yield torch.ops.costmodel_test.doubles_like
    library._destroy()


def test_a_name_of_torch_is_believed_of_torch_alone(doubles_like: Any) -> None:
    x = torch.ones(3)
    assert not count_dispatch(lambda: doubles_like(x) * 2).constants


def test_constants_are_those_of_one_call() -> None:
    """What an earlier call left is a buffer of the next one."""
    made: list[Tensor] = []

    def call() -> None:
        made.append((made[-1] if made else torch.ones(3)) * 2)

    assert [bool(count_dispatch(call).constants) for _ in range(2)] == [True, False]


def test_a_gather_leaves_constants_constant() -> None:
    x = torch.ones(3)

    def call() -> None:
        x[torch.tensor([0, 2])]
        assert bool((torch.arange(3.0) > -1).all())
        torch.arange(3.0) / 2

    found = count_dispatch(call)
    assert classes_of(found)[1] == {"mul": 0, "add": 0, "div": 3, "exp": 0, "compare": 3}


def test_a_built_in_module_has_constants_that_its_equations_count() -> None:
    """Mamba-3's scan starts from constants, and its description counts the products."""
    mixer = cm.mixer("mamba-3")
    scan = implementations(mixer)["scan"]
    made = case(mixer, scan, {"l": 5, "d": 2, "n": 1, "P": 1, "R": 1, "M": 1, "G": 1})
    with torch.no_grad():
        found = count_dispatch(made.counted().forward)
    assert classes_of(found)[1]["mul"] > 0
