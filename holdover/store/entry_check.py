"""Whether the parts of an entry agree with one another."""

from __future__ import annotations

import torch

from holdover.errors import SpillError
from holdover.store.spill import Entry


def refuse_contradiction(entry: Entry) -> None:
    """Verify that name, header and rows speak of the same tokens, and that both tensors are bytes in host memory.

    Raises:
        SpillError: they do not; the message says which.
    """
    name, header = entry.name, entry.header
    if (header.depth, header.key) != (name.depth, name.key):
        raise SpillError(f"an entry of depth {name.depth} carries another state's header, of depth {header.depth}")
    if not 0 <= name.parent_depth < name.depth:
        raise SpillError(f"an entry of depth {name.depth} cannot continue one of depth {name.parent_depth}")
    if entry.kv.shape[0] != name.depth - name.parent_depth:
        raise SpillError(f"an entry of tokens {name.parent_depth} to {name.depth - 1} carries {entry.kv.shape[0]} rows")
    for tensor in (entry.state, entry.kv):
        if tensor.dtype != torch.uint8 or tensor.device.type != "cpu":
            raise SpillError(f"an entry is uint8 on the CPU, not {tensor.dtype} on {tensor.device}")
