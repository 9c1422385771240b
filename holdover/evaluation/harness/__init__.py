"""Holdover as a model of the LM evaluation harness, and its tasks run with one command."""
