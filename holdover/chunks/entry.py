"""A chunk as it is kept: its rows, its end state and, if wanted, more."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holdover.chunks.extras import Extras
from holdover.state import KeyChain
from holdover.store import Checkpoint


@dataclass(frozen=True, eq=False, slots=True)
class ChunkEntry:
    """One chunk, prefilled alone at position 0 from the empty state. It is whole, or it does not exist.

    Attributes:
        tokens: its tokens, at least one.
        chain: running key of the tokens in the chunks' namespace; what its checkpoint is verified against.
        rows: KV row of each token, int64 ``[n]``, owned by the entry; keys are rotated to 0, 1, ...
        checkpoint: temporal and conv state after the last token: a checkpoint of the prefix that is the chunk itself.
        extras: whatever else the options ask for.
        tenant: namespace of the model and the tenant that the tokens belong to.
    """

    tokens: tuple[int, ...]
    chain: KeyChain
    rows: torch.Tensor
    checkpoint: Checkpoint
    extras: Extras
    tenant: bytes = b""

    @property
    def key(self) -> bytes:
        """Content key: of the tokens, the model, the tenant, the layouts and the options."""
        return self.chain.key()

    @property
    def pins(self) -> int:
        """Claims on it; while there are any, it stays."""
        return self.checkpoint.pins

    @property
    def extra_bytes(self) -> int:
        """Bytes of its extras."""
        return self.extras.nbytes

    def __len__(self) -> int:
        return len(self.tokens)
