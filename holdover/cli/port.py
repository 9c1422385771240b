"""An engine behind a port of this process: for measurements, or to look at its cache while it is served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from holdover.cli.serve import listen
from holdover.errors import ConfigError, HoldoverError

if TYPE_CHECKING:
    from holdover.engine.async_engine import AsyncEngine
    from holdover.engine.engine import Engine

# seconds between looks at a server that starts
_POLL = 0.01


def check_server() -> None:
    """Say now if there is no server or no client of one.

    Raises:
        ConfigError: their packages are missing.
    """
    try:
        import aiohttp  # noqa: F401
        import uvicorn  # noqa: F401

        import holdover.server.app  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'what a server costs is measured with one ({error}): pip install "holdover[server,bench]"'
        ) from None


@contextmanager
def behind_port(engine: Engine, model: str, port: int = 0) -> Iterator[tuple[AsyncEngine, str]]:
    """Serve ``engine`` as `holdover serve` does until the block ends, which closes it; yields it and its address.

    Raises:
        ConfigError: the port cannot be had.
        HoldoverError: the server did not start.
    """
    import uvicorn

    from holdover.engine.async_engine import AsyncEngine
    from holdover.server.app import create_app

    with listen("127.0.0.1", port) as listener, closing(AsyncEngine(engine)) as shared:
        app = create_app(shared, model_name=model)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise HoldoverError("the server ended before it had started")
                thread.join(_POLL)
            yield shared, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
