"""What operators ask."""

from __future__ import annotations

import httpx


def test_alive_and_ready(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")


def test_models(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)


def test_server_info_has_arguments_limits_counters_and_versions(client: httpx.Client) -> None:
    info = client.get("/server_info").json()
    arguments = {argument["arg"]: argument for argument in info["document"]["arguments"]}
    assert arguments["max_choices"]["value"] == 8
    assert arguments["max_choices"]["source"] == "default"
    assert info["document"]["kind"] == "gpt"
    assert info["engine"]["limits"]["num_blocks"] == 64
    assert info["stats"]["num_blocks"] == 64
    assert info["versions"]["megaserve"]
    assert info["status"] == "ready"


def test_the_description_of_the_interface_names_every_field(client: httpx.Client) -> None:
    description = client.get("/openapi.json").json()
    operation = description["paths"]["/generate"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert "sampling_params" in schema["properties"]
    assert "top_p" in description["components"]["schemas"]["SamplingBody"]["properties"]
