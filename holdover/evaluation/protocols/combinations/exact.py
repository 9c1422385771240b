"""What a conversation is compared with: one exact run through all of it, without a cache, a log or drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holdover.engine.host import Host
from holdover.evaluation.protocols.combinations.conversation import Conversation, Turn
from holdover.evaluation.retention.session import Session


@dataclass(frozen=True)
class Exact:
    """One turn of the exact run.

    Attributes:
        prompt: every token before the reply.
        reply: the reply.
        logits: before each of its tokens, fp32 ``[reply, vocabulary]`` on the CPU.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    logits: torch.Tensor


def run(host: Host, conversation: Conversation) -> list[Exact]:
    """Every turn of a conversation. Its logits are kept: turns times reply times vocabulary."""
    session = Session(host, len(conversation))
    pending: tuple[int, ...] = ()
    found = []
    for turn in conversation.turns:
        ahead = (*pending, *turn.said)
        # the last token is run with the reply, whose first token follows it
        session.read(ahead[:-1])
        prompt = (*session.tokens, ahead[-1])
        reply, logits = _score(session, ahead[-1], turn) if turn.reply else _greedy(session, ahead[-1], turn.length)
        found.append(Exact(prompt, reply, logits.cpu()))
        pending = reply[-1:]
    return found


def _score(session: Session, last: int, turn: Turn) -> tuple[tuple[int, ...], torch.Tensor]:
    return turn.reply, session.score([last, *turn.reply[:-1]])


def _greedy(session: Session, last: int, length: int) -> tuple[tuple[int, ...], torch.Tensor]:
    reply, logits = [last], []
    for _ in range(length):
        logits.append(session.score(reply[-1:]))
        reply.append(int(logits[-1].argmax()))
    return tuple(reply[1:]), torch.cat(logits)
