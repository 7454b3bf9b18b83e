"""The commands that measure, one file per family; torch is imported when a command runs."""

from profiler.commands import comparing, inspecting, measuring, scaling, studying, sweeping, tracing

MEASURING = (
    measuring.profile, measuring.reconcile, tracing.trace, tracing.training, sweeping.sweep,
    sweeping.merge, comparing.compare, scaling.scaling, scaling.plot, studying.study,
    inspecting.statement, inspecting.doctor,
)  # fmt: skip
"""The commands, in the order in which help lists them."""
