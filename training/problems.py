"""Write fresh recall problems for ``holdover eval --protocol warm-replay``, or over chunks for ``--protocol composed``.

    python -m training.problems assets/models/tiny-gdn recall.jsonl --prompts 100 --tasks recall,needle,multikey
    python -m training.problems assets/models/tiny-gdn chunked.jsonl --prompts 100 --chunks 4 --tokens 128

The prompts are those of ``score.py`` with the same seed; an answer is right if it is exactly the one wanted. Over
chunks, they are documents of key-value records, which ``holdover eval`` also draws by itself, and a question about one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.score import LENGTHS, RECALL, _tasks, cases


def main() -> None:
    parser = argparse.ArgumentParser(description="Write recall problems, a JSON object a line.")
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompts", type=int, default=100, help="per task, spread over the lengths")
    parser.add_argument("--lengths", type=lambda s: tuple(map(int, s.split(","))), default=LENGTHS)
    parser.add_argument("--tasks", type=_tasks, default=RECALL, help="comma-separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--chunks", type=int, help="documents of each problem, each a chunk of its own")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of each of them")
    options = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.model_max_length = 1 << 30  # contexts are cut to length here, after being measured
    rows = _conversations(tokenizer, options) if options.chunks is None else _chunked(tokenizer, options)
    with options.output.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _conversations(tokenizer: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tasks = tuple(task for task in options.tasks if task != "multiturn")  # one question each
    found = cases(tokenizer, options.prompts, options.seed, options.data, options.lengths, tasks)
    for number, case in enumerate(found):
        *messages, answer = case.messages
        yield {
            "id": f"{case.task}-{case.length}-{number}",
            "task": case.task,
            "messages": messages,
            "answers": [answer["content"]],
            "max_tokens": len(tokenizer.encode(answer["content"])) + 2,
        }


def _chunked(tokenizer: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from holdover.evaluation.chunks.recall import questions

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    sizes = {"chunks": options.chunks, "tokens": options.tokens}
    for number, one in enumerate(questions(encode, options.prompts, **sizes, seed=options.seed)):
        texts = {"chunks": one.documents, "question": one.asks, "answers": [one.answer]}
        yield {"id": f"recall-{number}", "task": "recall", **texts}


if __name__ == "__main__":
    main()
