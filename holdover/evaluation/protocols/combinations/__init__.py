"""What reduced checkpoints, decode from a log, drafts and chunk reuse cost together, and many times in a row."""
