"""The report's page in headless Chromium: drawing, switches, keyboard, phone and contrast."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.trials import HOSTILE, QUOTES, records, tenths, trial
from tests.support.browser import CONTRASTS, PHONE, Browser, chromium, needs_chromium
from undrift.report import Comparison, write
from undrift.results.record import PeerRecord
from undrift.results.trial import Trial

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'undrift[report]'")
pytestmark = needs_chromium
ROUNDS = 60


def peer_trial(label: str, seed: int, slope: float, crash: int | None = None) -> Trial:
    """Accuracy 1 - 0.9 exp(-slope k), evaluated in even rounds; a crash multiplies the loss."""
    noise = np.random.default_rng(seed)
    runs = []
    for k in range(1, (crash or ROUNDS) + 1):
        wrong = 0.9 * math.exp(-slope * k) * (1 + 0.1 * noise.random())
        loss = 2 * wrong * (1e6 if crash and k > crash - 3 else 1)
        seen = k % 2 == 0
        runs.append(
            PeerRecord(
                round=k,
                clients=8,
                loss=loss if seen else None,
                accuracy=1 - wrong if seen else None,
                bytes_up=int(2e5 * (1 + seed)),
                bytes_down=0,
                gradients=40,
                samples=800,
                seconds=0.3,
                simulated_seconds=5.0 + seed,
                node_accuracy=1 - wrong * 1.02 if seen else None,
                consensus=0.1 / k + 0.01 * noise.random(),
                gradient_norm=None,
                bytes_per_worker=1,
                bytes_per_link=1,
                hops=1,
                bits=32.0,
                sign_matching=None,
            )
        )
    status = "diverged" if crash else "finished"
    return trial(label, seed, runs, rounds=ROUNDS, status=status, reason="NaN" if crash else "")


def usual() -> Comparison:
    trials = [peer_trial(name, seed, slope) for name, slope in SLOPES.items() for seed in range(2)]
    trials[-1] = peer_trial("MOON", 1, SLOPES["MOON"], crash=40)
    return Comparison(
        "Peers on a ring",
        trials,
        0.8,
        command="undrift compare runs/ring/experiment.toml --out " + "a-long-name/" * 12,
        experiment="rounds = 60\n" + "key = " + "1234567890" * 20,
        environment={"torch": "2.13", "git": {"commit": "1f" * 40}},
        notes={"FedAvg": "McMahan et al., 2017."},
        partition=np.random.default_rng(0).integers(0, 30, (20, 10)),
        labels=[f"label {k}" for k in range(10)],
        warnings=["1 damaged line of trials/" + "x" * 80 + " was left out."],
    )


SLOPES = {"FedAvg": 0.03, "SCAFFOLD": 0.05, "MOON": 0.02}


def hostile() -> Comparison:
    trials = [
        trial(HOSTILE, 0, records(tenths(5)), settings={HOSTILE: QUOTES}),
        trial(QUOTES, 0, records(tenths(5))),
        trial("unbroken" * 20, 0, records(tenths(5))),
    ]
    texts = {"command": HOSTILE, "experiment": HOSTILE, "warnings": [HOSTILE]}
    return Comparison(
        HOSTILE,
        trials,
        0.3,
        environment={HOSTILE: QUOTES},
        notes={HOSTILE: HOSTILE},
        partition=np.array([[1, 2], [3, 4]]),
        labels=[HOSTILE, QUOTES],
        **texts,  # type: ignore[arg-type]
    )


def many() -> Comparison:
    trials = [trial(f"Method {k} lr={k / 10}", 0, records(tenths(9))) for k in range(30)]
    return Comparison("Thirty", trials, [0.3, 0.5], partition=np.ones((300, 60), np.int64))


def bare() -> Comparison:
    return Comparison("Nothing", [trial("A", 0, records([None]))])


def lone() -> Comparison:
    return Comparison("One round", [trial("A", 0, records([0.5]))], 0.4)


PAGES = {"usual": usual, "hostile": hostile, "many": many, "bare": bare, "lone": lone}


class Reports(Browser):
    """A browser that writes the pages it opens."""

    def __init__(self, driver: Any, folder: Path) -> None:
        super().__init__(driver)
        self.folder = folder

    def open(self, name: str, *, width: int = 1100, dark: bool = False, media: str = "") -> None:
        path = self.folder / f"{name}.html"
        if not path.exists():
            write(PAGES[name](), path)
        self.load(path, width=width, dark=dark, media=media)

    def choose(self, name: str, value: str) -> None:
        self.one(f"input[name={name}][value={value}]").click()

    def lines(self) -> list[str]:
        return [line.get_attribute("d") for line in self.all("#chart path.line")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield Reports(driver, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("name", PAGES)
def test_pages_load_without_complaint_and_fetch_nothing(browser: Reports, name: str) -> None:
    browser.complaints(), browser.driver.get_log("performance")
    browser.open(name)
    own = (browser.folder / f"{name}.html").as_uri()
    events = [json.loads(e["message"])["message"] for e in browser.driver.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
        and event["params"]["documentURL"] == own  # not the page that a new browser shows
    ]
    assert asked[0] == own
    assert set(asked[1:]) <= {"data:,"}
    assert browser.complaints() == []
    assert browser.js("return window.pwned") is None


def test_hostile_labels_are_read_as_they_are(browser: Reports) -> None:
    browser.open("hostile")
    labels = [each.text for each in browser.all("#legend button[data-method]")]
    assert labels == [HOSTILE, QUOTES, "unbroken" * 20]
    browser.keys("#plot", "\ue010")  # End
    assert HOSTILE in browser.text("#readout")
    assert HOSTILE in browser.text("#tip")
    assert browser.js("return [document.images.length, window.pwned]") == [0, None]


def test_every_switch_changes_what_is_drawn(browser: Reports) -> None:
    browser.open("usual")
    seen = set()
    for value, name in {
        "accuracy": "accuracy, %",
        "loss": "loss",
        "node_accuracy": "accuracy of the nodes, %",
        "consensus": "consensus error",
    }.items():
        browser.choose("metric", value)
        assert browser.text("#chart .y-name") == name
        assert name.split(",")[0] in browser.text("#chart title")
        seen.add(tuple(browser.lines()))
    assert len(seen) == 4

    browser.choose("metric", "accuracy")
    # 60 rounds of 0.2 and 0.4 MB, 40 gradients, 800 samples, 0.3 s and 5 or 6 simulated seconds.
    names = {
        "rounds": ("rounds", "60"),
        "bytes": ("bytes sent, MB", "15"),
        "gradients": ("gradients", "2\u202f000"),
        "samples": ("training samples, thousands", "40"),
        "seconds": ("time, s", "15"),
        "simulated_seconds": ("simulated time, s", "300"),
    }
    for value, (name, tick) in names.items():
        browser.choose("axis", value)
        assert browser.text("#chart .x-name") == name
        ticks = [each.get_attribute("textContent") for each in browser.all("#chart .tick.x")]
        assert tick in ticks

    smoothed = set()
    for value, name in {"raw": "", "ema": ", EMA 0.9", "window": ", window 10"}.items():
        browser.choose("smoothing", value)
        assert browser.text("#chart .y-name") == f"accuracy, %{name}"
        smoothed.add(tuple(browser.lines()))
    assert len(smoothed) == 3


def test_lines_are_where_the_values_are(browser: Reports) -> None:
    """The ticks give the scale, on which every point of a line and the target are checked."""
    browser.open("usual")
    data = json.loads(browser.text("#curves-data"))
    curve = data["methods"][0]["curves"]["accuracy"]
    path = browser.one(".series[data-method='0'] .line").get_attribute("d")
    points = [tuple(map(float, part.split())) for part in path[1:].split("L")]
    assert len(points) == len(curve["x"]["rounds"]) == ROUNDS / 2
    ticks = {
        float(each.get_attribute("textContent")): float(each.get_attribute("y")) - 4
        for each in browser.all("#chart .tick.y")
    }
    (low, low_y), *_, (high, high_y) = sorted(ticks.items())
    for (_, y), mean in zip(points, curve["y"]["raw"]["mean"], strict=True):
        assert low + (y - low_y) * (high - low) / (high_y - low_y) == pytest.approx(
            100 * mean, abs=0.05
        )
    steps = np.diff([x for x, _ in points])
    assert np.allclose(steps, steps[0], atol=0.15)  # every second round
    target = browser.one("#chart line.target").get_attribute("y1")
    assert float(target) == pytest.approx(ticks[80.0], abs=0.01)


def test_a_logarithmic_scale_is_for_losses(browser: Reports) -> None:
    browser.open("usual")
    assert not browser.one("#log").is_enabled()
    browser.choose("metric", "loss")
    before = browser.lines()
    assert browser.one("#cut").is_displayed()  # the run that diverged is a million times higher
    browser.one("#log").click()
    assert browser.text("#chart .y-name") == "loss, logarithmic"
    assert browser.lines() != before
    assert not browser.one("#cut").is_displayed()
    assert browser.all(".series[data-method='2'] .cross")


def test_the_legend_hides_and_shows(browser: Reports) -> None:
    browser.open("usual")
    button = browser.one("#legend button[data-method='1']")
    assert (len(browser.lines()), button.get_attribute("aria-pressed")) == (3, "true")
    button.click()
    assert (len(browser.lines()), button.get_attribute("aria-pressed")) == (2, "false")
    assert not browser.all(".series[data-method='1']")
    assert "SCAFFOLD" not in browser.text("#chart desc")
    browser.keys("#legend button[data-method='1']", " ")
    assert (len(browser.lines()), button.get_attribute("aria-pressed")) == (3, "true")
    for method in range(3):
        browser.one(f"#legend button[data-method='{method}']").click()
    assert browser.lines() == []
    assert browser.text("#chart .empty") == "No method is shown."
    browser.open("many")
    browser.one("#legend button[data-every=hide]").click()
    assert browser.lines() == []
    browser.one("#legend button[data-every=show]").click()
    assert len(browser.lines()) == 30


def test_values_are_read_with_keys_and_with_the_pointer(browser: Reports) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser.open("usual")
    data = json.loads(browser.text("#curves-data"))
    mean = [m["curves"]["accuracy"]["y"]["raw"]["mean"] for m in data["methods"]]
    browser.keys("#plot", Keys.HOME)
    first = ", ".join(
        f"{name} {100 * each[0]:.2f} %"
        for each, name in sorted(zip(mean, SLOPES, strict=True), reverse=True)
    )
    assert browser.text("#readout") == f"round 2: {first}"
    browser.keys("#plot", Keys.ARROW_RIGHT)
    assert browser.text("#readout").startswith("round 4: ")
    browser.keys("#plot", Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.END)
    assert browser.text("#readout").startswith("round 60: ")
    assert len(browser.all("#reading .spot")) == 3
    browser.keys("#plot", Keys.ESCAPE)
    assert not browser.one("#tip").is_displayed()
    ActionChains(browser.driver).move_to_element(browser.one("#plot")).perform()
    assert browser.one("#tip").is_displayed()
    assert [each.text for each in browser.all("#tip .who")].count("SCAFFOLD") == 1
    ends = "const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]"
    tip, plot = (browser.js(ends, browser.one(each)) for each in ("#tip", "#plot"))
    assert plot[0] <= tip[0] <= tip[1] <= plot[1]


def test_the_table_of_values_follows_the_switches(browser: Reports) -> None:
    browser.open("usual")
    browser.one("details summary").click()
    heads = [each.text for each in browser.all("#values thead th")]
    assert heads == ["rounds", *SLOPES]
    rows = browser.all("#values tbody tr")
    assert 10 < len(rows) <= 20
    data = json.loads(browser.text("#curves-data"))
    last = [m["curves"]["accuracy"]["y"]["raw"]["mean"][-1] for m in data["methods"]]
    cells = [each.text for each in rows[-1].find_elements("css selector", "th, td")]
    assert cells == ["60", *(f"{100 * value:.2f} %" for value in last)]
    browser.choose("axis", "bytes")
    assert browser.one("#values thead th").text == "bytes sent, MB"


def test_everything_is_reached_with_the_keyboard(browser: Reports) -> None:
    from selenium.webdriver import Keys

    browser.open("usual")
    reached, unmarked = [], []
    for _ in range(60):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        name, outline = browser.js(
            "const a = document.activeElement;"
            "const shown = a.type === 'radio' ? a.nextElementSibling : a;"
            "const name = a.name || a.id || a.dataset.method || a.dataset.copy || a.tagName;"
            "return [name, getComputedStyle(shown).outlineStyle];"
        )
        if name == "BODY":
            break
        reached.append(name)
        if outline == "none":
            unmarked.append(name)
    order = ["theme", "metric", "axis", "smoothing", "plot", "0", "1", "2", "command"]
    assert [name for name in reached if name in order] == order
    assert unmarked == []
    assert reached.count("SUMMARY") == len(browser.all("summary"))
    before = browser.lines()
    browser.keys("input[name=metric]", Keys.ARROW_RIGHT)
    assert browser.text("#chart .y-name") == "loss"
    browser.keys("#log", " ")
    assert browser.text("#chart .y-name") == "loss, logarithmic"
    assert browser.lines() != before


def test_the_command_is_copied(browser: Reports) -> None:
    browser.open("usual")
    browser.one("button[data-copy]").click()
    browser.js("return new Promise((done) => setTimeout(done, 150))")
    assert browser.text("#copied") == "Copied."
    browser.js(
        "const field = document.createElement('textarea'); document.body.append(field);"
        "field.focus()"
    )
    browser.driver.switch_to.active_element.send_keys("\ue009v")  # Control and V
    assert browser.js("return document.activeElement.value") == usual().command


def test_a_cell_of_the_partition_tells_its_number(browser: Reports) -> None:
    from selenium.webdriver import ActionChains

    browser.open("usual")
    heat = browser.one("#heat")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", heat)
    width, height = heat.size["width"], heat.size["height"]
    client, label = 13, 2
    across, down = (client + 0.5) / 20 - 0.5, (label + 0.5) / 10 - 0.5
    chain = ActionChains(browser.driver)
    chain.move_to_element_with_offset(heat, int(across * width), int(down * height)).perform()
    counts = usual().partition
    assert counts is not None
    expected = f"Client 13, label label 2: {counts[client, label]} samples."
    assert browser.text("#heat-value") == expected


@pytest.mark.parametrize(
    ("name", "width"), [*((name, PHONE) for name in PAGES), ("usual", 320), ("usual", 768)]
)
def test_pages_do_not_scroll_sideways(browser: Reports, name: str, width: int) -> None:
    browser.open(name, width=width)
    browser.js("for (const each of document.querySelectorAll('details')) each.open = true")
    assert browser.js("return document.documentElement.clientWidth") <= width
    assert browser.sideways() <= 0
    if browser.all("#chart"):
        browser.keys("#plot", "\ue010")
        assert browser.sideways() <= 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_tables_show_on_a_phone_that_they_go_on(browser: Reports, dark: bool) -> None:
    browser.open("usual", width=PHONE, dark=dark)
    browser.js("for (const each of document.querySelectorAll('details')) each.open = true")
    wide = browser.wider_than_shown(".scroll")
    assert len(wide) >= 3
    assert [each for each in map(browser.shade, wide) if each < 10] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["usual", "many"])
def test_texts_and_lines_stand_out(browser: Reports, name: str, dark: bool) -> None:
    browser.open(name, dark=dark)
    browser.js("for (const each of document.querySelectorAll('details')) each.open = true")
    browser.keys("#plot", "\ue010")
    texts, lines = browser.js(CONTRASTS)
    assert len(texts) > 100
    assert [each for each in texts if each[0] < 4.5] == []
    assert len(lines) >= 9
    assert [each for each in lines if each[0] < 3] == []


def test_light_and_dark_follow_the_system_and_the_switch(browser: Reports) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.open("usual")
    light = browser.js(paper)
    browser.media("dark")
    dark = browser.js(paper)
    assert light != dark
    browser.choose("theme", "light")
    assert browser.js(paper) == light
    browser.media("light")
    browser.choose("theme", "dark")
    assert browser.js(paper) == dark
    browser.media("light", "print")  # paper is white, whatever the switch says
    assert browser.js(paper) == "rgb(255, 255, 255)"
    assert not browser.one("#switches").is_displayed()
    browser.media("light")
    browser.choose("theme", "auto")
    assert browser.js(paper) == light


def test_colours_of_the_switch_are_those_of_the_system(browser: Reports) -> None:
    """They are written twice in the style sheet."""
    names = [*(f"c{k}" for k in range(7)), "paper", "raised", "text", "quiet", "line", "axis"]
    names += ["accent", "on-accent", "warn", "warn-paper", "heat"]
    code = (
        "const s = getComputedStyle(document.documentElement);"
        "return arguments[0].map((name) => s.getPropertyValue('--' + name))"
    )
    browser.open("bare", dark=True)
    system = browser.js(code, names)
    browser.open("bare")
    light = browser.js(code, names)
    browser.choose("theme", "dark")
    assert browser.js(code, names) == system
    assert all(one != other for one, other in zip(light, system, strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_makes_sense_without_eyes(browser: Reports, name: str) -> None:
    browser.open(name)
    levels = [int(each.tag_name[1]) for each in browser.all("h1, h2, h3, h4, h5, h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [len(browser.all(each)) for each in ("header", "main", "footer")] == [1, 1, 1]
    assert browser.one("html").get_attribute("lang") == "en"
    ids = browser.js("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    references = browser.js(
        "return [...document.querySelectorAll('[aria-labelledby], [aria-describedby]')].flatMap("
        "(each) => `${each.getAttribute('aria-labelledby') || ''} "
        "${each.getAttribute('aria-describedby') || ''}`.trim().split(/\\s+/))"
    )
    assert set(references) <= set(ids)
    unnamed = browser.js(
        "return [...document.querySelectorAll('button, input, [tabindex], section, svg')].filter("
        "(each) => !each.closest('[aria-hidden=true]') && !each.textContent.trim()"
        " && !each.getAttribute('aria-label') && !each.getAttribute('aria-labelledby')"
        " && !(each.labels && each.labels[0].textContent.trim())).map((each) => each.outerHTML)"
    )
    assert unnamed == []
    for each in browser.all("svg:not([aria-hidden=true], [aria-hidden=true] *)"):
        assert each.get_attribute("role") == "img"
        assert each.find_element("css selector", "title").get_attribute("textContent")
        assert each.find_element("css selector", "desc").get_attribute("textContent")
    heads = browser.js("return [...document.querySelectorAll('th')].filter((each) => !each.scope)")
    assert heads == []


def test_the_curves_in_words(browser: Reports) -> None:
    browser.open("usual")
    data = json.loads(browser.text("#curves-data"))
    mean = data["methods"][0]["curves"]["accuracy"]["y"]["raw"]["mean"]
    first, last, best = (f"{100 * each:.2f} %" for each in (mean[0], mean[-1], max(mean)))
    words = browser.text("#chart desc")
    assert words.startswith("accuracy against rounds, raw. ")
    assert f"FedAvg: from {first} to {last}, best {best}." in words


def test_one_round_is_a_dot(browser: Reports) -> None:
    browser.open("lone")
    assert len(browser.all("#chart .dot")) == 1
    ticks = [each.get_attribute("textContent") for each in browser.all("#chart .tick.x")]
    assert ticks == ["0", "1"]  # rounds are whole
