"""Write fresh recall problems for ``holdover eval --protocol warm-replay``.

    python -m training.problems assets/models/tiny-gdn recall.jsonl --prompts 100 --tasks recall,needle,multikey

The prompts are those of ``score.py`` with the same seed; an answer is right if it is exactly the one wanted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

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
    options = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.model_max_length = 1 << 30  # contexts are cut to length here, after being measured
    tasks = tuple(task for task in options.tasks if task != "multiturn")  # one question each
    found = cases(tokenizer, options.prompts, options.seed, options.data, options.lengths, tasks)
    with options.output.open("w", encoding="utf-8") as file:
        for number, case in enumerate(found):
            *messages, answer = case.messages
            row = {
                "id": f"{case.task}-{case.length}-{number}",
                "task": case.task,
                "messages": messages,
                "answers": [answer["content"]],
                "max_tokens": len(tokenizer.encode(answer["content"])) + 2,
            }
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
