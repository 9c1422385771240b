from __future__ import annotations

from dataclasses import replace

from holdover.chunks import Assembly, Chunk, ChunkOptions, Text, composed_namespace, composition_salt
from holdover.chunks.key import chunk_namespace
from holdover.state.key import chain_of
from tests.state import build as states
from tests.store import build as kvs


def test_everything_that_matters_is_in_the_namespace() -> None:
    base = (b"model", states.ONE, kvs.ONE, ChunkOptions())
    others = [
        (b"modek", *base[1:]),
        (b"model", states.UNIFORM, *base[2:]),
        (b"model", replace(states.ONE, conv_dtype="bfloat16"), *base[2:]),
        (b"model", states.ONE, kvs.MIXED, base[3]),
        (b"model", states.ONE, replace(kvs.ONE, dtype="bfloat16"), base[3]),
        *((*base[:3], ChunkOptions(**{name: True})) for name in ("transitions", "bodies", "inputs")),
    ]
    names = [chunk_namespace(*parts) for parts in (base, *others)]
    assert len(set(names)) == len(names)
    assert chunk_namespace(*base) == names[0]


def test_a_chunk_is_no_prefix() -> None:
    """The same tokens as a prefix and as a chunk never stand for each other, nor do compositions for either."""
    tokens = (1, 2, 3)
    inner = chunk_namespace(b"model", states.ONE, kvs.ONE, ChunkOptions())
    keys = {chain_of(n, tokens).key() for n in (b"model", inner, composed_namespace(b"model", "00"))}
    assert len(keys) == 3


def test_no_two_parts_run_together() -> None:
    assert composed_namespace(b"ab", "c") != composed_namespace(b"a", "bc")


def test_the_salt_says_how_it_was_composed() -> None:
    assembly = Assembly.of([Chunk((1, 2, 3)), Text((4,)), Chunk((5, 6))], [7])
    base = composition_salt(assembly.repair([1]), "last", "stream")
    others = [
        composition_salt(assembly.repair([2]), "last", "stream"),
        composition_salt(assembly.repair([]), "last", "stream"),
        composition_salt(assembly.repair([1]), "random(1)", "stream"),
        composition_salt(assembly.repair([1]), "last", "true"),
        # the same tokens, cut elsewhere
        composition_salt(Assembly.of([Chunk((1, 2)), Text((3, 4)), Chunk((5, 6))], [7]).repair([1]), "last", "stream"),
    ]
    assert len({base, *others}) == 1 + len(others)
    # whatever the query is, and what the tokens are: those are in the keys
    again = Assembly.of([Chunk((9, 9, 9)), Text((4,)), Chunk((5, 6))], [8, 8])
    assert composition_salt(again.repair([1]), "last", "stream") == base
