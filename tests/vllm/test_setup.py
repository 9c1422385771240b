"""What the connector and deferred decode refuse before anything is allocated."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from holdover.errors import ConfigError
from holdover.integrations.vllm import plugin
from holdover.integrations.vllm.connector.groups import CacheGroups
from holdover.integrations.vllm.connector.setup import Setup
from holdover.integrations.vllm.decode.models import MODELS
from holdover.integrations.vllm.decode.pages import PageLayout
from holdover.integrations.vllm.decode.setup import interval_of
from holdover.ops.deferred.family import GDN


def parallel(**changes: Any) -> Any:
    sizes = {"world_size": 1, "tensor_parallel_size": 1, "decode_context_parallel_size": 1, "nnodes": 1}
    return SimpleNamespace(**sizes | {"use_ubatching": False} | changes)


def config(**changes: Any) -> Any:
    fields = {
        "additional_config": {"holdover": {"host_budget": 1}},
        "kv_transfer_config": SimpleNamespace(kv_load_failure_policy="recompute", kv_role="kv_both"),
        "parallel_config": parallel(),
        "speculative_config": None,
        "cache_config": SimpleNamespace(enable_prefix_caching=True),
        "model_config": SimpleNamespace(revision=None),
    }
    return SimpleNamespace(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"additional_config": {}}, "needs its settings"),
        (
            {"kv_transfer_config": SimpleNamespace(kv_load_failure_policy="fail", kv_role="kv_both")},
            "kv_load_failure_policy",
        ),
        (
            {"kv_transfer_config": SimpleNamespace(kv_load_failure_policy="recompute", kv_role="kv_consumer")},
            "kv_consumer",
        ),
        ({"parallel_config": parallel(world_size=2)}, "--tensor-parallel-size"),
        (
            {"parallel_config": parallel(world_size=2, tensor_parallel_size=2, decode_context_parallel_size=2)},
            "context parallelism",
        ),
        ({"parallel_config": parallel(world_size=2, tensor_parallel_size=2, nnodes=2)}, "one machine"),
        ({"speculative_config": object()}, "speculative"),
        ({"cache_config": SimpleNamespace(enable_prefix_caching=False)}, "--enable-prefix-caching"),
        ({"model_config": SimpleNamespace(revision="main")}, "revision"),
    ],
)
def test_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Setup.of(config(**changes), None)


@pytest.mark.parametrize("version", [(0, 25, 3), (0, 26, 0), (0, 31, 1)])
def test_an_old_vllm_is_refused_before_anything_of_the_connector_is_imported(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    plugin.register()
    monkeypatch.setattr("vllm.__version_tuple__", version)
    # such a release lacks what the module imports
    monkeypatch.setitem(sys.modules, "holdover.integrations.vllm.connector.connector", None)
    with pytest.raises(ConfigError, match="too old for the tier"):
        KVConnectorFactory.get_connector_class_by_name(plugin.CONNECTOR)


def caches(state: Any, rows: Any) -> Any:
    groups = [
        SimpleNamespace(layer_names=["model.layers.1.self_attn.attn"], kv_cache_spec=rows),
        SimpleNamespace(layer_names=["model.layers.0.linear_attn"], kv_cache_spec=state),
    ]
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=8)


def state_spec(block_size: int = 16, mode: str = "align") -> MambaSpec:
    dtypes = (torch.bfloat16, torch.float32)
    return MambaSpec(block_size=block_size, shapes=((3, 8), (2, 4, 4)), dtypes=dtypes, mamba_cache_mode=mode)


ROWS = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}


def test_groups_are_read_in_stack_order() -> None:
    groups = CacheGroups.of(caches(state_spec(), FullAttentionSpec(**ROWS)))
    assert [(layer.index, layer.group) for layer in groups.recurrent] == [(0, 1)]
    assert [(layer.index, layer.group) for layer in groups.attention] == [(1, 0)]
    assert (groups.recurrent_groups, groups.attention_groups, groups.block_size, groups.num_blocks) == ({1}, {0}, 16, 8)


@pytest.mark.parametrize(
    ("state", "rows", "message"),
    [
        (state_spec(mode="none"), FullAttentionSpec(**ROWS), "--mamba-cache-mode align"),
        (state_spec(block_size=32), FullAttentionSpec(**ROWS), "blocks of .16, 32. tokens"),
        (state_spec(), SlidingWindowSpec(**ROWS, sliding_window=32), "neither full attention"),
        (FullAttentionSpec(**ROWS), FullAttentionSpec(**ROWS), "no recurrent layer"),
    ],
)
def test_caches_are_refused(state: Any, rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheGroups.of(caches(state, rows))


def test_the_plugin_may_be_loaded_again() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    plugin.register()
    plugin.register()
    assert KVConnectorFactory.get_connector_class_by_name(plugin.CONNECTOR).__name__ == plugin.CONNECTOR


def cached(**changes: Any) -> Any:
    fields = {"mamba_cache_mode": "align", "use_replayssm": False, "prefix_match_unit": None}
    return SimpleNamespace(**fields | changes)


def decoding(**changes: Any) -> Any:
    fields = {
        "additional_config": {"holdover": {"decode": {"interval": 8}}},
        "kv_transfer_config": None,
        "parallel_config": parallel(),
        "speculative_config": None,
        "cache_config": cached(),
    }
    return SimpleNamespace(**fields | changes)


def test_deferred_decode_is_asked_for_or_not() -> None:
    assert interval_of(decoding()) == 8
    assert interval_of(decoding(parallel_config=parallel(world_size=2, tensor_parallel_size=2))) == 8
    assert interval_of(decoding(cache_config=cached(prefix_match_unit=32))) == 8
    # what is refused where it is asked for is nobody's business where it is not
    assert interval_of(decoding(additional_config={}, speculative_config=object())) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_config": object()}, "drafts"),
        ({"parallel_config": parallel(world_size=2)}, "tensor parallelism alone"),
        ({"parallel_config": parallel(use_ubatching=True)}, "dual batch overlap"),
        ({"cache_config": cached(mamba_cache_mode="all")}, "--mamba-cache-mode align"),
        ({"cache_config": cached(use_replayssm=True)}, "--use-replayssm"),
        ({"cache_config": cached(prefix_match_unit=20)}, "--prefix-match-unit"),
        ({"additional_config": {"holdover": {"decode": {"interval": 1}}}}, "wanted 2 to 64"),
        ({"additional_config": {"holdover": {"host_budget": 1}}}, "set up and not put in"),
    ],
)
def test_deferred_decode_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        interval_of(decoding(**changes))


@pytest.mark.parametrize("version", [(0, 25, 3), (0, 27, 0), (0, 31, 1)])
def test_deferred_decode_refuses_an_old_vllm(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version_tuple__", version)
    with pytest.raises(ConfigError, match="too old"):
        interval_of(decoding())


def test_an_old_vllm_may_decode_but_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version_tuple__", (0, 26, 0))
    assert interval_of(decoding()) == 8
    with pytest.raises(ConfigError, match="--kv-transfer-config"):
        interval_of(decoding(kv_transfer_config=object()))


@pytest.mark.parametrize(
    ("temporal", "dtype", "message"),
    [((2, 16, 24), torch.float32, "power of two"), ((2, 16, 16), torch.float16, "want fp32 or bf16")],
)
def test_a_state_that_cannot_have_a_log_is_refused(temporal: Any, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PageLayout.of(GDN, ((3, 96), temporal), (torch.bfloat16, dtype), torch.bfloat16, 8)


def test_tensors_of_a_page_do_not_overlap_and_the_states_come_first() -> None:
    page = PageLayout.of(GDN, ((3, 96), (2, 16, 16)), (torch.bfloat16, torch.float32), torch.bfloat16, 4)
    size = 2 * 3 * 96 + 4 * 2 * 16 * 16 + page.log.slot_bytes
    pages = torch.zeros(3, size + 64, dtype=torch.int8)
    states, log = page.split(page.views(pages))
    assert page.log.key_heads == 2
    for tensor in (*states, log.keys, log.values, log.decays, log.scales):
        assert not tensor.any()
        tensor[1].view(torch.int8).fill_(-1)
    assert (pages[1, :size] == -1).all()
    assert not pages[1, size:].any()
    assert not pages[[0, 2]].any()


def test_every_model_is_known_to_vllm() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    plugin.register()
    assert {ModelRegistry.models[name].module_name for name in MODELS} == {"holdover.integrations.vllm.decode.models"}
