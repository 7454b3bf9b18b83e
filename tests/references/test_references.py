"""Does every built-in mixer equal the published implementations that it names?

Where a package is installed the comparison runs; where it is not, its record stands.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from costmodel.report.references import of_mixer, recorded
from tests.references.comparison import Comparison, fill, load
from tests.references.packages import Weights
from tests.test_architecture import ROOT

ROUNDING = 2e-14
"""Of the largest number: some hundred roundings of 2**-53, a few products in a row of sums of some
ten terms."""


@pytest.mark.filterwarnings("ignore")  # what other packages warn of is not ours to mend
@pytest.mark.parametrize("each", load(), ids=lambda each: f"{each.mixer}-{each.package}")
def test_it_equals_their_code(each: Comparison) -> None:
    if each.installed is None:
        pytest.skip(f"{each.package} is not installed as constraints-{each.pins}.txt pins it")
    whole, steps = each.errors()
    assert max(whole, steps or 0) <= ROUNDING


def test_every_comparison_is_recorded_and_every_record_compared() -> None:
    assert [(r.mixer, r.package, r.of, r.sizes) for r in recorded()] == [
        (each.mixer, each.package, each.of, each.sizes) for each in load()
    ]
    assert [r for r in recorded() if max(r.whole, r.steps or 0) > ROUNDING] == []


def test_every_mixer_is_compared_at_two_sizes() -> None:
    sizes: dict[str, set[tuple[int, ...]]] = {}
    for record in recorded():
        sizes.setdefault(record.mixer.split("+")[0], set()).add(tuple(record.sizes.values()))
    assert {name for name, of in sizes.items() if len(of) < 2} == set()


def test_versions_are_those_of_the_constraints() -> None:
    files = ROOT.glob("constraints-references*.txt")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    pinned = {tuple(line.split("==")) for line in lines if "==" in line}
    assert {(record.package, record.version) for record in recorded()} == pinned


def conv1d(of: Any, ours: Weights, each: Comparison, shift: float = 0.0) -> Any:
    """torch's convolution with our taps in its order, one of them shifted."""
    layer = of(each.sizes["d"], each.sizes["d"], each.sizes["k"], bias=False).double()
    fill((layer.weight, ours["W"].flip(0).permute(2, 1, 0)))
    fill((layer.weight[0, 0, :1], layer.weight[0, 0, :1] + shift))
    before = each.sizes["k"] - 1
    return lambda x: layer(torch.nn.functional.pad(x.mT, (before, 0))).mT


@pytest.mark.parametrize(("shift", "equal"), [(0.0, True), (1e-9, False)])
def test_what_differs_is_seen(shift: float, equal: bool) -> None:
    """One weight that is 1e-9 off, whole and step by step."""
    each = Comparison(
        "convolution", "torch", "torch.nn.Conv1d", {"l": 5, "d": 3, "k": 2},
        lambda of, ours, each: conv1d(of, ours, each, shift),
    )  # fmt: skip
    whole, steps = each.errors()
    assert steps is not None
    assert (whole <= ROUNDING, steps <= ROUNDING) == (equal, equal)


def test_records_of_a_mixer_are_those_of_its_variants_too() -> None:
    assert {record.mixer for record in of_mixer("gmlp")} == {"gmlp", "gmlp+causal"}
    assert of_mixer("she") == ()
