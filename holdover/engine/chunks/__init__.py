"""Chunk reuse in the engine: chunks are prefilled alone, and prompts are composed of them when they are admitted."""
