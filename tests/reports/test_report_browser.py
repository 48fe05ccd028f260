"""The page in a real browser: it renders, its controls work, and the console stays empty."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_cases import write_run

from machine import socket_folder
from peermask.config.experiment import ExperimentConfig
from peermask.reports.page import write_report
from peermask.reports.watch import make_server
from peermask.run.execution import Execution
from peermask.run.jobs import plan_sweep
from peermask.run.metrics import METRICS
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows
from waiting import PATIENCE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",  # a click must not meet a page that still scrolls
    "--window-size=1200,900",
)

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of selenium's own connections
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(str(CHROMEDRIVER), env={**os.environ, "TMPDIR": socket_folder()})
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(PATIENCE)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """Three runs side by side, one of them of a fleet; the console must be empty in the end."""
    runs = [
        write_run(tmp_path / "one", absences=True),
        write_run(tmp_path / "two", seed=1),
        write_run(tmp_path / "alone", algorithm="ind-mask"),
    ]
    browser.get(write_report(runs, tmp_path).as_uri())
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


@contextmanager
def screen(browser: Any, width: int) -> Iterator[None]:
    """Show the page as on a screen of this width, up to 800 pixels a phone or tablet."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width <= 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.refresh()
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def find(browser: Any, css: str) -> Any:
    return browser.find_element("css selector", css)


def count(browser: Any, css: str) -> int:
    return len(browser.find_elements("css selector", css))


def choose(browser: Any, css: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(find(browser, css)).select_by_value(value)


def ink(browser: Any, css: str) -> bool:
    """Whether anything was painted on a canvas."""
    script = """
        const canvas = document.querySelector(arguments[0]);
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return pixels.some((value, i) => i % 4 === 3 && value > 0);"""
    return bool(browser.execute_script(script, css))


def test_every_part_is_drawn(page: Any) -> None:
    assert find(page, "html").get_attribute("data-ready") == "yes"
    assert find(page, "#subtitle").text.startswith("one · two · alone: 4 agents on digits d")
    for section in ("curves", "agents", "masks", "bytes", "faults", "table", "config"):
        assert find(page, f"#{section}").is_displayed()
    for canvas in ("#chart-accuracy canvas", "#chart-loss canvas", "#filters", "#overlap", "#fault-map"):
        assert ink(page, canvas)
    assert count(page, ".network circle") == 4
    assert find(page, "#samples tbody tr").text.split() == ["0", "40", "4", "20", "30", "10"]
    assert "Classes that no agent trains on: 5 (5, 6, 7, 8, 9)." in find(page, "#data-seen").text
    assert "2 times gone, 1 times silent" in find(page, "#faults").text


def test_curves_change_axes_and_hide(page: Any) -> None:
    from selenium.webdriver import ActionChains

    names = "#chart-accuracy .u-legend .line"
    assert count(page, names) == 2  # two seeds are one curve
    for axis, label in (("bytes", "bytes sent by all agents"), ("seconds", "time"), ("rounds", "round")):
        find(page, f"[data-value={axis}]").click()
        assert find(page, "#chart-accuracy .u-legend tr").text.startswith(label)
    for name in ("log x", "log y", "every agent"):
        page.find_element("xpath", f"//section[@id='curves']//label[contains(., '{name}')]/input").click()
    assert count(page, names) == 2 + 4
    choose(page, "select[aria-label=band]", "s")
    find(page, f"{names} th").click()
    assert "u-off" in find(page, names).get_attribute("class")
    find(page, "[data-value=bytes]").click()
    assert "u-off" in find(page, names).get_attribute("class")  # hidden stays hidden
    ActionChains(page).move_to_element(find(page, "#chart-loss .u-over")).perform()
    assert "–" not in find(page, "#chart-loss .u-legend .line .u-value").text


def test_accuracy_is_drawn_by_either_readout(page: Any) -> None:
    for name in ("test_accuracy_own", "test_accuracy_all", "test_accuracy_weighted", "validation_accuracy"):
        choose(page, "#curves select[aria-label='measured on']", name)
        assert ink(page, "#chart-accuracy canvas")
    assert "among own labels\n91.0 %" in find(page, "#agent .facts").text
    beside = find(page, "#summary .figure small").text
    assert beside == "answers among all labels; among own labels 92.5 %"


def test_an_agent_a_round_and_a_run_can_be_picked(page: Any) -> None:
    find(page, ".network [data-agent='2'] circle").click()
    assert find(page, "#agent h3").text == "agent 2"
    assert "2, 3" in find(page, "#agent .facts").text
    assert count(page, "#agent-layers .bars") == 2  # density, and overlap with neighbours
    before = find(page, "#filters").get_attribute("data-round")
    page.execute_script(
        "const s = document.getElementById('slider'); s.value = 0; s.dispatchEvent(new Event('input'));"
    )
    assert (before, find(page, "#filters").get_attribute("data-round")) == ("20", "10")
    assert find(page, "#mask-round").text == "round 10"
    choose(page, "#table select", "2")
    assert "ind-mask" in find(page, "#table-agents h3").text


def test_the_table_is_copied_in_three_forms(page: Any) -> None:
    def form(name: str) -> list[str]:
        text: str = page.execute_script(f"return FORMATS.{name}(agentRows())")
        return text.split("\n")

    assert form("Markdown")[0] == (
        "| agent | labels | retention | density | accuracy | own labels | weighted | links | sent bytes |"
    )
    assert form("Markdown")[2] == "| 0 | 0 1 | 0.1 | 30.0 % | 90.0 % | 91.0 % | 89.0 % | 2 | 5.44 kB |"
    assert form("LaTeX")[4] == r"0 & 0 1 & 0.1 & 30.0 \% & 90.0 \% & 91.0 \% & 89.0 \% & 2 & 5.44 kB \\"
    assert form("CSV")[1] == "0,0 1,0.1,0.3,0.9,0.91,0.89,2,5440"
    page.execute_script(
        "window.copied = null; navigator.clipboard.writeText = async (text) => { window.copied = text; };"
    )
    button = find(page, "#table-agents [data-format=CSV]")
    page.execute_script("arguments[0].click()", button)
    assert page.execute_script("return window.copied").startswith("agent,labels")
    assert button.text == "copied"


def test_the_finding_is_the_headline(browser: Any, tmp_path: Path) -> None:
    def headline(*runs: Path) -> str:
        browser.get(write_report(runs, tmp_path).as_uri())
        return str(find(browser, "h1").text)

    first = write_run(tmp_path / "first")
    behind = write_run(tmp_path / "behind", algorithm="ind-mask", gain=-0.05)
    assert headline(first) == "mce-pl reaches 91.5 % mean accuracy"
    assert headline(first, behind) == "mce-pl gains 5.0 points of mean accuracy over ind-mask"
    assert headline(behind, first) == "ind-mask is 5.0 points of mean accuracy behind mce-pl"
    same = write_run(tmp_path / "same", algorithm="dsgd")
    assert headline(first, same, behind) == "mce-pl and dsgd reach the same mean accuracy"
    assert find(browser, "#notes").text == "mce-pl gains 5.0 points of mean accuracy over ind-mask"


def test_a_page_says_what_to_change_where_collaboration_lost(browser: Any, tmp_path: Path) -> None:
    runs = (write_run(tmp_path / "sends", gain=-0.05), write_run(tmp_path / "alone", algorithm="ind-mask"))
    browser.get(write_report(runs, tmp_path).as_uri())
    for start in ("", "R.series.reverse(); "):
        told = browser.execute_script(f"R.runs[1].remedy = null; {start}return gains()[0]")
        assert told.endswith(": collaboration lost here; lower algorithm.aggregation_gain, try accord, or learn alone")
    assert "lost" not in browser.execute_script("R.runs[0].remedy = null; return gains()[0]")


def test_tiles_are_means_over_the_seeds_of_the_first_curve(browser: Any, tmp_path: Path) -> None:
    seeds = [write_run(tmp_path / str(seed), seed=seed, gain=0.02 * seed) for seed in (0, 1)]
    shutil.copytree(seeds[1], tmp_path / "copy")
    browser.get(write_report([*seeds, tmp_path / "copy"], tmp_path).as_uri())
    tiles = [each.text.split("\n") for each in browser.find_elements("css selector", "#summary .figure")]
    assert tiles[0][:2] == ["92.5 %", "mean test accuracy of mce-pl, over 2 seeds"]  # by hand: of 91.5 and 93.5
    assert tiles[1] == ["90.0 %", "worst agent (agent 0)"]
    assert "(2 seeds)" in find(browser, "#chart-accuracy .u-legend").text
    assert find(browser, "#notes").text.endswith(f"copy, which has the config and seed of {seeds[1]}.")
    choose(browser, "#table select", "1")
    assert find(browser, "#summary .figure b").text == "92.5 %"  # whatever run is looked at below


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_touches_or_is_cut_at_any_width(page: Any, width: int) -> None:
    with screen(page, width):
        wide = page.execute_script(
            "const e = document.documentElement; return [e.scrollWidth, e.clientWidth, innerWidth]"
        )
        assert (wide[0], wide[2]) == (wide[1], width)
        tiles = "return [...document.querySelectorAll('.figure')].every((each) => each.scrollWidth <= each.clientWidth)"
        assert page.execute_script(tiles)
        boxes = [each.rect for each in page.find_elements("css selector", "#summary .figure")]
        beside = [(one, two) for one, two in pairwise(boxes) if one["y"] == two["y"]]
        assert all(two["x"] - one["x"] - one["width"] >= 9 for one, two in beside)
        shadows = page.execute_script("return getComputedStyle(document.querySelector('.scroll')).backgroundAttachment")
        assert shadows == "local, local, scroll, scroll"  # a table that goes on has a shadow at its edge
        small = page.execute_script(
            "return [...document.querySelectorAll('select, button')].filter((each) => each.offsetHeight"
            " && each.offsetHeight < 44).length"
        )
        assert (small == 0) == (width <= 800)  # a finger is wider than a pointer
        gap = page.execute_script(
            "const [left, right] = document.querySelectorAll('#agents .two > *');"
            "return Math.abs(left.getBoundingClientRect().bottom - right.getBoundingClientRect().bottom)"
        )
        assert width <= 800 or gap < 250


def test_bars_of_bytes_are_as_long_as_they_are_many(page: Any) -> None:
    bars = page.execute_script(
        "return [...document.querySelectorAll('#bytes .bars .bar i')].slice(1, 3).map((bar) => bar.offsetWidth)"
    )
    assert bars[1] / bars[0] == pytest.approx(32, rel=0.1)  # 1 and 32 bits a weight


def test_plots_have_titles_units_and_names(page: Any) -> None:
    assert find(page, "#chart-accuracy").get_attribute("aria-label") == "test accuracy (%) by round"
    assert find(page, "#chart-accuracy").get_attribute("role") == "figure"
    titles = page.execute_script("return plots.get('chart-loss').axes.map((axis) => axis.label)")
    assert titles == ["round", "training loss (nats)"]
    assert find(page, "#agent-layers .bars .name").text == "conv 1"
    page.find_element("xpath", "//section[@id='curves']//label[contains(., 'every agent')]/input").click()
    colours = page.execute_script("return plots.get('chart-accuracy').series.slice(-4).map((each) => each.stroke())")
    assert len(set(colours)) == 4


def test_the_keyboard_alone_is_enough_and_the_focus_stays(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    def focused() -> Any:
        return page.switch_to.active_element

    page.execute_script("document.querySelector('[data-value=bytes]').focus()")
    focused().send_keys(Keys.ENTER)
    assert focused().get_attribute("data-value") == "bytes"
    assert focused().get_attribute("aria-pressed") == "true"
    page.execute_script("document.querySelector('#curves input[type=checkbox]').focus()")
    focused().send_keys(Keys.SPACE)
    assert (focused().get_attribute("type"), focused().is_selected()) == ("checkbox", True)
    page.execute_script("document.querySelector('.network [data-agent=\\'3\\']').focus()")
    focused().send_keys(Keys.ENTER)
    assert focused().get_attribute("data-agent") == "3"
    assert find(page, "#agent h3").text == "agent 3"
    page.execute_script("document.querySelector('#chart-loss .u-legend .line th').focus()")
    focused().send_keys(Keys.ENTER)
    assert "u-off" in find(page, "#chart-loss .u-legend .line").get_attribute("class")


def test_a_plot_is_saved_as_png_and_as_svg(page: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    name = "test accuracy (%)"
    for kind in ("PNG", "SVG"):
        find(page, f"[data-save=chart-accuracy-{kind}]").click()
    WebDriverWait(page, PATIENCE).until(lambda _: len(list(tmp_path.glob("test accuracy*.[ps][nv]g"))) == 2)
    saved = {path.suffix: path.read_bytes() for path in tmp_path.glob("test accuracy*.[ps][nv]g")}
    assert saved[".png"].startswith(b"\x89PNG")
    drawn = ElementTree.fromstring(saved[".svg"])
    space = "{http://www.w3.org/2000/svg}"
    assert drawn.findtext(f"{space}title") == name
    lines = drawn.findall(f"{space}polyline")
    assert [len(line.attrib["points"].split()) > 1 for line in lines] == [True, True]
    bands = [band.attrib["points"].split() for band in drawn.findall(f"{space}polygon")]
    assert [len(band) for band in bands] == [2 * len(line.attrib["points"].split()) for line in lines]
    assert {"mce-pl (2 seeds)", "ind-mask", "round", name} <= {text.text for text in drawn.findall(f"{space}text")}


def test_a_phone_the_dark_and_paper(page: Any) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        with screen(page, 380):
            assert page.execute_script("return document.documentElement.scrollWidth") == 380
            assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
            assert page.execute_cdp_cmd("Page.printToPDF", {})["data"].startswith("JVBER")
            assert find(page, "html").get_attribute("data-theme") is None  # light was for the paper alone
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_live_page_follows_its_run(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    run = RunFolder(write_run(tmp_path / "a", rounds=4, masks_at=(), finished=False))
    with make_server([run.path]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            browser.get(server.url)
            WebDriverWait(browser, PATIENCE).until(lambda _: find(browser, "#waiting").is_displayed())
            rows = [
                [5, agent, 1.0, 0.5, 1.0, 0.5, 1.0, 0.3, 9.0, 2.0, "nan", *[0.5] * (len(METRICS) - 11)]
                for agent in range(4)
            ]
            append_rows(run.metrics, METRICS, rows)
            WebDriverWait(browser, PATIENCE).until(lambda _: find(browser, "#curves").is_displayed())
            assert find(browser, "#live").text == "live, round 5"
            assert ink(browser, "#chart-accuracy canvas")
        finally:
            browser.get("about:blank")
            server.shutdown()
            thread.join()
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


@pytest.mark.parametrize(
    ("vary", "part"),
    [
        (["algorithm.lr=0.1,1.0"], "#chart-sweep canvas"),
        (["graph.name=ring,complete"], "#sweep .bars"),
        (["algorithm.lr=0.1,1.0", "graph.name=ring,complete"], "#sweep td.best"),
        ([], "#table-sweep"),
    ],
)
def test_a_sweep_is_a_line_bars_a_map_or_a_table(
    browser: Any, tmp_path: Path, small: Callable[..., ExperimentConfig], vary: list[str], part: str
) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small().toml())
    plan_sweep(tmp_path / "sweep", config, [], vary, [0]).run(Execution(), lambda *_: None)
    browser.get(write_report([tmp_path / "sweep"]).as_uri())
    assert count(browser, part) >= 1
    assert count(browser, "#table-sweep tbody tr") == 2 ** len(vary)
    assert ("is best for mce-pl" in find(browser, "#title").text) == bool(vary)
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
