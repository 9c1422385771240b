"""Hugging Face Transformers as the embedded host: the only package that knows its modules."""
