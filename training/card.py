"""Write a bundled model's card (README.md) and NOTICE from what was measured.

    python -m training.card --model assets/models/tiny-gdn --results training/results/tiny-gdn

``results`` holds ``log.jsonl`` (the run's; its first row is the recipe), ``scores*.json`` (from ``score.py``, pooled),
``recall.json`` (from its defaults), ``held_out.json``, ``state.json`` (from ``state_check.py``) and, where there are
any, ``run.json`` (a list of remarks).  Horizons come from the weights.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from training.data import HELD_OUT_HOTPOT, HELD_OUT_SQUAD, SOURCES
from training.model import horizons
from training.score import interval
from training.tasks import Sampler

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
BINS = (10, 32, 100, 316, 1000, 3162)
RANGED, RANGE = ("tracking", "count", "common"), (0.3, 0.95)  # neither hopeless nor solved, to tell losses by
GOALS = {"recall": 0.95, "needle": 0.95, "multikey": 0.9}  # exact match, at every length up to GOAL_LENGTH
GOAL_LENGTH = 2048


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def curve(log: list[dict[str, Any]], points: int = 12) -> str:
    """Losses averaged over equal shares of the run's logged steps."""
    rows = [row for row in log if "answer" in row]
    out = []
    for part in range(points):
        some = rows[part * len(rows) // points : (part + 1) * len(rows) // points]
        means = [sum(row[name] for row in some) / len(some) for name in ("text", "answer", "right")]
        last = some[-1]
        out.append([str(last["step"]), f"{last['tokens'] / 1e6:.0f}", *(f"{mean:.3f}" for mean in means)])
    return markdown(["step", "M tokens", "loss, text", "loss, answers", "answer tokens right"], out)


def merge(reports: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The reports' scores together: prompts of the same task and length are pooled, lengths in order, ``all`` last."""
    pooled: dict[str, dict[str, list[float]]] = {}
    for report in reports:
        for task, row in report["scores"].items():
            for length, cell in row.items():
                sums = pooled.setdefault(task, {}).setdefault(length, [0, 0])
                sums[0] += round(cell["exact"] * cell["prompts"])
                sums[1] += cell["prompts"]
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for task, row in pooled.items():
        for length in sorted(row, key=lambda name: float("inf") if name == "all" else int(name)):
            right, total = map(int, row[length])
            low, high = interval(right, total)
            out.setdefault(task, {})[length] = {"exact": right / total, "low": low, "high": high, "prompts": total}
    return out


def score_table(scores: dict[str, dict[str, dict[str, Any]]]) -> str:
    lengths = list(dict.fromkeys(length for row in scores.values() for length in row))

    def cell(found: dict[str, Any] | None) -> str:
        return f"{found['exact']:.3f} ({found['low']:.2f}-{found['high']:.2f}, n={found['prompts']})" if found else ""

    return markdown(["task", *lengths], [[task, *(cell(row.get(x)) for x in lengths)] for task, row in scores.items()])


def validation_table(exact: dict[str, float]) -> str:
    """The trainer's last validation, task by length."""
    lengths = sorted({int(name.split("/")[1]) for name in exact})
    tasks = dict.fromkeys(name.split("/")[0] for name in exact)
    rows = [[task, *(f"{exact[f'{task}/{x}']:.3f}" for x in lengths)] for task in tasks]
    return markdown(["task", *map(str, lengths)], rows)


def recurrence(config: PreTrainedConfig) -> tuple[str, str]:
    """A model's kind of recurrent layer with its sizes, and what has a decay of its own."""
    c = config
    if c.model_type.startswith("qwen3_5"):
        keys, values, size = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim
        return f"Gated DeltaNet layers, {keys} key and {values} value heads of {size}", "heads"
    if c.model_type.startswith("kimi_linear"):
        return f"Kimi Delta Attention layers, {c.linear_num_heads} heads of {c.linear_head_dim}", "channels"
    return f"Mamba-2 layers, {c.mamba_n_heads} heads of {c.mamba_d_head} with a state of {c.mamba_d_state}", "heads"


def dependence(state: dict[str, Any]) -> str:
    """What zeroed states cost, in a sentence for the reader who chooses a model."""
    rows = state["exact"].values()
    kept, zero = (sum(row[name] for row in rows) / len(rows) for name in ("kept", "zero"))
    if kept - zero > 0.2:
        return (
            f"Facts reach its answers through the recurrent states: with these set to zero before the question, exact "
            f"answers fall from {kept:.2f} to {zero:.2f} (below)."
        )
    return (
        f"Its answers rest on its attention, though: with the recurrent states set to zero before the question, exact "
        f"answers go from {kept:.2f} to {zero:.2f} only (below), so measure the cost of compressing the state by the "
        "loss on text and by closeness of the logits."
    )


def horizon_tables(found: dict[int, torch.Tensor], units: str) -> str:
    """Quantiles per layer and overall, and a histogram."""

    def quantiles(name: str, values: torch.Tensor) -> list[str]:
        return [name, *(f"{q:.0f}" for q in torch.quantile(values, torch.tensor(QUANTILES)).tolist())]

    everything = torch.cat(list(found.values()))
    rows = [quantiles(f"layer {layer}", values) for layer, values in found.items()] + [quantiles("all", everything)]
    edges = [0, *BINS, float("inf")]
    counts = [((everything >= a) & (everything < b)).sum().item() for a, b in pairwise(edges)]
    names = [f"< {BINS[0]}", *(f"{a}-{b}" for a, b in pairwise(BINS)), f"> {BINS[-1]}"]
    table = markdown(["", *(f"{q:.0%}" for q in QUANTILES)], rows)
    return table + "\n\n" + markdown(["tokens", *names], [[units, *map(str, counts)]])


def state_table(state: dict[str, Any]) -> str:
    """Scores and text loss by treatment of the recurrent states."""
    rows = [[task, *(f"{value:.2f}" for value in row.values())] for task, row in state["exact"].items()]
    return markdown(["", *state["text"]], [*rows, ["text", *(f"{value:.3f}" for value in state["text"].values())]])


def goals(scores: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Where every task with a goal reaches it and where it does not, a line a task."""
    wanted = {task: (goal, 1.0, f"{goal} or more") for task, goal in GOALS.items()}
    wanted |= dict.fromkeys(RANGED, (*RANGE, f"{RANGE[0]} to {RANGE[1]}"))
    lines = []
    for task, (low, high, text) in wanted.items():
        exact = {int(length): cell["exact"] for length, cell in scores.get(task, {}).items() if length.isdigit()}
        found = {length: value for length, value in exact.items() if task in RANGED or length <= GOAL_LENGTH}
        reached = [f"{length:,}" for length, value in found.items() if low <= value <= high]
        missed = [f"{length:,} ({value:.3f})" for length, value in found.items() if not low <= value <= high]
        parts = [f"{word} at {', '.join(at)}" for word, at in (("reached", reached), ("missed", missed)) if at]
        if parts:
            lines.append(f"- {task}, {text}: {'; '.join(parts)} tokens")
    return "Goals reached and missed:\n\n" + "\n".join(lines)


def again(recall: dict[str, Any], reports: list[dict[str, Any]]) -> str:
    """The second run of recall as a paragraph and a table; nothing where it is one of the reports' runs."""
    if any(_holds(report, recall) for report in reports):
        return ""
    filler = "held-out text" if recall["held_out_text"] else "the plain sentences that ship with `training/tasks.py`"
    return (
        f"Recall again through Holdover's own engine on {recall['device']}, seed {recall['seed']}, filler from "
        f"{filler}:\n\n{score_table(recall['scores'])}\n\n"
    )


def _holds(report: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a report has the other's rows, from the same engine, seed and filler."""
    rows = {task: report["scores"].get(task) for task in other["scores"]}
    return {**report, "scores": rows} == other


def noted(remarks: list[str]) -> str:
    """Remarks as a list with a line after it; nothing where there are none."""
    return "".join(f"- {remark}\n" for remark in remarks) + ("\n" if remarks else "")


def card(path: Path, results: Path) -> str:
    """The card's text."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    log = [json.loads(line) for line in (results / "log.jsonl").read_text("utf-8").splitlines()]
    held_out = json.loads((results / "held_out.json").read_text("utf-8"))
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(results.glob("scores*.json"))]
    scores = merge(reports)
    seeds = " and ".join(str(seed) for seed in dict.fromkeys(report["seed"] for report in reports))
    state = json.loads((results / "state.json").read_text("utf-8"))
    remarks = results / "run.json"
    remarks = json.loads(remarks.read_text("utf-8"))["remarks"] if remarks.exists() else []
    recipe = log[0]["recipe"]
    recall = json.loads((results / "recall.json").read_text("utf-8"))
    last, exact = log[-1], next(row["exact"] for row in reversed(log) if "exact" in row)
    c = model.config
    layers, units = recurrence(c)
    parameters = sum(p.numel() for p in model.parameters())
    kinds = [kind.split("_", maxsplit=1)[0] for kind in c.layer_types]
    lengths = "; ".join(
        f"from {step}: " + ", ".join(f"{n} ({p:.0%})" for n, p in chances.items())
        for step, chances in recipe["curriculum"]
    )
    task_lines = "\n".join(
        f"- **{task}**: {str(getattr(Sampler, {'count': 'count_words'}.get(task, task)).__doc__).splitlines()[0]}"
        for task in scores
        if task != "multiturn"
    )
    return f"""---
library_name: transformers
language: en
pipeline_tag: text-generation
---
# {path.name}

A small trained hybrid language model for tests and examples of state handling: it really recalls what stands in its
context, so that a cache which loses or mixes up a context gives wrong answers. It is no assistant.
{dependence(state)}

`{c.architectures[0] if c.architectures else type(model).__name__}`, {parameters / 1e6:.2f} M parameters (bf16), \
{kinds.count("linear")} {layers}; {kinds.count("full")} attention layer(s), at \
{", ".join(str(at) for at, kind in enumerate(kinds) if kind == "full")}; hidden {c.hidden_size}, vocabulary \
{c.vocab_size} (byte-level BPE, digits single), context {c.max_position_embeddings}, ChatML template. It loads with \
`AutoModelForCausalLM` and `AutoTokenizer` without remote code; made with Transformers {c.transformers_version}.

## What it answers

Greedy answers on fresh prompts, exact match, with 95 % Wilson intervals and the number of prompts; engine \
{reports[0]["engine"]} on {reports[0]["device"]}, seed {seeds}, \
filler from {"held-out text" if reports[0]["held_out_text"] else "plain sentences"}. A length is the conversation's \
upper bound in tokens; contexts mostly fill 75 % or more of it.

{score_table(scores)}

{task_lines}
- **multiturn**: four questions about one context (recall or multikey) in successive turns, the model's own answers in
  the history; all four must be right.

{goals(scores)}

{again(recall, reports)}\
The trainer's last validation (other unseen prompts, every answer token likeliest given the true ones before it, which
for a single answer is greedy exact match):

{validation_table(exact)}

## How much its recurrent state matters

The context is read, then the recurrent states (not keys and values, not the convolutions' inputs) are kept, rounded
with one scale a head, or set to zero; the question (the last {state["tail"]} tokens) and the answer follow. Exact \
match of {state["prompts"]} prompts a row; `text` is the loss on the 64 tokens of held-out text after a context of 512.

{state_table(state)}

## How it was trained

{last["tokens"] / 1e6:.0f} M tokens in {last["step"]} steps, {last["seconds"]:.0f} s of training time on one H200 \
({last["tokens"] / last["seconds"] / 1e6:.2f} M tokens/s), bf16 matrix products, fp32 weights, state and decays; \
AdamW, peak rate {recipe["rate"]:g}, linear decay over the last {1 - recipe["decay_from"]:.0%} of the time, clipping \
at 1. Row lengths by step: {lengths}. In {recipe["window_share"]:.0%} of the batches attention saw a block of \
{", ".join(map(str, recipe["windows"]))} tokens only. {recipe["text_rows"]:.0%} of the rows are text only, the others \
hold conversations, by weight: \
{", ".join(f"{task} {weight}" for task, weight in recipe["mixture"].items())}. `training/` holds all of it.

{noted(remarks)}\
{curve(log)}

Held-out text ({held_out["rows"]} rows of {held_out["length"]} tokens): {held_out["loss"]:.3f} nats a token, \
perplexity {held_out["perplexity"]:.1f}.

## Horizons

Tokens until a state has decayed to 1e-3, log(1/1e-3) / (exp(A_log) · softplus(a + dt_bias)) with a typical gate
input a = -0.3, by quantile over {units}:

{horizon_tables(horizons(model), units)}

## Data

{chr(10).join(f"- {source}" for source in SOURCES.values())}
- generated conversations (`training/tasks.py`), with sentences of the Wikipedia paragraphs as filler

Not trained on, so usable for evaluation: the last {HELD_OUT_HOTPOT} HotpotQA development questions and every paragraph
whose title occurs in them, the last {HELD_OUT_SQUAD} SQuAD development articles, every 50th document of the others.
Earlier questions of both sets are in the training data (SQuAD's questions and answers; HotpotQA's paragraphs only).
NOTICE names the sources and their licences.

## What it cannot do

It knows next to nothing, does not reason or follow instructions, and writes English that is locally plausible only. It
answers the question forms of its training; others often get a wrong fact, a repeated question or small talk. Following
chains of assignments, counting words and finding the most frequent word are at the levels in the table; where these are
low, the model guesses. It has seen no conversation longer than {c.max_position_embeddings} tokens.
"""


def notice() -> str:
    return (
        "This model was trained on text from these sources, under these licences:\n\n"
        + "\n".join(f"- {source}" for source in SOURCES.values())
        + "\n\nWikipedia text is by its contributors. HotpotQA: Yang et al., 2018; SQuAD: Rajpurkar et al., 2018.\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a bundled model's card.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    (options.model / "README.md").write_text(card(options.model, options.results), encoding="utf-8")
    (options.model / "NOTICE").write_text(notice(), encoding="utf-8")
