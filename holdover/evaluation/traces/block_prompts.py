"""Token ids for a trace of block hashes: made up, so that prompts share what their hashes say they share.

A request goes on from the earlier one with which it shares the most blocks. If it has all full blocks of that one's
prompt, and is long enough to hold its reply as well, it is taken for that conversation's next turn: hashes of prompts
say nothing else of replies. Otherwise the two have the tokens of the blocks in common, and no more.
"""

from __future__ import annotations

from itertools import takewhile

import torch

from holdover.evaluation.traces.blocks import BlockRequest, BlockTrace
from holdover.evaluation.traces.exchanges import Exchange

# odd numbers of splitmix64, as signed ones
_ODD = (-7046029254386353131, -4658895280553007687, -7723592293110705685)


def block_exchanges(trace: BlockTrace, vocabulary: int) -> list[Exchange]:
    """A prompt and a reply for every request; the prompt's end is its only boundary, since a next turn repeats it all.

    Args:
        trace: the requests.
        vocabulary: token ids are below this; as many requests in a row differ at every position that is their own.
    """
    tokens, earlier = _Tokens(vocabulary), _Earlier(trace)
    found: list[Exchange] = []
    for number, request in enumerate(trace.requests):
        source, shared = earlier.find(request)
        known = found[source].prompt + found[source].reply if shared else ()
        prompt = known[:shared] + tokens.own(number, shared, request.prompt)
        reply = tokens.own(number, request.prompt, request.prompt + request.reply)
        found.append(Exchange(prompt, (request.prompt,), reply))
        earlier.add(number, request)
    return found


class _Earlier:
    """The requests so far, by their blocks."""

    def __init__(self, trace: BlockTrace) -> None:
        self._requests, self._block = trace.requests, trace.block
        # what all begin with makes no conversation
        places = zip(*(one.blocks for one in trace.requests), strict=False)
        self._common = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, places))
        # nodes of a tree by parent and block; 0 is the root
        self._nodes: dict[tuple[int, int], int] = {}
        # the last request that came by each node, and those whose full blocks end there until they are continued
        self._latest: dict[int, int] = {}
        self._open: dict[int, int] = {}

    def find(self, request: BlockRequest) -> tuple[int, int]:
        """The request that another goes on from, and how many tokens of its prompt and reply; ``(0, 0)`` for none."""
        node, count = 0, 0
        for block in request.blocks:
            below = self._nodes.get((node, block))
            if below is None:
                break
            node, count = below, count + 1
        place = self._open.get(node)
        if place is not None and count > self._common:
            length = self._requests[place].prompt + self._requests[place].reply
            if length <= request.prompt:
                # of several that follow, replies differ: their hashes would have said so
                del self._open[node]
                return place, length
        if not count:
            return 0, 0
        latest = self._latest[node]
        return latest, min(count * self._block, self._requests[latest].prompt, request.prompt)

    def add(self, number: int, request: BlockRequest) -> None:
        """Make a request one of the earlier ones."""
        node, full = 0, request.prompt // self._block
        for place, block in enumerate(request.blocks, 1):
            node = self._nodes.setdefault((node, block), len(self._nodes) + 1)
            self._latest[node] = number
            if place == full:
                self._open[node] = number


class _Tokens:
    """Tokens that are a request's own.

    Args:
        vocabulary: ids are below this.
    """

    def __init__(self, vocabulary: int) -> None:
        # millions of tokens share these
        self._ids = tuple(range(vocabulary))

    def own(self, request: int, start: int, end: int) -> tuple[int, ...]:
        """Tokens at positions ``start`` to ``end``; two requests within a vocabulary of each other share none."""
        vocabulary = len(self._ids)
        # what torch takes as a number has 63 bits
        mixed = torch.arange(start, end) * _ODD[0] + request // vocabulary * _ODD[1] % (1 << 63)
        mixed = (mixed ^ (mixed >> 29)) * _ODD[2]
        found = (mixed ^ (mixed >> 32)) % vocabulary + request
        return tuple(map(self._ids.__getitem__, (found % vocabulary).tolist()))
