"""Holdover: the recurrent state of hybrid language models, managed over its whole life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdover.engine.async_engine import AsyncEngine
    from holdover.engine.engine import Engine
    from holdover.engine.sampling import SamplingParams

__all__ = ["AsyncEngine", "Engine", "SamplingParams", "__version__"]

_HOMES = {
    "AsyncEngine": "holdover.engine.async_engine",
    "Engine": "holdover.engine.engine",
    "SamplingParams": "holdover.engine.sampling",
}


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import; the command line must not wait for them to print its help
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
