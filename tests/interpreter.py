"""Triton in tests: compiled where there is a GPU, interpreted elsewhere, as `tests/conftest.py` chooses."""

import pytest
import torch


def require_triton() -> None:
    """Skip, a whole module when it says so at its head, where Triton is missing or cannot run its kernels here."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if not torch.cuda.is_available() and isinstance(triton.language.sum, triton.JITFunction):
        pytest.skip(
            "Triton was imported before its interpreter could be chosen: set TRITON_INTERPRET=1",
            allow_module_level=True,
        )
