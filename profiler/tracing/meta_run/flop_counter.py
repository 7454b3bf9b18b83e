"""The figures of torch's FlopCounterMode for a call, and the operations that it omits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.errors import as_exception
from profiler.records.reading import reason_of
from profiler.tracing.meta_run.observe import (
    owned_tensors,
    run_recorded,
    without_garbage_collection,
)
from profiler.tracing.meta_run.operation import CountedOperation
from profiler.tracing.meta_run.recorder import Backend, Recorder
from profiler.tracing.meta_run.target import Sizes, Target, TraceError, build_target


@dataclass(frozen=True)
class FlopCounter:
    """FlopCounterMode's figures beside this project's count of one call, forward and backward.

    FlopCounterMode prints 2 for every multiplication of a contraction. `products` are these
    multiplications as counted here, by operation; `left_out` all operations for which it has no
    formula, by name; `total` all operations counted here. FlopCounterMode ignores the groups of a
    convolution in the gradient of the weight: `ungrouped` are the products printed in excess there.
    """

    sizes: Mapping[str, int]
    printed: Mapping[str, int]
    products: Mapping[str, int]
    left_out: Mapping[str, int]
    total: int
    ungrouped: Mapping[str, int] = field(default_factory=dict)
    unknown: bool = False
    """Whether operations without a counting rule ran as well."""

    @property
    def agrees(self) -> bool:
        """Whether FlopCounterMode prints twice the multiplications counted here in every operation,
        with the excess for ignored groups."""
        return all(map(self._same, {**self.printed, **self.products}))

    def _same(self, name: str) -> bool:
        """Whether FlopCounterMode prints twice the multiplications of this operation."""
        expected = self.products.get(name, 0) + self.ungrouped.get(name, 0)
        return self.printed.get(name, 0) == 2 * expected

    @property
    def share_left_out(self) -> float:
        """The share of all operations for which FlopCounterMode has no formula, from 0 to 1."""
        return sum(self.left_out.values()) / self.total if self.total else 0.0

    def __str__(self) -> str:
        """A sentence: what FlopCounterMode prints, whether that is twice the multiplications
        counted in the same operations, and the share of all operations that it leaves out."""
        printed = f"FlopCounterMode prints {sum(self.printed.values())}"
        if not self.total:
            none = "has a counting rule" if self.unknown else "is counted"
            return f"{printed}; no operation {none}, so there is nothing to compare"
        largest = sorted(self.left_out, key=lambda name: -self.left_out[name])[:4]
        apart = [n for n in {**self.printed, **self.products} if not self._same(n)]
        verdict = f"other (in {', '.join(apart)}) than" if apart else "equal to"
        if self.ungrouped:
            extra = 2 * sum(self.ungrouped.values())
            verdict += f" {extra}, because it ignores groups of convolutions, plus"
        listed = f", most of them in {', '.join(largest)}" if largest else ""
        share = f"leaves out {self.share_left_out:.1%} of all operations{listed}"
        if self.unknown:
            share = (
                f"leaves out {self.share_left_out:.1%} of the operations that have a counting rule"
                f"{listed}; its share of the others is unknown"
            )
        return (
            f"{printed}, {verdict} twice the "
            f"{sum(self.products.values())} multiplications counted in the same operations, and "
            f"{share}"
        )


def flop_counter(target: Target, sizes: Sizes, backend: Backend) -> FlopCounter:
    """Run a module once on the meta device, forward and backward, and return by operation
    ("aten::mm") the figures of FlopCounterMode beside this project's counts: multiplications, those
    that FlopCounterMode counts in excess (`ungrouped`), and the operations that it leaves out.
    `backend`: makes the context in which the module runs, such as fused attention. Raises
    TraceError: the module runs, but not under FlopCounterMode; one sentence."""
    import torch._dynamo  # first, since in torch 2.6 the import dispatches operations
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    known = {str(packet).replace(".", "::") for packet in flop_registry}
    with torch.enable_grad(), without_garbage_collection():
        built = build_target(target, sizes)
        recorder = Recorder(list(owned_tensors(built)))
        counter = FlopCounterMode(display=False)
        try:
            with as_exception(), backend(recorder):
                run_recorded(built, recorder, counter)
        except Exception as error:  # the module runs without FlopCounterMode
            raise TraceError(
                f"FlopCounterMode does not run on this module: {reason_of(error)}"
            ) from error
    figures = counter.get_flop_counts().get("Global", {})
    # FlopCounterMode does not tell forward from backward, so both are added up here
    by_name: dict[str, CountedOperation] = {}
    for (_, name), counted in recorder.by_operation().items():
        before = by_name.get(name, CountedOperation())
        by_name[name] = CountedOperation(
            before.calls + counted.calls,
            before.operations + counted.operations,
            products=before.products + counted.products,
            ungrouped=before.ungrouped + counted.ungrouped,
        )
    products = {n: c.products for n, c in by_name.items() if n in known and c.products}
    left_out = {n: c.operations.total for n, c in by_name.items() if n not in known}
    return FlopCounter(
        dict(sizes),
        {str(packet).replace(".", "::"): int(n) for packet, n in figures.items() if n},
        products,
        {name: n for name, n in left_out.items() if n},
        sum(c.operations.total for c in by_name.values()),
        {name: c.ungrouped for name, c in by_name.items() if c.ungrouped},
        any(not c.known for c in recorder.by_operation().values()),
    )
