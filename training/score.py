"""Score a model on fresh recall tasks: greedy answers, exact match, by task and prompt length.

    python training/score.py assets/models/tiny-gdn --prompts 500
    python training/score.py assets/models/tiny-gdn --prompts 500 --json scores.json --seed 7 --device cuda

Prompts come from ``tasks.py`` with a seed that training never uses, and from sentences that it never saw where
``training/data`` exists (otherwise from the plain sentences in ``tasks.NOISE``).  Recall is scored by default;
``--tasks all`` adds the rest.  ``multiturn`` asks four questions
about one context in successive turns, the model's own answers standing in the history; all four must be right.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: this folder's module names must not hide installed packages
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from training.tasks import NOISE, SCORED, Message, Sample, Sampler
from training.tokenizer import render

LENGTHS = (256, 512, 1024, 2048, 4096)
SHARES = (0.4, 0.3, 0.16, 0.1, 0.04)  # of a task's prompts; the longest cost most time
TASKS = (*SCORED, "multiturn")
RECALL = ("recall", "needle", "multikey")  # what is scored unless other tasks are asked for
TURNS = 4
Generate = Callable[[list[list[int]], int], list[list[int]]]  # (prompts, new tokens) -> answers, as token ids


@dataclass
class Case:
    """One conversation to score: ``messages`` hold the right answers."""

    task: str
    length: int
    messages: list[Message]

    @property
    def answers(self) -> list[str]:
        return [m["content"] for m in self.messages if m["role"] == "assistant"]


def sampler_for(tokenizer: Any, data: Path | None) -> Sampler:
    """A sampler over held-out sentences, or over the plain ones when there is no data."""
    path = data / "tokens" / "filler_held_out.txt" if data else None
    filler = path.read_text("utf-8").split("\n") if path and path.exists() else list(NOISE)
    return Sampler(filler, lambda text: len(tokenizer.encode(text, add_special_tokens=False)))


def fit(make: Callable[[int], Sample], tokenizer: Any, length: int, rng: random.Random) -> Sample:
    """A sample whose rendered conversation has at most ``length`` tokens; the context fills 75 % or more of it."""
    budget = length * rng.uniform(0.78, 0.97) - 30
    while True:
        sample = make(int(budget))
        if len(tokenizer.encode(render(sample.messages), add_special_tokens=False)) <= length:
            return sample
        budget *= 0.93


def cases(
    tokenizer: Any,
    prompts: int,
    seed: int,
    data: Path | None,
    lengths: tuple[int, ...] = LENGTHS,
    tasks: tuple[str, ...] = TASKS,
) -> list[Case]:
    """``prompts`` questions for every task, spread over the lengths; no case depends on which others are made."""
    sampler = sampler_for(tokenizer, data)
    out = []
    for task in tasks:
        for length, share in zip(LENGTHS, SHARES, strict=True):
            rng = random.Random(f"score-{seed}-{task}-{length}")
            questions = prompts * share if length in lengths else 0
            for _ in range(round(questions / (TURNS if task == "multiturn" else 1))):
                turns = TURNS if task == "multiturn" else 1
                kind = rng.choice(("recall", "multikey")) if task == "multiturn" else task

                def make(budget: int, kind: str = kind, turns: int = turns, rng: random.Random = rng) -> Sample:
                    return sampler.make(kind, rng, budget - 30 * (turns - 1), turns)

                out.append(Case(task, length, fit(make, tokenizer, length, rng).messages))
    return out


def transformers_engine(path: Path, tokenizer: Any, device: str) -> Generate:
    """Greedy generation with Transformers, prompts padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(path, dtype=kind).to(device).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = [[tokenizer.pad_token_id] * (longest - len(p)) + p for p in prompts]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        out = model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=new_tokens,
            do_sample=False,
        )
        return out[:, longest:].tolist()

    return generate


def holdover_engine(path: Path, tokenizer: Any, device: str) -> Generate:
    """Greedy generation with this package's engine."""
    from holdover import Engine, SamplingParams

    engine = Engine.from_pretrained(str(path), device=device)

    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=new_tokens))
        return [list(output.token_ids) for output in outputs]

    return generate


ENGINES = {"transformers": transformers_engine, "holdover": holdover_engine}


def answer_all(found: list[Case], generate: Generate, tokenizer: Any, batch_tokens: int) -> list[list[str]]:
    """The model's answers to every case, turn by turn; prompts of similar length share a batch."""
    histories: list[list[Message]] = [[] for _ in found]
    answers: list[list[str]] = [[] for _ in found]
    end = tokenizer.eos_token_id
    for turn in range(max(len(case.answers) for case in found)):
        work = []
        for at, case in enumerate(found):
            if turn >= len(case.answers):
                continue
            asked = [m for m in case.messages if m["role"] != "assistant"]
            system = len(asked) - len(case.answers)
            histories[at] += asked[: system + 1] if turn == 0 else [asked[system + turn]]
            ids = tokenizer.encode(render(histories[at], add_generation_prompt=True), add_special_tokens=False)
            work.append((len(ids), at, ids))
        work.sort()
        while work:
            size = max(1, min(len(work), batch_tokens // work[-1][0]))
            part, work = work[-size:], work[:-size]
            room = max(len(tokenizer.encode(found[at].answers[turn])) for _, at, _ in part) + 2
            for (_, at, _), ids in zip(part, generate([ids for _, _, ids in part], room), strict=True):
                ids = ids[: ids.index(end)] if end in ids else ids
                answers[at].append(tokenizer.decode(ids).strip())
                histories[at].append({"role": "assistant", "content": answers[at][-1]})
    return answers


def interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion."""
    z, p = 1.96, right / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def table(found: list[Case], answers: list[list[str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """task -> length (and ``all``) -> exact match, interval, number of prompts."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for task in dict.fromkeys(case.task for case in found):
        for length in (*LENGTHS, "all"):
            hits = [
                given == case.answers
                for case, given in zip(found, answers, strict=True)
                if case.task == task and length in ("all", case.length)
            ]
            if hits:
                low, high = interval(sum(hits), len(hits))
                cell = {"exact": sum(hits) / len(hits), "low": low, "high": high, "prompts": len(hits)}
                out.setdefault(task, {})[str(length)] = cell
    return out


def show(scores: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The scores as text, one task a line."""
    lengths = [str(length) for length in (*LENGTHS, "all") if any(str(length) in row for row in scores.values())]
    lines = [f"{'task':<11}" + "".join(f"{length:>20}" for length in lengths)]
    for task, row in scores.items():
        cells = (row.get(length) for length in lengths)
        text = (f"{c['exact']:.3f} [{c['low']:.3f},{c['high']:.3f}]" if c else "" for c in cells)
        lines.append(f"{task:<11}" + "".join(f"{cell:>20}" for cell in text))
    return "\n".join(lines)


def _tasks(text: str) -> tuple[str, ...]:
    names = TASKS if text == "all" else tuple(text.split(","))
    if unknown := [name for name in names if name not in TASKS]:
        raise argparse.ArgumentTypeError(f"no task {unknown[0]!r}; there are all, {', '.join(TASKS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a model on fresh recall tasks.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=500, help="per task, spread over the lengths")
    parser.add_argument("--lengths", type=lambda s: tuple(map(int, s.split(","))), default=LENGTHS)
    parser.add_argument("--tasks", type=_tasks, default=RECALL, help="comma-separated, or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=list(ENGINES), default="holdover")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-tokens", type=int, default=0, help="prompt tokens a batch; 0 picks by device")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--json", type=Path, help="write the scores there")
    options = parser.parse_args()

    from transformers import AutoTokenizer

    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.model_max_length = 1 << 30  # contexts are cut to length here, after being measured
    found = cases(tokenizer, options.prompts, options.seed, options.data, options.lengths, options.tasks)
    generate = ENGINES[options.engine](options.model, tokenizer, options.device)
    batch_tokens = options.batch_tokens or (262144 if options.device == "cuda" else 8192)
    scores = table(found, answer_all(found, generate, tokenizer, batch_tokens))
    print(show(scores))
    print(f"{len(found)} conversations in {time.perf_counter() - began:.0f} s")
    if options.json:
        held_out = (options.data / "tokens" / "filler_held_out.txt").exists()
        facts = {"engine": options.engine, "device": options.device, "seed": options.seed, "held_out_text": held_out}
        options.json.write_text(json.dumps({**facts, "scores": scores}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
