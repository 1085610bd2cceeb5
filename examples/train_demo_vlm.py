"""Train a small LLaVA on easy-vqa, on a CPU, and save it as a Megatron checkpoint.

The model is the one that megaserve serves (model_providers.llava): a CLIP-type ViT on 64x64 pixels, pixel shuffle, an
MLP, and a GPT of four layers, 1.85 million parameters in all. The encoder first learns what it looks at (shape and
colour, from the training questions that ask for them), then everything learns to answer.

    python examples/train_demo_vlm.py --output examples/demo_vlm
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from argparse import Namespace
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from model_providers.backends.activation import activation_for
from model_providers.backends.layer import LayerContext
from model_providers.backends.rotary import RotaryAngles, RotaryTable
from model_providers.checkpoint.save import save_torch_dist
from model_providers.checkpoint.single_process import process_group_of_one
from model_providers.checkpoint.training_args import training_args
from model_providers.config import ModelConfig
from model_providers.llava import construct

SHAPES = ["circle", "rectangle", "triangle"]
COLOURS = ["black", "blue", "brown", "gray", "green", "red", "teal", "yellow"]
IMAGE, ANSWER, END, UNKNOWN = "<image>", "<|assistant|>", "<|im_end|>", "<unk>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|im_end|>"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
IMAGE_TOKENS = 16
ARCHITECTURE = {
    "num-layers": 4, "hidden-size": 128, "ffn-hidden-size": 384, "num-attention-heads": 4, "normalization": "RMSNorm",
    "position-embedding-type": "rope", "seq-length": 256, "max-position-embeddings": 256,
    "make-vocab-size-divisible-by": 1, "language-model-type": "easy-vqa-demo", "vision-model-type": "clip",
    "img-h": 64, "img-w": 64, "patch-dim": 8, "vision-num-layers": 4, "vision-hidden-size": 128,
    "vision-num-attention-heads": 4, "vision-ffn-hidden-size": 512, "vision-activation": "gelu",
    "vision-projection-type": "mlp", "vision-projection-ffn-hidden-size": 256, "vision-projection-activation": "gelu",
    "vision-projection-normalization": "none", "tokenizer-type": "HuggingFaceTokenizer",
}  # fmt: skip
SWITCHES = ["swiglu", "disable-bias-linear", "pixel-shuffle", "disable-vision-class-token", "vision-projection-bias"]


@dataclass
class Split:
    """images: (N, 3, 64, 64) float32 in -1..1. questions: per image a list of (question, answer)."""

    images: Tensor
    questions: list[list[tuple[str, str]]]


def load_split(name: str) -> Split:
    """A split of the installed package easy-vqa, in its own order."""
    spec = find_spec("easy_vqa")
    if spec is None or spec.origin is None:
        raise SystemExit("the package easy-vqa is not installed: pip install easy-vqa")
    directory = Path(spec.origin).parent / "data" / name
    rows = json.loads((directory / "questions.json").read_text())
    count = 1 + max(index for _, _, index in rows)
    pixels = np.stack([np.asarray(Image.open(directory / "images" / f"{i}.png").convert("RGB")) for i in range(count)])
    questions: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    for question, answer, index in rows:
        questions[index].append((question, answer))
    return Split(torch.from_numpy(pixels).float().permute(0, 3, 1, 2) / 127.5 - 1, questions)


def make_tokenizer(split: Split) -> Tokenizer:
    """One token per word of the questions and answers."""
    pairs = [pair for of_image in split.questions for pair in of_image]
    words = sorted({word for pair in pairs for text in pair for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    special = [UNKNOWN, IMAGE, ANSWER, END]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(special + words)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def build_model(vocab_size: int) -> tuple[Any, Namespace]:
    """The model with random weights, and the arguments that describe it."""
    options = {**ARCHITECTURE, "vocab-size": vocab_size}
    flags = [*(f"--{name}={value}" for name, value in options.items()), *(f"--{name}" for name in SWITCHES)]
    statistics = ["--pixel-mean", "0.5", "0.5", "0.5", "--pixel-std", "0.5", "0.5", "0.5"]
    args = training_args([*flags, *statistics], multimodal=True)
    args.vocab_size = args.padded_vocab_size = vocab_size
    config = ModelConfig(
        values=vars(args),
        checkpoint=Path(),
        checkpoint_format="torch_dist",
        dtype=torch.float32,
        device=torch.device("cpu"),
        tensor_model_parallel_size=1,
        vocab_size=vocab_size,
        max_model_len=args.max_position_embeddings,
        packed_linears=False,
    )
    model = construct(config).to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        initialise(name, parameter)
    for layer in model.language_model.decoder.layers:
        layer.activation = activation_for(vars(args))
    return model, args


def initialise(name: str, parameter: nn.Parameter) -> None:
    with torch.no_grad():
        if "norm" in name or ".ln_" in name:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        elif "embedding" in name or "class_token" in name:
            parameter.normal_(std=0.02)
        else:
            bound = 1 / math.sqrt(parameter[0].numel())
            parameter.uniform_(-bound, bound)


class SharedPrefixAttention:
    """An attention backend for training: every sequence is one image and all its questions, told apart by a mask."""

    def __init__(self, mask: Tensor, angles: RotaryAngles) -> None:
        self._mask = mask  # (sequences, 1, length, length), True where a query sees a key
        self._angles = angles

    def attend(self, qkv: Tensor, *, layer: int, cache: Any, plan: Any) -> Tensor:
        """See model_providers.backends.attention; as many KV heads as heads, so a group is one query, key and value."""
        count, _, length, _ = self._mask.shape
        parts = (self._angles.rotate(qkv[:, :, 0]), self._angles.rotate(qkv[:, :, 1]), qkv[:, :, 2])
        query, key, value = (part.reshape(count, length, *part.shape[1:]).transpose(1, 2) for part in parts)
        out = scaled_dot_product_attention(query, key, value, attn_mask=self._mask)
        return out.transpose(1, 2).reshape(count * length, -1)


@dataclass
class Batch:
    """images: indices (B,). token_ids, positions, targets: (B, S), targets -1 where nothing is learnt. mask: see above.

    A sequence is the image's places, then every question with its answer; a question sees the image and itself.
    """

    images: Tensor
    token_ids: Tensor
    positions: Tensor
    targets: Tensor
    mask: Tensor


def make_batch(indices: list[int], encoded: list[list[list[int]]], answer_id: int) -> Batch:
    """encoded: per image its questions as [words, ANSWER, answer, END]."""
    length = IMAGE_TOKENS + max(sum(len(question) - 1 for question in encoded[i]) for i in indices)
    shape = (len(indices), length)
    token_ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    targets, group = torch.full(shape, -1), torch.full(shape, -1)
    positions[:, :IMAGE_TOKENS] = torch.arange(IMAGE_TOKENS)
    group[:, :IMAGE_TOKENS] = 0
    for row, index in enumerate(indices):
        begin = IMAGE_TOKENS
        for number, question in enumerate(encoded[index], 1):
            end = begin + len(question) - 1
            token_ids[row, begin:end] = torch.tensor(question[:-1])
            positions[row, begin:end] = torch.arange(IMAGE_TOKENS, IMAGE_TOKENS + end - begin)
            group[row, begin:end] = number
            first = question.index(answer_id) - 1  # the last word of the question announces the answer
            targets[row, begin + first : end] = torch.tensor(question[first + 1 :])
            begin = end
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = group[:, :, None] == group[:, None, :]
    mask = causal & (same | (group[:, None, :] == 0))
    return Batch(torch.tensor(indices), token_ids, positions, targets, mask[:, None])


def image_rows(model: Any, images: Tensor) -> Tensor:
    """(N, 3, 64, 64) -> (N, IMAGE_TOKENS, hidden), as the served model computes them."""
    return torch.stack(model.embed_images([image[None] for image in images]))


def answer_logits(model: Any, rotary: RotaryTable, images: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and targets of the places that have a target: (R, vocabulary), (R,)."""
    language = model.language_model
    words = language.embed_words(batch.token_ids[:, IMAGE_TOKENS:].flatten())
    words = words.unflatten(0, (len(batch.images), -1))
    residual = torch.cat((image_rows(model, images), words), dim=1).flatten(0, 1)
    angles = rotary.at(batch.positions.flatten(), residual.dtype)
    context = LayerContext(None, SharedPrefixAttention(batch.mask, angles), None)
    update = None
    for layer in language.decoder.layers:
        residual, update = layer.forward_packed(residual, update, context)
    _, normed = language.decoder.final_layernorm.add(residual, update)
    wanted = batch.targets.flatten() >= 0
    return normed[wanted] @ language.shared_embedding_or_output_weight().T, batch.targets.flatten()[wanted]


def moved(images: Tensor) -> Tensor:
    """The batch under one random cyclic translation: where a shape lies does not matter."""
    return torch.roll(images, (random.randrange(64), random.randrange(64)), (2, 3))


def optimiser_of(parameters: Any, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    optimiser = torch.optim.AdamW(parameters, 1e-3, weight_decay=0.05, betas=(0.9, 0.98))
    return optimiser, torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, steps + 1, pct_start=0.1)


def descend(loss: Tensor, parameters: list[Tensor], optimiser: Any, schedule: Any) -> None:
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
    schedule.step()


def label_of(questions: list[tuple[str, str]], names: list[str]) -> int:
    """What a question of the split says about the image, -1 if none asks."""
    return next((names.index(answer) for _, answer in questions if answer in names), -1)


def train_encoder(model: Any, train: Split, test: Split, steps: int) -> None:
    """Mean-pooled features, one head for the shape and one for the colour."""
    head = nn.Linear(128, len(SHAPES) + len(COLOURS))
    labels = {
        split: [torch.tensor([label_of(q, names) for q in data.questions]) for names in (SHAPES, COLOURS)]
        for split, data in (("train", train), ("test", test))
    }
    parameters = [*model.vision_model.parameters(), *head.parameters()]
    optimiser, schedule = optimiser_of(parameters, steps)

    def scores(images: Tensor) -> tuple[Tensor, Tensor]:
        pooled = head(model.vision_model.encode_tiles(images).mean(1))
        return pooled[:, : len(SHAPES)], pooled[:, len(SHAPES) :]

    for step in range(1, steps + 1):
        chosen = torch.randint(0, len(train.images), (64,))
        outputs = scores(moved(train.images[chosen]))
        loss = sum(
            cross_entropy(output, label[chosen], ignore_index=-1)
            for output, label in zip(outputs, labels["train"], strict=True)
        )
        descend(loss, parameters, optimiser, schedule)
        if step % 250 == 0 or step == steps:
            with torch.no_grad():
                found = [output.argmax(1) for output in scores(test.images)]
            right = [
                float((guess == label)[label >= 0].float().mean())
                for guess, label in zip(found, labels["test"], strict=True)
            ]
            shown = f"loss {float(loss.detach()):.4f}, shape {right[0]:.4f}, colour {right[1]:.4f}"
            say(f"encoder step {step}/{steps}: {shown}")


def encode_split(split: Split, tokenizer: Tokenizer) -> list[list[list[int]]]:
    marks = [tokenizer.token_to_id(token) for token in (ANSWER, END)]

    def encode(question: str, answer: str) -> list[int]:
        return [*tokenizer.encode(question).ids, marks[0], *tokenizer.encode(answer).ids, marks[1]]

    return [[encode(*pair) for pair in of_image] for of_image in split.questions]


def train_whole(
    model: Any, args: Namespace, train: Split, test: Split, tokenizer: Tokenizer, epochs: int, blind: bool
) -> None:
    """All questions of an image are answered from one encoding of it."""
    rotary = RotaryTable(model.language_model.rotary_pos_emb, args.max_position_embeddings)
    answer_id = tokenizer.token_to_id(ANSWER)
    encoded, held_out = encode_split(train, tokenizer), encode_split(test, tokenizer)
    parameters = list(model.parameters())
    per_epoch = len(train.images) // 16
    optimiser, schedule = optimiser_of(parameters, epochs * per_epoch)

    def seen(images: Tensor) -> Tensor:
        return torch.zeros_like(images) if blind else images

    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(train.images)).tolist()
        total = 0.0
        for number in range(per_epoch):
            batch = make_batch(order[16 * number : 16 * number + 16], encoded, answer_id)
            logits, targets = answer_logits(model, rotary, seen(moved(train.images[batch.images])), batch)
            loss = cross_entropy(logits, targets)
            descend(loss, parameters, optimiser, schedule)
            total += float(loss.detach())
        right = count = 0
        with torch.no_grad():
            for begin in range(0, len(test.images), 50):
                batch = make_batch(list(range(begin, min(begin + 50, len(test.images)))), held_out, answer_id)
                logits, targets = answer_logits(model, rotary, seen(test.images[batch.images]), batch)
                is_answer = (targets != answer_id) & (targets != tokenizer.token_to_id(END))
                right += int((logits.argmax(1) == targets)[is_answer].sum())
                count += int(is_answer.sum())
        say(f"epoch {epoch}/{epochs}: loss {total / per_epoch:.4f}, held out {right / count:.4f} of {count} answers")


_started = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _started:6.0f} s] {text}", flush=True)


def save(destination: Path, model: Any, args: Namespace, tokenizer: Tokenizer) -> None:
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    save_torch_dist(destination, state_dict=state, args=args, iteration=1)
    directory = destination / "tokenizer"
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "unk_token": UNKNOWN}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": CHAT_TEMPLATE}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="directory for the checkpoint")
    parser.add_argument("--encoder-steps", type=int, default=1500, help="steps of 64 images for the encoder alone")
    parser.add_argument("--epochs", type=int, default=7, help="passes over all questions for the whole model")
    parser.add_argument("--blind", action="store_true", help="hide the images: what can be answered without seeing")
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    train, test = load_split("train"), load_split("test")
    tokenizer = make_tokenizer(train)
    with process_group_of_one():
        model, args = build_model(tokenizer.get_vocab_size())
        say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters, {len(train.images)} images")
        if not options.blind:
            train_encoder(model, train, test, options.encoder_steps)
        train_whole(model, args, train, test, tokenizer, options.epochs, options.blind)
        save(options.output, model, args, tokenizer)
    say(f"saved {options.output}")


if __name__ == "__main__":
    main()
