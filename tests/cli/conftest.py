from pathlib import Path

import pytest

from tests.server import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("tiny") / "tiny-model")
