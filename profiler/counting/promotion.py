"""How many entries does an operation convert whose operands have different floating types?"""

from __future__ import annotations

from functools import reduce

from profiler.counting.call import Call, Rule, is_arithmetic, tensors_in
from profiler.counting.operations import NOTHING, Operations, named_operation


def promoted(call: Call) -> Operations:
    """The number of implicit conversions that an operation makes, one per entry, as operations of
    the class `convert`: of operands to the common floating type, in which torch computes, and from
    it to the type of the result. Tensors without an axis do not influence the common type and are
    not counted; nothing if no operand is floating."""
    import torch

    given = [value for name, value in call.arguments.items() if name != "out"]
    operands = [t for t in tensors_in(given) if is_arithmetic(t.dtype) and t.dim()]
    if not operands:
        return NOTHING
    common = reduce(torch.promote_types, (t.dtype.to_real() for t in operands))
    results = [call.output] if is_arithmetic(call.output.dtype) else []
    changed = (t.numel() for t in (*operands, *results) if t.dtype.to_real() != common)
    return named_operation("convert") * sum(changed)


def with_promotion(call: Call, rule: Rule) -> Operations:
    """The operations of a rule, and the conversions before and after it."""
    return rule(call) + promoted(call)


PROMOTING = """
    add addcmul clamp clamp_max clamp_min div eq fmax fmin ge gt le lt max maximum min minimum mul
    ne pow rsub sub
"""
"""Operations whose operands may differ in type."""


def joined(call: Call) -> Operations:
    """A move of several operands into one result; only type conversions count."""
    return promoted(call)
