"""How does a twin generate: the state between tokens, and greedy decoding?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profiler.networks.modules import TwinError


@dataclass
class Decoding:
    """The state of a twin between tokens."""

    held: list[list[Any]]
    """For each layer the states of its mixers."""
    length: int
    """The number of tokens for which there is room."""
    position: int = 0
    """The number of tokens read so far."""

    def require_room(self) -> None:
        """TwinError if there is no room for a further token."""
        if self.position >= self.length:
            raise TwinError(f"all {self.length} tokens have been read: start with more room")


class Generating(nn.Module, ABC):
    """A network that may read tokens one by one."""

    name: str

    @abstractmethod
    def start(self, batch: int, length: int, source: Tensor | None = None) -> Decoding:
        """Make the state before the first token, with room for `length` tokens, after an encoder
        (if the network has one) has read `source`."""

    @abstractmethod
    def step(self, tokens_t: Tensor, decoding: Decoding) -> Tensor:
        """Read one further token (b,) of each sequence: the scores (b, u) of the next token."""

    @torch.no_grad()
    def generate(self, prompt: Tensor, new: int, source: Tensor | None = None) -> Tensor:
        """Greedy decoding: the prompt (b, p), of token numbers, continued by `new` tokens: (b,
        p+new).

        All tokens pass through the mixers' `step`; TwinError without it, or beyond the positions.
        """
        self.require(prompt, "the prompt")
        was, tokens = self.training, list(prompt.unbind(1))
        self.eval()
        try:
            decoding = self.start(prompt.shape[0], len(tokens) + new - 1 or 1, source)
            for k in range(len(tokens) + new - 1):
                scores = self.step(tokens[k], decoding)
                if k + 1 == len(tokens):
                    tokens.append(scores.argmax(-1))
        finally:
            self.train(was)
        return torch.stack(tokens, 1)

    def require(self, tokens: Tensor, what: str) -> None:
        """Raise a TwinError unless `tokens` are integers (b, s); `what` names them in the
        message."""
        if tokens.dim() != 2 or tokens.shape[1] < 1 or tokens.dtype != torch.long:
            raise TwinError(
                f"{self.name}: {what} must be whole numbers (b, s) of type torch.long, and "
                f"came as {tuple(tokens.shape)} of type {tokens.dtype}"
            )
