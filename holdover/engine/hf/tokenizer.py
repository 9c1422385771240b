"""A model's tokenizer and chat template, reduced to what the engine asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from holdover.engine.hf.incremental import IncrementalEncoder, splitting
from holdover.engine.hf.spelling import Spelling
from holdover.errors import RequestError, WeightsError


class Verbatim:
    """Decodes special tokens too.

    Args:
        tokenizer: a tokenizer of Transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._decode = _decoder_of(tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``."""
        return self._decode(ids, skip_special_tokens=False)


class SharingTemplate:
    """A tokenizer's chat template; made by `Tokenizer.sharing`, for one request.

    Args:
        tokenizer: the tokenizer.
        special: ids and texts of the tokens that split a text.
    """

    def __init__(self, tokenizer: Tokenizer, special: dict[int, str]) -> None:
        self.parts = IncrementalEncoder(tokenizer.encode_part, special)
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """As `Tokenizer.render`."""
        return self.parts.encode(self._tokenizer.render_text(messages, **options))


class Tokenizer:
    """Text to token ids and back.

    Args:
        path: directory with the tokenizer's files.

    Raises:
        WeightsError: they are missing or broken.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        except Exception as error:
            # the libraries below raise what they like, a bare Exception among it
            raise WeightsError(f"{path} has no usable tokenizer: {error}") from error
        # without its files, some classes come up with an empty vocabulary and say nothing
        if not self._tokenizer.encode("a", add_special_tokens=False):
            raise WeightsError(f"{path} has no usable tokenizer: its vocabulary is empty; is tokenizer.json missing?")
        self._spelling = Spelling(self._tokenizer)
        self._decode = _decoder_of(self._tokenizer)
        self._splitting = splitting(self._tokenizer.added_tokens_decoder.items())

    def sharing(self) -> SharingTemplate:
        """The template, for one conversation rendered in several ways: what these begin with is tokenised once."""
        return SharingTemplate(self, self._splitting)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._tokenizer.chat_template is not None

    @property
    def serialized(self) -> str:
        """The tokenizer in the format of the ``tokenizers`` library.

        Raises:
            RequestError: it is of another kind.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise RequestError("this model's tokenizer is of a kind that grammars cannot be followed over")
        text: str = backend.to_str()
        return text

    @property
    def verbatim(self) -> Verbatim:
        """Turns ids into text with special tokens left in."""
        return Verbatim(self._tokenizer)

    def chat_template(self, *, tools: bool = False) -> str:
        """Text of the template that renders conversations, with tools or without; empty if there is none."""
        if not self.has_chat_template:
            return ""
        # a model may have one template for each
        text: str = self._tokenizer.get_chat_template(None, [{}] if tools else None)
        return text

    def is_special(self, text: str) -> bool:
        """Whether ``text`` is a special token, which decoding leaves out."""
        return any(token.special and token.content == text for token in self._tokenizer.added_tokens_decoder.values())

    def only_token(self, text: str) -> int | None:
        """The token that all of ``text`` is, if it is one."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokenizer's own end token, if it has one."""
        token = self._tokenizer.eos_token_id
        return frozenset() if token is None else frozenset([token])

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens that the model wants around a text.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        return self._encode(text, special=True)

    def encode_part(self, text: str) -> list[int]:
        """Token ids of a part of a text, with the special tokens that it spells out and no others.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        return self._encode(text, special=False)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            # lone surrogates: the tokenizer's own error is one of type, and does not say so
            text.encode()
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error.reason}", param="prompt") from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens left out."""
        return self._decode(ids, skip_special_tokens=True)

    def token_text(self, token: int) -> str:
        """Text of one token within others, special ones included."""
        spelled = self._spelling.bytes_of(token)
        return self.verbatim.decode([token]) if spelled is None else spelled.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes | None:
        """Bytes of that text, or the part of a character's that the token is; None if the vocabulary does not say."""
        return self._spelling.bytes_of(token)

    def is_special_token(self, token: int) -> bool:
        """Whether `decode` leaves the token out."""
        return self._spelling.is_special(token)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn.

        Raises:
            RequestError: the model has no chat template, or it refuses these messages.
        """
        return self.encode_part(self.render_text(messages, **options))

    def render_text(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        """What `render` tokenizes.

        Raises:
            RequestError: the model has no chat template, or it refuses these messages.
        """
        if not self.has_chat_template:
            raise RequestError("this model has no chat template: use /v1/completions", param="messages")
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"a message is not valid Unicode: {error.reason}", param="messages") from None
        except Exception as error:
            # templates are programs of the model's author and raise what they like
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error
        return text


def _decoder_of(tokenizer: Any) -> Callable[..., str]:
    """How a tokenizer turns ids into text, without its clean-up of spaces.

    Decoding happens twice a token. Where a class does nothing of its own, the library below it is asked directly:
    Transformers' call costs several times as much.
    """
    kind = type(tokenizer)
    if (kind.decode, getattr(kind, "_decode", None)) == (
        PreTrainedTokenizerFast.decode,
        PreTrainedTokenizerFast._decode,
    ):
        plain: Callable[..., str] = tokenizer.backend_tokenizer.decode
        return plain
    return partial(tokenizer.decode, clean_up_tokenization_spaces=False)
