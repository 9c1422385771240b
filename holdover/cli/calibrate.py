"""``holdover calibrate``: measure on real text what a retention plan costs, and record the plan that is worth it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli import loading, measuring
from holdover.cli.errors import Debug
from holdover.cli.plan import Epsilon, GateInput
from holdover.errors import ConfigError, PlanError
from holdover.report.tables import Table, size

if TYPE_CHECKING:
    import torch

    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.retention.design import Design
    from holdover.evaluation.retention.points import Samples
    from holdover.retention import OperatingPoint, RetentionPlan

_COLUMNS = (
    "W_max",
    "refresh",
    "element",
    "mean KL",
    "95 % interval",
    "P95 KL",
    "at first",
    "worst layer",
    "bytes",
    "ms",
    "",
)


def calibrate(
    model: loading.Model,
    text: measuring.Text,
    budget: Annotated[float, typer.Option(help="Largest acceptable P95 of the KL to exact, in nats a token.")],
    w_max: measuring.Cutoffs = "16,32,64,128,256,512",
    continuations: Annotated[int, typer.Option(min=1, help="Resumed continuations.")] = 200,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 64,
    prefix: Annotated[
        int, typer.Option(min=1, help="Longest prefix in tokens; prefixes are as long as 1/16, 2/16, ... of it.")
    ] = 2048,
    gate_input: GateInput = None,
    epsilon: Epsilon = 1e-3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; in the user's plan directory if unset.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Find the largest cutoff whose restored states stay within a budget, and write its plan with what was measured.

    At every cutoff, omitted units are left at zero or replayed, and retained ones stored in full or as INT8. If no
    point meets the budget, nothing is written.
    """
    cutoffs = measuring.numbers(w_max, "--wmax")
    if not budget >= 0:
        raise ConfigError(f"--budget is {budget:g}; wanted nats, at least 0")
    if output is not None and output.exists() and not force:
        raise PlanError(f"{output} exists: choose another file with -o, or overwrite it with --force")
    from holdover.evaluation.retention.design import Design
    from holdover.evaluation.retention.gate import choose, record
    from holdover.evaluation.retention.prefixes import read_text
    from holdover.retention.decay import read_decay
    from holdover.retention.plan import RetentionPlan
    from holdover.retention.plan_file import user_plan, write_plan

    content, design = read_text(text), Design(continuations, tokens, prefix)
    loaded = measuring.load_model(model, dtype, device, threads)
    assert loaded.files is not None
    decay = read_decay(loaded.files)
    path = user_plan(decay.fingerprint) if output is None else output
    if path.exists() and not force:
        raise PlanError(f"{path} exists: choose another file with -o, or overwrite it with --force")
    plans = {w: RetentionPlan.of(decay, w, gate_input=gate_input, epsilon=epsilon) for w in cutoffs}
    samples = _measure(loaded, list(plans.values()), content, design)
    points = [one.point() for one in samples]
    chosen = choose(points, budget)
    measuring.show(_table(samples, points, chosen))
    typer.echo(f"{design.measured} continuations of {tokens} tokens; times on {_machine(loaded.host.device)}")
    if chosen is None:
        best = min(point.p95_kl for point in points)
        raise PlanError(
            f"no operating point meets the budget of {budget:g} nats: the best P95 is {best:.3g}; nothing was written. "
            "Try lower --wmax, or a larger --budget"
        )
    plan = record(
        plans[chosen.w_max],
        points,
        chosen,
        budget,
        model_digest=loaded.model_digest,
        text_digest=hashlib.sha256(content.encode()).hexdigest(),
        design=design,
    )
    write_plan(plan, path)
    kept = plan.offsets[-1]
    cost = f"{size(chosen.checkpoint_bytes)}, restored in {chosen.restore_ms:.1f} ms"
    typer.echo(
        f"chose W_max {plan.w_max}, which keeps {kept:,} of {plan.units:,} units, with refresh {chosen.refresh} and "
        f"{chosen.element} elements: {cost}; wrote {path}"
    )


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("calibrate")(calibrate)


def _measure(loaded: Loaded, plans: Sequence[RetentionPlan], text: str, design: Design) -> list[Samples]:
    from holdover.evaluation.retention.sweep import measure

    tokens = loaded.tokenizer.encode(text)
    design.check(len(tokens), [plan.w_max for plan in plans], loaded.host.layout.max_context)
    steps = measure(loaded.host, plans, tokens, design)
    *_, samples = measuring.tracked(steps, design.measured, f"measuring {design.measured} continuations")
    return samples


def _table(samples: Sequence[Samples], points: Sequence[OperatingPoint], chosen: OperatingPoint | None) -> Table:
    rows = []
    for one, point in zip(samples, points, strict=True):
        low, high = one.mean_interval()
        rows.append(
            (
                str(point.w_max),
                point.refresh,
                point.element,
                f"{point.mean_kl:.2g}",
                f"{low:.2g} to {high:.2g}",
                f"{point.p95_kl:.2g}",
                f"{point.first_kl:.2g}",
                f"{point.worst_layer_error:.2g}",
                size(point.checkpoint_bytes),
                f"{point.restore_ms:.2f}",
                "chosen" if point is chosen else "",
            )
        )
    return Table("", _COLUMNS, tuple(rows))


def _machine(device: torch.device) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def _cpu_name() -> str:
    """The processor's name, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
