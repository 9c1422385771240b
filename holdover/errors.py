"""Errors that a user of Holdover can meet, each with one message that says what is wrong and what to do."""

from __future__ import annotations


class HoldoverError(Exception):
    """Base of every error that Holdover raises on purpose."""


class ConfigError(HoldoverError):
    """A model's configuration, a flag or an option cannot be used as given."""


class UnsupportedArchitectureError(ConfigError):
    """The model's architecture is unknown, or known and refused with a reason."""


class WeightsError(HoldoverError):
    """A model's files are missing, truncated or not what their index says."""


class RequestError(HoldoverError):
    """A request is invalid; it was not started and nothing was changed.

    Args:
        message: what is wrong and what to do.
        param: the request's field at fault, if one is.
        code: a short stable identifier for programs.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class CapacityError(HoldoverError):
    """A pool cannot hold what was asked for, not even after every eviction that is allowed."""


class OwnershipError(HoldoverError):
    """A lease was released twice, used after it moved, or used by another than its owner."""


class CheckpointMismatchError(HoldoverError):
    """A checkpoint's bytes are not those of the depth, key or layout that were expected."""


class EngineClosedError(HoldoverError):
    """The engine was closed, on purpose, before it could answer."""


class ParallelError(HoldoverError):
    """The ranks of a tensor-parallel group cannot work together, or not any more."""


class IntegrityError(HoldoverError):
    """An internal counter or owner disagrees with what it should be; the message names the ids."""


class PlanError(HoldoverError):
    """A retention plan cannot be made, read or used with this model."""


class GateError(HoldoverError):
    """The quality gate of chunk reuse cannot be read or written, or says nothing of this model."""


class SpillError(HoldoverError):
    """A spilled checkpoint cannot be written, or is damaged, truncated or another's."""


class EndpointError(HoldoverError):
    """A server that is driven from outside cannot be reached, refuses, stalls, or answers what is no answer."""
