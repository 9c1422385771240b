"""Write the offline trace of real text: conversations over Wikipedia articles, in ShareGPT's format.

    python benchmarks/data/make_article_trace.py

The articles are those of held_out.txt. A first message pastes some paragraphs of one and asks about them, later ones
paste a paragraph more; a reply repeats sentences of what it was asked about. Nobody said these things to each other:
the text is real, the lengths are chosen, and every paragraph is used once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRACE = HERE / "article_trace.json"
# characters of the pasted paragraphs of successive first messages; about three and a half make a token
FIRST = (1500, 2400, 4200, 1900, 3300)
TURNS = 4
# characters of successive replies
REPLIES = (160, 420, 240, 620)
ASK = (
    "Please read this. What is it about?",
    "How does this fit what came before?",
    "And this?",
    "What follows from it?",
)


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


def conversations(title: str, paragraphs: list[str]) -> Iterator[dict[str, Any]]:
    """Conversations over one article, until its paragraphs are used up."""
    left, number = iter(paragraphs), 0
    while True:
        pasted: list[str] = []
        for paragraph in left:
            pasted.append(paragraph)
            if sum(map(len, pasted)) >= FIRST[number % len(FIRST)]:
                break
        parts = ["\n\n".join(pasted), *(part for part, _ in zip(left, range(TURNS - 1), strict=False))]
        if len(parts) < TURNS or not pasted:
            return
        messages = []
        for turn, part in enumerate(parts):
            messages.append({"from": "human", "value": f"{ASK[turn]}\n\n{part}"})
            messages.append({"from": "gpt", "value": said(part, REPLIES[(number + turn) % len(REPLIES)])})
        yield {"id": f"{title.lower().replace(' ', '-')}-{number:02d}", "conversations": messages}
        number += 1


def said(text: str, length: int) -> str:
    """First sentences of a text, at least one, up to about ``length`` characters."""
    sentences = re.split(r"(?<=[.!?]) ", text)
    reply = sentences[0]
    for sentence in sentences[1:]:
        if len(reply) + len(sentence) > length:
            break
        reply += " " + sentence
    return reply


def trace() -> str:
    """The file's text."""
    text = (HERE / "held_out.txt").read_text(encoding="utf-8")
    found = [one for title, paragraphs in articles(text) for one in conversations(title, paragraphs)]
    # articles take turns, as conversations of different people do
    found.sort(key=lambda one: one["id"].rpartition("-")[2])
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TRACE.write_text(trace(), encoding="utf-8")
    print(f"wrote {TRACE}")
