import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.state import KeyChain
from holdover.state.key import KEY_BYTES, chain_of

TOKENS = st.lists(st.integers(-1, 2**40), max_size=12)


@given(TOKENS, st.data())
def test_key_depends_on_the_tokens_and_not_on_how_they_arrive(tokens, data):
    cut = data.draw(st.integers(0, len(tokens)))
    chain = KeyChain(b"model")
    chain.extend(tokens[:cut])
    chain.extend(tokens[cut:])
    assert chain.depth == len(tokens)
    assert chain.key() == chain_of(b"model", tokens).key()
    assert len(chain.key()) == KEY_BYTES


@given(TOKENS, TOKENS)
def test_different_tokens_have_different_keys(ours, theirs):
    assert (chain_of(b"", ours).key() == chain_of(b"", theirs).key()) == (ours == theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((b"a", []), (b"b", [])),
        ((b"a", [1]), (b"b", [1])),
        ((b"", [0]), (b"\0", [0])),
        ((b"a", [0]), (b"a", [0, 0])),
        ((b"a", [1, 256]), (b"a", [256, 1])),
        ((b"a", [257]), (b"a", [1, 1])),
    ],
    ids=["empty", "tenant", "nul", "repeat", "order", "width"],
)
def test_near_misses_have_different_keys(ours, theirs):
    assert chain_of(*ours).key() != chain_of(*theirs).key()


def test_asking_for_the_key_does_not_end_the_chain():
    chain = KeyChain(b"model")
    chain.extend([1])
    assert chain.key() == chain.key()
    chain.extend([2])
    assert chain.key() == chain_of(b"model", [1, 2]).key()


def test_a_copy_is_independent():
    chain = KeyChain(b"model")
    chain.extend([1])
    twin = chain.copy()
    twin.extend([2])
    assert (chain.depth, chain.key()) == (1, chain_of(b"model", [1]).key())
    assert (twin.depth, twin.key()) == (2, chain_of(b"model", [1, 2]).key())


@pytest.mark.parametrize("tokens", [[1, "2"], [1, None], [1, 2.0], [1, 2**63]])
def test_a_chain_that_refuses_tokens_takes_none(tokens):
    chain = KeyChain(b"model")
    with pytest.raises((TypeError, OverflowError)):
        chain.extend(tokens)
    assert (chain.depth, chain.key()) == (0, chain_of(b"model", []).key())
