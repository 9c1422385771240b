"""OpenAI-compatible HTTP server over one `AsyncEngine`."""
