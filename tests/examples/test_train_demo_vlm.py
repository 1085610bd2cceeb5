"""The training script learns: every parameter moves, the loss falls, and what it saves is a checkpoint of a LLaVA."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from model_providers.checkpoint.peek import peek
from model_providers.checkpoint.single_process import process_group_of_one

SCRIPT = Path(__file__).parents[2] / "examples" / "train_demo_vlm.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_demo_vlm", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up while it is executed
        spec.loader.exec_module(module)
    return module


def test_two_short_phases_of_training_and_a_checkpoint(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    train = script.load_split("train")
    tokenizer = script.make_tokenizer(train)
    few = script.Split(train.images[:32], train.questions[:32])
    with process_group_of_one():
        model, args = script.build_model(tokenizer.get_vocab_size())
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        script.train_encoder(model, few, few, steps=2)
        script.train_whole(model, args, few, few, tokenizer, epochs=4, blind=False)
        unmoved = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
        script.save(tmp_path / "checkpoint", model, args, tokenizer)
    assert unmoved == []
    lines = [line for line in capsys.readouterr().out.splitlines() if "] epoch " in line]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[-1] < losses[0]
    found = peek(tmp_path / "checkpoint")
    assert (found.args["vision_model_type"], found.args["language_model_type"]) == ("clip", "easy-vqa-demo")


def test_a_question_sees_its_picture_and_itself_alone(script: ModuleType) -> None:
    answer = 2
    batch = script.make_batch([0], [[[5, 6, answer, 7, 3], [8, answer, 9, 3]]], answer)
    places = script.IMAGE_TOKENS
    mask = batch.mask[0, 0]
    assert batch.token_ids[0, places:].tolist() == [5, 6, answer, 7, 8, answer, 9]
    assert batch.positions[0, places:].tolist() == [*range(places, places + 4), *range(places, places + 3)]
    assert batch.targets[0, places:].tolist() == [-1, answer, 7, 3, answer, 9, 3]
    second = mask[places + 5]
    assert second[:places].all()
    assert not second[places : places + 4].any()
    assert second[places + 4 : places + 6].all() and not second[places + 6]
