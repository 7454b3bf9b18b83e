"""Measures a training step of several networks in turns, so that drift of the machine cancels.

A step is a forward pass with the loss, a backward pass and a step of AdamW, on one batch of random
tokens. All networks stay on the device. A *visit* is one timed region with several steps of one
network; a *round* visits all networks in random order, then in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from costmodel.networks import model
from profiler.compare.in_turns import latency_reading
from profiler.compare.verdict import LEVEL, Rounds
from profiler.host.device import on_device
from profiler.host.environment import environment
from profiler.meters.board_energy import energies_in_turn
from profiler.meters.disturbances import Watch, watch_for
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.energy.protocol import TRIALS_IN_TURNS, EnergyLimits
from profiler.meters.intervals import least_number
from profiler.meters.memory.allocator import peak_memory
from profiler.meters.rounds import Visitor, undisturbed_too_few
from profiler.meters.sampler import Instruments, LatencyLimits
from profiler.meters.timers import Timer, timer_for
from profiler.networks.twin import Twin, all_sizes, twin
from profiler.records.measurement import Measurement, divide, new_id
from profiler.records.reading import Measured, Unavailable
from profiler.run.measure import NO_ENERGY, failure
from profiler.studies.plan import Amount
from profiler.studies.study import Progress

LEARNING_RATE = 3e-4
"""The learning rate of Karpathy's ng-video-lecture, gpt.py, the base of the thesis's networks."""

VISIT = LatencyLimits(
    min_blocks=1, regions=1, min_seconds=0.0, warmup_calls=20, warmup_seconds=10.0
)
"""One timed region, after a warm-up of at most 20 steps or 10 s."""

OWN_LIMITS: Mapping[str, Any] = {
    "energy": True,
    "energy_window_s": EnergyLimits.window_s,
    "energy_trials": TRIALS_IN_TURNS,
}
"""The default energy options: trials of all networks in turn, forwards and in reverse."""

METHOD = (
    "each round visits all networks in random order, then in reverse; a sample is the mean of the "
    "two visits of a round, a visit the mean of its steps after an untimed one; a visit under "
    "thermal throttling is repeated, or the whole round if it persists"
)


class Step:
    """A network with optimiser and batch; a call makes one training step. `given` and `wanted` are
    tokens (b, l): the next token is wanted at each position."""

    def __init__(self, name: str, batch: int, device: str, seed: int = 0) -> None:
        """Make the module of the network `name` in train mode, random tokens (batch, l) below the
        vocabulary's size u, their next tokens, and the optimiser AdamW."""
        network = model(name)
        self.sizes = all_sizes(network, {"b": batch})
        self.network: Twin = twin(network, {"b": batch}, device=device, seed=seed).train()
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, self.sizes["l"] + 1)
        tokens = torch.randint(self.sizes["u"], shape, generator=generator).to(device)
        self.given, self.wanted = tokens[:, :-1], tokens[:, 1:]
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=LEARNING_RATE)

    def forget(self) -> None:
        """Free the gradients of the previous step."""
        self.optimiser.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self.forget()
        self.network.loss(self.given, self.wanted).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimiser.step()


@dataclass
class Training:
    """A comparison of networks, whose training steps are measured in turns."""

    names: Sequence[str]
    amount: Amount
    device: str
    seed: int = 0
    progress: Progress = lambda done, of, what: None
    timer: Timer | None = None
    watch: Watch | None = None
    """`timer` and `watch` replace the device's own in tests."""
    visits: dict[str, Visitor] = field(default_factory=dict)
    """Network -> the visitor that times its steps and logs disturbances of the device."""
    steps: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Network -> the function that makes one training step."""
    sizes: dict[str, Mapping[str, int]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Energy options that replace those of `OWN_LIMITS`."""
    failed: dict[str, str] = field(default_factory=dict)
    """Network that could not be built or timed -> the reason."""

    def records(self) -> list[Measurement]:
        """Measure the networks, and return one record per network that did not fail; sample k of
        its latency is from round k."""
        with on_device(self.device):
            self.prepare()
            timer = self.timer or timer_for(torch.device(self.device))
            found = self.visited(timer)
            kept = [name for name in self.steps if name not in found.failed]
            self.progress(self.amount.rounds, self.amount.rounds, "measuring memory")
            memory = {name: self.memory(name) for name in kept}
            energies = self.energies(kept)
        identity = new_id()
        return [
            self.record(name, found, memory[name], joules(energies, name), identity)
            for name in kept
        ]

    def energies(self, kept: Sequence[str]) -> PairedEnergy | Unavailable:
        """Measure the energy of a step of each network in `kept`, in trials that take turns, and
        return it for all networks together; or why there is none."""
        asked = {**OWN_LIMITS, **self.options}
        if not asked["energy"]:
            return NO_ENERGY
        self.progress(self.amount.rounds, self.amount.rounds, "measuring energy")
        limits = replace(
            EnergyLimits.in_turns(asked["energy_window_s"], asked["energy_trials"]),
            confidence=1 - LEVEL / max(1, len(kept)),  # all intervals hold together (Bonferroni)
            seed=self.seed,
        )
        calls = {name: (self.steps[name], None) for name in kept}
        return energies_in_turn(calls, device=self.device, limits=limits)

    def memory(self, name: str) -> Measured:
        """The peak memory of a step that starts without gradients of the previous step."""
        step = self.steps[name]
        return peak_memory(step, device=self.device, reset=getattr(step, "forget", None))

    def prepare(self) -> None:
        """Build each network on the device and make one step; the reason of a failure is kept in
        `failed`. A network that already has a step is kept."""
        for name in self.names:
            if name in self.steps:
                continue
            self.progress(0, self.amount.rounds, f"building {name}")
            try:
                made = Step(name, self.amount.batch, self.device, self.seed)
                made()
            except Exception as error:  # the other networks are measured all the same
                self.failed[name] = failure(error)
                continue
            self.steps[name], self.sizes[name] = made, made.sizes

    def visited(self, timer: Timer) -> Rounds:
        """Warm up all networks, time them in rounds, and return the rounds, which hold the times of
        each network; networks that fail join `failed`. A visit (`amount.steps` steps of a network)
        under thermal throttling is repeated."""
        watch = self.watch or watch_for(torch.device(self.device))
        setting = Instruments(VISIT, timer, watch)
        visits: dict[str, Visitor] = {}
        for name, step in self.steps.items():
            self.progress(0, self.amount.rounds, f"warming up {name}")
            visits[name] = Visitor(setting, step)
            visits[name].block = self.amount.steps
        self.visits = visits
        found = Rounds(visits, self.seed)
        found.take(self.amount.rounds, failure, self.tell_round)
        self.failed |= found.failed
        return found

    def latency(self, name: str, found: Rounds, identity: str) -> Measured:
        """The reading of the median latency of a network over the rounds `found`, or Unavailable
        with too few undisturbed rounds.

        `identity`: the id of this comparison, which all its records share.
        """
        needed = min(least_number(), self.amount.rounds)
        if why := undisturbed_too_few(
            {each: visit.log for each, visit in self.visits.items()}, len(found.orders), needed
        ):
            return Unavailable(why)
        return latency_reading(name, found, self.visits[name], identity, METHOD)

    def tell_round(self, done: int) -> None:
        """Report how many rounds are done."""
        self.progress(done, self.amount.rounds, f"round {done + 1} of {self.amount.rounds}")

    @property
    def counts(self) -> dict[str, Any]:
        """The `counts` of each record, as JSON values: the seed, and how networks are trained."""
        network = {
            "optimiser": "adamw", "learning_rate": LEARNING_RATE, "steps": self.amount.trained,
            "steps_a_visit": self.amount.steps, "data": "random tokens",
        }  # fmt: skip
        return {"seed": self.seed, "network": network}

    def made(self, record: Measurement) -> bool:
        """Whether a comparison on this device, of this batch and amount, made a record."""
        own = (self.device, self.amount.batch, self.counts)
        return (record.device, record.sizes["b"], record.counts) == own

    def record(
        self, name: str, found: Rounds, memory: Measured, energy: Measured, identity: str
    ) -> Measurement:
        """Make the record of a network, from its times in `found`, its peak memory (B) and energy
        (J), each a reading or why there is none, and the id of the comparison, `identity`."""
        latency = self.latency(name, found, identity)
        readings, reasons = divide({"latency": latency, "peak_memory": memory, "energy": energy})
        return Measurement(
            mixer=name,
            implementation="twin",
            form="",
            sizes=dict(self.sizes[name]),
            dtype="fp32",
            phase="training-step",
            device=self.device,
            readings=readings,
            reasons=reasons,
            counts=self.counts,
            environment=environment(self.device),
            sweep={"comparison": identity}
            | ({"options": dict(self.options)} if self.options else {}),
        )


def joules(energies: PairedEnergy | Unavailable, name: str) -> Measured:
    """The energy of a step of one network, or the reason for its absence."""
    if isinstance(energies, Unavailable):
        return energies
    return energies.readings.get(name) or Unavailable(
        "the network failed in an earlier measurement"
    )
