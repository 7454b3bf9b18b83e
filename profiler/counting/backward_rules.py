"""How many scalar operations do the layers of torch.nn and their derivatives perform?

The rules here extend those of `forward_rules.py`; a symbolic trace needs both. The source of a
derivative is the formula in torch's own `derivatives.yaml` or, where that file names a kernel, the
arithmetic of the kernel, quoted with each rule. Products with padding are counted, as for
convolutions. A sum of R terms into zeros is R - 1 adds where R follows from shapes, because the
first term is stored, and R adds where it depends on indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from math import floor, prod

from profiler.counting.call import Call, CountError, Rule
from profiler.counting.forward_rules import (
    converted,
    convolution as plain_convolution,
    entry_sum,
    free,
    reduction,
    refuse_complex,
    row_count,
    softmax,
)
from profiler.counting.indexed_rules import INDEXED_RULES
from profiler.counting.operations import (
    COMPARE,
    FUNCTIONS,
    NOTHING,
    Operations,
    named_operation,
    operations_of_steps,
)
from profiler.counting.pooling_rules import POOLING_RULES, per_axis
from profiler.counting.promotion import joined, promoted

# elementwise derivatives


DERIVATIVES: Mapping[str, Operations] = {
    "threshold_backward": COMPARE,  # where(x <= threshold, 0, grad)
    "tanh_backward": operations_of_steps(("mul", "add", "mul")),  # grad * (1 - y * y)
    "sigmoid_backward": operations_of_steps(("add", "mul", "mul")),  # grad * (1 - y) * y
    # s = sigmoid(x); grad * s * (1 + x * (1 - s))
    "silu_backward": FUNCTIONS["sigmoid"]
    + operations_of_steps(("add", "mul", "add", "mul", "mul")),
    "leaky_relu_backward": operations_of_steps(
        ("mul", "compare")
    ),  # where(x > 0, grad, grad * slope)
    "hardshrink_backward": COMPARE * 2,  # where(x >= -lambd and x <= lambd, 0, grad)
    "softshrink_backward": COMPARE * 2,
    "hardtanh_backward": COMPARE * 2,  # where(x <= min or x >= max, 0, grad)
}
"""Operations of a derivative at one entry; grad is the gradient of the result y = f(x)."""

GELU_BACKWARD = Operations(mul=7, add=2, exp=1, other={"erf": 1})
"""grad * (cdf + x * pdf), cdf = (1 + erf(x * 2**-0.5)) * 0.5, pdf = exp(x * x * -0.5) * c, as the
kernel GeluBackward computes it."""


def at_every_entry(call: Call, operations: Operations) -> Operations:
    """`operations` at every entry of the result; CountError if a tensor of the call is complex."""
    refuse_complex(call, *call.inputs, call.output)
    return operations * call.output.numel()


def gelu_backward(call: Call) -> Operations:
    """The operations of GELU's exact derivative, the same at every entry. CountError for the tanh
    approximation, whose derivative is then counted through torch's decomposition."""
    if call.arguments["approximate"] != "none":
        raise CountError(f"{call.name}: no counting rule for approximate='tanh', only for 'none'")
    return at_every_entry(call, GELU_BACKWARD)


def log_softmax_backward(call: Call) -> Operations:
    """The operations of grad - exp(y) * sum(grad) along each row."""
    entries, rows = call.output.numel(), row_count(call, call.output)
    return Operations(mul=entries, add=2 * entries - rows, exp=entries)


def softplus_backward(call: Call) -> Operations:
    """The operations of the derivative of softplus: z = exp(x); grad * z / (z + 1). As in the
    forward pass, the comparison with the threshold above which the kernel returns x is not counted.
    CountError for beta other than 1."""
    if call.arguments["beta"] != 1:
        raise CountError(
            f"{call.name}: no counting rule for beta={call.arguments['beta']}, only for 1"
        )
    return at_every_entry(call, operations_of_steps(("exp", "mul", "add", "div")))


def logit(call: Call) -> Operations:
    """The operations of log(x / (1 - x)) at every entry; with `eps`, of two comparisons before."""
    clamped = COMPARE * (0 if call.arguments["eps"] is None else 2)
    return at_every_entry(call, clamped + operations_of_steps(("add", "div", "log")))


# convolutions


@cache
def covered_positions(windows: int, kernel: int, stride: int, dilation: int) -> int:
    """The number of positions along one axis that at least one of `windows` windows touches. Window
    i touches i * stride + j * dilation for each j below `kernel`.

    >>> covered_positions(5, 3, 1, 1), covered_positions(5, 2, 3, 1)
    (7, 10)
    """
    reach = dilation * (kernel - 1) + 1
    if dilation == 1 or kernel == 1:
        return windows * kernel if stride >= reach else (windows - 1) * stride + reach
    return len({i * stride + j * dilation for i in range(windows) for j in range(kernel)})


def touched_positions(call: Call, windows: Sequence[int], kernel: Sequence[int]) -> int:
    """The number of positions over all axes that at least one window touches, including positions
    of the padding; `windows` and `kernel` have the number of windows and of taps for each axis."""
    strides, dilations = call.arguments["stride"], call.arguments["dilation"]
    axes = len(kernel)
    return prod(
        covered_positions(n, k, s, d)
        for n, k, s, d in zip(
            windows, kernel, per_axis(strides, axes), per_axis(dilations, axes), strict=True
        )
    )


def any_convolution(call: Call) -> Operations:
    """The operations of a convolution, plain or transposed. A transposed one multiplies every input
    entry with every tap and sums the products that fall on one position, also on positions that
    padding crops. CountError for complex tensors."""
    if not call.arguments["transposed"]:
        return plain_convolution(call)
    x, weight, out = call.tensor("input"), call.tensor("weight"), call.output
    refuse_complex(call, x, weight)
    products = x.numel() * prod(weight.shape[1:])
    if not products:
        return NOTHING
    sums = prod(out.shape[:2]) * touched_positions(call, x.shape[2:], weight.shape[2:])
    bias = out.numel() if call.arguments["bias"] is not None else 0
    return Operations(mul=products, add=products - sums + bias)


def convolution_backward(call: Call) -> Operations:
    """The operations of those gradients of input, weight and bias that `output_mask` asks for. The
    gradient of the input is a transposed convolution of the result's gradient with the weight (a
    plain one if the forward pass was transposed); the gradient of the weight sums products over
    batch and positions; the gradient of the bias sums the result's gradient. Nothing without
    products; CountError for complex tensors."""
    grad, x, weight = (call.tensor(n) for n in ("grad_output", "input", "weight"))
    refuse_complex(call, grad, x, weight)
    wanted, transposed = call.arguments["output_mask"], call.arguments["transposed"]
    products = (x if transposed else grad).numel() * prod(weight.shape[1:])
    total = NOTHING
    if not products:
        return total
    if wanted[0]:
        spatial, kernel = grad.shape[2:], weight.shape[2:]
        sums = x.shape[0] * x.shape[1] * touched_positions(call, spatial, kernel)
        total += Operations(mul=products, add=products - (x.numel() if transposed else sums))
    if wanted[1]:
        total += Operations(mul=products, add=products - weight.numel())
    if wanted[2]:
        total += Operations(add=grad.numel() - grad.shape[1])
    return total


def unfold_backward(call: Call) -> Operations:
    """The operations of the derivative of `unfold` (windows along an axis): every entry of every
    window is added to its position along the axis: one addition per entry, less one per covered
    position, whose first entry is only stored."""
    grad, axis = call.tensor("grad_in"), int(call.arguments["dim"])
    windows, size = grad.shape[:-1][axis], grad.shape[-1]  # the axis may be counted from the end
    if not grad.numel():
        return NOTHING
    places = covered_positions(int(windows), int(size), int(call.arguments["step"]), 1)
    return entry_sum(grad) * (grad.numel() - grad.numel() // (windows * size) * places)


# interpolation


@cache
def resampled_from(extent: int, results: int, taps: int, ratio: float, begin: float) -> int:
    """The number of different entries of an axis of `extent` entries that interpolation reads for
    `results` results: result i reads the `taps` entries around position i * ratio + begin, and the
    entry at an end in place of those beyond."""
    before = (taps - 1) // 2
    firsts = (floor(i * ratio + begin) - before for i in range(results))
    return len({min(max(first + t, 0), extent - 1) for first in firsts for t in range(taps)})


def resampled_backward(call: Call, axes: int, taps: int, centred: bool = True) -> Operations:
    """The operations of the derivative of interpolation over `axes` axes with `taps` taps along
    each (1 nearest, 2 linear, 4 cubic): every gradient, times the weight of each axis (of nearest
    entries: 1), is summed into the taps**axes entries around its position (the kernels
    upsample_*_backward): one addition less than terms for each entry that gets any. The weights
    follow from positions alone, as indices do, and are not counted. `centred`: positions are those
    of the middles of entries."""
    grad, source = call.tensor("grad_output"), call.arguments["input_size"]
    scales = [value for name, value in call.arguments.items() if name.startswith("scales")]
    corners, entries = call.arguments.get("align_corners"), prod(source[:-axes])
    middle = 0.0 if corners or not centred else 0.5
    for n, m, scale in zip(source[-axes:], grad.shape[-axes:], scales, strict=True):
        # n entries give m; where n = m, torch copies nearest entries, whatever the scale
        given = scale and (centred or n != m)
        ratio = (n - 1) / max(m - 1, 1) if corners else 1 / scale if given else n / max(m, 1)
        begin = middle * ratio - (middle if taps > 1 else 0)
        entries *= resampled_from(n, m, taps, ratio, begin)
    terms = grad.numel() * taps**axes
    return Operations(mul=terms * axes if taps > 1 else 0, add=max(terms - entries, 0))


def padded_from(extent: int, left: int, right: int, *, reflected: bool) -> int:
    """The number of distinct entries of an axis in the axis padded with copies: of its mirror image
    (`reflected`) or of the entry at the end. A negative number crops, also the other end's copies.

    >>> padded_from(5, 2, 1, reflected=True), padded_from(5, -2, 3, reflected=True)
    (5, 4)
    >>> padded_from(5, -6, 3, reflected=True), padded_from(5, -6, 3, reflected=False)
    (2, 1)
    """
    first, last = -left, extent - 1 + right

    def entry(place: int) -> int:
        """The entry of which a place of the padded axis is a copy."""
        if not reflected:
            return min(max(place, 0), extent - 1)
        return abs(place) if place < extent else 2 * (extent - 1) - place

    # between two turns, places in order are copies of entries in order
    turns = (turn for turn in (0, extent - 1) if first < turn < last)
    copied = [entry(place) for place in (first, last, *turns)]
    return max(copied) - min(copied) + 1


def padded_backward(call: Call, *, reflected: bool) -> Operations:
    """The operations of the derivative of padding by reflection (`reflected`) or replication: every
    gradient is summed into the entry of which the padded entry is a copy, one addition less than
    terms for each entry with a copy: 3 for 4 entries padded to 7. `padding`: last axis first."""
    grad, source, ends = call.tensor("grad_output"), call.output, call.arguments["padding"]
    axes = len(ends) // 2
    copied = prod(source.shape[:-axes])
    for n, left, right in zip(source.shape[-axes:], ends[-2::-2], ends[::-2], strict=True):
        copied *= padded_from(n, left, right, reflected=reflected)
    return entry_sum(grad) * (grad.numel() - copied)


# statistics


def variance(call: Call, *, root: bool = False) -> Operations:
    """The operations of a variance or, with `root`, a standard deviation. Per row of R entries: the
    mean (R - 1 adds, a division), R differences and squares, their sum and a division; with `root`
    a square root. A row without entries takes none."""
    source = call.tensor("self")
    refuse_complex(call, source)
    entries, rows = source.numel(), min(call.output.numel(), source.numel())
    steps = Operations(mul=entries, add=3 * entries - 2 * rows, div=2 * rows)
    return steps + (FUNCTIONS["sqrt"] * rows if root else NOTHING) + converted(call, source)


# random numbers, and functions counted under their own name


def one_per_entry(call: Call, name: str) -> Operations:
    """One operation called `name` at every entry of the result."""
    return named_operation(name) * call.output.numel() + promoted(call)


DRAWN = "bernoulli exponential normal rand rand_like randn randn_like uniform"

BY_NAME = """
    acos acosh angle asin asinh atan atan2 atanh ceil copysign cosh digamma erfc erfinv exp2
    floor_divide fmod frac hypot i0 igamma igammac lgamma log10 log2 nextafter remainder
    round sgn sign sinh special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_spherical_bessel_j0 special_zeta tan trunc
"""

FREE_BESIDE = """
    _assert_async _efficientzerotensor _has_same_storage_numel _pack_padded_sequence _unsafe_index
    as_strided_scatter bitwise_left_shift bitwise_right_shift bitwise_xor
    channel_shuffle detach_ diag_embed diagonal_scatter embedding index_copy
    index_fill masked_scatter narrow_copy pixel_shuffle pixel_unshuffle reflection_pad1d
    reflection_pad2d reflection_pad3d repeat_interleave replication_pad1d replication_pad2d
    replication_pad3d resize_ resize_as_ rot90 set_ signbit slice_copy split_copy unsafe_chunk
    unsafe_split_with_sizes view_copy
"""

LAYER_RULES: Mapping[str, Rule] = {
    **{name: partial(at_every_entry, operations=steps) for name, steps in DERIVATIVES.items()},
    **dict.fromkeys(FREE_BESIDE.split(), free),
    **{name: partial(one_per_entry, name="random") for name in DRAWN.split()},
    **{name: partial(one_per_entry, name=name) for name in BY_NAME.split()},
    **INDEXED_RULES,
    **POOLING_RULES,
    **{
        f"{kind}_pad{axes}d_backward": partial(padded_backward, reflected=kind == "reflection")
        for kind in ("reflection", "replication")
        for axes in (1, 2, 3)
    },
    **{
        f"{kind}{axes}d_backward": partial(resampled_backward, axes=axes, taps=1, centred=centred)
        for kind, centred in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
        for axes in (1, 2, 3)
    },
    **{
        f"upsample_{kind}{axes}d_backward": partial(resampled_backward, axes=axes, taps=2)
        for axes, kind in enumerate(("linear", "bilinear", "trilinear"), 1)
    },
    "upsample_bicubic2d_backward": partial(resampled_backward, axes=2, taps=4),
    "logit": logit,
    "_linalg_check_errors": free,
    "block_diag": joined,
    "prod": partial(reduction, each=Operations(mul=1)),
    "softplus_backward": softplus_backward,
    "gelu_backward": gelu_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "_safe_softmax": softmax,  # as in a fused kernel, a search for rows without keys is not counted
    "convolution": any_convolution,
    "convolution_backward": convolution_backward,
    "unfold_backward": unfold_backward,
    "var": variance,
    "std": partial(variance, root=True),
    "var_mean": variance,
    "std_mean": partial(variance, root=True),
}
