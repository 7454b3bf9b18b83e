"""Energy per token, and tokens per second and watt."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from costmodel.program.phases import phase_name
from profiler.records.measurement import Measurement
from profiler.records.reading import Measured, Reading, Unavailable

PER_TOKEN = {"energy": "J_per_token", "energy_net": "net_J_per_token"}
"""Reading of a call -> the name of the reading per token."""


KEPT = ("systematic", "labels", "tokens")
"""The details of a reading that also hold for a derived quantity."""


def tokens(phase: str, sizes: Mapping[str, int]) -> int:
    """The tokens that a call handles: b in inference (one per sequence), b x l in other phases.

    >>> tokens("inference", {"b": 4, "l": 128}), tokens("training", {"b": 4, "l": 128})
    (4, 512)
    """
    return sizes["b"] * (1 if phase_name(phase) == "inference" else sizes["l"])


def per_token(record: Measurement) -> dict[str, Measured]:
    """A dict: name -> reading of joules per token, gross and net (without the idle device's
    energy), and of tokens/s per W, which is tokens per joule.

    `tokens_per_s_per_W` is 1 / `J_per_token`: (tokens / s) / (J / s). Intervals are converted too.
    A value is Unavailable if the record lacks the energy, b or l; tokens/J also at energies <= 0.
    """
    found: dict[str, Measured] = {}
    for name, derived in PER_TOKEN.items():
        if name not in record.readings:
            found[derived] = Unavailable(record.reason(name))
        elif not {"b", "l"} <= record.sizes.keys():
            found[derived] = Unavailable(
                "the number of tokens of a call is unknown: its sizes have no b or no l"
            )
        else:
            number = tokens(record.phase, record.sizes)
            found[derived] = divided(record.readings[name], derived, number)
    gross = found["J_per_token"]
    found["tokens_per_s_per_W"] = inverted(gross) if isinstance(gross, Reading) else gross
    return found


def divided(reading: Reading, name: str, number: int) -> Reading:
    """A reading of energy divided by a number of tokens."""
    found = reading.converted(name, "J", lambda joules: joules / number, KEPT)
    return replace(found, details={**found.details, "tokens": number})


def inverted(reading: Reading) -> Measured:
    """The reading of tokens per joule from that of joules per token, without the interval if the
    interval reaches down to zero; Unavailable if an energy is zero or less."""
    if min([reading.value, *reading.samples]) <= 0:
        return Unavailable("tokens per joule need energies above zero")
    if reading.interval is not None and min(reading.interval) <= 0:
        reading = replace(reading, details={**reading.details, "ci_low": None})
    return reading.converted("tokens_per_s_per_W", "1/J", lambda joules: 1 / joules, KEPT)
