"""Many clients at once: everyone gets the answer that they would have got alone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.server.live import Live

CLIENTS = 32
SHARED = "the dog sat on the mat and the cat sat on the dog and said "


def ask(server: Live, number: int, *, stream: bool) -> str:
    # some share a beginning, some a whole prompt, some nothing
    prompt = f"{SHARED * (number % 3)}{number // 2}"
    options: dict[str, Any] = {"max_tokens": 8 + number % 5, "stream": stream}
    if number % 4 == 3:
        options["extra_body"] = {"cache_salt": f"tenant {number % 8}"}
    if number % 2:
        answer = server.complete(prompt, **options)
        return "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
    answer = server.chat(prompt, **options)
    if stream:
        return "".join(c.choices[0].delta.content or "" for c in answer)
    return str(answer.choices[0].message.content)


def test_together_as_alone(server: Live) -> None:
    alone = [ask(server, number, stream=False) for number in range(CLIENTS)]
    server.flush()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(2):
            together = pool.map(lambda number: ask(server, number, stream=number % 3 == 0), range(CLIENTS))
            assert list(together) == alone


def test_some_leave_while_others_stay(server: Live) -> None:
    def leave(number: int) -> str:
        with server.complete(f"{SHARED}{number}", max_tokens=400, stream=True) as stream:
            next(iter(stream))
        return ""

    alone = [ask(server, number, stream=False) for number in range(CLIENTS // 2)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        leaving = [pool.submit(leave, number) for number in range(CLIENTS // 2)]
        staying = [pool.submit(ask, server, number, stream=True) for number in range(CLIENTS // 2)]
        assert [one.result() for one in staying] == alone
        assert not any(one.result() for one in leaving)
