import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from holdover.server.sse import EventStream, event

Message = MutableMapping[str, Any]


def test_an_event_is_one_line() -> None:
    assert event({"text": "a\n\nb\r ß\u2028"}) == 'data: {"text":"a\\n\\nb\\r ß\u2028"}\n\n'.encode()


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_source_is_closed_wherever_the_client_goes(sent: int, how: str) -> None:
    ends: list[str] = []

    async def source() -> AsyncGenerator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            ends.append("closed")

    async def events(numbers: AsyncGenerator[int]) -> AsyncGenerator[bytes]:
        async for number in numbers:
            yield event({"number": number})

    async def respond() -> None:
        numbers = source()
        await anext(numbers)
        left, messages = asyncio.Event(), 0

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            nonlocal messages
            if messages == sent:
                if how == "fails":
                    raise OSError("connection reset")
                left.set()
                await asyncio.Event().wait()
            messages += 1

        try:
            await EventStream(events(numbers), source=numbers)({"type": "http"}, receive, send)
        except OSError:
            ends.append("raised")
        # here, not when the garbage collector comes by
        assert "closed" in ends

    asyncio.run(respond())
    assert ends == (["closed", "raised"] if how == "fails" else ["closed"])
