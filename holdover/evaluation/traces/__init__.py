"""Recorded conversations to replay."""

from holdover.evaluation.traces.sharegpt import Conversation, ShareGPTReader, Turn, load_sharegpt

__all__ = ["Conversation", "ShareGPTReader", "Turn", "load_sharegpt"]
