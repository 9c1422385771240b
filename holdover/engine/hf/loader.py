"""From a directory or a hub id to a model that runs on Holdover's pools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from holdover.arch.layout import ModelLayout
from holdover.arch.registry import architecture_of, layout_from_config
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.mixers import check_runnable
from holdover.engine.hf.mtp import attach_head, head_names
from holdover.engine.hf.sharding import cut_model
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.engine.host import Host
from holdover.engine.parallel.shard import Shard
from holdover.engine.sampling import SamplingDefaults
from holdover.errors import ConfigError, WeightsError
from holdover.weights.check import check_files
from holdover.weights.digest import model_digest
from holdover.weights.source import ModelFiles, resolve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """A model ready to run.

    Attributes:
        name: what it was asked for by.
        host: the model.
        tokenizer: its tokenizer.
        model_digest: identifies weights and configuration.
        dtype: what it runs in.
        defaults: its sampling defaults.
        end_tokens: tokens that end a text.
        files: its files; None for a model that was built in memory.
        shard: the part of it that this rank has; None for all of it.
    """

    name: str
    host: Host
    tokenizer: Tokenizer
    model_digest: str
    dtype: str
    defaults: SamplingDefaults
    end_tokens: frozenset[int]
    files: ModelFiles | None = None
    shard: Shard | None = None

    @property
    def digest(self) -> str:
        """Identifies in cache keys what computes: weights, configuration and dtype."""
        return f"{self.model_digest}:{self.dtype}"


def load(
    model: str, *, dtype: str = "auto", device: str = "auto", head: bool = False, shard: Shard | None = None
) -> Loaded:
    """Load a model.

    Args:
        model: name of a bundled model, a directory, or a hub id.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto`` for fp32 on a CPU and the published one elsewhere.
        device: a torch device, or ``auto`` for a GPU if there is one.
        head: whether to load the model's MTP head too.
        shard: the part of it that this rank computes; None for all.

    Raises:
        WeightsError: files are missing, truncated or not what their index says.
        UnsupportedArchitectureError: the architecture is unknown or refused, or no mixer here computes it.
        ConfigError: dtype or device cannot be had, the model does not fit, or it has no MTP head.
        PlanError: its parameters cannot be split over ranks.
    """
    files = resolve(model)
    place = _device(device)
    layout = layout_from_config(files.config)
    check_runnable(layout)
    dtype_name = _dtype(dtype, layout, place)
    headers = check_files(files)
    if head:
        head_names(files, headers, layout)
    layout = layout_from_config(files.config, dtype=dtype_name)
    # what is small first: loading the weights takes minutes
    tokenizer = Tokenizer(files.path)
    generation = _generation_config(files)
    host = _host(_load_weights(files, dtype_name), files, layout, place, shard)
    if head:
        attach_head(host, files, headers)
    return Loaded(
        name=model,
        host=host,
        tokenizer=tokenizer,
        model_digest=model_digest(files),
        dtype=dtype_name,
        defaults=_defaults(generation),
        end_tokens=_end_tokens(generation, tokenizer),
        files=files,
        shard=shard,
    )


def _host(
    model: PreTrainedModel, files: ModelFiles, layout: ModelLayout, place: torch.device, shard: Shard | None
) -> HostModel:
    if shard is None:
        return HostModel(_place(model, place), layout)
    # before it is placed: no device holds more than its part
    cut_model(model, architecture_of(files.config), layout.state, shard)
    return HostModel(_place(model, place), shard.cut(layout), shard.ranks.sum)


def _load_weights(files: ModelFiles, dtype: str) -> PreTrainedModel:
    # kernels that Transformers would fall back from are not used here, so its warnings about them mislead
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        loading: Any = AutoModelForCausalLM.from_pretrained
        model, info = loading(
            files.path, dtype=DTYPES[dtype], trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        # the libraries below raise what they like
        raise WeightsError(f"{files.path} could not be loaded: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise WeightsError(f"{files.path} lacks {len(missing)} tensors, among them {missing[:3]}")
    loaded: PreTrainedModel = model
    return loaded


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is not a torch device: {error}") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} was asked for, but torch finds no GPU")
    if place.type == "cuda" and place.index not in (None, torch.cuda.current_device()):
        # kernels are launched where the process's current device is, whatever their arguments' is
        raise ConfigError(
            f"device {device!r} is not the current one: set CUDA_VISIBLE_DEVICES={place.index} and say --device cuda"
        )
    try:
        torch.zeros(1, device=place).item()
    except Exception as error:
        # an index too high, a backend that this torch was built without, a device without memory
        raise ConfigError(f"device {device!r} cannot be used: {' '.join(str(error).split())[:200]}") from error
    return place


def _place(model: Any, device: torch.device) -> PreTrainedModel:
    try:
        placed: PreTrainedModel = model.to(device)
    except RuntimeError as error:
        raise ConfigError(f"the model does not fit on {device}: {' '.join(str(error).split())[:200]}") from error
    return placed


def _dtype(dtype: str, layout: ModelLayout, device: torch.device) -> str:
    if dtype == "auto":
        return "float32" if device.type == "cpu" else layout.dtype
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of auto, {', '.join(DTYPES)}")
    return dtype


def _generation_config(files: ModelFiles) -> dict[str, Any]:
    path = files.path / "generation_config.json"
    if not path.exists():
        return {}
    try:
        loaded: dict[str, Any] = GenerationConfig.from_dict(json.loads(path.read_text("utf-8"))).to_dict()
    except Exception as error:
        # some values fail only where the library uses them
        raise ConfigError(f"{path} is not valid: {error}") from error
    return loaded


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    if not generation.get("do_sample"):
        return SamplingDefaults()
    return SamplingDefaults(
        temperature=_or(generation.get("temperature"), 1.0),
        top_p=_or(generation.get("top_p"), 1.0),
        top_k=_or(generation.get("top_k"), 0),
        min_p=_or(generation.get("min_p"), 0.0),
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _end_tokens(generation: dict[str, Any], tokenizer: Tokenizer) -> frozenset[int]:
    declared = generation.get("eos_token_id")
    if declared is None:
        return tokenizer.end_tokens
    return frozenset([declared] if isinstance(declared, int) else declared)
