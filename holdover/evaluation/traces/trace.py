"""A frozen trace: the requests of a serving benchmark, so that every arm is asked for the same work.

One JSON object a line: first what the trace is, then one conversation a line, in the order in which they start. The
history of a turn holds the replies that the model under test gave, so a later prompt is fixed up to those; what stands
in the file for it, with the recorded replies, is what the simulator replays.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdover.errors import HoldoverError

FORMAT = "holdover-trace-1"


@dataclass(frozen=True)
class TurnRequest:
    """One request.

    Attributes:
        text: the user's message.
        reply: the recorded reply, clipped.
        max_tokens: tokens to generate: as many as that reply has.
        prompt_tokens: tokens of the prompt over the recorded history.
        prompt_hash: `hash_of` those.
    """

    text: str
    reply: str
    max_tokens: int
    prompt_tokens: int
    prompt_hash: str


@dataclass(frozen=True)
class Dialogue:
    """One conversation.

    Attributes:
        id: its id in the source.
        system: the system message in front, or None.
        turns: its requests, in order.
    """

    id: str
    system: str | None
    turns: tuple[TurnRequest, ...]

    def opening(self) -> list[dict[str, str]]:
        """Messages in front of the first turn."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@dataclass(frozen=True)
class Trace:
    """A whole trace.

    Attributes:
        model: whose tokenizer and template counted the tokens.
        preset: the scale that it was built to.
        source: name of the file that the conversations are from.
        context: most tokens of a prompt with its reply.
        seeds: of the runs that a benchmark makes.
        dialogues: conversations, in the order in which they start.
    """

    model: str
    preset: str
    source: str
    context: int
    seeds: tuple[int, ...]
    dialogues: tuple[Dialogue, ...]

    @property
    def num_requests(self) -> int:
        """Requests of one run."""
        return sum(len(dialogue.turns) for dialogue in self.dialogues)

    @property
    def digest(self) -> str:
        """Hex digest of everything that is asked for; two runs with the same digest did the same work."""
        lines = [json.dumps(asdict(dialogue), sort_keys=True) for dialogue in self.dialogues]
        return hashlib.sha256("\n".join([*lines, *map(str, self.seeds)]).encode()).hexdigest()[:16]


def hash_of(tokens: Sequence[int]) -> str:
    """Hex digest of token ids."""
    return hashlib.sha256(array("q", tokens).tobytes()).hexdigest()[:16]


def sampling_seed(run: int, dialogue: str, turn: int) -> int:
    """Seed that a request is sampled with in one run, the same in every arm; 31 bits."""
    return int.from_bytes(hashlib.sha256(f"{run} {dialogue} {turn}".encode()).digest()[:4], "big") >> 1


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file."""
    head = {
        "format": FORMAT,
        "model": trace.model,
        "preset": trace.preset,
        "source": trace.source,
        "context": trace.context,
        "seeds": trace.seeds,
        "requests": trace.num_requests,
        "digest": trace.digest,
    }
    lines = [head, *map(asdict, trace.dialogues)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def read_trace(path: Path) -> Trace:
    """Read a trace, whole or not at all: half of one would be other work.

    Raises:
        HoldoverError: it cannot be read, is no trace, or was changed or cut; the message names the line.
    """
    try:
        # texts may hold other characters that end a line
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HoldoverError(f"trace {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    head = _object(path, 1, lines[0])
    if head.get("format") != FORMAT:
        raise HoldoverError(f"{path} is no frozen trace: make one from recorded conversations with holdover trace")
    try:
        dialogues = tuple(_dialogue(path, number, line) for number, line in enumerate(lines[1:], 2))
        seeds = tuple(int(seed) for seed in head["seeds"])
        trace = Trace(head["model"], head["preset"], head["source"], int(head["context"]), seeds, dialogues)
        wanted = (head["requests"], head["digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise HoldoverError(f"trace {path}, line 1: {error!r} is missing or of the wrong kind") from None
    if (found := (trace.num_requests, trace.digest)) != wanted:
        raise HoldoverError(
            f"trace {path} was cut or changed: it has {found[0]} requests with digest {found[1]}, and its first line "
            f"says {wanted[0]} with {wanted[1]}"
        )
    return trace


def _dialogue(path: Path, number: int, line: str) -> Dialogue:
    found = _object(path, number, line)
    try:
        return Dialogue(found["id"], found["system"], tuple(TurnRequest(**turn) for turn in found["turns"]))
    except (KeyError, TypeError) as error:
        raise HoldoverError(f"trace {path}, line {number} is no conversation: {error}") from None


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise HoldoverError(f"trace {path}, line {number} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HoldoverError(f"trace {path}, line {number} is no JSON object")
    return found
