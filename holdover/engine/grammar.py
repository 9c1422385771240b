"""What a generated text must match, and who says which tokens keep it matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch


@dataclass(frozen=True)
class Grammar:
    """A language that a generated text must be in.

    Attributes:
        kind: ``json`` for a JSON schema, ``regex`` for a regular expression, ``lark`` for a context-free grammar in the
            form of llguidance.
        text: the schema (as JSON), expression or grammar.
        param: the request's field that it comes from.
        parts: further grammars, which one of kind ``lark`` refers to as ``@name``.
    """

    kind: Literal["json", "regex", "lark"]
    text: str
    param: str = "grammar"
    parts: tuple[tuple[str, Grammar], ...] = ()


class Constraint(Protocol):
    """Follows one sequence's tokens through its grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow: the text is in the language, and no longer one begins with it."""

    def forbidden(self) -> torch.Tensor:
        """Which tokens may not come next, bool ``[vocabulary]`` on the CPU. Never all of them.

        Raises:
            RequestError: the grammar has become too large to be followed.
        """

    def accept(self, token: int) -> None:
        """Go on by a token that was generated.

        Raises:
            RequestError: it is forbidden.
        """


class Constrainer(Protocol):
    """Makes constraints for one tokenizer."""

    def constraint(self, grammar: Grammar) -> Constraint:
        """A constraint of a new sequence. Safe from any thread.

        Raises:
            RequestError: the grammar is not valid or not supported, or no library is there to follow it.
        """
