"""Log probabilities in the forms of the two endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdover.engine.sampling import TokenLogprob

Json = dict[str, Any]
TokenText = Callable[[int], str]

# what OpenAI sends for a token of no probability, which JSON has no number for
_FLOOR = -9999.0
_REPLACEMENT = "\ufffd"


def chat_logprobs(entries: Sequence[TokenLogprob], text: TokenText) -> Json:
    """``choices[].logprobs`` of a chat completion."""
    content = []
    for entry in entries:
        top = [_chat_entry(text(token), logprob) for token, logprob in entry.top]
        content.append(_chat_entry(text(entry.token), entry.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], text: TokenText, offset: int = 0) -> Json:
    """``choices[].logprobs`` of a completion.

    Args:
        entries: one a token.
        text: text of one token.
        offset: characters of the text before the first token.
    """
    tokens = [text(entry.token) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_number(entry.logprob) for entry in entries],
        "top_logprobs": [_by_text(entry, text) for entry in entries],
        "text_offset": offsets,
    }


def echoed_logprobs(first: int, entries: Sequence[TokenLogprob], text: TokenText) -> Json:
    """The same of a completion that begins with its prompt, whose first token nothing is known of.

    Args:
        first: that token.
        entries: one for each token after it.
        text: text of one token.
    """
    token = text(first)
    reported = completion_logprobs(entries, text, len(token))
    unknown = {"tokens": token, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [unknown[name], *values] for name, values in reported.items()}


def prompt_logprobs(entries: Sequence[TokenLogprob | None], text: TokenText) -> list[Json | None]:
    """``choices[].prompt_logprobs`` of a completion: by token id; a token outside the best ones has no rank."""
    return [None if entry is None else _by_id(entry, text) for entry in entries]


def _chat_entry(token: str, logprob: float) -> Json:
    # a token that ends within a character has no text of its own, and its bytes are not known here
    known = None if _REPLACEMENT in token else list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "logprob": _number(logprob), "bytes": known}


def _by_text(entry: TokenLogprob, text: TokenText) -> dict[str, float]:
    best: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token, entry.logprob)):
        # several tokens may have the same text: the most probable one stands for them
        best.setdefault(text(token), _number(logprob))
    return best


def _by_id(entry: TokenLogprob, text: TokenText) -> Json:
    found = {
        str(token): {"logprob": _number(logprob), "rank": rank, "decoded_token": text(token)}
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    own = {"logprob": _number(entry.logprob), "rank": None, "decoded_token": text(entry.token)}
    return {str(entry.token): own} | found


def _number(logprob: float) -> float:
    # written so that a value that is no number becomes the floor too
    return logprob if logprob > _FLOOR else _FLOOR
