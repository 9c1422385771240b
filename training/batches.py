"""Training and validation batches as functions of (seed, number): any batch can be made again, so runs resume exactly.

A batch is flat: ``tokens`` token ids in rows of one length, and for every position the kind of its *next* token
(TEXT, PROMPT or ANSWER; NONE at a row's end).  Batches are made by worker processes; the trainer only reads queues.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.tasks import SCORED, Sample, Sampler

NONE, TEXT, PROMPT, ANSWER = 0, 1, 2, 3
MIXTURE = {
    "recall": 22, "multikey": 15, "needle": 12, "tracking": 14, "multiquery": 7, "update": 8, "count": 9, "common": 5,
    "repeat": 3, "notes": 2, "passage": 2, "chat": 1, "sentence": 1,
}  # fmt: skip
TEXT_ROWS = 0.15
# from this step on: chances of the row lengths
CURRICULUM: tuple[tuple[int, dict[int, float]], ...] = (
    (0, {256: 1.0}),
    (300, {256: 0.3, 512: 0.7}),
    (1000, {512: 0.5, 1024: 0.5}),
    (1800, {512: 0.25, 1024: 0.4, 2048: 0.35}),
    (3000, {256: 0.05, 512: 0.15, 1024: 0.25, 2048: 0.4, 4096: 0.15}),
)
WINDOWS = (64, 128, 256)  # tokens that attention sees in windowed batches
VALIDATION = ((256, 1), (512, 1), (1024, 2), (2048, 4), (4096, 6))  # (length, batches)


def window(seed: int, number: int, length: int, share: float) -> int:
    """How many tokens attention sees in training batch ``number``: fewer than ``length`` in ``share`` of them."""
    rng = random.Random(f"window-{seed}-{number}")
    return min(length, rng.choice(WINDOWS)) if rng.random() < share else length


@dataclass
class Batch:
    """``ids`` uint16 and ``kinds`` uint8, flat; ``tasks`` names each row's task in validation batches."""

    ids: np.ndarray
    kinds: np.ndarray
    length: int
    tasks: list[str] | None = None


class Builder:
    """Makes batches from the files in ``data`` (token files, filler, questions) and the tokenizer there.

    ``mixture`` holds chances of tasks that differ from `MIXTURE`.
    """

    def __init__(self, data: Path, seed: int, mixture: dict[str, float] | None = None) -> None:
        from tokenizers import Tokenizer

        self.seed = seed
        self.mixture: dict[str, float] = MIXTURE | (mixture or {})
        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
        self.start, self.end, self.end_of_text = (
            self.tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
        )
        self.text = np.memmap(data / "tokens" / "train.bin", np.uint16, "r")
        with (data / "tokens" / "questions.jsonl").open(encoding="utf-8") as file:
            questions = [json.loads(line) for line in file]
        self.train = self._sampler(data / "tokens" / "filler_train.txt", questions)
        self.held_out = self._sampler(data / "tokens" / "filler_held_out.txt", [])

    def _sampler(self, path: Path, questions: list[dict]) -> Sampler:
        filler = path.read_text("utf-8").split("\n")
        sizes = [len(e.ids) for e in self.tokenizer.encode_batch(filler)]
        return Sampler(filler, lambda text: len(self.tokenizer.encode(text).ids), questions, sizes)

    def encode(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Token ids of the conversation and each token's kind; answers end with the end token."""
        pieces = []
        for message in sample.messages:
            if message["role"] == "assistant":
                pieces += ["assistant\n", message["content"], "\n"]
            else:
                pieces += [f"{message['role']}\n{message['content']}", "\n"]
        encoded = iter(e.ids for e in self.tokenizer.encode_batch(pieces))
        ids: list[int] = []
        kinds: list[int] = []
        for message in sample.messages:
            opening = [self.start, *next(encoded)]
            answer = next(encoded) if message["role"] == "assistant" else []
            closing = next(encoded)
            ids += [*opening, *answer, self.end, *closing]
            kinds += [PROMPT] * len(opening)
            kinds += [ANSWER] * (len(answer) + 1) if message["role"] == "assistant" else [PROMPT]
            kinds += [PROMPT] * len(closing)
        return ids, kinds

    def _conversation(self, rng: random.Random, room: int) -> tuple[list[int], list[int]]:
        """An encoded training conversation of at most ``room`` tokens (empty when none was found)."""
        for _ in range(4):
            task = rng.choices(list(self.mixture), list(self.mixture.values()))[0]
            turns = rng.randint(1, max(2, min(24, room // 60)))
            budget = int(room * rng.uniform(0.55, 0.97)) - 26 * turns - 20
            if budget > 30:
                ids, kinds = self.encode(self.train.make(task, rng, budget, turns))
                if len(ids) <= room:
                    return ids, kinds
        return [], []

    def _text(self, rng: random.Random, size: int) -> list[int]:
        at = rng.randrange(len(self.text) - size)
        return self.text[at : at + size].tolist()

    def training(self, number: int, tokens: int, lengths: dict[int, float] | None = None) -> Batch:
        """Training batch ``number``; ``lengths`` replaces the curriculum."""
        rng = random.Random(f"train-{self.seed}-{number}")
        chances = lengths or next(c for step, c in reversed(CURRICULUM) if number >= step)
        length = rng.choices(list(chances), list(chances.values()))[0]
        ids = np.zeros((tokens // length, length), np.uint16)
        kinds = np.zeros_like(ids, dtype=np.uint8)
        for row in range(len(ids)):
            line: list[int] = []
            sorts: list[int] = []
            if rng.random() >= TEXT_ROWS:
                more = True
                while more and length - len(line) >= 140:
                    part, part_kinds = self._conversation(rng, length - len(line) - 1)
                    line += [*part, self.end_of_text]
                    sorts += [*part_kinds, PROMPT]
                    more = bool(part) and rng.random() < 0.4
            size = length - len(line)
            line += self._text(rng, size)
            sorts += [TEXT] * size
            ids[row], kinds[row, :-1] = line, sorts[1:]
        return Batch(ids.ravel(), kinds.ravel(), length)

    def validation(self, number: int, tokens: int) -> Batch:
        """Validation batch: one question a row, all scored tasks in turn, filler from held-out text, padded."""
        length = [length for length, count in VALIDATION for _ in range(count)][number]
        rng = random.Random(f"validation-{number}")
        ids = np.full((tokens // length, length), self.end_of_text, np.uint16)
        kinds = np.zeros_like(ids, dtype=np.uint8)
        tasks = []
        for row in range(len(ids)):
            tasks.append(SCORED[row % len(SCORED)])
            line, sorts = self.one(tasks[-1], rng, length)
            ids[row, : len(line)] = line
            kinds[row, : len(line) - 1] = [kind if kind == ANSWER else NONE for kind in sorts[1:]]
        return Batch(ids.ravel(), kinds.ravel(), length, tasks)

    def one(self, task: str, rng: random.Random, length: int) -> tuple[list[int], list[int]]:
        """One held-out question of ``task`` with 70 to 100 % of ``length`` tokens where the task can fill it."""
        budget = length * rng.uniform(0.75, 0.97) - 30
        while True:
            ids, kinds = self.encode(self.held_out.make(task, rng, int(budget)))
            if len(ids) <= length:
                return ids, kinds
            budget *= 0.92


@dataclass(frozen=True)
class Draws:
    """What a run's batches are drawn from.

    Attributes:
        data: folder of the texts and the tokenizer.
        seed: of all draws.
        tokens: of a batch.
        lengths: chances of row lengths; the curriculum if None.
        mixture: chances of tasks that differ from `MIXTURE`.
    """

    data: Path
    seed: int
    tokens: int
    lengths: dict[int, float] | None = None
    mixture: dict[str, float] | None = None


def _work(queue: Any, draws: Draws, worker: int, workers: int, first: int, checks: int) -> None:
    builder = Builder(draws.data, draws.seed, draws.mixture)
    for number in range(worker, checks, workers):
        queue.put(builder.validation(number, draws.tokens))
    number = first + (worker - first) % workers
    while True:
        queue.put(builder.training(number, draws.tokens, draws.lengths))
        number += workers


class Stream:
    """Batches made by ``workers`` processes: ``validation`` first, then ``training`` from number ``first`` on."""

    def __init__(self, draws: Draws, workers: int, first: int = 0, validate: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self.first, self.checks = first, sum(count for _, count in VALIDATION) if validate else 0
        self.queues = [context.Queue(maxsize=3) for _ in range(workers)]
        self.processes = [
            context.Process(target=_work, args=(queue, draws, i, workers, first, self.checks), daemon=True)
            for i, queue in enumerate(self.queues)
        ]
        for process in self.processes:
            process.start()

    def validation(self) -> list[Batch]:
        """All validation batches; call once, before ``training``."""
        return [self.queues[n % len(self.queues)].get() for n in range(self.checks)]

    def training(self) -> Iterator[Batch]:
        number = self.first
        while True:
            yield self.queues[number % len(self.queues)].get()
            number += 1

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
