"""Which entries does a form define that nothing reads, so that they should not be counted?

Every entry that an equation defines is counted, so an equation should define only entries that the
output needs, directly or through other entries. Three kinds of entries are accepted although the
output does not need them: other entries in a row of a composite such as softmax, which yields whole
rows; the work on weights alone that a longer sequence reads, such as a decay from row to row, which
one row alone does not read; and in a causal form entries that a later token would read, such as the
running sum at the end of the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.equations import Form
from costmodel.language.nodes import Array, Composite
from costmodel.oracle.execute import Execution, execute
from costmodel.oracle.scalars import Entry, Instance
from costmodel.proofs.against_oracle import OracleComparison

Sizes = Mapping[str, int]


def unread(form: Form, sizes: Sizes) -> list[Entry]:
    """The entries that a form computes at some sizes and that neither its output, nor a row with a
    needed entry (`_of_a_row`), nor a longer sequence (`_held`) needs, in the order of execution, as
    (array, positions counted from 1)."""
    run = execute(form, sizes)
    needed = _needed(run)
    without = (i for i in run.instances if id(i) not in needed)
    spare = [i for i in without if not _of_a_row(form, i, run, needed)]
    held = _held(form, sizes) if spare else set()
    return [entry for instance in spare for entry in instance.writes if entry not in held]


def _needed(run: Execution) -> dict[int, Instance]:
    """id of an instance (one execution of an equation for one entry) -> the instance, for all those
    that the output needs."""
    writer = {entry: instance for instance in run.instances for entry in instance.writes}
    waiting = [entry for entry in writer if entry[0].role == "output"]
    found: dict[int, Instance] = {}
    while waiting:
        instance = writer.get(waiting.pop())
        if instance is not None and id(instance) not in found:
            found[id(instance)] = instance
            waiting += instance.reached
    return found


def _of_a_row(
    form: Form, instance: Instance, run: Execution, needed: Mapping[int, Instance]
) -> bool:
    """Whether an instance writes an entry of a composite (such as a softmax) of which another entry
    in the same row is needed: both read the same intermediate, such as the row's sum."""
    array = run.system.equations[instance.equation].array
    if not any(e.array is array and isinstance(e.value, Composite) for e in form.equations):
        return False
    parts = {entry for entry in instance.reached if array in entry[0].made_for}
    return any(not parts.isdisjoint(other.reached) for other in needed.values())


def _held(form: Form, sizes: Sizes) -> set[Entry]:
    """The entries that the output of a longer sequence needs, if written by work on weights alone
    or, in a causal form, by any work that no token after the l-th triggers."""
    longer = OracleComparison(form.mixer, form.name).longer(sizes)
    return {
        entry
        for instance in _needed(longer).values()
        for entry in instance.writes
        if (longer.owners.of(instance) <= sizes["l"] if longer.causal else not instance.given)
    }


def unread_words(form: Form, sizes: Sizes) -> str:
    """The entries of `unread` at some sizes in words, the first of each array with the number of
    its others: `A[1, 2] (3 more of A) and b[1]`; "" if there are none."""
    numbers: dict[Array, list[Entry]] = {}
    for entry in unread(form, sizes):
        numbers.setdefault(entry[0], []).append(entry)
    return " and ".join(
        f"{array.name}[{', '.join(map(str, first))}]"
        + (f" ({len(others)} more of {array.name})" if others else "")
        for array, ((_, first), *others) in numbers.items()
    )
