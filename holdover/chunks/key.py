"""Keys of chunks and of what is composed from them: chained hashes over token ids, like every other key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from holdover.arch.layout import KVLayout, StateLayout
from holdover.chunks.assembly import Repair
from holdover.chunks.extras import ChunkOptions


def chunk_namespace(namespace: bytes, state: StateLayout, kv: KVLayout, options: ChunkOptions) -> bytes:
    """Namespace of chunks: all but their tokens that decides whether an entry serves.

    It differs from the namespace of prefixes, so that no lookup of a prefix ever restores a chunk's state.

    Args:
        namespace: of the model and the tenant (see `holdover.state.key`).
        state: layout of the end state.
        kv: layout of the rows.
        options: which extras an entry has.
    """
    return _digest("chunk", namespace, state.digest, kv.digest, json.dumps(asdict(options), sort_keys=True))


def composition_salt(repair: Repair, initialiser: str, window: str) -> str:
    """Salt of all that is computed on top of a composition; 16 hex digits.

    The same chunks at the same places, repaired at the same positions, give the same state and KV: then what is cached
    under the salt is of use again. The tokens themselves are in the key of whatever carries the salt.

    Args:
        repair: what was reused and what was recomputed.
        initialiser: which state it began with, as `Initialiser` names it.
        window: which inputs the recomputed tokens' conv windows held, as the engine names it.
    """
    places = [(placed.start, placed.stop) for placed in repair.assembly.chunks]
    runs = [(run.start, run.stop) for run in repair.runs]
    return _digest("composition", json.dumps([places, runs, initialiser, window])).hex()[:16]


def composed_namespace(namespace: bytes, salt: str) -> bytes:
    """Namespace in which a composed sequence goes on as an ordinary one."""
    return _digest("composed", namespace, salt)


def _digest(*parts: str | bytes) -> bytes:
    hashed = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # lengths, so that no two lists of parts run together into the same bytes
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()
