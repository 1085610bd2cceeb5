"""What /server_info and /v1/models may look like, and what they must have."""

from __future__ import annotations

import pytest

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
