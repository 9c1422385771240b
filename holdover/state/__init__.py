"""What a recurrent state is, at which depth, of which tokens, and what its log holds beside its base."""

from holdover.state.deferred import DeferredLog
from holdover.state.header import EXACT, CheckpointHeader, Lineage
from holdover.state.key import KeyChain
from holdover.state.slots import SINK, SlotPool

__all__ = ["EXACT", "SINK", "CheckpointHeader", "DeferredLog", "KeyChain", "Lineage", "SlotPool"]
