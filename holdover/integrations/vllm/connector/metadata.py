"""What the connector's two halves, which may live in two processes, tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from holdover.state import Lineage
from holdover.store.spill import EntryName


@dataclass(frozen=True)
class Blocks:
    """Where one prefix lies in vLLM's pool.

    Attributes:
        state: block of the recurrent state at its end, by KV cache group.
        rows: blocks of attention rows in token order, by KV cache group: from that of the first row that is meant to
            that of the last, which may be filled in part.
    """

    state: dict[int, int]
    rows: dict[int, list[int]]


@dataclass(frozen=True)
class Save:
    """Keep a state.

    Attributes:
        name: where the entry will stand.
        lineage: how state and rows came to be.
        blocks: where they are when the step is done.
        ended: the request whose end this is, and whose blocks vLLM holds back until they were read; else None.
    """

    name: EntryName
    lineage: Lineage
    blocks: Blocks
    ended: str | None = None


@dataclass(frozen=True)
class Load:
    """Bring an entry into blocks that were allocated for a request.

    Attributes:
        request: the request's id.
        name: the entry.
        above: tokens whose rows vLLM has already.
        blocks: where state and the rows from ``above`` on go.
    """

    request: str
    name: EntryName
    above: int
    blocks: Blocks


@dataclass
class StepPlan(KVConnectorMetadata):  # type: ignore[misc]
    """What the worker is to do in one step."""

    saves: list[Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


@dataclass(frozen=True)
class RankReport:
    """What one worker did since its last report.

    Attributes:
        settled: entries that are written, refused or failed by now.
        arrived: entries that its host memory has now and had not before.
        left: entries that its host memory has no more.
        unusable: entries that could not be loaded.
    """

    settled: list[EntryName] = field(default_factory=list)
    arrived: list[EntryName] = field(default_factory=list)
    left: list[EntryName] = field(default_factory=list)
    unusable: list[EntryName] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.settled or self.arrived or self.left or self.unusable)


@dataclass(frozen=True)
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What the workers did, by rank; a rank to which nothing happened is not there."""

    ranks: dict[int, RankReport]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReport:
        """Join the reports of several ranks on one step."""
        assert isinstance(other, StepReport)
        return StepReport(self.ranks | other.ranks)
