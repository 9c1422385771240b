from pathlib import Path

MODEL = Path(__file__).parents[2] / "assets" / "models" / "tiny-gdn"
