"""``holdover serve``: the OpenAI-compatible server."""

from __future__ import annotations

import gc
import signal
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from holdover.cli import composing, loading, settings
from holdover.cli.errors import Debug
from holdover.cli.summary import summary
from holdover.errors import ConfigError
from holdover.weights.bundled import DEFAULT_MODEL

if TYPE_CHECKING:
    from holdover.engine.engine import Engine
    from holdover.server.options import ServerOptions
    from holdover.server.tracing import Tracing

# as `holdover.server` has them, whose import takes FastAPI's time
LogFormat = Literal["text", "json"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]
# seconds for answers to leave once nothing is computed any more
_LAST_BYTES = 5
_BACKLOG = 2048


def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(envvar="HOLDOVER_MODEL", help="Name of a bundled model, directory of a model, or hub id.")
    ] = DEFAULT_MODEL,
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
    chunk_size: loading.ChunkSize = None,
    decode: loading.Decode = "auto",
    merge_interval: loading.MergeInterval = None,
    speculate: loading.Speculate = "off",
    draft_tokens: loading.DraftTokens = 3,
    cuda_graphs: loading.CudaGraphs = True,
    plan: loading.Plan = None,
    refresh: loading.Refresh = None,
    element: loading.ElementOption = None,
    native_slots: loading.NativeSlots = None,
    packed_slots: loading.PackedSlots = None,
    dense_spill: loading.DenseSpill = True,
    watermark: loading.Watermark = 1,
    eviction: loading.Evict = "cost",
    max_losses: loading.MaxLosses = None,
    shadow_check: loading.ShadowCheck = 0.0,
    host_budget: loading.HostBudget = None,
    spill_dir: loading.SpillDir = None,
    spill_budget: loading.SpillBudget = "20GiB",
    spill_lag: loading.SpillLag = 1,
    chunks: composing.Mode = "on",
    chunk_selector: composing.Selector = "epic",
    chunk_initialiser: composing.Initialiser = "last",
    chunk_ratio: composing.Ratio = 0.2,
    chunk_window: composing.ConvWindow = "stream",
    chunk_tokens: composing.Tokens = 512,
    chunk_rows: composing.Rows = None,
    chunk_extras: composing.Extras = None,
    chunk_extra_bytes: composing.ExtraBytes = "1GiB",
    placement: loading.Placement = "off",
    threads: loading.Threads = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients must send; may be repeated. HOLDOVER_API_KEY hides it from other users."),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of further keys, one a line.")] = None,
    guard_metrics: Annotated[
        bool, typer.Option("--guard-metrics", help="Ask for a key at /metrics too; /health never needs one.")
    ] = False,
    max_body: Annotated[str, typer.Option(help="Largest body of a request.")] = "4MiB",
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait beside those that run; others are told to come back.")
    ] = 512,
    max_per_key: Annotated[
        int | None, typer.Option(min=1, help="Requests that one key may have under way; any number if unset.")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that requests may take to end after Ctrl-C or SIGTERM.")
    ] = 20,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send traces by OpenTelemetry; OTEL_* variables say where to and how.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = "warning",
    log_format: Annotated[LogFormat, typer.Option(help="Lines of text, or JSON objects.")] = "text",
    config: settings.ConfigFile = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting with where it came from, and leave.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP, with OpenAI's API, until Ctrl-C or SIGTERM.

    Every flag can also be set as HOLDOVER_ and its name in capitals, or in a file that --config names.
    """
    effective = settings.effective(context)
    if print_config:
        typer.echo("\n".join(one.line() for one in effective))
        return
    from holdover.server.logs import configure

    configure(log_level, log_format)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    load = partial(
        loading.load_engine,
        model,
        dtype=dtype,
        device=device,
        state_budget=state_budget,
        kv_budget=kv_budget,
        max_context=max_context,
        max_running=max_running,
        chunk_size=chunk_size,
        threads=threads,
        placement=placement,
        caching=loading.Caching(
            plan=plan,
            refresh=refresh,
            element=element,
            native_slots=native_slots,
            packed_slots=packed_slots,
            dense_spill=dense_spill,
            watermark=watermark,
            eviction=eviction,
            max_losses=max_losses,
            shadow_share=shadow_check,
            host_budget=host_budget,
            spill_dir=spill_dir,
            spill_budget=spill_budget,
            spill_lag=spill_lag,
        ),
        decoding=loading.Decoding(
            decode=decode,
            merge_interval=merge_interval,
            speculate=speculate,
            draft_tokens=draft_tokens,
            cuda_graphs=cuda_graphs,
        ),
        composing=composing.Composing(
            mode=chunks,
            selector=chunk_selector,
            initialiser=chunk_initialiser,
            ratio=chunk_ratio,
            window=chunk_window,
            tokens=chunk_tokens,
            rows=chunk_rows,
            extras=tuple(chunk_extras or ()),
            extra_bytes=chunk_extra_bytes,
        ),
    )
    console = Console(highlight=False)
    with loading.join(device) as ranks, ExitStack() as opened:
        if ranks is not None and not ranks.leads:
            loading.follow(partial(load, ranks=ranks))
            return
        # before the model: loading takes minutes, and a port in use is known at once
        listener = opened.enter_context(listen(host, port))
        options = _options(
            [*(api_key or ()), *_keys_of(api_key_file)], guard_metrics, max_body, max_waiting, max_per_key
        )
        tracing = _tracing() if otel else None
        with loading.progress(console, f"loading {model}"):
            engine = load(ranks=ranks)
        if engine.core.runner.decoder is not None:
            with loading.progress(console, "preparing decode"):
                engine.warm_up()
        for warning in (*engine.planned.warnings, *engine.gated.warnings):
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)
        name = served_name or _name_of(model)
        lines = [*_chosen(effective), *summary(engine, name, listener, needs_key=bool(options.keys))]
        # what is loaded stays: a full collection would look through all of it in the middle of somebody's answer
        gc.collect()
        gc.freeze()
        try:
            # it says "ready", so it comes with the first moment at which the server answers
            _run(engine, name, listener, options, grace=grace, ready="\n".join(lines), tracing=tracing)
        finally:
            # what is still frozen when Python ends is taken for leaked by the libraries that look
            gc.unfreeze()


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("serve", context_settings={"auto_envvar_prefix": settings.PREFIX})(serve)


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


def _options(
    keys: list[str], guard_metrics: bool, max_body: str, max_waiting: int, max_per_key: int | None
) -> ServerOptions:
    from holdover.engine.memory import parse_bytes
    from holdover.server.auth import Keys
    from holdover.server.options import ServerOptions

    return ServerOptions(Keys(keys), guard_metrics, max_waiting, max_per_key, parse_bytes(max_body))


def _tracing() -> Tracing:
    try:
        from holdover.server.tracing import Tracing
    except ImportError as error:
        raise ConfigError(f'--otel needs OpenTelemetry ({error}): pip install "holdover[otel]"') from None
    return Tracing.from_environment()


def _keys_of(path: Path | None) -> list[str]:
    from holdover.server.auth import read_keys

    return [] if path is None else read_keys(path)


def _chosen(effective: list[settings.Setting]) -> list[str]:
    """What is set otherwise than by default."""
    lines = [one.line().lstrip("# ") for one in effective if one.source != "default"]
    return [f"setting    {line}" for line in lines]


def _run(
    engine: Engine,
    name: str,
    listener: socket.socket,
    options: ServerOptions,
    *,
    grace: float,
    ready: str,
    tracing: Tracing | None,
) -> None:
    import uvicorn

    from holdover.engine.async_engine import AsyncEngine
    from holdover.server.app import create_app, gate_of
    from holdover.server.process import DrainingServer

    served = AsyncEngine(engine)
    gate = gate_of(served, options)
    app = create_app(served, model_name=name, options=options, gate=gate, tracing=tracing)
    # one log for all: uvicorn's own form, and its line for each request, would stand beside ours
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=_LAST_BYTES, server_header=False
    )
    server = DrainingServer(config, gate=gate, close=served.close, grace=grace, on_ready=lambda: typer.echo(ready))
    # uvicorn takes the signals over until it has shut down: by then there is nothing to leave
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    server.run(sockets=[listener])


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def _ignore(_: int, __: FrameType | None) -> None:
    pass
