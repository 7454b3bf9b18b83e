"""The commands that measure, one file per family; torch is imported when a command runs."""

from profiler.commands import (
    comparing,
    inspecting,
    measuring,
    plotting,
    scaling,
    studying,
    sweeping,
    tracing,
)

MEASURING = (
    measuring.profile, measuring.reconcile, tracing.trace, tracing.training, sweeping.sweep,
    sweeping.merge, comparing.compare, scaling.scaling, plotting.plot, studying.study,
    inspecting.statement, inspecting.doctor, inspecting.calibrate,
)  # fmt: skip
"""The commands, in the order in which help lists them."""
