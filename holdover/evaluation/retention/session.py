"""One sequence on pools of its own: the smallest thing that measurements of states need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.engine.host import Host
from holdover.engine.runner import Runner
from holdover.engine.step import Span, Tap
from holdover.errors import ConfigError
from holdover.state import SlotPool
from holdover.store import KVPool, SlotAllocator

# most tokens of one forward
_CHUNK = 1024


class Session:
    """A live sequence that can start over, with room for more slots and rows beside it.

    Args:
        host: the model.
        longest: most tokens of the sequence.
        spare_slots: further state slots.
        spare_rows: further KV rows.

    Attributes:
        native: the state slots; one is the sequence's.
        kv: the KV rows; ``longest`` are the sequence's.
        runner: the model on both.
        tokens: the sequence so far.

    Raises:
        ConfigError: the model's context is shorter than ``longest``.
    """

    def __init__(self, host: Host, longest: int, *, spare_slots: int = 0, spare_rows: int = 0) -> None:
        if longest > host.layout.max_context:
            raise ConfigError(f"{longest} tokens do not fit into the model's context of {host.layout.max_context}")
        self.native = SlotAllocator(SlotPool(host.layout.state, 1 + spare_slots, host.device))
        self.kv = KVPool(host.layout.kv, longest + spare_rows, host.device)
        self.runner = Runner(host, self.native.pool, self.kv)
        self.tokens: list[int] = []
        self._lease = self.native.acquire()
        self._rows = self.kv.allocate(longest)
        self.restart()

    @property
    def slot(self) -> int:
        """The sequence's state slot."""
        return self._lease.slot

    @property
    def rows(self) -> torch.Tensor:
        """KV row of every token so far, int64."""
        return self._rows[: len(self.tokens)]

    def restart(self) -> None:
        """Go back to the empty sequence."""
        self.native.pool.reset(self.slot, b"session")
        self.tokens = []

    def read(self, tokens: Sequence[int], tap: Tap | None = None) -> None:
        """Append tokens. What ``tap`` is given comes in chunks of the sequence."""
        for start in range(0, len(tokens), _CHUNK):
            self._advance(tokens[start : start + _CHUNK], 1, tap)

    def score(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append tokens; logits after each, fp32 ``[len(tokens), vocabulary]``."""
        return self._advance(tokens, None)[0]

    def _advance(self, tokens: Sequence[int], logits: int | None, tap: Tap | None = None) -> torch.Tensor:
        start = len(self.tokens)
        span = Span(self.slot, list(tokens), start, self._rows[: start + len(tokens)])
        out = self.runner.run([span], logits=logits, tap=tap).logits
        assert out is not None
        self.tokens += tokens
        return out
