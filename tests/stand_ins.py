"""Where does what a test puts in the place of a clock, a meter, a limit or a process stand?

A test names what it replaces; this file alone knows in which modules that is:
`instead(peak_memory=lambda *_, **__: Unavailable("no memory"))`. A test that puts a mistake into a
rule of derivation names the rule itself.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest

Places = dict[str, str | tuple[str, ...]]

LIMITS: Places = {
    "identity_effort": "costmodel.claims.identities.EFFORT",
    "identities_searched": "costmodel.claims.identities.SEARCHED",
    "identity_cases": "costmodel.claims.identities.MOST_CASES",
    "defaults_of_limited": "costmodel.symbolic.effort.limited.__wrapped__.__defaults__",
    "highest_table": "costmodel.report.latex.HIGHEST",
    "gemm_tiles": "costmodel.prediction.families.GEMM_TILES",
    "gemm_splits": "costmodel.prediction.families.GEMM_SPLITS",
    "kept_bytes": "costmodel.questions.kept.MOST_BYTES",
    "usable_processes": "costmodel.questions.kept.usable_processes",
    "hops_followed": "costmodel.paths.followed.MOST",
    "deep_draws": "profiler.proofs.deep.SEVERAL",
    "deep_budget_s": "profiler.proofs.deep.BUDGET_S",
    "deep_reducing_s": "profiler.proofs.deep.REDUCING_S",
    "deep_long_calls": "profiler.proofs.deep.LONG",
    "last_words_s": "profiler.host.children.LAST_WORDS_S",
    "calibrating": "profiler.host.board_file.Within",
    "ceiling_rows": "profiler.meters.ceilings.ROWS",
    "kernel_side": "profiler.hardware.kernels.SIDE",
    "kernel_copied": "profiler.hardware.kernels.COPIED",
    "kernel_entries": "profiler.hardware.kernels.ENTRIES",
    "counted_many": "profiler.run.measure.MANY",
    "counted_most": "profiler.run.measure.MOST",
    "counted_long_s": "profiler.run.measure.LONG_S",
    "counted_large": "profiler.run.measure.LARGE",
    "period_of_layers": "profiler.modules.base.PERIOD",
    "unmeasured_shown": "profiler.reconcile.unmeasured.MOST",
    "gradients_made": "profiler.tracing.zero_gradients.MOST_MADE",
    "traced_runs": "profiler.tracing.size_samples.MOST_RUNS",
    "short_run_s": "profiler.tracing.size_samples.SHORT",
    "short_block_s": "profiler.tracing.repeated_blocks.SHORT",
    "least_blocks": "profiler.tracing.repeated_blocks.LEAST",
    "affordable_runs": "profiler.tracing.size_samples.SizeSamples.affordable",
}
"""How much effort is spent, and what is large."""

MACHINE: Places = {
    "cache_bytes": (
        "profiler.meters.ceilings.cache_bytes",
        "profiler.host.board_file.cache_bytes",
        "profiler.run.inputs.cache_bytes",
    ),
    "last_level_bytes": "profiler.meters.caches.last_level_bytes",
    "processor_clock": "profiler.run.measure.process_time",
    "flush_for": "profiler.meters.latency.flush_for",
    "latency_timers": (
        "profiler.meters.latency.timer_for",
        "profiler.meters.latency.ahead_timer_for",
    ),
    "latency_watch": "profiler.meters.latency.watch_for",
    "answers": "costmodel.commands.streams.answers",
    "screen": "costmodel.commands.options.screen",
    "processors": "profiler.meters.disturbances.processors",
    "switches_and_faults": "profiler.meters.disturbances.switches_and_faults",
    "thread_times": "profiler.meters.disturbances.thread_times",
    "load_nvml": ("profiler.meters.nvml.load_nvml", "profiler.host.environment.load_nvml"),
    "board_of": "profiler.meters.nvml.Board.of",
    "open_sensor": "profiler.meters.board_energy.open_sensor",
    "queued_load": "profiler.meters.board_energy.QueuedLoad",
    "lies_on_gpu": "profiler.meters.memory.allocator.lies_on_gpu",
    "sees_allocations": "profiler.meters.memory.allocator.profiler_sees_allocations",
    "torch_session": "profiler.meters.torch_profile.profile",
    "torch_sleep": "profiler.meters.torch_profile.sleep",
    "torch_profiled": "profiler.meters.torch_profile.torch_profiled",
    "why_failed": "profiler.meters.ceilings.why_failed",
    "run_child": "profiler.host.probes.run_child",
    "run_ncu": "profiler.hardware.counts.run_ncu",
    "current_state": "profiler.run.measure.current_state",
    "environment": "profiler.run.measure.environment",
    "found_disturbances": "profiler.doctor.findings.disturbances",
    "limit_words": "profiler.sweep.failures.limit_words",
    "modules_of_measuring": "profiler.commands.measuring.sys",
}
"""What the machine has, does and says."""

READINGS: Places = {
    "latency": "profiler.meters.latency.latency",
    "latency_cold": "profiler.meters.latency.latency_cold",
    "latency_graph": "profiler.meters.latency.latency_graph",
    "latency_kinds": "profiler.run.measure.latency_kinds",
    "warm_up": "profiler.meters.sampler.warm_up",
    "energy": "profiler.run.measure.energy",
    "energies_of_work": "profiler.run.measure.energies_of_work",
    "energies_in_turn": (
        "profiler.compare.in_turns.energies_in_turn",
        "profiler.studies.training_rounds.energies_in_turn",
    ),
    "peak_memory": (
        "profiler.run.measure.peak_memory",
        "profiler.studies.training_rounds.peak_memory",
    ),
    "peak_of_call": (
        "profiler.run.measure.peak_of_call",
        "profiler.compare.in_turns.peak_of_call",
    ),
    "hardware_counts": "profiler.run.measure.hardware_counts",
    "launch_estimate": "profiler.run.measure.launch_estimate",
    "compile_call": "profiler.run.measure.compile_call",
    "fvcore_count": "profiler.run.called.fvcore_count",
    "count_call": "profiler.hardware.child.count_call",
    "visitor": "profiler.compare.in_turns.visitor",
}
"""The meters and counters of a measurement."""

STEPS: Places = {
    "prepare": ("profiler.run.measure.prepare", "profiler.compare.in_turns.prepare"),
    "measure": "profiler.sweep.session.measure",
    "in_fresh_process": "profiler.compare.run.in_fresh_process",
    "training_step": "profiler.studies.training_rounds.Step",
    "training_study": "profiler.studies.training.Training",
    "processes": "profiler.sweep.processes.processes",
    "fleet": "profiler.commands.sweeping.fleet",
    "on_node": "profiler.sweep.ray_cluster.on_node",
    "recovered": "profiler.sweep.workers.recovered",
    "diagnose": "profiler.doctor.findings.diagnose",
    "draw": "profiler.plots.drawing.write",
}
"""The steps of a measurement, a study and a sweep."""

ANSWERS: Places = {
    "system_of": tuple(
        f"costmodel.questions.{question}.system_of"
        for question in ("activations", "count", "peak", "question", "traffic")
    ),
    "schedule": tuple(
        f"costmodel.networks.{file}.schedule" for file in ("live_set", "schedule", "training")
    ),
    "fingerprint": "costmodel.questions.kept.fingerprint",
    "limited_proof": "costmodel.claims.identities.limited",
    "is_zero": "costmodel.claims.identities._is_zero",
    "difference": "costmodel.claims.identities.difference",
    "derive": "costmodel.claims.claim.derive",
    "verify": "costmodel.claims.published.verify",
    "fits": "costmodel.prediction.predict.fits",
    "described_modules": "profiler.modules.registry._registry",
    "files_read": "profiler.modules.registry._read",
    "described_in": "profiler.modules.registry._described_in",
    "prove": "profiler.proofs.equality.prove",
    "deep_proofs": "profiler.proofs.equality.deep_proofs",
    "module_equals": "profiler.run.own_class.module_equals",
    "candidate_in_record": "profiler.reconcile.ladder.candidate_in_record",
    "recounts": "profiler.reconcile.derived.recounts",
    "executed_counts": "profiler.reconcile.derived.executed_counts",
    "count_equations": (
        "costmodel.questions.count.count_equations",
        "costmodel.proofs.check.count_equations",
    ),
    "trace": ("profiler.tracing.trace", "profiler.tracing.training_page.trace"),
    "derived_page": "profiler.tracing.training_page.derived",
    "counted_page": (
        "profiler.tracing.training_page.count",
        "profiler.tracing.training_page.counts_by_quotients",
    ),
    "cases_of_trace": "profiler.tracing.compare_equations.by_case",
    "forward_rewrites": "profiler.tracing.compare_equations.forward_rewrite_sets",
}
"""What is derived, proven, traced and described, and where it is kept."""

PLACES: Places = LIMITS | MACHINE | READINGS | STEPS | ANSWERS


class Instead(Protocol):
    """Puts stand-ins in the places of what they are named for, for one test."""

    def __call__(self, **stand_ins: Any) -> None: ...


def substitute(patch: pytest.MonkeyPatch, **stand_ins: Any) -> None:
    """Put stand-ins in the places of what they are named for, until the patch is undone."""
    for name, stand_in in stand_ins.items():
        places = PLACES[name]
        for place in (places,) if isinstance(places, str) else places:
            patch.setattr(place, stand_in)
