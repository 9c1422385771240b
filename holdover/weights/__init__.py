"""A model's files: where they are, whether they are whole, and named tensors out of them without loading a model."""
