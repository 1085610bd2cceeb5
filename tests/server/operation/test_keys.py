"""Who may ask what: keys, roles, CORS, a proxy's path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.api.middleware.api_keys import ADMIN_PATHS, ApiKeys
from server.config import ServerConfig
from server.errors import ConfigurationError

GENERATE = {"text": "hello", "sampling_params": {"max_new_tokens": 1}}


@pytest.fixture
def stranger(guarded_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded_server.url, timeout=60) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_without_a_key_there_is_health_without_detail(stranger: httpx.Client) -> None:
    assert stranger.get("/health").json() == stranger.get("/ping").json() == {"status": "alive"}
    assert stranger.get("/health/ready").json() == {"status": "ready"}


PATHS = (
    *(("GET", path) for path in ("/v1/models", "/server_info", "/metrics", "/load", "/version", "/health_generate")),
    *(("GET", path) for path in ("/openapi.json", "/docs", "/nowhere", "/health/", "/health/../load")),
    *(("POST", path) for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/abort_request")),
    *(("POST", path) for path in sorted(ADMIN_PATHS)),
    ("PUT", "/api"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("headers", [{}, bearer("wrong-key-1"), {"authorization": "Basic Y2xpZW50LWtleS0x"}])
def test_everything_else_wants_a_key(stranger: httpx.Client, method: str, path: str, headers: dict[str, str]) -> None:
    reply = stranger.request(method, path, headers=headers, json=GENERATE if method != "GET" else None)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert error["type"] == ("invalid_request_error" if path.startswith("/v1/") else "unauthorized")
    assert "Authorization" in error["message"]


def test_every_declared_route_was_tried(guarded_server: Any, admin: httpx.Client) -> None:
    """A route added later must be protected without anybody thinking of it."""
    open_paths = {"/health", "/health/ready", "/ping"}
    with httpx.Client(base_url=guarded_server.url) as stranger:
        for path, operations in admin.get("/openapi.json").json()["paths"].items():
            for method in operations:
                assert (stranger.request(method, path).status_code == 401) == (path not in open_paths), path


def test_each_key_of_flag_and_file_works_and_admin_paths_want_the_other(
    stranger: httpx.Client, keys: tuple[str, str, str]
) -> None:
    for key in keys:
        assert stranger.post("/generate", json=GENERATE, headers=bearer(key)).status_code == 200
        expected = 200 if key == keys[2] else 403
        assert stranger.post("/flush_cache", headers=bearer(key)).status_code == expected
    assert stranger.get("/health/ready", headers=bearer(keys[0])).json()["status"] == "ready"
    assert "num_restarts" in stranger.get("/health/ready", headers=bearer(keys[0])).json()


def test_without_an_admin_key_admin_paths_are_off(client: httpx.Client) -> None:
    for path in ADMIN_PATHS:
        reply = client.post(path)
        assert reply.status_code == 403
        assert "--admin-api-key" in reply.json()["error"]["message"]


def test_keys_appear_nowhere(guarded_server: Any, admin: httpx.Client, keys: tuple[str, str, str]) -> None:
    shown = admin.get("/server_info").text + admin.get("/metrics").text + admin.get("/").text
    for key in keys:
        assert key not in shown
    arguments = {argument["arg"]: argument for argument in admin.get("/server_info").json()["document"]["arguments"]}
    assert arguments["api_key"]["value"] == "(secret)"


def test_only_allowed_origins_may_ask(stranger: httpx.Client, keys: tuple[str, str, str], client: httpx.Client) -> None:
    def preflight(to: httpx.Client, origin: str) -> httpx.Response:
        headers = {"origin": origin, "access-control-request-method": "POST"}
        return to.options("/generate", headers=headers)

    allowed = preflight(stranger, "https://chat.example")
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-origin" not in preflight(stranger, "https://evil.example").headers
    assert "access-control-allow-origin" not in preflight(client, "https://chat.example").headers  # off by default
    refused = stranger.post("/generate", json=GENERATE, headers={"origin": "https://chat.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://chat.example"


def test_a_proxys_path_is_in_the_description(admin: httpx.Client) -> None:
    assert admin.get("/openapi.json").json()["servers"] == [{"url": "/model"}]


@pytest.mark.parametrize("key", ["", "short", "has a space", "schlüssel-1", "tab\tbed-key"])
def test_keys_that_protect_nothing_or_cannot_be_sent_are_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="--admin-api-key"):
        ApiKeys.from_config(ServerConfig(admin_api_key=[key]))


def test_a_file_of_keys_must_be_there_and_hold_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing"):
        ApiKeys.from_config(ServerConfig(api_key_file=str(tmp_path / "missing")))
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(ConfigurationError, match="holds no key"):
        ApiKeys.from_config(ServerConfig(api_key_file=str(tmp_path / "empty")))
