"""Do the modules compute the papers' equations, whole and token by token, with no other work?"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import costmodel as cm
from costmodel import Mixer as Equations
from costmodel.mixers import names
from profiler.mixers.self_attention import SelfAttention
from profiler.modules import Implementation, Unsupported, base, build, implementation, registry
from profiler.modules.registry import without_token
from tests.implementations import (
    bounded,
    completed,
    equations,
    evaluated,
    every,
    inputs,
    label,
    made,
    reads_the_length,
    sequences,
    stepped,
)
from tests.small import by_sizes, without_inference
from tests.stand_ins import Instead

Array = NDArray[np.float64]
Weights = dict[str, Array]

SIZES = [
    {"d": 6, "l": 5, "n": 2},
    {"d": 6, "l": 7, "n": 3},
    {"d": 5, "l": 3, "n": 1},
    {"d": 5, "l": 2, "n": 5},
    {"d": 2, "l": 1, "n": 1},
    {"d": 1, "l": 3, "n": 1},
    {"d": 1, "l": 1, "n": 1},
]
FEW = [SIZES[1], SIZES[3], SIZES[5], SIZES[6]]
"""Of these, for every implementation: several heads, one of width 1, one channel, one token."""
ROUNDING = 1e-12
"""Sums of at most 7 * 6 products of size about one, in float64; times the largest output where
that is more than one."""

ALL = every()
STEPPING = [described for described in ALL if described.step_form]

each = pytest.mark.parametrize("described", ALL, ids=label)
each_stepping = pytest.mark.parametrize("described", STEPPING, ids=label)


def close(found: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> None:
    """Fail unless the numbers agree, to a tolerance for outputs of size one."""
    atol = tolerance * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


# The papers' equations for one sample, entry by entry.


def attention(x: Array, W: Weights, n: int) -> Array:
    """Equations (10)-(17) of Chen's SHE/HE/WE/ME paper."""
    (length, d), h = x.shape, x.shape[1] // n
    con = np.zeros((length, d))
    for j in range(n):
        head = slice(j * h, (j + 1) * h)
        Q, K, V = (x @ W[name][:, head] for name in ("W_Q", "W_K", "W_V"))
        for i in range(length):
            scores = [sum(Q[i, c] * K[k, c] for c in range(h)) / math.sqrt(h) for k in range(i + 1)]
            powers = [math.exp(score) for score in scores]
            for c in range(h):
                con[i, j * h + c] = sum(powers[k] / sum(powers) * V[k, c] for k in range(i + 1))
    return con @ W["W_out"]


def causal_sum(u: Array, product: Callable[[Array, int], Array]) -> Array:
    """The sum over j <= i of product(u[j], lag i - j)."""
    rows = []
    for i in range(len(u)):
        row = np.zeros(u.shape[1])
        for j in range(i + 1):
            row = row + product(u[j], i - j)
        rows.append(row)
    return np.array(rows)


def she_extraction(x: Array, W: Weights, n: int) -> Array:
    """Equation (23)."""

    def product(row: Array, lag: int) -> Array:
        d = len(row)
        W_lag = W["W_ext"][lag]
        return np.array([sum(row[a] * W_lag[a, b] for a in range(d)) for b in range(d)])

    return causal_sum(x, product)


def scaled_sum(x: Array, W: Weights, n: int) -> Array:
    """Equation (26) or (29): a vector or a scalar for each lag."""
    return causal_sum(x, lambda row, lag: row * W["w_ext"][lag])


def he_extraction(x: Array, W: Weights, n: int) -> Array:
    """Equations (27)-(28)."""
    return scaled_sum(x @ W["W_in_ext"], W, n)


REFERENCES: dict[str, Callable[[Array, Weights, int], Array]] = {
    "self-attention": attention,
    "she": lambda x, W, n: ((x @ W["W_adj"]) * she_extraction(x, W, n)) @ W["W_out"],
    "she-no-output": lambda x, W, n: (x @ W["W_adj"]) * she_extraction(x, W, n),
    "she-extraction": she_extraction,
    "he": lambda x, W, n: ((x @ W["W_adj"]) * he_extraction(x, W, n)) @ W["W_out"],
    "he-extraction": he_extraction,
    "we": lambda x, W, n: ((x @ W["W_adj"]) * scaled_sum(x, W, n)) @ W["W_out"],
    "me": scaled_sum,
}
PARAMETERS = {
    "self-attention": {"W_Q": "dd", "W_K": "dd", "W_V": "dd", "W_out": "dd"},
    "she": {"W_ext": "ldd", "W_adj": "dd", "W_out": "dd"},
    "she-no-output": {"W_ext": "ldd", "W_adj": "dd"},
    "she-extraction": {"W_ext": "ldd"},
    "he": {"W_in_ext": "dd", "w_ext": "ld", "W_adj": "dd", "W_out": "dd"},
    "he-extraction": {"W_in_ext": "dd", "w_ext": "ld"},
    "we": {"w_ext": "ld", "W_adj": "dd", "W_out": "dd"},
    "me": {"w_ext": "l"},
}
STATE_ARRAYS = {"self-attention": {"K", "V"}, "he": {"u"}, "he-extraction": {"u"}}

WRITTEN_OUT = [described for described in ALL if described.mixer in REFERENCES]
"""The mixers whose equations, parameters, state and calls are literals here; those of the other
families are in tests/mixers/."""

each_written_out = pytest.mark.parametrize("described", WRITTEN_OUT, ids=label)


@each_written_out
@by_sizes(SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_forward_equals_the_papers_equations(
    described: Implementation, sizes: dict[str, int], batch: int
) -> None:
    module = made(described, sizes)
    weights = {name: value.detach().numpy() for name, value in module.named_parameters()}
    for length in range(1, sizes["l"] + 1):
        x = inputs(batch, length, sizes["d"])
        reference = REFERENCES[described.mixer]
        expected = np.stack([reference(sample, weights, sizes["n"]) for sample in x.numpy()])
        assert module(x).shape == x.shape
        np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=ROUNDING)


@pytest.mark.grid(4)
@each
@by_sizes(FEW)
def test_forward_equals_the_equations(described: Implementation, sizes: dict[str, int]) -> None:
    """Whole sequences, shorter ones and single tokens, each sequence of a batch as if alone."""
    module = made(described, sizes)
    for length in {1, (sizes["l"] + 1) // 2, sizes["l"]}:
        given = sequences(described, sizes, 2, length)
        with torch.no_grad():
            y = module(*given)
        assert y.shape == given[0].shape
        close(y, evaluated(described, module, sizes, *given))


@pytest.mark.grid(4)
@each_stepping
@by_sizes(FEW)
def test_steps_equal_forward_and_hold_what_later_tokens_read(
    described: Implementation, sizes: dict[str, int]
) -> None:
    """Nothing else is read: what is not held is not a number, the rows of a complete chunk
    included, and the state is written in place."""
    batch = 3
    module, (x, *contexts) = made(described, sizes), sequences(described, sizes, batch)
    with torch.no_grad():
        y = module(x, *contexts)
    derived = cm.state(equations(described), described.step_form)
    known = completed(described, sizes)
    state = module.initial_state(batch, None, *contexts)
    assert set(state.arrays) == set(derived.arrays)
    if not contexts and "zero-state" not in described.step_rewrites:
        for array in state.arrays.values():  # before the first token nothing is held, no zeros even
            array.fill_(math.nan)
    addresses = {name: array.data_ptr() for name, array in state.arrays.items()}
    for i in range(sizes["l"]):
        close(module.step(x[:, i], state), y[:, i])
        assert state.position == i + 1
        assert state.elements == derived.at(**known, t=i + 1)
        for name, array in state.arrays.items():
            if not state.held(name).shape[-2]:
                array.fill_(math.nan)
        finite = sum(int(array.isfinite().sum()) for array in state.arrays.values())
        assert finite == batch * state.elements
    assert addresses == {name: array.data_ptr() for name, array in state.arrays.items()}


@each_written_out
def test_the_state_is_a_row_of_width_d_for_every_token(described: Implementation) -> None:
    module, x = made(described, {"d": 6, "l": 5, "n": 2}), inputs(1, 5, 6)
    state, y = module.initial_state(1), module(x)
    assert set(state.arrays) == STATE_ARRAYS.get(described.mixer, {"x"})
    for i in range(5):
        close(module.step(x[:, i], state), y[:, i])
        assert state.elements == len(state.arrays) * (i + 1) * 6


@pytest.mark.grid(3)
@each
def test_without_a_dtype_everything_has_torchs_own(described: Implementation) -> None:
    """Parameters and buffers, what is drawn as more exact numbers too."""
    module = made(described, {"d": 6, "l": 5, "n": 2}, dtype=None)
    held = [*module.parameters(), *module.buffers()]
    assert {tensor.dtype for tensor in held if tensor.is_floating_point()} <= {torch.float32}


@pytest.mark.grid(3)
@each
def test_a_class_steps_where_its_equations_are_causal(described: Implementation) -> None:
    """What has no `step` says why, in the equations' own words."""
    mixer, module = equations(described), made(described, {"d": 6, "l": 5, "n": 2})
    reason = without_inference(mixer, described.step_form or described.form)
    if reason is None:
        assert without_token(mixer, described) == ""
        assert isinstance(module, base.Mixer)
    else:
        assert described.step_form is None
        assert not hasattr(module, "step") and not hasattr(module, "initial_state")
        said = without_token(mixer, described)
        assert said and said in reason


@pytest.mark.grid(3)
@each
def test_a_sequence_does_not_see_the_others_of_its_batch(described: Implementation) -> None:
    """One of three sequences is not a number, and the two beside it are what they are alone."""
    sizes = {"d": 6, "l": 5, "n": 2}
    module, given = made(described, sizes), sequences(described, sizes, 3)
    alone = [torch.stack([tensor[0], tensor[2]]) for tensor in given]
    for tensor in given:
        tensor[1] = math.nan
    with torch.no_grad():
        y, expected = module(*given), module(*alone)
        close(y[[0, 2]], expected)
        assert bool(y[1].isnan().all())
        if described.step_form:
            close(stepped(module, *given)[[0, 2]], stepped(module, *alone))


@pytest.mark.grid(3)
@each
def test_parameters_are_those_of_the_equations(described: Implementation) -> None:
    sizes, mixer = {"d": 6, "l": 5, "n": 2}, equations(described)
    shapes = {name: tuple(p.shape) for name, p in made(described, sizes).named_parameters()}
    known = completed(described, sizes)
    assert shapes == {
        array.name: tuple(extent.at(known) for extent in array.shape) for array in mixer.parameters
    }
    if described.mixer in PARAMETERS:
        assert shapes == {
            name: tuple(sizes[letter] for letter in letters)
            for name, letters in PARAMETERS[described.mixer].items()
        }


@pytest.mark.grid(6)
@each
def test_on_the_meta_device_there_are_shapes_alone(described: Implementation) -> None:
    """Sizes of a real network cost nothing there: as many parameters as the equations count."""
    large = {"d": 768, "l": 2048, "n": 12, "f": 3072}
    module = made(described, large, device="meta")
    held = sum(parameter.numel() for parameter in module.parameters())
    assert held == cm.parameters(equations(described)).at(**completed(described, large))
    sizes = {"d": 6, "l": 5, "n": 2}
    module = made(described, sizes, device="meta")
    x, *contexts = (tensor.to("meta") for tensor in sequences(described, sizes, 2))
    rows = [module(x, *contexts)]
    if described.step_form:
        rows.append(stepped(module, x, *contexts))
    for y in rows:
        assert (y.shape, y.dtype, y.device.type) == (x.shape, torch.float64, "meta")


@pytest.mark.grid(4)
@each
def test_autograd_equals_finite_differences(described: Implementation) -> None:
    sizes = {"d": 2, "l": 3, "n": 2}
    module = made(described, sizes)
    given = [tensor.requires_grad_() for tensor in sequences(described, sizes, 2)]
    assert torch.autograd.gradcheck(module, tuple(given))
    module(*given).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    if described.step_form:
        x, *contexts = given
        state = module.initial_state(2, 3, *contexts)
        assert not module.step(x[:, 0], state).requires_grad


@pytest.mark.parametrize("name", ["explicit", "sdpa"])
@pytest.mark.parametrize(("d", "n", "length"), [(6, 1, 7), (6, 3, 5), (10, 2, 3), (5, 5, 7)])
def test_self_attention_equals_torch_nn(name: str, d: int, n: int, length: int) -> None:
    module = made(registry.implementations("self-attention")[name], {"d": d, "l": length, "n": n})
    assert isinstance(module, SelfAttention)
    assert module.W_V is not None
    theirs = nn.MultiheadAttention(d, n, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([module.W_Q, module.W_K, module.W_V], dim=1).t())
        theirs.out_proj.weight.copy_(module.W_out.t())
    x = inputs(3, length, d)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=later, need_weights=False)
    torch.testing.assert_close(module(x), expected, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(stepped(module, x), expected, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("mixer", names())
def test_implementations_and_forms_of_one_mixer_agree(mixer: str) -> None:
    """At more tokens than one kernel's block, and fewer than l: all are the default form."""
    sizes = {"d": 6, "l": 37, "n": 3}
    for described in registry.implementations(mixer).values():
        module, given = made(described, sizes), sequences(described, sizes, 1, 31)
        default = replace(described, form=equations(described).default_form)
        close(module(*given).detach(), evaluated(default, module, sizes, *given))


# What is dispatched: a literal table, by hand, of the calls that compute (l = 3).

FREE = frozenset(
    {"view", "_unsafe_view", "expand", "transpose", "t", "permute", "select", "slice", "unfold"}
    | {"unsqueeze", "squeeze", "clone", "copy_", "flip", "constant_pad_nd", "detach"}
    | {"ones", "triu", "masked_fill"}
)
FORWARD = {
    ("self-attention", "explicit"): {"mm": 4, "bmm": 2, "div": 1, "_softmax": 1},
    ("self-attention", "sdpa"): {"mm": 4, "_scaled_dot_product_flash_attention_for_cpu": 1},
    ("she", "direct"): {"mm": 5, "add_": 2, "mul": 1},
    ("she", "conv"): {"convolution": 1, "mm": 2, "mul": 1},
    ("she", "fft"): {"_fft_r2c": 2, "bmm": 1, "_fft_c2r": 1, "mm": 2, "mul": 1},
    ("she-no-output", "direct"): {"mm": 4, "add_": 2, "mul": 1},
    ("she-no-output", "conv"): {"convolution": 1, "mm": 1, "mul": 1},
    ("she-no-output", "fft"): {"_fft_r2c": 2, "bmm": 1, "_fft_c2r": 1, "mm": 1, "mul": 1},
    ("she-extraction", "direct"): {"mm": 3, "add_": 2},
    ("she-extraction", "conv"): {"convolution": 1},
    ("she-extraction", "fft"): {"_fft_r2c": 2, "bmm": 1, "_fft_c2r": 1},
    ("he", "toeplitz"): {"convolution": 1, "mm": 3, "mul": 1},
    ("he", "fft"): {"_fft_r2c": 2, "_fft_c2r": 1, "mm": 3, "mul": 2},
    ("he-extraction", "toeplitz"): {"convolution": 1, "mm": 1},
    ("he-extraction", "fft"): {"_fft_r2c": 2, "_fft_c2r": 1, "mm": 1, "mul": 1},
    ("we", "toeplitz"): {"convolution": 1, "mm": 2, "mul": 1},
    ("we", "fft"): {"_fft_r2c": 2, "_fft_c2r": 1, "mm": 2, "mul": 2},
    ("me", "toeplitz"): {"bmm": 1},
    ("me", "fft"): {"_fft_r2c": 2, "_fft_c2r": 1, "mul": 1},
}
STEP = {
    ("self-attention", "explicit"): {"mm": 4, "bmm": 2, "div": 1, "_softmax": 1},
    ("self-attention", "sdpa"): {"mm": 4, "_scaled_dot_product_flash_attention_for_cpu": 1},
    "she": {"mm": 3, "mul": 1},
    "she-no-output": {"mm": 2, "mul": 1},
    "she-extraction": {"mm": 1},
    "he": {"mm": 3, "mul": 2, "sum": 1},
    "he-extraction": {"mm": 1, "mul": 1, "sum": 1},
    "we": {"mm": 2, "mul": 2, "sum": 1},
    "me": {"bmm": 1},
}


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """The operations dispatched: their names, the shapes of their operands, and what is cloned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.calls: list[tuple[str, list[tuple[int, ...]]]] = []
        self.cloned: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, shapes = (
            func.overloadpacket.__name__,
            [a.shape for a in args if isinstance(a, Tensor)],
        )
        self.calls.append((name, [tuple(shape) for shape in shapes]))
        self.cloned += args[:1] if name == "clone" else ()
        return func(*args, **(kwargs or {}))

    def counted(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls if name not in FREE)

    def copies(self, array: Tensor) -> int:
        """How often entries of this array were copied."""
        own = array.untyped_storage().data_ptr()
        return sum(t.untyped_storage().data_ptr() == own and t.numel() > 0 for t in self.cloned)


@each_written_out
@pytest.mark.parametrize("batch", [1, 2])
def test_forward_dispatches_its_description(described: Implementation, batch: int) -> None:
    module = made(described, {"d": 6, "l": 5, "n": 2})
    x = inputs(batch, 3, 6)
    with Dispatched() as dispatched:
        module(x)
    assert dispatched.counted() == FORWARD[described.mixer, described.name]


@each_written_out
@pytest.mark.parametrize("batch", [1, 2])
def test_step_dispatches_one_token(described: Implementation, batch: int) -> None:
    module, d = made(described, {"d": 6, "l": 5, "n": 2}), 6
    x = inputs(batch, 3, d)
    state = module.initial_state(batch)
    module.step(x[:, 0], state)
    module.step(x[:, 1], state)
    with Dispatched() as dispatched:
        module.step(x[:, 2], state)
    expected = STEP.get((described.mixer, described.name)) or STEP[described.mixer]
    assert dispatched.counted() == expected
    if described.mixer.startswith("she"):
        products = {shapes[-1] for name, shapes in dispatched.calls if name == "mm"}
        assert (3 * d, d) in products, "one contraction over the three tokens held"


@pytest.mark.grid(3)
@each_stepping
def test_a_step_copies_no_state_unless_it_slides(described: Implementation) -> None:
    """A copy of all that is held would cost more than the token; a window moves by one row."""
    sizes = {"d": 6, "l": 5, "n": 2}
    module, (x, *contexts) = made(described, sizes), sequences(described, sizes, 2)
    state = module.initial_state(2, 5, *contexts)
    module.step(x[:, 0], state)
    with Dispatched() as dispatched:
        module.step(x[:, 1], state)
    copies = [dispatched.copies(array) for array in state.arrays.values()]
    assert max(copies) <= state.sliding


# dtypes

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
"""About a hundred roundings of values near one: 2**-53, 2**-24, 2**-11, 2**-8 each."""


@pytest.mark.grid(4)
@each
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_dtype_is_computed_or_refused(described: Implementation, dtype: torch.dtype) -> None:
    sizes = {"d": 6, "l": 5, "n": 2}
    given = sequences(described, sizes, 3)
    module, exact = made(described, sizes, dtype=dtype), made(described, sizes)(*given)
    given = tuple(tensor.to(dtype) for tensor in given)
    found = []
    with Dispatched() as dispatched:
        if described.step_form:
            found.append(stepped(module, *given))
        if described.form == "fft" and dtype in (torch.float16, torch.bfloat16):
            with pytest.raises(Unsupported, match=r"torch\.fft has no transform in|complex32"):
                module(*given)
        else:
            found.append(module(*given))
    assert "_to_copy" not in {name for name, _ in dispatched.calls}
    for y in found:
        assert y.dtype == dtype
        close(y.double(), exact, TOLERANCE[dtype])


def test_a_kernel_that_lacks_the_dtype_is_unsupported() -> None:
    class Lacking(SelfAttention):
        def mix(self, x: Tensor) -> Tensor:
            raise NotImplementedError("\"slow_conv2d_cpu\" not implemented for 'Half'")

        def advance(self, x_t: Tensor, state: base.State) -> Tensor:
            raise RuntimeError("out of memory")

    module = Lacking(d=2, l=3, n=1)
    with pytest.raises(Unsupported, match=r"Lacking on cpu in torch\.float32: .*not implemented"):
        module(torch.zeros(1, 3, 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        module.step(torch.zeros(1, 2), module.initial_state(1))


# bad input


@pytest.mark.grid(3)
@each
def test_wrong_shapes_are_refused(described: Implementation) -> None:
    sizes = {"d": 4, "l": 5, "n": 2}
    module, contexts = made(described, sizes), sequences(described, sizes, 1)[1:]
    for shape in [(5, 4), (1, 5, 7), (1, 0, 4)]:
        with pytest.raises(ValueError, match=r"x must be \(batch, length, 4\) and is"):
            module(torch.zeros(shape, dtype=torch.float64), *contexts)
    with pytest.raises(ValueError, match=r"x is torch.float32 and the parameters are"):
        module(torch.zeros(1, 5, 4, dtype=torch.float32), *contexts)


@pytest.mark.grid(3)
@each_stepping
def test_wrong_tokens_and_lengths_are_refused(described: Implementation) -> None:
    sizes = {"d": 6, "l": 5, "n": 2}
    module, contexts = made(described, sizes), sequences(described, sizes, 2)[1:]
    state = module.initial_state(2, 3, *contexts)
    d = module.d
    for shape in [(2, d + 1), (3, d), (2, 1, d)]:
        with pytest.raises(ValueError, match=rf"x_t must be \(2, {d}\), one token for each sample"):
            module.step(torch.zeros(shape, dtype=torch.float64), state)
    with pytest.raises(ValueError, match=r"x is torch.float32 and the parameters are"):
        module.step(torch.zeros(2, d, dtype=torch.float32), state)
    assert state.position == 0
    for batch, length in [(0, 3), (1, 0), (1, -2), (True, 3), (2.5, 3), (2, True)]:
        with pytest.raises(ValueError, match="must be a positive integer and is"):
            module.initial_state(batch, length, *contexts)


def grows(described: Implementation, sizes: dict[str, int]) -> bool:
    """Whether ever more must be held for ever more tokens; what is held of a chunk comes and goes,
    and both numbers of tokens are whole chunks."""
    derived, known = (
        cm.state(equations(described), described.step_form),
        completed(described, sizes),
    )
    return derived.at(**known, t=5040) < derived.at(**known, t=10080)


@pytest.mark.grid(3)
@each_stepping
def test_a_full_state_is_refused(described: Implementation) -> None:
    """A state that does not grow with the tokens is never full."""
    sizes = {"d": 6, "l": 5, "n": 2}
    module, (x, *contexts) = made(described, sizes), sequences(described, sizes, 2, 5)
    state = module.initial_state(2, 3, *contexts)
    for i in range(3):
        module.step(x[:, i], state)
    if grows(described, sizes):
        with pytest.raises(ValueError, match="the state is full, with 3 tokens of at most 3"):
            module.step(x[:, 3], state)
        assert state.position == 3
    else:
        with torch.no_grad():
            y = module(x, *contexts)
        for i in (3, 4):
            close(module.step(x[:, i], state), y[:, i])
        assert state.position == 5


@pytest.mark.grid(3)
@each
def test_only_weights_bound_the_length(described: Implementation) -> None:
    sizes = {"d": 6, "l": 5, "n": 2}
    module, given = made(described, sizes), sequences(described, sizes, 2, 7)
    assert module.bounded == bounded(equations(described), described.form)
    if not module.bounded:
        y = module(*given).detach()
        if described.step_form:
            close(stepped(module, *given), y)
        if described.step_form and reads_the_length(described):  # at l = 5, whatever follows
            given, y = (given[0][:, :5], *given[1:]), y[:, :5]
        close(y, evaluated(described, module, sizes, *given))
        return
    with pytest.raises(ValueError, match="the sequence has 7 tokens and the weights end at l = 5"):
        module(*given)
    if described.step_form:
        with pytest.raises(ValueError, match="length 7 is greater than l = 5"):
            module.initial_state(2, 7)


@pytest.mark.parametrize("mixer", [
    "self-attention+window+alibi", "self-attention+chunked-window+alibi", "mistral-attention",
    "aft-local+causal", "retnet",
])  # fmt: skip
def test_no_token_lies_behind_the_weights(mixer: str) -> None:
    """Even where the state has room for it."""
    described = next(iter(registry.implementations(mixer).values()))
    module, x = made(described, {"d": 4, "l": 3, "n": 2}), inputs(1, 4, 4)
    state = module.initial_state(1)
    for i in range(3):
        module.step(x[:, i], state)
    with pytest.raises(ValueError, match="token 4 lies behind l = 3, where the weights end"):
        module.step(x[:, 3], state)
    assert state.position == 3


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("sinks", [0, 1, 2])
@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_a_sliding_state_holds_the_latest_rows(
    capacity: int, sinks: int, newest_first: bool
) -> None:
    """Of each array as many as it has room for, behind the rows of the first tokens, the sinks."""
    tokens, room = inputs(2, 5, 4), {"x": capacity, "z": 2}
    rows = {name: tokens.new_zeros(2, fit, 4) for name, fit in room.items()}
    state = base.State(rows, newest_first=newest_first, sliding=True, sinks=sinks)
    for t in range(1, 6):
        state.append(**dict.fromkeys(room, tokens[:, t - 1]))
        for name, fit in room.items():
            first = min(sinks, fit)
            seen = [r for r in range(t) if r < first or r >= t - (fit - first)]
            latest = tokens[:, seen]
            assert torch.equal(state.held(name), latest.flip(1) if newest_first else latest)
        held = sum(min(t, fit) * 4 for fit in room.values())
        assert (state.position, state.elements) == (t, held)


ROWS = {
    (2, 3): "so that a row of K has shape (2, 3, 7), without the axis of tokens, and a row came as "
    "(2, 3)",
    (2, 3, 1, 7): "and a row came as (2, 3, 1, 7): pass K=row.squeeze(-2)",
    (2, 3, 5, 7): "a row came as (2, 3, 5, 7): an array that each token replaces whole is named in "
    "State(..., carried=('K',))",
}


@pytest.mark.parametrize("shape", ROWS)
def test_a_row_of_another_shape_is_told_the_remedy_that_works(shape: tuple[int, ...]) -> None:
    state = base.State({"K": torch.zeros(2, 3, 5, 7)})
    with pytest.raises(ValueError, match=f"{re.escape(ROWS[shape])}$"):
        state.append(K=torch.ones(shape))
    state.append(K=torch.ones(2, 3, 7))
    base.State({"K": torch.zeros(2, 3, 5, 7)}, carried=("K",)).append(K=torch.ones(2, 3, 5, 7))


def test_one_row_may_be_a_row_or_the_whole_array() -> None:
    """At l = 1 an array has one row, and both remedies are named."""
    with pytest.raises(ValueError, match=r"K=row.squeeze\(-2\); an array .* carried=\('K',\)"):
        base.State({"K": torch.zeros(2, 3, 1, 7)}).append(K=torch.ones(2, 3, 1, 7))


@pytest.mark.parametrize("state", [
    base.State({"x": torch.zeros(1, 3, 2)}),
    base.State({"x": torch.zeros(1, 1, 2)}, sliding=True),
    base.State({"x": torch.zeros(1, 2)}, carried=("x",)),
])  # fmt: skip
def test_what_a_step_read_outlives_later_rows_under_gradients(state: base.State) -> None:
    """y = 1 + p + p*p has the slope 1 + 2p, though later rows are written over those read."""
    p = torch.tensor(5.0, requires_grad=True)
    y = row = torch.ones(1, 2)
    for _ in range(2):
        state.append(x=row)
        row = p * state.held("x").reshape(-1, 2)[-1:]
        y = y + row
    state.append(x=row)
    (slope,) = torch.autograd.grad(y[0, 0], p)
    assert float(slope) == 11


def test_queries_train_beside_frozen_keys() -> None:
    state = base.State({"x": torch.zeros(1, 3, 2)})
    q, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.zeros(())
    for k in (1.0, 4.0):
        state.append(x=torch.full((1, 2), k))
        y = y + (state.held("x") @ q).sum()
    (slope,) = torch.autograd.grad(y, q)
    assert slope.tolist() == [6, 6]  # 1, then 1 + 4


def test_a_row_of_an_array_that_the_state_lacks_is_refused() -> None:
    expected = r"rows are \[\] and came as \['S'\]: give State a tensor for S; an array that each "
    with pytest.raises(ValueError, match=expected + r"token replaces .* named in carried=\('S',\)"):
        base.State({}, sliding=True).append(S=torch.zeros(2, 3, 3))


def test_a_row_of_another_shape_says_where_rows_lie() -> None:
    state = base.State({"K": torch.zeros(2, 3, 4, 5)}, sliding=True)
    expected = r"K is \(2, 3, 4, 5\) with .* axis -2, so that a row of K has shape \(2, 3, 5\)"
    with pytest.raises(ValueError, match=expected):
        state.append(K=torch.zeros(2, 4, 5))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4), (2, 1, 3)])
def test_a_refused_token_leaves_the_state_as_it_was(shape: tuple[int, ...]) -> None:
    """An array that each token replaces is not filled by a smaller one."""
    arrays = {"x": torch.zeros(2, 1, 3), "S": torch.zeros(2, 3)}
    state = base.State(arrays, sliding=True, carried=("S",))
    with pytest.raises(ValueError, match=rf"S is \(2, 3\) and came as {re.escape(str(shape))}"):
        state.append(x=torch.ones(2, 3), S=torch.ones(shape))
    assert state.position == 0 and not state.arrays["x"].any()


def test_a_state_of_another_mixer_is_refused() -> None:
    she = made(registry.implementations("she")["direct"], SIZES[0])
    attention_state = made(registry.implementations("self-attention")["sdpa"], SIZES[0])
    with pytest.raises(ValueError, match=r"a token's rows are \['K', 'V'\] and came as \['x'\]"):
        she.step(inputs(1, 1, 6)[:, 0], attention_state.initial_state(1))


@pytest.mark.parametrize(
    ("mixer", "sizes", "message"),
    [
        ("self-attention", {"d": 6, "l": 5, "n": 4}, "d must be divisible by n: d = 6 and n = 4"),
        ("self-attention", {"d": 6, "l": 5}, "self-attention explicit needs the size n and was"),
        ("she", {"d": 0, "l": 5}, "size d must be a positive integer and is 0"),
        ("she", {"d": 6, "l": 2.5}, r"size l must be a positive integer and is 2\.5"),
        ("she", {"d": 6, "l": True}, "size l must be a positive integer and is True"),
        ("me", {"l": 5}, "me toeplitz needs the size d and was given l"),
    ],
)
def test_bad_sizes_are_refused(mixer: str, sizes: dict[str, int], message: str) -> None:
    described = next(iter(registry.implementations(mixer).values()))
    with pytest.raises(ValueError, match=message):
        build(described, sizes, device="cpu", dtype=torch.float64, seed=3)


class NeedsHeadWidth(nn.Module):
    """A class whose constructor has no default for h."""

    def __init__(self, *, n: int, h: int, **_: Any) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(n, h))


def test_a_class_that_needs_the_head_width_gets_d_over_n() -> None:
    described = next(iter(registry.implementations("self-attention").values()))
    own = replace(described, made=NeedsHeadWidth)

    def shape(**sizes: int) -> tuple[int, ...]:
        made = build(own, sizes, device="cpu", dtype=torch.float64, seed=3)
        return tuple(made.get_parameter("W").shape)

    assert shape(d=6, l=5, n=2) == (2, 3) and shape(d=6, l=5, n=2, h=7) == (2, 7)
    with pytest.raises(ValueError, match="size n must be a positive integer and is 0"):
        shape(d=6, l=5, n=0)
    with pytest.raises(ValueError, match="needs the size h and was given d, l, n"):
        shape(d=7, l=5, n=2)


def test_parameters_that_are_not_drawn_repeat_numbers(instead: Instead) -> None:
    instead(period_of_layers=7)
    described = registry.implementations("she")["direct"]
    one, twin = (
        build(described, {"d": 3, "l": 2}, device="cpu", dtype=torch.float64, seed=5, drawn=drawn)
        for drawn in (False, True)
    )
    numbers = one.get_parameter("W_ext").flatten().tolist()
    assert numbers[7:14] == numbers[:7] and numbers[14:] == numbers[:4]
    for other in (twin, type(one)(d=3, l=2)):
        assert len({*other.get_parameter("W_ext").flatten().tolist()}) == 18


# the registrations


@pytest.fixture
def registrations(instead: Instead) -> None:
    copy = {mixer: dict(named) for mixer, named in registry._registry.items()}
    instead(described_modules=copy)


def test_the_default_implementation_stands_first() -> None:
    assert list(registry.implementations("self-attention")) == ["explicit", "sdpa"]
    assert list(registry.implementations("she")) == ["direct", "conv", "fft"]
    assert list(registry.implementations("me")) == ["toeplitz", "fft"]


@pytest.mark.parametrize(
    ("mixer", "name", "kernels", "step_kernels"),
    [
        (
            "he",
            "fft",
            "u:contraction u_f:fft w_f:fft e_f:complex-elementwise ext:fft adj:contraction "
            "y:contraction",
            "u:contraction ext:reduction adj:contraction y:contraction",
        ),
        (
            "she-extraction",
            "fft",
            "x_f:fft W_f:fft e_f:complex-contraction y:fft",
            "y:contraction",
        ),
        ("she-no-output", "conv", "ext:convolution y:contraction", "ext:contraction y:contraction"),
        ("he-extraction", "toeplitz", "u:contraction y:convolution", "u:contraction y:reduction"),
        ("me", "toeplitz", "y:contraction", "y:contraction"),
        (
            "self-attention",
            "sdpa",
            "Q:contraction K:contraction V:contraction Z:fused-attention A:fused-attention "
            "R:fused-attention y:contraction",
            "Q:contraction K:contraction V:contraction Z:fused-attention A:fused-attention "
            "R:fused-attention y:contraction",
        ),
    ],
)
def test_kernel_classes_by_array(mixer: str, name: str, kernels: str, step_kernels: str) -> None:
    described = registry.implementations(mixer)[name]
    assert described.kernels == dict(pair.split(":") for pair in kernels.split())
    assert described.step_kernels == dict(pair.split(":") for pair in step_kernels.split())


def arrays_of(mixer: Equations, form: str) -> set[str]:
    """What the equations of a form compute."""
    return {equation.name for equation in mixer.forms[form].equations}


def test_every_class_is_swept() -> None:
    """What the tests above run over is all that the files of modules describe."""
    described = {it.module for named in registry._registry.values() for it in named.values()}
    own = {module for module in described if module.__module__.startswith("profiler.mixers.")}
    assert own == {it.module for it in ALL}


@pytest.mark.grid(3)
@each
def test_descriptions_are_complete(described: Implementation) -> None:
    """Every equation has its kernel class, and every class an equation."""
    mixer = equations(described)
    assert (described.kernels or {}).keys() == arrays_of(mixer, described.form)
    assert "dense" not in described.step_rewrites
    if described.step_form:
        assert (described.step_kernels or {}).keys() == arrays_of(mixer, described.step_form)
    found = registry.implementations(described.mixer)[described.name]
    assert found == described and hash(found) == hash(described)


@each_written_out
def test_one_token_is_mixed_by_the_direct_form(described: Implementation) -> None:
    assert described.step_form == "direct"


@pytest.mark.usefixtures("registrations")
def test_a_users_class_takes_two_lines() -> None:
    @implementation("decay")
    class Decay(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(d))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    (described,) = registry.implementations("decay").values()
    assert described.module is Decay
    assert (described.name, described.form, described.rewrites) == ("direct", "direct", ())
    assert (described.kernels, described.step_kernels, described.step_form) == (None, None, None)
    module = build(described, {"d": 3, "l": 5}, device="cpu", dtype=torch.float64, seed=0)
    assert module(inputs(1, 2, 3)).count_nonzero() == 6


@pytest.mark.usefixtures("registrations")
def test_a_users_class_joins_a_built_in_mixer() -> None:
    @implementation("she", "mine", rewrites=("dense", "scale=mul"))
    class Mine(nn.Module):
        def step(self) -> None: ...

    described = registry.implementations("she")
    assert list(described) == ["direct", "conv", "fft", "mine"]
    assert described["mine"].step_form == "direct"
    assert described["mine"].step_rewrites == ("scale=mul",)
    implementation("she", "mine")(Mine)
    with pytest.raises(ValueError, match="'she' has an implementation 'direct' already, SheDirect"):
        implementation("she", "direct")(Mine)


def test_unknown_names_are_refused() -> None:
    known = re.escape(", ".join(sorted(names())))
    with pytest.raises(
        ValueError, match=f"no module implements the mixer 'shee', known are {known}"
    ):
        registry.implementations("shee")
    with pytest.raises(ValueError, match="the kernel class of y is 'matmul' and must be one of"):
        implementation("she", "mine", kernels={"y": "matmul"})(nn.Linear)


def test_files_are_loaded_when_asked() -> None:
    code = (
        "import sys, profiler.modules as m; m.implementations('self-attention'); "
        "assert 'profiler.mixers.self_attention' in sys.modules; "
        "assert 'profiler.mixers.extractor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# build


@pytest.mark.grid(3)
@each
def test_seeds_decide_the_parameters(described: Implementation) -> None:
    sizes = {"d": 6, "l": 5, "n": 2}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, again, other = (made(described, sizes, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    single = made(described, sizes, seed=1, dtype=torch.float32).state_dict()
    mixer = equations(described)
    untrained = (array for array in mixer.buffers if array.value is None)
    assert one.keys() == {array.name for array in (*mixer.parameters, *untrained)}
    for name, value in one.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value.float(), single[name])
        assert not torch.equal(value, other[name])
    default = next(iter(registry.implementations(described.mixer).values()))
    assert all(
        torch.equal(one[name], value)
        for name, value in made(default, sizes, seed=1).state_dict().items()
    )


@pytest.mark.parametrize(
    ("mixer", "terms"),
    [("she", 64 * 16), ("he", 64), ("me", 64)],
    ids=["matrix", "vector", "scalar"],
)
def test_kernels_have_one_over_root_fan_in(mixer: str, terms: int) -> None:
    described = next(iter(registry.implementations(mixer).values()))
    module = made(described, {"d": 16, "l": 64})
    kernel = dict(module.named_parameters())["W_ext" if mixer == "she" else "w_ext"]
    error = 5 / math.sqrt(2 * kernel.numel())  # five standard errors of a standard deviation
    assert float(kernel.detach().std()) * math.sqrt(terms) == pytest.approx(1, abs=error)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN packs them anew in every call
@pytest.mark.grid(3)
@each
def test_the_device_changes_nothing(described: Implementation) -> None:
    sizes = {"d": 32, "l": 16, "n": 2}
    given = sequences(described, sizes, 3, 13)
    here, there = (made(described, sizes, device=device) for device in ("cpu", "cuda"))
    for mine, theirs in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(mine, theirs.cpu())
    y = here(*given).detach()
    moved = [tensor.cuda() for tensor in given]
    if "fused-attention" in (described.kernels or {}).values():
        with pytest.raises(Unsupported, match="no fused attention kernel on cuda"):
            there(*moved)
        there, moved = there.half(), [tensor.half() for tensor in moved]
    found = [there(*moved)] + ([stepped(there, *moved)] if described.step_form else [])
    for theirs in found:
        close(theirs.detach().cpu().double(), y, TOLERANCE[moved[0].dtype])
