"""A client in a process of its own, for its work must not take the time of a server that is measured.

``python -m holdover.evaluation.simulate.ask URL CLIENTS`` sends the chats of each line of input together, a JSON
list of request bodies, and writes a line of JSON once all are answered: the fields of `Asked`, or an ``error``.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from holdover.errors import EndpointError, HoldoverError
from holdover.evaluation.serve.endpoint import Endpoint, connect

_STALL = 600.0
_FIRST_TOKENS = re.compile(r"^holdover_time_to_first_token_seconds_sum (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """Chats that were sent together.

    Attributes:
        wall_ms: from sending the first one to the end of the last reply.
        ttft_ms: times to the first token as the client saw them, summed.
        engine_ms: the same as the engine did.
        prompt_tokens: tokens of all prompts.
    """

    wall_ms: float
    ttft_ms: float
    engine_ms: float
    prompt_tokens: int


Ask = Callable[[Sequence[dict[str, Any]]], Asked]


@contextmanager
def asking(url: str, clients: int) -> Iterator[Ask]:
    """A client process of a server; yields what sends chats together and waits for their answers.

    Args:
        url: of the server.
        clients: most chats that are sent together.

    Raises:
        HoldoverError: of what is yielded: a chat was not answered, or the process has ended.
    """
    command = [sys.executable, "-m", __name__, url, str(clients)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        sent, answered = client.stdin, client.stdout

        def ask(chats: Sequence[dict[str, Any]]) -> Asked:
            # one that has ended may have said why
            with suppress(OSError):
                print(json.dumps(chats), file=sent, flush=True)
            answer = json.loads(answered.readline() or '{"error": "the client process ended"}')
            if "error" in answer:
                raise HoldoverError(answer["error"])
            return Asked(**answer)

        try:
            yield ask
        finally:
            # the end of its input ends it
            with suppress(OSError):
                sent.close()


async def _serve(url: str, clients: int) -> None:
    async with connect(url, key=None, clients=clients, stall=_STALL) as endpoint:
        model = (await endpoint.model()).name
        # the loop goes on meanwhile, and sees connections end
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(asdict(await _ask(endpoint, model, json.loads(line)))), flush=True)


async def _ask(endpoint: Endpoint, model: str, chats: Sequence[dict[str, Any]]) -> Asked:
    before, start = await _first_tokens(endpoint), time.perf_counter()
    answers = await asyncio.gather(*(endpoint.chat(**chat, model=model) for chat in chats))
    wall = time.perf_counter() - start
    return Asked(
        1e3 * wall,
        sum(answer.ttft_ms for answer in answers),
        1e3 * (await _first_tokens(endpoint) - before),
        sum(answer.prompt_tokens or 0 for answer in answers),
    )


async def _first_tokens(endpoint: Endpoint) -> float:
    """Seconds from submission to the first token, over all requests so far."""
    found = _FIRST_TOKENS.search(await endpoint.metrics() or "")
    if found is None:
        raise EndpointError("the server's metrics have no times to first tokens")
    return float(found[1])


if __name__ == "__main__":
    try:
        asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
    except HoldoverError as error:
        print(json.dumps({"error": str(error)}), flush=True)
