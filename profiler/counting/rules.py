"""Operation of torch -> its counting rule, for forward and backward passes, run or traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiler.counting.attention_rules import ATTENTION_RULES
from profiler.counting.backward_rules import LAYER_RULES
from profiler.counting.call import Call, Rule, is_arithmetic, is_tensor
from profiler.counting.distance_rules import DISTANCE_RULES
from profiler.counting.forward_rules import (
    CONTRACTIONS,
    ELEMENTARY_RULES,
    MOVES_BY_NAME,
    free,
    truth,
)
from profiler.counting.linear_algebra_rules import LINEAR_ALGEBRA_RULES
from profiler.counting.norm_rules import NORM_RULES
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.promotion import joined
from profiler.counting.selection_rules import SELECTION_RULES, SORTS

RULES: Mapping[str, Rule] = {
    **ELEMENTARY_RULES, **LAYER_RULES, **NORM_RULES, **ATTENTION_RULES, **SELECTION_RULES,
    **LINEAR_ALGEBRA_RULES, **DISTANCE_RULES,
}  # fmt: skip
"""Operation, by its name in `aten` ("mm"), -> rule, both for dispatched and for traced operations;
`rule_for` takes torch's own names ("aten::mm", "aten::add_")."""


def nominal(name: str) -> str:
    """The name of the kind of operation, if a call of it is counted by one documented algorithm
    although its kernel may run another ("aten::topk" -> "sorts"); "" for all other operations
    ("aten::mm")."""
    operation = name.removeprefix("aten::")
    if operation.startswith("_fft_"):
        return "Fourier transforms"
    if operation in ("sort", *SORTS):
        return "sorts"
    if LINEAR_ALGEBRA_RULES.get(operation, free) is not free:
        return "factorisations"
    return "fused attention" if operation in ATTENTION_RULES else ""


def nominal_words(names: Iterable[str]) -> str:
    """A note that names the kinds of these operations that are counted by an algorithm which their
    kernels may not run; "" if there are none."""
    kinds = dict.fromkeys(filter(None, map(nominal, names)))
    what = " and ".join(kinds)
    return f"nominal for {what}: counted by documented arithmetic, not observed" if kinds else ""


def rule_for(name: str) -> Rule | None:
    """The counting rule (a function from a call to its operations) of an operation named as torch
    names it (`aten::mm`, `aten::add_`); None if there is no rule, as for every operation outside
    `aten`.

    An in-place operation (`add_`) follows the rule of its out-of-place form (`add`).
    """
    namespace, _, operation = name.partition("::")
    if namespace != "aten":
        return None
    return RULES.get(operation) or RULES.get(operation.removesuffix("_"))


def only_moves(name: str) -> bool:
    """Whether an operation only moves, fills or selects entries, or asks whether they are zero."""
    operation = name.removeprefix("aten::")
    return rule_for(name) in (free, joined, truth) or operation.removesuffix("_") in MOVES_BY_NAME


def operations_of(call: Call) -> Operations | None:
    """The numbers of scalar operations of one call; None if the operation has no rule. Arithmetic
    on integers and booleans alone is indexing and counts 0, except matrix products, convolutions
    and sorts. Raises CountError: the rule does not cover the arguments."""
    rule = rule_for(call.name)
    if rule is None:
        return None
    touched = [*call.inputs, *([call.result] if is_tensor(call.result) else [])]
    indexing = call.name.removeprefix("aten::") not in (*CONTRACTIONS, "sort", *SORTS)
    if indexing and touched and not any(is_arithmetic(tensor.dtype) for tensor in touched):
        return NOTHING
    return rule(call)
