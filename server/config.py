"""Configuration, resolved once and passed whole: the document the resolver hands over, and typed views of it.

A default is written here once: `server.arguments.flags` makes one flag out of each field of `EngineConfig` and
`ServerConfig` (name, type, default and help), so the command line cannot disagree with the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

Source = Literal["command_line", "config_file", "checkpoint", "model", "default", "derived"]
ModelKindName = Literal["gpt", "vlm"]


class ResolvedArgument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument's final value and where it came from.

    arg: the argparse destination. command_line, checkpoint, default: what each source said, None where it said nothing.
    overridden: a source of lower rank, other than the parser's default, said something else.
    note: why, in words, where the rank of the sources alone does not explain it.
    """

    arg: str
    value: Any
    source: Source
    command_line: Any = None
    config_file: Any = None
    checkpoint: Any = None
    default: Any = None
    overridden: bool = False
    note: str = ""


class Conflict(msgspec.Struct, frozen=True):
    """Arguments that cannot hold together, and the flag that would resolve it."""

    args: list[str]
    message: str
    fix: str


class CheckpointInfo(msgspec.Struct, frozen=True):
    """path: the iteration directory. format: torch_dist or torch. iteration: 0 for a release."""

    path: str
    format: Literal["torch_dist", "torch"]
    iteration: int


class ResolvedDocument(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What `--print-resolved-args=json` prints, `/server_info` serves, and the ranks start from."""

    kind: ModelKindName
    reasons: list[str]
    arguments: list[ResolvedArgument]
    conflicts: list[Conflict]
    checkpoint: CheckpointInfo

    @cached_property
    def values(self) -> dict[str, Any]:
        """Final value by argument name."""
        return {argument.arg: argument.value for argument in self.arguments}

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    def without_secrets(self) -> Self:
        """The same, to be shown: of secret arguments only whether they were given."""
        return msgspec.structs.replace(self, arguments=[_without_secret(argument) for argument in self.arguments])

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return msgspec.json.decode(data, type=cls)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.from_json(path.read_bytes())


SECRET_ARGUMENTS = frozenset({"api_key", "admin_api_key"})


def _without_secret(argument: ResolvedArgument) -> ResolvedArgument:
    if argument.arg not in SECRET_ARGUMENTS:
        return argument
    shown = {name: None if getattr(argument, name) is None else "(secret)" for name in ("value", *_SPOKEN_SOURCES)}
    return msgspec.structs.replace(argument, **shown)


_SPOKEN_SOURCES = ("command_line", "config_file", "checkpoint", "default")


def setting(default: Any, help: str, **argparse_options: Any) -> Any:
    """A dataclass field that is also a flag. `argparse_options` (choices, metavar) go to add_argument as they are."""
    return field(default=default, metadata={"help": help, "argparse": argparse_options})


_MANY: dict[str, Any] = {"type": str, "nargs": "+", "action": "extend"}


@dataclass(frozen=True, kw_only=True)
class _FromValues:
    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Pick this class's fields out of the resolved values; KeyError when one is missing."""
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})


@dataclass(frozen=True, kw_only=True)
class EngineConfig(_FromValues):
    """How the ranks run the model."""

    dtype: str = setting(
        "auto",
        "Number format of weights and activations. auto: fp32 on a CPU, the checkpoint's own on a GPU.",
        choices=["auto", "fp32", "bf16", "fp16"],
    )
    device: str = setting(
        "auto", "Where the model runs. auto: a GPU where there is one.", choices=["auto", "cpu", "cuda"]
    )
    threads: int | None = setting(
        None, "CPU threads per rank. Default: the cores this process may use, divided among the ranks."
    )
    max_model_len: int | None = setting(
        None,
        "Longest sequence, prompt and generated tokens together. Default: the checkpoint's max_position_embeddings.",
    )
    max_batched_tokens: int = setting(
        1024, "Tokens in one step, decode and prefill together; longer prompts are split."
    )
    max_running_requests: int = setting(256, "Requests in one step.")
    max_decode_slowdown: float = setting(
        2.0,
        "While an answer is streamed, so much of other requests' prompts is computed in a step that it takes at most "
        "this many times as long as without them. 0: prompts are computed as fast as possible.",
    )
    block_size: int | None = setting(
        None,
        "Tokens in one block of the KV cache. Default: 16; with 16-bit weights on a GPU 256, of which it must be a "
        "multiple there.",
    )
    kv_cache_gb: float | None = setting(
        None, "KV cache size per rank in GiB. Default: what --kv-cache-memory-fraction gives."
    )
    kv_cache_memory_fraction: float = setting(
        0.3,
        "Share of the memory free after loading to use as KV cache, all ranks of a machine together.",
    )
    prefix_caching: bool = setting(True, "Reuse KV blocks of equal prompt beginnings.")
    speculative_tokens: int = setting(
        0,
        "Most tokens to guess per sequence and step, from where its newest tokens stood before: answers that repeat "
        "their prompt come sooner, and are the same. Greedy requests without penalties or formats alone. 0: off.",
    )
    image_cache_mb: float = setting(512.0, "Embeddings of images to keep for later questions, in MiB per rank.")
    max_image_tokens_per_step: int = setting(
        2048, "Image tokens to encode in one step, so that a burst of images does not hold up running requests."
    )
    linear_backend: str = setting(
        "auto",
        "Linear layers: packed (weights rewritten once, to multiply faster) or plain. auto: packed on a CPU.",
        choices=["auto", "packed", "plain"],
    )
    kernels: str = setting(
        "auto",
        "CPU kernels: a target, or off for torch operators, which on a GPU replace FlashAttention. auto: the fastest "
        "that is built and this CPU can run.",
        choices=["auto", "avx512", "avx2", "portable", "off"],
    )
    batch_invariant: bool = setting(
        True,
        "Compute a request to the same last bit whatever runs beside it: on CPUs, with kernels and packed linears.",
    )
    all_reduce: str = setting(
        "auto",
        "How tensor-parallel ranks exchange: shared_memory (on one machine's CPUs, needs the kernels) or torch "
        "(torch.distributed: gloo on CPUs, nccl on GPUs). auto: through shared memory where that is possible.",
        choices=["auto", "shared_memory", "torch"],
    )
    quantize: Literal["none", "int8"] = setting(
        "none",
        "Keep the weights of the language model's linear layers and output head as 8-bit integers, one scale for each "
        "output, and read a quarter of fp32's bytes: on CPUs, with kernels. Embeddings, norms and all that sees images "
        "stay as they are.",
        type=str,
        choices=["none", "int8"],
    )
    cuda_graphs: bool = setting(
        True, "Record decode steps as CUDA graphs: on a GPU with 16-bit weights; elsewhere there are none."
    )
    rank_timeout: float = setting(60.0, "Seconds a rank waits for another before it gives up and the group restarts.")


@dataclass(frozen=True, kw_only=True)
class ServerConfig(_FromValues):
    """How HTTP is answered and the ranks are looked after."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.")
    served_model_name: str | None = setting(
        None, "Model name on /v1 endpoints. Default: the checkpoint directory's name."
    )
    chat_template: str | None = setting(None, "File with a Jinja chat template. Default: the tokenizer's own.")
    default_max_tokens: int = setting(
        128, "Tokens to generate when a request on /generate or /v1/completions does not say."
    )
    tool_call_parser: str | None = setting(
        None,
        "How the model writes function calls; needed for tools with tool_choice auto. hermes: also Qwen 2.5 and 3.",
        choices=["hermes", "llama3_json", "mistral", "pythonic"],
    )
    reasoning_parser: str | None = setting(
        None,
        "Give a model's reasoning as reasoning_content, apart from its answer. deepseek_r1: the model always reasons, "
        "even where it leaves out the opening tag. qwen3: it does where the tag is.",
        choices=["deepseek_r1", "qwen3"],
    )
    reasoning_tags: str = setting("<think> </think>", "The tags around reasoning, opening and closing.")
    clamp_max_tokens: str = setting(
        "chat",
        "Where a max_tokens beyond the context is shortened to what fits instead of refused: on /v1/chat/completions, "
        "on all of /v1, or nowhere. The flag alone means all.",
        choices=["chat", "all", "none"],
        nargs="?",
        const="all",
    )
    request_timeout: float = setting(600.0, "Seconds after which a request is given up and answered with 504.")
    max_queued_requests: int = setting(4096, "Requests in flight beyond which new ones are answered with 429.")
    max_batch_items: int = setting(1024, "Prompts in one request body.")
    max_choices: int = setting(64, "Largest n.")
    max_logprobs: int = setting(20, "Most alternatives per token in logprobs.")
    max_stop_strings: int = setting(16, "Most stop strings in a request.")
    max_body_mb: float = setting(64.0, "Largest request body in MiB.")
    max_images: int = setting(16, "Most images in a prompt.")
    max_image_mb: float = setting(32.0, "Largest image as sent, in MiB.")
    max_image_pixels: int = setting(50_000_000, "Most pixels of an image, checked before it is decoded.")
    image_store_mb: float = setting(256.0, "Prepared pixels to keep for later questions about an image, in MiB.")
    image_workers: int | None = setting(None, "Threads that decode images. Default: the cores this process may use.")
    drain_timeout: float = setting(30.0, "Seconds running requests get to finish after SIGTERM.")
    startup_timeout: float = setting(600.0, "Seconds the ranks get to load before they are restarted.")
    progress_timeout: float = setting(
        60.0,
        "Seconds without a sign of life from the ranks after which the server is not ready and restarts them.",
    )
    log_level: str = setting("info", "What is logged.", choices=["debug", "info", "warning", "error"])
    log_format: Literal["text", "json"] = setting(
        "text", "Lines of the log: text, or one JSON object each.", type=str, choices=["text", "json"]
    )
    api_key: Sequence[str] | None = setting(
        None,
        "Keys of which a client must send one as `Authorization: Bearer KEY`, on all but /health, /health/ready and "
        "/ping. Other users of this machine can read command lines: see --api-key-file.",
        **_MANY,
        metavar="KEY",
    )
    api_key_file: str | None = setting(None, "File with more such keys, one a line.", metavar="FILE")
    admin_api_key: Sequence[str] | None = setting(
        None,
        "Keys for /flush_cache, /pause, /resume, /start_profile and /stop_profile, which nobody may use without one.",
        **_MANY,
        metavar="KEY",
    )
    admin_api_key_file: str | None = setting(None, "File with more such keys, one a line.", metavar="FILE")
    ssl_certfile: str | None = setting(None, "Answer HTTPS with this certificate chain (PEM).", metavar="FILE")
    ssl_keyfile: str | None = setting(
        None, "Private key of --ssl-certfile (PEM). Default: in the same file.", metavar="FILE"
    )
    ssl_ca_certs: str | None = setting(
        None, "Take only clients with a certificate that these authorities signed (PEM).", metavar="FILE"
    )
    allowed_origins: Sequence[str] | None = setting(
        None, "Web pages of these origins may use the server (CORS), as https://example.org; * is all.", **_MANY
    )
    root_path: str = setting("", "Path under which a proxy serves this server, as /model; the proxy strips it.")
    max_headers: int = setting(100, "Most headers of a request.")
    max_header_kb: float = setting(32.0, "Largest request line and headers together, in KiB.")
    allow_remote_images: Sequence[str] | None = setting(
        None,
        "Fetch http(s) images from these hosts (*.example.org: and all below), at public addresses only. "
        "Default: no image is fetched.",
        **_MANY,
        metavar="HOST",
    )
    remote_image_timeout: float = setting(10.0, "Seconds that fetching an image may take.")
    profile_dir: str | None = setting(
        None, "Directory for the traces that /start_profile records. Default: it records none.", metavar="DIR"
    )
