"""The prefill of one chunk alone, some tokens at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from holdover.chunks import ChunkEntry, ChunkOptions, ChunkStore, Extras, LayerTaps
from holdover.engine.runner import Runner
from holdover.engine.step import Span
from holdover.store import LeaseState, SlotLease


class ChunkPrefill:
    """Owns a build and a live slot until it is finished or cancelled. Used by the engine thread only.

    Args:
        runner: the model on its pools.
        store: where the chunk goes.
        namespace: model and tenant that the tokens belong to.
        tokens: the chunk.

    Raises:
        CapacityError: there is no room for it, or no slot; nothing is owned.
        OwnershipError: it is there already.
    """

    def __init__(self, runner: Runner, store: ChunkStore, namespace: bytes, tokens: Sequence[int]) -> None:
        self._runner, self._store = runner, store
        self._taps = InputTaps(store.options)
        self._done = 0
        self._lease: SlotLease | None = None
        self._build = store.begin(namespace, tokens)
        try:
            self._lease = store.tiers.acquire(LeaseState.LIVE)
            store.tiers.native.pool.reset(self._lease.slot, self._build.namespace)
        except BaseException:
            self.cancel()
            raise

    @torch.inference_mode()
    def advance(self, most: int) -> ChunkEntry | None:
        """Run up to ``most`` further tokens; the entry with the last of them. If it raises, nothing is owned."""
        assert self._lease is not None
        build, start = self._build, self._done
        stop = min(len(build.tokens), start + most)
        try:
            span = Span(self._lease.slot, build.tokens[start:stop], start, build.rows[:stop])
            self._runner.run([span], tap=self._taps if self._taps.are_wanted else None)
            self._done = stop
            if stop < len(build.tokens):
                return None
            layout = self._store.tiers.native.pool.layout
            return self._store.finish(build, self._lease, Extras.of(layout, self._store.options, self._taps.by_layer()))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Give everything back."""
        self._store.abandon(self._build)
        if self._lease is not None:
            self._lease.release()


class InputTaps:
    """Collects what recurrent layers are given, piece by piece: what extras are made of.

    Args:
        options: which extras; what none of them needs is passed over.
    """

    def __init__(self, options: ChunkOptions) -> None:
        self.are_wanted = options.transitions or options.bodies or options.inputs
        self._reads_recurrence = options.transitions or options.bodies
        self._timed: defaultdict[int, defaultdict[str, list[torch.Tensor]]] = defaultdict(lambda: defaultdict(list))
        self._fixed: defaultdict[int, dict[str, torch.Tensor]] = defaultdict(dict)

    def __call__(self, layer: int, name: str, x: torch.Tensor) -> None:
        """See `Tap`."""
        kind, _, of = name.partition(" ")
        if kind == "fixed":
            self._fixed[layer][of] = x
        elif kind == "conv" or (kind == "input" and self._reads_recurrence):
            self._timed[layer][of].append(x[0].clone())

    def by_layer(self) -> dict[int, LayerTaps]:
        """All pieces together, by the layer's index."""
        taps = {}
        for layer, pieces in self._timed.items():
            timed = {name: torch.cat(tensors) for name, tensors in pieces.items()}
            # the convolution's input is the one without a name
            taps[layer] = LayerTaps(timed.pop(""), {**timed, **self._fixed[layer]})
        return taps
