"""These tests run where vLLM is installed (``make test-vllm``); elsewhere only those that need none are collected."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_NEED = ("test_connector.py", "test_decode_layer.py", "test_ranks.py", "test_serving.py", "test_setup.py")
collect_ignore_glob = [] if find_spec("vllm") else list(_NEED)

if find_spec("vllm") and not find_spec("torchvision"):
    # Qwen3.5 imports it even for text; vLLM looks at model classes in a process of their own
    _stub = str(Path(__file__).parent / "stub")
    sys.path.append(_stub)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_stub, os.environ.get("PYTHONPATH")]))
