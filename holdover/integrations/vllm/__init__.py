"""Holdover in vLLM, through vLLM's public hooks alone: a checkpoint tier below its prefix cache."""
