"""The engine on a GPU: graphs, logs and drafts against an uncached run of the same tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from holdover.arch.registry import layout_from_config
from holdover.engine.build import build_core
from holdover.engine.core import EngineCore
from holdover.engine.hf.host import HostModel
from holdover.engine.options import EngineOptions
from holdover.engine.prepare import Preparer
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingDefaults, SamplingParams
from tests.arch.table import ARCHITECTURES, VOCAB, build_model
from tests.engine.harness import Bytes, assert_greedy, budgets, prompt_of

pytestmark = pytest.mark.gpu

MODES: dict[str, dict[str, Any]] = {
    "dense": {"decode": "dense"},
    "deferred": {"decode": "deferred", "merge_interval": 3},
    "auto": {},
    "ngram": {"speculate": "ngram", "draft_tokens": 2, "merge_interval": 5},
    "no graphs": {"decode": "deferred", "merge_interval": 4, "cuda_graphs": False},
}
# a period that prompt lookup finds
LOOP = prompt_of(5, seed=9) * 4


@cache
def host_of(name: str) -> HostModel:
    model: Any = build_model(name)
    return HostModel(model.cuda(), layout_from_config(model.config.to_dict(), dtype="float32"))


def engine_of(name: str, **options: Any) -> tuple[EngineCore, Preparer]:
    host = host_of(name)
    sizes = budgets(host.layout, 40, 3000)
    given = {"dtype": "float32", "chunk_size": 16, "max_running": 8, "poison": True, "max_context": 400}
    core, context = build_core(host, EngineOptions(**{**sizes, **given, **options}))
    prepare = Preparer(
        Bytes(),
        digest=name,
        defaults=SamplingDefaults(),
        end_tokens=frozenset(),
        max_context=context,
        vocab_size=VOCAB,
    )
    return core, prepare


def serve(core: EngineCore, prepare: Preparer, prompts: list[tuple[int, ...]], tokens: int) -> list[Output]:
    sequences = [prepare.sequence(p, SamplingParams(max_tokens=tokens, logprobs=VOCAB)) for p in prompts]
    for sequence in sequences:
        core.add(sequence)
    outputs = {}
    while core.has_work:
        for update in core.step():
            if update.output is not None:
                outputs[update.request_id] = update.output
        core.check_integrity()
        check_mirror(core)
    return [outputs[sequence.request.id] for sequence in sequences]


def check_mirror(core: EngineCore) -> None:
    pool = core.cache.tiers.native.pool
    if (log := pool.deferred) is not None:
        assert log.cursor.length.tolist() == [log.length(slot) for slot in range(pool.num_slots + 1)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_output_equals_an_uncached_run(name: str, mode: str) -> None:
    try:
        core, prepare = engine_of(name, **MODES[mode])
    except (ImportError, AttributeError) as error:
        pytest.skip(f"this Transformers lacks it: {error}")
    prompts = [prompt_of(length, seed=i) + LOOP for i, length in enumerate((1, 9, 30, 4, 17))]
    outputs = serve(core, prepare, prompts, 24)
    longer = outputs[2].prompt_token_ids + outputs[2].token_ids + prompt_of(3, seed=5)
    resumed = serve(core, prepare, [longer], 6)
    assert resumed[0].cache.state_depth == len(longer) - 4
    for output in [*outputs, *resumed]:
        assert_greedy(name, output)
    decoder = core.runner.decoder
    assert decoder is not None
    stats = decoder.stats
    assert sum(stats.forwards.values()) > 10
    if mode not in ("no graphs", "dense"):
        assert stats.mixed or mode == "auto"
    if "moe" not in name and mode != "no graphs":
        assert stats.replays == sum(stats.forwards.values())
