"""The selection of App. A.2: by rule, longest first, nothing taken twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.retention.prefixes import (
    from_conversations,
    from_text,
    select_prefixes,
    serialise,
    tiers,
)
from holdover.evaluation.traces import Conversation, Turn


class Quads:
    """A tokenizer with a token for every four characters, and a count of its calls."""

    calls = 0

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return [ord(text[i]) for i in range(0, len(text), 4)]


def conversation(tokens: int) -> Conversation:
    # "User: " and as many characters as make up so many tokens, the last of them telling
    text = "".join(chr(33 + i // 4 % 90) for i in range(4 * tokens - 6))
    return Conversation("x", (Turn("user", text),))


def chosen(sizes: list[int], lengths: list[int], per_length: int) -> list[tuple[int, int]]:
    found = from_conversations(map(conversation, sizes), Quads(), lengths, per_length)
    return [(prefix.source, len(prefix.tokens)) for prefix in found]


def test_the_shortest_that_are_long_enough_and_longer_tiers_first() -> None:
    sizes = [100, 30, 55, 41, 40, 90, 39, 60]
    assert chosen(sizes, [50, 40], 2) == [(2, 50), (7, 50), (4, 40), (3, 40)]
    # shorter tiers first would have taken 55 and 60 away
    assert chosen(sizes, [40], 4) == [(4, 40), (3, 40), (2, 40), (7, 40)]


def test_the_longest_there_are_if_too_few_are_long_enough() -> None:
    # 48 has the characters of 50 tokens at 3.5 each, 30 has not
    assert chosen([48, 30, 70, 49], [50], 2) == [(3, 49), (2, 50)]
    assert chosen([48, 30, 70, 49], [50], 9) == [(0, 48), (3, 49), (2, 50)]


def test_equal_ones_in_the_order_of_the_file() -> None:
    assert chosen([50, 50, 50], [50], 2) == [(0, 50), (1, 50)]


def test_no_more_than_500_candidates_are_tokenised() -> None:
    encoder = Quads()
    sizes = [60] * 499 + [55, 50]
    found = from_conversations(map(conversation, sizes), encoder, [50], 1)
    # the 501st, which is shorter, is not looked at
    assert (found[0].source, encoder.calls) == (499, 500)


def test_a_long_one_loses_its_beginning() -> None:
    encoder = Quads()
    (prefix,) = from_conversations([conversation(60)], encoder, [50], 1)
    assert list(prefix.tokens) == encoder.encode(serialise(conversation(60)))[-50:]


def test_turns_are_blocks() -> None:
    turns = (Turn("user", "hi"), Turn("assistant", "hello"), Turn("user", "bye"))
    assert serialise(Conversation("x", turns)) == "User: hi\n\nAssistant: hello\n\nUser: bye"


def test_no_conversation_is_long_enough() -> None:
    with pytest.raises(ConfigError, match="shorter --lengths"):
        chosen([10], [50], 1)


def test_text_is_cut_into_consecutive_pieces() -> None:
    found = from_text(range(30), [10, 4], 2)
    assert [list(prefix.tokens) for prefix in found] == [
        [*range(10)],
        [*range(10, 20)],
        [*range(20, 24)],
        [*range(24, 28)],
    ]
    assert [prefix.source for prefix in found] == [0, 10, 20, 24]
    # as many as there are
    assert from_text(range(30), [10, 4], 3) == found
    with pytest.raises(ConfigError, match=r"has 13 tokens .* needs 14"):
        from_text(range(13), [10, 4], 3)


@pytest.mark.parametrize(
    ("context", "want"),
    [
        (262144, (16384, 8192, 4096, 1024)),
        (16384, (16384, 8192, 4096, 1024)),
        (16383, (8192, 4096, 2048, 512)),
        (4096, (4096, 2048, 1024, 256)),
    ],
)
def test_tiers_fit_the_context(context: int, want: tuple[int, ...]) -> None:
    assert tiers(context) == want


def test_files(tmp_path: Path) -> None:
    trace, text = tmp_path / "trace.json", tmp_path / "text.txt"
    entry = {"id": "a", "conversations": [{"from": "human", "value": "x" * 400}]}
    trace.write_text(json.dumps([entry] * 3))
    text.write_text("y" * 400)
    assert len(select_prefixes(trace, Quads(), [20], 2)) == 2
    assert [p.source for p in select_prefixes(text, Quads(), [20, 40], 2)] == [0, 40]
    with pytest.raises(ConfigError, match="cannot be shared equally"):
        select_prefixes(text, Quads(), [20, 40], 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        select_prefixes(tmp_path / "none.txt", Quads(), [20], 2)
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        select_prefixes(text, Quads(), [20], 2)
    trace.write_text("{}")
    with pytest.raises(HoldoverError, match="not ShareGPT"):
        select_prefixes(trace, Quads(), [20], 2)
