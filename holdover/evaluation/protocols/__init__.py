"""The papers' protocols: how a cache is filled, what is scored, and what is compared with what."""
