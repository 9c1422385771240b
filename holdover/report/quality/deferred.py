"""Whether decode from a log says what dense decode says, after DeltaLog's §5.5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, wrapped
from holdover.report.quality.results import Facts, ModelResults, Results
from holdover.report.quality.section import Section, grouped, interval, number, signed
from holdover.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

PROTOCOL = "deferred"
_TEXT = (
    "Dense decode continues every prefix greedily; each arm is forced through the same tokens from its log, named by "
    "its merge interval and the dtypes of its keys and values. KL is of the next token's distribution, dense ‖ arm, "
    "in nats; tokens agree where both find the same one most probable. `prefill` runs the same tokens in one go, "
    "without a log: the yardstick of what rounding alone does. Prefixes are the unit of the intervals."
)
_ROWS = (
    "arm", "tokens", "mean KL", "95 % interval", "P95", "largest", "tokens agree", "95 % interval", "n"
)  # fmt: skip
_OVERALL = ("arm", "KL, last less first", "95 % interval", "tokens before one differs", "95 % interval",
            "prefixes without", "state error", "from the log", "n")  # fmt: skip
# differences below this are lost in single precision on a log axis
_LEAST = 1e-16


def deferred(results: Results) -> Section | None:
    """The section; None where the protocol was not run."""
    models = [model for model in results.models if model.of(PROTOCOL)]
    if not models:
        return None
    tables = [table for model in models for table in _tables(model)]
    return Section("Decode from a log (DeltaLog)", (_TEXT,), tuple(tables), (_picture(models),))


def _tables(model: ModelResults) -> Iterator[Table]:
    for name, facts in model.of(PROTOCOL):
        title = f"{model.name}, {name}: by position, {facts['dtype']}"
        yield Table(title, _ROWS, tuple(map(_row, facts["rows"])))
        yield Table(f"{model.name}, {name}: whole continuations", _OVERALL, tuple(map(_overall, facts["overall"])))


def _row(row: Facts) -> tuple[str, ...]:
    return (
        row["arm"],
        f"{row['first']} to {row['last']}",
        number(row["mean"]),
        interval(row["low"], row["high"]),
        number(row["p95"]),
        number(row["largest"]),
        f"{row['agreement']:.2%}",
        interval(row["agreement_low"], row["agreement_high"]),
        str(row["count"]),
    )


def _overall(row: Facts) -> tuple[str, ...]:
    return (
        row["arm"],
        signed(row["growth"]),
        interval(row["growth_low"], row["growth_high"], signed),
        number(row["same"]),
        interval(row["same_low"], row["same_high"]),
        f"{row['never']:.0%}",
        number(row["state_error"]),
        f"{row['appended']:,}",
        str(row["count"]),
    )


def _picture(models: list[ModelResults]) -> Picture:
    def draw(axes: Axes, facts: Facts) -> None:
        for at, (arm, rows) in enumerate(grouped(facts["rows"], lambda row: str(row["arm"])).items()):
            # the last row is of all tokens where there is more than one bucket
            parts = rows[:-1] or rows
            x = [(row["first"] + row["last"]) / 2 for row in parts]
            mean, low, high = ([max(row[name], _LEAST) for row in parts] for name in ("mean", "low", "high"))
            axes.plot(x, mean, marker=".", linewidth=0.9, label=arm, color=f"C{at % 10}")
            axes.fill_between(x, low, high, alpha=0.15, color=f"C{at % 10}")
        axes.set(xlabel="token of the continuation", ylabel="mean KL in nats", yscale="log")

    cells = {f"{model.name}, {name}": facts for model in models for name, facts in model.of(PROTOCOL)}
    return plot_of("deferred", "KL of decode from a log to dense decode by position", panels(wrapped(cells), draw))
