"""The page in a headless Chromium, in front of the stub engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

KEY = "page-key-1"
# 64x64 pixels in patches of 16.
VLM = {
    "vision_model_type": "siglip",
    "img_h": 64,
    "img_w": 64,
    "patch_dim": 16,
    "vocab_size": 400,
    "image_tag_type": "",
}


@pytest.fixture(scope="session")
def page_server(start_stub_server: Callable[..., Any]) -> Iterator[Any]:
    """A model that takes images; no key."""
    with start_stub_server(kind="vlm", **VLM) as server:
        yield server


@pytest.fixture(scope="session")
def locked_server(start_stub_server: Callable[..., Any]) -> Iterator[Any]:
    """A model that takes text, behind a key."""
    with start_stub_server(api_key=[KEY]) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chrome]:
    """One browser. --no-sandbox: Chromium refuses to sandbox itself for root, which containers run as."""
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver and browser, "install chromium and chromium-driver: make check-page does"
    options = ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1150"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options=options, service=Service(driver)) as browser_under_test:
        yield browser_under_test


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """Without keys of an earlier test; fails for what the page's script complained about."""
    chromium.get_log("browser")  # forget
    yield chromium
    severe = [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    # A reply of 4xx is one, too, to Chromium; the tests ask for some.
    assert [entry["message"] for entry in severe if entry["source"] != "network"] == []
