"""Pictures of a report: the default experiment in a real browser. Usage: python docs/pictures/report.py"""

from __future__ import annotations

import base64
import shutil
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import peermask

HERE = Path(__file__).parent
WIDTH = 1000  # CSS pixels: a page as wide as a README shows it, with its two columns
SHOTS = {  # the section at the top, the height, the theme
    "report": ("body", 1055, "light"),
    "report-agents": ("#agents", 900, "light"),
    "report-masks-dark": ("#masks", 700, "dark"),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = peermask.report(peermask.run_experiment(peermask.load_config(), Path(folder, "default")))
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-prefers-reduced-motion"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        for name, (section, height, theme) in SHOTS.items():
            scale = {"width": WIDTH, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", scale)
            media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            browser.get(page.as_uri())
            browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", section)
            (HERE / f"{name}.png").write_bytes(base64.b64decode(browser.get_screenshot_as_base64()))
        browser.quit()


if __name__ == "__main__":
    main()
