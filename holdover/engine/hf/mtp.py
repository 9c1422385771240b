"""The head for multi-token prediction that Qwen3-Next, Qwen3.5 and Qwen3.6 are published with (tensors ``mtp.*``).

With ``h_p``, the model's final hidden state at position ``p``, and the next token ``t_{p+1}``, it computes
``g_p = norm(layer(fc([norm_e(embed(t_{p+1})), norm_h(h_p)])))``, whose logits are a guess at token ``p + 2``. The
layer is an ordinary attention layer of the model at position ``p`` with KV of its own; embedding and output matrix are
the model's. Taken for ``h_{p+1}``, ``g_p`` gives the guess after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from holdover.arch.layout import ModelLayout
from holdover.engine.hf import norms
from holdover.engine.hf.host import HostModel
from holdover.engine.step import Step
from holdover.errors import ConfigError, WeightsError
from holdover.weights.files import ModelFiles
from holdover.weights.header import Header
from holdover.weights.read import read_tensors

_PREFIX = "mtp."
_EXPERTS = "layers.0.mlp.experts."
_ARCHITECTURES = frozenset({"qwen3_5", "qwen3_next"})


class MTPHead:
    """The head of a loaded model, on Holdover's KV rows.

    Args:
        host: the model, in its final dtype and place.
        tensors: the head's tensors by their names below ``mtp.``.

    Raises:
        WeightsError: they are not those of such a head.
    """

    def __init__(self, host: HostModel, tensors: Mapping[str, torch.Tensor]) -> None:
        model = host.model
        like = model.lm_head.weight
        fused = {name: tensor.to(like.device, like.dtype) for name, tensor in _fuse_experts(tensors).items()}
        self._modules = _Modules(model.model, host.layout.num_layers, is_sparse=f"{_EXPERTS}down_proj" in fused)
        try:
            self._modules.load_state_dict(fused, assign=True)
        except RuntimeError as error:
            raise WeightsError(
                f"the checkpoint's MTP head is none that can be run here ({' '.join(str(error).split())[:300]}): "
                "use --speculate ngram"
            ) from None
        self._modules.eval().requires_grad_(False)
        norms.install(self._modules)
        self._embed, self._rotary, self._output = model.model.embed_tokens, model.model.rotary_emb, model.lm_head
        self._cache_keyword = host.cache_keyword

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, step: Step) -> torch.Tensor:
        """Run the head over pairs of a hidden state and the token after it; see `DraftHead.forward`."""
        m = self._modules
        pair = [m.pre_fc_norm_embedding(self._embed(tokens)), m.pre_fc_norm_hidden(hidden)]
        x = m.fc(torch.cat(pair, dim=-1))
        x = m.layers[0](
            x,
            position_embeddings=self._rotary(x, positions),
            attention_mask=None,
            position_ids=positions,
            step=step,
            **{self._cache_keyword: step},
        )
        out: torch.Tensor = m.norm(x)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., vocabulary]`` of the head's hidden states."""
        out: torch.Tensor = self._output(hidden)
        return out


def attach_head(host: HostModel, files: ModelFiles, headers: Mapping[str, Header]) -> None:
    """Read a checkpoint's head and attach it to the model that was loaded from the same files.

    Raises:
        ConfigError: there is none.
        WeightsError: it is none that can be run.
    """
    names = head_names(files, headers, host.layout)
    tensors = read_tensors(files, names, headers=headers)
    head = MTPHead(host, {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()})
    host.attach(head, with_head(host.layout))


def head_names(files: ModelFiles, headers: Mapping[str, Header], layout: ModelLayout) -> list[str]:
    """Names of the tensors of a checkpoint's head.

    Raises:
        ConfigError: the checkpoint has none, or its architecture no such head.
    """
    names = [name for header in headers.values() for name in header.tensors if name.startswith(_PREFIX)]
    if layout.architecture not in _ARCHITECTURES or not names:
        raise ConfigError(
            f"{files.place} ({layout.architecture}) has no MTP head to draft with (tensors {_PREFIX}* of Qwen3-Next, "
            "Qwen3.5 or Qwen3.6): use --speculate ngram"
        )
    return names


def with_head(layout: ModelLayout) -> ModelLayout:
    """The layout of a model with its head, whose KV is one more layer behind the stack."""
    layer = replace(layout.kv.layers[-1], index=layout.num_layers)
    return replace(layout, kv=replace(layout.kv, layers=(*layout.kv.layers, layer)))


class _Modules(nn.Module):
    """The head's parameters under their published names, without values."""

    def __init__(self, stack: Any, index: int, *, is_sparse: bool) -> None:
        super().__init__()
        config, norm = _layer_config(stack.config, index, is_sparse=is_sparse), type(stack.norm)
        width, eps = config.hidden_size, config.rms_norm_eps
        with torch.device("meta"):
            self.fc = nn.Linear(2 * width, width, bias=False)
            self.pre_fc_norm_embedding = norm(width, eps=eps)
            self.pre_fc_norm_hidden = norm(width, eps=eps)
            self.layers = nn.ModuleList([type(stack.layers[0])(config, index)])
            self.norm = norm(width, eps=eps)


def _layer_config(config: Any, index: int, *, is_sparse: bool) -> Any:
    """The model's configuration with one attention layer more, with experts or without."""
    config = deepcopy(config)
    config.layer_types = [*config.layer_types, "full_attention"]
    # only Qwen3-Next chooses by layer; what the head has is in its tensors
    config.mlp_only_layers = [] if is_sparse else [index]
    config.decoder_sparse_step = 1
    return config


def _fuse_experts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join experts that are published one by one: ``gate_up_proj [E, 2 I, hidden]``, ``down_proj [E, hidden, I]``."""
    single = {name for name in tensors if name.startswith(_EXPERTS) and name.endswith("_proj.weight")}
    fused = {name: tensor for name, tensor in tensors.items() if name not in single}
    if single:
        count = 1 + max(int(name.removeprefix(_EXPERTS).split(".")[0]) for name in single)
        gate, up, down = (_experts(tensors, part, range(count)) for part in ("gate", "up", "down"))
        fused[f"{_EXPERTS}gate_up_proj"] = torch.cat([gate, up], dim=1)
        fused[f"{_EXPERTS}down_proj"] = down
    return fused


def _experts(tensors: Mapping[str, torch.Tensor], part: str, experts: Iterable[int]) -> torch.Tensor:
    names = [f"{_EXPERTS}{expert}.{part}_proj.weight" for expert in experts]
    if missing := [name for name in names if name not in tensors]:
        raise WeightsError(f"the checkpoint's MTP head lacks {len(missing)} tensors, among them {missing[0]}")
    return torch.stack([tensors[name] for name in names])
