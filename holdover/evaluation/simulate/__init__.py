"""What a cache of a given size would do for a trace: the engine's own loop, without the model."""
