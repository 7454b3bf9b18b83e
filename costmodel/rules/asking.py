"""Under which convention is a question asked, with what a backward pass is to compute?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from costmodel.conventions import ONLY, RECOMPUTE, Convention, ConventionError, convention
from costmodel.tokens import TRAINING_STEP, phase_name


class Training(TypedDict, total=False):
    """What the backward pass of a question computes.

    `recompute`: "all", or arrays of the forward pass that are computed again in the backward pass,
    in place of being kept; `only`: gradients of "parameters" or of "inputs" (contexts among them)
    alone. The gradient of the output is given in any case, and no loss is counted.
    """

    recompute: str | Sequence[str]
    only: Literal["parameters", "inputs"]


def asked(given: str | Sequence[str] | Convention, phase: str, training: Training) -> Convention:
    """The convention of a question about a phase; what is to be trained is among its rewrites.

    Raises:
        ConventionError: an unknown name, or something to train in a phase without gradients.
    """
    found = convention(given)
    again = training.get("recompute", ())
    arrays = again.split(",") if isinstance(again, str) else again
    names = [f"{RECOMPUTE}{array.strip()}" for array in arrays if array.strip()]
    names += [f"{ONLY}{training['only']}"] if training.get("only") else []
    if names and phase_name(phase) not in TRAINING_STEP:
        raise ConventionError(
            f"what is recomputed and what gets a gradient is a matter of the backward pass: ask "
            f"for the phase {' or '.join(TRAINING_STEP)}, not {phase}"
        )
    return convention((*found.names, *names)) if names else found
