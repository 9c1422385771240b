"""An identity of a model for retention plans, the same for local and remote files: only headers and decay are read.

Hashed, in this order: the configuration in canonical form; for each file in name order its size and its header's bytes;
the bytes of the decay tensors. Two models of one configuration and one set of shapes differ in it when their decay
differs, which is what a plan is made from. Other weights are not looked at: cache keys use `model_digest`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from holdover.weights.digest import add_part, canonical_config
from holdover.weights.files import ModelFiles
from holdover.weights.header import Header


def fingerprint(files: ModelFiles, headers: Mapping[str, Header], decay: Iterable[torch.Tensor]) -> str:
    """SHA-256, in hex.

    Args:
        files: a model's files.
        headers: the header of each, by file name.
        decay: its decay parameters as stored, in stack order.
    """
    digest = hashlib.sha256()
    add_part(digest, canonical_config(files.config))
    for file in files.weights:
        add_part(digest, str(file.size).encode())
        add_part(digest, headers[file.name].raw)
    for tensor in decay:
        add_part(digest, tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
