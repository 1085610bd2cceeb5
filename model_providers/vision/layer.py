"""One transformer layer of an image encoder over packed image tokens.

Subclasses of Megatron's modules: parameters, sharding and state-dict keys are Megatron's, or those of the layers in its
multimodal examples; the forward pass is the serving one.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from model_providers.backends.activation import Activation
from model_providers.kernels.library import Kernels
from model_providers.vision.attention import ImageLengths, attend_within_images


class VisionSelfAttention(SelfAttention):  # type: ignore[misc]
    """Self-attention within each image; heads are cut among tensor-parallel ranks."""

    kernels: Kernels | None = None  # set by the encoder once the weights are loaded

    def forward_images(self, normed: Tensor, images: ImageLengths) -> Tensor:
        """normed (T, hidden) -> (T, hidden), the output projection included."""
        heads, head_dim = self.num_attention_heads_per_partition, self.hidden_size_per_attention_head
        # Megatron lays the projection out per head: its query, its key, its value.
        qkv = self.linear_qkv.apply(normed).view(-1, heads, 3, head_dim)
        out: Tensor = self.linear_proj.apply(self._attend(qkv, images))
        return out

    def _attend(self, qkv: Tensor, images: ImageLengths) -> Tensor:
        return attend_within_images(qkv, images, self.hidden_size_per_attention_head**-0.5, self.kernels)


class HeadsNorm(nn.Module):
    """RMSNorm over all heads of a token together, with the heads cut among tensor-parallel ranks.

    The weight is this rank's part. Source: InternViTRMSNorm in Megatron-LM's examples/multimodal/nvlm/internvit.py.
    """

    def __init__(self, config: Any, heads_per_rank: int, num_real_heads: int, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads_per_rank * config.kv_channels, dtype=config.params_dtype))
        set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=0, stride=1)
        self.eps: float = config.layernorm_epsilon
        self._num_real_heads = num_real_heads
        self._tp_group = tp_group

    def forward(self, heads: Tensor) -> Tensor:
        """(T, heads, head_dim) -> the same. Heads that are padding count as nothing."""
        count, head_dim = heads.shape[1:]
        real = max(0, min(count, self._num_real_heads - self._tp_group.rank() * count))
        squares = heads[:, :real].float().square().sum(dim=(1, 2))
        if self._tp_group.size() > 1:
            # Gathered and then added: an all-reduce adds in an order that depends on where in the batch a token lies.
            parts = [torch.empty_like(squares) for _ in range(self._tp_group.size())]
            dist.all_gather(parts, squares, group=self._tp_group)
            squares = reduce(torch.add, parts)
        inverse = torch.rsqrt(squares / (self._num_real_heads * head_dim) + self.eps)
        return (heads.float() * inverse[:, None, None]).to(heads.dtype) * self.weight.view(count, head_dim)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Megatron's description of which part of the whole this rank holds."""
        state = self.state_dict(prefix="", keep_vars=True)
        groups = {"tp_group": self._tp_group, "dp_cp_group": metadata["dp_cp_group"]}
        return make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0}, sharded_offsets, **groups)


class InternViTSelfAttention(VisionSelfAttention):
    """Queries and keys normalised over all heads together; heads beyond the real ones are padding and give nothing.

    Training pads InternViT's 25 heads to a multiple of its tensor-parallel size.
    """

    num_real_heads = 25

    def __init__(self, config: Any, submodules: SelfAttentionSubmodules, *args: Any, **options: Any) -> None:
        super().__init__(config, submodules, *args, **options)
        # Every linear layer has a bias but this one; Megatron's SelfAttention cannot say so.
        self.linear_qkv = submodules.linear_qkv(
            config.hidden_size,
            self.query_projection_size + 2 * self.kv_projection_size,
            config=config,
            init_method=config.init_method,
            gather_output=False,
            bias=False,
            skip_bias_add=False,
            is_expert=False,
            tp_comm_buffer_name="qkv",
            tp_group=self.pg_collection.tp,
        )
        heads = self.num_attention_heads_per_partition
        real = min(self.num_real_heads, self.config.num_attention_heads)
        self._num_real_heads = real
        self.q_layernorm = HeadsNorm(self.config, heads, real, self.pg_collection.tp)
        self.k_layernorm = HeadsNorm(self.config, heads, real, self.pg_collection.tp)

    def _attend(self, qkv: Tensor, images: ImageLengths) -> Tensor:
        query, key, value = qkv.unbind(2)
        normed = torch.stack((self.q_layernorm(query), self.k_layernorm(key), value), dim=2)
        attended = super()._attend(normed, images)
        heads = self.num_attention_heads_per_partition
        real = max(0, min(heads, self._num_real_heads - self.pg_collection.tp.rank() * heads))
        attended[:, real * self.hidden_size_per_attention_head :] = 0
        return attended


class ServingVisionLayer(TransformerLayer):  # type: ignore[misc]
    """forward_images is the whole layer."""

    activation: Activation  # set by the encoder once the layer is built

    def forward_images(self, residual: Tensor, update: Tensor | None, images: ImageLengths) -> tuple[Tensor, Tensor]:
        """residual (T, hidden), packed, and what the layer before still has to add to it -> the same pair for the next.

        Handing the last addition on lets each norm take it together with its own work.
        """
        if update is None:
            normed = self.input_layernorm(residual)
        else:
            residual, normed = self.input_layernorm.add(residual, update)
        residual, normed = self.pre_mlp_layernorm.add(residual, self._attention(normed, images))
        return residual, self._mlp(normed)

    def _attention(self, normed: Tensor, images: ImageLengths) -> Tensor:
        attended: Tensor = self.self_attention.forward_images(normed, images)
        return attended

    def _mlp(self, normed: Tensor) -> Tensor:
        out: Tensor = self.mlp.linear_fc2.apply(self.activation(self.mlp.linear_fc1.apply(normed)))
        return out


class LayerScalingVisionLayer(ServingVisionLayer):
    """Each half's result is scaled per channel, by ls1 and ls2, before it is added.

    Source: LayerScalingTransformerLayer in Megatron-LM's examples/multimodal/layer_scaling.py.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        shape, dtype = self.config.hidden_size, self.config.params_dtype
        self.ls1 = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.ls2 = nn.Parameter(torch.empty(shape, dtype=dtype))

    def _attention(self, normed: Tensor, images: ImageLengths) -> Tensor:
        return super()._attention(normed, images) * self.ls1

    def _mlp(self, normed: Tensor) -> Tensor:
        return super()._mlp(normed) * self.ls2
