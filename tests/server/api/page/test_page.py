"""The page for people, as a person uses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

SLOW = 1004


class Page:
    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def __getitem__(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def until(self, wanted: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: wanted())

    def open(self, url: str) -> None:
        self.browser.get(url)
        self.browser.execute_script("sessionStorage.clear()")
        self.browser.get(url)

    def set(self, name: str, value: str) -> None:
        self[name].clear()
        self[name].send_keys(value)

    def tokens(self) -> list[WebElement]:
        return self["answer"].find_elements(By.CSS_SELECTOR, ".token")

    def generate(self, prompt: str, num_tokens: int) -> None:
        self.set("prompt", prompt)
        self.set("max-tokens", str(num_tokens))
        self["generate"].click()

    def arguments(self) -> dict[str, list[str]]:
        rows = self["arguments"].find_elements(By.CSS_SELECTOR, "tr")
        cells = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th,td")] for row in rows]
        return {name: rest for name, *rest in cells}


@pytest.fixture
def page(browser: Chrome, page_server: Any) -> Page:
    page = Page(browser)
    page.open(page_server.url)
    page.until(lambda: page["status"].text == "ready")
    return page


def test_it_is_one_document_that_needs_nothing_else(page_server: Any) -> None:
    reply = httpx.get(page_server.url)
    assert reply.status_code == 200
    assert "/*" + "SCRIPT*/" not in reply.text
    assert re.findall(r"https?://", reply.text) == []
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_tokens_stream_in_with_their_probabilities(page: Page) -> None:
    page.generate("hello world", 6)
    page.until(lambda: "Finished: length." in page["answer-status"].text)
    tokens = page.tokens()
    assert len(tokens) == 6
    assert page["answer-status"].text.startswith("6 tokens in ")
    ActionChains(page.browser).move_to_element(tokens[0]).perform()
    rows = page["rivals"].find_elements(By.CSS_SELECTOR, "tr")
    assert len(rows) == 5
    assert "60.7 %" in rows[0].text  # the stub's log-probability is -0.5
    assert "chosen" in rows[0].get_attribute("class")
    assert tokens[0].get_attribute("aria-describedby") == "rivals"


def test_tokens_are_reached_by_keyboard(page: Page) -> None:
    page.generate("hello world", 3)
    page.until(lambda: "Finished" in page["answer-status"].text)
    page.browser.execute_script("arguments[0].focus()", page.tokens()[0])
    assert page["rivals"].is_displayed()
    ActionChains(page.browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    assert page.browser.switch_to.active_element == page.tokens()[2]
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert not page["rivals"].is_displayed()


def test_chat_with_an_image(page: Page, page_server: Any, tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), "teal").save(tmp_path / "teal.png")
    page["image"].send_keys(str(tmp_path / "teal.png"))
    page.until(lambda: page["images"].find_elements(By.CSS_SELECTOR, "img"))
    page.browser.find_element(By.CSS_SELECTOR, "input[value=chat]").click()
    page.generate("what is this", 4)
    page.until(lambda: "Finished" in page["answer-status"].text)
    assert len(page.tokens()) == 4
    assert len([entry for entry in page_server.engine_log() if "added" in entry][-1]["images"]) == 1
    page["images"].find_element(By.CSS_SELECTOR, "button").click()
    assert page["images"].find_elements(By.CSS_SELECTOR, "img") == []


def test_live_figures_and_stopping(page: Page, page_server: Any) -> None:
    page.set("seed", str(SLOW))
    page.generate("hello", 200)
    page.until(lambda: page["running"].text == "1")
    assert page["kv-text"].text == "1 of 64 in use"
    page.until(lambda: float(page["tokens-per-second"].text.replace("–", "0")) > 0)
    assert page["history"].find_element(By.CSS_SELECTOR, ".line").get_attribute("d").startswith("M")
    page["stop"].click()
    page.until(lambda: "Stopped." in page["answer-status"].text)
    page.until(lambda: page["running"].text == "0")
    assert page_server.engine_log()[-1]["was_running"]


def test_errors_are_shown_in_the_servers_words(page: Page) -> None:
    page.generate("hello", 100_000)
    page.until(lambda: "at most" in page["answer-status"].text)
    assert "max_new_tokens" in page["answer-status"].text


def test_arguments_with_their_provenance(page: Page) -> None:
    page["argument-all"].click()
    page.until(lambda: len(page.arguments()) > 40)
    page.set("argument-filter", "max_image_p")
    page.until(lambda: list(page.arguments()) == ["max_image_pixels"])
    assert page.arguments()["max_image_pixels"][:2] == ["50000000", "default"]
    assert page["checkpoint"].text.startswith("/checkpoints/tiny/iter_0000001")


def test_no_control_is_without_a_name(page: Page) -> None:
    nameless = page.browser.execute_script(
        """return [...document.querySelectorAll("input, textarea, button, progress, [role=img]")].filter((element) =>
             !(element.labels?.length || element.textContent.trim() || element.getAttribute("aria-label")))
             .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    assert page.browser.find_element(By.CSS_SELECTOR, "html").get_attribute("lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(page: Page, scheme: str) -> None:
    """WCAG's contrast of 4.5 for text, in both colour schemes."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for name in ("model", "summary", "prompt", "kv-text", "generate", "status"):
        assert contrast(page[name]) >= 4.5, name


def contrast(element: WebElement) -> float:
    """Between an element's text and the first opaque background behind it."""
    colours = element.parent.execute_script(
        """let [at, ground] = [arguments[0], "rgba(0, 0, 0, 0)"];
           const text = getComputedStyle(at).color;
           for (; at && /, 0\\)$/.test(ground); at = at.parentElement) ground = getComputedStyle(at).backgroundColor;
           return [text, ground]""",
        element,
    )
    brighter, darker = sorted((luminance(colour) for colour in colours), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_where_a_key_is_set_the_page_asks_for_it(browser: Chrome, locked_server: Any) -> None:
    assert httpx.get(locked_server.url).status_code == 401
    page = Page(browser)
    page.open(locked_server.url)
    page.until(lambda: page["key-dialog"].is_displayed())
    page["key"].send_keys("wrong-key-1", Keys.ENTER)
    page.until(lambda: "refused" in page["key-error"].text)
    page["key"].send_keys("page-key-1", Keys.ENTER)
    page.until(lambda: page["status"].text == "ready")
    assert not page["image-row"].is_displayed()  # a model of text
    page.generate("hello", 3)
    page.until(lambda: len(page.tokens()) == 3)
