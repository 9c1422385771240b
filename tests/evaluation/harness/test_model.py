"""The harness itself on a tiny model, where lm-eval is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.journal import Journal
from holdover.evaluation.residency import replayable
from tests.server import tiny

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from holdover.evaluation.harness.answers import Asker
from holdover.evaluation.harness.model import HarnessModel, sampling
from holdover.evaluation.harness.run import run, seed
from holdover.evaluation.harness.tasks import Tasks, check_lengths, default_length

CHOICE = """\
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(load(str(folder)), replayable(EngineOptions(max_running=4))) as engine:
        yield engine


def model_of(engine: Engine, chat: bool = False) -> HarnessModel:
    return HarnessModel(engine, Asker(engine, Journal(None, {})), chat=chat)


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


def test_the_parts_of_a_text_are_as_likely_as_the_whole(engine: Engine) -> None:
    model, text = model_of(engine), "the cat sat on the mat"
    (whole,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
    ((alone, _),) = model.loglikelihood(requests("loglikelihood", ("", text)))
    assert alone == pytest.approx(whole, rel=1e-4)
    (begun, _), (ended, _) = model.loglikelihood(
        requests("loglikelihood", ("", "the cat sat"), ("the cat sat", " on the mat"))
    )
    assert ended < 0
    assert begun < 0


def test_texts_longer_than_the_context_are_scored_in_windows(engine: Engine) -> None:
    model, text = model_of(engine), "the cat sat on the mat and the dog " * 200
    tokens = model.tok_encode(text, add_special_tokens=False)
    assert len(tokens) > tiny.CONTEXT
    (whole,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
    assert whole / len(tokens) < -1


def test_generation_stops_where_a_task_says(engine: Engine) -> None:
    model = model_of(engine)
    (free,) = model.generate_until(requests("generate_until", ("the cat", {"until": [], "max_gen_toks": 8})))
    assert free
    stop = free[len(free) // 2]
    (cut,) = model.generate_until(requests("generate_until", ("the cat", {"until": stop, "max_gen_toks": 8})))
    assert cut == free[: free.index(stop)]


def test_generation_options() -> None:
    assert sampling({}, 5) == SamplingParams(max_tokens=256, temperature=0.0, top_p=1.0, top_k=0)
    options = {"temperature": 0.7, "top_p": 0.9, "top_k": 3, "until": ["\n", ""], "max_gen_toks": 9}
    wanted = SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9, top_k=3, seed=5, stop=("\n",))
    assert sampling(options, 5) == wanted
    assert sampling(options | {"do_sample": False}, 5).temperature == 0.0
    assert sampling({"do_sample": True}, 5).temperature == 1.0


def test_an_answer_that_was_begun_follows_the_templates_prompt(engine: Engine) -> None:
    model, asked = model_of(engine, chat=True), [{"role": "user", "content": "the cat"}]
    prompt = model.apply_chat_template(asked)
    assert model.apply_chat_template([*asked, {"role": "assistant", "content": "it is"}], False) == prompt + "it is"
    assert model.tok_encode(prompt) == engine.loaded.tokenizer.render(asked)


def test_tasks_of_ones_own_by_name(engine: Engine, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"question": f"the cat {i}", "answer": 0, "choices": ["sat", "dog"]} for i in range(3)]
    data.write_text("\n".join(map(json.dumps, rows)))
    more = 'doc_to_choice: "{{choices}}"\nmetric_list: [{metric: acc}]'
    yaml = CHOICE.format(task="cats", data=data, kind="multiple_choice", more=more)
    (tmp_path / "cats.yaml").write_text(yaml)
    tasks = Tasks(folder, tmp_path, defaults=False)
    seed()
    rows_found = run(model_of(engine), tasks.load(["cats"]), limit=2, length=None, chat=False)
    assert [(row.task, row.metric, row.count) for row in rows_found] == [("cats", "acc", 2)]
    assert 0 <= rows_found[0].value <= 1
    with pytest.raises(ConfigError, match="there is no task cat; did you mean cats"):
        tasks.check(["cat"])
    data.unlink()
    with pytest.raises(ConfigError, match="the data of cats cannot be had"):
        Tasks(folder, tmp_path, defaults=False).load(["cats"])


def test_what_cannot_be_asked_is_refused(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "which words are common?", "answer": "", "outputs": []}))
    yaml = CHOICE.format(task="ruler_cwe", data=data, kind="generate_until", more="")
    (tmp_path / "cwe.yaml").write_text(yaml)
    (tmp_path / "broken.yaml").write_text(yaml.replace("ruler_cwe", "broken").replace("test_split: test", ""))
    tasks = Tasks(folder, tmp_path, defaults=False)
    # beside a task that is none of RULER's, names are looked up among one's own
    with pytest.raises(ConfigError, match="ruler_cwe cannot be generated with 1024 tokens of this model: choose long"):
        tasks.load(["ruler_cwe", "broken"], 1024)
    with pytest.raises(ConfigError, match=r"^broken cannot be loaded \("):
        tasks.load(["broken"])


def test_lengths_that_fit() -> None:
    assert (default_length(131072), default_length(4096), default_length(1280)) == (4096, 2048, 1024)
    with pytest.raises(ConfigError, match="a context of 1280 tokens or more"):
        default_length(1279)
    with pytest.raises(ConfigError, match="cannot be generated with 512 tokens"):
        check_lengths([512], 4096)
    with pytest.raises(ConfigError, match="choose --lengths up to 3840"):
        check_lengths([1024, 4096], 4096)
