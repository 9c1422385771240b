"""The synchronous Python API."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from holdover.chunks import Chunk
from holdover.engine.build import build_core
from holdover.engine.chat import render_chat
from holdover.engine.chunks.gate import ChunkMode, Gated, gate_chunks
from holdover.engine.chunks.request import Part
from holdover.engine.constraints import Guidance
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.parallel.follower import follow
from holdover.engine.parallel.load import check_alone, load_shard
from holdover.engine.parallel.options import options_over_ranks
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.planning import Planned, choose_plan, with_plan
from holdover.engine.prepare import Preparer
from holdover.engine.request import Output, Update
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.errors import ParallelError, RequestError
from holdover.retention import Element, RefreshPolicy
from holdover.retention.placement import PlacementMode
from holdover.weights.bundled import DEFAULT_MODEL

Prompt = str | Sequence[int]
_GREEDY_DEFAULTS = SamplingParams()


class Engine:
    """A model with its prefix cache, driven by the caller's thread.

    Args:
        loaded: the model.
        options: how to set the engine up.
    """

    def __init__(self, loaded: Loaded, options: EngineOptions | None = None) -> None:
        self.loaded = loaded
        self.options = options or EngineOptions()
        if loaded.shard is not None:
            self.options = options_over_ranks(self.options)
        self.planned = Planned(self.options.plan, "as the engine's options say")
        self.gated = Gated(self.options.chunks, "as the engine's options say")
        self.core, max_context = build_core(loaded.host, self.options, loaded.digest, loaded.shard)
        self.prepare = Preparer(
            loaded.tokenizer,
            digest=loaded.digest,
            defaults=loaded.defaults,
            end_tokens=loaded.end_tokens,
            max_context=max_context,
            vocab_size=loaded.host.layout.vocab_size,
            constrainer=Guidance(
                loaded.tokenizer, vocab_size=loaded.host.layout.vocab_size, end_tokens=loaded.end_tokens
            ),
            chunk_tokens=self.options.chunks.tokens,
            chunks_refused="a model on several ranks keeps no chunks" if loaded.shard is not None else "",
        )
        self.ranks = loaded.shard.ranks if loaded.shard is not None else None
        # updates that a step made for a request other than the one that stepped
        self._inboxes: dict[str, deque[Update]] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        plan: str | Path | None = None,
        element: Element | None = None,
        refresh: RefreshPolicy | None = None,
        compose: ChunkMode = "on",
        ranks: Ranks | None = None,
        placement: PlacementMode = "off",
        **options: Any,
    ) -> Engine:
        """Load a model.

        Args:
            model: a bundled model's name, a local directory or a hub id.
            plan: path of a retention plan to pack checkpoints by; ``auto`` for the gated plan of the model if it has
                one; None to keep checkpoints dense.
            element: how a packed checkpoint stores what it retains; None for how the plan's gate was measured.
            refresh: what becomes of omitted units on a hit; None likewise.
            compose: whether prompts over chunks are composed: ``on`` as ``chunks`` of the options say, ``auto`` as a
                gate says that passed on these weights (in full if there is none), or ``off``.
            ranks: the processes that run the model together (`Ranks.join`), each of which makes this call; then those
                other than rank 0 do nothing but `follow`. None for one process.
            placement: which rank computes and stores what a plan retains: ``off``, ``storage`` or ``hybrid``.
            options: further fields of `EngineOptions`.

        Raises:
            HoldoverError: the model, the plan or an option cannot be used; the message says why.
        """
        # what is wrong with an option is said before minutes of loading
        chosen = EngineOptions(**options, element=element or "full", refresh=refresh or "none")
        if ranks is not None:
            loaded, planned = load_shard(model, chosen, ranks, plan, placement)
            compose = "off"
        else:
            check_alone(placement)
            loaded = load(model, dtype=chosen.dtype, device=chosen.device, head=chosen.speculate == "mtp")
            planned = choose_plan(loaded, plan)
        gated = gate_chunks(loaded, chosen.chunks, compose)
        chosen = replace(chosen, chunks=gated.settings)
        with nullcontext() if ranks is None else ranks.or_error():
            engine = cls(loaded, with_plan(chosen, planned, element=element, refresh=refresh))
        engine.planned, engine.gated = planned, gated
        return engine

    def warm_up(self) -> None:
        """Compile and capture now what would make the first requests slow."""
        self.core.warm_up()

    @property
    def leads(self) -> bool:
        """Whether requests are made here: on rank 0, or where there are no ranks."""
        return self.ranks is None or self.ranks.leads

    def follow(self) -> None:
        """On another rank than 0, and there alone: do as rank 0 does until it closes its engine.

        Raises:
            ParallelError: rank 0 is gone, or the ranks stand at different points.
        """
        if self.ranks is None or self.ranks.leads:
            raise ParallelError("rank 0 follows nobody: make requests of it")
        follow(self.core, self.ranks)

    def close(self) -> None:
        """Finish what moves between tiers and to disk, and stop. Nothing may be called afterwards."""
        self.core.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def generate(self, prompts: str, params: SamplingParams = ..., **request: Any) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] = ..., **request: Any
    ) -> list[Output]: ...

    @overload
    def generate(
        self, *, context: Sequence[Part], query: Prompt, params: SamplingParams = ..., **request: Any
    ) -> Output: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        params: SamplingParams | Sequence[SamplingParams] = _GREEDY_DEFAULTS,
        *,
        context: Sequence[Part] | None = None,
        query: Prompt = (),
        **request: Any,
    ) -> Output | list[Output]:
        """Complete one prompt, or several together, or one that is composed of chunks.

        Args:
            prompts: a text, or a list of texts and lists of token ids.
            params: how to sample: one for all, or one for each.
            context: instead of prompts, chunks (see `add_chunk`; what is not kept is built) with texts and token ids
                around them, in order.
            query: what follows the context, at least one token.
            request: ``salt``, ``use_cache``, ``exact``, ``boundaries``, ``checkpoint_at`` of `Request`; with a context
                also ``selector``, ``initialiser``, ``ratio`` and ``window`` of `ChunkSettings`.

        Returns:
            One output for one text or context, else a list in the order of the prompts.

        Raises:
            RequestError: a request is invalid; none was started.
            HoldoverError: the engine failed on one of them.
        """
        if (prompts is None) == (context is None):
            raise RequestError("give either prompts or a context with a query", param="context")
        if context is not None:
            return self._finish([self.prepare.composed(context, query, _only(params), self.options.chunks, **request)])[
                0
            ]
        assert prompts is not None
        if isinstance(prompts, str):
            return self._run([prompts], [_only(params)], **request)[0]
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        return self._run(list(prompts), every, **request)  # type: ignore[arg-type]

    def add_chunk(self, content: Prompt, *, salt: str = "") -> Chunk:
        """Prefill a chunk alone and keep it, for contexts of `generate`; nothing is done if it is kept already.

        Args:
            content: text, which is tokenised by itself, or token ids.
            salt: tenant, as in `Request`.

        Raises:
            RequestError: the chunk is empty, or too long.
            CapacityError: there is no room for it.
        """
        chunk = self.prepare.chunk(content)
        job = self.core.chunks.builds.want(self.prepare.namespace(salt), chunk.tokens)
        while not job.is_done:
            self._step()
        if job.error is not None:
            raise job.error
        return chunk

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams = _GREEDY_DEFAULTS, **request: Any
    ) -> Output:
        """Answer a conversation of ``{"role", "content"}`` messages.

        Raises:
            RequestError: the request is invalid.
        """
        ids, boundaries = render_chat(self.loaded.tokenizer.sharing(), messages)
        return self._run([ids], [params], boundaries=boundaries, **request)[0]

    def stream(self, prompt: Prompt, params: SamplingParams = _GREEDY_DEFAULTS, **request: Any) -> Iterator[Update]:
        """Complete one prompt, yielding text as it becomes certain; the last update carries the output.

        Leaving the iteration early aborts the request.

        Raises:
            RequestError: the request is invalid.
        """
        sequence = self.prepare.sequence(prompt, params, **request)
        with self._running([sequence]) as inboxes:
            inbox, done = inboxes[sequence.request.id], False
            while not done:
                while not inbox:
                    self._step()
                update = inbox.popleft()
                done = update.output is not None
                yield update

    def _run(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], **request: Any) -> list[Output]:
        if len(prompts) != len(params):
            raise RequestError(f"{len(prompts)} prompts and {len(params)} sampling parameters", param="params")
        return self._finish([self.prepare.sequence(p, s, **request) for p, s in zip(prompts, params, strict=True)])

    def _finish(self, sequences: Sequence[EngineSequence]) -> list[Output]:
        with self._running(sequences) as inboxes:
            while not all(inbox and inbox[-1].output for inbox in inboxes.values()):
                self._step()
            outputs = [inbox[-1].output for inbox in inboxes.values()]
        for output in outputs:
            if output is not None and output.error is not None:
                raise output.error
        return [output for output in outputs if output is not None]

    @contextmanager
    def _running(self, sequences: Iterable[EngineSequence]) -> Iterator[dict[str, deque[Update]]]:
        """Add sequences; each one's updates arrive in its inbox. What has not ended at the exit is aborted."""
        inboxes: dict[str, deque[Update]] = {}
        try:
            for sequence in sequences:
                self.core.add(sequence)
                inboxes[sequence.request.id] = self._inboxes[sequence.request.id] = deque()
            yield inboxes
        finally:
            for request_id in inboxes:
                del self._inboxes[request_id]
                # a request that has ended is not there any more
                self.core.abort(request_id)
            if not self.core.has_work:
                self.core.settle()

    def _step(self) -> None:
        # several streams may be read in turn: a step made for one of them advances them all
        for update in self.core.step():
            if update.request_id in self._inboxes:
                self._inboxes[update.request_id].append(update)


def _only(params: SamplingParams | Sequence[SamplingParams]) -> SamplingParams:
    return params if isinstance(params, SamplingParams) else params[0]
