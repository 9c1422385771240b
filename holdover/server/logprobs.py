"""Log probabilities in the forms of the two endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdover.engine.sampling import TokenLogprob
from holdover.server.offsets import Offsets, Vocabulary

Json = dict[str, Any]

# what OpenAI sends for a token of no probability, which JSON has no number for
_FLOOR = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob], vocabulary: Vocabulary) -> Json:
    """``choices[].logprobs`` of a chat completion."""
    content = []
    for entry in entries:
        top = [_chat_entry(token, logprob, vocabulary) for token, logprob in entry.top]
        content.append(_chat_entry(entry.token, entry.logprob, vocabulary) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], vocabulary: Vocabulary, offsets: Offsets) -> Json:
    """``choices[].logprobs`` of a completion, or of a part of one.

    Args:
        entries: one a token.
        vocabulary: what tokens stand for.
        offsets: has been told of the tokens before.
    """
    return {
        "tokens": [vocabulary.token_text(entry.token) for entry in entries],
        "token_logprobs": [_number(entry.logprob) for entry in entries],
        "top_logprobs": [_by_text(entry, vocabulary) for entry in entries],
        "text_offset": [offsets.place(entry.token) for entry in entries],
    }


def echoed_logprobs(first: int, entries: Sequence[TokenLogprob], vocabulary: Vocabulary, text: str) -> Json:
    """The same of a prompt, of whose first token nothing is known.

    Args:
        first: that token.
        entries: one for each token after it.
        vocabulary: what tokens stand for.
        text: the prompt as the completion begins with it.
    """
    offsets = Offsets(vocabulary, text=text)
    unknown: Json = {"tokens": vocabulary.token_text(first), "text_offset": offsets.place(first)}
    unknown |= {"token_logprobs": None, "top_logprobs": None}
    reported = completion_logprobs(entries, vocabulary, offsets)
    return {name: [unknown[name], *values] for name, values in reported.items()}


def prompt_logprobs(entries: Sequence[TokenLogprob | None], vocabulary: Vocabulary) -> list[Json | None]:
    """``choices[].prompt_logprobs`` of a completion: by token id; a token outside the best ones has no rank."""
    return [None if entry is None else _by_id(entry, vocabulary) for entry in entries]


def _chat_entry(token: int, logprob: float, vocabulary: Vocabulary) -> Json:
    spelled = vocabulary.token_bytes(token)
    known = None if spelled is None else list(spelled)
    return {"token": vocabulary.token_text(token), "logprob": _number(logprob), "bytes": known}


def _by_text(entry: TokenLogprob, vocabulary: Vocabulary) -> dict[str, float]:
    best: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token, entry.logprob)):
        # several tokens may have the same text: the most probable one stands for them
        best.setdefault(vocabulary.token_text(token), _number(logprob))
    return best


def _by_id(entry: TokenLogprob, vocabulary: Vocabulary) -> Json:
    text = vocabulary.token_text
    found = {
        str(token): {"logprob": _number(logprob), "rank": rank, "decoded_token": text(token)}
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    own = {"logprob": _number(entry.logprob), "rank": None, "decoded_token": text(entry.token)}
    return {str(entry.token): own} | found


def _number(logprob: float) -> float:
    # written so that a value that is no number becomes the floor too
    return logprob if logprob > _FLOOR else _FLOOR
