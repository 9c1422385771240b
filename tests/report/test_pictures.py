import math
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO

import pytest
import torch
from matplotlib.image import imread

from holdover.report.page import render_page
from holdover.report.pictures import Picture, draw
from holdover.report.retention import RetentionReport
from holdover.report.tables import Table
from holdover.retention.decay import read_decay
from holdover.weights.source import open_files
from tests.cli.run import environment
from tests.report.build import kept, model_of

CAPTION = "of 640 layer-head pairs 20 (3.1 %) keep some, 600 none, 20 all; layer means 0.039 to 0.039"
GREY = 0.75


def one_and_a_quarter_heads(layer: object) -> torch.Tensor:
    return torch.where(torch.arange(32 * 128) < 160, 1000.0, 2.0)


@pytest.fixture(scope="module")
def heads() -> dict[str, Picture]:
    return {picture.name: picture for picture in draw(RetentionReport.of(read_decay(open_files("tiny-gdn")), [16, 64]))}


@pytest.fixture(scope="module")
def channels() -> dict[str, Picture]:
    report = RetentionReport.of(model_of("kimi-linear-48b-a3b", one_and_a_quarter_heads), [16])
    return {picture.name: picture for picture in draw(report)}


def grey_share(picture: Picture) -> float:
    pixels = torch.from_numpy(imread(BytesIO(picture.png))[..., :3].copy())
    return float(((pixels - GREY).abs() < 0.01).all(-1).double().mean())


def test_pictures_of_heads(heads: dict[str, Picture]) -> None:
    assert list(heads) == ["decay-profile", "head-horizons", "layer-means"]


def test_pictures_of_channels(channels: dict[str, Picture]) -> None:
    assert list(channels) == ["decay-profile", "retained-w16", "channels-w16", "layer-means"]
    assert CAPTION in channels["retained-w16"].caption
    assert "layer 0, whose retained fraction at 16 tokens (0.039)" in channels["channels-w16"].caption


def test_the_profile_has_the_median_decay() -> None:
    decay = model_of("kimi-linear-48b-a3b", lambda layer: kept(layer, 1000))
    profile = draw(RetentionReport.of(decay, [16]))[0]
    assert profile.caption.endswith(f"81,920 units, median {math.exp(math.log(1e-3) / 2):.3f}")


def test_attention_layers_are_grey(heads: dict[str, Picture], channels: dict[str, Picture]) -> None:
    # a quarter of the layers, of a map that fills most of the picture
    for picture in (heads["head-horizons"], channels["retained-w16"]):
        assert 0.1 < grey_share(picture) < 0.3
    assert grey_share(channels["channels-w16"]) < 0.01


class Page(HTMLParser):
    """Counts what a page holds, and collects what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.sources: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_is_whole_in_itself(heads: dict[str, Picture]) -> None:
    tables = [Table("<b>", ("a", "b"), (("1 < 2", "&"), ("3", "4"))), Table("no head", ("",), (("x",),))]
    pictures = {picture.caption: picture.png for picture in heads.values()}
    page = Page(render_page('a "model" <script>', ["note & note"], tables, pictures))
    assert (page.counts["img"], page.counts["tr"], page.counts["th"], page.counts["td"]) == (3, 4, 2, 5)
    assert {"<b>", "1 < 2", "note & note"} <= set(page.words)
    assert not page.counts.keys() & {"script", "link", "b"}
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)


def test_without_matplotlib_there_is_one_clear_line(tmp_path: object) -> None:
    code = (
        "import sys\nsys.modules['matplotlib'] = None\n"
        "from holdover.cli.main import app\napp(['inspect', 'tiny-gdn', '--png', sys.argv[1]])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: pictures need matplotlib")
    assert "holdover[report]" in done.stderr
