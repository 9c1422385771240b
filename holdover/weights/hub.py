"""The Hugging Face hub, through its own client: endpoint, token, cache and offline mode are the client's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from holdover.errors import WeightsError
from holdover.weights.files import CONFIG_NAME, ModelFiles
from holdover.weights.http import quiet_hub
from holdover.weights.remote import open_url

Result = TypeVar("Result")


def download(function: str, model: str, **arguments: Any) -> str:
    """Call a download function of the client. Raises WeightsError, whatever goes wrong."""
    return _call(model, (function,), lambda call: str(call(repo_id=model, **arguments)))


def is_offline() -> bool:
    """Whether the client was told to do without the network."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    return bool(constants.HF_HUB_OFFLINE)


def open_hub(model: str) -> ModelFiles:
    """The files of hub id ``model`` at the commit that is newest now, to be read by ranges; nothing is stored.

    Raises:
        ConfigError: ``config.json`` is not a JSON object.
        WeightsError: there is no such model, access is refused, or it has no safetensors weights.
    """
    parts = ("utils", "constants", "hf_hub_url", "get_hf_file_metadata")
    base, revision, headers = _call(model, parts, partial(_locate, model))
    return open_url(base, headers=headers, revision=revision)


def _locate(model: str, utils: Any, constants: Any, url: Any, metadata: Any) -> tuple[str, str, dict[str, str]]:
    """Address of the model's directory, its commit, and the headers that carry the token."""
    utils.validate_repo_id(model)
    newest = metadata(url(model, CONFIG_NAME))
    # fixed from here on: files of two commits must not meet. mirrors may not say which it is
    revision = newest.commit_hash or constants.DEFAULT_REVISION
    base = url(model, CONFIG_NAME, revision=revision).removesuffix(f"/{CONFIG_NAME}")
    return base, revision, utils.build_hf_headers(library_name="holdover")


def _part(client: ModuleType, name: str) -> Any:
    """A function of the client, or one of its modules, which are attributes only once something imported them."""
    return getattr(client, name) if hasattr(client, name) else import_module(f"{client.__name__}.{name}")


def _call(model: str, parts: tuple[str, ...], action: Callable[..., Result]) -> Result:
    """Call ``action`` with parts of the client; every way it can fail becomes one message. Raises WeightsError."""
    try:
        # a local model must not need the hub's client, nor wait for its import
        import huggingface_hub

        # imported on access, which also sets its logger's level
        found = [_part(huggingface_hub, part) for part in parts]
    except ImportError:
        raise WeightsError(
            f"no directory {model!r} exists, and it cannot be taken from the hub: huggingface_hub is not installed"
        ) from None
    try:
        with quiet_hub():
            return action(*found)
    except Exception as error:  # the client lets errors of its transport through, too many to name
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WeightsError(
            f"no directory {model!r} exists, and the hub could not give it either ({reason[:300]})"
        ) from error
