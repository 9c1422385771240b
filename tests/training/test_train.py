"""The trainer and its batches, on data made here."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from tests.training import MODEL
from training.batches import ANSWER, MIXTURE, NONE, PROMPT, TEXT, WINDOWS, Builder, window
from training.export import export
from training.forwards import FORWARDS
from training.score import holdover_engine, transformers_engine
from training.tasks import CHATS, NOISE
from training.train import Options, Trainer, optimizer_for, schedule, span_accuracy


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder in the trainer's form: random text tokens, plain sentences, the bundled tokenizer."""
    root = tmp_path_factory.mktemp("data")
    (root / "tokens").mkdir()
    np.random.default_rng(0).integers(3, 4096, 20_000).astype(np.uint16).tofile(root / "tokens" / "train.bin")
    for name in ("train", "held_out"):
        (root / "tokens" / f"filler_{name}.txt").write_text("\n".join(NOISE))
    row = {"text": "The mill stands near the river.", "pairs": [["Where does the mill stand?", "near the river"]]}
    (root / "tokens" / "questions.jsonl").write_text(json.dumps(row) + "\n")
    (root / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL / name, root / "tokenizer" / name)
    return root


@pytest.fixture(scope="module")
def builder(data):
    return Builder(data, seed=0)


def options(out, data, **more):
    return Options(out, data, size="micro", steps=4, tokens=256, **more)


def test_batches_are_functions_of_their_number(builder):
    a, b, c = (builder.training(number, 2048, {512: 1.0}) for number in (3, 3, 4))
    assert np.array_equal(a.ids, b.ids)
    assert np.array_equal(a.kinds, b.kinds)
    assert not np.array_equal(a.ids, c.ids)
    assert a.length == 512
    assert (a.kinds.reshape(-1, 512)[:, -1] == NONE).all()
    assert {TEXT, PROMPT, ANSWER} <= set(a.kinds.tolist())


def test_answer_kinds_mark_the_answers(builder):
    batch = builder.validation(0, 2048)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for ids, kinds in zip(batch.ids.reshape(-1, batch.length), batch.kinds.reshape(-1, batch.length), strict=True):
        at = np.flatnonzero(kinds == ANSWER) + 1
        answer = tokenizer.decode(ids[at])
        assert answer.endswith("<|im_end|>")
        assert tokenizer.decode(ids).split("<|im_start|>assistant\n")[-1].startswith(answer)


def test_a_row_is_exact_only_if_every_answer_token_is_right():
    kinds = np.array([[PROMPT, ANSWER, ANSWER], [NONE, ANSWER, ANSWER]])
    right = np.array([[False, True, True], [True, True, False]])
    assert span_accuracy(right, kinds).tolist() == [True, False]


def test_a_resumed_run_is_bit_identical(data, builder, tmp_path):
    torch.set_num_threads(1)
    batches = [builder.training(number, 256, {256: 1.0}) for number in range(4)]
    whole = Trainer(options(tmp_path / "whole", data))
    for batch in batches:
        whole.train_step(batch)
    half = Trainer(options(tmp_path / "halves", data))
    for batch in batches[:2]:
        half.train_step(batch)
    half.save()
    rest = Trainer(options(tmp_path / "halves", data, resume=True))
    assert rest.step == 2
    for batch in batches[2:]:
        rest.train_step(batch)
    for (name, a), b in zip(whole.model.state_dict().items(), rest.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("architecture", FORWARDS)
def test_a_saved_run_exports_to_a_loadable_model(data, tmp_path, architecture):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    trainer = Trainer(Options(tmp_path / "run", data, architecture, size="micro", steps=1))
    trainer.save()
    export(tmp_path / "run", tmp_path / "model", tokenizer_at=MODEL)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor.bfloat16().float(), loaded.state_dict()[name]), name


@pytest.mark.parametrize("architecture", FORWARDS)
def test_losses_fall(data, builder, tmp_path, architecture):
    torch.manual_seed(0)
    trainer = Trainer(Options(tmp_path, data, architecture, size="micro", steps=100, rate=0.2, window_share=1.0))
    batch = builder.training(0, 256, {256: 1.0})
    losses = [trainer.train_step(batch)[0].mean().item() for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("architecture", FORWARDS)
def test_an_exported_model_runs_in_the_engine_as_in_transformers(data, builder, tmp_path, architecture):
    trainer = Trainer(Options(tmp_path / "run", data, architecture, size="micro", steps=1))
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter *= 4.0 if parameter.ndim == 2 else 1.0  # so that random answers vary
    trainer.save()
    export(tmp_path / "run", tmp_path / "model", tokenizer_at=MODEL)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = builder.training(0, 256, {256: 1.0}).ids
    prompts = [ids[:70].tolist(), ids[100:141].tolist()]
    expected, found = (
        [engine(tmp_path / "model", tokenizer, "cpu")([prompt], 10)[0] for prompt in prompts]
        for engine in (transformers_engine, holdover_engine)
    )
    assert found == expected
    assert len({token for answer in found for token in answer}) > 4


def test_a_run_goes_on_from_the_small_files_alone(data, builder, tmp_path):
    first = Trainer(options(tmp_path / "first", data, copy=tmp_path / "copy"))
    first.train_step(builder.training(0, 256, {256: 1.0}))
    first.seconds = 1.5
    first.save()
    assert {file.name for file in (tmp_path / "copy").iterdir()} == {"weights.safetensors", "log.jsonl", "config.json"}
    second = Trainer(options(tmp_path / "copy", data, resume=True))
    assert (second.step, second.fresh, second.seconds) == (1, 1, 1.5)
    for (name, a), b in zip(first.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a.bfloat16().float(), b), name
    assert len((tmp_path / "copy" / "log.jsonl").read_text().splitlines()) == 1


def test_a_run_that_goes_on_otherwise_says_so_in_its_log(data, builder, tmp_path):
    first = Trainer(options(tmp_path, data))
    first.train_step(builder.training(0, 256, {256: 1.0}))
    first.save()
    Trainer(options(tmp_path, data, resume=True))
    Trainer(options(tmp_path, data, resume=True, lengths={512: 1.0}, mixture={"recall": 70}))
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    recipes = [row["recipe"] for row in rows if "recipe" in row]
    assert [recipe["mixture"]["recall"] for recipe in recipes] == [MIXTURE["recall"], 70]
    assert recipes[1]["curriculum"] == [[1, {"512": 1.0}]]
    assert recipes[1]["mixture"]["needle"] == MIXTURE["needle"]


def test_tasks_are_drawn_by_the_mixture(data):
    alone = Builder(data, 0, dict.fromkeys(MIXTURE, 0) | {"chat": 1})
    told = [answer for _, answers in CHATS for answer in answers]
    for seed in range(4):
        ids, _ = alone._conversation(random.Random(seed), 400)
        assert any(answer in alone.tokenizer.decode(ids) for answer in told)


def test_windows_are_functions_of_the_batch():
    found = [window(0, number, 512, 0.5) for number in range(400)]
    assert found == [window(0, number, 512, 0.5) for number in range(400)]
    assert set(found) == {*WINDOWS, 512}
    assert 150 < found.count(512) < 250
    assert {window(0, number, 128, 1.0) for number in range(50)} == {64, 128}


def test_the_rate_rises_and_falls():
    assert schedule(0, 0.0) < 0.01
    assert schedule(1000, 0.3) == 1.0
    assert schedule(1000, 1.0) == pytest.approx(0.01)


def test_decays_and_norms_get_no_weight_decay(data, tmp_path):
    model = Trainer(options(tmp_path, data)).model
    free = {
        id(p) for group in optimizer_for(model, 1e-3).param_groups if not group["weight_decay"] for p in group["params"]
    }
    names = {name for name, parameter in model.named_parameters() if id(parameter) in free}
    assert all(
        name in names for name, _ in model.named_parameters() if any(x in name for x in ("norm", "A_log", "dt_bias"))
    )
    assert not any("proj" in name for name in names)
