"""What vLLM calls in each of its processes (entry point ``vllm.general_plugins``)."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from holdover.integrations.vllm.decode import models

CONNECTOR = "HoldoverConnector"
_MODULE = "holdover.integrations.vllm.connector.connector"


def register() -> None:
    """Make the connector known by name, and put our models, and with them their layers, in the place of vLLM's.

    The connector is built only where ``--kv-transfer-config`` names it, and a layer has a log only where
    ``--additional-config`` asks for one.
    """
    try:
        KVConnectorFactory.register_connector(CONNECTOR, _MODULE, CONNECTOR)
    except ValueError:
        # vLLM calls a plugin more than once, and refuses a second registration
        return
    models.register()
