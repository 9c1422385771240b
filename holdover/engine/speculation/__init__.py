"""Speculative decoding: who proposes drafts, and which of them a forward verifies."""

from holdover.engine.speculation.mtp import HeadDrafts
from holdover.engine.speculation.ngram import PromptLookup
from holdover.engine.speculation.speculator import Proposer, Speculation, SpeculationStats, Speculator

__all__ = ["HeadDrafts", "PromptLookup", "Proposer", "Speculation", "SpeculationStats", "Speculator"]
