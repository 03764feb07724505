"""A headless Chromium for looking at a page: what it prints, what it asks for, what it looks like."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def chromium() -> tuple[str, str] | None:
    """Paths of the browser and of its driver, where both are installed."""
    browser = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which is closed and removed at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    paths = chromium()
    if paths is None:
        raise FileNotFoundError("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = paths[0]
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(paths[1]))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """What the tests and the measurements do with a page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, width: int = 1280, height: int = 900, dark: bool = False, density: int = 1) -> None:
        """The size of the window, and what the system says about light and dark."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=density, mobile=False
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[theme])

    def open(self, page: Path) -> None:
        """Open a file and wait until all is drawn; what earlier pages printed and asked for is forgotten."""
        self.driver.get("about:blank")
        self.messages()
        self.requests()
        self.driver.get(page.resolve().as_uri())
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> Any:
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, 20, 0.02).until(lambda driver: driver.execute_script(condition))

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def point(self, x: float, y: float, click: bool = False) -> None:
        """Move the pointer to a place in the window, and press it there."""
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int = 0) -> None:
        """A key by its name, such as Tab, Enter, ArrowLeft."""
        text = {"Enter": "\r"}.get(key, "")
        code = code or {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}[key]
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def messages(self) -> list[str]:
        """What the page has written to the console since the last call, errors included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that the page has asked for since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [entry for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [entry["params"]["request"]["url"] for entry in sent]

    def picture(self, path: Path, height: int | None = None) -> None:
        """A screenshot of the window, or of the first `height` pixels of the page."""
        clip = {}
        if height is not None:
            width = self.run("return innerWidth")
            clip = {"captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}  # fmt: skip
        shot = self.command("Page.captureScreenshot", format="png", **clip)
        path.write_bytes(base64.b64decode(shot["data"]))
