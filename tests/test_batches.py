"""Does a batch cost as much as executing several sequences with shared weights?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import cycle

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.adjoint.reverse import adjoint
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import derive
from costmodel.language.equations import JOINED, SEQUENCE
from costmodel.mixers import builtin
from costmodel.oracle.execute import random_arrays, run
from costmodel.program.conventions import LOSSES
from costmodel.program.losses import with_loss
from costmodel.questions import count as counting
from costmodel.questions.counting.counts import with_once as classes
from costmodel.questions.subject import system_of
from tests import batches, small

SIZES = (
    {"l": 3, "d": 4, "n": 2, "b": 2},
    {"l": 1, "d": 2, "n": 1, "w": 3, "C": 3, "b": 3},
    {"l": 5, "d": 4, "n": 2, "k": 3, "C": 2, "b": 3},
)


def complete(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a mixer has, and the batch."""
    known = {k: v for k, v in sizes.items() if k in ("l", "b", *mixer.letters)}
    return small.complete(mixer, known)


def apart(mixer: Mixer, form: str, sizes: Mapping[str, int], loss: str = "") -> list[str]:
    """Every question about a batch that the rules answer otherwise than its execution does.

    Args:
        loss: one that each sequence has; then the phases with gradients alone are asked for.
    """
    one = system_of(mixer, form, (), "training")
    forward = batches.Batch(with_loss(one, loss, ()) if loss else one).system
    step = adjoint(forward)
    names = f"strict,loss={loss}" if loss else "strict"
    given = step.mixer.arrays[f"{step.mixer.role('output').name}.grad"]
    phases = (
        ("training", forward, ()),
        ("backward", step, step.forward.equations),
        ("training-step", step, ()),
    )
    found = []
    for phase, system, ready in phases[bool(loss) :]:
        done = run(system, sizes, ready=ready)
        counts = cm.count(mixer, phase, form, names).at(**sizes)
        asked = [
            ("counts", classes(counts), batches.operations(done)),
            (
                "compulsory traffic",
                sum(cm.traffic(mixer, phase, form, names).compulsory.at(**sizes).values()),
                batches.moved(done, system, phase),
            ),
        ]
        if phase == "backward":
            kept = cm.activations(mixer, form, names).at(**sizes)
            asked.append(("activations", kept, batches.kept(done, given)))
        found += [
            f"{phase}, {name}: rules {derived}, executed {executed}"
            for name, derived, executed in asked
            if derived != executed
        ]
    return found


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("name", "form", "sizes"),
    [(*form, sizes) for form, sizes in zip(small.distinct(), cycle(SIZES))],
    ids=str,
)
def test_a_batch_costs_what_its_execution_does(
    name: str, form: str, sizes: Mapping[str, int]
) -> None:
    mixer = builtin(name)
    assert apart(mixer, form, complete(mixer, sizes)) == []


@pytest.mark.parametrize(
    ("name", "loss"), [*zip(["self-attention", "linear-attention", "she", "lstm"], cycle(LOSSES))]
)
def test_every_sequence_has_a_loss_and_a_target(name: str, loss: str) -> None:
    mixer = builtin(name)
    assert apart(mixer, mixer.default_form, complete(mixer, SIZES[2]), loss) == []


@pytest.mark.grid(6)
@pytest.mark.parametrize(("name", "form"), small.distinct())
def test_by_mac_a_further_sequence_costs_what_its_execution_does(name: str, form: str) -> None:
    """By `mac` a sum over the sequences of what is no sum takes b additions when it is executed so,
    and b - 1 by the rules: the difference of two batches is compared."""
    mixer = builtin(name)
    step = adjoint(batches.Batch(system_of(mixer, form, (), "training")).system)
    more: list[list[int]] = []
    for b in (2, 3):
        sizes = {**complete(mixer, SIZES[0]), "b": b}
        done = run(step, sizes, ready=step.forward.equations, accounting="mac")
        derived = classes(cm.count(mixer, "backward", form, "mac").at(**sizes))
        more.append([derived["add"], batches.operations(done)["add"]])
    (one, two), (three, four) = more
    assert three - one == four - two


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "form"), small.distinct())
def test_gradients_of_weights_are_added_up_over_the_batch(name: str, form: str) -> None:
    mixer = builtin(name)
    sizes = complete(mixer, SIZES[0])
    batch = batches.Batch(system_of(mixer, form, (), "training"))
    arrays = random_arrays(batch.mixer.forms[form], sizes)
    output = np.random.default_rng(1).uniform(-1, 1, tuple(
        e.at(sizes) for e in batch.mixer.role("output").shape
    ))  # fmt: skip
    together = cm.gradients(batch.mixer, arrays, output, sizes, form)
    longer = {array.name for array in batch.arrays}
    each = []
    for k in range(sizes["b"]):
        own = {n: values[..., k] if n in longer else values for n, values in arrays.items()}
        each.append(cm.gradients(mixer, own, output[..., k], sizes, form))
    for array, value in together.items():
        found = [one[array] for one in each]
        wanted = np.stack(found, -1) if array in longer else np.sum(found, 0)
        # sums of a few dozen numbers of size one in another order
        assert np.allclose(value, wanted, rtol=1e-9, atol=1e-11), array
    assert together.keys() == each[0].keys()


def test_a_sum_over_no_row_is_not_added_up() -> None:
    """With one row no gradient of U reads a row before: b sequences hand it nothing. Those of W and
    b take b - 1 additions an entry, d^2 and d of them, and x.grad d - 1 for each entry: d = 2."""
    counts = cm.count(builtin("recurrent"), "backward").at(l=1, d=2, b=3)
    # tanh: 1 - y y an entry
    assert counts.add == 3 * 2 + 3 * 2 * (2 - 1) + (3 - 1) * (2 * 2 + 2)


def test_a_gradient_of_weights_that_another_one_reads_moves_once_a_batch() -> None:
    """K = w w and y = x K: y.grad is read twice, x once and x.grad is written for each sequence; K,
    w and K.grad are read once, K.grad and w.grad written once."""
    m = Mixer("squared")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        kernel = f.array("K", d)
        kernel[a] = w[a] * w[a]
        y[i, a] = x[i, a] * kernel[a]
    moved = cm.traffic(m, "backward").at(l=5, d=3, b=3, dtype="fp32", weight_dtype="fp64")
    assert moved["unfused"] == 4 * 3 * 4 * 5 * 3 + 8 * 5 * 3


def test_claims_about_a_batch_add_the_gradients_of_weights_up() -> None:
    """W.grad of b l rows takes b l - 1 additions an entry, not b (l - 1)."""
    for name in ("self-attention", "she", "linear-attention"):
        for quantity in ("add", "total"):
            claimed = derive(name, quantity, Interpretation(phase="backward"))
            sizes = complete(builtin(name), {"l": 3, "d": 4, "n": 2, "b": 3})
            counts = cm.count(builtin(name), "backward").at(**sizes)
            once = counts.once.by_class() if counts.once else {}
            added = counts.add + once.get("add", 0)
            wanted = counts.total if quantity == "total" else added
            assert claimed.at(sizes) == Fraction(wanted)


def test_gradients_that_are_not_added_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the additions over the batch the comparison above fails."""
    forgotten = {JOINED: SEQUENCE}
    mixer, sizes = builtin("she"), complete(builtin("she"), SIZES[0])
    step = system_of(mixer, "direct", (), "backward")
    backward = {e: forgotten.get(kind, kind) for e, kind in step.backward.items()}
    wrong = replace(step, backward=backward)
    monkeypatch.setattr(counting, "system_of", lambda *asked: wrong)
    found = [line for line in apart(mixer, "direct", sizes) if line.startswith("backward, counts")]
    assert found != []
