"""Engines on tiny random models, and what unmodified Transformers says of the same tokens.

Pools are poisoned, and every step is followed by a check of the pools and of what each sequence owns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from holdover.arch.layout import ModelLayout
from holdover.arch.registry import layout_from_config
from holdover.engine.build import build_core
from holdover.engine.core import Limits
from holdover.engine.decode.plan import DecodeMode, plan_decode
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.engine.prepare import Preparer
from holdover.engine.request import Output, Update
from holdover.engine.sampling import SamplingDefaults, SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.prefix.policies import AnyOf, CheckpointPolicy, EndOfRequest, Wanted
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import VOCAB, build_model
from tests.engine import toy
from tests.engine.small import SMALL, build_small
from tests.helpers import assert_close

TOY = "toy"
RTOL = 1e-4
CHUNK = 16
WINDOW = 4  # conv width of every row of the table
END_AND_WANTED = AnyOf((EndOfRequest(), Wanted()))

torch.set_num_threads(1)
transformers_logging.set_verbosity_error()


class Bytes:
    """A tokenizer whose tokens are bytes: characters and stop strings may cross any number of them."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    encode_part = encode

    def decode(self, ids: Sequence[int]) -> str:
        # larger vocabularies begin anew
        return bytes(token % 256 for token in ids).decode("utf-8", "replace")


@cache
def host_of(name: str, dtype: str = "float32") -> Any:
    """The model of one row, or the toy, on Holdover's ops. It keeps no state: every engine may share it."""
    if name == TOY:
        return toy.ToyHost()
    model = _build(name).to(getattr(torch, dtype))
    return HostModel(model, layout_from_config(model.config.to_dict(), dtype=dtype))


@cache
def _unmodified(name: str):
    return _build(name)


def _build(name: str):
    return build_small(name) if name in SMALL else build_model(name)


@cache
@torch.inference_mode()
def reference(name: str, tokens: tuple[int, ...]) -> torch.Tensor:
    """Log probabilities after each of ``tokens``, uncached, ``[len(tokens), vocabulary]`` in fp32."""
    if name == TOY:
        return toy.reference(tokens)
    return _unmodified(name)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)


def prompt_of(length: int, seed: int = 0, vocab: int = VOCAB) -> tuple[int, ...]:
    """Random tokens; a longer prompt of the same seed begins with a shorter one."""
    draw = random.Random(seed)
    return tuple(draw.randrange(vocab) for _ in range(length))


def assert_greedy(name: str, output: Output, *, logprobs: bool = True) -> None:
    """Fail unless the output is the reference's greedy continuation, and the reported distributions are its own."""
    assert output.error is None, output.error
    start, count = len(output.prompt_token_ids), len(output.token_ids)
    assert count
    # causal: by induction one forward over everything decides what a forward a token would
    whole = (*output.prompt_token_ids, *output.token_ids)
    wanted = reference(name, whole)[start - 1 : start + count - 1]
    best = wanted.max(dim=-1).values
    chosen = wanted.gather(1, torch.tensor(output.token_ids).unsqueeze(1)).squeeze(1)
    # a token may differ from the best only where the two are equal to rounding
    assert (best - chosen <= RTOL * best.abs().clamp_min(1)).all(), (output.prompt_token_ids, output.token_ids)
    if logprobs:
        assert output.logprobs is not None
        assert_close("logprobs", distributions(output.logprobs), wanted, RTOL)


def distributions(reported) -> torch.Tensor:
    """Reported log probabilities of the whole vocabulary, ``[n, vocabulary]``."""
    rows = []
    for entry in reported:
        row = torch.full((len(entry.top),), float("nan"))
        for token, logprob in entry.top:
            row[token] = logprob
        assert float(row[entry.token]) == entry.logprob
        rows.append(row)
    return torch.stack(rows)


def budgets(layout: ModelLayout, slots: int, rows: int, merge_interval: int | None = None) -> dict[str, int]:
    """Budgets in bytes that give exactly these pools."""
    return {
        "state_budget": SlotPool.bytes_for(layout.state, slots, merge_interval),
        "kv_budget": KVPool.bytes_for(layout.kv, rows),
    }


def merge_interval_of(
    host: Any,
    *,
    decode: DecodeMode = "auto",
    merge_interval: int | None = None,
    speculate: str = "off",
    draft_tokens: int = 3,
    **_: Any,
) -> int | None:
    """M of the slots' logs under such options of an engine; None for slots without logs."""
    drafts = 0 if speculate == "off" else draft_tokens
    return plan_decode(
        host.layout.state, host.device, decode, merge_interval=merge_interval, drafts=drafts
    ).merge_interval


class Bench:
    """An engine core on a tiny model, and the tokenizer and checks around it.

    Args:
        name: row of the architecture table, or the toy.
        slots: state slots.
        rows: KV rows.
        max_running: sequences together; may be more than there are slots.
        chunk: tokens of a prefill forward.
        idle_chunk: the same while no other request is there; None for as many.
        policy: when to take checkpoints.
        dtype: what the model runs in.
        end_tokens: tokens that end a text.
        host: a host of that row to run instead of the shared one; None for the shared one.
        options: further options of the engine.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 12,
        rows: int = 600,
        max_running: int = 16,
        chunk: int = CHUNK,
        idle_chunk: int | None = None,
        policy: CheckpointPolicy = END_AND_WANTED,
        dtype: str = "float32",
        end_tokens: Iterable[int] = (),
        host: Any = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.host = host or host_of(name, dtype)
        sizes = budgets(self.host.layout, slots, rows, merge_interval_of(self.host, **options))
        fixed = {"chunk_size": chunk, "policy": policy, "poison": True, "dtype": dtype}
        self.core, max_context = build_core(self.host, EngineOptions(**{**sizes, **fixed, **options}), identity=name)
        self.core.limits = Limits(max_running, chunk, idle_chunk or chunk)
        self.prepare = Preparer(
            Bytes(),
            digest=f"{name}:{dtype}",
            defaults=SamplingDefaults(),
            end_tokens=frozenset(end_tokens),
            max_context=max_context,
            vocab_size=self.host.layout.vocab_size,
        )
        self.outputs: dict[str, Output] = {}
        self.updates: dict[str, list[Update]] = {}
        self.steps = 0

    @property
    def cache(self):
        return self.core.cache

    def add(self, prompt: str | Sequence[int], tokens: int = 6, *, request: dict | None = None, **params) -> str:
        """Queue a request that reports whole distributions; returns its id."""
        params = {"max_tokens": tokens, "logprobs": VOCAB, **params}
        sequence = self.prepare.sequence(prompt, SamplingParams(**params), **(request or {}))
        self.core.add(sequence)
        return sequence.request.id

    def step(self) -> None:
        """One step, and every check."""
        self.steps += 1
        for update in self.core.step():
            self.take(update)
        self.check()

    def take(self, update: Update | None) -> None:
        assert update is not None
        assert update.request_id not in self.outputs, "an update after the last one"
        self.updates.setdefault(update.request_id, []).append(update)
        if update.output is not None:
            self.outputs[update.request_id] = update.output

    def abort(self, request_id: str) -> None:
        self.take(self.core.abort(request_id))
        self.check()

    def check(self) -> None:
        self.core.check_integrity()
        for sequence in self.running():
            assert self.cache.tiers.native.pool.depth(sequence.place.lease.slot) == sequence.computed
            assert len(sequence.place.rows) >= sequence.computed >= sequence.place.hold.depth
            assert sequence.remaining >= 1, "a running sequence with nothing to run is never served again"
        if (log := self.cache.tiers.native.pool.deferred) is not None:
            assert torch.stack(log.cursor, dim=1).tolist() == [list(pair) for pair in log._mirror]

    def running(self) -> list[EngineSequence]:
        return list(self.core._running)

    def run(self, limit: int = 2000) -> dict[str, Output]:
        """Steps until nothing is left; more than ``limit`` of them is a livelock."""
        while self.core.has_work:
            assert self.steps < limit, f"no end after {limit} steps"
            self.step()
        return self.outputs

    def serve(self, prompt: str | Sequence[int], tokens: int = 6, *, request: dict | None = None, **params) -> Output:
        """Run one request alone."""
        request_id = self.add(prompt, tokens, request=request, **params)
        return self.run(self.steps + 2000)[request_id]

    def assert_all_greedy(self) -> None:
        for output in self.outputs.values():
            assert_greedy(self.name, output)

    def assert_empty(self) -> None:
        """Fail unless, with no request left, a flush gives everything back."""
        assert not self.core.has_work
        self.check()
        self.cache.flush()
        self.check()
        assert not self.cache.roots
        native, packed = self.cache.tiers.native, self.cache.tiers.packed
        # the scratch slot of a suffix refresh is the engine's for good
        assert native.num_free == native.pool.num_slots - (self.core.refresh is not None)
        assert packed is None or packed.num_free == packed.pool.num_slots
        assert self.cache.kv.num_free == self.cache.kv.num_rows


def loaded_of(name: str, *, tokenizer=None, end_tokens: Iterable[int] = ()) -> Loaded:
    """What the loader would give, without files."""
    return Loaded(
        name=name,
        host=host_of(name),
        tokenizer=tokenizer or Bytes(),
        model_digest=name,
        dtype="float32",
        defaults=SamplingDefaults(),
        end_tokens=frozenset(end_tokens),
    )


def failing(function: Callable, at: int, error: BaseException) -> Callable:
    """``function``, but its call number ``at`` (from 0) raises instead."""
    calls = 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise error
        return function(*args, **kwargs)

    return wrapped
