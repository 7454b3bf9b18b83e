"""What does a network answer to a question, from the answers of its parts?

A part (`Use`) is a mixer, a norm, an FFN or the like, with the number of its runs and of its sets
of parameters; a stage is a phase (training, inference, ...), or `prefill` or `decode` of
generation; a question is a function of answers, such as `counted`. Each question says how answers
of parts are joined: added up over their runs, or along the longest chain of parts. What lies
between parts is the network's own: an array that two parts share is kept once, the gradients that
several parts give for it are added up, and the largest live set is found by running through a
training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Form, System
from costmodel.language.nodes import Array
from costmodel.language.options import braces
from costmodel.networks import training
from costmodel.networks.assembly import LAST, Assembly, beyond_table
from costmodel.networks.blocks import Use
from costmodel.networks.gradients import reads_rows
from costmodel.networks.live_set import largest_live_set
from costmodel.networks.part_costs import (
    Counting,
    own_parameters,
    own_state,
    part_answers,
    part_sizes,
)
from costmodel.networks.schedule import (
    PASS,
    Beside,
    Passing,
    Path,
    Piece,
    layers_of,
    longest_in_order,
    paths,
    schedule,
)
from costmodel.networks.steps import PROMPT, STEPS, at_prompt, over_steps, over_steps_at
from costmodel.networks.training import Graph
from costmodel.paths.chains import FEW, CriticalPath, Repeat, Step
from costmodel.program.chosen_sizes import extents
from costmodel.program.conventions import Convention
from costmodel.program.phases import NOW, TRAINING_STEP, Overrun
from costmodel.questions.activations import activations_of
from costmodel.questions.count import counted
from costmodel.questions.counting.counts import Counts
from costmodel.questions.counting.peers import added
from costmodel.questions.parameters import parameters, parameters_of
from costmodel.questions.peak import peak_of
from costmodel.questions.question import (
    JOINS,
    Answers,
    Case,
    Figure,
    Join,
    Missing,
    Share,
    Whole,
)
from costmodel.questions.span import Longest
from costmodel.questions.state import State
from costmodel.questions.traffic import (
    Elements,
    Traffic,
    of_part,
    read_together,
    traffic_of,
    weights_of,
    weights_of_part,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of
from costmodel.symbolic.sizes import LETTERS, in_order

T = TypeVar("T")
PathOf = Callable[[Answers, Mapping[str, int] | None], CriticalPath]
"""(answers about a mixer, sizes or None for large ones) -> the critical path of the mixer."""

ONE = Poly.of(1)
OF_STEPS = (
    "only operations and state are derived over several steps: ask for one new token, phase "
    "inference"
)

PHASES: Mapping[str, str] = {"prefill": "training", "decode": "inference"}
"""Stage of generation -> the phase in which its figures exist; other stages are phases."""


def join_of(question: Callable[[Answers], T]) -> Join[T]:
    """The rule by which the answers of parts to a question (a function such as `counted`) become
    the network's answer: operations are added up, lengths joined along a path. Unanswered for a
    question without a rule, whose function no `over_parts` decorates."""
    if question not in JOINS:
        name = question.__name__.strip("_").replace("_", " ")
        raise Unanswered(
            f"{name} is derived for a mixer, not for a network: ask for each mixer of the network"
        )
    return JOINS[question]


@dataclass(frozen=True, eq=False, kw_only=True)
class PartAnswers(Answers):
    """The answers about all runs of one part of a network in a stage, in sizes of the network.

    Args:
        graph, use: the network with its gradients and a convention, and the part.
        stage: a phase, or `prefill` or `decode` of generation.
        recompute: which layers run forward again for gradients.
        made: the operations of a part that has no equations of its own: the sums of gradients
            between parts, or the reason why these sums are not derived; None for other parts.
        at: the integer sizes at which the part is asked; None: for all sizes. At integer sizes a
            sum over steps of decoding that has no closed form is added up step by step, and a
            position beyond the part's weights is refused (Unanswered).
    """

    graph: Graph
    use: Use
    stage: str
    recompute: str = "none"
    made: Counts | Missing | None = None
    at: Mapping[str, int] | None = None

    @property
    def network(self) -> Assembly:
        """The network."""
        return self.graph.network

    @cached_property
    def running(self) -> bool:
        """Whether the part runs in the stage; dropout does not run where it costs nothing."""
        if self.use.regularises and self.graph.counting.dropout == "dropout=free":
            return False
        return PASS.get(self.stage, "training") in self.use.when

    @property
    def runs(self) -> Poly:
        """How often the part runs for one sequence."""
        if not self.running:
            return Poly()
        return self.use.runs * STEPS if self.stage == "decode" else self.use.runs

    @cached_property
    def own(self) -> Answers:
        """The answers (an object that is asked questions) about one run of the part, in the part's
        sizes. A part that reads the last position alone runs on one token in `prefill`, so that its
        phase there is inference."""
        phase = self.phase
        if self.stage == "prefill" and self.use.last:
            phase = "inference"
        return part_answers(self.use, phase, self.graph.counting)

    @property
    def unanswered(self) -> str | None:
        """The reason why the part has no one-token inference; None if the part has one, does not
        run in the stage, or is a sum of gradients."""
        return self.own.unanswered if self.running and self.made is None else None

    def beyond(self, sizes: Mapping[str, int]) -> str | None:
        """The reason why the part's weights end before the last position that the stage reads at
        these sizes; None if the weights suffice. With `at` set None too: answers then refuse."""
        return self._beyond(sizes) if self.at is None else None

    def _beyond(self, sizes: Mapping[str, int]) -> str | None:
        """The reason, in words, why the part has too few weights (a table of rows, or a mixer's
        parameters by position) for the last position that the stage reads at these sizes. None if
        they suffice; of a mixer also in phases of training, or without one-token inference."""
        if self.use.rows is not None:
            return beyond_table(self.use, self.stage, sizes)
        token = self.stage not in ("training", *TRAINING_STEP)
        if not token or "inference" not in self.use.when:
            return None
        about = part_answers(self.use, "inference", self.graph.counting)
        if about.unanswered:
            return None
        return about.beyond(part_sizes(self.use, sizes) | {"t": LAST[self.stage].at(sizes)})

    @property
    def overruns(self) -> tuple[Overrun, ...]:
        """The reads of the part beyond the ends of its weights, with the conditions on the
        network's sizes under which each occurs: of a table of `rows` by position, positions past
        its last row (1025 of 1024); else those that the equations of the part's mixer have."""
        if self.use.rows is not None:
            last = NOW if self.phase == "inference" else LAST[self.stage]
            past = frozenset({last - self.use.rows - 1})  # 0 or more where a row is lacking
            return (Overrun(self.use.name, Poly.of(self.use.rows), "past the end", past),)
        return tuple(
            replace(
                one,
                extent=one.extent.substitute(self.use.sizes),
                conditions=frozenset(c.substitute(self.use.sizes) for c in one.conditions),
            )
            for one in (self.own.overruns if self.running and self.made is None else ())
        )

    def of(self, question: Callable[[Answers], T]) -> T:
        """The answer to a question (a function such as `counted`) for all runs of the part: the sum
        over the runs or, for a length (span), the part's share of the longest path through the
        network.

        Raises:
            Unanswered, Unsupported: there is no answer; the message is the reason.
        """
        join = join_of(question)
        name = f"{question.__module__}.{question.__qualname__}"
        if name not in self._known:
            if join.larger is None:
                share = self.share(question)
                self._known[name] = join.rule([] if share is None else [share])
            else:
                chains = [[*self.links(question, path)] for path in self.paths]
                self._known[name] = join.larger([*map(join.rule, chains)])
        found: T = self._known[name]
        return found

    @property
    def paths(self) -> Sequence[Path]:
        """The paths through the network in the stage; Unanswered for several steps of decoding."""
        if self.stage == "decode":
            raise Unanswered(OF_STEPS)
        return paths(self.network, self.stage, self.recompute)

    def links(self, question: Callable[[Answers], Any], path: Path) -> Iterator[Share[Any]]:
        """Yield the part's terms in the length of a path (part and phase -> times passed): one term
        for each phase in which the path passes the part; of a sum of gradients one addition."""
        if self.made is not None:
            for _, times in self._steps(path):
                yield Share(self.use.name, Longest((ONE,)), {}, times)
            return
        for about, times in self._passes(path):
            yield Share(self.use.name, about.of(question), self._stage_sizes, times)

    def chained(self, path: PathOf, sizes: Mapping[str, int] | None) -> CriticalPath:
        """The critical path of one run of the part, in its own sizes, as `path` finds it."""
        about = self._about_run(self.own.phase)
        return about.chained(path, self._sizes_of_run(sizes, about.phase))

    def passed(self, path: PathOf, sizes: Mapping[str, int] | None, phase: str) -> CriticalPath:
        """The critical path of one run of the part in a phase, of those that a path through the
        network passes (a training step's: forward and backward), in sizes of the network."""
        # in prefill, the phase of `own` is inference if the part reads the last position alone
        about = self.own
        if phase == "backward" or about.phase != "inference":
            about = self._about_run(phase)
        found = about.chained(path, self._sizes_of_run(sizes, about.phase))
        return found.substitute(self._stage_sizes)

    @property
    def _stage_sizes(self) -> Mapping[str, Poly]:
        """The part's sizes in the stage, in sizes of the network."""
        return at_prompt(self.use.sizes) if self.stage == "prefill" else self.use.sizes

    def _sizes_of_run(self, sizes: Mapping[str, int] | None, phase: str) -> dict[str, int] | None:
        """The part's sizes at sizes of the network; None if these are None, and for several steps
        of decoding."""
        if sizes is None or self.stage == "decode":
            return None
        own = part_sizes(replace(self.use, sizes=self._stage_sizes), sizes)
        return own | ({"t": LAST[self.stage].at(sizes)} if phase == "inference" else {})

    def searched(self, figure: Figure, case: Case) -> int | None:
        """A figure without a formula, searched at the sizes of `case`: the part's largest length in
        a path; None for a figure that is not searched."""
        if figure.search is None:
            return None
        return max(self.length_at(figure, case, path) for path in self.paths)

    def length_at(self, figure: Figure, case: Case, path: Path) -> int:
        """The number of dependent steps (`figure`, a span or path length) that the part adds to a
        path: its length in each phase at the network's sizes in `case`, times how often the path
        passes the part in that phase.

        Raises:
            Unsupported: the part has no length there, or its weights end before the last position.
        """
        found = 0
        if self.made is not None:
            return sum(times.at(case.sizes) for _, times in self._steps(path))
        if reason := self._beyond(case.sizes):
            raise Unsupported(reason)
        for about, times in self._passes(path):
            own = self._sizes_of_run(case.sizes, about.phase)
            assert own is not None, "a path lies in one pass"
            each = Case(about, own, symbolic=False).figure(figure)
            if isinstance(each, Missing):
                raise Unsupported(f"{self.use.name}: {each.reason}")
            assert isinstance(each, int)
            found += each * times.at(case.sizes)
        return found

    def _passes(self, path: Path) -> Iterator[tuple[Answers, Poly]]:
        """Yield (answers about the part in a phase, how often the path passes the part in this
        phase)."""
        for phase, times in self._steps(path):
            # in prefill, whether the part runs on the last position alone
            last = phase != "backward" and self.own.phase == "inference"
            yield self.own if last else self._about_run(phase), times

    def _steps(self, path: Path) -> Iterator[tuple[str, Poly]]:
        """Yield (phase, how often the path passes the part in the phase), of a sum of gradients its
        name in place of a phase. A key of `path` that is a `Beside` holds paths through parts that
        run in parallel: the pairs of each are yielded, as often as the `Beside` is passed."""
        for step, times in path.items():
            if isinstance(step, Beside):
                for way in step.in_order:
                    yield from self._steps({x: n * times for x, n in way.items()})
            elif step[0] is self.use or (step[0] is None and self._sums(step[1])):
                yield step[1], times

    def _sums(self, name: str) -> bool:
        """Whether the part stands for the sums of gradients of this name, as the one row for all
        does where the sums have no number of operations."""
        return isinstance(self.made, Missing) or (self.made is not None and self.use.name == name)

    def _about_run(self, phase: str) -> Answers:
        """The answers about one run of the part in a phase, without gradients that the network does
        not need."""
        wanted = phase in TRAINING_STEP and self.made is None
        given = self.graph.given(self.use) if wanted else frozenset[str]()
        return part_answers(self.use, phase, self.graph.counting, given)

    def share(self, question: Callable[[Answers], Any]) -> Share[Any] | None:
        """The part's term (`Share`) in the network's answer to a question: the answer for one run,
        the part's sizes as functions of the network's, and the number of runs; over decoding, the
        sum over steps. A part that does not run has its parameters all the same, and 0 operations;
        to other questions it gives None, and so does a sum of gradients to all but operations.

        Raises:
            Unanswered, Unsupported: there is no answer; the message is the reason.
        """
        use = self.use
        if question is parameters_of:
            held = parameters(use.mixer)
            return Share(use.name, held, use.parameter_sizes, ONE, use.copies, use.shared)
        if not self.running:
            peer = self.convention.peer
            nothing = Counts({}, Counts({}, peer=peer), peer)
            # a part that does not run counts 0 operations, so that tables show a line for it
            return Share(use.name, nothing) if question is counted else None
        if self.made is not None:  # a sum of gradients between parts, or why it has no count
            if isinstance(self.made, Missing):
                raise Unanswered(self.made.reason)
            return Share(use.name, self.made) if question is counted else None
        if self.unanswered:
            raise Unanswered(self.unanswered)
        if question is activations_of:
            return Share(use.name, training.kept_activations(self.graph, self.recompute)[use])
        found = self._answer(question)
        empty = isinstance(found, State) and not found.arrays
        if self.at is not None and not empty and (reason := self._beyond(self.at)):
            raise Unanswered(reason)
        if self.stage == "decode":
            return self._over_steps(found)
        sizes = self._stage_sizes
        common = self._shared_tables() if question in (traffic_of, weights_of) else {}
        return Share(use.name, found, sizes, use.runs, use.copies, use.shared, common)

    def _shared_tables(self) -> dict[object, Exact]:
        """The number of entries that one run reads of each table which the network holds once,
        however many layers have the part, in the part's sizes. The keys are equal for parts that
        read one table: (name, section) of a shared parameter, ("E", "") of gpt-2's embedding;
        (name, *extents) of a constant, such as the cosines of a rotary embedding."""
        sharing = training.tables(self.network)
        keys = {key[0]: key for key, uses in sharing.items() if self.use in uses}
        found: dict[object, Exact] = {}
        for array, n in read_together(self._system, self.own.phase, frozenset(keys)).items():
            extents = (extent.substitute(self.use.sizes) for extent in array.shape)
            found[keys.get(array.name, (array.name, *extents))] = n
        return found

    def _answer(self, question: Callable[[Answers], Any]) -> Any:
        """The answer to a question for one run, in the part's sizes. In phases with gradients,
        operations include those of the gradients, and traffic and weights read are those of the
        equations with gradients (`_system`)."""
        if question is traffic_of:
            return of_part(self._system, self.own.phase)
        if question is weights_of:
            return weights_of_part(self._system, self.own.phase)
        if question is counted and self.phase in TRAINING_STEP:
            return self._with_gradients()
        found = self.own.of(question)
        return own_state(self.use, found) if isinstance(found, State) else found

    def _with_gradients(self) -> Counts:
        """The operations of the gradients of one run; in a training step also those of its forward
        pass; and those of the forward passes that recomputation repeats, on average over all runs:
        1/3 of a forward pass if one of three runs repeats it."""
        found = self.graph.counts(self.use)
        own = part_answers(self.use, "training", self.graph.counting)
        if self.phase == "training-step":
            found = added(own.of(counted), found)
        if share := training.share_again(self.network, self.use, self.recompute):
            times = Poly.of(share)  # of the runs, those whose forward pass is repeated
            found = added(own.of(counted).scaled({}, times, times), found)
        return found

    @property
    def _system(self) -> System:
        """The equations of the part in its phase; in training steps without the gradients of the
        network's inputs, which nobody reads."""
        if self.phase in TRAINING_STEP:
            return training.step_of(self.graph, self.use)
        return self.own.system

    def _over_steps(self, found: Any) -> Share[Any]:
        """The part's term over all steps of decoding, from the answer `found` for one new token:
        operations are added up over the steps, a state is taken after the last step. Raises
        Unanswered: the answer is neither operations nor a state, or the sum has no closed form."""
        use = self.use
        if isinstance(found, Counts):
            step = found.scaled(use.sizes, use.runs, use.copies)
            classes = {name: self._sum_over_steps(value) for name, value in step.classes.items()}
            return Share(use.name, replace(step, classes=classes))
        if isinstance(found, State):
            sizes = {x: poly.substitute({"t": LAST["decode"]}) for x, poly in use.sizes.items()}
            return Share(use.name, found, {"t": LAST["decode"], **sizes}, use.runs, use.copies)
        raise Unanswered(OF_STEPS)

    def _sum_over_steps(self, step: Exact) -> Exact:
        """The sum of an answer in t, the new token's position, over the steps of decoding, as a
        formula. Without a closed form it is added up at the sizes `at`; if these are None (formulas
        are asked), raises Unanswered."""
        try:
            return over_steps(step)
        except Unsupported as reason:
            if self.at is not None:
                return Exact.of(Poly.of(over_steps_at(step, self.at)))
            raise Unanswered(
                f"the sum over the steps of decoding has no formula, since {reason}: give numbers "
                "for all sizes"
            ) from None

    @property
    def counts(self) -> Counts | Missing:
        """The operations of all runs, or the reason why they are not derived."""
        return self.attempt(counted)

    @property
    def total(self) -> Exact | Missing:
        """The number of all operations, work on parameters alone included, or the reason."""
        found = self.counts
        return found if isinstance(found, Missing) else found.exact_total

    @property
    def parameters(self) -> Poly:
        """The number of the part's parameters, without those that another part counts."""
        return own_parameters(self.use)


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkAnswers(Answers):
    """The answers about a network in a stage, from those of its parts, in sizes of the network."""

    graph: Graph
    stage: str
    parts: tuple[PartAnswers, ...]
    recompute: str = "none"  # which layers run forward again for gradients

    @property
    def network(self) -> Assembly:
        """The network."""
        return self.graph.network

    def about(self, phase: str) -> Answers:
        """The answers about the same network and convention in a phase."""
        found = answers_of(self.network, phase, self.graph.counting, self.recompute)
        return replace(found, mixer=self.mixer, _known={})

    def at_numbers(self, sizes: Mapping[str, int]) -> NetworkAnswers:
        """The answers at integer sizes of the network. A sum over steps without a closed form has
        an answer there; a part whose weights end before a position has none (Unanswered)."""
        parts = (replace(part, at=sizes, _known={}) for part in self.parts)
        return together(self.graph, self.stage, tuple(parts), self.recompute)

    @property
    def system(self) -> System:
        """Always raises Unanswered: a network has no equations beside those of its parts."""
        raise Unanswered("a network has no equations of its own: ask for those of its mixers")

    @property
    def unanswered(self) -> str | None:
        """The name of the first part without one-token inference and the reason; None if each part
        has one."""
        return _first((part, part.unanswered) for part in self.parts)

    def beyond(self, sizes: Mapping[str, int]) -> str | None:
        """The name of the first part whose weights end before the last position at these sizes, and
        the reason; None without such a part, or if the parts were made for integer sizes."""
        return _first((part, part.beyond(sizes)) for part in self.parts if part.made is None)

    @property
    def overruns(self) -> tuple[Overrun, ...]:
        """The reads beyond the ends of weights, of all parts."""
        return tuple(one for part in self.parts for one in part.overruns)

    def chained(self, path: PathOf, sizes: Mapping[str, int] | None) -> CriticalPath:
        """The critical path of the network: those of the parts on the longest path, on which a part
        begins when the part before it has ended."""
        key = f"critical path at {sizes}"
        if key not in self._known:
            self._known[key] = self._chained(path, sizes)
        found: CriticalPath = self._known[key]
        return found

    def _chained(self, path: PathOf, sizes: Mapping[str, int] | None) -> CriticalPath:
        """The critical path that `chained` keeps, by `path`, which finds that of one mixer; `sizes`
        is None for large ones. Unanswered for all steps of decoding together, which have no common
        path, and, with the part's name, where a part has none (or Unsupported)."""
        if self.stage == "decode":
            raise Unanswered(OF_STEPS)
        by_use = {part.use: part for part in self.parts if part.made is None}

        def of_part(use: Use, phase: str) -> CriticalPath:
            """The steps of one run of a part in a phase, in sizes of the network."""
            try:
                return by_use[use].passed(path, sizes, phase)
            except (Unanswered, Unsupported) as reason:
                raise type(reason)(_named(by_use[use], str(reason))) from None

        layers = self.network.layers or (sizes or {}).get("L")
        at = {**self.network.sizes, **(sizes or {})}
        pieces = longest_in_order(self.network, layers, self.stage, self.recompute, of_part, at)
        return CriticalPath(tuple(_steps_of(pieces)))

    def of(self, question: Callable[[Answers], T]) -> T:
        """The answer to a question (a module's function), joined from the parts' answers by the
        question's rule (a sum, the longest path); kept under the function's name for later calls.

        Raises:
            Unanswered: the question has no rule for networks.
            Unanswered, Unsupported: a part has no answer; the message names the part.
        """
        join = join_of(question)
        name = f"{question.__module__}.{question.__qualname__}"
        if name not in self._known:
            self._known[name] = self._joined(question, join)
        found: T = self._known[name]
        return found

    def _joined(self, question: Callable[[Answers], Any], join: Join[Any]) -> Any:
        """The network's answer: lengths are joined along each path, of which the longest counts;
        for other questions the terms (`Share`) of all parts are joined, for most by a sum.
        Parameters mark tables of embeddings; traffic gains the network's input and output; parts
        that read rows of a table are left out of weights where another part reads it whole. The
        peak is Unanswered but in a training step, and there Unsupported without numbers."""
        if question is peak_of and self.stage != "training-step":
            raise Unanswered(
                "peak, the largest live set of a network, is derived for a training step alone: "
                "add --phase training-step"
            )
        if question is peak_of:
            raise Unsupported(
                "peak, the largest live set of a network, needs a number for every size"
            )
        if join.larger is not None:
            known: dict[Beside, Share[Any]] = {}
            chains = [self._chain(question, path, known) for path in self._paths()]
            return join.larger([*map(join.rule, chains)])
        found = []
        for part in self.parts:
            try:
                share = part.share(question)
            except (Unanswered, Unsupported) as reason:
                raise Unanswered(_named(part, str(reason))) from None
            if share is not None:
                found.append(share)
        if question is parameters_of:
            tables = frozenset(part.use.name for part in self.parts if part.use.table)
            return replace(join.rule(found), tables=tables)
        if question is traffic_of:
            return self._network_traffic([*map(self._without_arrays_between, found)], join)
        if question is weights_of:
            found = [share for share in found if share.name not in self._readers_of_rows]
        return join.rule(found)

    def _paths(self) -> Sequence[Path]:
        return self.parts[0].paths

    def _chain(
        self, question: Callable[[Answers], Any], path: Path, known: dict[Beside, Share[Any]]
    ) -> list[Share[Any]]:
        """The terms (`Share`) whose sum is the length of a path, in dependent operations: one for
        each part and phase that the path passes, 1 for each sum of gradients, and the maximum of
        paths through parts that run in parallel. `known`: these maxima so far; new ones join."""
        alone, beside, sums = _alone_beside_and_sums(path)
        # part -> {(part, phase): how often the path passes it}; None -> the sums, as in `sums`
        passed: dict[Use | None, dict[Passing, Poly]] = {}
        for step, times in alone.items():
            if not isinstance(step, Beside):  # none is: for mypy
                passed.setdefault(step[0], {})[step] = times
        found: list[Share[Any]] = []
        for part in self.parts:
            try:
                found += part.links(question, passed.get(part.use, {}))
            except (Unanswered, Unsupported) as reason:
                raise type(reason)(_named(part, str(reason))) from None
        join = join_of(question)
        assert join.larger is not None
        for one, times in beside:
            if one not in known:
                ways = [join.rule(self._chain(question, way, known)) for way in one.in_order]
                known[one] = Share("parts beside each other", join.larger(ways))
            found.append(replace(known[one], runs=times))
        return [*found, Share("sums of gradients", Longest((ONE,)), {}, sums)]

    def searched(self, figure: Figure, case: Case) -> int | None:
        """A figure without a formula, searched at the sizes of `case`: the largest live set of a
        training step, or the length of the longest path; None for a figure that is not searched.

        Raises:
            Unsupported: a part has no such number.
        """
        if figure.name == "peak" and self.stage == "training-step":
            return largest_live_set(self.graph, case.sizes, self.recompute).elements
        if figure.search is None:
            return None
        return max(self._length_at(figure, case, path) for path in self._paths())

    def _length_at(self, figure: Figure, case: Case, path: Path) -> int:
        """The length of a path in dependent operations at the sizes of `case`: the sum of its
        lengths within parts (`figure`, a span or path length), of 1 for each sum of gradients (a
        part that has `made` in place of equations, and is not asked), and for each group of
        parallel branches of the longest branch, as often as the group runs."""
        alone, beside, sums = _alone_beside_and_sums(path)
        own = (part.length_at(figure, case, alone) for part in self.parts if part.made is None)
        length = sum(own) + sums.at(case.sizes)
        for group, times in beside:
            branches = (self._length_at(figure, case, branch) for branch in group.in_order)
            length += max(branches) * times.at(case.sizes)
        return length

    def _without_arrays_between(self, share: Share[Traffic]) -> Share[Traffic]:
        """A copy of a part's traffic (bytes to be moved, by kind) without the arrays between parts,
        which need not leave the chip, and without rows of a table that another part reads as a
        whole."""
        kinds = {
            kind: number
            for kind, number in share.answer.compulsory.kinds.items()
            if kind != "activations"
            and not (kind == "rows" and share.name in self._readers_of_rows)
        }
        compulsory = replace(share.answer.compulsory, kinds=kinds)
        return replace(share, answer=replace(share.answer, compulsory=compulsory))

    @cached_property
    def _sharing(self) -> Mapping[tuple[str, str], tuple[list[PartAnswers], list[PartAnswers]]]:
        """(name, section) of a parameter that several parts share -> two lists: the parts that run
        and read it as a whole, and those that read rows of it by number: of gpt-2, ("E", "") ->
        ([head], [embedding])."""
        found: dict[tuple[str, str], tuple[list[PartAnswers], list[PartAnswers]]] = {}
        for key, uses in training.tables(self.network).items():
            here = [part for part in self.parts if part.running and part.use in uses]
            rows = [part for part in here if reads_rows(part.use.mixer, key[0])]
            found[key] = [part for part in here if part not in rows], rows
        return found

    @property
    def _readers_of_rows(self) -> frozenset[str]:
        """The names of the parts that read rows of a table which another part reads as a whole."""
        return frozenset(
            p.use.name for whole, rows in self._sharing.values() if whole for p in rows
        )

    def _repeated_writes(self) -> Elements:
        """The correction of the sum over parts in a phase with gradients, a negative number of
        elements: parts that share a parameter, such as embedding and head, each count a write of
        its gradient, but the gradient is written once. All writes but one are subtracted; 0 in
        other phases."""
        found = Exact()
        for (name, _), (whole, rows) in self._sharing.items():
            given = self.graph.given  # a part writes no gradient of a frozen parameter
            here = [part for part in (*whole, *rows) if name not in given(part.use)]
            if here and self.phase in TRAINING_STEP:
                elements = parameters(here[0].use.mixer).arrays[name]
                times = sum_of(part.use.copies for part in here) - 1
                found = found + Exact.of(elements.substitute(here[0].use.parameter_sizes) * times)
        return Elements({"weights": found * -1})

    def _network_traffic(self, shares: Sequence[Share[Traffic]], join: Join[Traffic]) -> Traffic:
        """The traffic of the network. To the sum (`join`) of the parts' `shares`, from whose
        compulsory elements all activations were removed, are added: the network's inputs and
        output, or in a backward pass what the forward pass kept; and the negative number of
        `_repeated_writes`, since each gradient of a shared parameter is written once."""
        ends, kept = Elements({"activations": Exact.of(self._inputs_and_output())}), Elements()
        if self.stage == "backward":
            held = self.of(activations_of)
            ends = kept = Elements({"activations": held.each, "weights": held.alone})
        found = join.rule(shares)
        every = found.compulsory + ends + self._repeated_writes()
        return replace(found, compulsory=every, kept=kept)

    def _inputs_and_output(self) -> Poly:
        """The number of entries of the network's inputs and output in the stage (a phase, `prefill`
        or `decode`), as a polynomial in the sizes: of one token in inference, of the prompt in
        prefill."""
        every = schedule(self.network, layers_of(self.network))  # each run of a part, in order
        runs = [run for run in every if PASS.get(self.stage, "training") in run.use.when]
        read = [wire for run in runs for wires in run.reads.values() for wire in wires]
        given = dict.fromkeys(wire for wire in read if wire.source)  # the network's inputs
        found = sum_of([runs[-1].writes.entries, *(wire.entries for wire in given)])
        if self.phase == "inference":
            return found.substitute({"l": ONE})
        return found.substitute({"l": PROMPT}) if self.stage == "prefill" else found


def _steps_of(pieces: Iterable[Piece]) -> Iterator[Step | Repeat]:
    """Yield the steps of pieces of a path; a piece that is passed up to `FEW` times is written out
    as often, another is one `Repeat`."""
    for piece in pieces:
        here, times = (*piece.steps, *_steps_of(piece.inner)), piece.times.constant()
        if isinstance(times, int) and times <= FEW:
            yield from here * times
        elif here:
            yield Repeat(piece.times, here)


def _alone_beside_and_sums(path: Path) -> tuple[Path, list[tuple[Beside, Poly]], Poly]:
    """A path in three parts: the steps through single parts, and sums of gradients, with how often
    each is passed; the steps through parallel branches, likewise; and the number of the sums."""
    beside = [(step, n) for step, n in path.items() if isinstance(step, Beside)]
    alone: Path = {step: n for step, n in path.items() if not isinstance(step, Beside)}
    sums = [n for step, n in path.items() if not isinstance(step, Beside) and step[0] is None]
    return alone, beside, sum_of(sums)


def _named(part: PartAnswers, reason: str) -> str:
    """A reason with the name of its part in front, unless it is there: "FFN: not causal"."""
    own = f"{part.use.name}: "
    return reason if reason.startswith(own) else own + reason


def _first(reasons: Iterator[tuple[PartAnswers, str | None]]) -> str | None:
    """The first reason with its part's name; None if no part has a reason."""
    return next((_named(part, reason) for part, reason in reasons if reason), None)


def parts_of(
    graph: Graph, stage: str, recompute: str = "none", at: Mapping[str, int] | None = None
) -> tuple[PartAnswers, ...]:
    """A `PartAnswers` for each part that runs in a stage (a phase, `prefill` or `decode`) or has
    parameters, in the order of a forward pass. Stages with gradients end with the sums of gradients
    between parts, except under the convention of another tool, whose counter lacks these sums.
    `recompute`: which layers run forward again for gradients; `at`: integer sizes, or None for
    formulas."""
    found = [_part(graph, use, stage, recompute, at) for use in graph.network.uses]
    if stage in TRAINING_STEP:
        # dropout that costs nothing has no line in tables
        found = [part for part in found if part.running or not part.use.regularises]
        joins = () if graph.counting.convention.peer else training.joins(graph)
        # a copy has answers of its own (`_known`)
        return (*found, *(
            replace(_part(graph, use, stage, recompute, at), made=made, _known={})
            for use, made in joins
        ))  # fmt: skip
    return tuple(part for part in found if part.running or part.parameters.terms)


def _part(
    graph: Graph, use: Use, stage: str, recompute: str, at: Mapping[str, int] | None
) -> PartAnswers:
    """The answers about the part `use` in a stage (a phase, `prefill` or `decode`); `at`: integer
    sizes, or None for formulas. `recompute`: which layers' forward passes run again."""
    chosen = graph.counting.convention
    return PartAnswers(
        use.mixer, use.form_under(chosen.rewrites), PHASES.get(stage, stage), chosen,
        graph=graph, use=use, stage=stage, recompute=recompute, at=at,
    )  # fmt: skip


OPEN = frozenset("bltepq")
"""The sizes of a network's input, which no configuration fixes."""


class NetworkMixer(Whole):
    """A network as a mixer, so that commands on mixers take it: its configuration fixes all sizes
    but those of the input, as braces (`gpt2{l=512}`) fix a mixer's.

    Args:
        network: the network; where layers differ, their number is fixed.
        fixed: sizes of the input that the braces of the network's name fix too.
    """

    def __init__(self, network: Assembly, fixed: frozenset[str] = frozenset()) -> None:
        """Declare a mixer with one form, without equations, whose arrays have the extents of all
        parts; the network's sizes are given, those of the input (`OPEN`: b, l, t, e, p and q) but
        the `fixed` ones stay open."""
        super().__init__("network", title=network.title, source=network.described.source)
        self.name = self.base = self.origin = network.name
        self.network = network
        self.dtypes = network.described.dtypes
        self.checked = True  # no equations of its own could be malformed
        closed = network.sizes.keys() - (OPEN - fixed)
        self.given = {x: size for x, size in network.sizes.items() if x in closed}
        form = Form(self, "network", arrays=self._extents())
        self.forms = {form.name: form}
        letters = {x for array in form.arrays.values() for e in array.shape for x in e.letters}
        self.letters = in_order(letters - {"b", "t"})  # every mixer has b, and t for one token
        for letter in OPEN & {*self.letters, *network.sizes}:
            if letter in network.sizes:
                self.own[letter] = replace(LETTERS[letter], default=network.sizes[letter])

    def _extents(self) -> dict[str, Array]:
        """A dict: name -> one array for each part, whose shape lists all extents of the part in the
        network's sizes: a mixer's check of its arrays then refuses sizes at which an extent is no
        whole number."""
        found: dict[str, Array] = {}
        for k, use in enumerate(self.network.uses):
            shape = [extent.substitute(use.sizes) for extent in extents(use.mixer, None)]
            name = f"part {k}"
            found[name] = Array(name, "intermediate", (*shape, use.runs, use.copies), self)
        return found

    def answers(self, phase: str, convention: Convention) -> Answers:
        """The answers about the network in a phase."""
        found = answers_of(self.network, phase, Counting(convention))
        return replace(found, mixer=self, _known={})

    def opened(self, letter: str) -> NetworkMixer:
        """The network as a mixer without a value of the size `letter`; itself if there is none.
        Unanswered for a letter that it has not, that braces say, or for L where layers differ."""
        about, said = self.network.described, {*braces(self.name)}
        kept = said | ({"L"} if about.patterned else set())
        if letter in kept or letter not in {*self.letters, "b", "t"}:
            free = ", ".join(in_order({*self.letters, "b", "t"} - kept))
            why = "has a value in braces already" if letter in said else "cannot be varied"
            raise Unanswered(f"{self.name}: size {letter} {why}: choose one of {free}")
        if letter not in self.given:
            return self
        sizes = {x: size for x, size in about.sizes.items() if x != letter}
        network = replace(self.network, described=replace(about, sizes=sizes))
        return whole(network, frozenset(said))


@cache
def whole(network: Assembly, fixed: frozenset[str] = frozenset()) -> NetworkMixer:
    """A network as a mixer, the same object at each call; `fixed`: sizes of the input that braces
    in the network's name fix."""
    return NetworkMixer(network, fixed)


@cache
def answers_of(
    network: Assembly, stage: str, counting: Counting, recompute: str = "none"
) -> NetworkAnswers:
    """The answers about a network in a stage (a phase, `prefill` or `decode`), the same object at
    each call. `recompute`: which layers run forward again for gradients."""
    graph = training.graph_of(network, counting)
    return together(graph, stage, parts_of(graph, stage, recompute), recompute)


def together(
    graph: Graph, stage: str, parts: tuple[PartAnswers, ...], recompute: str = "none"
) -> NetworkAnswers:
    """The answers about a network in a stage (a phase, `prefill` or `decode`), which join the
    answers of `parts`. `recompute`: which layers run forward again for gradients."""
    return NetworkAnswers(
        whole(graph.network), "network", PHASES.get(stage, stage),
        graph.counting.convention, graph=graph, stage=stage, parts=parts, recompute=recompute,
    )  # fmt: skip
