"""A LLaVA through the whole server: what Hugging Face's implementation answers, from the same picture files."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from model_providers.checkpoint.import_command import import_hf

IMAGE_TOKEN = 98
TOKENS_PER_IMAGE = 16
NEW_TOKENS = 8
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} w7{% endif %}"


def picture(seed: int, size: tuple[int, int] = (50, 37)) -> bytes:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    file = io.BytesIO()
    Image.fromarray(pixels.to(torch.uint8).numpy()).resize((size[0] * 2, size[1] * 2)).save(file, "PNG")
    return file.getvalue()


class Truth:
    """Hugging Face's model and image processor, one question at a time."""

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(3)
        text = LlamaConfig(
            hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=99, max_position_embeddings=256,
        )  # fmt: skip
        vision = CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=28,
            patch_size=7,
        )
        self.model = LlavaForConditionalGeneration(
            LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN)
        ).eval()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                noise = torch.randn_like(parameter) * 0.25
                parameter.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
        self.processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
        self.model.save_pretrained(directory)
        self.processor.save_pretrained(directory)
        tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(98)} | {"<image>": IMAGE_TOKEN}, unk_token="w0"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
        tokenizer.save(str(directory / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))

    @torch.inference_mode()
    def answer(self, parts: list[int | bytes]) -> list[int]:
        """Greedy tokens after word ids and pictures."""
        ids, pictures = [], []
        for part in parts:
            ids += [part] if isinstance(part, int) else [IMAGE_TOKEN] * TOKENS_PER_IMAGE
            pictures += [] if isinstance(part, int) else [Image.open(io.BytesIO(part))]
        pixels = self.processor(images=pictures, return_tensors="pt")["pixel_values"] if pictures else None
        for _ in range(NEW_TOKENS):
            logits = self.model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0, -1]
            logits[IMAGE_TOKEN] = -torch.inf  # the expanded prompt is all that holds image tokens
            ids.append(int(logits.argmax()))
        return ids[-NEW_TOKENS:]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, Path]:
    directory = tmp_path_factory.mktemp("llava")
    model = Truth(directory / "hf")
    import_hf(directory / "hf", directory / "megatron")
    return model, directory / "megatron"


CONFIGURATIONS = {
    "as it is": (),
    # Two images fit, prompts are cut inside images, and nothing is kept between requests.
    "two ranks, small caches": (
        *("--tensor-model-parallel-size", "2", "--no-prefix-caching", "--image-cache-mb", "0.006"),
        *("--max-batched-tokens", "11"),
    ),
}


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def client(
    request: pytest.FixtureRequest,
    truth: tuple[Truth, Path],
    running_server: Callable[..., AbstractContextManager[str]],
) -> Iterator[httpx.Client]:
    flags = ["--dtype", "fp32", "--kv-cache-gb", "0.02", "--threads", "1", *request.param]
    with running_server(truth[1], *flags) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client
        stats = client.get("/server_info").json()["stats"]
        assert stats["num_free_blocks"] == stats["num_blocks"]


def ask(client: httpx.Client, parts: list[int | bytes]) -> tuple[list[int], dict[str, Any]]:
    text = " ".join(f"w{part}" if isinstance(part, int) else "<image>" for part in parts)
    body = {
        "text": text,
        "image_data": [base64.b64encode(part).decode() for part in parts if isinstance(part, bytes)],
        "sampling_params": {
            "max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "logit_bias": {IMAGE_TOKEN: -100.0},
        },
    }  # fmt: skip
    reply = client.post("/generate", json=body)
    assert reply.is_success, reply.text
    return reply.json()["output_ids"], reply.json()["meta_info"]


RED, BLUE = picture(1), picture(2, (64, 21))
QUESTIONS: list[list[int | bytes]] = [
    [5, 6, 7],
    [RED, 11, 12],
    [3, RED, 11],
    [RED, 4, BLUE, 5],
    [9, 8, BLUE, RED, 7, 6],
    [RED, BLUE, picture(3), picture(4, (20, 90)), 20],
]


def test_answers_are_hugging_face_s_with_any_number_of_images(client: httpx.Client, truth: tuple[Truth, Path]) -> None:
    for parts in QUESTIONS:
        tokens, meta = ask(client, parts)
        assert tokens == truth[0].answer(parts)
        assert meta["image_tokens"] == TOKENS_PER_IMAGE * sum(isinstance(part, bytes) for part in parts)
        assert ("encoder_seconds" in meta) == (meta["image_tokens"] > 0)


def test_the_same_words_with_another_picture_and_back(client: httpx.Client) -> None:
    words: list[int | bytes] = [30, 31, 32, 33]
    answers = [ask(client, [*words, image, *words])[0] for image in (RED, BLUE, RED, BLUE)]
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    assert answers[0] != answers[1]


def test_all_at_once_is_the_same_as_one_by_one(client: httpx.Client) -> None:
    expected = [ask(client, parts)[0] for parts in QUESTIONS]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda parts: ask(client, parts)[0], QUESTIONS * 4))
    assert together == expected * 4


def test_chat_places_pictures_where_their_parts_are(client: httpx.Client, truth: tuple[Truth, Path]) -> None:
    url = f"data:image/png;base64,{base64.b64encode(BLUE).decode()}"
    content = [
        {"type": "text", "text": "w3 w4"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "w5"},
    ]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": NEW_TOKENS, "temperature": 0}
    reply = client.post("/v1/chat/completions", json=body | {"logit_bias": {str(IMAGE_TOKEN): -100.0}}).json()
    words = [int(word.removeprefix("w")) for word in reply["choices"][0]["message"]["content"].split()]
    assert words == truth[0].answer([3, 4, BLUE, 5, 7])


def test_a_second_question_finds_the_first_one_s_image(client: httpx.Client, request: pytest.FixtureRequest) -> None:
    fresh = picture(77)
    before = client.get("/server_info").json()["stats"]
    _, meta = ask(client, [fresh, 40])
    assert (meta["images_encoded"], meta["image_cache_hits"]) == (1, 0)
    assert meta["encoder_seconds"] > 0
    _, meta = ask(client, [1, fresh, 40])
    assert (meta["images_encoded"], meta["image_cache_hits"]) == (0, 1)
    assert meta["encoder_seconds"] == 0
    _, meta = ask(client, [fresh, 41])
    after = client.get("/server_info").json()["stats"]
    assert after["total_images_encoded"] > before["total_images_encoded"]
    if "small" in request.node.callspec.id:
        assert meta["cached_tokens"] == 0
    else:
        assert after["total_images_encoded"] == before["total_images_encoded"] + 1
        assert after["total_image_cache_hits"] > before["total_image_cache_hits"]
        assert meta["cached_tokens"] == 16  # the block that the image fills


def test_bad_pictures_are_refused_and_the_next_question_is_answered(client: httpx.Client) -> None:
    for data in (RED[:200], b"not a picture", b""):
        body = {"text": "w1", "image_data": base64.b64encode(data).decode()}
        assert client.post("/generate", json=body).status_code == 400
    assert ask(client, QUESTIONS[1])[0]


PICTURE_TASK = """\
task: local_pictures
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_image: !function pictures.of
doc_to_target: "x"
generation_kwargs: {until: ["</s>"], max_gen_toks: 8, temperature: 0, logit_bias: {"98": -100.0}}
metric_list: [{metric: exact_match}]
"""
PICTURE_FUNCTION = """\
from PIL import Image


def of(doc):
    return [Image.open(doc["picture"])]
"""


def test_lm_evaluation_harness_asks_about_pictures(
    client: httpx.Client, truth: tuple[Truth, Path], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if "small" in request.node.callspec.id:
        pytest.skip("the harness takes long to start; once is enough")
    questions: list[tuple[list[int], bytes]] = [([3, 4], BLUE), ([9], RED), ([5, 6, 7], BLUE)]
    rows = []
    for index, (words, image) in enumerate(questions):
        (tmp_path / f"{index}.png").write_bytes(image)
        rows.append({"question": " ".join(f"w{word}" for word in words), "picture": str(tmp_path / f"{index}.png")})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pictures.py").write_text(PICTURE_FUNCTION)
    (tmp_path / "pictures.yaml").write_text(PICTURE_TASK.replace("DATA", str(tmp_path / "rows.jsonl")))
    run = {
        "model": "local-chat-completions",
        "task": "local_pictures",
        "arguments": {
            "base_url": str(client.base_url).rstrip("/") + "/v1/chat/completions",
            "model": "megatron",
        },
        "options": {"apply_chat_template": True},
    }
    (tmp_path / "plan.json").write_text(json.dumps({"tasks": str(tmp_path), "runs": [run]}))
    script = Path(__file__).with_name("clients") / "run_lm_eval.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "plan.json"), str(tmp_path / "out.json")],
        capture_output=True, text=True, timeout=250,
        env=os.environ | {"HF_HOME": str(tmp_path / "cache"), "HF_DATASETS_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    [samples] = json.loads((tmp_path / "out.json").read_text())
    for sample, (words, image) in zip(samples, questions, strict=True):
        made = [int(word.removeprefix("w")) for word in sample["answers"][0][0].split()]
        assert made == truth[0].answer([image, *words, 7])
