"""The processes that run one model together, and how they talk: sums between devices, messages between schedulers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdover.errors import ConfigError, HoldoverError, ParallelError

# ranks compute equal amounts between two sums: one that is so late has stopped
_LATE = timedelta(minutes=10)
# who follows waits for as long as nobody asks rank 0 for anything
_IDLE = timedelta(days=365)
# bytes of the first part of a message, which most are not longer than, its length included
_FIRST = 1024
_LENGTH = 8
_REASON = 500


class RanksLostError(BaseException):
    """The ranks stand at different points. No `Exception`: it ends the engine, never one request alone."""


class Ranks:
    """This process among those of its group. All of them make the same calls in the same order, on one thread.

    Args:
        device: where what is summed is: ``cuda`` for NCCL, ``cpu`` for gloo.

    Attributes:
        rank: this process's number; rank 0 leads.
        size: number of processes, the tensor-parallel degree P.
        local: processes of the group on this machine.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.device = torch.device(device)
        # messages have a group of their own: they may be far apart, and never wait for a GPU
        self._messages: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=_IDLE)

    @classmethod
    def join(cls, device: str = "auto") -> Ranks:
        """Join the group that torchrun has started this process for.

        Args:
            device: ``auto`` for a GPU of its own if there is one, ``cpu`` or ``cuda``.

        Raises:
            ConfigError: the environment names no group, or a rank has no GPU of its own.
            ParallelError: the others cannot be reached.
        """
        if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in os.environ]:
            raise ConfigError(f"{', '.join(missing)} not set: start ranks with torchrun --nproc-per-node P -m holdover")
        local, place = int(os.environ.get("LOCAL_RANK", "0")), torch.device("cpu" if device == "cpu" else "cuda")
        if device == "auto" and not torch.cuda.is_available():
            place = torch.device("cpu")
        if place.type == "cuda":
            if local >= torch.cuda.device_count():
                raise ConfigError(f"rank {os.environ['RANK']} has no GPU: there are {torch.cuda.device_count()}")
            torch.cuda.set_device(local)
        try:
            dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_LATE)
            return cls(place.type)
        except (RuntimeError, ValueError) as error:
            raise ParallelError(f"rank {os.environ['RANK']} did not find the others: {_short(error)}") from error

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Around what all ranks do alike: where it fails here, the others cannot go on without this one.

        Raises:
            RanksLostError: it failed.
        """
        try:
            yield
        except Exception as error:
            who = f"rank {self.rank} of {self.size}"
            raise RanksLostError(f"{who} cannot go on after {what}: {_short(error)}") from error

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's ``x``, the same bits on all of them. Mutates ``x``, which is contiguous."""
        with self.together("a sum over ranks"):
            dist.all_reduce(x)
        return x

    def send(self, message: list[Any]) -> None:
        """Tell the other ranks something, as JSON; rank 0 only."""
        data = json.dumps(message).encode()
        text = len(data).to_bytes(_LENGTH, "big") + data
        with self.together("a message to the other ranks"):
            for part in filter(None, (text[:_FIRST].ljust(_FIRST), text[_FIRST:])):
                dist.broadcast(_bytes(part), 0, group=self._messages)

    def receive(self) -> list[Any]:
        """What rank 0 says next; waits for it. The other ranks only."""
        with self.together("a wait for rank 0"):
            first = self._part(_FIRST)
            end = _LENGTH + int.from_bytes(first[:_LENGTH], "big")
            text = first + self._part(end - _FIRST) if end > _FIRST else first
            message: list[Any] = json.loads(text[_LENGTH:end])
        return message

    def least(self, number: int) -> int:
        """The least of every rank's number."""
        least = torch.tensor(number)
        with self.together("a comparison of sizes"):
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self._messages)
        return int(least)

    @contextmanager
    def or_error(self) -> Iterator[None]:
        """Around what an engine does for its caller: the end of the group reaches them as an error like any other.

        Raises:
            ParallelError: the ranks are not together any more; this one has left.
        """
        try:
            yield
        except RanksLostError as error:
            self.leave()
            raise ParallelError(f"{error}; start all ranks again") from error

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Around what ranks do each for itself, without a collective in it: what fails on one then fails on all.

        Raises:
            HoldoverError: as it was raised here, or else as it was on the first rank that failed.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        with self.or_error():
            reasons = self._reasons("" if failure is None else _short(failure) or repr(failure))
        if isinstance(failure, HoldoverError):
            raise failure
        for rank, reason in enumerate(reasons):
            if reason:
                raise ParallelError(f"rank {rank} of {self.size} could not start: {reason}") from failure

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the group go: who still waits for this rank is told at once. Never fails."""
        self._messages = None
        with suppress(Exception):
            dist.destroy_process_group()

    def _reasons(self, reason: str) -> list[str]:
        mine = _bytes(reason.encode()[:_REASON].ljust(_REASON))
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with self.together("its start"):
            dist.all_gather(everyone, mine, group=self._messages)
        return [one.numpy().tobytes().decode("utf-8", "ignore").strip() for one in everyone]

    def _part(self, length: int) -> bytes:
        part = torch.empty(length, dtype=torch.uint8)
        dist.broadcast(part, 0, group=self._messages)
        return part.numpy().tobytes()


def _bytes(data: bytes) -> torch.Tensor:
    # a copy: what bytes hold cannot be written, which torch warns of
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _short(error: BaseException) -> str:
    # gloo puts its source file in front and advice behind
    text = re.sub(r"^\[\S+\.cc:\d+\] ", "", " ".join(str(error).split()))
    return text.partition(". This is ")[0][:_REASON]
