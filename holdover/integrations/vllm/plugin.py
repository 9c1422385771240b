"""What vLLM calls in each of its processes (entry point ``vllm.general_plugins``)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from holdover.integrations.vllm.decode import models
from holdover.integrations.vllm.release import refuse_tier_release

CONNECTOR = "HoldoverConnector"
_MODULE = "holdover.integrations.vllm.connector.connector"


def register() -> None:
    """Make the connector known by name, and put our models, and with them their layers, in the place of vLLM's.

    The connector is built only where ``--kv-transfer-config`` names it, and a layer has a log only where
    ``--additional-config`` asks for one.
    """
    try:
        KVConnectorFactory.register_connector(CONNECTOR, __name__, CONNECTOR)
    except ValueError:
        # vLLM calls a plugin more than once, and refuses a second registration
        return
    models.register()


def __getattr__(name: str) -> Any:
    """vLLM asks for the connector's class where ``--kv-transfer-config`` names it.

    Raises:
        ConfigError: the release has no place for it.
    """
    if name != CONNECTOR:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    # its modules import what older releases do not have
    refuse_tier_release()
    return getattr(import_module(_MODULE), CONNECTOR)
