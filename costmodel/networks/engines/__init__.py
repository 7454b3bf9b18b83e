"""What does software reserve for the states of a network: one rule for a version of each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.errors import Unanswered
from costmodel.networks.engines import llama_cpp, transformers, vllm
from costmodel.networks.engines.reserved import Reserved
from costmodel.networks.held import Holding
from costmodel.program.element_types import Dtypes
from costmodel.questions.question import Missing


@dataclass(frozen=True)
class Engine:
    """An engine: name, version, the place of the rule in its source, and the rule; `crosses`:
    whether the rule covers cross-attention to rows that are given, such as those of an image."""

    name: str
    version: str
    source: str
    rule: Callable[[Holding, Dtypes, int, int], Reserved]
    crosses: bool = False

    def reserved(
        self, held: Holding, typed: Dtypes, context: int, batch: int
    ) -> Reserved | Missing:
        """The tensors that the engine reserves for `batch` sequences of `context` tokens, or the
        reason (`Missing`) why its rule says nothing about this network.

        Args:
            held: what the network holds while it generates.
            typed: the element types that the user names; where None, the engine's own.
        """
        if held.network.described.kind == "encoder-decoder":
            return Missing("the rule does not cover a decoder that reads an encoder's output")
        if held.crosses and not self.crosses:
            return Missing("the rule does not cover layers of cross-attention")
        try:
            return self.rule(held, typed, context, batch)
        except Unanswered as reason:
            return Missing(str(reason))


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "transformers", "5.23.0", "DynamicCache in cache_utils.py", transformers.reserved, True
        ),
        Engine("vllm", "0.11.0", "vllm/v1/core/kv_cache_utils.py", vllm.reserved),
        Engine(
            "llama.cpp", "0.5.0", "src/llama-kv-cache.cpp, commit 0c1e57098", llama_cpp.reserved
        ),
    )
}
"""Name on a command line -> engine."""
