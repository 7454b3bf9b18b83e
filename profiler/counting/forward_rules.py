"""How many scalar operations does each torch operation perform, by its documented definition?

The sum of R terms is R - 1 adds; entries that a mask discards later are counted, because they are
computed. Conversions between floating types are `other["convert"]`, one per entry, also where an
operation converts its operands by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from profiler.counting.call import Call, CountError, Rule, is_arithmetic, is_tensor
from profiler.counting.operations import COMPARE, FUNCTIONS, NOTHING, Operations, named_operation
from profiler.counting.promotion import PROMOTING, joined, with_promotion
from profiler.counting.transform_rules import fft

if TYPE_CHECKING:
    from torch import Tensor

COMPLEX_PRODUCT = Operations(mul=4, add=2)
COMPLEX_SUM = Operations(add=2)


def complex_value(value: Any) -> bool:
    """Whether a tensor's entries, or a Python number, are complex."""
    return value.is_complex() if is_tensor(value) else isinstance(value, complex)


def product_of(*factors: Tensor | complex) -> Operations:
    """The operations of one product of two entries of these tensors, or of an entry and a number: 1
    multiplication, 2 if one factor is complex, `COMPLEX_PRODUCT` if both are."""
    if not all(map(complex_value, factors)):
        return Operations(mul=2 if any(map(complex_value, factors)) else 1)
    return COMPLEX_PRODUCT


def sum_of(*terms: Tensor | complex) -> Operations:
    """One addition of two entries of these tensors, or of an entry and a number; a real number
    leaves the imaginary part as it is."""
    return COMPLEX_SUM if all(map(complex_value, terms)) else Operations(add=1)


def entry_sum(tensor: Tensor) -> Operations:
    """One addition of two entries of this tensor's type."""
    return COMPLEX_SUM if tensor.is_complex() else Operations(add=1)


def refuse_complex(call: Call, *tensors: Tensor) -> None:
    """Raise CountError if a tensor is complex, in a rule for real numbers."""
    if any(tensor.is_complex() for tensor in tensors):
        raise CountError(f"{call.name}: no counting rule for complex numbers, only for real ones")


# contractions


def contraction(call: Call, left: str, right: str, axis: int) -> Operations:
    """The operations of a matrix product: every output entry is a sum of R products; R is the
    extent of axis `axis` of the argument named `left`."""
    a, b, terms = call.tensor(left), call.tensor(right), call.tensor(left).shape[axis]
    if terms == 0:
        return NOTHING
    return product_of(a, b) * (call.output.numel() * terms) + entry_sum(call.output) * (
        call.output.numel() * (terms - 1)
    )


def contraction_plus(call: Call, left: str, right: str, axis: int) -> Operations:
    """The operations of beta * self + alpha * (left @ right), for the product of the arguments
    named `left` and `right`, which sums over axis `axis` of `left`; factors of 1 cost nothing, and
    with beta = 0 nothing is added."""
    counts = contraction(call, left, right, axis)
    entries, alpha, beta = call.output.numel(), call.arguments["alpha"], call.arguments["beta"]
    if alpha != 1:
        counts += product_of(call.output, alpha) * entries
    if beta != 0:
        counts += entry_sum(call.output) * entries
    if beta not in (0, 1):
        counts += product_of(call.output, beta) * entries
    return counts


def convolution(call: Call) -> Operations:
    """The operations of a plain (not transposed) convolution: a product for every tap (channel of
    the group and place) at every output, also taps on padding, and their sum; then the bias."""
    x, weight = call.tensor("input"), call.tensor("weight")
    refuse_complex(call, x, weight)
    taps, outputs = prod(weight.shape[1:]), call.output.numel()
    if taps == 0:
        return NOTHING
    bias = outputs if call.arguments["bias"] is not None else 0
    return Operations(mul=outputs * taps, add=outputs * (taps - 1) + bias)


# elementwise


def elementwise(call: Call, function: str) -> Operations:
    """A named function of one real number at every output entry."""
    refuse_complex(call, *call.inputs, call.output)
    return FUNCTIONS[function] * call.output.numel()


def multiply(call: Call) -> Operations:
    """The product self * other at every output entry; `other` is a tensor or a number."""
    return product_of(call.tensor("self"), call.arguments["other"]) * call.output.numel()


def division(call: Call) -> Operations:
    """The operations of self / other at every output entry, rounded if a rounding mode is given;
    complex by real is two divisions. CountError for a complex divisor."""
    if (mode := call.arguments.get("rounding_mode")) is not None:
        refuse_complex(call, call.output)
        return (Operations(div=1) + named_operation(mode)) * call.output.numel()
    divisor = call.arguments["other"]
    if isinstance(divisor, complex) or (is_tensor(divisor) and divisor.is_complex()):
        raise CountError(
            f"{call.name}: no counting rule for a complex divisor, only for a real one"
        )
    return Operations(div=2 if call.output.is_complex() else 1) * call.output.numel()


def addition(call: Call) -> Operations:
    """The operations of self + alpha * other, or self - alpha * other; alpha = 1 costs nothing."""
    entries, alpha = call.output.numel(), call.arguments.get("alpha", 1)
    other = call.arguments["other"]
    counts = sum_of(call.tensor("self"), other) * entries
    return counts if alpha in (1, None) else counts + product_of(other, alpha) * entries


def multiply_then_add(call: Call) -> Operations:
    """The operations of self + value * tensor1 * tensor2 at every entry; a value of 1 is free."""
    out = call.output
    counts = product_of(call.tensor("tensor1"), call.tensor("tensor2")) + entry_sum(out)
    if call.arguments["value"] != 1:
        counts += product_of(out, call.arguments["value"])
    return counts * out.numel()


POWERS: Mapping[float, Operations] = {
    0: NOTHING,
    1: NOTHING,
    2: Operations(mul=1),
    3: Operations(mul=2),
    4: Operations(mul=2),
    0.5: FUNCTIONS["sqrt"],
    -0.5: FUNCTIONS["rsqrt"],
    -1: Operations(div=1),
    -2: Operations(mul=1, div=1),
}
"""Exponent -> the operations of a power that torch computes without `pow`."""


def power_of_entry(call: Call) -> Operations:
    """The operations of x**p at every entry. Small powers (`POWERS`) are products and roots (x**4
    is two squarings); any other power, and each power of a tensor of exponents, is a `pow`."""
    exponent = call.arguments["exponent"]
    refuse_complex(call, call.output)
    known = POWERS.get(exponent) if isinstance(exponent, int | float) else None
    return (named_operation("pow") if known is None else known) * call.output.numel()


def gelu(call: Call) -> Operations:
    """The operations of x/2 * (1 + erf(x / sqrt 2)) at each entry, or its tanh approximation."""
    return elementwise(call, "gelu" if call.arguments["approximate"] == "none" else "gelu-tanh")


def elu(call: Call) -> Operations:
    """The operations of ELU at every entry: x above 0 and alpha * (exp(x) - 1) elsewhere; alpha = 1
    costs nothing. CountError for a `scale` or an `input_scale` other than 1."""
    counts = elementwise(call, "elu")
    if call.arguments["scale"] != 1 or call.arguments["input_scale"] != 1:
        raise CountError(f"{call.name}: no counting rule for scale and input_scale other than 1")
    scaled = Operations(mul=1) * call.output.numel()
    return counts if call.arguments["alpha"] == 1 else counts + scaled


def softplus(call: Call) -> Operations:
    """The operations of log(1 + exp(beta x)) / beta at every entry; beta = 1 costs nothing."""
    counts = elementwise(call, "softplus")
    scaled = Operations(mul=1, div=1) * call.output.numel()
    return counts if call.arguments["beta"] == 1 else counts + scaled


def two_comparisons(call: Call) -> Operations:
    """Two comparisons at every output entry, one with each infinity (`isinf`)."""
    return comparison(call) * 2


def comparison(call: Call) -> Operations:
    """One comparison at every output entry."""
    return COMPARE * call.output.numel()


def clamp(call: Call) -> Operations:
    """One comparison at every output entry for each bound that is given."""
    bounds = [call.arguments.get(bound) for bound in ("min", "max")]
    return COMPARE * (call.output.numel() * sum(bound is not None for bound in bounds))


# reductions and rows


def converted(call: Call, source: Tensor) -> Operations:
    """The conversions that a call adds: one per entry of `source` if the result has another
    floating type, to which torch converts before it computes; else none."""
    dtype = call.output.dtype
    changed = is_arithmetic(source.dtype) and is_arithmetic(dtype) and source.dtype != dtype
    return named_operation("convert") * (source.numel() if changed else 0)


def reduction(call: Call, each: Operations | None = None) -> Operations:
    """The operations of a reduction, such as a sum over axes: R terms of one result take R - 1
    steps, each an addition or the operations `each`."""
    source, out = call.tensor("self"), call.output
    steps = max(source.numel() - out.numel(), 0)
    step = entry_sum(source) if each is None else each
    return step * steps + converted(call, source)


def extreme(call: Call) -> Operations:
    """max or min of two tensors, a comparison per entry; or of one tensor, along an axis or over
    all entries, R - 1 comparisons of R entries."""
    two = is_tensor(call.arguments.get("other"))
    return comparison(call) if two else reduction(call, each=COMPARE)


def sorting(call: Call) -> Operations:
    """The operations of a sort by a bitonic network for each row, or for all entries if no axis is
    named: n k (k + 1) / 4 comparisons for n = 2**k, the next power of two. torch documents no
    algorithm."""
    source = call.tensor("self")
    dim = call.arguments.get("dim")
    entries = source.numel() if dim is None or not source.dim() else source.shape[dim]
    levels = max(entries - 1, 0).bit_length()
    network = (1 << levels) * levels * (levels + 1) // 4
    return COMPARE * (network * (source.numel() // max(entries, 1)))


def mean(call: Call) -> Operations:
    """A sum and one division per result; two divisions per complex result."""
    per_result = Operations(div=2 if call.output.is_complex() else 1)
    return reduction(call) + per_result * call.output.numel()


def cumulation(call: Call, each: Operations) -> Operations:
    """The operations of a running reduction, such as cumsum: R - 1 steps, of `each` operations,
    along each row of R entries."""
    source = call.tensor("self")
    refuse_complex(call, source)
    length = source.shape[call.arguments["dim"]] if source.dim() else 1
    steps = source.numel() - source.numel() // length if length else 0
    return each * steps + converted(call, source)


def euclidean_norm(call: Call) -> Operations:
    """The operations of a Euclidean norm, the sqrt of a sum of squares, none for a row without
    entries; CountError for a norm of another order."""
    source = call.tensor("self")
    rows = min(call.output.numel(), source.numel())
    refuse_complex(call, source)
    if call.arguments["ord"] != 2:
        order = call.arguments["ord"]
        raise CountError(
            f"{call.name}: no counting rule for a norm of order {order}, only of order 2"
        )
    squares = Operations(mul=source.numel(), add=source.numel() - rows)
    return squares + FUNCTIONS["sqrt"] * rows + converted(call, source)


def softmax_rows(entries: int, rows: int) -> Operations:
    """Softmax with the row's maximum subtracted: per row of R entries R - 1 comparisons,
    R subtractions, R exponentials, R - 1 adds, R divisions."""
    between = entries - rows
    return Operations(add=entries + between, div=entries, exp=entries, other={"compare": between})


def softmax(call: Call) -> Operations:
    """torch's own softmax, whose kernels all subtract the maximum of the row."""
    source = call.tensor("self")
    return softmax_rows(source.numel(), row_count(call, source)) + converted(call, source)


def log_softmax(call: Call) -> Operations:
    """The operations of log-softmax, x - max - log(sum(exp(x - max))) along each row of R entries:
    per entry an exponential and two subtractions, per row R - 1 comparisons, R - 1 additions and a
    logarithm."""
    source = call.tensor("self")
    entries, rows = source.numel(), row_count(call, source)
    return converted(call, source) + Operations(
        add=3 * entries - rows, exp=entries, other={"compare": entries - rows, "log": rows}
    )


def softmax_backward(call: Call) -> Operations:
    """The operations of (grad - sum(grad * y)) * y along each row."""
    entries, rows = call.output.numel(), row_count(call, call.output)
    return Operations(mul=2 * entries, add=2 * entries - rows)


def row_count(call: Call, tensor: Tensor) -> int:
    """The number of rows along the call's `dim`: all entries by the extent of `dim`."""
    length = tensor.shape[call.arguments["dim"]] if tensor.dim() else 1
    return tensor.numel() // length if length else 0


# moves


def free(call: Call) -> Operations:
    """Moves, fills and selections of entries: no arithmetic."""
    return NOTHING


def handed_to_python(call: Call) -> Operations:
    """Raise CountError: a number leaves torch. For an index or a truth value this rule is not
    called: `operations_of` counts 0."""
    raise CountError(
        f"{call.name}: a number leaves torch, as by x.item(), and arithmetic in Python is not "
        "counted: keep the number in a tensor"
    )


def conversion(call: Call) -> Operations:
    """The operations of a copy: a conversion per entry between floating or complex types, if they
    differ; a comparison with 0 per entry from such a type to bool; nothing for any other copy."""
    import torch

    source = call.arguments["src"] if "src" in call.arguments else call.arguments["self"]
    if call.output.dtype == torch.bool and is_tensor(source):
        return COMPARE * (source.numel() if is_arithmetic(source.dtype) else 0)
    return converted(call, source) if is_tensor(source) else NOTHING


def truth(call: Call) -> Operations:
    """Whether entries are not zero: a comparison per floating or complex entry of the arguments,
    none for booleans and integers."""
    return COMPARE * sum(t.numel() for t in call.inputs if is_arithmetic(t.dtype))


FREE_NAMES = """
    _conj_physical _reshape_alias _unsafe_view arange as_strided_ bitwise_and bitwise_not
    bitwise_or clone constant_pad_nd empty empty_like empty_permuted empty_strided eye fill flip
    full full_like gather index index_select lift_fresh masked_fill new_empty new_empty_strided
    new_full new_ones new_zeros ones ones_like repeat roll scalar_tensor select_backward
    select_scatter slice_backward slice_scatter squeeze_ t_ transpose_ tril tril_indices triu
    triu_indices unsafe_split unsqueeze_ zero zeros zeros_like
"""
FREE = frozenset(FREE_NAMES.split())

JOINED = ("cat", "stack", "where")
"""Moves of several operands, which may differ in type."""

# Views, which the dispatcher marks as such, and composites of moves, which it takes apart.
MOVED = """
    T _conj _neg_view alias as_strided chunk contiguous detach diagonal expand expand_as flatten
    imag mH mT movedim narrow numpy_T one_hot pad permute real reshape resolve_conj resolve_neg
    select slice split split_with_sizes squeeze swapaxes t tile transpose unbind unflatten unfold
    unsqueeze view view_as view_as_complex view_as_real
"""
MOVES_BY_NAME = frozenset(MOVED.split())

WITH_ARGUMENTS = ("abs", "elu", "elu_plus_1", "gelu", "gelu-tanh", "softplus")
"""Functions whose torch operation takes more than one number or a complex one, or that torch has no
operation for."""

UNARY = {name: name for name in FUNCTIONS if name not in WITH_ARGUMENTS}

PLAIN_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(FREE, free),
    **{name: partial(elementwise, function=function) for name, function in UNARY.items()},
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), comparison),
    **dict.fromkeys(("isnan", "isposinf", "isneginf"), comparison),
    "isinf": two_comparisons,
    **dict.fromkeys(("all", "any", "nonzero"), truth),
    **dict.fromkeys(("logical_and", "logical_not", "logical_or", "logical_xor"), truth),
    **dict.fromkeys(JOINED, joined),
    "_local_scalar_dense": handed_to_python,
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), comparison),
    **dict.fromkeys(("clamp_min", "clamp_max"), comparison),
    **dict.fromkeys(("max", "min"), extreme),
    **dict.fromkeys(("amax", "amin"), partial(reduction, each=COMPARE)),
    **dict.fromkeys(("argmax", "argmin"), partial(reduction, each=COMPARE)),
    "sort": sorting,
    **dict.fromkeys(("add", "sub", "rsub"), addition),
    **dict.fromkeys(("_to_copy", "copy"), conversion),
    "mm": partial(contraction, left="self", right="mat2", axis=-1),
    "_int_mm": partial(contraction, left="self", right="mat2", axis=-1),
    "bmm": partial(contraction, left="self", right="mat2", axis=-1),
    "mv": partial(contraction, left="self", right="vec", axis=-1),
    "dot": partial(contraction, left="self", right="tensor", axis=-1),
    "addmm": partial(contraction_plus, left="mat1", right="mat2", axis=-1),
    "addmv": partial(contraction_plus, left="mat", right="vec", axis=-1),
    "baddbmm": partial(contraction_plus, left="batch1", right="batch2", axis=-1),
    "mul": multiply,
    "div": division,
    "addcmul": multiply_then_add,
    "pow": power_of_entry,
    "gelu": gelu,
    "elu": elu,
    "softplus": softplus,
    "clamp": clamp,
    "sum": reduction,
    "mean": mean,
    "cumsum": partial(cumulation, each=Operations(add=1)),
    "cumprod": partial(cumulation, each=Operations(mul=1)),
    "linalg_vector_norm": euclidean_norm,
    "_softmax": softmax,
    "_log_softmax": log_softmax,
    "_softmax_backward_data": softmax_backward,
    "_fft_r2c": partial(fft, real="self"),
    "_fft_c2r": partial(fft, real="output"),
    "_fft_c2c": partial(fft, real=None),
}

ELEMENTARY_RULES: Mapping[str, Rule] = {
    **PLAIN_RULES,
    **{n: partial(with_promotion, rule=PLAIN_RULES[n]) for n in PROMOTING.split()},
}

CONTRACTIONS = (
    "_int_mm", "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "mm", "mv"
)  # fmt: skip
"""Sums of products, whatever the type of the numbers."""
