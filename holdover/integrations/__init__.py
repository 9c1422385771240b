"""Holdover in other engines: each uses the packages below the engine, and none of the engine's own."""
