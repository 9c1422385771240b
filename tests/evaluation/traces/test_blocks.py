"""Traces of block hashes: what is read, and that prompts share what their hashes say."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from holdover.errors import HoldoverError
from holdover.evaluation.traces.block_prompts import block_exchanges
from holdover.evaluation.traces.blocks import BlockRequest, BlockTrace, is_block_trace, read_blocks

VOCABULARY = 101


def row(prompt: object, reply: object, ids: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": prompt, "output_length": reply, "hash_ids": ids}


def written(path: Path, *rows: object, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + tail)
    return path


def traced(*requests: tuple[int, int, list[int]], block: int = 8) -> BlockTrace:
    return BlockTrace(block, tuple(BlockRequest(p, r, tuple(ids)) for p, r, ids in requests), 0, 0, False)


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    same = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(same, min(len(first), len(second)))


def test_rows_are_read_and_what_is_none_is_counted(tmp_path: Path) -> None:
    good = row(20, 3, [1, 2, 3])
    bad = [row(20, 0, [1, 2, 3]), row(20, 3, [1, 2]), row(True, 3, [1]), row(8, 3, ["1"]), row(8, 3, None), [], 7, "x"]
    path = written(tmp_path / "blocks.jsonl", good, *bad, row(90, 20, list(range(12))), row(8, 1, [5]), tail='{"input')
    found = read_blocks(path, context=100, block=8)
    assert found.requests == (BlockRequest(20, 3, (1, 2, 3)), BlockRequest(8, 1, (5,)))
    assert (found.skipped, found.too_long, found.is_truncated) == (len(bad), 1, True)
    first = read_blocks(path, context=100, block=8, limit=1)
    assert (len(first.requests), first.skipped, first.is_truncated) == (1, 0, False)
    assert first.digest != found.digest == read_blocks(path, context=100, block=8).digest


def test_a_last_row_without_an_end_of_line_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl", tail=json.dumps(row(8, 1, [5])))
    found = read_blocks(path, context=100, block=8)
    assert (len(found.requests), found.is_truncated) == (1, False)


def test_the_first_row_says_what_a_file_is(tmp_path: Path) -> None:
    assert is_block_trace(written(tmp_path / "a", row(8, 1, [5])))
    assert not is_block_trace(written(tmp_path / "b", {"format": "holdover-trace-1"}))
    for text in ("", "[1]\n", "{", "\udcff"):
        (tmp_path / "c").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert not is_block_trace(tmp_path / "c")
    assert not is_block_trace(tmp_path / "nowhere")


def test_a_file_of_which_nothing_can_be_taken_says_why(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl", row(20, 3, [1, 2, 3]), row(30, 3, [1, 2, 3, 4]))
    with pytest.raises(HoldoverError, match="row 1 has 3 hashes for 20 tokens, and blocks are taken to be 16 long"):
        read_blocks(path, context=100, block=16)
    with pytest.raises(HoldoverError, match="2 are longer than a context of 10 tokens"):
        read_blocks(path, context=10, block=8)
    with pytest.raises(HoldoverError, match="cannot be read"):
        read_blocks(tmp_path / "nowhere", context=10)


def test_a_next_turn_holds_the_prompt_and_the_reply_of_the_one_before() -> None:
    first, second, third, *_ = block_exchanges(
        traced((20, 3, [0, 1, 2]), (40, 4, [0, 1, 3, 4, 5]), (50, 1, [0, 1, 3, 4, 5, 6, 7]), (9, 1, [0, 9])), VOCABULARY
    )
    assert second.prompt[:23] == first.prompt + first.reply
    assert third.prompt[:44] == second.prompt + second.reply
    assert [(len(one.prompt), len(one.reply), one.boundaries) for one in (first, second)] == [
        (20, 3, (20,)),
        (40, 4, (40,)),
    ]


def test_others_share_their_blocks_and_no_more() -> None:
    first, again, short, edited, same, other = block_exchanges(
        traced(
            (20, 3, [0, 1, 2]),
            # its place was taken by nobody yet, and it is too short for the reply
            (22, 3, [0, 1, 3]),
            (30, 3, [0, 1, 4, 5]),
            # a next turn of the same prompt, whose reply was another one
            (30, 3, [0, 1, 6, 7]),
            (20, 3, [0, 1, 2]),
            (30, 3, [0, 8, 9, 10]),
        ),
        VOCABULARY,
    )
    assert shared(first.prompt, again.prompt) == 16
    assert shared(first.prompt, other.prompt) == 8
    assert shared(edited.prompt, short.prompt) == 16
    assert same.prompt == first.prompt
    assert same.reply[0] != first.reply[0]


def test_what_all_begin_with_makes_no_conversation() -> None:
    first, second = block_exchanges(traced((10, 3, [0, 1]), (30, 3, [0, 2, 3, 4])), VOCABULARY)
    assert shared(first.prompt, second.prompt) == 8


@pytest.mark.parametrize("seed", range(5))
def test_any_two_prompts_share_the_blocks_that_they_share(seed: int) -> None:
    draw = random.Random(seed)
    ids: list[list[int]] = []
    requests = []
    fresh = iter(range(1, 100_000))
    for _ in range(3 * VOCABULARY):
        known = draw.choice(ids) if ids else [0]
        kept = known[: draw.randint(1, len(known))]
        ids.append(kept + [next(fresh) for _ in range(draw.randint(1, 4))])
        requests.append((8 * (len(ids[-1]) - 1) + draw.randint(1, 8), draw.randint(1, 20), ids[-1]))
    exchanges = block_exchanges(traced(*requests), VOCABULARY)
    assert all(0 <= token < VOCABULARY for one in exchanges for token in one.prompt + one.reply)
    for (prompt, reply, _), exchange in zip(requests, exchanges, strict=True):
        assert (len(exchange.prompt), len(exchange.reply)) == (prompt, reply)
    more = 0
    for i, j in (draw.sample(range(len(ids)), 2) for _ in range(4000)):
        common = shared(tuple(ids[i]), tuple(ids[j]))
        least = min(8 * common, requests[i][0], requests[j][0])
        found = shared(exchanges[i].prompt, exchanges[j].prompt)
        assert found >= least
        more += found > least
    # a next turn repeats a reply, of which hashes of prompts say nothing; tokens may meet by chance
    assert more < 400


def test_requests_do_not_meet_beyond_a_vocabulary() -> None:
    exchanges = block_exchanges(traced(*[(80, 1, [i * 10 + k for k in range(10)]) for i in range(31)]), 10)
    for first, second in pairwise(exchanges[::10]):
        assert shared(first.prompt, second.prompt) < 8
    assert all(shared(exchanges[0].prompt, one.prompt) == 0 for one in exchanges[1:10])


def test_blocks_of_another_length_are_said_even_if_short_prompts_fit(tmp_path: Path) -> None:
    rows = [row(5, 1, [1]), row(32, 1, [1, 2]), row(48, 1, [1, 2, 3])]
    with pytest.raises(HoldoverError, match=r"2 rows .* row 2 has 2 hashes for 32 tokens, .* 8 long: say --block"):
        read_blocks(written(tmp_path / "blocks.jsonl", *rows), context=100, block=8)
    assert len(read_blocks(tmp_path / "blocks.jsonl", context=100, block=16).requests) == 3
