"""What the connector's two halves, which may live in two processes, tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from holdover.errors import IntegrityError
from holdover.state import Lineage
from holdover.store.spill import EntryName


@dataclass(frozen=True)
class Blocks:
    """Where one prefix lies in vLLM's pool.

    Attributes:
        state: block of the recurrent state at its end, by KV cache group.
        rows: blocks of the attention rows above the entry that it continues, in token order, by KV cache group.
    """

    state: dict[int, int]
    rows: dict[int, list[int]]


@dataclass(frozen=True)
class Save:
    """Keep the state that this step leaves at a block boundary.

    Attributes:
        name: where the entry will stand.
        lineage: how state and rows came to be.
        blocks: where they are when the step is done.
    """

    name: EntryName
    lineage: Lineage
    blocks: Blocks


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


@dataclass
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What the worker did since its last report.

    Attributes:
        settled: entries that are written, refused or failed by now.
        arrived: entries that host memory has now and had not before.
        left: entries that host memory has no more.
        unusable: entries that could not be loaded.
    """

    settled: list[EntryName] = field(default_factory=list)
    arrived: list[EntryName] = field(default_factory=list)
    left: list[EntryName] = field(default_factory=list)
    unusable: list[EntryName] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join the reports of several workers, of which there is one."""
        raise IntegrityError("two workers reported, and shards of a state are not supported")

    def __bool__(self) -> bool:
        return bool(self.settled or self.arrived or self.left or self.unusable)
