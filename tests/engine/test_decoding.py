"""Ids become text as Transformers would have it, whoever is asked for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from holdover.engine.hf.tokenizer import Tokenizer, Verbatim

MODEL = Path(__file__).parents[2] / "assets" / "models" / "tiny-gdn"
theirs: Any = AutoTokenizer.from_pretrained(MODEL)
ours = Tokenizer(MODEL)


@given(st.lists(st.integers(0, len(theirs) - 1), max_size=20))
def test_text_is_that_of_transformers(ids: list[int]) -> None:
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.verbatim.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("method", ["decode", "_decode"])
def test_a_class_with_its_own_way_is_asked(method: str) -> None:
    kind = type("Own", (PreTrainedTokenizerFast,), {method: lambda *_, **__: "its own"})
    tokenizer = kind(tokenizer_object=theirs.backend_tokenizer)
    assert Verbatim(tokenizer).decode([5]) == "its own"
