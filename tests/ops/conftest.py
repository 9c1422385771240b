from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_inference() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
