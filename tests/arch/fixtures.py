"""Published configurations, cut to what describes the model; read from ``tests/arch/configs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"


def published(name: str) -> dict[str, Any]:
    """A fresh copy of the published configuration ``name``."""
    return json.loads((CONFIGS / f"{name}.json").read_text())
