"""Recorded conversations to replay."""

from holdover.evaluation.traces.reader import Conversation, Turn
from holdover.evaluation.traces.sharegpt import ShareGPTReader, load_sharegpt

__all__ = ["Conversation", "ShareGPTReader", "Turn", "load_sharegpt"]
