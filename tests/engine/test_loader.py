"""From files to a running model; whatever is wrong with them is one clear error, before anything slow is done."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from holdover.engine.engine import Engine
from holdover.engine.hf import loader
from holdover.engine.hf.loader import load
from holdover.engine.hf.mixers import MIXERS, check_runnable
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, HoldoverError, RequestError, UnsupportedArchitectureError, WeightsError
from tests.arch.table import ARCHITECTURES, VOCAB, build_model
from tests.engine.harness import assert_greedy, host_of

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}\n{% endfor %}a"


def save_tokenizer(path: Path) -> None:
    """ASCII bytes, with two special tokens among them."""
    vocab = {chr(i) if 33 <= i < 127 else chr(256 + i): i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=chr(256))
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_model("qwen3_5").save_pretrained(path)
    save_tokenizer(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if weights are read."""
    monkeypatch.setattr(loader, "_load_weights", lambda *_: pytest.fail("weights were read"))


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_saved_model_runs_as_before_it_was_saved(name: str, tmp_path: Path) -> None:
    build_model(name).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    engine = Engine.from_pretrained(str(tmp_path), state_budget=4 << 20, kv_budget=1 << 20, poison=True)
    output = engine.generate("Hello there", SamplingParams(max_tokens=5, logprobs=VOCAB, ignore_eos=True))
    assert output.prompt_token_ids == tuple(b"Hello there")
    assert_greedy(name, output)


def test_a_whole_conversation(saved: Path) -> None:
    engine = Engine.from_pretrained(str(saved), state_budget=4 << 20, kv_budget=1 << 20)
    messages = [{"role": "user", "content": "hi"}]
    first = engine.chat(messages, SamplingParams(max_tokens=4))
    assert first.prompt_token_ids == tuple(b"uhi\na")
    reply = [{"role": "assistant", "content": "never said"}, {"role": "user", "content": "oh"}]
    second = engine.chat([*messages, *reply], SamplingParams(max_tokens=4))
    assert second.cache.state_depth == 5
    assert_greedy("qwen3_5", second, logprobs=False)


def test_what_is_loaded(saved: Path) -> None:
    loaded = load(str(saved), dtype="bfloat16", device="cpu")
    assert next(loaded.host.model.parameters()).dtype == torch.bfloat16
    assert (loaded.host.layout.kv.dtype, loaded.host.layout.state.temporal_dtype) == ("bfloat16", "float32")
    assert loaded.digest != load(str(saved)).digest
    assert loaded.tokenizer.end_tokens == frozenset([0])
    assert loaded.tokenizer.decode([104, 0, 105]) == "hi"


@pytest.mark.parametrize(
    ("generation", "defaults", "end"),
    [
        ({}, (0.0, 1.0, 0, 0.0), {0}),
        ({"do_sample": False, "eos_token_id": 7}, (0.0, 1.0, 0, 0.0), {7}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "eos_token_id": [3, 4]},
            (0.6, 0.95, 20, 0.1),
            {3, 4},
        ),
    ],
)
def test_generation_defaults(folder: Path, generation: dict, defaults: tuple, end: set[int]) -> None:
    (folder / "generation_config.json").write_text(json.dumps(generation))
    loaded = load(str(folder))
    got = loaded.defaults
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == defaults
    assert loaded.end_tokens == end


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def drop_tensor(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.linear_attn.A_log"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def reshape_tensor(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = torch.zeros(3)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_text(text) and None


def remove(*names: str) -> Callable[[Path], None]:
    return lambda path: [(path / name).unlink() for name in names] and None


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (remove("model.safetensors"), WeightsError, "no weights"),
        (truncate, WeightsError, "truncated"),
        (drop_tensor, WeightsError, r"lacks 1 tensors.*A_log"),
        (reshape_tensor, WeightsError, "could not be loaded"),
        (remove("config.json"), WeightsError, "no config.json"),
        (write("config.json", "{"), ConfigError, "not valid JSON"),
        (remove("tokenizer.json", "tokenizer_config.json"), WeightsError, "no usable tokenizer"),
        (write("tokenizer.json", "{}"), WeightsError, "no usable tokenizer"),
        (write("tokenizer.json", "not json"), WeightsError, "no usable tokenizer"),
        (write("generation_config.json", "{"), ConfigError, "generation_config.json is not valid"),
        (write("generation_config.json", "[1]"), ConfigError, "generation_config.json is not valid"),
    ],
)
def test_spoilt_files(folder: Path, spoil: Callable, error: type[HoldoverError], says: str) -> None:
    spoil(folder)
    with pytest.raises(error, match=says) as caught:
        load(str(folder))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is not one of auto, float32"),
        ({"device": "abacus"}, "not a torch device"),
        ({"device": "meta"}, "cannot be used"),
        ({"device": "mps"}, "cannot be used"),
        ({"device": "cuda:99"}, "no GPU|cannot be used"),
    ],
)
def test_dtypes_and_devices(saved: Path, options: dict, says: str, no_weights) -> None:
    with pytest.raises(ConfigError, match=says):
        load(str(saved), **options)


def test_what_is_small_is_checked_before_the_weights(folder: Path, no_weights) -> None:
    remove("tokenizer.json", "tokenizer_config.json")(folder)
    with pytest.raises(WeightsError, match="tokenizer"):
        load(str(folder))


def test_a_model_that_does_not_fit(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(ConfigError, match="does not fit on cpu: out of memory"):
        load(str(saved))


def test_a_gate_that_no_mixer_computes(folder: Path, no_weights) -> None:
    """Its layout is known; run with the wrong gate it would be silently wrong."""
    config = ARCHITECTURES["kimi_linear"]().to_dict()
    linear = {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
    (folder / "config.json").write_text(json.dumps(config | {"linear_attn_config": linear}))
    with pytest.raises(UnsupportedArchitectureError, match="kimi_linear with a bounded decay gate"):
        load(str(folder))


def test_an_architecture_that_no_mixer_computes() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="toy can be inspected"):
        check_runnable(host_of("toy").layout)


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"model_type": "jamba"}, {"model_type": "no_such"}, {}])
def test_unsupported_models(folder: Path, config: dict, no_weights) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedArchitectureError):
        load(str(folder))


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_linear", "granite_hybrid"])
def test_a_layout_that_is_not_the_model(name: str) -> None:
    """Recurrent layers that the configuration does not name."""
    layout = host_of(name).layout
    fewer = replace(layout, state=replace(layout.state, layers=layout.state.layers[:-1]))
    with pytest.raises(UnsupportedArchitectureError, match=r"recurrent layers \[0, 1, 3\], .* has \[0, 1, 3, 4\]"):
        loader.HostModel(build_model(name), fewer)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_has_a_mixer(name: str) -> None:
    check_runnable(host_of(name).layout)
    classes = {type(module).__name__ for module in host_of(name).model.modules()}
    assert len(classes & MIXERS.keys()) == 1


def test_text_that_is_no_text(saved: Path) -> None:
    tokenizer = load(str(saved)).tokenizer
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.encode("\ud800")
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.render([{"role": "user", "content": "\ud800"}])
    # an error in the template's own program
    with pytest.raises(RequestError, match="refuses these messages"):
        tokenizer.render([{"content": "x"}])


def test_a_tokenizer_used_by_several_threads(saved: Path) -> None:
    """Requests are tokenised on callers' threads while the engine's decodes."""
    tokenizer, errors = load(str(saved)).tokenizer, []

    def work(i: int) -> None:
        try:
            for _ in range(200):
                assert tokenizer.decode(tokenizer.encode("some text" * i)) == "some text" * i
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_loading_is_quiet(saved: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load(str(saved))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert capfd.readouterr().out == ""
