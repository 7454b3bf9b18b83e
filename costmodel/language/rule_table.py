"""What does each kind of node mean to one question? A table with a rule for every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, TypeVar

from costmodel.errors import Unsupported
from costmodel.language.nodes import KINDS, Node

Rule = TypeVar("Rule")


class Rules(dict[type[Node], Rule]):
    """Kind of node -> its rule. A table that lacks a kind cannot be made.

    Args:
        question: whose rules they are, for messages.
        kinds: those that need a rule; every kind by default.

    Raises:
        TypeError: a kind has no rule; the message names question and kind. A kind that a question
            has no answer for is `refused`.
    """

    def __init__(
        self,
        question: str,
        rules: Mapping[type[Node], Rule],
        kinds: Sequence[type[Node]] = KINDS,
    ) -> None:
        super().__init__(rules)
        self.question = question
        if missing := [kind.__name__ for kind in kinds if kind not in rules]:
            raise TypeError(f"the rules of {question} lack {', '.join(missing)}")

    def __missing__(self, kind: type[Node]) -> Never:
        raise Unsupported(f"{kind.__name__} has no rule in {self.question}")


def refused(why: str) -> Callable[..., Any]:
    """The rule of a kind for which a question has no answer.

    Raises:
        Unsupported: whenever it is asked; the message is the reason.
    """

    def rule(*_: Any) -> Never:
        raise Unsupported(why)

    return rule


WRITTEN_OUT = refused("a composite is written out before it is asked about")
"""The rule of `Composite` for what is asked about equations that are lowered."""
