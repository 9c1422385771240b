"""Text while it arrives: what is streamed adds up to the whole, and nothing is said that has to be taken back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.engine.text import TextStream


class Pieces:
    """A tokenizer whose tokens are byte strings; like many, it drops the space that a text begins with."""

    def __init__(self, *pieces: bytes, strip: bool = False) -> None:
        self.pieces = pieces
        self.strip = strip

    def decode(self, ids):
        text = b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strip else text


def stream(pieces: list[bytes], stop=(), *, strip: bool = False) -> tuple[list[str], TextStream]:
    """What each token gave, and at last what the end gave; ends at a stop string as the engine does."""
    text = TextStream(Pieces(*pieces, strip=strip), stop)
    given_out = []
    for i in range(len(pieces)):
        given_out.append(text.push(i))
        if text.stopped:
            break
    given_out.append(text.finish())
    return given_out, text


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` in pieces that end at ``cuts``."""
    ends = [0, *sorted({c % (len(data) + 1) for c in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(ends) if a < b]


@given(
    text=st.text(alphabet="aé€🙂 \n\ufffd", max_size=12),
    cuts=st.lists(st.integers(0, 60), max_size=14),
    strip=st.booleans(),
)
def test_streamed_is_whole(text: str, cuts: list[int], strip: bool) -> None:
    """Wherever the tokens cut the bytes."""
    pieces = cut(text.encode(), cuts)
    given_out, whole = stream(pieces, strip=strip)
    assert "".join(given_out) == whole.text == Pieces(*pieces, strip=strip).decode(range(len(pieces)))


@given(data=st.binary(max_size=10), cuts=st.lists(st.integers(0, 12), max_size=8))
def test_bytes_that_are_no_text(data: bytes, cuts: list[int]) -> None:
    """Every valid character is there, in order, and nothing is given out twice."""
    given_out, whole = stream(cut(data, cuts))
    assert "".join(given_out) == whole.text
    assert whole.text.replace("\ufffd", "") == data.decode("utf-8", "ignore")


@given(
    text=st.text(alphabet="abé€", max_size=14),
    cuts=st.lists(st.integers(0, 60), max_size=16),
    stops=st.lists(st.text(alphabet="abé€", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings(text: str, cuts: list[int], stops: list[str]) -> None:
    given_out, whole = stream(cut(text.encode(), cuts), stops)
    streamed = "".join(given_out)
    assert streamed == whole.text
    assert not any(stop in streamed for stop in stops)
    assert text.startswith(streamed)
    assert whole.stopped == any(stop in text for stop in stops)
    if whole.stopped:
        assert any(text[len(streamed) :].startswith(stop) for stop in stops)
    else:
        assert streamed == text


def test_a_character_waits_for_its_bytes() -> None:
    given_out, _ = stream([b"a", b"\xf0\x9f", b"\x99", b"\x82b", b"c"])
    assert given_out == ["a", "", "", "🙂b", "c", ""]


def test_what_may_become_a_stop_string_waits() -> None:
    given_out, text = stream([b"x", b"a", b"a", b"a", b"b", b"y"], ["aab"])
    # the oldest a is safe as soon as two more follow
    assert given_out == ["x", "", "", "a", "", ""]
    assert (text.text, text.stopped) == ("xa", True)


def test_a_stop_string_that_does_not_come_is_given_out() -> None:
    given_out, text = stream([b"a", b"b", b"x", b"a", b"b"], ["abc"])
    assert given_out == ["", "", "abx", "", "", "ab"]
    assert not text.stopped


def test_a_stop_string_within_one_character_more() -> None:
    given_out, text = stream([b"x\xe2", b"\x82\xac!", b"z"], ["€"])
    assert (given_out, text.text) == (["", "x", ""], "x")


def test_the_earliest_of_several_stop_strings() -> None:
    _, text = stream([b"one two three"], ["three", "two"])
    assert text.text == "one "


def test_an_unfinished_character_at_the_end_is_given_out_as_what_it_is() -> None:
    given_out, text = stream([b"a", b"\xe2\x82"])
    assert given_out == ["a", "", "\ufffd"]
    assert text.finish() == ""


@pytest.mark.parametrize("stop", [(), ("<",)])
def test_tokens_without_text(stop) -> None:
    """Special tokens are left out; what follows them is not."""
    given_out, _ = stream([b"a", b"", b"", b"b", b""], stop)
    assert "".join(given_out) == "ab"
