"""What a server says of itself when it is ready."""

from __future__ import annotations

import json
import shlex
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdover.engine.engine import Engine

_ANY = ("0.0.0.0", "::", "")


def summary(engine: Engine, name: str, listener: socket.socket, *, needs_key: bool) -> list[str]:
    """Lines that say what is served and where; the last one is a request to try.

    Args:
        engine: the engine.
        name: the name that clients ask for.
        listener: the socket that it answers on.
        needs_key: whether requests need an API key.
    """
    layout, cache = engine.loaded.host.layout, engine.core.cache
    slots, rows = cache.tiers.native.pool, cache.kv
    return [
        f"model      {name} ({layout.architecture}, {layout.state.conv_dtype}, {engine.loaded.host.device})",
        f"context    {engine.prepare.max_context:,} tokens",
        f"state      {slots.num_slots:,} slots, {_mib(slots.nbytes)}",
        *_ranks(engine),
        *_compression(engine),
        f"decode     {_decode(engine)}",
        f"KV         {rows.num_rows:,} rows, {_mib(rows.nbytes)}",
        f"chunks     {engine.gated.note}",
        *_shelves(engine),
        f"ready at   {_url(listener)}",
        "try        " + _curl(engine, name, listener, needs_key=needs_key),
    ]


def _ranks(engine: Engine) -> list[str]:
    shard = engine.loaded.shard
    return [] if shard is None else [f"ranks      {shard.ranks.size}, each with its part of the state; {shard.note}"]


def _decode(engine: Engine) -> str:
    core = engine.core
    log, speculator = core.cache.tiers.native.pool.deferred, core.speculator
    how = (
        "dense" if log is None or not log.capacity else f"deferred, a state is written every {log.capacity + 1} tokens"
    )
    return how if speculator is None else f"{how}; {engine.options.speculate} drafts {speculator.tokens} tokens"


def _compression(engine: Engine) -> list[str]:
    from holdover.engine.planning import gate_of

    lines, options, packed = [], engine.options, engine.core.cache.tiers.packed
    if packed is not None:
        pool = packed.pool
        saved = engine.loaded.host.layout.state.checkpoint_bytes / pool.codec.nbytes
        lines.append(
            f"compressed {pool.num_slots:,} slots, {_mib(pool.nbytes)}: {pool.codec.name}, {saved:.2f}x smaller than "
            f"dense, refresh {options.refresh}"
        )
    lines.append(f"plan       {engine.planned.note}")
    if (gate := gate_of(options)) is not None:
        text, is_within = gate
        lines.append(f"quality    {text}" if is_within else f"warning    {text}")
    return lines


def _shelves(engine: Engine) -> list[str]:
    options, lines = engine.options, []
    if options.host_budget is not None:
        lines.append(f"host       {_mib(options.host_budget)} of memory for checkpoints that leave the slots")
    if options.spill_dir is not None:
        lines.append(f"disk       {options.spill_dir}, up to {_mib(options.spill_budget)}")
    return lines


def _curl(engine: Engine, name: str, listener: socket.socket, *, needs_key: bool) -> str:
    body: dict[str, object] = {"model": name, "max_tokens": 32}
    path = "completions"
    if engine.loaded.tokenizer.has_chat_template:
        path = "chat/completions"
        body["messages"] = [{"role": "user", "content": "Hello"}]
    else:
        body["prompt"] = "Hello"
    words = ["curl", f"{_url(listener)}/v1/{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    # the shell puts the key in, which is printed nowhere
    return shlex.join(words) + (' -H "Authorization: Bearer $HOLDOVER_API_KEY"' if needs_key else "")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in _ANY:
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
