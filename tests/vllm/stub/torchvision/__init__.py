"""Stands in for torchvision, which vLLM's text models import for the sake of their multimodal relatives.

PyPI's torchvision needs a CUDA build of torch. Every name is a class without instances' behaviour, whose attributes
are their own names: enough to be imported, and of no use beyond.
"""

import sys
import types
from typing import ClassVar

__version__ = "0.28.0"

_MODULES = ("io", "ops", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional")


class _Named(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Stub(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


for _name in _MODULES:
    sys.modules[f"{__name__}.{_name}"] = _Stub(f"{__name__}.{_name}")
for _name in _MODULES:
    _parent, _, _child = f"{__name__}.{_name}".rpartition(".")
    setattr(sys.modules[_parent], _child, sys.modules[f"{__name__}.{_name}"])
