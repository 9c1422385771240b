"""Decode: one token, or a few drafts, of every running sequence in one forward."""

from holdover.engine.decode.decoder import Decoded, Decoder, DecodeStats
from holdover.engine.decode.eager import EagerDecoder
from holdover.engine.decode.graphs import GraphDecoder

__all__ = ["DecodeStats", "Decoded", "Decoder", "EagerDecoder", "GraphDecoder"]
