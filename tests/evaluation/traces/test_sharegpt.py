"""The ShareGPT loader reads what is whole, counts what is not, and refuses what is something else."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.errors import HoldoverError
from holdover.evaluation.traces import Conversation, ShareGPTReader, Turn, load_sharegpt


def entry(name: Any, *messages: tuple[Any, Any]) -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": sender, "value": value} for sender, value in messages]}


GOOD = [
    entry("a", ("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello, [world]")),
    entry("b", ("user", "Two, please"), ("assistant", "")),
    entry("c", ("gpt", 'An answer with "quotes" and ünïcode 🙂'), ("human", "Go on")),
]
READ = [
    Conversation("a", (Turn("system", "Be brief."), Turn("user", "Hi"), Turn("assistant", "Hello, [world]"))),
    Conversation("b", (Turn("user", "Two, please"), Turn("assistant", ""))),
    Conversation("c", (Turn("assistant", 'An answer with "quotes" and ünïcode 🙂'), Turn("user", "Go on"))),
]


def write(folder: Path, content: Any) -> Path:
    path = folder / "trace.json"
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_reads_whole_files(tmp_path: Path, indent: int | None, mark: bytes) -> None:
    path = write(tmp_path, mark + json.dumps(GOOD, indent=indent).encode())
    reader = load_sharegpt(path)
    assert list(reader) == READ
    assert (reader.skipped, reader.is_truncated) == (0, False)


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (3, 3), (9, 3), (None, 3)])
def test_limit(tmp_path: Path, limit: int | None, count: int) -> None:
    assert list(load_sharegpt(write(tmp_path, GOOD), limit)) == READ[:count]


def test_limit_counts_conversations_and_not_entries(tmp_path: Path) -> None:
    reader = load_sharegpt(write(tmp_path, [entry("empty"), *GOOD]), 1)
    assert list(reader) == READ[:1]
    assert reader.skipped == 1


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        7,
        "text",
        [],
        {},
        {"id": "x"},
        {"id": "x", "conversations": None},
        {"id": "x", "conversations": {}},
        {"id": "x", "conversations": ["text"]},
        entry("x"),
        entry("x", ("human", None)),
        entry("x", ("human", ["parts"])),
        entry("x", (None, "text")),
        entry("x", (["human"], "text")),
        entry("x", ("human", "text"), ("tool", "text")),
        {"id": "x", "conversations": [{"value": "text"}]},
    ],
)
def test_malformed_entry_is_skipped_and_counted(tmp_path: Path, malformed: Any) -> None:
    reader = load_sharegpt(write(tmp_path, [GOOD[0], malformed, *GOOD[1:]]))
    assert list(reader) == READ
    assert (reader.skipped, reader.is_truncated) == (1, False)


def test_entry_without_id_is_named_by_its_place(tmp_path: Path) -> None:
    unnamed = {"conversations": GOOD[0]["conversations"]}
    assert [c.id for c in load_sharegpt(write(tmp_path, [GOOD[1], None, unnamed]))] == ["b", "2"]


TEXT = json.dumps(GOOD, ensure_ascii=False, indent=1).encode()
# where each entry's closing brace is
ENDS = [end for end in range(1, len(TEXT) + 1) if TEXT[:end].endswith(b"\n }")]


def test_cut_anywhere_gives_the_whole_entries_before(tmp_path: Path) -> None:
    assert len(ENDS) == len(GOOD)
    for whole, (start, stop) in enumerate(pairwise([*ENDS, len(TEXT)]), start=1):
        for cut in range(start, stop):
            reader = load_sharegpt(write(tmp_path, TEXT[:cut]))
            assert list(reader) == READ[:whole], cut
            assert reader.is_truncated


def test_damage_within_a_file_stops_there(tmp_path: Path) -> None:
    damaged = TEXT[: ENDS[0] + 5] + b"!" + TEXT[ENDS[0] + 5 :]
    reader = load_sharegpt(write(tmp_path, damaged))
    assert list(reader) == READ[:1]
    assert reader.is_truncated


def test_iteration_ends_for_good(tmp_path: Path) -> None:
    reader = load_sharegpt(write(tmp_path, TEXT[:-20]))
    list(reader)
    assert list(reader) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"   \n", "an empty file"),
        (b"hello", "want a list of conversations, got 'hello'"),
        (b'{"id": 1}', "want a list of conversations"),
        (b"[hello]", "first entry"),
        (b'[{"id": "cut', "first entry"),
        (b"[" * 100_000, "first entry"),
        (b"[\xff\xfe]", "not UTF-8"),
        (b"PK\x03\x04\xf0\x00", "not UTF-8"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(HoldoverError, match=message):
        load_sharegpt(write(tmp_path, content))


@pytest.mark.parametrize("content", [b"[]", b" [ ] \n"])
def test_empty_list_holds_nothing(tmp_path: Path, content: bytes) -> None:
    reader = load_sharegpt(write(tmp_path, content))
    assert list(reader) == []
    assert not reader.is_truncated


def test_wrong_path_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(HoldoverError, match=r"missing\.json cannot be read: No such file"):
        load_sharegpt(tmp_path / "missing.json")
    with pytest.raises(HoldoverError, match="cannot be read: Is a directory"):
        load_sharegpt(tmp_path)


@given(st.text(max_size=60).map(lambda text: "[" + text))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        reader = ShareGPTReader(text)
    except HoldoverError:
        return
    list(reader)
