"""Train a bundled model.

    python -m training.train --architecture kda --out training/runs/kda --seconds 1200                     # one GPU
    python -m training.train --architecture kda --out training/runs/kda --seconds 1200 --leg 540 --resume  # in legs

Batches, curriculum and validation come from ``batches.py``, the forward from ``forwards/``.  The learning rate rises
over ``WARMUP`` steps, stays flat, and falls linearly from ``DECAY_FROM`` of the budget on; the budget is ``--seconds``
of training time, or ``--steps``.  In ``--window-share`` of the batches attention sees a block of few tokens only, so
that what lies further back has to come through the recurrent states; the model itself has no window.

``OUT`` holds ``log.jsonl`` (the recipe, then one object per ``--log-every`` steps and per validation), ``config.json``
and, replaced every ``--save-every`` seconds, ``weights.safetensors`` (bf16) and ``state.pt`` (fp32, with the
optimizer's state).  A run goes on exactly from ``state.pt``; from the small files alone, as they come back from a
machine that is gone, it goes on with a fresh optimizer state, which takes 20 steps to fill and is warmed up again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from training import batches, forwards
from training.batches import ANSWER, CURRICULUM, MIXTURE, PROMPT, TEXT, TEXT_ROWS, WINDOWS, Draws, Stream
from training.model import build, tied

WARMUP, DECAY_FROM, FLOOR = 150, 0.45, 0.01
SHARES = {TEXT: 0.4, PROMPT: 0.1, ANSWER: 1.0}  # each kind's mean loss counts this much


@dataclass
class Options:
    """What a run is; see ``main`` for the command line."""

    out: Path
    data: Path
    architecture: str = "gdn"
    size: str = "tiny"
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 131072
    rate: float = 2.5e-3
    seed: int = 0
    workers: int = 2
    lengths: dict[int, float] | None = None
    mixture: dict[str, float] | None = None
    compiled: bool = False
    window_share: float = 0.5
    leg: float = 0.0
    resume: bool = False
    copy: Path | None = None
    log_every: int = 50
    validate_every: float = 120.0
    save_every: float = 60.0


def schedule(step: int, progress: float) -> float:
    """Learning rate factor at the optimizer's ``step`` when ``progress`` of the budget (0 to 1) is spent."""
    falling = max(0.0, (progress - DECAY_FROM) / (1 - DECAY_FROM))
    return min(1.0, (step + 1) / WARMUP) * (1 - (1 - FLOOR) * min(1.0, falling))


def optimizer_for(model: torch.nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only, so not on norms, embeddings, convolutions, A_log and dt_bias."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and "embed" not in name
        (decayed if matrix else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=next(model.parameters()).is_cuda)


def to_device(batch: batches.Batch, window: int, device: torch.device) -> tuple[forwards.Batch, Tensor]:
    """The batch as tensors, and the kinds; a kind's weights sum to its share."""
    ids = torch.from_numpy(batch.ids.astype(np.int32)).to(device).long()
    kinds = torch.from_numpy(batch.kinds).to(device)
    weights = torch.zeros(ids.shape, device=device)
    for kind, share in SHARES.items():
        mask = kinds == kind
        weights += mask * (share / mask.sum().clamp(min=1))
    return forwards.Batch(ids, ids.roll(-1), weights, batch.length, window), kinds


def span_accuracy(right: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Per row ``[R]``: is every answer token (kinds ``[R, L]``) the likeliest given the true ones before it?

    For a row's single answer this is the same as greedy decoding giving exactly that answer.
    """
    return (right | (kinds != ANSWER)).all(-1)


class Trainer:
    """Holds a run's model, optimizer and counters; ``run`` trains to the end of the budget."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build(options.architecture, size=options.size, seed=options.seed).to(self.device)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.forward = forwards.FORWARDS[options.architecture](self.model, dtype, options.compiled)
        self.optimizer = optimizer_for(self.model, options.rate)
        self.step, self.seconds = 0, 0.0
        self.fresh = 0  # where the optimizer's state begins
        options.out.mkdir(parents=True, exist_ok=True)
        if options.resume:
            self.load()
        if self.step == 0:
            (options.out / "log.jsonl").unlink(missing_ok=True)
            self.model.config.save_pretrained(options.out)
        self.describe()

    def describe(self) -> None:
        """Write to the log what is trained on from here on, and how, unless the log says so already."""
        o, log = self.options, self.options.out / "log.jsonl"
        curriculum = [(self.step, o.lengths)] if o.lengths else CURRICULUM
        recipe = {
            "architecture": o.architecture, "rate": o.rate, "decay_from": DECAY_FROM,
            "mixture": MIXTURE | (o.mixture or {}), "curriculum": curriculum, "text_rows": TEXT_ROWS,
            "window_share": o.window_share, "windows": WINDOWS,
        }  # fmt: skip
        rows = map(json.loads, log.read_text("utf-8").splitlines()) if log.exists() else iter(())
        said = [row["recipe"] for row in rows if "recipe" in row]
        if not said or said[-1] != json.loads(json.dumps(recipe)):
            self.log({"recipe": recipe})

    def load(self) -> None:
        """Go on from what ``out`` holds: the exact state, or else the weights; or begin where it holds neither."""
        weights = self.options.out / "weights.safetensors"
        if not (self.options.out / "state.pt").exists():
            if weights.exists():
                self.model.load_state_dict(load_file(weights), strict=False)
                with safe_open(weights, "pt") as file:
                    counters = file.metadata()
                self.step = self.fresh = int(counters["step"])
                self.seconds = float(counters["seconds"])
            return
        state = torch.load(self.options.out / "state.pt", map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.fresh = state["step"], state["seconds"], state["fresh"]

    def save(self) -> None:
        """Replace the run's files; a reader never sees a half-written one."""
        out = self.options.out
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "fresh": self.fresh,
        }
        torch.save(state, out / "state.part")
        (out / "state.part").replace(out / "state.pt")
        weights = {
            k: v.to(torch.bfloat16).contiguous().cpu()
            for k, v in self.model.state_dict().items()
            if k != "lm_head.weight" or not tied(self.model)
        }
        counters = {"format": "pt", "step": str(self.step), "seconds": str(self.seconds)}
        save_file(weights, out / "weights.part", metadata=counters)
        (out / "weights.part").replace(out / "weights.safetensors")
        self.copy()

    def copy(self) -> None:
        """Keep what a run can go on from elsewhere."""
        o = self.options
        if o.copy:
            o.copy.mkdir(parents=True, exist_ok=True)
            for name in ("weights.safetensors", "log.jsonl", "config.json"):
                shutil.copyfile(o.out / name, o.copy / name)

    def log(self, row: dict[str, Any]) -> None:
        row = {"step": self.step, "tokens": self.step * self.options.tokens, "seconds": round(self.seconds, 2), **row}
        with (self.options.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    @property
    def progress(self) -> float:
        by_steps = self.step / self.options.steps if self.options.steps else 0.0
        return max(by_steps, self.seconds / self.options.seconds if self.options.seconds else 0.0)

    def train_step(self, batch: batches.Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One update; returns losses, right, kinds (all ``[N]``) and the gradient norm."""
        window = batches.window(self.options.seed, self.step, batch.length, self.options.window_share)
        flat, kinds = to_device(batch, window, self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate * schedule(self.step - self.fresh, self.progress)
        loss, losses, right = self.forward(flat)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses, right, kinds, norm

    def validate(self, rows: list[batches.Batch]) -> None:
        """Exact answers by task and length on unseen questions, as one log row: as the model is, and windowed."""
        exact, windowed = (self.exact(rows, window) for window in (None, min(WINDOWS)))
        self.log({"exact": exact, "windowed": windowed})

    def exact(self, rows: list[batches.Batch], window: int | None) -> dict[str, float]:
        """Exact answers by task and length."""
        found: dict[str, list[bool]] = {}
        for batch in rows:
            # gradients stay enabled: the compiled forward is the one that training uses
            right = self.forward(to_device(batch, window or batch.length, self.device)[0])[2].cpu().numpy()
            hits = span_accuracy(right.reshape(-1, batch.length), batch.kinds.reshape(-1, batch.length))
            for task, hit in zip(batch.tasks or [], hits.tolist(), strict=True):
                found.setdefault(f"{task}/{batch.length}", []).append(hit)
        return {name: round(sum(hits) / len(hits), 3) for name, hits in found.items()}

    def run(self) -> None:
        o, started = self.options, time.perf_counter()
        draws = Draws(o.data, o.seed, o.tokens, o.lengths, o.mixture)
        stream = Stream(draws, o.workers, self.step, o.validate_every > 0)
        checks = stream.validation()
        first, last_check, last_save = self.step, self.seconds, self.seconds
        began = time.perf_counter() - self.seconds
        for batch in stream.training():
            if self.progress >= 1 or (o.leg and time.perf_counter() - started >= o.leg):
                break
            losses, right, kinds, norm = self.train_step(batch)
            if self.step == first + 5:  # compiling is not training time
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                began = time.perf_counter() - self.seconds
            if self.step % o.log_every == 0:
                means = {
                    name: losses[kinds == kind].mean().item()
                    for name, kind in (("text", TEXT), ("prompt", PROMPT), ("answer", ANSWER))
                }
                row = {**means, "right": right[kinds == ANSWER].float().mean().item(), "norm": norm.item()}
                self.log({"length": batch.length, **{k: round(v, 4) for k, v in row.items()}})
            if self.step > first + 5 and o.seconds:
                self.seconds = time.perf_counter() - began
            if checks and self.seconds - last_check >= o.validate_every:
                last_check = self.seconds
                self.validate(checks)
            if self.seconds - last_save >= o.save_every:
                last_save = self.seconds
                self.save()
        self.save()
        if checks:
            self.validate(checks)
            self.copy()
        stream.close()


def chances(kind: Callable[[str], Any]) -> Callable[[str], dict[Any, float]]:
    """Reads ``KEY=CHANCE,KEY=CHANCE`` with keys of a kind."""

    def read(text: str) -> dict[Any, float]:
        try:
            return {kind(key): float(chance) for key, chance in (item.split("=") for item in text.split(","))}
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not of the form KEY=CHANCE,KEY=CHANCE with known keys"
            ) from None

    return read


def task(name: str) -> str:
    """A task of the mixture.

    Raises:
        KeyError: there is none of this name.
    """
    return {known: known for known in MIXTURE}[name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a bundled model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--architecture", choices=list(forwards.FORWARDS), default="gdn")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=131072, help="tokens a step")
    parser.add_argument("--rate", type=float, default=2.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument(
        "--lengths", type=chances(int), help="chances of row lengths instead of the curriculum, as 1024=0.4,2048=0.6"
    )
    parser.add_argument("--mixture", type=chances(task), help="tasks with other chances than usual, as recall=60")
    parser.add_argument("--window-share", type=float, default=0.5, help="share of batches with windowed attention")
    parser.add_argument("--resume", action="store_true", help="go on from what OUT holds")
    parser.add_argument("--leg", type=float, default=0.0, help="stop after so many seconds, compiling included")
    parser.add_argument("--copy", type=Path, help="keep a copy of the small files there")
    parser.add_argument(
        "--no-compile", dest="compiled", action="store_false", help="run the forward without torch.compile"
    )
    torch.backends.cuda.matmul.allow_tf32 = True
    Trainer(Options(**vars(parser.parse_args()))).run()


if __name__ == "__main__":
    main()
