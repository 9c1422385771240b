"""Packing and unpacking of pools on torch's meta device, whose tensors have sizes and no memory."""

from __future__ import annotations

from torch import Tensor


class MetaForm:
    """Moves nothing: there are no bytes."""

    def pack(self, slots: Tensor, records: Tensor, targets: Tensor) -> None:
        """Nothing."""

    def unpack(self, records: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Nothing."""
