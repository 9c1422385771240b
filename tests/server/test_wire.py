"""JSON as it goes out: what every reader accepts, on one line."""

from __future__ import annotations

import json

import pytest

from holdover.server.wire import encode


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_finite_number_is_null(number: float) -> None:
    assert encode({"a": number, "b": [{"c": number}, 1.5]}) == b'{"a":null,"b":[{"c":null},1.5]}'


def test_text_stays_on_one_line_in_utf8() -> None:
    body = {"text": 'two\nlines\r\n, "quoted" \\ and \x00, naïve 日本 🙂'}
    encoded = encode(body)
    assert json.loads(encoded) == body
    # what ends the data of a server-sent event
    assert b"\n" not in encoded
    assert b"\r" not in encoded
    assert "naïve 日本 🙂".encode() in encoded
