"""From a resolved document to an engine that is loaded and warm, on this rank."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import torch
import torch.distributed as dist

from model_providers import get_model
from model_providers.backends.attention import AttentionBackend, attention_for
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.prepare import weights_bytes
from model_providers.config import ModelConfig
from model_providers.gpt import ServingGPTModel
from model_providers.kernels.library import kernels_for
from model_providers.parallel import initialize_tensor_parallel
from server.config import EngineConfig, ResolvedDocument
from server.engine.block_pool import BlockPool
from server.engine.cuda_graphs import CudaGraphRecorder, collectives_can_be_recorded
from server.engine.decode_batch import batch_sizes
from server.engine.decode_graphs import DecodeGraphs, DecodeShape
from server.engine.engine import Engine
from server.engine.freed_memory import return_freed_memory
from server.engine.grammar_admission import GrammarAdmission
from server.engine.grammar_compiler import GrammarCompiler
from server.engine.image_cache import ImageCache
from server.engine.image_runner import ImageRunner, SeesImages
from server.engine.input_builder import StepInput
from server.engine.input_transfer import PackedTransfer
from server.engine.model_runner import ModelRunner
from server.engine.scheduler import Scheduler, SchedulerLimits
from server.engine.step_cost import StepCost
from server.errors import ConfigurationError
from server.ipc import EngineLimits

logger = logging.getLogger(__name__)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class BuiltRank:
    """One rank, ready. engine is for rank 0 alone to use; the others follow with `runner`."""

    runner: ModelRunner
    engine: Engine
    limits: EngineLimits
    weights_bytes: int
    kv_cache_bytes: int
    load_seconds: float


def build_rank(document: ResolvedDocument) -> BuiltRank:
    """Load the model and allocate its KV cache. The default process group exists and spans all ranks.

    Raises ModelProviderError for a checkpoint that does not fit, ConfigurationError for a machine that does not.
    """
    started = time.monotonic()
    engine_config = EngineConfig.from_values(document.values)
    model_config = model_config_of(document, engine_config)
    initialize_tensor_parallel(model_config.tensor_model_parallel_size, timeout_seconds=engine_config.rank_timeout)
    is_vlm = document.kind == "vlm"
    model = get_model(is_vlm, model_config)
    return_freed_memory()
    attention = attention_for(model_config)
    records_graphs = _records_graphs(model_config, engine_config, attention)
    # One block more than sequences get: what fills a recorded batch up must write somewhere.
    num_spare_blocks = int(records_graphs)
    cache = _allocate_cache(model, model_config, engine_config, attention, num_spare_blocks)
    limits = _limits(model_config, engine_config, cache.num_blocks - num_spare_blocks)
    world_size = dist.get_world_size()
    plan_group = dist.group.WORLD if world_size > 1 else None
    runner = ModelRunner(
        model,
        cache,
        attention,
        vocab_size=model_config.vocab_size,
        device=model_config.device,
        world_size=world_size,
        plan_group=plan_group,
        images=ImageRunner(cast(SeesImages, model), model_config.device, plan_group) if is_vlm else None,
        graphs=_decode_graphs(model, cache, attention, limits) if records_graphs else None,
    )
    scheduler = Scheduler(
        SchedulerLimits(
            max_batched_tokens=limits.max_batched_tokens,
            max_running_requests=limits.max_running_requests,
            max_model_len=limits.max_model_len,
            block_size=limits.block_size,
            prefix_caching=engine_config.prefix_caching,
            speculative_tokens=engine_config.speculative_tokens,
        ),
        BlockPool(limits.num_blocks),
        _image_cache(model, model_config, engine_config) if is_vlm else None,
        StepCost(engine_config.max_decode_slowdown) if engine_config.max_decode_slowdown else None,
    )
    return BuiltRank(
        runner=runner,
        engine=Engine(
            runner,
            scheduler,
            GrammarAdmission(_grammar_compiler(document, model_config)),
            # Logits are float32, whatever the model's dtype.
            kernels_for(model_config.kernels, torch.float32, model_config.device),
        ),
        limits=limits,
        weights_bytes=weights_bytes(model),
        kv_cache_bytes=cache.num_blocks * _bytes_per_block(model, model_config, engine_config),
        load_seconds=time.monotonic() - started,
    )


def _records_graphs(model_config: ModelConfig, engine_config: EngineConfig, attention: AttentionBackend) -> bool:
    if not engine_config.cuda_graphs or model_config.device.type != "cuda" or not attention.is_capturable:
        return False
    if not collectives_can_be_recorded():
        logger.warning("CUDA graphs are off: the ranks do not talk through NCCL")
        return False
    return True


def _decode_graphs(
    model: ServingGPTModel, cache: KVCache, attention: AttentionBackend, limits: EngineLimits
) -> DecodeGraphs:
    def forward(step: StepInput) -> torch.Tensor:
        return model.forward_packed(step.token_ids, step.metadata, cache, attention)

    shape = DecodeShape(
        batch_sizes=batch_sizes(limits.max_running_requests),
        block_size=limits.block_size,
        table_width=-(-limits.max_model_len // limits.block_size),
        spare_block=limits.num_blocks,
    )
    return DecodeGraphs(forward, CudaGraphRecorder(cache.device), PackedTransfer(cache.device), shape)


def _grammar_compiler(document: ResolvedDocument, model_config: ModelConfig) -> GrammarCompiler | None:
    if dist.get_rank() != 0:
        return None
    return GrammarCompiler(Path(document.values["tokenizer_model"]), model_config.vocab_size)


def model_config_of(document: ResolvedDocument, engine_config: EngineConfig) -> ModelConfig:
    """The provider's view of the document, on this rank's device."""
    values = document.values
    device = torch.device(engine_config.device)
    if device.type == "cuda":
        # torchrun's number of this rank on its machine: beside this group others may run there (offline evaluation).
        local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return ModelConfig(
        values=values,
        checkpoint=Path(document.checkpoint.path),
        checkpoint_format=document.checkpoint.format,
        dtype=_DTYPES[engine_config.dtype],
        device=device,
        tensor_model_parallel_size=values["tensor_model_parallel_size"],
        vocab_size=_samplable(values),
        max_model_len=_derived(engine_config.max_model_len),
        packed_linears=engine_config.linear_backend == "packed",
        kernels=engine_config.kernels,
        batch_invariant=engine_config.batch_invariant,
        all_reduce=engine_config.all_reduce,
        rank_timeout=engine_config.rank_timeout,
        quantize=engine_config.quantize,
    )


def _samplable(values: Mapping[str, Any]) -> int:
    """Ids that exist: rows of the checkpoint, less those beyond the tokenizer's vocabulary, which are padding."""
    rows: int = values["padded_vocab_size"]
    known = values["vocab_size"]
    return rows if known is None else min(rows, known)


def _derived(value: int | None) -> int:
    assert value is not None, "the resolver derives it"
    return value


def _limits(model_config: ModelConfig, engine_config: EngineConfig, num_blocks: int) -> EngineLimits:
    block_size = _derived(engine_config.block_size)
    capacity = num_blocks * block_size
    max_model_len = min(model_config.max_model_len, capacity)
    if max_model_len < model_config.max_model_len:
        logger.warning(
            "the KV cache holds %d tokens, so sequences end at %d tokens instead of %d; --kv-cache-gb sets its size",
            capacity,
            max_model_len,
            model_config.max_model_len,
        )
    return EngineLimits(
        vocab_size=model_config.vocab_size,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        max_batched_tokens=engine_config.max_batched_tokens,
        max_running_requests=engine_config.max_running_requests,
    )


def _bytes_per_block(model: ServingGPTModel, model_config: ModelConfig, engine_config: EngineConfig) -> int:
    return KVCache.bytes_per_block(
        num_layers=model.config.num_layers,
        block_size=_derived(engine_config.block_size),
        num_kv_heads=model.num_kv_heads_per_rank,
        head_dim=model.config.kv_channels,
        dtype=model_config.dtype,
    )


def _allocate_cache(
    model: ServingGPTModel,
    model_config: ModelConfig,
    engine_config: EngineConfig,
    attention: AttentionBackend,
    num_spare_blocks: int,
) -> KVCache:
    per_block = _bytes_per_block(model, model_config, engine_config)
    budget = _cache_budget(model_config.device, engine_config)
    # More than every running request at full length could use would only be reserved in vain.
    block_size = _derived(engine_config.block_size)
    useful = engine_config.max_running_requests * -(-model_config.max_model_len // block_size)
    num_blocks = torch.tensor([min(budget // per_block, useful)], dtype=torch.int64)
    if dist.get_world_size() > 1:
        dist.all_reduce(num_blocks, op=dist.ReduceOp.MIN)
    if int(num_blocks) < 2:
        raise ConfigurationError(
            f"the KV cache budget of {budget / 2**20:.1f} MiB holds less than two blocks of {per_block / 2**20:.1f} "
            "MiB; raise --kv-cache-gb or --kv-cache-memory-fraction"
        )
    return KVCache(
        num_layers=model.config.num_layers,
        num_blocks=int(num_blocks) + num_spare_blocks,
        block_size=block_size,
        num_kv_heads=model.num_kv_heads_per_rank,
        head_dim=model.config.kv_channels,
        dtype=model_config.dtype,
        device=model_config.device,
        layout=attention.cache_layout,
    )


def _image_cache(model: ServingGPTModel, model_config: ModelConfig, engine_config: EngineConfig) -> ImageCache:
    return ImageCache(
        capacity_bytes=int(engine_config.image_cache_mb * 2**20),
        bytes_per_token=model.config.hidden_size * model_config.dtype.itemsize,
        tokens_per_step=engine_config.max_image_tokens_per_step,
    )


def _cache_budget(device: torch.device, engine_config: EngineConfig) -> int:
    """Bytes for this rank."""
    if engine_config.kv_cache_gb is not None:
        return int(engine_config.kv_cache_gb * 2**30)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * engine_config.kv_cache_memory_fraction)
    ranks_here = dist.get_world_size()
    return int(psutil.virtual_memory().available * engine_config.kv_cache_memory_fraction / ranks_here)
