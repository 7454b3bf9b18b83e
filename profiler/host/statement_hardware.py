"""What may a paper say of hardware counters that were read beside its measurements?"""

from __future__ import annotations

from profiler.host.statement_groups import Group
from profiler.host.statement_words import plural


def counters_sentences(group: Group) -> list[str]:
    """With what hardware counters were read, how, and whether known kernels were counted correctly;
    nothing where none were read."""
    read = [record.counts["hardware"] for record in group.records if "hardware" in record.counts]
    if not read:
        return []
    by = ", ".join(dict.fromkeys(found["ncu"] for found in read))
    labels = dict.fromkeys(label for found in read for label in found["labels"])
    known = "Kernels of known work, counted in the same way, were counted rightly."
    if labels:
        known = f"Kernels of known work, counted in the same way, tell: {'; '.join(labels)}."
    return [
        f"Hardware counters of {plural(len(read), 'run')} were read by Nsight Compute {by} in "
        f"processes of their own, in which kernels ran one by one and nothing was timed; clocks "
        f"were left alone.",
        known,
    ]
