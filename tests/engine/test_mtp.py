"""Drafts by the model's own head: the head is its definition on whatever way its rows came, and text is as without."""

from __future__ import annotations

from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdover.engine.engine import Engine
from holdover.engine.hf import loader
from holdover.engine.hf.mtp import with_head
from holdover.engine.memory import StateNeeds, plan_memory
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, HoldoverError, WeightsError
from holdover.store import KVPool
from tests.arch.table import VOCAB, build_model
from tests.cli.run import error_line, invoke
from tests.engine.harness import RTOL, Bench, _build, _unmodified, assert_greedy, failing, host_of, prompt_of
from tests.engine.heads import NaiveHead, attach, final_hidden, head_tensors, host_with_head
from tests.engine.test_loader import save_tokenizer
from tests.helpers import assert_close

SMALL = "small-qwen3_5"
ROWS = ["qwen3_5", "qwen3_5_moe", "qwen3_next_moe"]
_naive = cache(NaiveHead)


class Seen(NamedTuple):
    """What the head had of a running sequence after a step, or what it proposed in it."""

    tokens: tuple[int, ...]
    depth: int
    keys: torch.Tensor
    values: torch.Tensor
    hidden: torch.Tensor | None
    drafts: list[int]


class Watched(Bench):
    """An engine that drafts with a random head, and records what the head does."""

    def __init__(self, name: str, **options: Any) -> None:
        given = {"speculate": "mtp", "draft_tokens": 3, "host": host_with_head(name)}
        super().__init__(name, **{**given, **options})
        self.layer = self.cache.kv.layout.layers[-1].index
        self.seen: dict[str, list[Seen]] = {}
        self.drafter = self.core.speculator._proposer
        self._propose, self.drafter.propose = self.drafter.propose, self._record

    def step(self) -> None:
        super().step()
        for sequence in self.running():
            self._look(sequence, [])

    def _record(self, sequences, most):
        proposed = self._propose(sequences, most)
        for sequence, drafts in zip(sequences, proposed, strict=True):
            self._look(sequence, drafts)
        return proposed

    def _look(self, sequence, drafts) -> None:
        depth, ahead = sequence.computed, self.drafter._ahead.get(sequence)
        rows = sequence.place.rows[:depth]
        keys, values = (plane[rows.to(plane.device)].cpu() for plane in self.cache.kv.planes(self.layer))
        # in a prompt that is computed again the head has not come to the end yet
        hidden = ahead.hidden.cpu() if ahead is not None and sequence.remaining == 1 else None
        seen = Seen(tuple(sequence.tokens), depth, keys, values, hidden, drafts)
        self.seen.setdefault(sequence.request.id, []).append(seen)

    def assert_head(self, *, stale: dict[int, int] | None = None) -> None:
        """Fail unless all that was seen is what the naive head computes of the same tokens.

        Args:
            stale: by position, another next token that a row of a shared prefix was written for.
        """
        for request_id, output in self.outputs.items():
            tokens = (*output.prompt_token_ids, *output.token_ids)
            following = [(stale or {}).get(i, token) for i, token in enumerate(tokens[1:])]
            keys, values, hidden = _naive(self.name)(following, final_hidden(self.name, tokens)[:-1])
            for seen in self.seen[request_id]:
                depth = seen.depth
                assert tokens[: len(seen.tokens)] == seen.tokens
                assert_close("keys", seen.keys, keys[:depth], RTOL)
                assert_close("values", seen.values, values[:depth], RTOL)
                if seen.hidden is not None:
                    assert_close("hidden", seen.hidden, hidden[depth - 1], RTOL)
                self._assert_drafts(seen, following[:depth], final_hidden(self.name, tokens)[:depth], hidden[:depth])

    def _assert_drafts(self, seen: Seen, following: list[int], given: torch.Tensor, hidden: torch.Tensor) -> None:
        naive = _naive(self.name)
        for i, draft in enumerate(seen.drafts):
            if i:
                # the head's own hidden state stands for the model's at the draft before
                following, given = [*following, seen.drafts[i - 1]], torch.cat([given, hidden[-1:]])
                hidden = naive(following, given)[2]
            logits = naive.logits(hidden[-1])
            # another than the best only where the two are equal to rounding
            assert logits.max() - logits[draft] <= RTOL * logits.abs().max()

    @property
    def num_seen(self) -> tuple[int, int]:
        """Hidden states and drafts that there were."""
        every = list(chain.from_iterable(self.seen.values()))
        return sum(seen.hidden is not None for seen in every), sum(len(seen.drafts) for seen in every)


@pytest.mark.parametrize("name", ROWS)
def test_the_head_and_the_text_are_the_uncached_ones(name: str) -> None:
    """Prompts in chunks, sequences at different depths, and drafts that are nearly all rejected."""
    bench = Watched(name)
    for length, seed in ((37, 1), (5, 2), (16, 3)):
        bench.add(prompt_of(length, seed), 8)
    bench.run()
    bench.assert_all_greedy()
    bench.assert_head()
    hidden, drafts = bench.num_seen
    assert hidden >= 16
    assert drafts >= 3 * 16
    stats = bench.core.speculator.stats
    assert stats.drafted > stats.accepted
    bench.assert_empty()


def test_after_a_prefix_of_another_text() -> None:
    """A row at the end of a shared prefix is that of the token that followed it in the other text."""
    bench, prompt = Watched(SMALL), prompt_of(24, 4)
    first = bench.serve(prompt, 5, request={"checkpoint_at": (20,)})
    bench.assert_head()
    bench.outputs.clear()
    changed = (*prompt[:20], (prompt[20] + 1) % VOCAB, *prompt[21:])
    second = bench.serve(changed, 5)
    assert second.cache.state_depth == 20
    bench.assert_head(stale={19: prompt[20]})
    bench.outputs.clear()
    third = bench.serve((*first.prompt_token_ids, *first.token_ids, 7, 8), 5)
    assert third.cache.state_depth >= 28
    bench.assert_head()
    for output in (first, second, third):
        assert_greedy(SMALL, output)


def test_after_preemptions() -> None:
    bench = Watched(SMALL, rows=60, slots=6)
    for seed in range(3):
        bench.add(prompt_of(14 + seed, seed), 14)
    bench.run()
    assert bench.core.stats.preemptions
    bench.assert_all_greedy()
    bench.assert_head()
    bench.assert_empty()


@pytest.mark.parametrize("element", ["full", "int8"])
def test_rows_of_the_cache_are_whole(element: str) -> None:
    """What was never written is NaN here; every row that is handed to the cache has been."""
    bench = Watched(SMALL, element=element)
    for seed in range(3):
        bench.add(prompt_of(10 + 9 * seed, seed), 7, request={"checkpoint_at": (9,)})
    bench.add(prompt_of(9, 2), 1)
    bench.run()
    used = bench.cache.kv._is_used
    assert used.any()
    for layer in bench.cache.kv.layout.layers:
        for plane in bench.cache.kv.planes(layer.index):
            assert plane[used].isfinite().all()


def test_nothing_of_the_head_reaches_the_model() -> None:
    bench = Bench(SMALL, host=host_with_head(SMALL), speculate="mtp")
    bench.add(prompt_of(12, 1), 10)
    layer = bench.cache.kv.layout.layers[-1].index
    while bench.core.has_work:
        for plane in bench.cache.kv.planes(layer):
            plane.fill_(float("nan"))
        bench.step()
    bench.assert_all_greedy()
    assert bench.core.speculator.stats.drafted


def test_sampling_is_as_without_speculation() -> None:
    def run(bench: Bench) -> list[tuple[int, ...]]:
        ids = [bench.add(prompt_of(9, seed), 14, temperature=1.0, seed=seed, top_p=0.9) for seed in range(3)]
        bench.run()
        return [bench.outputs[request_id].token_ids for request_id in ids]

    assert run(Bench(SMALL, host=host_with_head(SMALL), speculate="mtp")) == run(Bench(SMALL))


def test_a_head_that_fails_ends_its_forward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Watched(SMALL)
    head = bench.host.head
    monkeypatch.setattr(head, "forward", failing(head.forward, 4, RuntimeError("no memory")))
    lost = bench.serve(prompt_of(10, 1), 9)
    assert (lost.finish_reason, str(lost.error)) == ("error", "no memory")
    bench.outputs.clear()
    bench.seen.clear()
    assert_greedy(SMALL, bench.serve(prompt_of(10, 1), 9))
    bench.assert_head()
    bench.assert_empty()


def counting_model() -> tuple[Any, dict[str, torch.Tensor]]:
    """A model that counts, token by token, and a head that knows it: hidden states hardly leave the embedding."""
    model: Any = build_model("qwen3_5")
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(100 * torch.nn.functional.normalize(torch.randn_like(embedding)))
        model.lm_head.weight.copy_(embedding.roll(1, 0) / 100)
        model.model.norm.weight.zero_()
    tensors = head_tensors(model.state_dict())
    tensors["fc.weight"] = torch.eye(64, 128)
    for name in ("norm", "pre_fc_norm_embedding"):
        tensors[f"{name}.weight"].zero_()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{name}.weight"].zero_()
    return model, tensors


@pytest.mark.parametrize("drafts", [1, 3])
def test_a_head_that_knows_the_model_is_accepted(drafts: int) -> None:
    bench = Bench("qwen3_5", host=attach(*counting_model()), speculate="mtp", draft_tokens=drafts)
    for start in (3, 50, 120):
        bench.add((start, (start + 1) % VOCAB), 21)
    bench.run()
    for output in bench.outputs.values():
        whole = (*output.prompt_token_ids, *output.token_ids)
        assert all((b - a) % VOCAB == 1 for a, b in pairwise(whole)), whole
    stats = bench.core.speculator.stats
    # of each text the first token comes of the prompt, then as many a step as there are drafts and one more
    assert stats.accepted == stats.drafted == 3 * drafts * 20 // (drafts + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ROWS)
def test_graphs_hand_out_hidden_states(name: str) -> None:
    host = attach(_build(name).cuda(), head_tensors(_unmodified(name).state_dict()))
    bench = Watched(name, host=host)
    for length, seed in ((37, 1), (5, 2), (16, 3)):
        bench.add(prompt_of(length, seed), 12)
    bench.run()
    assert bench.core.runner.decoder.stats.replays or not bench.core.runner.decoder._use_graphs
    bench.assert_all_greedy()
    bench.assert_head()


def test_memory_counts_the_head() -> None:
    host = host_with_head("qwen3_5")
    plain = host_of("qwen3_5").layout
    assert host.layout == with_head(plain)
    *stack, layer = host.layout.kv.layers
    assert (tuple(stack), layer.index) == (plain.kv.layers, plain.num_layers)
    assert host.layout.kv.bytes_per_token * len(stack) == plain.kv.bytes_per_token * (len(stack) + 1)
    budget = 1 << 20
    plans = [
        plan_memory(x, state_budget=budget, kv_budget=budget, free_bytes=0, max_context=99, needs=StateNeeds())
        for x in (plain, host.layout)
    ]
    assert plans[0].num_rows > 1.4 * plans[1].num_rows
    pool = KVPool(host.layout.kv, plans[1].num_rows)
    assert pool.nbytes == plans[1].kv_bytes <= budget


@pytest.fixture(scope="module", params=ROWS)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A row's checkpoint with a head, its experts one by one."""
    path = tmp_path_factory.mktemp("published")
    build_model(request.param).save_pretrained(path)
    save_tokenizer(path)
    tensors = load_file(path / "model.safetensors")
    write(path, {**tensors, **{f"mtp.{name}": x for name, x in head_tensors(tensors).items()}})
    return request.param, path


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def copy_to(source: Path, target: Path) -> dict[str, torch.Tensor]:
    """Copy a model; returns its tensors."""
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return load_file(source / "model.safetensors")


def test_a_published_head_is_served(published: tuple[str, Path]) -> None:
    name, path = published
    sizes = {"state_budget": 4 << 20, "kv_budget": 1 << 20}
    with Engine.from_pretrained(str(path), speculate="mtp", draft_tokens=2, poison=True, **sizes) as engine:
        outputs = engine.generate(
            [b"Hello there", b"you"], SamplingParams(max_tokens=6, logprobs=VOCAB, ignore_eos=True)
        )
        for output in outputs:
            assert_greedy(name, output)
        assert engine.core.speculator.stats.drafted >= 8
        assert len(engine.core.cache.kv.layout.layers) == 3
    # without being asked for it is not there
    with Engine.from_pretrained(str(path), **sizes) as engine:
        assert engine.loaded.host.head is None
        assert len(engine.core.cache.kv.layout.layers) == 2


@pytest.mark.parametrize("published", ["qwen3_next_moe"], indirect=True)
def test_both_forms_of_experts_are_one_head(published: tuple[str, Path]) -> None:
    name, path = published
    tensors = head_tensors(load_file(path / "model.safetensors"))
    experts = {key: tensors.pop(key) for key in list(tensors) if ".experts." in key}
    number = 1 + max(int(key.split(".")[4]) for key in experts)
    gate, up, down = (
        torch.stack([experts[f"layers.0.mlp.experts.{i}.{part}_proj.weight"] for i in range(number)])
        for part in ("gate", "up", "down")
    )
    fused = {
        **tensors,
        "layers.0.mlp.experts.gate_up_proj": torch.cat([gate, up], dim=1),
        "layers.0.mlp.experts.down_proj": down,
    }
    one, other = (attach(build_model(name), x).head._modules.state_dict() for x in ({**tensors, **experts}, fused))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def without_head(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    write(path, {name: x for name, x in tensors.items() if not name.startswith("mtp.")})


def other_architecture(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    build_model("bamba").save_pretrained(path)
    write(path, {**load_file(path / "model.safetensors"), "mtp.fc.weight": tensors["mtp.fc.weight"]})


def two_layers(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    more = {name.replace("layers.0", "layers.1"): x.clone() for name, x in tensors.items() if "mtp.layers.0" in name}
    write(path, {**tensors, **more})


def lacking(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["mtp.pre_fc_norm_hidden.weight"]
    write(path, tensors)


def misshapen(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    write(path, {**tensors, "mtp.fc.weight": torch.zeros(64, 64)})


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (without_head, ConfigError, r"\(qwen3_5\) has no MTP head .*use --speculate ngram"),
        (other_architecture, ConfigError, r"\(bamba\) has no MTP head .*use --speculate ngram"),
        (two_layers, WeightsError, r"none that can be run here .*layers\.1.*use --speculate ngram"),
        (lacking, WeightsError, r"none that can be run here .*pre_fc_norm_hidden.*use --speculate ngram"),
        (misshapen, WeightsError, r"none that can be run here .*fc\.weight.*use --speculate ngram"),
    ],
)
@pytest.mark.parametrize("published", ["qwen3_5"], indirect=True)
def test_a_head_that_cannot_be_had(
    published: tuple[str, Path],
    tmp_path: Path,
    spoil: Any,
    error: type[HoldoverError],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(tmp_path, copy_to(published[1], tmp_path))
    if error is ConfigError:
        monkeypatch.setattr(loader, "_load_weights", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(error, match=says):
        Engine.from_pretrained(str(tmp_path), speculate="mtp", state_budget=4 << 20, kv_budget=1 << 20)


def test_a_model_that_was_loaded_without() -> None:
    with pytest.raises(ConfigError, match="without an MTP head"):
        Bench(SMALL, speculate="mtp")


@pytest.mark.parametrize("published", ["qwen3_5"], indirect=True)
def test_the_flag(published: tuple[str, Path], tmp_path: Path) -> None:
    _, path = published
    sizes = ("--state-budget", "4MiB", "--kv-budget", "1MiB")
    help_text = invoke("serve", "--help", COLUMNS="200").stdout
    assert "off|ngram|mtp" in help_text
    without_head(tmp_path, copy_to(path, tmp_path))
    refused = invoke("serve", str(tmp_path), "--port", "0", "--speculate", "mtp", *sizes)
    assert refused.exit_code
    assert "has no MTP head" in error_line(refused.stderr)
