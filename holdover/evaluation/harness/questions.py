"""RULER's questions over documents, generated from the files of a package instead of the network's.

They are the files that RULER's own script fetches: the development sets of SQuAD 2.0 and of HotpotQA with distractors
(Hsieh et al., 2024, App. B). Prompts are the harness's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.ruler import qa_utils
from lm_eval.tasks.ruler.common_utils import DEFAULT_SEQ_LENGTHS, get_tokenizer, resolve_tokenizer_name

from holdover.evaluation import passages

Questions = list[dict[str, Any]]
Generated = dict[str, Any]


def squad(**metadata: Any) -> Generated:
    """Data of ``ruler_qa_squad``, as the harness calls for them: with the ``metadata`` of its task manager."""
    return _generate(*squad_questions(passages.read("squad")), metadata)


def hotpotqa(**metadata: Any) -> Generated:
    """Data of ``ruler_qa_hotpot``, likewise."""
    return _generate(*hotpotqa_questions(passages.read("hotpotqa")), metadata)


DATA: Mapping[str, Callable[..., Generated]] = {"ruler_qa_squad": squad, "ruler_qa_hotpot": hotpotqa}


def config(entry: Any) -> dict[str, Any]:
    """One of these tasks as the harness's index has it, but for its data."""
    return {**load_yaml(entry.yaml_path), "custom_dataset": DATA[entry.name]}


def squad_questions(data: Any) -> tuple[Questions, list[str]]:
    """Answerable questions with places of their own and their article's other documents, and all documents."""
    documents = sorted({paragraph["context"] for article in data["data"] for paragraph in article["paragraphs"]})
    places = {document: place for place, document in enumerate(documents)}
    asked = []
    for article in data["data"]:
        of_article = [places[paragraph["context"]] for paragraph in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            own = places[paragraph["context"]]
            asked += [
                {
                    "query": one["question"],
                    "outputs": [answer["text"] for answer in one["answers"]],
                    "context": [own],
                    "more_context": [place for place in of_article if place != own],
                }
                for one in paragraph["qas"]
                if one["answers"]
            ]
    return asked, documents


def hotpotqa_questions(data: Any) -> tuple[Questions, list[str]]:
    """Questions with places of their ten documents, and all documents."""
    texts = [[f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]] for entry in data]
    documents = sorted({document for own in texts for document in own})
    places = {document: place for place, document in enumerate(documents)}
    asked = [
        {
            "query": entry["question"],
            "outputs": [entry["answer"]],
            "context": [places[document] for document in own],
        }
        for entry, own in zip(data, texts, strict=True)
    ]
    return asked, documents


def _generate(asked: Questions, documents: list[str], metadata: Mapping[str, Any]) -> Generated:
    tokenizer = get_tokenizer(resolve_tokenizer_name(dict(metadata)))
    rows = [
        row
        for length in metadata.get("max_seq_lengths", DEFAULT_SEQ_LENGTHS)
        for row in qa_utils.get_dataset(tokenizer, documents, asked, length)
    ]
    return {"test": Dataset.from_list(rows, split="test")}
