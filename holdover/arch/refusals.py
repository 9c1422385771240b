"""Why a model that is not in the registry is refused."""

from __future__ import annotations

from collections.abc import Iterable

from holdover.arch.fields import Fields

_MAMBA_1 = "its Mamba-1 layers ignore a cached state when more than one token follows, so nothing can be resumed"
_NO_RESUME = "its recurrent layers cannot resume a chunk of more than one token from a cached state"

# host model type or class name, lower case and without underscores, to the reason
_REFUSED = {
    **dict.fromkeys(("jamba", "jambaforcausallm"), _MAMBA_1),
    **dict.fromkeys(("mamba", "mambaforcausallm"), _MAMBA_1),
    **dict.fromkeys(("zamba", "zambaforcausallm"), _MAMBA_1),
    **dict.fromkeys(("falconmamba", "falconmambaforcausallm"), _MAMBA_1),
    **dict.fromkeys(("minimax", "minimaxforcausallm"), _NO_RESUME),
    **dict.fromkeys(("minimaxtext01", "minimaxtext01forcausallm", "minimaxm1", "minimaxm1forcausallm"), _NO_RESUME),
    **dict.fromkeys(("recurrentgemma", "recurrentgemmaforcausallm"), _NO_RESUME),
}

_ATTENTION_ONLY_NAMES = """
    cohere cohere2 deepseek_v2 deepseek_v3 exaone4 falcon gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text glm glm4
    glm4_moe gpt2 gpt_neox gpt_oss granite granitemoe granitemoeshared internlm2 llama llama4 llama4_text minimax_m2
    mistral mistral3 mixtral olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_vl
    smollm3 stablelm starcoder2
"""
# sections of a configuration that describe what reads something else than text
_OTHER_INPUTS = {"vision_config": "images", "audio_config": "audio", "thinker_config": "audio"}
_ATTENTION_ONLY = frozenset(_ATTENTION_ONLY_NAMES.split())
_ATTENTION_LAYERS = frozenset({"attention", "full_attention", "sliding_attention", "chunked_attention"})


def refusal(names: Iterable[str]) -> tuple[str, str] | None:
    """The first of ``names`` (model types and class names) that is known and refused, with the reason."""
    for name in names:
        reason = _REFUSED.get(name.lower().replace("_", ""))
        if reason is not None:
            return name, reason
    return None


def attention_only(fields: Fields, model_type: str | None) -> bool:
    """Whether a model outside the registry is known, or says of itself, to have no recurrent layer."""
    types = fields.get("layer_types", "layers_block_type")
    if isinstance(types, list) and types:
        return all(isinstance(entry, str) and entry in _ATTENTION_LAYERS for entry in types)
    return model_type in _ATTENTION_ONLY


def other_inputs(fields: Fields) -> str | None:
    """What a model outside the registry takes beside text, by its own configuration, or None."""
    return next((kind for name, kind in _OTHER_INPUTS.items() if fields.get(name) is not None), None)
