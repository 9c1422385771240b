"""Training forwards over Transformers' parameters, one architecture a file, each with its rule naive and chunked."""

from __future__ import annotations

from training.forwards import gdn, kda, mamba2
from training.forwards.common import Batch, Forward

FORWARDS: dict[str, type[Forward]] = {
    "gdn": gdn.GDNForward,
    "kda": kda.KDAForward,
    "mamba2": mamba2.Mamba2Forward,
}
RULES = {
    "gdn": (gdn.naive_rule, gdn.chunked_rule),
    "kda": (kda.naive_rule, kda.chunked_rule),
    "mamba2": (mamba2.naive_rule, mamba2.chunked_rule),
}

__all__ = ["FORWARDS", "RULES", "Batch", "Forward"]
