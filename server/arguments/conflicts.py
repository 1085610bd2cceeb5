"""Arguments that cannot hold together: all found at once, each with its sources and the flag that resolves it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from model_providers.backends.varlen_limits import BLOCK_MULTIPLE
from model_providers.errors import UnsupportedModelError
from model_providers.vision.supported import vision_settings
from server.arguments.classification import classify
from server.arguments.derive import Machine, uses_flash_attention
from server.arguments.option_groups import flag_of
from server.arguments.sources import Entries, Entry
from server.arguments.unsupported import REFUSALS
from server.config import Conflict, ModelKindName

# Without these no model can be built. What supplies them, when the checkpoint does not.
REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "padded_vocab_size")
_OPTIONAL_SIZES = ("ffn_hidden_size", "num_query_groups", "kv_channels", "vocab_size", "max_model_len")


def find_conflicts(entries: Entries, kind: ModelKindName, machine: Machine) -> list[Conflict]:
    """In the order in which one would resolve them."""
    return [
        *_missing(entries),
        *_unsupported(entries),
        *_refused_flags(entries),
        *_indivisible(entries),
        *_vocabulary(entries),
        *_lengths(entries),
        *_images(entries, kind),
        *_machine(entries, machine),
        *_shared_memory(entries),
        *_quantization(entries),
        *_block_size(entries),
    ]


def says(entry: Entry) -> str:
    """`num_attention_heads is 9 (checkpoint)`."""
    return f"{entry.name} is {entry.value!r} ({entry.source.replace('_', ' ')})"


def _conflict(entries: Entries, names: tuple[str, ...], message: str, fix: str) -> Conflict:
    sources = " and ".join(says(entries[name]) for name in names)
    return Conflict(list(names), f"{sources}: {message}", fix)


def _size(entries: Entries, name: str) -> int | None:
    """The value where it is a size at all; `_missing` tells of the others."""
    value = entries.value(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _missing(entries: Entries) -> Iterator[Conflict]:
    for name in (*REQUIRED, *_OPTIONAL_SIZES):
        if entries.value(name) is not None and _size(entries, name) is None:
            yield _conflict(entries, (name,), "it must be a positive whole number", f"give {flag_of(name)}")
    for name in REQUIRED:
        if entries.value(name) is None:
            yield Conflict([name], f"{name} is in no source: the checkpoint's args lack it", f"give {flag_of(name)}")


def _unsupported(entries: Entries) -> Iterator[Conflict]:
    for argument, refuses, reason in REFUSALS:
        if refuses(entries.value(argument)):
            typed = entries[argument].typed
            fix = f"leave {flag_of(argument)} out" if typed else "serve another checkpoint"
            yield _conflict(entries, (argument,), f"{reason} are not supported", fix)


def _refused_flags(entries: Entries) -> Iterator[Conflict]:
    for entry in entries:
        argument_class = classify(entry.name)
        if argument_class.effect == "refused" and entry.typed and entry.value != entry.said["default"]:
            yield _conflict(entries, (entry.name,), argument_class.reason, f"leave {flag_of(entry.name)} out")


def _indivisible(entries: Entries) -> Iterator[Conflict]:
    ranks = entries.value("tensor_model_parallel_size")
    names = ["num_attention_heads", "ffn_hidden_size"]
    if entries.value("group_query_attention"):
        names.insert(1, "num_query_groups")
    sizes = [_size(entries, name) for name in names]
    usable = [n for n in range(1, 1025) if all(size is None or size % n == 0 for size in sizes)]
    for name in names:
        size = _size(entries, name)
        if size is not None and size % ranks:
            fix = f"--tensor-model-parallel-size {{{', '.join(map(str, usable))}}}"
            yield _conflict(entries, (name, "tensor_model_parallel_size"), f"{size} / {ranks} is not whole", fix)


def _vocabulary(entries: Entries) -> Iterator[Conflict]:
    rows, ids = _size(entries, "padded_vocab_size"), _size(entries, "vocab_size")
    if rows is not None and ids is not None and ids > rows:
        message = "the tokenizer has ids for which the checkpoint has no row"
        fix = "--tokenizer-model PATH of the tokenizer that the model was trained with"
        names: tuple[str, ...] = ("vocab_size", "padded_vocab_size")
        if entries.value("tokenizer_model") is not None:
            names = (*names, "tokenizer_model")
        yield _conflict(entries, names, message, fix)
    saved = entries["padded_vocab_size"].said.get("checkpoint")
    if entries["padded_vocab_size"].typed and saved is not None and saved != rows:
        message = f"the checkpoint has {saved} rows"
        yield _conflict(entries, ("padded_vocab_size",), message, "leave --padded-vocab-size out")


def _lengths(entries: Entries) -> Iterator[Conflict]:
    limit, wanted = _size(entries, "max_position_embeddings"), _size(entries, "max_model_len")
    if limit is None or wanted is None or wanted <= limit:
        return
    if entries.value("position_embedding_type") == "learned_absolute":
        names = ("max_model_len", "max_position_embeddings")
        yield _conflict(entries, names, "learned positions end there", f"--max-model-len {limit}")
    else:
        entries["max_model_len"].note(f"beyond the {limit} positions of training")


def _images(entries: Entries, kind: ModelKindName) -> Iterator[Conflict]:
    if kind != "vlm":
        return
    if entries.value("use_tiling") and entries.value("dynamic_resolution"):
        message = "an image is either cut into tiles or encoded in its own resolution"
        fix = "--no-use-tiling or --no-dynamic-resolution"
        yield _conflict(entries, ("use_tiling", "dynamic_resolution"), message, fix)
        return
    ranks = entries.value("tensor_model_parallel_size")
    try:
        vision_settings(entries.values, ranks if isinstance(ranks, int) and ranks > 0 else 1)
    except UnsupportedModelError as error:
        fix = f"{flag_of(error.argument)}, or serve another checkpoint"
        yield Conflict([error.argument], f"{says(entries[error.argument])}: {error.reason}", fix)


def _machine(entries: Entries, machine: Machine) -> Iterator[Conflict]:
    ranks = entries.value("tensor_model_parallel_size")
    if machine.world_size is not None and machine.world_size != ranks:
        message = f"torchrun started {machine.world_size} ranks (WORLD_SIZE)"
        fix = f"--tensor-model-parallel-size {machine.world_size}, or torchrun --nproc-per-node {ranks}"
        yield _conflict(entries, ("tensor_model_parallel_size",), message, fix)
    if entries.value("device") == "cuda" and not machine.has_gpu:
        yield _conflict(entries, ("device",), "no GPU was found", "--device cpu")


def _shared_memory(entries: Entries) -> Iterator[Conflict]:
    if entries.value("all_reduce") != "shared_memory" or entries.value("tensor_model_parallel_size") == 1:
        return
    for name, excluded in (("device", "cuda"), ("kernels", "off"), ("dtype", "fp16")):
        if entries.value(name) == excluded:
            message = "through shared memory ranks exchange by CPU kernels, in fp32 or bf16"
            yield _conflict(entries, ("all_reduce", name), message, "--all-reduce auto")


def _quantization(entries: Entries) -> Iterator[Conflict]:
    if entries.value("quantize") == "none":
        return
    for name, unfit, fix in (
        ("device", "cuda", "--device cpu"),
        ("dtype", "fp16", "--dtype fp32 or --dtype bf16"),
        ("linear_backend", "plain", "--linear-backend packed"),
        ("kernels", "off", "--kernels auto"),
    ):
        if entries.value(name) == unfit:
            message = "quantized weights are multiplied by the CPU kernels"
            yield _conflict(entries, ("quantize", name), message, f"{fix}, or --quantize none")


def _block_size(entries: Entries) -> Iterator[Conflict]:
    block_size = _size(entries, "block_size")
    if uses_flash_attention(entries) and block_size is not None and block_size % BLOCK_MULTIPLE:
        message = f"attention on a GPU needs a multiple of {BLOCK_MULTIPLE}"
        yield _conflict(entries, ("block_size", "dtype"), message, "leave --block-size out, or --kernels off")
