"""A batch of sequences on pools of their own, which all run in one way: dense, from a log, or as a prefill."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.engine.decode import DecodeStats, EagerDecoder
from holdover.engine.decode.plan import plan_decode
from holdover.engine.host import Host
from holdover.engine.runner import Runner
from holdover.engine.step import Span
from holdover.evaluation.protocols.deferred.arms import Arm
from holdover.state import SlotPool
from holdover.store import KVPool

# most tokens of one forward of a prompt
_CHUNK = 1024


class Lane:
    """Sequences in slots 1 to ``batch``, which start over with every `read`.

    Args:
        host: the model.
        arm: how tokens are run; None for dense decode as the engine does it.
        batch: most sequences.
        longest: most tokens of one.
    """

    def __init__(self, host: Host, arm: Arm | None, batch: int, longest: int) -> None:
        layout, self._in_one = host.layout, arm is not None and arm.merge_interval is None
        if arm is None:
            interval, entries = plan_decode(layout.state, host.device, "dense").merge_interval, None
        else:
            interval, entries = arm.merge_interval, None if self._in_one else arm.entries
        self._slots = SlotPool(layout.state, batch, host.device, merge_interval=interval, entries=entries)
        kv = KVPool(layout.kv, batch * longest, host.device)
        decoder = None if interval is None else EagerDecoder(host, self._slots, kv)
        self.stats = DecodeStats() if decoder is None else decoder.stats
        self._runner = Runner(host, self._slots, kv, decoder)
        self._rows = [kv.allocate(longest) for _ in range(batch)]
        self._done: list[int] = []

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state with its log."""
        return self._slots.nbytes // (self._slots.num_slots + 1)

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        """Start over with one sequence for each prompt, all but its last token run."""
        self._done = [0] * len(prompts)
        for i, prompt in enumerate(prompts):
            self._slots.reset(1 + i, b"deferred")
            for start in range(0, len(prompt) - 1, _CHUNK):
                self._run([i], [prompt[start : min(start + _CHUNK, len(prompt) - 1)]])

    def follow(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Run equally many next tokens of every sequence; logits after each, fp32 ``[B, T, vocabulary]``."""
        every = range(len(tokens))
        if self._in_one:
            return self._run(every, tokens)
        # a decoder's logits are good until its next forward
        return torch.cat([self._run(every, [[one] for one in row]).clone() for row in zip(*tokens, strict=True)], dim=1)

    def choose(self, tokens: Sequence[int], count: int) -> tuple[list[list[int]], torch.Tensor]:
        """Decode greedily: ``count`` tokens of every sequence, ``tokens`` and then the most probable ones.

        Returns:
            What was run, and the logits after each, fp32 ``[B, count, vocabulary]``.
        """
        run, logits = [], []
        for _ in range(count):
            run.append(list(tokens))
            logits.append(self.follow([[token] for token in tokens]))
            tokens = logits[-1][:, -1].argmax(-1).tolist()
        return [list(sequence) for sequence in zip(*run, strict=True)], torch.cat(logits, dim=1)

    def states(self) -> list[list[torch.Tensor]]:
        """Temporal state of every layer, of every sequence; their logs are folded."""
        slots = [1 + i for i in range(len(self._done))]
        self._slots.settle(slots)
        return [[self._slots.temporal(layer.index)[slot] for layer in self._slots.layout.layers] for slot in slots]

    def _run(self, which: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        spans = []
        for i, own in zip(which, tokens, strict=True):
            start = self._done[i]
            self._done[i] += len(own)
            spans.append(Span(1 + i, own, start, self._rows[i][: self._done[i]]))
        logits = self._runner.run(spans, logits=None if self._in_one else 1).logits
        assert logits is not None
        return logits
