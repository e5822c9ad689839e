"""A headless Chromium, and what tests ask of pages in it."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install pillow")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="chromium and chromedriver are not installed: apt install chromium chromium-driver",
)
PHONE = 375  # pixels
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
CONTRASTS = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
const behind = (node) => {
  const layers = [];
  for (; node; node = node.parentElement) {
    layers.push(parse(getComputedStyle(node).backgroundColor));
  }
  return layers.reduceRight((under, layer) => over(layer, under), [255, 255, 255]);
};
const ratio = (colour, ground) => {
  const [low, high] = [light(over(colour, ground)), light(ground)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.getClientRects().length) continue;
  if (!node.checkVisibility({opacityProperty: true})) continue;
  if (node.closest("script, style, title, desc, :disabled")) continue;
  const style = getComputedStyle(node);
  const colour = parse(node.closest("#chart") ? style.fill : style.color);
  found.push([ratio(colour, behind(node)), node.tagName, walker.currentNode.textContent.trim()]);
}
const lines = [...document.querySelectorAll(".sample .line")].map((node) => [
  ratio(parse(getComputedStyle(node).stroke), behind(node.closest("svg").parentElement)),
  node.tagName, node.closest("svg").getAttribute("class"),
]);
return [found, lines];
"""


class Browser:
    """A driver, and what tests ask of the page that it shows."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def load(self, path: Path, *, width: int = 1100, dark: bool = False, media: str = "") -> None:
        """Open a file as a screen of this width shows it; a narrow one is a phone's."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.media("dark" if dark else "light", media)
        self.driver.get(path.as_uri())

    def media(self, scheme: str, media: str = "") -> None:
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}], "media": media}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.one(selector).get_attribute("textContent"))

    def complaints(self) -> list[Any]:
        return list(self.driver.get_log("browser"))

    def keys(self, selector: str, *keys: str) -> None:
        self.js("arguments[0].focus()", self.one(selector))
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def sideways(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        root = "const root = document.documentElement; "
        return int(self.js(f"{root}return root.scrollWidth - root.clientWidth"))

    def wider_than_shown(self, selector: str) -> list[Any]:
        """Return the elements whose content goes on at the right."""
        code = "return [...document.querySelectorAll(arguments[0])].filter("
        return list(self.js(f"{code}(each) => each.scrollWidth > each.clientWidth + 40)", selector))

    def shade(self, element: Any) -> float:
        """Return how much the ground at the right edge of an element changes when it is at its end.

        The shadow there says that the content goes on, and goes when there is no more.
        """
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        grounds = []
        for place in ("0", "arguments[0].scrollWidth"):
            self.js(f"arguments[0].scrollLeft = {place}", element)
            picture = Image.open(io.BytesIO(element.screenshot_as_png)).convert("L")
            grounds.append(float(np.median(np.asarray(picture)[:, -4:-1])))
        return abs(grounds[0] - grounds[1])


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Yield the driver of a browser that keeps its files in the folder `profile`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM or ""
    for each in [*OPTIONS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
