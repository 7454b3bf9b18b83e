"""How many scalar operations do distances of rows, CTC losses and trilinear products take?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, prod

from profiler.counting.call import Call, CountError, Rule
from profiler.counting.forward_rules import refuse_complex
from profiler.counting.operations import COMPARE, FUNCTIONS, NOTHING, Operations, named_operation

# distances


def norm_of(entries: int, order: float) -> Operations:
    """The operations of the norm of a row of `entries` entries. Order 1 adds absolute values, order
    0 counts nonzero entries, order 2 adds squares and takes a root, order inf takes the largest
    absolute value, and any other order p takes powers p of absolute values, their sum, and a power
    1/p."""
    if not entries:
        return NOTHING
    summed = Operations(add=entries - 1)
    if order in (0, 1):
        return COMPARE * entries + summed
    if order == 2:
        return Operations(mul=entries) + summed + FUNCTIONS["sqrt"]
    if order == inf:
        return COMPARE * (2 * entries - 1)
    return (COMPARE + named_operation("pow")) * entries + summed + named_operation("pow")


def distances(call: Call, rows: str) -> Operations:
    """The operations of distances, the norm of the difference of each pair of rows (one result per
    pair); `rows` names the argument with the rows."""
    source = call.tensor(rows)
    refuse_complex(call, source)
    width, order = int(source.shape[-1]), float(call.arguments["p"])
    return (Operations(add=width) + norm_of(width, order)) * call.output.numel()


DERIVATIVE: Mapping[float, Operations] = {
    1: Operations(mul=1) + named_operation("sign"),
    2: Operations(mul=1, div=1),
    inf: Operations(mul=2, add=2) + COMPARE * 2 + named_operation("ceil") + named_operation("sign"),
}
"""Order -> operations of the derivative of a distance D by one difference x of entries, times the
gradient g: g sign(x); g x / D; g sign(x) (1 - min(1, ceil(D - |x|)))."""

POWER = Operations(mul=2, div=1) + COMPARE + named_operation("pow") * 2
"""The same for other orders p: g x |x|**(p - 2) / D**(p - 1)."""


def distances_backward(call: Call, rows: str, distance: str, receivers: int) -> Operations:
    """The operations of the derivative of distances. For each pair of rows and each column: the
    difference again, the derivative of the distance by it, and a term in the sums of the gradients
    of `receivers` rows of the pair: 2 for `pdist`, 1 for `cdist`, which gives the gradient of one
    operand a call; the first term of a sum is stored. Nothing for order 0, whose derivative is 0
    (torch's DistanceOps). `rows` and `distance` name arguments. CountError for complex rows."""
    source, pairs = call.tensor(rows), call.tensor(distance).numel()
    refuse_complex(call, source)
    order = float(call.arguments["p"])
    if order == 0:
        return NOTHING
    terms = pairs * int(source.shape[-1])
    sums = Operations(add=max(receivers * terms - call.output.numel(), 0))
    return (Operations(add=1) + DERIVATIVE.get(order, POWER)) * terms + sums


def renormalised(call: Call) -> Operations:
    """The operations of torch's renorm: the p-norm of each slice along `dim`, compared with the
    largest one allowed; maxnorm / (norm + eps), or 1, times each entry."""
    source = call.tensor("self")
    refuse_complex(call, source)
    slices = int(source.shape[call.arguments["dim"]])
    entries = source.numel() // max(slices, 1)
    each = norm_of(entries, float(call.arguments["p"])) + COMPARE + Operations(add=1, div=1)
    return (each + Operations(mul=entries)) * slices


def uncounted_distinct_rows(call: Call) -> Operations:
    """Raise CountError, for an embedding with `max_norm`: each distinct row is scaled once."""
    raise CountError(
        f"{call.name}: the number of distinct indices depends on values: leave out max_norm"
    )


# alignments


LOG_SUM_OF_THREE = Operations(add=7, exp=3, other={"compare": 2, "log": 1})
"""m + log(exp(a - m) + exp(b - m) + exp(c - m)) + p for the largest m of three."""

LOG_SUM_OF_TWO = Operations(add=4, exp=2, other={"compare": 1, "log": 1})
"""m + log(exp(a - m) + exp(b - m)) for the larger m of two."""


def lengths_of(call: Call, name: str) -> Sequence[int]:
    """The lengths in the argument `name`, a list or tensor; CountError for one without values."""
    lengths = call.arguments[name]
    if isinstance(lengths, list | tuple):
        return [int(length) for length in lengths]
    known = call.values(lengths, "the length of a row")
    return [int(length) for length in known.flatten().tolist()]


def alignment_states(call: Call) -> Sequence[tuple[int, int]]:
    """A pair for each sequence of a CTC loss: the number of its steps after the first, and the
    number of states of its alignment: each label, and a blank on either side of it, 2 * labels +
    1."""
    inputs, targets = lengths_of(call, "input_lengths"), lengths_of(call, "target_lengths")
    return [
        (max(steps - 1, 0), 2 * labels + 1) for steps, labels in zip(inputs, targets, strict=True)
    ]


def ctc_loss(call: Call) -> Operations:
    """The operations of a CTC loss, as torch's ctc_loss has them: log(exp(a) + exp(b) + exp(c)) + p
    of three predecessors and the label's log-probability p, at each state of each step after the
    first (a predecessor that labels exclude counts as -inf); log(exp(a) + exp(b)) of both final
    states, once for each sequence with labels (one without labels has a single state)."""
    sequences = alignment_states(call)
    cells = sum(steps * states for steps, states in sequences)
    ends = sum(states > 1 for _, states in sequences)
    return LOG_SUM_OF_THREE * cells + LOG_SUM_OF_TWO * ends


def ctc_loss_backward(call: Call) -> Operations:
    """The operations of a CTC loss's gradient: the recursion of the loss from the end; at each
    state and step the sum of both recursions, log-added to the sum of the state's label; then
    exp(y) - exp(sum + loss - y), times the gradient, at each label of each step, for y the
    logarithm of its probability (torch's ctc_loss)."""
    counts = NOTHING
    labels = int(call.tensor("log_probs").shape[-1])
    for steps, states in alignment_states(call):
        counts += LOG_SUM_OF_THREE * (steps * states)
        counts += (Operations(add=1) + LOG_SUM_OF_TWO) * ((steps + 1) * states)
        counts += Operations(mul=1, add=3, exp=2) * ((steps + 1) * labels)
    return counts


# products of three


def product_of_three(call: Call) -> Operations:
    """The operations of torch's _trilinear, a product of three tensors summed over axes. For each
    position of the unrolled axis, the first two tensors are multiplied and summed over summed axes
    that the third lacks; then the third is multiplied, and the rest summed. `expand1` to `expand3`
    list the axes that each tensor lacks; `shapes` has extent 1 there. CountError if complex."""
    tensors = [call.tensor(name) for name in ("i1", "i2", "i3")]
    refuse_complex(call, *tensors)
    lacking = [set(call.arguments[f"expand{k}"]) for k in (1, 2, 3)]
    axes = tensors[0].dim() + len(lacking[0])
    shapes = []
    for tensor, without in zip(tensors, lacking, strict=True):
        own = iter(tensor.shape)
        shapes.append([1 if axis in without else int(next(own)) for axis in range(axes)])
    unrolled, summed = call.arguments["unroll_dim"], set(call.arguments["sumdim"])
    times = max(shape[unrolled] for shape in shapes)
    for shape in shapes:
        shape[unrolled] = 1
    left, counts = shapes[0], Operations()
    for right, over in ((shapes[1], summed & lacking[2]), (shapes[2], summed - lacking[2])):
        product = [b if a == 1 else a for a, b in zip(left, right, strict=True)]
        left = [1 if axis in over else extent for axis, extent in enumerate(product)]
        counts += Operations(mul=prod(product), add=prod(product) - prod(left))
    # a summed unrolled axis: the partial results of its positions are added up
    joined = Operations(add=int(prod(left)) * (times - 1) if unrolled in summed else 0)
    total: Operations = counts * times + joined
    return total


def weight_norm_backward(call: Call) -> Operations:
    """The operations of the gradients of a weight norm, w = v g/n for rows v of length n with gain
    g: dg = sum(dw v)/n, dv = dw (g/n) - v (g/n) (dg/n)."""
    source = call.tensor("saved_v")
    refuse_complex(call, source)
    entries, rows = source.numel(), min(call.tensor("saved_norms").numel(), source.numel())
    sums = Operations(mul=entries, add=entries - rows, div=rows)
    factors = Operations(mul=rows, div=2 * rows)
    return sums + factors + Operations(mul=2 * entries, add=entries)


DISTANCE_RULES: Mapping[str, Rule] = {
    "_cdist_forward": partial(distances, rows="x1"),
    "_pdist_forward": partial(distances, rows="self"),
    "_cdist_backward": partial(distances_backward, rows="x1", distance="cdist", receivers=1),
    "_pdist_backward": partial(distances_backward, rows="self", distance="pdist", receivers=2),
    "renorm": renormalised,
    "embedding_renorm": uncounted_distinct_rows,
    "_ctc_loss": ctc_loss,
    "_ctc_loss_backward": ctc_loss_backward,
    "_trilinear": product_of_three,
    "_weight_norm_interface_backward": weight_norm_backward,
}
