"""A tokenizer with a token for each letter; ``[`` begins and ``]`` ends a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdover.errors import RequestError
from holdover.evaluation.traces import Conversation, Turn

END = 1
ENDS = frozenset([END])


class Letters:
    def encode(self, text: str) -> list[int]:
        return [END if letter == "]" else ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("]" if token == END else chr(token) for token in ids)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **_: Any) -> list[int]:
        if any(message["content"] == "refuse me" for message in messages):
            raise RequestError("the chat template refuses these messages")
        return self.encode("".join(f"[{m['role'][0]}:{m['content']}]" for m in messages) + "[a:")


def conversation(name: str, *texts: str, roles: str = "ua") -> Conversation:
    names: dict[str, Any] = {"u": "user", "a": "assistant", "s": "system"}
    if roles[0] == "s":
        roles = "s" + roles[1:] * len(texts)
    return Conversation(name, tuple(Turn(names[roles[i % len(roles)]], text) for i, text in enumerate(texts)))
