"""From recorded conversations to a frozen trace: which are taken, and how long they may be (DASC App. C.3).

Conversations are taken in the source's order, the first ones that qualify; nothing is drawn, and nothing is put
together from several. What qualifies depends on the model's tokenizer and template: a trace belongs to a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from holdover.errors import ConfigError, RequestError
from holdover.evaluation.traces.exchanges import ChatTokenizer, exchange_of, spoken
from holdover.evaluation.traces.reader import Conversation, Turn
from holdover.evaluation.traces.trace import Dialogue, Trace, TurnRequest, hash_of

# fewer characters than this a token do not occur on average in the longest prompt that is looked at
_CHARACTERS = 16


@dataclass(frozen=True)
class Preset:
    """The scale of a trace.

    Attributes:
        name: what it is called.
        conversations: how many are taken.
        turns: exchanges of each; what follows them is left out.
        shortest: fewest tokens of a first prompt.
        longest: most tokens of a first prompt.
        context: most tokens of a prompt with its reply.
        reply: tokens that a reply is clipped to.
    """

    name: str
    conversations: int
    turns: int
    shortest: int
    longest: int
    context: int
    reply: int

    def scaled(self, divisor: int, name: str, conversations: int) -> Preset:
        """The same with all lengths divided."""
        lengths = ("shortest", "longest", "context", "reply")
        return replace(
            self, name=name, conversations=conversations, **{x: getattr(self, x) // divisor for x in lengths}
        )


PAPER = Preset("paper", conversations=256, turns=4, shortest=1024, longest=8192, context=16384, reply=1024)
PRESETS = {preset.name: preset for preset in (PAPER, PAPER.scaled(4, "small", 24), PAPER.scaled(16, "tiny", 24))}


@dataclass
class Tally:
    """Why conversations were passed over.

    Attributes:
        read: conversations looked at.
        shape: those that are not enough exchanges of one question and one answer each.
        length: those whose first prompt is too short or too long, or that outgrow the context.
        refused: those that the chat template refuses.
    """

    read: int = 0
    shape: int = 0
    length: int = 0
    refused: int = 0


def build_trace(
    conversations: Iterable[Conversation],
    preset: Preset,
    tokenizer: ChatTokenizer,
    end_tokens: Collection[int],
    *,
    model: str,
    source: str,
    seeds: tuple[int, ...],
    tally: Tally | None = None,
) -> Trace:
    """Take the first conversations that fit a preset.

    Args:
        conversations: recorded ones.
        preset: the scale.
        tokenizer: the model's.
        end_tokens: tokens that end a reply.
        model: its name.
        source: name of the recording.
        seeds: of a benchmark's runs.
        tally: is told why others were passed over.

    Raises:
        ConfigError: none fits.
    """
    tally = tally or Tally()
    dialogues: list[Dialogue] = []
    names: set[str] = set()
    for conversation in conversations:
        tally.read += 1
        dialogue = _dialogue(conversation, preset, tokenizer, end_tokens, tally)
        # published recordings hold some twice
        if dialogue is None or dialogue.id in names:
            continue
        names.add(dialogue.id)
        dialogues.append(dialogue)
        if len(dialogues) == preset.conversations:
            break
    if not dialogues:
        raise ConfigError(
            f"none of {tally.read} conversations in {source} fits the preset {preset.name}: {tally.shape} have fewer "
            f"than {preset.turns} exchanges, {tally.length} are too short or too long, {tally.refused} are refused by "
            "the chat template"
        )
    return Trace(model, preset.name, source, preset.context, seeds, tuple(dialogues))


def _dialogue(
    conversation: Conversation, preset: Preset, tokenizer: ChatTokenizer, end_tokens: Collection[int], tally: Tally
) -> Dialogue | None:
    system, pairs = _pairs(conversation.turns)
    if len(pairs) < preset.turns:
        tally.shape += 1
        return None
    opening = (system or "") + pairs[0][0]
    # one look before a long text is tokenised
    if not preset.shortest // _CHARACTERS <= len(opening) <= preset.longest * _CHARACTERS:
        tally.length += 1
        return None
    try:
        turns = _turns(system, pairs[: preset.turns], preset, tokenizer, end_tokens)
    except RequestError:
        tally.refused += 1
        return None
    if turns is None:
        tally.length += 1
        return None
    return Dialogue(conversation.id, system, turns)


def _turns(
    system: str | None,
    pairs: list[tuple[str, str]],
    preset: Preset,
    tokenizer: ChatTokenizer,
    end_tokens: Collection[int],
) -> tuple[TurnRequest, ...] | None:
    """Requests of a conversation; None if one of its lengths does not fit."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    turns: list[TurnRequest] = []
    for question, answer in pairs:
        messages.append({"role": "user", "content": question})
        if not turns and not preset.shortest <= len(tokenizer.render(messages)) <= preset.longest:
            return None
        reply = _clipped(answer, preset.reply, tokenizer)
        exchange = exchange_of(messages, reply, tokenizer, end_tokens)
        count = min(len(spoken(exchange.reply, end_tokens)), preset.reply)
        if not count or len(exchange.prompt) + count > preset.context:
            return None
        turns.append(TurnRequest(question, reply, count, len(exchange.prompt), hash_of(exchange.prompt)))
        messages.append({"role": "assistant", "content": reply})
    return tuple(turns)


def _clipped(text: str, most: int, tokenizer: ChatTokenizer) -> str:
    tokens = tokenizer.encode(text)
    # cut within a character, its first bytes decode to replacements
    return text if len(tokens) <= most else tokenizer.decode(tokens[:most]).rstrip("\ufffd")


def _pairs(turns: tuple[Turn, ...]) -> tuple[str | None, list[tuple[str, str]]]:
    """A system message in front, and the questions with their answers as long as they alternate."""
    system = turns[0].text if turns[0].role == "system" else None
    rest = turns[1:] if system is not None else turns
    pairs = []
    for question, answer in zip(rest[::2], rest[1::2], strict=False):
        if (question.role, answer.role) != ("user", "assistant"):
            break
        pairs.append((question.text, answer.text))
    return system, pairs
