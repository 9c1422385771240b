"""What is asked of the servers: a recording's conversations, or ones pasted together from Wikipedia's paragraphs.

The latter are **no people's conversations**: paragraphs of `data/held_out.txt` in drawn orders, cut to drawn numbers of
words. Lengths follow DASC's App. C.3 (first prompts of 1k to 8k tokens, four turns); replies are shorter than allowed.

Models of random weights say any tokens of their vocabulary, in any order. For these to be the same tokens again when
they come back as text, each token is a word: one of the paragraphs', or one that stands for a token of a bundled model
(`spelled`), in which a recording is then told.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.data.make_article_trace import ASK, articles
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.evaluation.traces import Conversation, Turn, build
from holdover.evaluation.traces.build import Preset, build_trace
from holdover.evaluation.traces.sources import BUNDLED, open_recordings
from holdover.evaluation.traces.trace import Trace
from holdover.weights.bundled import DEFAULT_MODEL
from holdover.weights.source import resolve

RECORDING = BUNDLED
TEXT = Path(__file__).parent / "data" / "held_out.txt"
SOURCE = "paragraphs of held_out.txt in drawn orders"
# 64 of the paper's 256 conversations; what its recordings' replies are is not printed
PASTED = Preset("pasted", conversations=64, turns=4, shortest=1024, longest=8192, context=16384, reply=1024)
# as many of a recording
RECORDED = replace(PASTED, name="recorded")
QUICK = Preset("quick", conversations=6, turns=3, shortest=256, longest=1024, context=2048, reply=24)
PRESETS = build.PRESETS | {preset.name: preset for preset in (QUICK, PASTED, RECORDED)}
SEEDS = (1, 2, 3, 4, 5)
_FIRST, _LATER, _REPLY = (1050, 7800), (20, 400), (32, 256)


def frozen(name: str, path: Path, preset: Preset, recording: Path | None, *, words_only: bool = False) -> Trace:
    """The requests of a preset for a model.

    Args:
        name: what the model is called.
        path: its directory, for its tokenizer.
        preset: their scale.
        recording: file of conversations; None for pasted ones.
        words_only: whether the model's tokens are the `words` of the recording.

    Raises:
        HoldoverError: the recording cannot be read, or has too little.
    """
    recorded = pasted(preset.conversations) if recording is None else open_recordings(recording)
    source = SOURCE if recording is None else recording.name
    told = spelled(recorded) if words_only and recording is not None else recorded
    tokenizer = Tokenizer(path)
    return build_trace(told, preset, tokenizer, tokenizer.end_tokens, model=name, source=source, seeds=SEEDS)


def words(recording: Path | None) -> list[str]:
    """What a model of random weights can say: every word of the paragraphs, or of what a recording is told in."""
    if recording is not None:
        return [_word(token) for token in range(int(resolve(DEFAULT_MODEL).config["vocab_size"]))]
    found = [" ".join(ASK), *(paragraph for _, parts in articles(TEXT.read_text("utf-8")) for paragraph in parts)]
    return list(dict.fromkeys(word for part in found for word in part.split()))


def spelled(recorded: Iterable[Conversation]) -> Iterator[Conversation]:
    """The same conversations with a word for each token that a bundled model would read."""
    tokenizer = Tokenizer(resolve(DEFAULT_MODEL).path)
    for conversation in recorded:
        turns = (replace(turn, text=" ".join(map(_word, tokenizer.encode(turn.text)))) for turn in conversation.turns)
        yield replace(conversation, turns=tuple(turns))


def _word(token: int) -> str:
    return f"t{token}"


def pasted(count: int) -> Iterator[Conversation]:
    """So many conversations, the same ones every time; each begins with another paragraph."""
    paragraphs = [part for _, parts in articles(TEXT.read_text("utf-8")) for part in parts]
    firsts = _spread(count, *_FIRST)
    for number in range(count):
        draw = random.Random(number)
        order = [paragraphs[number % len(paragraphs)], *draw.sample(paragraphs, len(paragraphs))]
        text = iter(" ".join(order * 2).split())
        turns = []
        for turn, ask in enumerate(ASK):
            length = firsts[number] if turn == 0 else _draw(draw, *_LATER)
            turns.append(Turn("user", f"{_take(text, length)} {ask}"))
            turns.append(Turn("assistant", _take(text, _draw(draw, *_REPLY))))
        yield Conversation(f"pasted-{number:03d}", tuple(turns))


def _spread(count: int, least: int, most: int) -> list[int]:
    """Lengths that are even in their logarithms, in a drawn order."""
    lengths = [round(least * (most / least) ** ((i + 0.5) / count)) for i in range(count)]
    random.Random(0).shuffle(lengths)
    return lengths


def _draw(draw: random.Random, least: int, most: int) -> int:
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


def _take(text: Iterator[str], count: int) -> str:
    return " ".join(next(text) for _ in range(count))
