"""Small result files of every protocol, as the protocols write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def head(protocol: str) -> Facts:
    return {
        "schema": 1,
        "protocol": protocol,
        "versions": {"holdover": "0"},
        "device": "cpu",
        "commit": "0123456789abcdef",
        "date": "2026-01-02T03:04:05+00:00",
        "model": "feed:float32",
    }


def inspect() -> Facts:
    window = {"w_max": 16, "retained_fraction": 0.5, "c_ckpt": 1.75, "c_ckpt_padded": 1.5, "c_ckpt_int8": 6.5}
    return {
        "model": "small",
        "architecture": "qwen3_5",
        "family": "gdn",
        "layers": 2,
        "attention_layers": 1,
        "units_per_layer": 2,
        "bytes": {"temporal": 800, "conv": 200, "checkpoint": 1000},
        "max_context": 100,
        "horizons": [[4.0, 20.0], [30.0, 4000.0]],
        "per_layer": [{"index": at, "kind": kind} for at, kind in enumerate(("gdn", "gdn", "attention"))],
        "windows": [window],
    }


def validate() -> Facts:
    def score(arm: str, right: int) -> Facts:
        return {"arm": arm, "right": {"0.0": right}, "asked": {"0.0": 20}}

    quartiles = {"median": 0.875, "q1": 0.75, "q3": 0.9, "count": 12}
    return {
        "spearman": {"horizons": quartiles, "magnitudes": None},
        "needle": [
            score("baseline", 20),
            score("zero-full-kv", 0),
            score("zero-linear", 19),
            score("zero-both", 0),
        ],
    }


def replay_row(arm: str, w_max: int | None, difference: tuple[float, float, float] | None, **more: Any) -> Facts:
    found, low, high = difference or (None, None, None)
    row = {"task": "text", "metric": "nll", "arm": arm, "w_max": w_max, "mean": 2.0 + (found or 0.0)}
    row |= {"low": 1.5, "high": 2.5, "difference": found, "difference_low": low, "difference_high": high}
    return row | {"hit": 0.9, "loaded": 1.0, "count": 24, "replays": 1} | more


def warm_replay() -> Facts:
    rows = [
        replay_row("dense", None, None),
        replay_row("nr", 16, (0.03, 0.02, 0.04)),
        replay_row("int8", None, (0.001, -0.002, 0.003)),
        replay_row("random(1)", 16, (0.3, 0.2, 0.4)),
        replay_row("random(2)", 16, (0.01, -0.1, 0.2)),
    ]
    sizes = {"dense": 1000, "nr-w16": 500, "int8": 300, "random-w16-s1": 500, "random-w16-s2": 500}
    return head("warm-replay") | {"arms": {name: {"bytes": size} for name, size in sizes.items()}, "rows": rows}


def composed() -> Facts:
    def row(selector: str, initialiser: str, metric: str, ratio: float, difference: float | None) -> Facts:
        ends = (None, None) if difference is None else (difference - 0.01, difference + 0.01)
        found = {"task": "recall", "metric": metric, "selector": selector, "initialiser": initialiser, "ratio": ratio}
        found |= {"window": None, "recomputed": ratio, "mean": 0.5, "low": 0.4, "high": 0.6, "count": 20}
        return found | {"difference": difference, "difference_low": ends[0], "difference_high": ends[1]}

    def curve(initialiser: str, rise: float) -> Facts:
        layers = {str(at): {"mean": 0.1 + at, "low": 0.05 + at, "high": 0.2 + at} for at in (0, 2)}
        found = {"selector": "none", "ratio": 0.0, "initialiser": initialiser, "inputs": "isolated", "part": "state"}
        trend = {"mean": rise, "low": rise - 0.1, "high": rise + 0.1}
        return found | {"layers": layers, "worst": 2, "rise": trend, "count": 20}

    rows = [row("full", "", "kl", 1.0, None), row("none", "last", "kl", 0.0, None)]
    rows += [row("none", "last", "right", 0.0, None)]
    rows += [row("epic", state, metric, ratio, 0.25 if state == "exact" and metric == "kl" else None)
             for state in ("last", "exact") for metric in ("kl", "right") for ratio in (0.1, 0.2)]  # fmt: skip
    rows += [row("epic", state, "percent of full", 0.2, None) | {"mean": 75.0, "low": 50.0, "high": 100.0}
             for state in ("last", "exact")]  # fmt: skip
    rows += [row("seam", "exact", "kl", 0.0, -0.5) | {"ratio": None, "window": 4, "recomputed": 0.05}]
    left = {"mean": 0.2, "low": 0.1, "high": 0.3}
    causes = [{"inputs": "true", "layer": 2, "left": left, "count": 20}]
    curves = [curve("last", 0.0), curve("exact", 0.8)]
    return head("composed") | {"count": 20, "rows": rows, "curves": curves, "causes": causes}


def deferred() -> Facts:
    def row(first: int, last: int, mean: float) -> Facts:
        found = {"arm": "m8-bf16/fp32", "merge_interval": 8, "log": "bf16/fp32", "first": first, "last": last}
        found |= {"mean": mean, "low": mean / 2, "high": mean * 2, "p95": mean, "largest": mean, "count": 16}
        return found | {"agreement": 0.875, "agreement_low": 0.8, "agreement_high": 0.9}

    whole = {"arm": "m8-bf16/fp32", "merge_interval": 8, "growth": 1e-6, "growth_low": 1e-7, "growth_high": 2e-6}
    whole |= {"same": 60.0, "same_low": 50.0, "same_high": 64.0, "never": 0.75, "state_error": 1e-6}
    whole |= {"appended": 900, "folded": 100, "count": 16}
    rows = [row(0, 32, 1e-6), row(32, 64, 3e-6), row(0, 64, 2e-6)]
    return head("deferred") | {"dtype": "float32", "rows": rows, "overall": [whole]}


def combinations() -> Facts:
    def row(arm: str, checkpoint: str, w_max: int | None, difference: float | None, loads: int) -> Facts:
        decode, speculate = arm.split("/")[1:3]
        found = {"arm": arm, "checkpoint": checkpoint, "w_max": w_max, "decode": decode, "speculate": speculate}
        found |= {"once": False, "mean": 0.001, "low": 0.0005, "high": 0.002, "p95": 0.003, "agreement": 0.99}
        ends = (None, None) if difference is None else (difference - 1e-4, difference + 1e-4)
        found |= {"difference": difference, "difference_low": ends[0], "difference_high": ends[1]}
        work = {"loads": loads, "logged": 50, "folded": 6, "verified": 0, "drafted": 0, "accepted": 0}
        return found | {"checkpoint_bytes": 500, "slot_bytes": 1200, "work": work, "count": 6}

    turn = {"arm": "nr-w16/deferred/off", "losses": 1, "resumed": 40.0, "low": 0.001, "high": 0.01, "count": 6}
    growth = {"arm": "nr-w16/deferred/off", "slope": 0.001, "low": 0.0005, "high": 0.002, "restores": 2, "count": 6}
    growth |= {"excess": 0.0001, "excess_low": -0.001, "excess_high": 0.001}
    chunk = {"state": "int8", "w_max": None, "initialiser": "last", "selector": "epic", "ratio": 0.2, "mean": 0.1}
    chunk |= {"low": 0.05, "high": 0.2, "difference": 0.01, "difference_low": 0.005, "difference_high": 0.02}
    return head("combinations") | {
        "dtype": "float32",
        "rows": [
            row("dense/dense/off", "dense", None, None, 0),
            row("nr-w16/dense/off", "nr", 16, None, 5),
            row("nr-w16/deferred/off", "nr", 16, 0.0, 5),
        ],
        "turns": [turn | {"restores": at, "mean": 0.002 * at} for at in (1, 2)],
        "growth": [growth],
        "chunks": [chunk | {"state_bytes": 300, "count": 6}],
    }


def decode() -> Facts:
    def row(method: str, ms: float, interval: int | None = None, **more: Any) -> Facts:
        found = {"op": "gdn", "batch": 128, "method": method, "merge_interval": interval, "fill": None, "ms": ms}
        return found | {"p10": ms * 0.9, "p90": ms * 1.1, "n": 60} | more

    rows = [row("holdover", 0.2, 2), row("holdover", 0.125, 8), row("holdover-dense", 0.25), row("fla", 0.4)]
    rows += [row("holdover", 0.01, 8, fill=0), row("floor", 0.1), {"op": "gdn", "method": "check"}]
    return {"machine": {"cpu": "c", "gpus": ["GPU"]}, "date": "2026-01-02", "commit": "abc", "rows": rows}


def everything() -> dict[str, Facts]:
    return {
        "inspect": inspect(),
        "validate": validate(),
        "replay-text": warm_replay(),
        "composed": composed(),
        "deferred": deferred(),
        "combinations": combinations(),
    }


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, facts in files.items():
        (folder / f"{name}.json").write_text(json.dumps(facts))
    return folder
