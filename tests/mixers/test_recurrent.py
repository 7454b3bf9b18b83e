"""Are the recurrent layers what their papers write down, and what torch.nn computes?

The values and operations are written here from the papers' equations, one row after another, and
share nothing with the package: Chung et al. 2014 (arXiv 1412.3555, section 2) for the tanh unit,
Zaremba et al. 2014 (arXiv 1409.2329, section 3) for the LSTM, Cho et al. 2014 (arXiv 1406.1078,
section 2.3) for the GRU.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cli
import costmodel as cm
from costmodel import Mixer, function, order, sum_
from costmodel.oracle.execute import execute
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.symbolic.sizes import ceil_log2
from profiler.mixers.recurrent import RecurrentExplicit
from profiler.modules import Implementation, build, implementation, registry
from profiler.proofs.equality import prove_mixer
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equal_whole_and_stepped,
    module_of,
    operations,
    reconciled,
    tensors,
)
from tests.small import by_sizes

RNN = ("recurrent", "recurrent+two-biases")
LSTM = ("lstm", "lstm+two-biases")
AFTER = ("gru", "gru+two-biases")
BEFORE = ("gru+reset-before", "gru+two-biases+reset-before")
NAMES = RNN + LSTM + AFTER + BEFORE
FORMS = [(name, form) for name in NAMES for form in cm.mixer(name).forms]
MODULES = [(n, i) for n in NAMES for i in registry.implementations(n)]
SIZES: list[Sizes] = [{"l": 5, "d": 3}, {"l": 2, "d": 5}, {"l": 1, "d": 2}, {"l": 4, "d": 1}]
ROUNDING = 1e-12
"""Products of at most 5 rows in a chain, sums of at most 10 numbers of size about one."""

each_name = pytest.mark.parametrize("name", NAMES)
each_form = pytest.mark.parametrize(("name", "form"), FORMS)
each_module = pytest.mark.parametrize(("name", "implementation"), MODULES)
each_size = by_sizes(SIZES)


def is_two(name: str) -> bool:
    return "two-biases" in name


# --------------------------------------------------------------------------------------------------
# The values: h_0 = c_0 = 0, and a row is computed like any other.
# --------------------------------------------------------------------------------------------------


def sigmoid(v: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-v))
    return found


def gate(W: Arrays, which: int, x: Array, h: Array) -> tuple[Array, Array]:
    """W x + b and U h + c of one gate, each gate's matrices being entries of the packed ones."""
    one = {key: value[which] for key, value in W.items() if key != "x"}
    return x @ one["W"] + one["b"], h @ one["U"] + one.get("b_U", 0)


def inside(W: Arrays, which: int, x: Array, h: Array) -> Array:
    own, carried = gate(W, which, x, h)
    return own + carried


def rnn_row(W: Arrays, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    return np.tanh(x @ W["W"] + h @ W["U"] + W["b"] + W.get("b_U", 0)), c


def lstm_row(W: Arrays, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    i, f, o = (sigmoid(inside(W, which, x, h)) for which in range(3))
    c = f * c + i * np.tanh(inside(W, 3, x, h))
    return o * np.tanh(c), c


def gru_row(W: Arrays, x: Array, h: Array, c: Array, *, after: bool) -> tuple[Array, Array]:
    r, z = (sigmoid(inside(W, which, x, h)) for which in range(2))
    if after:  # version 1
        own, carried = gate(W, 2, x, h)
        new = np.tanh(own + r * carried)
    else:  # version 3
        new = np.tanh(inside(W, 2, x, r * h))
    return z * h + (1 - z) * new, c


def recurrence(name: str, W: Arrays) -> Array:
    h = c = np.zeros(W["x"].shape[1])
    rows = []
    for x in W["x"]:
        if name in RNN:
            h, c = rnn_row(W, x, h, c)
        elif name in LSTM:
            h, c = lstm_row(W, x, h, c)
        else:
            h, c = gru_row(W, x, h, c, after=name in AFTER)
        rows.append(h)
    return np.array(rows)


@each_form
@each_size
@pytest.mark.parametrize("rewrites", [(), ("zero-state",)], ids=str)
def test_equations_of_recurrent_layers_give_the_values_of_the_paper(
    name: str, form: str, sizes: Sizes, rewrites: tuple[str, ...]
) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, dict(sizes), form, rewrites or "strict")
    np.testing.assert_allclose(found, recurrence(name, arrays), rtol=0, atol=ROUNDING)


@each_module
@each_size
def test_modules_of_recurrent_layers_give_the_values_of_the_paper(
    name: str, implementation: str, sizes: Sizes
) -> None:
    """Whole sequences, a batch of which does not mix, and token by token."""
    arrays = drawn(name, sizes)
    module = module_of(name, implementation, sizes, arrays)
    equal_whole_and_stepped(
        module, arrays["x"], lambda x: recurrence(name, arrays | {"x": x}), ROUNDING
    )


# --------------------------------------------------------------------------------------------------
# Somebody else's code: torch.nn.RNN, LSTM and GRU, in float64.
# --------------------------------------------------------------------------------------------------

THEIRS: dict[tuple[str, ...], tuple[type[nn.RNN | nn.LSTM | nn.GRU], list[int]]] = {
    RNN: (nn.RNN, [0]),
    LSTM: (nn.LSTM, [0, 1, 3, 2]),  # input, forget, candidate, output
    AFTER: (nn.GRU, [0, 1, 2]),  # reset, update, candidate
}
"""torch's layer, and which of our packed gates it has in each place."""


def theirs(name: str, arrays: Arrays) -> nn.RNN | nn.LSTM | nn.GRU:
    """torch's layer with these parameters; where there is one bias, torch's second one is zero."""
    (kind, places), d = next(v for k, v in THEIRS.items() if name in k), arrays["x"].shape[1]
    layer = kind(d, d, batch_first=True, dtype=torch.float64)
    held = tensors(arrays)
    if name in RNN:
        held = {key: value.unsqueeze(0) for key, value in held.items()}
    second = held.get("b_U", torch.zeros_like(held["b"]))
    packed = {
        "weight_ih_l0": held["W"].mT,
        "weight_hh_l0": held["U"].mT,
        "bias_ih_l0": held["b"],
        "bias_hh_l0": second,
    }
    layer.load_state_dict({key: value[places].flatten(0, 1) for key, value in packed.items()})
    return layer


@pytest.mark.parametrize(("name", "implementation"), [m for m in MODULES if m[0] not in BEFORE])
@each_size
def test_modules_of_recurrent_layers_equal_torch(
    name: str, implementation: str, sizes: Sizes
) -> None:
    arrays = drawn(name, sizes)
    module, layer = module_of(name, implementation, sizes, arrays), theirs(name, arrays)
    x = torch.from_numpy(np.stack([arrays["x"], 1 - arrays["x"]]))
    with torch.no_grad():
        torch.testing.assert_close(module(x), layer(x)[0], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", [RNN[1], LSTM[1], AFTER[1]])
def test_two_biases_have_the_parameters_of_torch(name: str) -> None:
    layer = theirs(name, drawn(name, {"l": 1, "d": 7}))
    assert cm.parameters(cm.mixer(name)).at(d=7) == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("name", BEFORE)
def test_the_reset_gate_before_the_product_is_another_function(name: str) -> None:
    """No weights of torch's layer give it, and no implementation claims to."""
    arrays = drawn(name, SIZES[0])
    assert cm.mixer(name).references == ()
    assert "torch" not in registry.implementations(name)
    other = recurrence(AFTER[is_two(name)], arrays)
    assert np.abs(recurrence(name, arrays) - other).max() > 0.01


def test_one_bias_has_no_torch_layer() -> None:
    """torch adds two, which one bias and a zero would only pretend to be."""
    for names in (RNN, LSTM, AFTER):
        assert ["torch" in registry.implementations(name) for name in names] == [False, True]


# --------------------------------------------------------------------------------------------------
# Operations, one row after another. A sum of R terms is R - 1 additions.
# --------------------------------------------------------------------------------------------------

GATES = {"recurrent": 1, "lstm": 4, "gru": 3}


def row(name: str, form: str, d: int, *, first: bool, zeros: bool = False) -> Counter[str]:
    """What one row takes; with `zeros` the first one multiplies a row of zeros."""
    done: Counter[str] = Counter()
    kind, two, reads = name.split("+")[0], is_two(name), zeros or not first
    reset = reads if name in BEFORE else reads or two
    gate = {"recurrent": 0, "lstm": not reads, "gru": not reset}[kind]  # what nothing reads
    for _ in range((GATES[kind] - gate) * d):
        done.update(mul=d, add=d - 1 + 1)  # W x, and b
        if reads:
            done.update(mul=d, add=d - 1 + two)  # U h, and its own bias
        if reads or two:
            done.update(add=1)  # the one to the other
    sigmoids, tanhs = {"recurrent": (0, 1), "lstm": (3, 2), "gru": (2, 1)}[kind]
    sigmoids -= gate
    for _ in range(d):
        done.update(exp=sigmoids, add=sigmoids, div=sigmoids, tanh=tanhs)
        if kind == "lstm":
            done.update(mul=2)  # i g, and o tanh(c)
            done.update(mul=reads, add=reads)  # + f c
        if kind == "gru":
            done.update(mul=reset)
            if form == "recurrent":
                done.update(add=1, mul=1)  # (1 - z) n
                done.update(mul=reads, add=reads)  # + z h
            elif reads:
                done.update(add=2, mul=1)  # n + z (h - n)
            else:
                done.update(add=1, mul=1)  # n - z n
    return +done


def rows(name: str, form: str, l: int, d: int, *, zeros: bool = False) -> Counter[str]:
    found = row(name, form, d, first=True, zeros=zeros)
    for _ in range(l - 1):
        found.update(row(name, form, d, first=False))
    return found


@each_form
@each_size
def test_operations_are_those_of_the_rows(name: str, form: str, sizes: Sizes) -> None:
    l, d = sizes["l"], sizes["d"]
    assert operations(name, sizes, form=form) == rows(name, form, l, d)
    zeros = operations(name, sizes, form=form, convention=("strict", "zero-state"))
    assert zeros == rows(name, form, l, d, zeros=True)
    for t in (1, 2, 9):
        at = {**sizes, "t": t}
        token = row(name, form, d, first=t == 1)
        assert operations(name, at, form=form, phase="inference") == token


# l = 3, d = 2, one bias. W: 3 rows of 4 products a gate, U: 2 rows; each entry of W x + b takes
# 2 additions, each of + U h 2 more.
#   recurrent: mul 12 + 8; add 12 + 8; tanh 6.
#   lstm, 4 gates, 3 in row 1: mul 44 + 32, i g 6, o tanh(c) 6, f c 4; add 44 + 32, + f c 4,
#     sigmoids 16.
#   gru, 3 gates, 2 in row 1: mul 32 + 24, reset 4, (1 - z) n 6, z h 4; add 32 + 24, sigmoids 10,
#     1 - z 6, + 4.
#     interpolated: mul 32 + 24, reset 4, z (h - n) 6; add 32 + 24, sigmoids 10, 2 in row 1 and 8.
BY_HAND = {
    ("recurrent", "recurrent"): {"mul": 20, "add": 20, "tanh": 6},
    ("lstm", "recurrent"): {"mul": 92, "add": 96, "div": 16, "exp": 16, "tanh": 12},
    ("gru", "recurrent"): {"mul": 70, "add": 76, "div": 10, "exp": 10, "tanh": 6},
    ("gru", "interpolated"): {"mul": 66, "add": 76, "div": 10, "exp": 10, "tanh": 6},
    ("gru+reset-before", "recurrent"): {"mul": 70, "add": 76, "div": 10, "exp": 10, "tanh": 6},
}


@pytest.mark.parametrize(("which", "counts"), BY_HAND.items(), ids=lambda i: "-".join(i))
def test_operations_of_a_small_case(which: tuple[str, str], counts: dict[str, int]) -> None:
    name, form = which
    assert operations(name, {"l": 3, "d": 2}, form=form) == counts


@pytest.mark.parametrize("l", [1, 2, 31])
@pytest.mark.parametrize("d", [1, 7, 64])
def test_operations_of_recurrent_layers_equal_closed_forms(l: int, d: int) -> None:
    """2 l d^2 less the first row's d^2; of the LSTM 8 l d^2 + 3 l d less 5 d^2 + d, d^2 among them
    for its forget gate; and so on."""
    muls = {
        "recurrent": 2 * l * d**2 - d**2,
        "lstm": 8 * l * d**2 + 3 * l * d - 5 * d**2 - d,
        "gru": 6 * l * d**2 + 3 * l * d - 4 * d**2 - 2 * d,
    }
    for name, mul in muls.items():
        counts = cm.count(cm.mixer(name)).at(l=l, d=d)
        assert counts.mul == mul
        gates = GATES[name]
        assert counts.once is None or counts.once.total == 0
        zeros = cm.count(cm.mixer(name), convention=("strict", "zero-state")).at(l=l, d=d)
        carried = {"recurrent": 0, "lstm": d, "gru": 2 * d}[name]
        spared = gates + (name != "recurrent")
        assert zeros.mul - counts.mul == spared * d**2 + carried


def test_the_claim_of_table_1() -> None:
    """Vaswani et al. 2017: O(n d^2) operations, O(n) of them one after the other."""
    for name in ("recurrent", "lstm", "gru"):
        found = order(cm.count(cm.mixer(name)).exact_total).monomials
        assert {str(monomial) for monomial in found} == {"d**2*l"}
        length = cm.critical_path(cm.mixer(name)).length
        growth = [length.at({"l": l, "d": 8}) for l in range(2, 7)]
        assert len(set(np.diff(growth))) == 1 and growth[1] > growth[0]


# --------------------------------------------------------------------------------------------------
# Parameters, state, critical path and span
# --------------------------------------------------------------------------------------------------


@each_name
def test_parameters_of_recurrent_layers_equal_a_count_by_hand(name: str) -> None:
    """Two matrices and a bias a gate, or two biases."""
    gates = GATES[name.split("+")[0]]
    for d in (1, 6):
        expected = gates * (2 * d * d + (2 if is_two(name) else 1) * d)
        assert cm.parameters(cm.mixer(name)).at(d=d) == expected


@each_form
def test_the_state_is_one_row_or_two(name: str, form: str) -> None:
    """The output row, and the LSTM's cell, whatever the position."""
    for t in (1, 2, 50):
        assert cm.state(cm.mixer(name), form).at(d=7, t=t) == (14 if name in LSTM else 7)


GATED = "mul sum add exp add div"
"""A gate from the row before on: U h, + W x + b, and the sigmoid."""

# The first row of the LSTM: i, i g, tanh(c), o tanh(c). Of the GRU: z, 1 - z, (1 - z) n, and with
# one product z n, n - z n. Later rows: f, f c, + i g, tanh(c), o tanh(c); and r, r (U h),
# + W x + b, tanh, (1 - z) n, + z h, or h - n, z (h - n), n + z (h - n).
PATHS = {
    ("recurrent", "recurrent"): ("mul sum add tanh", "mul sum add tanh"),
    ("lstm", "recurrent"): (f"{GATED} mul tanh mul", f"{GATED} mul add tanh mul"),
    ("gru", "recurrent"): (f"{GATED} add mul", f"{GATED} mul add tanh mul add"),
    ("gru", "interpolated"): (f"{GATED} mul add", f"{GATED} mul add tanh add mul add"),
    ("gru+reset-before", "recurrent"): (
        f"{GATED} add mul",
        f"{GATED} mul mul sum add tanh mul add",
    ),
}


@pytest.mark.parametrize(("which", "steps"), PATHS.items(), ids=lambda i: "-".join(i[:2]))
def test_critical_path_and_span(which: tuple[str, str], steps: tuple[str, str]) -> None:
    """A first row, then l - 1 times the chain from one row to the next; a sum has lg d levels."""
    name, form = which
    first, later = (part.split() for part in steps)
    path = cm.critical_path(cm.mixer(name), form=form)
    assert path.steps == (*first, {"times": "l - 1", "steps": later})
    for l, d in ((1, 1), (4, 5), (9, 16)):
        levels = [len(part) + part.count("sum") * (ceil_log2(d) - 1) for part in (first, later)]
        span = cm.span(cm.mixer(name), form=form).at(l=l, d=d)
        assert span == levels[0] + (l - 1) * levels[1]


# --------------------------------------------------------------------------------------------------
# Modules: the state, the work, training
# --------------------------------------------------------------------------------------------------


@pytest.mark.grid(3)
@each_name
@pytest.mark.parametrize(("phase", "t"), [("training", 5), ("inference", 1), ("inference", 4)])
def test_reconcile_explains_all_work_of_recurrent_layers(name: str, phase: str, t: int) -> None:
    at = {"b": 2, "l": 5, "d": 8} | ({"t": t} if phase == "inference" else {})
    for found in reconciled(name, at, phase):
        assert found.explained, (found.implementation, found.unexplained, found.peers)
        zeros = [cause.name for cause in found.causes]
        rewritten = found.implementation == "torch" and (phase == "training" or t == 1)
        assert ("zero-state" in zeros) == rewritten


def made(name: str, which: str, d: int = 4, dtype: torch.dtype = torch.float64) -> Any:
    described: Implementation = registry.implementations(name)[which]
    return build(described, {"d": d, "l": 3}, device="cpu", dtype=dtype, seed=1)


@each_module
def test_the_state_holds_one_row_for_any_number_of_tokens(name: str, implementation: str) -> None:
    module = made(name, implementation)
    state = module.initial_state(2)
    assert state.elements == 0
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    rows_seen = []
    for t in range(7):
        rows_seen.append(module.step(x[:, t], state))
        assert state.elements == (8 if name in LSTM else 4)
    torch.testing.assert_close(torch.stack(rows_seen, 1), module(x), rtol=0, atol=ROUNDING)
    torch.testing.assert_close(state.held("y").squeeze(1), rows_seen[-1], rtol=0, atol=0)


@each_module
def test_training_lowers_the_loss_of_recurrent_layers(name: str, implementation: str) -> None:
    """The loss of a few random rows falls, and every parameter has a gradient."""
    module = made(name, implementation, dtype=torch.float32)
    x, target = torch.randn(2, 5, 4), torch.rand(2, 5, 4) - 0.5
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_onednn_is_switched_off_and_on_again(dtype: torch.dtype) -> None:
    """Its fused LSTM would hide the operations; who called has it as it was."""
    before = torch.backends.mkldnn.enabled
    module = made("lstm+two-biases", "torch", dtype=dtype)
    x = torch.randn(2, 3, 4, dtype=dtype)
    with torch.no_grad(), torch.profiler.profile() as seen:
        module(x)
    called = {event.name for event in seen.events()}
    assert "aten::mm" in called or "aten::addmm" in called
    assert not any("mkldnn" in name for name in called)
    assert torch.backends.mkldnn.enabled == before
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        module.mix(x[:, :, :3])
    assert torch.backends.mkldnn.enabled == before


def test_cudnn_takes_the_weights_of_a_layer_with_two_biases() -> None:
    """cuDNN copies them into one buffer by views, and refuses a transposed matrix."""
    for name in ("recurrent", "lstm", "gru"):
        weights = made(f"{name}+two-biases", "torch", dtype=torch.float32).weights()
        assert all(each.is_contiguous() for each in weights)


def test_wrong_input_is_refused() -> None:
    module = made("gru", "explicit")
    with pytest.raises(ValueError, match=r"x must be \(batch, length, 4\) and is \(2, 3, 5\)"):
        module(torch.zeros(2, 3, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x is torch\.float32 and the parameters are"):
        module(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="size length must be a positive integer and is 0"):
        module.initial_state(2, 0)
    state = module.initial_state(2)
    with pytest.raises(ValueError, match=r"x_t must be \(2, 4\)"):
        module.step(torch.zeros(3, 4, dtype=torch.float64), state)
    assert state.position == 0


def test_a_forgotten_row_surfaces() -> None:
    """A doctored module that starts every row from the first one's state is found out."""
    plain = Mixer("forgetful")
    l, d = plain.sizes("l d")
    x, y = plain.input("x", l, d), plain.output("y", l, d)
    W, U, bias = plain.parameter("W", d, d), plain.parameter("U", d, d), plain.parameter("b", d)
    with plain.form("recurrent") as f:
        i = f.index("i", 2, l)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        y[1, b] = function("tanh", sum_(x[1, a] * W[a, b], over=a) + bias[b])
        carried = sum_(y[i - 1, a] * U[a, b], over=a)
        y[i, b] = function("tanh", sum_(x[i, a] * W[a, b], over=a) + bias[b] + carried)

    class Forgetful(RecurrentExplicit):
        def row(self, own: Any, before: Any, U: Any) -> Any:
            return super().row(own, None, U)

    implementation("forgetful", "explicit", form="recurrent")(Forgetful)
    verdicts = {proof.name: proof for proof in prove_mixer(plain)}
    failed = verdicts["explicit: module equals equations"]
    assert failed.passed is False
    assert failed.detail.startswith("at l = 2, d = 1: y[2, 1] is ")


# --------------------------------------------------------------------------------------------------
# The rewrite: a row of zeros
# --------------------------------------------------------------------------------------------------


def test_zero_state_leaves_what_is_no_recurrence_alone() -> None:
    for name in ("self-attention", "she", "me"):
        known = cm.mixer(name)
        for form in known.forms.values():
            plain, rewritten = (
                [(e.name, e.indices) for e in lower(form, rewrites).equations]
                for rewrites in ((), ("zero-state",))
            )
            assert plain == rewritten
        assert operations(name, {"l": 3, "d": 4, "n": 2}) == operations(
            name, {"l": 3, "d": 4, "n": 2}, convention=("strict", "zero-state")
        )


@pytest.mark.parametrize("shift", [0, 1])
def test_zero_state_starts_every_loop_at_row_1(shift: int) -> None:
    """Two loops, the second over rows written as i + shift, and an equation outside both."""
    m = Mixer("twice")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("recurrent") as f:
        i, k = f.index("i", 2, l), f.index("k", 2 - shift, l - shift)
        u, v = f.array("u", l), f.array("v", l)
        u[1] = x[1]
        u[i] = u[i - 1] * x[i]
        v[1] = u[1]
        v[k + shift] = v[k + shift - 1] + u[k + shift]
        y[1] = v[1]
        y[i] = v[i] * v[i]
    run = execute(m.forms["recurrent"], {"l": 4}, rewrites=("zero-state",))
    assert run.counts() == {"add": 4, "mul": 4 + 3}
    assert run.output.tolist() == [0.0] * 4, "what is multiplied by zero stays zero"
    plain = execute(m.forms["recurrent"], {"l": 4})
    assert plain.counts() == {"add": 3, "mul": 3 + 3}
    assert plain.output.tolist() != [0.0] * 4
    for sizes in ({"l": 1}, {"l": 4}):
        assert OracleComparison(m, rewrites=("zero-state",)).at(sizes).apart == []


def test_the_caption_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["table", "recurrent", "--convention", "zero-state", "--d", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "a recurrence starts from a row of zeros, which is multiplied like any other" in text


def test_every_option_goes_with_every_other() -> None:
    """Four GRUs, two of each other layer: the names that this file tests are all there are."""
    found = {
        "+".join((name, *options))
        for name, offers in (
            ("recurrent", ("two-biases",)),
            ("lstm", ("two-biases",)),
            ("gru", ("two-biases", "reset-before")),
        )
        for chosen in product((True, False), repeat=len(offers))
        if (options := [o for o, yes in zip(offers, chosen, strict=True) if yes]) is not None
    }
    assert found == set(NAMES)
    assert {cm.mixer(name).base: tuple(cm.mixer(name).offers) for name in NAMES} == {
        "recurrent": ("two-biases",),
        "lstm": ("two-biases",),
        "gru": ("two-biases", "reset-before"),
    }
