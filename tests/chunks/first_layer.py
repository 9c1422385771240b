"""A model of one recurrent layer that reads token ids: what the first layer of a stack is.

Its inputs depend on the token alone, so chunks prefilled apart differ from one long run by their conv windows only.
Heads remember from 1 to 100,000 tokens. Runs on a slot pool with the ops that serve; the reference is float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdover.arch.layout import AttentionLayer, Family, KVLayout, RecurrentLayer, StateLayout
from holdover.chunks import ChunkEntry, ChunkOptions, ChunkStore, Extras, LayerTaps
from holdover.codec import Codec
from holdover.ops.conv import naive as conv_naive
from holdover.ops.conv import torch as conv
from holdover.state import SlotPool
from holdover.store import KVPool, LeaseState, PackedPool, SlotAllocator, StateTiers
from tests.ops.families import Case

WIDTH, VOCABULARY = 4, 97
NAMESPACE = b"model"
EVERYTHING = ChunkOptions(transitions=True, bodies=True, inputs=True)
KV = KVLayout((AttentionLayer(1, "heads", 1, 2, 2, 1),), "float32")


class FirstLayer:
    """The layer, a store of chunks over its pools, and slots to work in."""

    def __init__(self, case: Case, options: ChunkOptions = EVERYTHING, *, packed: Codec | None = None) -> None:
        self.case, self.family = case, family_of(case)
        keys, values = case.key_heads * case.d_k, case.heads * case.d_v
        self.widths = [values, keys, keys] if self.family == "mamba2" else [keys, keys, values]
        channels = sum(self.widths)
        self.spec = RecurrentLayer(
            0, self.family, case.heads, case.key_heads, case.d_k, case.d_v, "head", channels, WIDTH
        )
        self.layout = StateLayout((self.spec,), conv_dtype="float32")
        g = torch.Generator().manual_seed(5)
        self.weight = torch.randn(channels, WIDTH, generator=g) * 0.5
        self.table = torch.randn(VOCABULARY, channels, generator=g)
        self.arguments = case.arguments(1, VOCABULARY)
        self.pool = SlotPool(self.layout, 12)
        records = None
        if packed is not None:
            records = SlotAllocator(PackedPool(packed, 12), "compressed", poison=True)
        self.tiers = StateTiers(SlotAllocator(self.pool, poison=True), records)
        self.kv = KVPool(KV, 2000, poison=True)
        self.store = ChunkStore(self.tiers, self.kv, options, max_rows=2000, max_extra_bytes=1 << 30)
        self.slot, self.scratch, self.other = (self.tiers.acquire(LeaseState.LIVE).slot for _ in range(3))

    def run(self, slot: int, tokens: Sequence[int]) -> LayerTaps:
        """Advance a slot by tokens; what the layer was given."""
        if not tokens:
            return LayerTaps(self.table[:0], self.inputs(self.table[:0], tokens))
        ids, index = torch.tensor(list(tokens)), torch.tensor([slot])
        chains = self.pool.begin([slot])
        mixed = conv.sequence(self.pool.conv(0), index, self.table[ids][None], self.weight, None, "silu")[0]
        inputs = self.inputs(mixed, tokens)
        batched = [x if i in self.case.constant else x[None] for i, x in enumerate(inputs.values())]
        self.case.ops.sequence(self.pool.temporal(0), index, *batched)
        self.pool.commit([slot], chains, [tokens], {0})
        return LayerTaps(self.table[ids], inputs)

    def fresh(self, slot: int, namespace: bytes = NAMESPACE) -> int:
        self.pool.reset(slot, namespace)
        return slot

    def chunk(self, tokens: Sequence[int]) -> ChunkEntry:
        """The entry of a chunk, built if it is not there."""
        if (found := self.store.find(NAMESPACE, tokens)) is not None:
            return found
        build = self.store.begin(NAMESPACE, tokens)
        lease = self.tiers.acquire(LeaseState.LIVE)
        taps = self.run(self.fresh(lease.slot, build.namespace), tokens)
        entry = self.store.finish(build, lease, Extras.of(self.layout, self.store.options, {0: taps}))
        self.tiers.maintain()
        self.tiers.finish()
        return entry

    def reference(self, *chunks: Sequence[int]) -> Tensor:
        """True state after all tokens, the conv window restarting at each of ``chunks``; float64 ``[H, d_k, d_v]``."""
        state = torch.zeros(1, *self.pool.temporal(0).shape[1:], dtype=torch.float64)
        for tokens in chunks:
            history = torch.zeros(1, WIDTH - 1, len(self.weight), dtype=torch.float64)
            x = self.table.double()[torch.tensor(list(tokens))][None]
            mixed, _ = conv_naive.convolution(history, x, self.weight.double(), None, "silu")
            inputs = self.inputs(mixed[0], tokens)
            batched = [v if i in self.case.constant else v[None] for i, v in enumerate(inputs.values())]
            state = self.case.naive.recurrence(state, *(v.double() for v in batched))[1]
        return state[0]

    def inputs(self, mixed: Tensor, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Arguments of the recurrence in its own order, ``[n, ...]``; what the convolution gave stands in its place."""
        case, ids = self.case, torch.tensor(list(tokens), dtype=torch.int64)
        at = [x if i in case.constant else x[0, ids] for i, x in enumerate(self.arguments)]
        first, second, third = mixed.split(self.widths, dim=-1)
        if self.family == "mamba2":
            _, dt, a, _, _, d = at
            b, c = (x.unflatten(-1, (case.key_heads, case.d_k)) for x in (second, third))
            return {"x": first.unflatten(-1, (case.heads, case.d_v)), "dt": dt, "a": a, "b": b, "c": c, "d": d}
        q, k = (x.unflatten(-1, (case.key_heads, case.d_k)) for x in (first, second))
        return {"q": q, "k": k, "v": third.unflatten(-1, (case.heads, case.d_v)), "log_decay": at[3], "beta": at[4]}


def family_of(case: Case) -> Family:
    return case.name.partition("-")[0]  # type: ignore[return-value]


def tokens_of(length: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())
