"""Traces of block hashes: requests of which nothing is known but their lengths and the prefixes that they share.

Operators publish such traces in place of texts; the form is that of Mooncake's (FAST'25), which other tools read and
write too. A row is a JSON object ``{"input_length", "output_length", "hash_ids", ...}``: an id for every block of the
prompt. Equal ids mean that prompts are equal up to that block's end. Rows come in the order of arrival.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from holdover.errors import HoldoverError

logger = logging.getLogger(__name__)

BLOCK = 512


@dataclass(frozen=True)
class BlockRequest:
    """One request.

    Attributes:
        prompt: tokens of its prompt.
        reply: tokens of its reply.
        blocks: id of each block of the prompt, of which the last one may be shorter.
    """

    prompt: int
    reply: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class BlockTrace:
    """Requests in the order of arrival.

    Attributes:
        block: tokens of a block.
        requests: those that were taken, at least one.
        skipped: rows that are no request, or have another number of blocks than their length makes.
        too_long: requests that were left out because they outgrow the context.
        is_truncated: whether the file ends within a row.
    """

    block: int
    requests: tuple[BlockRequest, ...]
    skipped: int
    too_long: int
    is_truncated: bool

    @property
    def digest(self) -> str:
        """Hex digest of all that is asked for; two runs with the same digest did the same work."""
        rows = [(one.prompt, one.reply, one.blocks) for one in self.requests]
        return hashlib.sha256(repr((self.block, rows)).encode()).hexdigest()[:16]


def is_block_trace(path: Path) -> bool:
    """Whether a file's first row is one of block hashes; False where it cannot be read."""
    try:
        with path.open("rb") as lines:
            row = json.loads(next(lines, b""))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "hash_ids" in row


def read_blocks(path: Path, *, context: int, block: int = BLOCK, limit: int | None = None) -> BlockTrace:
    """Read requests; nothing behind the last one that is taken is looked at.

    Args:
        path: the file.
        context: most tokens of a prompt with its reply.
        block: tokens of a block.
        limit: most requests to take; None for all.

    Raises:
        HoldoverError: the file cannot be read, or none of its rows can be taken.
    """
    taken: list[BlockRequest] = []
    skipped = too_long = misfits = 0
    is_truncated, misfit = False, ""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if len(taken) == limit:
                    break
                request = _request(line)
                if request is None:
                    # a row that was cut in two has no end of line
                    is_truncated = not line.endswith(b"\n")
                    skipped += not is_truncated
                elif len(request.blocks) != -(-request.prompt // block):
                    misfits += 1
                    misfit = misfit or f"row {number} has {len(request.blocks)} hashes for {request.prompt} tokens"
                elif request.prompt + request.reply > context:
                    too_long += 1
                else:
                    taken.append(request)
    except OSError as error:
        raise HoldoverError(f"trace {path} cannot be read: {error.strerror or error}") from None
    hint = f"{misfit}, and blocks are taken to be {block} long: say --block"
    if misfits > len(taken):
        # by chance a short prompt has as many blocks of another length
        raise HoldoverError(f"trace {path}: {misfits} rows do not have a hash a block; {hint}")
    if not taken:
        why = f"{skipped} rows are no requests, {too_long} are longer than a context of {context} tokens"
        raise HoldoverError(f"trace {path} has no request that can be taken: {why}")
    if is_truncated:
        logger.warning("trace %s is cut off within its last row", path)
    return BlockTrace(block, tuple(taken), skipped + misfits, too_long, is_truncated)


def _request(line: bytes) -> BlockRequest | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    prompt, reply, blocks = (row.get(name) for name in ("input_length", "output_length", "hash_ids"))
    # true would pass for 1
    if type(prompt) is not int or type(reply) is not int or prompt < 1 or reply < 1:
        return None
    if not isinstance(blocks, list) or any(type(one) is not int for one in blocks):
        return None
    return BlockRequest(prompt, reply, tuple(blocks))
