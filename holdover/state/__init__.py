"""Recurrent state of sequences: what identifies it, and the slots that hold it."""

from holdover.state.header import EXACT, CheckpointHeader, Lineage
from holdover.state.key import KeyChain
from holdover.state.slots import SINK, SlotPool

__all__ = ["EXACT", "SINK", "CheckpointHeader", "KeyChain", "Lineage", "SlotPool"]
