"""Drafts by the model's own head for multi-token prediction.

The head's keys and values are one more layer of the KV pool: rows, prefix cache and spill carry them like any other.
The row of a position is written once the token after it is known, and the last row of a shared prefix was written for
the token that followed it then; where another follows, drafts are a little worse and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from holdover.engine.host import DraftHead
from holdover.engine.sequence import Sequence
from holdover.engine.speculation.speculator import Proposer
from holdover.engine.step import Step
from holdover.state import SlotPool
from holdover.store import KVPool


class _Ahead(NamedTuple):
    """What the head made of a sequence's newest tokens.

    Attributes:
        draft: the first draft, a scalar on the device.
        hidden: the head's own hidden state ``[hidden]``, from which the next drafts come.
    """

    draft: torch.Tensor
    hidden: torch.Tensor


class HeadDrafts(Proposer):
    """Runs the head behind every forward of the model, and ahead of it for drafts.

    Args:
        head: the model's head.
        slots: the model's recurrent state, which the head does not use.
        kv: its attention rows, the head's layer among them.
    """

    def __init__(self, head: DraftHead, slots: SlotPool, kv: KVPool) -> None:
        self._head, self._slots, self._kv = head, slots, kv
        self._ahead: WeakKeyDictionary[Sequence, _Ahead] = WeakKeyDictionary()

    @torch.inference_mode()
    def observe(self, sequences: Tokens[Sequence], counts: Tokens[int], hidden: torch.Tensor) -> None:
        """Run the head over the tokens that a forward kept; see `Proposer.observe`."""
        length = max(counts)
        starts = [s.computed - count for s, count in zip(sequences, counts, strict=True)]
        following = [_following(s, start, length) for s, start in zip(sequences, starts, strict=True)]
        # a sequence that kept fewer tokens gets rows of rejected ones too: they are written again before they are read
        out = self._run(sequences, starts, torch.tensor(following, device=hidden.device), hidden[:, :length])
        if sequences[0].remaining > 1:
            return
        last = torch.tensor([count - 1 for count in counts], device=hidden.device)
        states = out[torch.arange(len(sequences), device=hidden.device), last]  # [B, hidden]
        drafts = self._choose(states)
        for sequence, draft, state in zip(sequences, drafts, states, strict=True):
            self._ahead[sequence] = _Ahead(draft, state)

    @torch.inference_mode()
    def propose(self, sequences: Tokens[Sequence], most: int) -> list[list[int]]:
        """``most`` tokens for each sequence whose last tokens the head has seen."""
        ready = [sequence for sequence in sequences if sequence in self._ahead]
        if not ready:
            return [[] for _ in sequences]
        ahead = [self._ahead[sequence] for sequence in ready]
        token = torch.stack([found.draft for found in ahead])  # [B]
        hidden = torch.stack([found.hidden for found in ahead])  # [B, hidden]
        drafts = [token]
        for step in range(most - 1):
            starts = [sequence.computed + step for sequence in ready]
            hidden = self._run(ready, starts, token.unsqueeze(1), hidden.unsqueeze(1)).squeeze(1)
            token = self._choose(hidden)
            drafts.append(token)
        chosen = dict(zip(ready, torch.stack(drafts, dim=1).tolist(), strict=True))
        return [chosen.get(sequence, []) for sequence in sequences]

    def _choose(self, hidden: torch.Tensor) -> torch.Tensor:
        # also of logits that are not numbers this is a token
        return self._head.logits(hidden).argmax(-1)

    def _run(
        self, sequences: Tokens[Sequence], starts: Tokens[int], tokens: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Run the head at positions from ``starts`` on: on their ``hidden``, and the ``tokens`` after them."""
        device, length = hidden.device, tokens.shape[1]
        rows = [s.place.rows[: start + length].to(device) for s, start in zip(sequences, starts, strict=True)]
        step = Step(
            slot_pool=self._slots,
            kv_pool=self._kv,
            slots=torch.empty(0, dtype=torch.int64, device=device),
            rows=rows,
            new_rows=torch.cat([r[-length:] for r in rows]),
        )
        first = torch.tensor(starts, device=device).unsqueeze(1)
        return self._head.forward(tokens, hidden, first + torch.arange(length, device=device), step)


def _following(sequence: Sequence, start: int, length: int) -> list[int]:
    """The token after each of ``length`` positions; any where it is not known."""
    known = sequence.tokens[start + 1 : start + 1 + length]
    return known + [sequence.tokens[-1]] * (length - len(known))
