"""What retention horizons say against what a model does, and what an operating point costs on real text."""
