"""One server for all tests of this folder; after each, every pool must balance."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import tiny
from tests.server.live import Live, running


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def shared(model: Path) -> Iterator[Live]:
    with running(model) as live:
        yield live


@pytest.fixture
def server(shared: Live) -> Iterator[Live]:
    """The server with an empty cache."""
    shared.flush()
    yield shared
    shared.check()
