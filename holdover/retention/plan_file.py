"""Plans on disk: one safetensors file whose metadata holds everything but the tensors.

``retained.{i}`` (uint8, 0 or 1) and ``horizons.{i}`` (float32) are those of recurrent layer ``i``, counted in stack
order. The metadata has the format's name and version, the plan's fields as JSON with its digest, and a checksum of that
JSON and all tensors, so that a file which was cut, damaged or edited by hand is refused. It does not say who made it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from holdover.errors import PlanError
from holdover.files import replacing
from holdover.retention.plan import RetentionPlan
from holdover.retention.quality import OperatingPoint, QualityGate

# a folder of its own: servers take every safetensors file that lies beside a model for weights
BESIDE = "holdover"
PLAN_NAME = "plan.safetensors"
VERSION = 1
_FORMAT = "holdover.retention-plan"
_TENSORS = ("horizons", "retained")


def write_plan(plan: RetentionPlan, path: Path) -> None:
    """Write ``plan``, replacing what is at ``path`` only once the new file is whole.

    Raises:
        PlanError: it cannot be written there.
    """
    fields = {name: value for name, value in vars(plan).items() if name in _fields()}
    fields["quality"] = None if plan.quality is None else asdict(plan.quality)
    text = json.dumps(fields | {"layers": len(plan.retained), "digest": plan.digest}, sort_keys=True)
    tensors = {f"horizons.{index}": horizons.contiguous() for index, horizons in enumerate(plan.horizons)}
    tensors |= {f"retained.{index}": mask.to(torch.uint8) for index, mask in enumerate(plan.retained)}
    metadata = {"format": _FORMAT, "version": str(VERSION), "plan": text, "checksum": _checksum(text, tensors)}
    _replace(path, save(tensors, metadata))


def read_plan(path: Path) -> RetentionPlan:
    """The plan at ``path``.

    Raises:
        PlanError: there is none, or it is truncated, damaged, edited, of a newer version, or something else.
    """
    if not path.is_file():
        raise PlanError(f"{path} does not exist: make a plan with holdover plan")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            # copies: what is read from the mapped file would change with it
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise PlanError(f"{path} is no plan, or truncated or damaged ({error}): make it again") from error
    text = metadata.get("plan", "")
    if metadata.get("checksum") != _checksum(text, tensors):
        raise _damaged(path)
    try:
        fields = json.loads(text)
        plan, digest = _plan(fields, tensors), fields["digest"]
    except (KeyError, TypeError, ValueError, PlanError) as error:
        raise _damaged(path) from error
    if plan.digest != digest:
        raise _damaged(path)
    return plan


def find_plans(model_dir: Path, fingerprint: str, user_dir: Path | None = None) -> list[Path]:
    """Where plans of a model are: in the folder ``holdover`` of its own, then in the user's directory.

    Args:
        model_dir: the model's directory; it need not exist (a remote model).
        fingerprint: the model's fingerprint, which names its plan in the user's directory.
        user_dir: the user's directory; `user_plans` if None.
    """
    places = (model_dir / BESIDE / PLAN_NAME, user_plan(fingerprint, user_dir))
    return [place for place in places if place.is_file()]


def user_plan(fingerprint: str, user_dir: Path | None = None) -> Path:
    """Path of a model's plan in the user's directory (`user_plans` if None)."""
    return (user_plans() if user_dir is None else user_dir) / f"{fingerprint[:32]}.safetensors"


def user_plans() -> Path:
    """The user's directory of plans: ``$HOLDOVER_PLANS``, else ``holdover/plans`` in ``$XDG_CONFIG_HOME``."""
    if chosen := os.environ.get("HOLDOVER_PLANS"):
        return Path(chosen).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "holdover" / "plans"


def _fields() -> tuple[str, ...]:
    """Names of the plan's fields that JSON holds."""
    return tuple(name for name in RetentionPlan.__dataclass_fields__ if name not in _TENSORS)


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise PlanError(f"{path} is no retention plan: make one with holdover plan")
    if (version := metadata.get("version")) != str(VERSION):
        raise PlanError(
            f"{path} has version {version!r} and this Holdover reads {VERSION}: upgrade it, or make the plan again"
        )


def _plan(fields: dict[str, Any], tensors: dict[str, torch.Tensor]) -> RetentionPlan:
    known = {name: fields[name] for name in _fields()}
    if known["quality"] is not None:
        known["quality"] = _quality(known["quality"])
    layers = range(fields["layers"])
    if len(tensors) != len(_TENSORS) * len(layers):
        raise ValueError(f"{len(tensors)} tensors for {len(layers)} layers")
    known["horizons"] = tuple(tensors[f"horizons.{index}"] for index in layers)
    known["retained"] = tuple(tensors[f"retained.{index}"] != 0 for index in layers)
    return RetentionPlan(**known)


def _quality(fields: dict[str, Any]) -> QualityGate:
    chosen = OperatingPoint(**fields.pop("chosen"))
    sweep = tuple(OperatingPoint(**point) for point in fields.pop("sweep"))
    return QualityGate(**fields, chosen=chosen, sweep=sweep)


def _checksum(text: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def _damaged(path: Path) -> PlanError:
    return PlanError(f"{path} is damaged or was edited: make it again with holdover plan")


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that at any time a reader finds the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror or error}") from error
