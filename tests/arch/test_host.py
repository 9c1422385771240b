"""Layouts against what the embedded host really allocates and names, on tiny random models."""

import json
from functools import cache

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from holdover.arch.registry import architecture_of, layout_from_config
from holdover.errors import WeightsError
from holdover.weights.read import read_tensors, tensor_names
from holdover.weights.source import resolve
from tests.arch.table import ARCHITECTURES, LONGEST_HORIZON, MAX_POSITIONS, SHORTEST_HORIZON, VOCAB, build_model

TOKENS = 7

pytestmark = pytest.mark.parametrize("name", ARCHITECTURES)


@cache
def model_of(name: str) -> PreTrainedModel:
    torch.set_num_threads(1)
    return build_model(name)


def layout_of(name: str):
    return layout_from_config(ARCHITECTURES[name]().to_dict(), dtype="float32")


@torch.no_grad()
def test_allocations(name: str) -> None:
    model, layout = model_of(name), layout_of(name)
    cache = DynamicCache(config=model.config)
    positions = torch.arange(TOKENS)[None]
    model(input_ids=positions % VOCAB, position_ids=positions, cache=cache, use_cache=True)

    assert len(cache.layers) == layout.num_layers == len(layout.state.layers) + len(layout.kv.layers)
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
        names = architecture.loaded_decay(layer.index)
        assert parameters[names.a_log].numel() == layer.heads
        assert parameters[names.dt_bias].numel() == layer.units
        for tensor in architecture.coupled_in("loaded"):
            parameter = parameters[f"model.layers.{layer.index}.{tensor.name}"]
            assert parameter.shape[tensor.axis] == tensor.length(layer), tensor.name


def test_every_parameter_with_a_head_axis_is_declared(name: str) -> None:
    """Parameters of a recurrent mixer that are not declared must not depend on the number of heads."""
    model, layout = model_of(name), layout_of(name)
    architecture = architecture_of(model.config.to_dict())
    layer = layout.state.layers[0]
    mixer = f"model.layers.{layer.index}.{architecture.loaded.a_log.split('.')[0]}."
    declared = {f"model.layers.{layer.index}.{tensor.name}" for tensor in architecture.coupled_in("loaded")}
    hidden = model.config.hidden_size
    for parameter, value in model.named_parameters():
        if parameter.startswith(mixer) and parameter not in declared:
            # projections to and norms of one head's width
            assert set(value.shape) <= {hidden, layer.d_v}, parameter


def test_names_in_published_files(name: str, tmp_path) -> None:
    model, layout = model_of(name), layout_of(name)
    model.save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    assert layout_from_config(files.config, dtype="float32").state == layout.state
    architecture = architecture_of(files.config)
    available = tensor_names(files)
    for layer in layout.state.layers:
        names = architecture.published_decay(layer.index, available)
        tensors = read_tensors(files, [names.a_log, names.dt_bias])
        loaded = architecture.loaded_decay(layer.index)
        torch.testing.assert_close(tensors[names.a_log], model.get_parameter(loaded.a_log).data)
        torch.testing.assert_close(tensors[names.dt_bias], model.get_parameter(loaded.dt_bias).data)
        prefix = f"model.layers.{layer.index}."
        coupled = read_tensors(files, [prefix + tensor.name for tensor in architecture.coupled_in("published")])
        for tensor in architecture.coupled_in("published"):
            assert coupled[prefix + tensor.name].shape[tensor.axis] == tensor.length(layer), tensor.name
    with pytest.raises(WeightsError, match=r"no decay parameters of layer 99 .* model\.layers\.99\."):
        architecture.published_decay(99, available)


def test_names_are_found_where_files_hold_the_loaded_form(name: str) -> None:
    architecture = architecture_of(ARCHITECTURES[name]().to_dict())
    native = architecture.loaded_decay(3)
    assert architecture.published_decay(3, {native.a_log, native.dt_bias}) == native
    wrapped = architecture.published.under(architecture.prefixes[0].format(i=3))
    assert architecture.published_decay(3, {wrapped.a_log, wrapped.dt_bias}) == wrapped


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
    architecture = architecture_of(model.config.to_dict())
    for layer in layout.state.layers:
        names = architecture.loaded_decay(layer.index)
        amplitude = model.get_parameter(names.a_log).detach().flatten().exp()
        bias = model.get_parameter(names.dt_bias).detach()
        rate = amplitude.repeat_interleave(bias.numel() // amplitude.numel()) * torch.nn.functional.softplus(bias)
        horizons = 1 / rate
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
