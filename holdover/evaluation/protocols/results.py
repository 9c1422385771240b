"""What every result file of a protocol says of itself: its schema, what was measured, by what, and when."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import holdover

SCHEMA = 1


def head(protocol: str, device: torch.device) -> dict[str, Any]:
    """The beginning of a result file; the model's digest and the rows are its protocol's to add.

    Args:
        protocol: as `holdover eval --protocol` names it.
        device: where the model ran.
    """
    return {
        "schema": SCHEMA,
        "protocol": protocol,
        "versions": {"holdover": holdover.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Commit of the checkout that the package lies in, ``-dirty`` if it was changed; None where it was installed."""
    # an installation may lie in somebody else's checkout
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(*arguments: str) -> str | None:
    package = Path(holdover.__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
