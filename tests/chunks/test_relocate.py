from __future__ import annotations

import pytest
import torch

from holdover.arch.layout import AttentionLayer, KVLayout, Rotary
from holdover.chunks import Assembly, Chunk, ChunkEntry, Extras, Text, layer_frequencies, relocate
from holdover.errors import ConfigError
from holdover.ops.rotary import rerotate
from holdover.store import KVPool

PARTIAL, WHOLE = Rotary(4, 1e4), Rotary(6, 1e6)
LAYOUT = KVLayout(
    (
        AttentionLayer(0, "heads", 2, 8, 3, 4, PARTIAL),
        AttentionLayer(1, "heads", 1, 5, 5, 2, None),
        AttentionLayer(2, "latent", 1, 7, 6, 4, WHOLE),
        AttentionLayer(3, "latent", 1, 7, 6, 4, None),
    ),
    "float32",
)


def unrotated(layer: AttentionLayer, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a token's row holds before rotation."""
    g = torch.Generator().manual_seed(layer.index)
    first, second = (torch.randn(50, layer.heads, width, generator=g) for width in (layer.d_k, layer.d_v))
    return first[tokens], second[tokens]


def rows_at(layer: AttentionLayer, tokens: list[int], start: int, turn: torch.Tensor | None) -> list[torch.Tensor]:
    """Both planes of tokens that stand from ``start`` on."""
    planes = list(unrotated(layer, tokens))
    if turn is not None:
        plane = 1 if layer.kind == "latent" else 0
        place = torch.arange(start, start + len(tokens))
        planes[plane] = rerotate(planes[plane].double(), torch.zeros_like(place), place, turn).float()
    return planes


def entry_of(kv: KVPool, tokens: list[int], turns: dict[int, torch.Tensor]) -> ChunkEntry:
    rows = kv.allocate(len(tokens))
    for layer in LAYOUT.layers:
        kv.write(layer.index, rows, *rows_at(layer, tokens, 0, turns.get(layer.index)))
    # neither its state nor its key is read
    return ChunkEntry(tuple(tokens), None, rows, None, Extras())  # type: ignore[arg-type]


@pytest.mark.parametrize("selected", [[], [5, 6, 12], None])
def test_rows_are_those_of_their_place(selected) -> None:
    kv = KVPool(LAYOUT, 60, poison=True)
    turns = layer_frequencies(LAYOUT, kv.device)
    assert set(turns) == {0, 2}
    a, b = [3, 1, 4, 1], [9, 2, 6, 5, 3]
    context = [Chunk(tuple(a)), Text((7,)), Chunk(tuple(b)), Chunk(tuple(a))]
    assembly = Assembly.of(context, [8])
    entries = [entry_of(kv, tokens, turns) for tokens in (a, b)]
    entries.append(entries[0])
    before = {layer.index: [p.clone() for p in kv.planes(layer.index)] for layer in LAYOUT.layers}
    rows = kv.allocate(20)[torch.randperm(20)][: len(assembly.tokens)]
    copies = assembly.copies if selected is None else assembly.repair(selected).copies
    relocate(kv, entries, copies, rows, turns)

    kept = {p for copy in copies for p in range(copy.target, copy.target + copy.length)}
    for layer in LAYOUT.layers:
        planes = kv.planes(layer.index)
        for position, token in enumerate(assembly.tokens):
            for plane, wanted in zip(planes, rows_at(layer, [token], position, turns.get(layer.index)), strict=True):
                got = plane[rows[position]]
                assert torch.allclose(got, wanted[0], atol=1e-5) if position in kept else got.isnan().all()
        # the first chunk has not moved: every bit of it is the same; and no other row was touched
        untouched = torch.ones(len(planes[0]), dtype=torch.bool)
        untouched[rows] = False
        for plane, was in zip(planes, before[layer.index], strict=True):
            assert torch.equal(plane[untouched].nan_to_num(7), was[untouched].nan_to_num(7))
            still = [p for p in range(4) if p in kept]
            assert torch.equal(plane[rows[still]], plane[entries[0].rows[still]])


def test_nothing_to_copy() -> None:
    kv = KVPool(LAYOUT, 10, poison=True)
    relocate(kv, [], (), torch.arange(1, 5), {})
    assert all(plane[1:].isnan().all() for layer in LAYOUT.layers for plane in kv.planes(layer.index))


def test_a_model_whose_keys_cannot_be_moved_is_refused() -> None:
    layout = KVLayout((AttentionLayer(0, "heads", 1, 4, 4, 1, Rotary(4, 1e4, "dynamic")),))
    with pytest.raises(ConfigError, match="dynamic"):
        layer_frequencies(layout, torch.device("cpu"))
