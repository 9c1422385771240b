"""The small trained models that come with Holdover."""

from __future__ import annotations

from pathlib import Path

DEFAULT_MODEL = "tiny-gdn"

_PACKAGE = Path(__file__).resolve().parent.parent
# inside an installed wheel, or beside the package in a source checkout
_PLACES = (_PACKAGE / "assets" / "models", _PACKAGE.parent / "assets" / "models")


def bundled_path(name: str) -> Path | None:
    """Directory of the bundled model ``name``; None if there is none of that name."""
    if not name or Path(name).name != name:
        return None
    return next((place / name for place in _PLACES if (place / name / "config.json").is_file()), None)
