"""One service of the shipped models for the page in a browser and for what the guides ask a service."""

import os
import re
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import yaml
from playwright import sync_api as playwright

from tests.support.service import save_tiny_model, service_config, serving

ENDLESS = "endless"
#: So many tokens take the endless model five seconds, and half of them less than two.
SLOT_TOKENS = 16384
TIMEOUT_MS = 120_000

expect = playwright.expect
expect.set_options(timeout=30_000)  # 5 s are few where other tests keep the cores busy


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service with the shipped models, and one with random weights, which never ends an answer by itself."""
    folder = tmp_path_factory.mktemp("service")
    file = service_config(
        folder, save_tiny_model(folder / "model", endless=True, max_position_embeddings=SLOT_TOKENS)
    )
    config = yaml.safe_load(file.read_text())
    models = config["applications"][0]["args"]["models"]
    models[ENDLESS] = {"path": str(folder / "model")}
    for name, directory in (("pasta-atlas", "pasta"), ("pasta-atlas-sequential", "twin")):
        models[name]["path"] = f"platform/pasta/data/atlas/models/{directory}"
    # How many Decoders there are is no matter here, and each imports torch.
    config["applications"][0]["args"]["engine"] = {"num_slots": 3, "slot_tokens": SLOT_TOKENS}
    config["applications"][0]["args"]["decoder"]["num_replicas"] = 1
    file.write_text(yaml.safe_dump(config, sort_keys=False))  # the first model is the page's own choice
    with serving(file, folder / "log") as service:
        yield service.url


#: Chromium would load a page of its own, the list below its address bar, into each window: 0.9 s of processor. The rest
#: is of Playwright's own list, which this one replaces: what asks other servers, upgrades addresses or holds paints.
WITHOUT = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup"),
    *("AimEnabled", "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PreconnectToSearch"),
    *("HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "PaintHolding", "ThirdPartyStoragePartitioning"),
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose"),
)


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        missing = "no chromium on PATH (Debian: apt install chromium)"
        if os.environ.get("PASTA_REQUIRE_TOOLS"):
            pytest.fail(missing)
        pytest.skip(missing)
    with playwright.sync_playwright() as driver:
        features = f"--disable-features={','.join(WITHOUT)}"
        browser = driver.chromium.launch(executable_path=path, args=[features])
        yield browser
        browser.close()


class Visit:
    """A page in a browser, with everything it asked for and every error it logged."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda line: line.type == "error" and self.errors.append(line.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, fragment=""):
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{fragment}")
        expect(self.page.locator("select[name=model] option").first).to_be_attached()
        return self.page

    def run(self):
        """Press Run and wait for the end."""
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.wait_for_end()

    def wait_for_end(self):
        expect(self.page.get_by_role("status")).to_have_text(re.compile("^Done"), timeout=TIMEOUT_MS)


@pytest.fixture
def visit(browser, url):
    """A visitor; whatever a test does, nothing is asked of another server and nothing fails unseen."""
    visit = Visit(browser, url)
    yield visit
    assert {urlsplit(address).netloc for address in visit.requests if address != "about:blank"} == {
        urlsplit(url).netloc
    }
    assert visit.errors == []
    visit.context.close()
