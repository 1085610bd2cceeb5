"""Values that follow from other arguments: sizes Megatron leaves open, and what `auto` means on this machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from model_providers.backends.varlen_limits import BLOCK_MULTIPLE
from server.arguments.sources import Entries

_BLOCK_SIZE = 16
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Machine:
    """cores: that this process may use. has_gpu: CUDA can be used. world_size: torchrun's, None without it."""

    cores: int
    has_gpu: bool
    world_size: int | None = None


def derive_architecture(entries: Entries) -> None:
    """Fill in what Megatron's validate_args fills in (megatron/training/arguments.py)."""
    _fill_sizes(entries)
    if entries.value("add_bias_linear"):
        entries["add_qkv_bias"].derive(True, "add_bias_linear implies it")
    if entries.value("use_rotary_position_embeddings") and not entries["position_embedding_type"].typed:
        entries["position_embedding_type"].derive("rope", "use_rotary_position_embeddings implies it")
    if entries.value("num_experts") == 0:
        entries["num_experts"].derive(None, "0 means no experts")


def _fill_sizes(entries: Entries) -> None:
    hidden, heads = entries.value("hidden_size"), entries.value("num_attention_heads")
    if not _positive(hidden) or not _positive(heads):
        return  # a conflict says so
    if entries.value("kv_channels") is None and hidden % heads == 0:
        entries["kv_channels"].derive(hidden // heads, "hidden_size / num_attention_heads")
    if entries.value("ffn_hidden_size") is None:
        gated = entries.value("swiglu")
        size = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
        entries["ffn_hidden_size"].derive(size, "2/3 of 4 hidden_size, in 64s" if gated else "4 hidden_size")
    if entries.value("group_query_attention") and entries.value("num_query_groups") is None:
        entries["num_query_groups"].derive(heads, "one group per head")


def derive_lengths(entries: Entries) -> None:
    """`max_position_embeddings` and `max_model_len`."""
    if entries.value("max_position_embeddings") is None and entries.value("seq_length") is not None:
        entries["max_position_embeddings"].derive(entries.value("seq_length"), "seq_length")
    if entries.value("max_model_len") is None:
        entries["max_model_len"].derive(entries.value("max_position_embeddings"), "max_position_embeddings")


def derive_vocabulary(
    entries: Entries, *, checkpoint_rows: int | None, tokenizer_ids: int | None, saved_ranks: int
) -> None:
    """Rows are the checkpoint's; ids are the tokenizer's; rows beyond them are padding and cannot be sampled."""
    if checkpoint_rows is not None and not entries["padded_vocab_size"].typed:
        entries["padded_vocab_size"].derive(checkpoint_rows, "rows of the checkpoint's word embedding")
    elif entries.value("padded_vocab_size") is None and _positive(entries.value("vocab_size")):
        divisor = entries.value("make_vocab_size_divisible_by")
        multiple = divisor * saved_ranks if _positive(divisor) else 1
        rows = -(-entries.value("vocab_size") // multiple) * multiple
        entries["padded_vocab_size"].derive(rows, f"vocab_size, padded to a multiple of {multiple} as in training")
    if tokenizer_ids is not None and not entries["vocab_size"].typed:
        entries["vocab_size"].derive(tokenizer_ids, "ids of the tokenizer")
    ids, rows = entries.value("vocab_size"), entries.value("padded_vocab_size")
    if _positive(ids) and _positive(rows) and rows > ids:
        entries["padded_vocab_size"].note(f"ids from {ids} on are padding")


def derive_machine(entries: Entries, machine: Machine) -> None:
    """Settle `auto`, the threads and the number format, so that the ranks take the values as they are."""
    if entries.value("device") == "auto":
        entries["device"].derive(*(("cuda", "a GPU was found") if machine.has_gpu else ("cpu", "no GPU was found")))
    on_cpu = entries.value("device") == "cpu"
    if entries.value("linear_backend") == "auto":
        entries["linear_backend"].derive("packed" if on_cpu else "plain", f"auto, on device {entries.value('device')}")
    if entries.value("threads") is None:
        ranks = entries.value("tensor_model_parallel_size")
        threads = max(1, machine.cores // max(1, ranks))
        entries["threads"].derive(threads, f"{machine.cores} cores / {ranks} ranks")
    _derive_dtype(entries, on_cpu=on_cpu)
    flash = uses_flash_attention(entries)
    if entries.value("block_size") is None:
        size, reason = (BLOCK_MULTIPLE, "FlashAttention's blocks") if flash else (_BLOCK_SIZE, "finds more prefixes")
        entries["block_size"].derive(size, reason)
    if not flash:
        entries["cuda_graphs"].derive(False, "only with FlashAttention, so on a GPU with 16-bit weights")


def uses_flash_attention(entries: Entries) -> bool:
    """Whether attention runs on a GPU, in a number format that FlashAttention takes, and --kernels lets it."""
    on_gpu = entries.value("device") == "cuda" and entries.value("kernels") != "off"
    return on_gpu and entries.value("dtype") in ("bf16", "fp16")


def _derive_dtype(entries: Entries, *, on_cpu: bool) -> None:
    if entries.value("dtype") == "auto":
        saved = _saved_dtype(entries)
        entries["dtype"].derive(*(("fp32", "auto, on a CPU") if on_cpu else (saved, "auto, on a GPU: as saved")))
    dtype = entries.value("dtype")
    entries["bf16"].derive(dtype == "bf16", f"--dtype is {dtype}")
    entries["fp16"].derive(dtype == "fp16", f"--dtype is {dtype}")
    entries["params_dtype"].derive(_TORCH_NAMES[dtype], f"--dtype is {dtype}")


def _saved_dtype(entries: Entries) -> str:
    saved = {
        short: entries[short].said.get("checkpoint") is True
        or entries["params_dtype"].said.get("checkpoint") == _TORCH_NAMES[short]
        for short in ("bf16", "fp16")
    }
    return next((short for short, is_so in saved.items() if is_so), "fp32")


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
