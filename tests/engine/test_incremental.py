"""Tokenising only what is new gives the tokens of tokenising all, whatever texts share and whatever the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from holdover.engine.alike import alike
from holdover.engine.chat import render_chat
from holdover.engine.hf import incremental
from holdover.engine.hf.incremental import IncrementalEncoder, splitting
from holdover.engine.hf.tokenizer import Tokenizer as ModelTokenizer
from tests.training import MODEL

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>")


def bytes_tokenizer(*, prefix_space: bool) -> Tokenizer:
    """Pairs of letters are merged; a text may begin with a blank that nobody wrote."""
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pairs = [("a", "b"), ("b", "a"), ("Ġ", "a"), ("ab", "ab"), ("\u010a", "\u010a")]
    vocabulary = alphabet | {"".join(pair): len(alphabet) + i for i, pair in enumerate(pairs)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return tokenizer


def pieces_tokenizer(scheme: str) -> Tokenizer:
    """Blanks belong to the words behind them, as in SentencePiece."""
    words = ["▁", "a", "b", "▁a", "▁b", "ab", "▁ab", "\n", "<unk>"]
    tokenizer = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [("▁", "a"), ("▁", "b"), ("a", "b")], unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return tokenizer


def with_special(tokenizer: Tokenizer, **flags: bool) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, special=True, **flags) for text in SPECIAL])
    return tokenizer


TOKENIZERS = {
    "bytes": with_special(bytes_tokenizer(prefix_space=False)),
    "bytes, blank in front": with_special(bytes_tokenizer(prefix_space=True)),
    "pieces, blank in front": with_special(pieces_tokenizer("first")),
    "pieces, blanks everywhere": with_special(pieces_tokenizer("always")),
    "blanks are eaten": with_special(bytes_tokenizer(prefix_space=False), lstrip=True, rstrip=True),
    "whole words only": with_special(bytes_tokenizer(prefix_space=False), single_word=True),
    "bundled": Tokenizer.from_file(str(MODEL / "tokenizer.json")),
}


def encoder(tokenizer: Tokenizer) -> IncrementalEncoder:
    special = splitting(tokenizer.get_added_tokens_decoder().items())
    return IncrementalEncoder(lambda text: whole(tokenizer, text), special)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


parts = st.lists(st.sampled_from([*SPECIAL, "a", "b", " ", "\n", "ab", " a b", "é", "<|im_", "end|>"]), max_size=12)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_the_tokenizer(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incremental, "_SHORT", 4)
        tested = encoder(tokenizer)
        texts = [""]
        for _ in range(data.draw(st.integers(2, 8))):
            base = data.draw(st.sampled_from(texts))
            kept = base[: data.draw(st.integers(0, len(base)))] if data.draw(st.booleans()) else base
            texts.append(kept + "".join(data.draw(parts)))
            assert tested.encode(texts[-1]) == whole(tokenizer, texts[-1])


def test_a_next_turn_is_tokenised_from_the_end_of_the_one_before() -> None:
    tokenizer = TOKENIZERS["bundled"]
    tested, text = encoder(tokenizer), ""
    for turn in range(6):
        text += f"<|im_start|>user\n{'The mill stands near the river. ' * 60}{turn}<|im_end|>\n<|im_start|>assistant\n"
        before = tested.tokenised
        assert tested.encode(text) == whole(tokenizer, text)
        if turn:
            assert tested.tokenised - before < 2_000 + 100, "a turn, and the last special token twice"
        text += "It does.<|im_end|>\n"


def overlapping(*tokens: AddedToken) -> Tokenizer:
    """Added tokens that are parts of others, and merges across where they begin."""
    tokenizer = bytes_tokenizer(prefix_space=False)
    vocabulary = tokenizer.get_vocab()
    merges = [("\u0120", "<")]
    tokenizer.model = models.BPE(vocabulary | {"\u0120<": len(vocabulary)}, merges)
    tokenizer.add_tokens(list(tokens))
    return tokenizer


AMBIGUOUS = {
    "a whole word only": (
        overlapping(AddedToken("<s>", special=True, single_word=True, normalized=False)),
        (" <s> b", " <s>ab"),
    ),
    "a part of another": (
        overlapping(*(AddedToken(text, special=True, normalized=False) for text in ("<s>", "b<s>c"))),
        ("b<s>d", "b<s>c"),
    ),
    "a part of an ordinary one": (
        overlapping(AddedToken("<s>", special=True, normalized=False), AddedToken("b<s>c", normalized=False)),
        ("b<s>d", "b<s>c"),
    ),
    "after normalisation": (
        overlapping(AddedToken("<s>", special=True, normalized=True)),
        (" <s>d", " <s>\u0338d"),
    ),
}
AMBIGUOUS["after normalisation"][0].normalizer = normalizers.NFC()


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_tokens_that_do_not_always_split_are_no_place_to_cut(name: str) -> None:
    tokenizer, ends = AMBIGUOUS[name]
    tested = encoder(tokenizer)
    for end in ends:
        text = "a" * 2_000 + end
        assert tested.encode(text) == whole(tokenizer, text)


def test_boundaries_of_a_chat_cost_little_beside_its_tokens() -> None:
    tokenizer = ModelTokenizer(Path(MODEL))
    template = tokenizer.sharing()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The mill stands near the river. " * 300}]
    ids, boundaries = render_chat(template, messages)
    assert (ids, boundaries) == render_chat(tokenizer, messages)
    assert boundaries
    assert template.parts.tokenised < 1.1 * len(tokenizer.render_text(messages))


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_alike_is_the_common_beginning(first: str, second: str) -> None:
    same = [a == b for a, b in zip(first, second, strict=False)]
    assert alike(first, second) == (same.index(False) if False in same else len(same))
    assert alike(list(first), list(second)) == alike(first, second)
