"""Layouts against what the embedded host really allocates and names, on tiny random models."""

import json
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer

from holdover.arch.architecture import Architecture, CoupledTensor
from holdover.arch.registry import architecture_of, gate_from_config, layout_from_config
from holdover.errors import PlanError, WeightsError
from holdover.retention.horizon import static_horizons
from holdover.weights.read import read_tensors, tensor_names
from holdover.weights.source import resolve
from tests.arch.table import ARCHITECTURES, LONGEST_HORIZON, MAX_POSITIONS, SHORTEST_HORIZON, VOCAB, build_model

TOKENS = 7

pytestmark = pytest.mark.parametrize("name", ARCHITECTURES)


@cache
def model_of(name: str) -> PreTrainedModel:
    torch.set_num_threads(1)
    return build_model(name)


def coupled_of(architecture: Architecture, form: str, available) -> list[CoupledTensor]:
    """What is declared, without what this model does without."""
    if not architecture.coupled:
        with pytest.raises(PlanError, match=f"{architecture.name} .* not declared"):
            architecture.coupled_in(form)
        return []
    return [tensor for tensor in architecture.coupled_in(form) if not tensor.optional or tensor.name in available]


def layout_of(name: str):
    return layout_from_config(ARCHITECTURES[name]().to_dict(), dtype="float32")


@torch.no_grad()
def test_allocations(name: str) -> None:
    model, layout = model_of(name), layout_of(name)
    cache = DynamicCache(config=model.config)
    positions = torch.arange(TOKENS)[None]
    model(input_ids=positions % VOCAB, position_ids=positions, cache=cache, use_cache=True)

    assert len(cache.layers) == layout.num_layers
    # an MLP in a layer of its own holds nothing
    empty = {i for i, layer in enumerate(cache.layers) if isinstance(layer, DummyLayer)}
    held = {layer.index for layer in (*layout.state.layers, *layout.kv.layers)}
    assert held == set(range(layout.num_layers)) - empty
    for layer in layout.state.layers:
        held = cache.layers[layer.index]
        state = held.recurrent_states[0]
        # the host keeps Mamba-2 as [H, d_v, d_k]
        state = state.transpose(-1, -2) if layer.family == "mamba2" else state
        assert state.shape == (1, layer.heads, layer.d_k, layer.d_v)
        assert state.dtype == torch.float32
        # the host keeps one input more than the convolution needs
        conv = held.conv_states[0].transpose(1, 2)[:, 1:]
        assert conv.shape == (1, layer.conv_width - 1, layer.conv_channels)
    assert sum(layer.temporal_numel for layer in layout.state.layers) * 4 == layout.state.temporal_bytes
    for layer in layout.kv.layers:
        held = cache.layers[layer.index]
        assert held.keys.shape == (1, layer.heads, TOKENS, layer.d_k)
        assert held.values.shape == (1, layer.heads, TOKENS, layer.d_v)
    numel = sum(cache.layers[i.index].keys.numel() + cache.layers[i.index].values.numel() for i in layout.kv.layers)
    assert numel * 4 == layout.kv.bytes_per_token * TOKENS


def test_sizes(name: str) -> None:
    layout = layout_of(name)
    assert (layout.vocab_size, layout.max_context) == (VOCAB, MAX_POSITIONS)
    assert (layout.state.conv_dtype, layout.kv.dtype) == ("float32", "float32")


def test_rotary_is_what_the_host_rotates(name: str) -> None:
    model, layout = model_of(name), layout_of(name)
    rotary = getattr(model.model, "rotary_emb", None)
    for layer in layout.kv.layers:
        if rotary is None:
            assert layer.rotary is None
        else:
            assert layer.rotary is not None
            assert layer.rotary.dims == 2 * rotary.inv_freq.numel()
            steps = torch.arange(0, layer.rotary.dims, 2) / layer.rotary.dims
            torch.testing.assert_close(rotary.inv_freq, layer.rotary.base**-steps)


def test_names_in_the_loaded_module(name: str) -> None:
    model, layout = model_of(name), layout_of(name)
    architecture = architecture_of(model.config.to_dict())
    parameters = dict(model.named_parameters())
    for layer in layout.state.layers:
        prefix = architecture.prefix(layer.index, parameters, "loaded")
        names = architecture.loaded.under(prefix)
        assert parameters[names.a_log].numel() == layer.heads
        assert parameters[names.dt_bias].numel() == layer.units
        below = {key.removeprefix(prefix) for key in parameters if key.startswith(prefix)}
        for tensor in coupled_of(architecture, "loaded", below):
            assert parameters[prefix + tensor.name].shape[tensor.axis] == tensor.length(layer), tensor.name


def test_every_parameter_with_a_head_axis_is_declared(name: str) -> None:
    """Parameters of a recurrent mixer that are not declared must not depend on the number of heads."""
    model, layout = model_of(name), layout_of(name)
    architecture = architecture_of(model.config.to_dict())
    layer, parameters = layout.state.layers[0], dict(model.named_parameters())
    prefix = architecture.prefix(layer.index, parameters, "loaded")
    mixer = f"{prefix}{architecture.loaded.a_log.split('.')[0]}."
    below = {key.removeprefix(prefix): value for key, value in parameters.items() if key.startswith(mixer)}
    declared = {tensor.name for tensor in coupled_of(architecture, "loaded", below)}
    hidden = model.config.hidden_size
    for key, value in below.items():
        if declared and key not in declared:
            # projections to and norms of one head's width
            assert set(value.shape) <= {hidden, layer.d_v}, key


def test_names_in_published_files(name: str, tmp_path) -> None:
    model, layout = model_of(name), layout_of(name)
    model.save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    assert layout_from_config(files.config, dtype="float32").state == layout.state
    architecture = architecture_of(files.config)
    available, parameters = tensor_names(files), dict(model.named_parameters())
    for layer in layout.state.layers:
        names = architecture.published_decay(layer.index, available)
        tensors = read_tensors(files, [names.a_log, names.dt_bias])
        loaded = architecture.loaded.under(architecture.prefix(layer.index, parameters, "loaded"))
        torch.testing.assert_close(tensors[names.a_log], parameters[loaded.a_log].data)
        torch.testing.assert_close(tensors[names.dt_bias], parameters[loaded.dt_bias].data)
        prefix = architecture.prefix(layer.index, available, "published")
        below = {key.removeprefix(prefix) for key in available if key.startswith(prefix)}
        declared = coupled_of(architecture, "published", below)
        coupled = read_tensors(files, [prefix + tensor.name for tensor in declared])
        for tensor in declared:
            assert coupled[prefix + tensor.name].shape[tensor.axis] == tensor.length(layer), tensor.name
    with pytest.raises(WeightsError, match=r"no decay parameters of layer 99 .* model\.layers\.99\."):
        architecture.published_decay(99, available)
    with pytest.raises(WeightsError, match="for layer 99"):
        architecture.prefix(99, available, "published")


def test_names_are_found_where_files_hold_the_loaded_form(name: str) -> None:
    architecture = architecture_of(ARCHITECTURES[name]().to_dict())
    for form in (architecture.loaded, architecture.published):
        for template in architecture.prefixes:
            names = form.under(template.format(i=3))
            assert architecture.published_decay(3, set(names.present())) == names


def test_saved_config_is_plain_json(name: str, tmp_path) -> None:
    config = ARCHITECTURES[name]()
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert layout_from_config(saved, dtype="float32") == layout_of(name)


def test_the_table_is_random_and_repeatable(name: str) -> None:
    model, again, other = model_of(name), build_model(name), build_model(name, seed=1)
    assert not model.training
    for (key, value), same in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(value, same), key
        assert value.dtype == torch.float32
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)


def test_horizons_of_the_table_are_spread(name: str) -> None:
    model, layout = model_of(name), layout_of(name)
    config, parameters = model.config.to_dict(), dict(model.named_parameters())
    architecture = architecture_of(config)
    # step limits cut the longest off
    gate = replace(gate_from_config(config), dt_min=0.0)
    for layer in layout.state.layers:
        names = architecture.loaded.under(architecture.prefix(layer.index, parameters, "loaded"))
        decay = parameters[names.a_log].data, parameters[names.dt_bias].data
        horizons = static_horizons(*decay, layer, gate, gate_input=0.0, epsilon=math.exp(-1))
        assert horizons.min() == pytest.approx(SHORTEST_HORIZON, rel=1e-2)
        assert horizons.max() == pytest.approx(LONGEST_HORIZON, rel=1e-2)


@torch.no_grad()
def test_the_host_resumes_models_of_the_table(name: str) -> None:
    """A split prefill equals a whole one, and logits are not degenerate: engine tests rest on both."""
    model = model_of(name)
    tokens = torch.randint(VOCAB, (1, 40), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(40)[None]
    whole = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens[:, :25], position_ids=positions[:, :25], cache=cache)
    rest = model(input_ids=tokens[:, 25:], position_ids=positions[:, 25:], cache=cache).logits
    torch.testing.assert_close(rest, whole[:, 25:], atol=1e-3, rtol=1e-4)
    assert 0.5 < whole.std() < 10
