"""The protocol of LinearKV §4: initial states compared on the same recomputed positions, and why one of them is off."""
