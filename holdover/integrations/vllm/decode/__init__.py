"""Deferred decode in vLLM's own recurrent layers."""
