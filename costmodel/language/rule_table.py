"""Tables of rules: for one question, a rule for every kind of node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, TypeVar

from costmodel.errors import Unsupported
from costmodel.language.nodes import KINDS, Node

Rule = TypeVar("Rule")


class Rules(dict[type[Node], Rule]):
    """Kind of node -> its rule. A table without a rule for some kind cannot be constructed.

    Args:
        question: the name of the question, for messages.
        kinds: the kinds that need a rule; every kind by default.

    Raises:
        TypeError: a kind has no rule; the message names question and kind. The rule for a kind
            without an answer is `refused`.
    """

    def __init__(
        self,
        question: str,
        rules: Mapping[type[Node], Rule],
        kinds: Sequence[type[Node]] = KINDS,
    ) -> None:
        """A table of `rules` (class of nodes -> rule) for a question, whose name errors state;
        TypeError if one of `kinds`, the classes that need a rule, has none."""
        super().__init__(rules)
        self.question = question
        if missing := [kind.__name__ for kind in kinds if kind not in rules]:
            raise TypeError(
                f"the rules of {question} lack {', '.join(missing)}: add a rule for each, or "
                "refused('why')"
            )

    @classmethod
    def like(
        cls, question: str, others: Rules[Any], rules: Mapping[type[Node], Rule]
    ) -> Rules[Rule]:
        """A table for a question in which all kinds of node that share one rule in the table
        `others` share a rule too; `rules` has the rule of one kind of each such group: with Add and
        Sub alike in `others`, a rule for Add serves Sub.

        Raises:
            TypeError: a group of which no kind has a rule in `rules`.
        """
        by = {others[kind]: rule for kind, rule in rules.items()}
        return cls(question, {kind: by[other] for kind, other in others.items() if other in by})

    def __missing__(self, kind: type[Node]) -> Never:
        raise Unsupported(
            f"{kind.__name__} has no rule in {self.question}: add one, or refused('why')"
        )


def refused(why: str) -> Callable[..., Any]:
    """A rule that raises Unsupported with the reason `why`, for a kind of node without an answer.

    Raises:
        Unsupported: on every call of the rule.
    """

    def rule(*_: Any) -> Never:
        raise Unsupported(why)

    return rule


WRITTEN_OUT = refused("macros are written out as equations first")
"""The rule of `Composite` in questions about lowered equations, which hold no composite."""
