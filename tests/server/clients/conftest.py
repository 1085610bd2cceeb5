"""A tiny random Llama on a byte-level vocabulary: served for real, and in Hugging Face's implementation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from model_providers.checkpoint.import_command import import_hf

BOS, EOS = 1, 2


class Truth:
    """Hugging Face's implementation: the slow truth."""

    def __init__(self, directory: Path, tokenizer_directory: Path) -> None:
        torch.manual_seed(11)
        self.tokenizer = Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))
        self.vocab_size = self.tokenizer.get_vocab_size()
        config = LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=self.vocab_size, max_position_embeddings=256, initializer_range=0.3,
            bos_token_id=BOS, eos_token_id=EOS,
        )  # fmt: skip
        self.model: PreTrainedModel = LlamaForCausalLM(config).eval()
        self.model.save_pretrained(directory)
        self.tokenizer.save(str(directory / "tokenizer.json"))
        settings = json.loads((tokenizer_directory / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        return self.model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)

    def loglikelihood(self, context: list[int], whole: list[int]) -> tuple[float, bool]:
        """Of what follows `context` in `whole`, and whether the model would have said it."""
        rows = self.logprobs(whole)[len(context) - 1 : -1]
        tokens = torch.tensor(whole[len(context) :])
        return float(rows.gather(1, tokens[:, None]).sum()), bool((rows.argmax(-1) == tokens).all())

    def greedy_text(self, prompt: str, count: int, stop: str) -> str:
        tokens = self.encode(prompt)
        start = len(tokens)
        while len(tokens) < start + count:
            token = int(self.logprobs(tokens)[-1].argmax())
            if token == EOS:
                break
            tokens.append(token)
        text: str = self.tokenizer.decode(tokens[start:])
        return text.partition(stop)[0]

    def likeliest_word(self, question: str) -> str:
        """What the model says next, where that is text of its own."""
        tokens = self.encode(question)
        best = int(self.logprobs(tokens)[-1].argmax())
        word: str = self.tokenizer.decode([best])
        return word if self.encode(question + word) == [*tokens, best] else " fox"


@pytest.fixture(scope="session")
def truth(tmp_path_factory: pytest.TempPathFactory, tokenizer_directory: Path) -> tuple[Truth, Path]:
    directory = tmp_path_factory.mktemp("byte_level")
    truth = Truth(directory / "hf", tokenizer_directory)
    import_hf(directory / "hf", directory / "megatron")
    return truth, directory


@pytest.fixture(scope="session")
def server_url(truth: tuple[Truth, Path], running_server: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    flags = ["--dtype", "fp32", "--kv-cache-gb", "0.02", "--threads", "1", "--max-batched-tokens", "32"]
    with running_server(truth[1] / "megatron", *flags, "--served-model-name", "tiny") as url:
        yield url
