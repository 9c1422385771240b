"""Forms of the answers about what is cached, for the API's description, as `answers` has the others."""

from __future__ import annotations

from typing import Literal

from holdover.server.answers import Answer, Status


class Entry(Answer):
    """A checkpoint in memory."""

    object: Literal["cache.entry"]
    id: str
    tenant: str
    depth: int
    parent: str | None
    bytes: int
    tier: str
    lineage: str
    age_s: float
    hits: int
    pinned: bool
    spilled: bool


class Entries(Answer):
    """A page of them; ``next`` is where the next one begins."""

    object: Literal["list"]
    data: list[Entry]
    total: int
    next: str | None


class Flushed(Answer):
    """Checkpoints that were dropped."""

    object: Literal["cache.flush"]
    checkpoints: int


class PinAnswer(Answer):
    """A pinned prefix."""

    object: Literal["cache.pin"]
    id: str
    depth: int


class PinList(Answer):
    """All of them."""

    object: Literal["list"]
    data: list[PinAnswer]


class Unpinned(Answer):
    """A pin that is gone."""

    object: Literal["cache.pin"]
    id: str
    deleted: Literal[True]


class UnpinnedAll(Answer):
    """Pins that are gone."""

    object: Literal["cache.pins"]
    deleted: int


class Pool(Answer):
    """One of the pools."""

    name: str
    free: int
    cached: int
    locked: int
    total: int
    bytes: int


class Recent(Answer):
    """A request that ended by itself."""

    prompt_tokens: int
    state_depth: int
    kv_depth: int
    reason: str
    tokens: int
    finish_reason: str
    first_token_ms: float | None


class ServerStatus(Answer):
    """What the server's page shows."""

    object: Literal["status"]
    model: str
    status: Status
    running: int
    waiting: int
    pools: list[Pool]
    entries: list[Entry]
    total: int
    recent: list[Recent]


class ChunkAnswer(Answer):
    """A chunk that is kept."""

    object: Literal["chunk"]
    id: str
    tenant: str
    tokens: int
    bytes: int
    tier: str
    age_s: float
    hits: int
    extras: list[str]
    in_use: bool


class Chunks(Answer):
    """A page of them; ``next`` is where the next one begins."""

    object: Literal["list"]
    data: list[ChunkAnswer]
    total: int
    next: str | None


class Document(Answer):
    """The chunks of a document; ``built`` of them were not there."""

    object: Literal["list"]
    data: list[ChunkAnswer]
    built: int


class Removed(Answer):
    """A chunk that is gone."""

    object: Literal["chunk"]
    id: str
    deleted: Literal[True]


class VerifiedPart(Answer):
    """A part of a chunk, and how far it is from what it should be."""

    name: str
    error: float | None
    tolerance: float
    same: bool


class Verification(Answer):
    """Whether a chunk is what its tokens give."""

    object: Literal["chunk.verification"]
    id: str
    same: bool
    parts: list[VerifiedPart]
