"""What prompts that are composed of chunks cost in quality, against the same prompts computed in full."""
