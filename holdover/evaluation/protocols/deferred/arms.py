"""Ways to run the same tokens: from logs of any interval and dtype, and as a prefill, which is the yardstick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdover.arch.layout import StateLayout
from holdover.errors import ConfigError
from holdover.ops.deferred.log import LONGEST_INTERVAL, EntryDtypes
from holdover.state import SlotPool

PREFILL = "prefill"
ENGINE = "engine"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Arm:
    """One way to run the reference's tokens.

    Attributes:
        merge_interval: M of the log; None for a prefill of the same tokens.
        keys: dtype of the log's keys (``fp32``, ``bf16`` or ``fp16``); empty for a prefill.
        values: of its value-side factors; likewise.
    """

    merge_interval: int | None = None
    keys: str = ""
    values: str = ""

    @property
    def name(self) -> str:
        """The arm among others of one run."""
        return PREFILL if self.merge_interval is None else f"m{self.merge_interval}-{self.log}"

    @property
    def log(self) -> str:
        """Dtypes of keys and values, as the paper's Table 3 writes them; empty for a prefill."""
        return "" if self.merge_interval is None else f"{self.keys}/{self.values}"

    @property
    def entries(self) -> EntryDtypes:
        """Dtypes of the log's entries."""
        return EntryDtypes(_DTYPES[self.keys], _DTYPES[self.values])


def arms_of(layout: StateLayout, intervals: Sequence[int], logs: Sequence[str]) -> list[Arm]:
    """The prefill, and every interval with every kind of log.

    Args:
        layout: state of the model.
        intervals: merge intervals.
        logs: ``engine`` for what the engine keeps of this model, or dtypes of keys and values as ``bf16/fp32``.

    Raises:
        ConfigError: an interval keeps no log, or a log is no pair of dtypes.
    """
    for interval in intervals:
        if not 2 <= interval <= LONGEST_INTERVAL:
            raise ConfigError(f"a merge interval of {interval} keeps no log to compare: choose 2 to {LONGEST_INTERVAL}")
    pairs = dict.fromkeys(_pair(layout, log) for log in logs)
    return [Arm(), *(Arm(interval, *pair) for pair in pairs for interval in intervals)]


def _pair(layout: StateLayout, log: str) -> tuple[str, str]:
    if log == ENGINE:
        deferred = SlotPool(layout, 1, merge_interval=2).deferred
        assert deferred is not None
        kept = deferred.log(layout.layers[0].index)
        return _NAMES[kept.keys.dtype], _NAMES[kept.values.dtype]
    keys, _, values = log.partition("/")
    if keys not in _DTYPES or values not in _DTYPES:
        raise ConfigError(f"there is no log {log!r}: write {ENGINE}, or keys and values as bf16/fp32 or fp16/fp16")
    return keys, values
