"""Decode on static buffers: one CUDA graph per size and kind of batch serves slots in any phase."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch

from holdover.engine.decode.decoder import Decoded, DecodeStats
from holdover.engine.decode.seating import NO_SEAT, Seating
from holdover.engine.host import Host
from holdover.engine.step import Advance, Seats, Span, Step
from holdover.state import SINK, SlotPool
from holdover.store import KVPool
from holdover.store.kv_pool import SINK_ROW

logger = logging.getLogger(__name__)

# fields of a batch's buffer before its tokens and their rows: slots, seats, lengths
_FIELDS = 3


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    decoded: Decoded


class GraphDecoder:
    """Pads a batch to the next size and replays that size's graph, which it captures at first use.

    Args:
        host: the model.
        slots: its recurrent state, with logs.
        kv: its attention rows.
        max_batch: most sequences of a forward.
        max_tokens: tokens of each where drafts are verified; otherwise every forward has one.
        max_context: most tokens of a sequence.
        dense_below: batches of fewer sequences run the dense recurrence.
        use_graphs: False to launch every kernel anew.
    """

    def __init__(
        self,
        host: Host,
        slots: SlotPool,
        kv: KVPool,
        *,
        max_batch: int,
        max_tokens: int,
        max_context: int,
        dense_below: int,
        use_graphs: bool = True,
    ) -> None:
        assert slots.deferred is not None
        self.stats = DecodeStats()
        self.sizes = batch_sizes(max_batch)
        self._host, self._slots, self._kv, self._log = host, slots, kv, slots.deferred
        self._dense_below = dense_below
        self._use_graphs = use_graphs
        self._max_tokens = max_tokens
        self._graphs: dict[tuple[int, int, Advance], _Graph] = {}
        self._logits: torch.Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle() if use_graphs else None
        self._seating = Seating(max_batch, max_context, host.device)
        shape = (_FIELDS + 2 * max_tokens, max_batch)
        self._staging = torch.zeros(shape, dtype=torch.int64, pin_memory=host.device.type == "cuda")
        self._inputs = torch.zeros(shape, dtype=torch.int64, device=host.device)

    @staticmethod
    def bytes_for(max_batch: int, max_tokens: int, max_context: int) -> int:
        """Exact bytes on the device of the rows' table and of the batch's buffer."""
        return Seating.bytes_for(max_batch, max_context) + 8 * (_FIELDS + 2 * max_tokens) * max_batch

    @property
    def nbytes(self) -> int:
        """Bytes on the device of the rows' table and of the batch's buffer."""
        return sum(x.numel() * x.element_size() for x in (self._seating.table, self._inputs))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every kernel and capture the graphs of every size now, not when they are first needed."""
        for tokens in sorted({1, self._max_tokens}):
            # the largest first: graphs share memory, and the others fit into what it took
            for size in reversed(self.sizes):
                for advance in self._kinds(size, tokens):
                    self._stage([], tokens, size)
                    if self._graph(size, tokens, advance) is None:
                        return

    def run(self, spans: Sequence[Span], advance: Advance) -> Decoded:
        """Run every span's tokens; see `Decoder.run`."""
        batch, tokens = len(spans), len(spans[0].tokens)
        size = self.sizes[bisect_left(self.sizes, batch)]
        slots = [span.slot for span in spans]
        if advance is Advance.DEFER:
            advance = self._advance(slots, size)
        self._stage(spans, tokens, size)
        self.stats.count(advance, self._log, slots, tokens)
        found = self._graph(size, tokens, advance)
        # before the launch: whatever interrupts it, the slots are torn, and clearing them clears the cursor too
        if advance is not Advance.DENSE:
            self._log.advanced(slots, drafts=advance.drafts(tokens), dense=advance is Advance.DRAIN)
        if found is not None:
            found.graph.replay()
            self.stats.replays += 1
            decoded = found.decoded
        else:
            decoded = self._forward(size, tokens, advance)
        hidden = decoded.hidden[:batch] if decoded.hidden is not None else None
        return decoded._replace(logits=decoded.logits[:batch], hidden=hidden)

    def _kinds(self, size: int, tokens: int) -> list[Advance]:
        """How a batch of ``size`` may be advanced."""
        if tokens > 1:
            return [Advance.DRAFT]
        if self._log.capacity == 0:
            return [Advance.DENSE]
        return [Advance.DENSE, Advance.DRAIN] if size < self._dense_below else [Advance.DEFER]

    def _advance(self, slots: Sequence[int], size: int) -> Advance:
        """How to run one token of each slot, in a batch of ``size``."""
        kinds = self._kinds(size, 1)
        # logs that still hold something end their cycle before their slots go on without one
        has_log = len(kinds) > 1 and any(self._log.length(slot) for slot in slots)
        return kinds[1] if has_log else kinds[0]

    def _stage(self, spans: Sequence[Span], tokens: int, size: int) -> None:
        """Fill the batch's buffer; what is beyond the spans is padding."""
        fields = self._staging[:, :size]
        fields[0], fields[1], fields[2], fields[_FIELDS:] = SINK, NO_SEAT, 0, SINK_ROW
        if spans:
            places = zip(spans, self._seating.seat(spans), strict=True)
            filled = [[s.slot, seat, s.start + tokens, *s.tokens, *s.own_rows()] for s, seat in places]
            fields[: _FIELDS + 2 * tokens, : len(spans)] = torch.tensor(filled).mT
        # waits for the copy, so that the buffer may be filled again
        self._inputs[:, :size].copy_(fields)

    def _graph(self, size: int, tokens: int, advance: Advance) -> _Graph | None:
        """The graph for such a batch; None where graphs are off, or the model cannot be captured."""
        key = (size, tokens, advance)
        if not self._use_graphs or key in self._graphs:
            return self._graphs.get(key)
        staged, stream = self._inputs.clone(), torch.cuda.current_stream(self._host.device)
        try:
            self._graphs[key] = self._capture(size, tokens, advance)
            self.stats.captures += 1
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # a capture that fails does not leave its stream
            torch.cuda.set_stream(stream)
            logger.warning("decode runs without CUDA graphs: the model cannot be captured (%s)", error)
            self._use_graphs = False
        self._inputs.copy_(staged)
        return self._graphs.get(key)

    def _capture(self, size: int, tokens: int, advance: Advance) -> _Graph:
        # padding only: nothing of any slot moves while kernels are compiled and tried
        self._inputs.zero_()
        stream = torch.cuda.Stream(self._host.device)
        stream.wait_stream(torch.cuda.current_stream(self._host.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._forward(size, tokens, advance)
        torch.cuda.current_stream(self._host.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            decoded = self._forward(size, tokens, advance)
        return _Graph(graph, decoded)

    def _forward(self, size: int, tokens: int, advance: Advance) -> Decoded:
        """The forward of what is in the buffer; launches only, no word from the device."""
        slots, seats, lengths = (x[:size] for x in self._inputs[:_FIELDS])
        ids, rows = (x[:, :size].mT.contiguous() for x in self._inputs[_FIELDS:].split(tokens)[:2])
        order = torch.arange(tokens, device=self._host.device)
        positions = (lengths[:, None] - tokens + order).clamp_min(0)
        self._seating.table.index_put_((seats[:, None].expand_as(positions), positions), rows.to(torch.int32))
        step = Step(
            slot_pool=self._slots,
            kv_pool=self._kv,
            slots=slots,
            rows=Seats(self._seating.table, seats, lengths.to(torch.int32)),
            new_rows=rows.flatten(),
            advance=advance,
        )
        logits = self._share(self._host.forward(ids, positions, step, tokens))
        if advance is not Advance.DENSE:
            drafts, is_drain = advance.drafts(tokens), advance is Advance.DRAIN
            self._log.recurrence.advance(self._log.cursor, slots, self._log.capacity, drafts=drafts, dense=is_drain)
        return Decoded(logits, step.convolved & step.advanced, step.appended, step.hidden)

    def _share(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits [B, T, vocabulary]`` in fp32, where those of every graph lie: each graph's own would add up."""
        batch, tokens, width = logits.shape
        if self._logits is None:
            # in the first forward of all, which is not captured
            self._logits = torch.empty(self.sizes[-1] * self._max_tokens, width, device=logits.device)
        shared = self._logits[: batch * tokens].view(batch, tokens, width)
        shared.copy_(logits)
        return shared


def batch_sizes(most: int) -> list[int]:
    """Sizes that batches are padded to: the powers of two up to 8, then steps of an eighth to a half, and ``most``.

    Padding costs no state traffic, only its share of the dense layers.
    """
    sizes, step = [1, 2, 4], 4
    while sizes[-1] < most:
        sizes.append(sizes[-1] + step)
        # four to eight sizes an octave: padding stays under a fifth from 16 on
        if sizes[-1] >= 8 * step:
            step *= 2
    return [size for size in sizes if size < most] + [most]
