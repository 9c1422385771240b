"""Reuse of independently prefilled chunks at any position: entries, re-rotation, initialisers, selectors, assembly."""

from holdover.chunks.assembly import Assembly, Chunk, Copy, Placed, Repair, Text, Usage
from holdover.chunks.diagnosis import StateErrors, state_errors
from holdover.chunks.entry import ChunkEntry
from holdover.chunks.extras import ChunkOptions, Extras, LayerTaps, seam_length
from holdover.chunks.initialiser import INITIALISERS, Initialiser, pass_over, seed
from holdover.chunks.integrity import check_integrity
from holdover.chunks.key import composed_namespace, composition_salt
from holdover.chunks.relocate import layer_frequencies, relocate
from holdover.chunks.spill import ChunkSpill
from holdover.chunks.store import Build, ChunkStore, Hold
from holdover.chunks.transition import Affine
from holdover.chunks.window import CachedInputs, follow, rejoin

__all__ = [
    "INITIALISERS",
    "Affine",
    "Assembly",
    "Build",
    "CachedInputs",
    "Chunk",
    "ChunkEntry",
    "ChunkOptions",
    "ChunkSpill",
    "ChunkStore",
    "Copy",
    "Extras",
    "Hold",
    "Initialiser",
    "LayerTaps",
    "Placed",
    "Repair",
    "StateErrors",
    "Text",
    "Usage",
    "check_integrity",
    "composed_namespace",
    "composition_salt",
    "follow",
    "layer_frequencies",
    "pass_over",
    "rejoin",
    "relocate",
    "seam_length",
    "seed",
    "state_errors",
]
