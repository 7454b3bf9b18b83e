"""A request for a measurement: the implementation, its sizes, the phase and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodel.language.equations import Mixer
from costmodel.program.phases import TRAINING_STEP, phase_name
from profiler.meters.energy.protocol import EnergyLimits
from profiler.modules.registry import Implementation
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.words import without_equations
from profiler.run.plain import PlainModule
from profiler.run.subject import Measurable


@dataclass(frozen=True)
class Request:
    """One implementation at one set of sizes, and the options of its measurement."""

    mixer: Measurable
    """A mixer, or a module without equations."""
    implementation: Implementation
    sizes: Mapping[str, int]
    """b and every letter of the mixer, with t for inference; for a module without equations the
    sizes of `PlainModule.combinations`."""
    phase: str = "training"
    dtype: str = "fp32"
    device: str = "cpu"
    seed: int = 0
    compile: bool = False
    """Whether the call is compiled by torch.compile before it is timed."""
    shared: bool = False
    """Whether energy is measured, with a label, even if others use the device."""
    energy: bool = True
    """Whether energy is measured at all."""
    energy_window_s: float = EnergyLimits.window_s
    """Seconds of load per trial, unless the sensor needs longer."""
    energy_trials: int = EnergyLimits.trials
    counters: bool = False
    """Whether hardware counters are read, in separate processes under ncu."""
    drawn: bool = True
    """Whether parameters are drawn; else the module keeps the numbers of its constructor, where no
    count depends on values."""

    def __post_init__(self) -> None:
        """Raise MeasureError: energy limits out of bounds, or compiling with a backward pass."""
        try:
            EnergyLimits.asked(self.energy_window_s, self.energy_trials)
        except ValueError as error:
            raise MeasureError(str(error)) from None
        if self.compile and phase_name(self.phase) in TRAINING_STEP:
            raise MeasureError(
                "--compile measures the forward pass and one new token: leave out "
                f"--compile, or --phase {self.phase}"
            )

    @property
    def equations(self) -> Mixer:
        """The mixer; MeasureError for a module without equations."""
        if isinstance(self.mixer, PlainModule):
            raise MeasureError(without_equations(self.mixer.origin))
        return self.mixer


NAMED = ("mixer", "implementation", "sizes", "phase", "dtype", "device", "seed")
"""The fields of a request that are fields of its record; the others are options."""


OF_ENERGY = ("energy", "energy_window_s", "energy_trials")
"""The options that concern only the measurement of energy."""


def options_of(request: Request) -> dict[str, Any]:
    """A dict: name -> value of the options of a request that differ from their defaults."""
    return {
        entry.name: value
        for entry in fields(request)
        if entry.name not in NAMED and (value := getattr(request, entry.name)) != entry.default
    }


def form_of(implementation: Implementation, phase: str) -> str:
    """The form of the equations that an implementation runs in a phase; "" if it runs none."""
    token = phase_name(phase) == "inference"
    return (implementation.step_form or "") if token else implementation.form


def record_of(request: Request, **fields: Any) -> Measurement:
    """Make the record of a request; `fields`: its readings, reasons, counts and environment."""
    return Measurement(
        mixer=request.mixer.origin,
        implementation=request.implementation.name,
        form=form_of(request.implementation, request.phase),
        sizes=dict(request.sizes),
        dtype=request.dtype,
        phase=phase_name(request.phase),
        device=request.device,
        **fields,
    )


def request_json(request: Request) -> dict[str, Any]:
    """A dict of JSON values that describes a request to another process (`request_of` reads it)."""
    return {
        "mixer": request.mixer.origin,
        "implementation": request.implementation.name,
        "sizes": dict(request.sizes),
        "phase": phase_name(request.phase),
        "dtype": request.dtype,
        "device": request.device,
        "seed": request.seed,
        "options": options_of(request),
    }
