"""``holdover validate``: hold static retention horizons against what a model's states do on real text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli import loading, measuring
from holdover.cli.errors import Debug
from holdover.cli.plan import Epsilon, GateInput
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.retention.intervention import Score
    from holdover.evaluation.retention.prefixes import Prefix
    from holdover.evaluation.retention.statistics import Quartiles
    from holdover.evaluation.retention.validate import Agreement, Calibration

_NEEDLE_TOKENS = 512


def validate(
    model: loading.Model,
    text: measuring.Text,
    prefixes: Annotated[int, typer.Option(min=1, help="Prefixes, shared equally by the lengths.")] = 32,
    lengths: Annotated[
        str | None,
        typer.Option(help="Their lengths in tokens, with commas; 16384,8192,4096,1024 scaled to the context if unset."),
    ] = None,
    w_max: measuring.Cutoffs = "16,64,128,512",
    gate_input: GateInput = None,
    epsilon: Epsilon = 1e-3,
    needle: Annotated[
        bool, typer.Option("--needle", help="Also resume needle prompts with parts of the cache at zero.")
    ] = False,
    examples: Annotated[int, typer.Option(min=1, help="Needle prompts at each of five depths.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Compare a model's static retention horizons with observed decay and state magnitudes (DASC §3.4).

    The text is plain, or conversations in ShareGPT's JSON.
    """
    cutoffs = measuring.numbers(w_max, "--wmax")
    wanted = None if lengths is None else measuring.numbers(lengths, "--lengths")
    loaded = measuring.load_model(model, dtype, device, threads)
    from holdover.evaluation.retention.prefixes import select_prefixes, tiers
    from holdover.evaluation.retention.validate import agreement, calibrate_gate_input, observe_all
    from holdover.retention.decay import read_decay

    assert loaded.files is not None
    decay = read_decay(loaded.files)
    used = decay.gate_input if gate_input is None else gate_input
    static = decay.horizons(used, epsilon)
    chosen = select_prefixes(text, loaded.tokenizer, wanted or tiers(loaded.host.layout.max_context), prefixes)
    seen = list(measuring.tracked(observe_all(loaded.host, chosen, epsilon), len(chosen), "observing prefixes"))
    findings = _Findings(
        prefixes=chosen,
        gate_input=used,
        agreement=agreement(static, seen),
        calibration=calibrate_gate_input(lambda a_s: decay.horizons(a_s, epsilon), used, seen, cutoffs),
        scores=_needles(loaded, examples) if needle else [],
    )
    if as_json:
        typer.echo(json.dumps({"model": model, "digest": loaded.digest} | findings.facts(), indent=2, allow_nan=False))
    else:
        for table in findings.tables():
            measuring.show(table)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("validate")(validate)


def _needles(loaded: Loaded, per_depth: int) -> list[Score]:
    from holdover.evaluation.retention.intervention import draw_needles, intervene

    needles = draw_needles(loaded, _NEEDLE_TOKENS, per_depth)
    *_, scores = measuring.tracked(intervene(loaded, needles), len(needles), "zeroing parts of the cache")
    return scores


@dataclass(frozen=True)
class _Findings:
    prefixes: Sequence[Prefix]
    gate_input: float
    agreement: Agreement
    calibration: Calibration | None
    scores: Sequence[Score]

    def facts(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "prefixes": [{"source": p.source, "tokens": len(p.tokens)} for p in self.prefixes],
            "a_s": self.gate_input,
            "spearman": asdict(self.agreement),
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "needle": [asdict(score) | {"accuracy": score.accuracy} for score in self.scores],
        }

    def tables(self) -> Iterator[Table]:
        """Everything, for people."""
        yield self._agreement_table()
        if self.calibration is not None:
            yield _calibration_table(self.calibration)
        if self.scores:
            yield _needle_table(self.scores)

    def _agreement_table(self) -> Table:
        lengths = ", ".join(map(str, sorted({len(p.tokens) for p in self.prefixes}, reverse=True)))
        title = f"Spearman over {len(self.prefixes)} prefixes of {lengths} tokens, a_s {self.gate_input:g}"
        pairs = {"H_s, H_e": self.agreement.horizons, "H_s, M_S": self.agreement.magnitudes}
        rows = tuple((name, *_quartiles(found)) for name, found in pairs.items())
        return Table(title, ("pair", "median", "IQR", "prefix-layer pairs"), rows)


def _quartiles(found: Quartiles | None) -> tuple[str, str, str]:
    if found is None:
        return "undefined", "", "0"
    return f"{found.median:.3f}", f"{found.q1:.3f} to {found.q3:.3f}", str(found.count)


def _calibration_table(calibration: Calibration) -> Table:
    both = (calibration.used, calibration.fitted)
    rows = [
        ("Spearman H_s, H_e, median", *(_quartiles(one.agreement.horizons)[0] for one in both)),
        ("median |ln H_s - ln H_e|", *(f"{one.error:.3f}" for one in both)),
    ]
    for at in zip(*(one.cutoffs for one in both), strict=True):
        rows.append((f"units on the wrong side of {at[0].w_max}", *(f"{100 * c.wrong:.1f} %" for c in at)))
        near = ("none" if c.near_error is None else f"{c.near_error:.3f}" for c in at)
        rows.append((f"median |ln H_s - ln H_e| of units within a factor of 2 of {at[0].w_max}", *near))
    columns = ("", *(f"a_s {one.gate_input:g}" for one in both))
    return Table("a_s in use, and fitted on even prefixes: both judged on odd ones", columns, tuple(rows))


def _needle_table(scores: Sequence[Score]) -> Table:
    rows = tuple(
        (
            score.arm,
            f"{score.accuracy:.3f}",
            *(f"{right / score.asked[depth]:.2f}" for depth, right in score.right.items()),
            f"{100 * score.resumed / score.prompt:.1f} %",
        )
        for score in scores
    )
    columns = ("arm", "right", *(f"depth {depth:g}" for depth in scores[0].asked), "resumed tokens")
    asked = sum(scores[0].asked.values())
    return Table(f"{asked} needle prompts, resumed with a part of the cache at zero", columns, rows)
