"""What a model is: from its configuration to the layout of its state and KV, and the names of its parameters."""
