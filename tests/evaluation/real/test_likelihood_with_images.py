"""Likelihoods of answers to questions on pictures equal those of the full logits of Hugging Face's implementation."""

from __future__ import annotations

import io
import json

import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from evaluation.cli import main

IMAGE_TOKEN, TOKENS_PER_IMAGE = 256, 16
ROWS = [("What is it?", "a cat", "0.png"), ("Größe?", " 12 m²", "3.png"), ("Is it?", "yes", "0.png")]


@torch.inference_mode()
def direct(source, question, answer, picture):
    """Sum and is-greedy of the answer's tokens, from one pass over image, question and answer, in double precision."""
    model = LlavaForConditionalGeneration.from_pretrained(source, dtype=torch.float64).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    pixels = CLIPImageProcessorPil.from_pretrained(source)(Image.open(io.BytesIO(picture)), return_tensors="pt")
    ids = [IMAGE_TOKEN] * TOKENS_PER_IMAGE + tokenizer(question + answer)["input_ids"]
    count = len(tokenizer(answer)["input_ids"])
    logits = model(input_ids=torch.tensor([ids]), pixel_values=pixels["pixel_values"].double()).logits[0]
    before = logits.log_softmax(-1)[-count - 1 : -1]
    own = torch.tensor(ids[-count:])
    return before[torch.arange(count), own].sum().item(), bool((before.argmax(-1) == own).all())


def test_equal_to_full_logits(vlm_server, vlm_of_hugging_face, picture_questions, tmp_path):
    folder = picture_questions(1).parent
    data, run = folder / "likelihoods.jsonl", tmp_path / "run"
    rows = [{"question": question, "answer": answer, "images": [name]} for question, answer, name in ROWS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    flags = ["--data", str(data), "--request-type", "loglikelihood", "--output", str(run), "--no-report"]
    assert main(["--server", vlm_server.url, *flags]) == 0

    records = [json.loads(line) for path in (run / "log").iterdir() for line in path.read_text().splitlines()]
    assert len(records) == len(ROWS)
    for record in records:
        question, answer, name = ROWS[record["row"] - 1]
        logprob, is_greedy = direct(vlm_of_hugging_face, question, answer, (folder / name).read_bytes())
        (likelihood,) = record["likelihoods"]
        assert likelihood["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert likelihood["is_greedy"] == is_greedy
        assert likelihood["num_tokens"] == len(answer.encode())
