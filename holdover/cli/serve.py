"""``holdover serve``: the OpenAI-compatible server."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from holdover.cli import loading
from holdover.cli.errors import Debug
from holdover.errors import ConfigError
from holdover.weights.bundled import DEFAULT_MODEL

if TYPE_CHECKING:
    from holdover.engine.engine import Engine

LogLevel = Literal["critical", "error", "warning", "info", "debug"]
# seconds that requests in progress may take to end after a signal
_GRACE = 5
_BACKLOG = 2048
_ANY = ("0.0.0.0", "::", "")


def serve(
    model: loading.Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8000,
    served_name: Annotated[
        str | None, typer.Option(help="Name that clients ask for; the model's own name if unset.")
    ] = None,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    state_budget: loading.StateBudget = None,
    kv_budget: loading.KVBudget = None,
    max_context: loading.MaxContext = None,
    max_running: loading.MaxRunning = 16,
    chunk_size: loading.ChunkSize = 512,
    plan: loading.Plan = None,
    refresh: loading.Refresh = None,
    element: loading.ElementOption = None,
    native_slots: loading.NativeSlots = None,
    packed_slots: loading.PackedSlots = None,
    dense_spill: loading.DenseSpill = True,
    watermark: loading.Watermark = 1,
    max_losses: loading.MaxLosses = None,
    shadow_check: loading.ShadowCheck = 0.0,
    host_budget: loading.HostBudget = None,
    spill_dir: loading.SpillDir = None,
    spill_budget: loading.SpillBudget = "20GiB",
    spill_lag: loading.SpillLag = 1,
    threads: loading.Threads = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = "warning",
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP, with OpenAI's API, until Ctrl-C or SIGTERM."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    console = Console(highlight=False)
    # before the model: loading takes minutes, and a port in use is known at once
    with listen(host, port) as listener:
        with loading.progress(console, f"loading {model}"):
            engine = loading.load_engine(
                model,
                dtype=dtype,
                device=device,
                state_budget=state_budget,
                kv_budget=kv_budget,
                max_context=max_context,
                max_running=max_running,
                chunk_size=chunk_size,
                threads=threads,
                caching=loading.Caching(
                    plan=plan,
                    refresh=refresh,
                    element=element,
                    native_slots=native_slots,
                    packed_slots=packed_slots,
                    dense_spill=dense_spill,
                    watermark=watermark,
                    max_losses=max_losses,
                    shadow_share=shadow_check,
                    host_budget=host_budget,
                    spill_dir=spill_dir,
                    spill_budget=spill_budget,
                    spill_lag=spill_lag,
                ),
            )
        for warning in engine.planned.warnings:
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)
        name = served_name or _name_of(model)
        # it says "ready", so it comes with the first moment at which the server answers
        _run(engine, name, listener, log_level, ready="\n".join(_summary(engine, name, listener)))


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("serve")(serve)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Clients that connect before the server answers wait.

    Raises:
        ConfigError: the address cannot be had; the message says which flag to change.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is no address of this machine ({error}): choose another with --host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    import errno

    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} of {host} is in use: choose another with --port")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} of {host} may not be opened by this user: choose another with --port")
    return ConfigError(f"cannot listen on {host}, port {port} ({error.strerror}): choose another with --host or --port")


def _name_of(model: str) -> str:
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def _summary(engine: Engine, name: str, listener: socket.socket) -> list[str]:
    layout, cache = engine.loaded.host.layout, engine.core.cache
    slots, rows = cache.tiers.native.pool, cache.kv
    return [
        f"model      {name} ({layout.architecture}, {layout.state.conv_dtype}, {engine.loaded.host.device})",
        f"context    {engine.prepare.max_context:,} tokens",
        f"state      {slots.num_slots:,} slots, {_mib(slots.nbytes)}",
        *_compression(engine),
        f"KV         {rows.num_rows:,} rows, {_mib(rows.nbytes)}",
        *_shelves(engine),
        f"ready at   {_url(listener)}",
        "try        " + _curl(engine, name, listener),
    ]


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


def _curl(engine: Engine, name: str, listener: socket.socket) -> str:
    body: dict[str, object] = {"model": name, "max_tokens": 32}
    path = "completions"
    if engine.loaded.tokenizer.has_chat_template:
        path = "chat/completions"
        body["messages"] = [{"role": "user", "content": "Hello"}]
    else:
        body["prompt"] = "Hello"
    words = ["curl", f"{_url(listener)}/v1/{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return shlex.join(words)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in _ANY:
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _run(engine: Engine, name: str, listener: socket.socket, log_level: str, *, ready: str) -> None:
    import uvicorn

    from holdover.engine.async_engine import AsyncEngine
    from holdover.server.app import create_app

    app = create_app(AsyncEngine(engine), model_name=name)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            typer.echo(ready)

    config = uvicorn.Config(app, log_level=log_level, timeout_graceful_shutdown=_GRACE, server_header=False)
    # uvicorn takes the signals over, and raises them again when it has shut down: by then there is nothing to leave
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    Server(config).run(sockets=[listener])


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def _ignore(_: int, __: FrameType | None) -> None:
    pass
