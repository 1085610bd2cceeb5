"""What /server_info and /v1/models may look like, and what they must have."""

from __future__ import annotations

import pytest

from evaluation.cli import main
from evaluation.errors import PreflightError
from evaluation.preflight import served_model

CHECKPOINT = {"path": "/c/iter_0000005", "format": "torch_dist", "iteration": 5}
DOCUMENT = {"kind": "vlm", "checkpoint": CHECKPOINT, "arguments": [{"arg": "dtype", "value": "bf16"}]}
MODELS = {"data": [{"id": "mine"}]}


def test_document_as_the_body_or_beside_the_servers_state():
    plain = served_model({**DOCUMENT, "versions": {}}, MODELS, "http://s")
    nested = served_model({"status": "ready", "document": DOCUMENT}, MODELS, "http://s")
    assert (plain.kind, plain.name, plain.dtype, plain.checkpoint) == ("vlm", "mine", "bf16", CHECKPOINT)
    assert plain.identity == nested.identity
    assert str(plain) == "mine (vlm, bf16) from /c/iter_0000005, iteration 5"


@pytest.mark.parametrize(
    ("info", "models"),
    [
        (None, MODELS),
        ([], MODELS),
        ({}, MODELS),
        ({"kind": "gpt"}, MODELS),
        ({"kind": "gpt", "checkpoint": 5}, MODELS),
        (DOCUMENT, {}),
        (DOCUMENT, {"data": []}),
        (DOCUMENT, None),
    ],
)
def test_server_that_does_not_say_what_it_serves_is_refused(info, models):
    with pytest.raises(PreflightError, match="http://s does not describe its model"):
        served_model(info, models, "http://s")


def test_the_digest_of_the_weights_tells_models_apart_and_paths_do_not():
    def identity(path, digest):
        document = {**DOCUMENT, "checkpoint": {**CHECKPOINT, "path": path}}
        return served_model({"checkpoint": {"digest": digest}, "document": document}, MODELS, "http://s").identity

    assert identity("/a", "abc") == identity("/elsewhere", "abc")
    assert identity("/a", "abc") != identity("/a", "abd")


def test_a_digest_that_is_being_computed_is_waited_for(start_stub, mcq_file, tmp_path, capsys):
    checkpoint = {"path": "/a", "format": "torch_dist", "iteration": 7, "digest": "abc"}
    early, late = start_stub(checkpoint=checkpoint, infos_without_digest=2), start_stub(checkpoint=checkpoint)
    never = start_stub(checkpoint=checkpoint, infos_without_digest=10**6)
    command = ["--data", str(mcq_file(4)), "--output", str(tmp_path / "run"), "--no-report"]

    assert main(["--server", early.url, *command]) == 0
    assert main(["--server", late.url, *command]) == 0
    assert not late.asked(), "the same model, so there is nothing left to ask"
    assert main(["--server", never.url, *command, "--server-wait", "0.2"]) == 2
    assert "does not know the digest of its weights after 0.2 seconds" in capsys.readouterr().err


def test_answers_longer_than_the_context_are_warned_of(start_stub, mcq_file, tmp_path, capsys):
    stub = start_stub(max_model_len=200)
    command = ["--server", stub.url, "--data", str(mcq_file(2)), "--output", str(tmp_path / "run"), "--no-report"]
    assert main(command) == 0
    assert "--max-new-tokens 256 is more than the model's 200 tokens" in capsys.readouterr().err
