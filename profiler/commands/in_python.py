"""What `costmodel profile` measures, asked for in Python: `profiler.measure`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from costmodel.errors import SizeError
from costmodel.program.chosen_sizes import sizes_in_python
from costmodel.symbolic.sizes import is_letter
from profiler.commands.measuring import Asked, measured
from profiler.meters.energy.protocol import EnergyLimits
from profiler.sweep.session import Session


def measure(
    *mixers: str,
    phase: str = "training",
    impl: str = "all",
    dtype: str = "fp32",
    device: str | None = None,
    seed: int = 0,
    seconds: float = 15.0,
    compile: bool = False,
    energy: bool | None = None,
    processes: int | None = None,
    counts_only: bool = False,
    output: str | Path | None = None,
    **sizes: Any,
) -> Session:
    """Measure modules on this machine, as `costmodel profile` with the options of the same names.

    Args:
        mixers: MIXER, MIXER:IMPLEMENTATION or FILE.py:NAME; the default group if there are none.
        device: cpu or cuda; None for the GPU, if any.
        seconds: the most seconds to sample one latency for.
        energy: whether to read energy; None: only on a CPU, to record why there is none.
        processes: the number of fresh processes, each of which measures everything; None: this
            one, and on a CPU two fresh ones that time short calls again.
        counts_only: count operations and bytes, and time nothing.
        output: a file of JSON lines to which every record is appended as it is taken.
        sizes: by letter an integer, several, or a text as on the command line.

    Returns:
        `.measurements`, a record for each implementation and each combination of sizes, and
        `.failures`, a sentence for each distinct reason why there is no record. In a record
        `.readings["latency"]` has `.value` in `.unit` (s), `.interval` and `.samples`, `.counts`
        the operations as dispatched, and `.reasons` says why a reading is missing.

    Raises:
        MeasureError, SizeError, UnknownMixer: nothing can be measured; one sentence.
        UsageError: `counts_only` with `compile`, `energy` or several `processes`.
    """
    for name in sizes:
        if not is_letter(name):
            raise SizeError(
                f"measure has no option '{name}': sizes are single letters, such as l=128, and "
                "help(profiler.measure) lists the options"
            )
    texts = {x: ",".join(map(str, found)) for x, found in sizes_in_python(sizes).items()}
    asked = Asked(
        [*mixers],
        texts,
        phase,
        impl,
        dtype,
        device,
        seed,
        seconds,
        compile_=compile,
        shared=False,
        energy=energy,
        energy_window=EnergyLimits.window_s,
        energy_trials=EnergyLimits.trials,
        processes=processes,
        counters=False,
        output=None if output is None else Path(output),
    )
    frozen_by_caller = gc.get_freeze_count() > 0
    try:
        return measured(asked, "profiler.measure, in Python", counts_only=counts_only)
    finally:
        if not frozen_by_caller:  # the caller's garbage is collected again
            gc.unfreeze()
