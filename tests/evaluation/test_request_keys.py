"""What changes a request's key, and what does not."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from evaluation.datasets import Image, Item, Message
from evaluation.keys import GenerationParameters
from evaluation.plan import AskingSettings, plan_questions
from evaluation.preflight import model_identity
from evaluation.prompts import default_text, template_text
from evaluation.request_types.names import ContinuationName, RequestType

ITEM = Item(item_id="q1", row=1, columns={"index": "q1"}, question="Which?", options={"A": "x", "B": "y"})
PARAMETERS = GenerationParameters()


def key(
    item: Item = ITEM, model: str = "m", parameters: GenerationParameters = PARAMETERS, template: str = "", **more
) -> str:
    renderer = template_text(template, "t") if template else default_text
    settings = AskingSettings(renderer=renderer, parameters=parameters, **more)
    return plan_questions([item], settings, model)[0].item.key


def image(data: bytes) -> Image:
    digest = hashlib.sha256(data).hexdigest()
    return Image(sha256=digest, media_type="image/png", num_bytes=len(data), read=lambda: data)


def test_key_is_a_digest_and_stable_across_versions():
    """A change here makes every run directory in the world start over: change it knowingly or not at all."""
    assert key() == "6745c2d4c994d6b86033fa52c777aeb3073a33b397ad29882b84d7919c8fc499"


@pytest.mark.parametrize(
    "other",
    [
        key(replace(ITEM, item_id="q2")),
        key(replace(ITEM, row=2)),
        key(replace(ITEM, question="Which one?")),
        key(replace(ITEM, options={"A": "y", "B": "x"})),
        key(replace(ITEM, images=(image(b"1"),))),
        key(replace(ITEM, images=(image(b"2"),))),
        key(replace(ITEM, raw_prompt="Which?", options={})),
        key(replace(ITEM, messages=(Message("user", "Which?"),))),
        key(replace(ITEM, messages=(Message("user", (image(b"1"), "Which?")),))),
        key(replace(ITEM, messages=(Message("user", ("Which?", image(b"1"))),))),
        key(request_type=RequestType.MULTIPLE_CHOICE),
        key(request_type=RequestType.MULTIPLE_CHOICE, continuation=ContinuationName.LETTER),
        key(replace(ITEM, turns=("Which?",)), request_type=RequestType.MULTI_ROUND),
        key(model="n"),
        key(template="{{ question }}"),
        *(
            key(parameters=replace(PARAMETERS, **{name: value}))
            for name, value in {
                "max_new_tokens": 1,
                "temperature": 0.5,
                "top_p": 0.5,
                "seed": 1,
                "stop": ("x",),
            }.items()
        ),
    ],
)
def test_whatever_the_answer_depends_on_changes_the_key(other):
    assert other != key()


def test_gold_and_other_columns_do_not_change_the_key():
    assert key(replace(ITEM, references=("A",), columns={"index": "q1", "category": "c"})) == key()


def test_model_identity_is_content_where_known_else_path():
    checkpoint = {"path": "/a", "format": "torch_dist", "iteration": 5}
    base = model_identity("gpt", checkpoint, "fp32")
    assert model_identity("gpt", {**checkpoint, "path": "/b"}, "fp32") != base
    assert model_identity("gpt", {**checkpoint, "iteration": 6}, "fp32") != base
    assert model_identity("gpt", checkpoint, "bf16") != base
    with_digest = {**checkpoint, "digest": "d"}
    moved = {**with_digest, "path": "/b"}
    assert model_identity("gpt", with_digest, "fp32") == model_identity("gpt", moved, "fp32")
