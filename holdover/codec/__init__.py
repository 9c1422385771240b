"""How a checkpoint's recurrent state is packed into one record, and what that saves."""

from holdover.codec.accounting import Ratios, ratios, usable_slots
from holdover.codec.codec import Codec
from holdover.codec.record import Arrangement, Footprint

__all__ = ["Arrangement", "Codec", "Footprint", "Ratios", "ratios", "usable_slots"]
