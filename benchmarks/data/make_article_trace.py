"""Write the recording that comes with Holdover: conversations over Wikipedia articles, in ShareGPT's format.

    python benchmarks/data/make_article_trace.py

The articles are those of held_out.txt. A first message pastes some paragraphs of one and asks about them, later ones
paste a paragraph more; a reply repeats sentences of what it was asked about. Nobody said these things to each other:
the text is real, the lengths are chosen, and every paragraph is used once. Short conversations follow, which paste
sentences where the long ones paste paragraphs: they go once more over the beginning of every article.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from holdover.evaluation.traces.sources import BUNDLED as TRACE

TEXT = Path(__file__).parent / "held_out.txt"
TURNS = 4
ASK = (
    "Please read this. What is it about?",
    "How does this fit what came before?",
    "And this?",
    "What follows from it?",
)
_SENTENCES = re.compile(r"(?<=[.!?]) ")


@dataclass(frozen=True)
class Size:
    """How long conversations are; about three and a half characters make a token.

    Attributes:
        first: characters of what successive first messages paste.
        replies: characters of successive replies.
        between: what stands between two pasted parts.
    """

    first: tuple[int, ...]
    replies: tuple[int, ...]
    between: str


LONG = Size((1500, 2400, 4200, 1900, 3300), (160, 420, 240, 620), "\n\n")
# a quarter, as the preset `tiny` is of `small`
SHORT = Size((375, 600, 1050, 475, 825), (40, 105, 60, 155), " ")
# short conversations over each article: with any likely tokenizer, `tiny` finds its 24 among them
SHORT_OF_EACH = 6


def articles(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and paragraphs of every article; a title line is short and has no full stop."""
    title = ""
    paragraphs: list[str] = []
    for line in filter(None, text.splitlines()):
        if len(line) < 60 and not line.endswith("."):
            if paragraphs:
                yield title, paragraphs
            title, paragraphs = line, []
        else:
            paragraphs.append(line)
    yield title, paragraphs


def conversations(name: str, texts: Iterable[str], size: Size) -> Iterator[dict[str, Any]]:
    """Conversations over one article, until its paragraphs or sentences are used up."""
    left, number = iter(texts), 0
    while True:
        pasted: list[str] = []
        for text in left:
            pasted.append(text)
            if sum(map(len, pasted)) >= size.first[number % len(size.first)]:
                break
        parts = [size.between.join(pasted), *(part for part, _ in zip(left, range(TURNS - 1), strict=False))]
        if len(parts) < TURNS or not pasted:
            return
        messages = []
        for turn, part in enumerate(parts):
            messages.append({"from": "human", "value": f"{ASK[turn]}\n\n{part}"})
            messages.append({"from": "gpt", "value": said(part, size.replies[(number + turn) % len(size.replies)])})
        yield {"id": f"{name}-{number:02d}", "conversations": messages}
        number += 1


def said(text: str, length: int) -> str:
    """First sentences of a text, at least one, up to about ``length`` characters."""
    sentences = _SENTENCES.split(text)
    reply = sentences[0]
    for sentence in sentences[1:]:
        if len(reply) + len(sentence) > length:
            break
        reply += " " + sentence
    return reply


def trace() -> str:
    """The file's text."""
    long, short = [], []
    for title, paragraphs in articles(TEXT.read_text(encoding="utf-8")):
        name = title.lower().replace(" ", "-")
        sentences = (sentence for paragraph in paragraphs for sentence in _SENTENCES.split(paragraph))
        long += conversations(name, paragraphs, LONG)
        short += islice(conversations(f"{name}-short", sentences, SHORT), SHORT_OF_EACH)
    for some in (long, short):
        # articles take turns, as conversations of different people do
        some.sort(key=lambda one: one["id"].rpartition("-")[2])
    return json.dumps(long + short, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TRACE.write_text(trace(), encoding="utf-8")
    print(f"wrote {TRACE}")
