"""Permuting all that is coupled to heads changes no output; leaving anything out does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from holdover.arch.architecture import Architecture
from holdover.arch.layout import RecurrentLayer
from holdover.arch.registry import architecture_of, layout_from_config
from holdover.errors import PlanError
from holdover.retention.coupled import bundle_size, permute_coupled
from tests.arch.table import ARCHITECTURES, VOCAB, build_model
from tests.helpers import assert_close

TOKENS = torch.arange(40)[None] * 7 % VOCAB
RTOL = 1e-4
NAMES = (
    *("qwen3_5", "qwen3_next_moe", "olmo_hybrid", "kimi_linear", "bailing_hybrid_moe"),
    *("granite_hybrid", "granite_hybrid, one group", "bamba", "nemotron_h_moe", "falcon_h1"),
)


def build(name: str) -> PreTrainedModel:
    """A tiny model of Transformers' in which no parameter's entries are equal."""
    row, _, group = name.partition(", ")
    config = ARCHITECTURES[row]()
    if group:
        config.mamba_n_groups = 1
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(ARCHITECTURES, name, lambda: config)
        model = build_model(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


@cache
def example(name: str) -> tuple[PreTrainedModel, Architecture, tuple[RecurrentLayer, ...]]:
    model = build(name)
    config = model.config.to_dict()
    return model, architecture_of(config), layout_from_config(config, dtype="float32").state.layers


def parameters_of(model: PreTrainedModel, layer: RecurrentLayer) -> dict[str, Tensor]:
    prefix = f"model.layers.{layer.index}."
    named = model.named_parameters()
    return {name.removeprefix(prefix): tensor.data for name, tensor in named if name.startswith(prefix)}


def shuffled(layer: RecurrentLayer, shift: int) -> Tensor:
    """All heads, their bundles in another order."""
    bundles = torch.arange(layer.heads).view(-1, bundle_size(layer))
    return bundles.roll(1 + shift % (len(bundles) - 1), dims=0).flatten()


def permuted_layers(
    name: str, layers: tuple[RecurrentLayer, ...]
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Parameters of each layer, in place and permuted."""
    model, architecture, _ = example(name)
    for layer in layers:
        own = parameters_of(model, layer)
        yield own, permute_coupled(own, architecture, layer, shuffled(layer, layer.index), form="loaded")


@pytest.fixture(autouse=True)
def unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives the shared model its own parameters back."""
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    kept = None if name is None else {key: tensor.clone() for key, tensor in example(name)[0].state_dict().items()}
    yield
    if name is not None:
        example(name)[0].load_state_dict(kept)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_permuted_model_is_the_same_model(name: str) -> None:
    model, _, layers = example(name)
    before = model(TOKENS).logits
    for own, permuted in permuted_layers(name, layers):
        assert own.keys() == permuted.keys()
        for key, tensor in own.items():
            tensor.copy_(permuted[key])
    assert_close("logits", model(TOKENS).logits, before, RTOL)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_nothing_can_be_left_out(name: str) -> None:
    model, architecture, layers = example(name)
    before = model(TOKENS).logits
    ((own, permuted),) = permuted_layers(name, layers[:1])
    original = {key: tensor.clone() for key, tensor in own.items()}
    left_out = [coupled.name for coupled in architecture.coupled_in("loaded") if coupled.name in own]
    assert left_out
    for missing in left_out:
        for key, tensor in own.items():
            tensor.copy_(original[key] if key == missing else permuted[key])
        error = (model(TOKENS).logits - before).norm() / before.norm()
        assert error > 3 * RTOL, missing


@pytest.mark.parametrize("name", ["kimi_linear"])
def test_published_names(name: str) -> None:
    """Published and loaded tensors of one layer come out alike."""
    model, architecture, (layer, *_) = example(name)
    loaded = parameters_of(model, layer)
    renamed = {key.replace("forget_gate.", ""): tensor for key, tensor in loaded.items()}
    conv = renamed.pop("self_attn.conv1d.weight").chunk(3)
    published = renamed | {f"self_attn.{part}_conv1d.weight": conv["qkv".index(part)] for part in "qkv"}
    heads = shuffled(layer, 0)
    got = permute_coupled(published, architecture, layer, heads, form="published")
    wanted = permute_coupled(loaded, architecture, layer, heads, form="loaded")
    joined = torch.cat([got[f"self_attn.{part}_conv1d.weight"] for part in "qkv"])
    assert torch.equal(joined, wanted["self_attn.conv1d.weight"])
    for key in ("A_log", "dt_bias", "f_b_proj.weight"):
        assert torch.equal(got[f"self_attn.{key}"], wanted[f"self_attn.forget_gate.{key}"])


@pytest.mark.parametrize("name", NAMES)
def test_shards_are_parts_of_the_permutation(name: str) -> None:
    model, architecture, (layer, *_) = example(name)
    own, heads = parameters_of(model, layer), shuffled(layer, 1)
    whole = permute_coupled(own, architecture, layer, heads, form="loaded")
    shards = [permute_coupled(own, architecture, layer, part, form="loaded") for part in heads.chunk(2)]
    plain = [x for x in architecture.coupled_in("loaded") if x.name in own and not x.by_key_head]
    for coupled in plain:
        parts = whole[coupled.name].split([s.size(layer) for s in coupled.segments], dim=coupled.axis)
        for rank, shard in enumerate(shards):
            halves = [
                part if layer.key_heads == 1 and segment.role == "key" else part.chunk(2, dim=coupled.axis)[rank]
                for part, segment in zip(parts, coupled.segments, strict=True)
            ]
            assert torch.equal(shard[coupled.name], torch.cat(halves, dim=coupled.axis)), coupled.name


def test_a_key_head_is_copied_to_every_rank_that_has_a_head_of_its_bundle() -> None:
    model, architecture, (layer, *_) = example("qwen3_5")
    own = parameters_of(model, layer)
    shards = [
        permute_coupled(own, architecture, layer, torch.tensor([head]), form="loaded") for head in range(layer.heads)
    ]
    keys = layer.d_k * 2
    first, second, third, _ = (shard["linear_attn.in_proj_qkv.weight"][:keys] for shard in shards)
    assert torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 1, 2], [0, 1, 2, 3, 0, 1]])
def test_torn_bundles_are_refused(order: list[int]) -> None:
    model, architecture, (layer, *_) = example("qwen3_5")
    with pytest.raises(PlanError, match="tears apart the 2 heads"):
        permute_coupled(parameters_of(model, layer), architecture, layer, torch.tensor(order), form="loaded")


def test_missing_and_packed_parameters_are_refused() -> None:
    model, architecture, (layer, *_) = example("granite_hybrid")
    own, heads = parameters_of(model, layer), shuffled(layer, 0)
    packed = own | {"mamba.out_proj.weight": own["mamba.out_proj.weight"][:, ::2]}
    with pytest.raises(PlanError, match=r"out_proj.weight is \[64, 64\]; wanted 128 entries along axis 1"):
        permute_coupled(packed, architecture, layer, heads, form="loaded")
    with pytest.raises(PlanError, match=r"mamba.D is missing"):
        permute_coupled({k: v for k, v in own.items() if k != "mamba.D"}, architecture, layer, heads, form="loaded")
    without_bias = {key: tensor for key, tensor in own.items() if key != "mamba.conv1d.bias"}
    assert permute_coupled(without_bias, architecture, layer, heads, form="loaded").keys() == without_bias.keys()
