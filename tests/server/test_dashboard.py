"""The dashboard asks for nothing that the server does not have."""

import json
import re

from tests.project.paths import ROOT
from tests.server.live import Live
from tests.server.test_metrics import scrape


def test_every_metric_exists(server: Live) -> None:
    panels = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"holdover_\w+", one["expr"])}
    server.complete("the cat")
    had = {name.split(",")[0] for name in scrape(server)}
    # only where there are shelves
    assert asked - had <= {"holdover_spill_total"}
    assert len(asked) > 15
    assert len({panel["id"] for panel in panels}) == len(panels)
