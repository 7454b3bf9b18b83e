"""Is linear attention what Katharopoulos et al. 2020 (arXiv 2006.16236) write down?

Values and operations are written here from sections 3.2 to 3.4, head by head and token by token,
and share nothing with the package. The authors' library, fast_transformers, is not installed: the
module rests on this reading, which a second one in torch, by matrices, confirms.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

import costmodel as cm
from costmodel.check import differences
from costmodel.execution.tallying import FUNCTIONS
from costmodel.functions import TABLE
from costmodel.rules.evaluate import VALUES
from costmodel.rules.order import order
from costmodel.sizes import ceil_log2
from profiler import modules
from profiler.check import check
from profiler.counters.dispatch import count_dispatch
from profiler.counters.operations import FUNCTIONS as COUNTED
from profiler.modules import build
from profiler.modules.linear_attention import elu_plus_1
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    forward,
    module_of,
    operations,
    reconciled,
    stepped,
    tensors,
)

NAME = "linear-attention"
FORMS = ("recurrent", "parallel")
MODULES = {"recurrent": "recurrent", "cumsum": "recurrent", "parallel": "parallel"}
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2},
    {"l": 7, "d": 6, "n": 3},
    {"l": 2, "d": 3, "n": 3},
    {"l": 3, "d": 5, "n": 1},
    {"l": 1, "d": 2, "n": 1},
    {"l": 1, "d": 1, "n": 1},
]
ROUNDING = 1e-11
"""Products of sums of at most 7 features, each at most some units, in float64."""

each_form = pytest.mark.parametrize("form", FORMS)
each_module = pytest.mark.parametrize("implementation", MODULES)
each_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(map(str, s.values())))


# --------------------------------------------------------------------------------------------------
# The values
# --------------------------------------------------------------------------------------------------


def phi(row: Array) -> Array:
    """elu(x) + 1, elu being x above 0 and exp(x) - 1 below."""
    return np.array([(v if v > 0 else math.exp(v) - 1) + 1 for v in row])


def as_an_rnn(W: Arrays, n: int) -> Array:
    """Section 3.4: s_0 = 0 and z_0 = 0; s += phi(k) v^T; z += phi(k); phi(q)^T s / phi(q)^T z."""
    x = W["x"]
    h = x.shape[1] // n
    heads = []
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        s, z, rows = np.zeros((h, h)), np.zeros(h), []
        for token in x:
            q, k, v = phi(token @ W["W_Q"][:, own]), phi(token @ W["W_K"][:, own]), token @ W["W_V"]
            s, z = s + np.outer(k, v[own]), z + k
            rows.append(q @ s / (q @ z))
        heads.append(np.array(rows))
    return np.concatenate(heads, axis=1) @ W["W_out"]


def as_attention(held: dict[str, Tensor], n: int) -> Tensor:
    """Section 3.3: similarities in place of exponentials of scores, later ones left out."""
    x = held["x"]
    q, k, v = ((x @ held[f"W_{name}"]).view(len(x), n, -1).transpose(0, 1) for name in "QKV")
    similar = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    rows: Tensor = (similar / similar.sum(-1, keepdim=True)) @ v
    return rows.transpose(0, 1).flatten(1) @ held["W_out"]


@each_form
@each_size
def test_values(form: str, sizes: Sizes) -> None:
    arrays = drawn(NAME, sizes)
    expected = as_an_rnn(arrays, sizes["n"])
    np.testing.assert_allclose(
        as_attention(tensors(arrays), sizes["n"]).numpy(), expected, rtol=0, atol=ROUNDING
    )
    found = cm.evaluate(cm.mixer(NAME), arrays, dict(sizes), form)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@each_module
@each_size
def test_modules(implementation: str, sizes: Sizes) -> None:
    """Whole sequences, a batch of which does not mix, and token by token."""
    arrays = drawn(NAME, sizes)
    module, x = module_of(NAME, implementation, sizes, arrays), arrays["x"]
    both = forward(module, x, -x)
    for found, own in zip(both, (x, -x), strict=True):
        expected = as_an_rnn(arrays | {"x": own}, sizes["n"])
        np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(stepped(module, x), both[0], rtol=0, atol=ROUNDING)


# --------------------------------------------------------------------------------------------------
# The feature map: one exponential, one addition, one comparison, everywhere the same values
# --------------------------------------------------------------------------------------------------

POINTS = [-1000.0, -3.5, -1e-9, 0.0, 1e-9, 0.25, 7.0, 1000.0]


def test_the_feature_map_is_one_function() -> None:
    assert TABLE["elu_plus_1"].steps == ("exp", "add", "compare")
    given = torch.tensor(POINTS, dtype=torch.float64)
    expected = (F.elu(given) + 1).tolist()
    ours = elu_plus_1(given)
    assert ours.tolist() == pytest.approx(expected, abs=1e-15)
    assert [FUNCTIONS["elu_plus_1"](v) for v in POINTS] == pytest.approx(expected, abs=1e-15)
    assert list(VALUES["elu_plus_1"](np.array(POINTS))) == pytest.approx(expected, abs=1e-15)


def test_its_slope_is_finite_everywhere() -> None:
    """1 above 0 and exp(x) elsewhere: the branch not taken neither overflows nor spoils it."""
    given = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    elu_plus_1(given).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    slopes = [1.0 if v > 0 else math.exp(v) for v in POINTS]
    assert given.grad is not None
    assert given.grad.tolist() == pytest.approx(slopes, abs=1e-15)


def test_torch_dispatches_what_the_table_counts() -> None:
    x = torch.zeros(2, 3)
    found = count_dispatch(elu_plus_1, x).required()
    assert found == COUNTED["elu_plus_1"] * 6
    assert (found.exp, found.add, dict(found.other)) == (6, 6, {"compare": 6})
    theirs = count_dispatch(lambda: F.elu(x) + 1).required()
    assert theirs.add == 12, "torch's elu subtracts 1, which is then added again"


# --------------------------------------------------------------------------------------------------
# Operations, one token after another. A sum of R terms is R - 1 additions.
# --------------------------------------------------------------------------------------------------


def token(form: str, t: int, d: int, n: int) -> Counter[str]:
    """What token t takes, with what is kept of the earlier ones."""
    h, done = d // n, Counter[str]()
    for _ in range(4 * d):  # q, k, v, and the output
        done.update(mul=d, add=d - 1)
    done.update(exp=2 * d, add=2 * d, compare=2 * d)  # phi of q and k
    for _ in range(n):
        if form == "recurrent":
            done.update(mul=h * h, add=(h * h + h) * (t > 1))  # k v^T; s and z grow
            for _ in range(h + 1):  # q s, and q z
                done.update(mul=h, add=h - 1)
        else:
            for _ in range(t):
                done.update(mul=h, add=h - 1)  # a score
            done.update(add=t - 1)  # their sum
            for _ in range(h):
                done.update(mul=t, add=t - 1)  # weighted values
        done.update(div=h)
    return +done


@each_form
@each_size
def test_operations_are_those_of_the_tokens(form: str, sizes: Sizes) -> None:
    l, d, n = sizes["l"], sizes["d"], sizes["n"]
    whole: Counter[str] = sum((token(form, t, d, n) for t in range(1, l + 1)), Counter())
    assert operations(NAME, sizes, form=form) == whole
    for t in (1, 2, 30):
        at = {**sizes, "t": t}
        assert operations(NAME, at, form=form, phase="inference") == token(form, t, d, n)


# l = 3, d = 4, n = 2 (h = 2). Projections and output: 4 * 3 * 16 = 192 mul, 4 * 3 * 12 = 144 add;
# phi: 24 exp, 24 add, 24 compare; 12 div. Of both heads,
#   recurrent: k v^T 3 * 8 = 24, q s 3 * 8 = 24, q z 12 mul; s and z 2 * 12 = 24, q s 12, q z 6 add.
#   parallel, 6 pairs: scores 24, weighted 24 mul; scores 12, sums 2 * 3, weighted 4 * 3 add.
BY_HAND = {
    "recurrent": {"mul": 192 + 60, "add": 168 + 42, "div": 12, "exp": 24, "compare": 24},
    "parallel": {"mul": 192 + 48, "add": 168 + 30, "div": 12, "exp": 24, "compare": 24},
}


@each_form
def test_operations_of_a_small_case(form: str) -> None:
    assert operations(NAME, {"l": 3, "d": 4, "n": 2}, form=form) == BY_HAND[form]


@pytest.mark.parametrize(("l", "h", "n"), [(1, 1, 1), (9, 4, 3), (64, 16, 2)])
def test_closed_forms(l: int, h: int, n: int) -> None:
    """Per head and token 2 h^2 + h products, or h + h a pair, beside four maps of width d."""
    d = n * h
    recurrent, parallel = (cm.count(cm.mixer(NAME), form=f).at(l=l, d=d, n=n) for f in FORMS)
    assert recurrent.mul == 4 * l * d**2 + l * n * (2 * h * h + h)
    assert parallel.mul == 4 * l * d**2 + n * l * (l + 1) // 2 * 2 * h
    assert recurrent.div == parallel.div == l * d
    first, later = n * (h - 1) * (h + 1), n * (h * h + h + (h - 1) * (h + 1))
    maps = 4 * l * d * (d - 1) + 2 * l * d
    assert recurrent.add == maps + first + (l - 1) * later


def test_the_claim_is_linear_in_the_length() -> None:
    """Table 1 of SimpleTRON and section 3.2: O(N) as an RNN, O(N^2) by pairs."""
    mixer = cm.mixer(NAME)
    monomials = {
        form: {str(m) for m in order(cm.count(mixer, form=form).exact_total).monomials}
        for form in FORMS
    }
    assert monomials == {"recurrent": {"d**2*l"}, "parallel": {"d**2*l", "d*l**2"}}


# --------------------------------------------------------------------------------------------------
# Parameters, state, critical path and span
# --------------------------------------------------------------------------------------------------


def test_parameters() -> None:
    """Four maps without bias."""
    assert cm.parameters(cm.mixer(NAME)).at(d=6, n=2) == 4 * 36


def test_state() -> None:
    """S and z of every head, whatever the position; by pairs the features and values of all."""
    mixer = cm.mixer(NAME)
    for t in (1, 2, 90):
        assert cm.state(mixer, "recurrent").at(d=12, n=3, t=t) == 3 * (4 * 4 + 4)
        assert cm.state(mixer, "parallel").at(d=12, n=3, t=t) == 2 * 12 * t


PHI = ["mul", "sum", "exp", "add", "compare"]
READ = ["mul", "sum", "div", "mul", "sum"]


def test_critical_path_and_span() -> None:
    """k v^T waits to be added to the sum of all earlier ones, or a score to be summed at once."""
    mixer = cm.mixer(NAME)
    path = cm.critical_path(mixer).steps
    assert path == (*PHI, "mul", {"times": "l - 1", "steps": ["add"]}, *READ)
    assert cm.critical_path(mixer, form="parallel").steps == (*PHI, "mul", "sum", *READ)
    token_path = cm.critical_path(mixer, "inference").steps
    assert token_path == (*PHI, "mul", "add", *READ), "MIXERS: one addition behind k v^T"
    for l, d, n in ((1, 1, 1), (5, 6, 2), (16, 24, 3)):
        maps, heads = ceil_log2(d), ceil_log2(d // n)
        recurrent, parallel = (cm.span(mixer, form=form).at(l=l, d=d, n=n) for form in FORMS)
        # phi(k): 1 + lg d + 3; k v^T: 1; l - 1 sums; q s: 1 + lg h; division 1; output 1 + lg d
        assert recurrent == maps + 4 + 1 + (l - 1) + 1 + heads + 1 + 1 + maps
        # scores: 1 + lg h; weighted values: 1 + lg l
        assert parallel == maps + 4 + 1 + heads + 1 + ceil_log2(l) + 1 + 1 + maps


@each_form
@pytest.mark.parametrize("rewrites", [(), ("dense",), ("zero-state",)], ids=str)
def test_rules_equal_execution(form: str, rewrites: tuple[str, ...]) -> None:
    for sizes in SIZES:
        assert differences(cm.mixer(NAME), sizes, form=form, rewrites=rewrites) == []


# --------------------------------------------------------------------------------------------------
# Modules
# --------------------------------------------------------------------------------------------------


def test_every_proof_holds() -> None:
    proofs = check(cm.mixer(NAME))
    assert [proof for proof in proofs if not proof.passed] == []
    assert len(proofs) > 4 * len(MODULES)


@pytest.mark.parametrize(("phase", "t"), [("training", 5), ("inference", 1), ("inference", 4)])
def test_nothing_is_unexplained(phase: str, t: int) -> None:
    at = {"b": 3, "l": 5, "d": 8, "n": 2} | ({"t": t} if phase == "inference" else {})
    found = {each.implementation: each for each in reconciled(NAME, at, phase)}
    assert set(found) == set(MODULES)
    for name, each in found.items():
        assert each.explained, (name, each.unexplained, each.peers)
    causes = [cause.name for cause in found["parallel"].causes]
    assert causes == ["form=parallel", *(["dense"] if phase == "training" else [])]
    assert found["cumsum"].rungs["3"] == found["recurrent"].rungs["3"] == found["cumsum"].rungs["1"]


def made(implementation: str, d: int = 6, n: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    described = modules.implementations(NAME)[implementation]
    sizes = {"d": d, "n": n, "l": 4}
    return build(described, sizes, device="cpu", dtype=dtype, seed=1)


@pytest.mark.parametrize("implementation", ["recurrent", "cumsum"])
def test_the_state_is_of_one_size(implementation: str) -> None:
    """n (h^2 + h) numbers from the first token on, however many follow."""
    module = made(implementation)
    state = module.initial_state(2)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    for t in range(9):
        module.step(x[:, t], state)
        assert state.elements == 2 * (3 * 3 + 3)
    features = elu_plus_1(x @ module.W_K).view(2, 9, 2, 3)
    held = state.held("Z").squeeze(-2)
    torch.testing.assert_close(held, features.sum(1), rtol=0, atol=ROUNDING)


def test_the_state_of_pairs_grows_and_fills() -> None:
    module = made("parallel")
    state = module.initial_state(1, 2)
    x = torch.zeros(1, 6, dtype=torch.float64)
    for t in (1, 2):
        module.step(x, state)
        assert state.elements == 2 * 6 * t
    with pytest.raises(ValueError, match="the state is full, it holds 2 tokens of at most 2"):
        module.step(x, state)


@each_module
def test_it_trains(implementation: str) -> None:
    """The loss of a few random rows falls, and every parameter has a gradient."""
    module = made(implementation, dtype=torch.float32)
    generator = torch.Generator().manual_seed(4)
    x, target = (torch.randn(2, 5, 6, generator=generator) for _ in range(2))
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(implementation: str, dtype: torch.dtype) -> None:
    """They compute the same to the dtype's own rounding."""
    exact, rounded = made(implementation), made(implementation, dtype=dtype)
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, expected = rounded(x.to(dtype)).double(), exact(x.double())
    coarse = 1e-5 if dtype == torch.float32 else 0.1  # 24 and 8 bits, some dozen roundings
    torch.testing.assert_close(found, expected, rtol=0, atol=coarse)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d": 6, "n": 4, "l": 3}, "d must be divisible by n: d = 6 and n = 4"),
        ({"d": 6, "l": 3}, "linear-attention .* needs the size n and was given d, l"),
        ({"d": 6, "n": 0, "l": 3}, "size n must be a positive integer and is 0"),
    ],
)
def test_bad_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    for described in modules.implementations(NAME).values():
        with pytest.raises(ValueError, match=message):
            build(described, sizes, device="cpu", dtype=torch.float64, seed=0)
