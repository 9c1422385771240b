"""Where the project's own files are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "holdover"
MODELS = ROOT / "assets" / "models"
