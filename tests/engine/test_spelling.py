"""The bytes of tokens: together they are the text, for every kind of vocabulary, cut wherever it may be cut."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from holdover.engine.hf import tokenizer as ours
from holdover.server.offsets import Offsets

TEXT = "the cat sat on the mat, and the dog sat on the cat"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).map(lambda text: "a " + text)


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    )
    return made


def byte_fallback() -> Tokenizer:
    """As Llama 2's and Mistral's."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted({*TEXT.replace(" ", "▁")})]
    pieces += ["th", "he", "at", "▁the", "▁c", "▁s"]
    merges = [("t", "h"), ("h", "e"), ("a", "t"), ("▁", "the"), ("▁", "c"), ("▁", "s")]
    pieces.append("the")
    merges.insert(3, ("th", "e"))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def loaded(folder: Path, make: Callable[[], Tokenizer]) -> ours.Tokenizer:
    made = make()
    made.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return ours.Tokenizer(folder)


@pytest.fixture(scope="module", params=[byte_level, byte_fallback], ids=lambda make: make.__name__)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ours.Tokenizer:
    return loaded(tmp_path_factory.mktemp("tokenizer"), request.param)


@given(text=TEXTS)
def test_bytes_are_the_text(vocabulary: ours.Tokenizer, text: str) -> None:
    ids = vocabulary.encode_part(text)
    spelled = [vocabulary.token_bytes(token) for token in ids]
    assert None not in spelled
    # SentencePiece's first space is no part of the text
    assert b"".join(one for one in spelled if one).removeprefix(b" ") == text.encode()


@given(text=TEXTS)
def test_offsets_are_where_the_bytes_are(vocabulary: ours.Tokenizer, text: str) -> None:
    ids, offsets = vocabulary.encode_part(text), Offsets(vocabulary, start=7)
    begun = 0
    for number, token in enumerate(ids):
        whole = text.encode()[:begun].decode("utf-8", "ignore")
        assert offsets.place(token) == 7 + len(whole)
        spelled = vocabulary.token_bytes(token) or b""
        begun += len(spelled) - (number == 0 and spelled.startswith(b" "))


def test_special_tokens_take_room_where_the_text_has_them(vocabulary: ours.Tokenizer) -> None:
    special = vocabulary.only_token("<s>")
    assert special is not None
    assert vocabulary.is_special_token(special)
    assert vocabulary.token_bytes(special) == b"<s>"
    cat = vocabulary.encode_part("cat")
    absent = Offsets(vocabulary, text="cat")
    assert [absent.place(token) for token in [special, *cat, special]][:2] == [0, 0]
    assert absent.place(special) == 3
    present = Offsets(vocabulary, text="<s>cat")
    assert [present.place(token) for token in [special, cat[0]]] == [0, 3]


def test_a_character_that_does_not_go_on(vocabulary: ours.Tokenizer) -> None:
    half, after = vocabulary.encode_part("aß")[-2], vocabulary.encode_part("aa")[-1]
    assert vocabulary.token_bytes(half) == "ß".encode()[:1]
    assert vocabulary.token_text(half) == "\ufffd"
    offsets = Offsets(vocabulary)
    assert [offsets.place(token) for token in (after, half, half, after)] == [0, 1, 2, 3]


def test_ids_without_a_token(vocabulary: ours.Tokenizer) -> None:
    assert vocabulary.token_text(10**6) == ""
