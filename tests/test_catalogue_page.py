"""The catalogue page in a real Chromium: from a file and from a server, on a desk and on a phone, by light and by dark.

The payload is synthetic. Screenshots lie in .pytest_cache/d/screenshots, to be looked at.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from factories import A100, H100, make_wheel
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.publish import page as pages
from hatch_model_cache.publish import shelf, site
from model_cache.origin.trust import Trust

pytestmark = pytest.mark.browser

H200 = H100 | {"name": "h200", "device_name": "NVIDIA H200"}
EVIL = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>\u202e"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
NARROW = {"width": 320, "height": 640}

Open = Callable[..., Page]


def make_dist(folder: Path) -> Trust:
    """Ten wheels: three models, three GPUs, two engines, signed and not, old and withdrawn, one hostile."""
    private, public, _ = generate(folder.parent / "release")
    key = load_key(str(private))
    notes = []
    for model, slug in (("Qwen/Qwen3-8B", "qwen3-8b"), ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct")):
        for target in (H100, H200):
            for version, engine in (("1.0.0", "0.33.0"), ("2.0.0", "0.34.0")):
                changes = {"model.id": model, "engine.version": engine, "targets.0.name": target["name"]}
                name = f"model-cache-{slug}-{target['name']}"
                wheel = make_wheel(folder, name=name, version=version, targets=(target,), changes=changes)
                if version == "2.0.0":
                    sign_wheel(wheel, key)
                notes.append(f'[wheels."{wheel.name}"]\ncompile-seconds = 83\n')
    make_wheel(
        folder,
        name="model-cache-qwen3-8b-h200",
        version="0.9.0",
        targets=(H200,),
        changes={"model.id": "Qwen/Qwen3-8B"},
    )
    evil = make_wheel(
        folder,
        name="model-cache-evil-a100-sxm4-80gb",
        targets=(A100 | {"device_name": "<b>GPU</b>"},),
        changes={
            "model.id": EVIL,
            "model.served_as": [EVIL, "'\"><i>"],
            "entries.0.served_as": EVIL,
            "entries.1.served_as": "'\"><i>",
        },
    )
    (folder / "index.toml").write_text("".join([*notes, f'[wheels."{evil.name}"]\nyanked = "<u>bad</u>"\n']))
    return Trust("prefer", Trust.of_files([str(public)]).keyring)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    trust = make_dist(folder / "dist")
    out = folder / "a site; $(x) 'y'"
    site.build(shelf.read([folder / "dist"], trust, {}), site.Site.at(out))
    return out


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    """The site's address at Python's own file server."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(built)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port
        yield f"http://127.0.0.1:{port[1]}/"
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "these tests need Debian's chromium: apt-get install chromium (.ci/run does it)"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", *quiet], timeout=60_000
        )


@pytest.fixture
def open_page(browser: Browser, built: Path) -> Iterator[Open]:
    """Opens the page, by default from its file; at the end nothing may have been asked for, said or run besides."""
    asked: list[str] = []
    said: list[str] = []
    contexts = []

    def opened(address: str = f"{built.as_uri()}/index.html", **options: Any) -> Page:
        context = browser.new_context(**({"viewport": DESK} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        assert [page.title() for page in context.pages] == ["Model caches"]
        context.close()
    assert said == []
    assert {re.sub(r"\?.*", "", url).rpartition("/")[2] for url in asked} <= {"index.html", ""}


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    folder = request.config.cache.mkdir("screenshots")

    def take(page: Page, name: str) -> None:
        assert len(page.screenshot(path=folder / f"{name}.png")) > 10_000, "an empty page makes a small picture"

    return take


def shown(page: Page) -> list[str]:
    """(model, version, GPU) of every row that is visible, in order."""
    rows = page.locator("main li:visible")
    return [" ".join(row.locator(".model, .target").all_inner_texts()).replace("\n", " ") for row in rows.all()]


def test_from_a_file_on_a_desk(open_page: Open, screenshot: Callable[[Page, str], None]) -> None:
    page = open_page()
    expect(page.locator("#count")).to_have_text("9 of 10 caches")
    screenshot(page, "desk-light")
    page.locator("summary", has_text="Llama").first.click()
    screenshot(page, "desk-light-open")
    line = page.locator("details[open] pre").first.inner_text()
    assert re.fullmatch(
        r"pip install --index-url file:///\S+/simple/ model-cache-llama-3-1-8b-instruct-\S+==2\.0\.0", line
    )
    assert not set(line) & set("'\"$;()`&|<>*?\\"), "nothing that a shell would read as more than a word"


def test_hostile_values_are_text(open_page: Open) -> None:
    page = open_page()
    page.locator("summary", has_text="onerror").click()
    assert page.locator("img, iframe, object, dl b, dl i, u").count() == 0
    assert page.locator("script").count() == 1
    details = page.locator("details[open]")
    assert "<img src=x onerror=\"document.title='owned'\">" in details.inner_text()
    assert "<b>GPU</b>" in details.inner_text()
    assert "Withdrawn by its publisher: <u>bad</u>." in details.inner_text()
    assert details.locator("pre").count() == 0, "what is withdrawn has no install line"


def test_search_and_filters(open_page: Open) -> None:
    page = open_page()
    search = page.get_by_role("searchbox", name="Search")
    search.fill("meta h200")
    expect(page.locator("#count")).to_have_text("2 of 10 caches")
    assert all("Llama" in row and "h200" in row for row in shown(page))
    page.get_by_label("Engine").select_option("vllm 0.34.0")
    assert shown(page) == ["meta-llama/Llama-3.1-8B-Instruct 2.0.0 h200"]
    search.fill("no such model")
    expect(page.get_by_text("No cache matches.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#count")).to_have_text("9 of 10 caches")
    expect(search).to_be_focused()
    page.get_by_label("Hardware").select_option("h200")
    page.get_by_label("Older versions").check()
    assert [row for row in shown(page) if "older" in row] == ["Qwen/Qwen3-8B 0.9.0 · older h200"]
    page.get_by_label("Signed").check()
    expect(page.locator("#count")).to_have_text("2 of 10 caches")


def test_what_is_chosen_is_in_the_address(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("searchbox").fill("qwen & more")
    page.get_by_label("Signed").check()
    assert page.url.endswith("#q=qwen+%26+more&signed=1")
    again = open_page(page.url.replace("+%26+more", ""))
    expect(again.get_by_label("Signed")).to_be_checked()
    expect(again.locator("#count")).to_have_text("2 of 10 caches")
    odd = open_page(f"{page.url.partition('#')[0]}#target=no-such&engine=<script>")
    expect(odd.locator("#count")).to_have_text("9 of 10 caches")


def test_by_keyboard(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the caches")).to_be_focused()
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("qwen/")
    expect(search).to_have_value("qwen/")
    page.keyboard.press("Escape")
    expect(search).to_have_value("")
    page.keyboard.type("qwen h100")
    for _ in range(5):  # hardware, engine, signed, older, the first row
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    details = page.locator("details[open]")
    expect(details).to_have_count(1)
    page.keyboard.press("Tab")
    expect(details.get_by_role("radio", name="pip")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(details.get_by_label("Command for uv")).to_be_visible()
    expect(details.get_by_label("Command for pip")).to_be_hidden()
    page.locator("summary:visible").nth(1).press("Enter")
    expect(page.locator("details[open]").nth(1).get_by_label("Command for uv")).to_be_visible()


def test_copying_from_a_server(open_page: Open, served: str) -> None:
    page = open_page(served, permissions=["clipboard-read", "clipboard-write"])
    page.locator("summary", has_text="Qwen").first.click()
    details = page.locator("details[open]")
    details.get_by_role("button", name="Copy").first.click()
    expect(details.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"pip install --index-url {served}simple/ model-cache-qwen3-8b-h100-sxm5-80gb==2.0.0"
    details.get_by_label("with hashes").check()
    details.locator("button:visible").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(rf"--index-url {served}simple/\n\S+==2\.0\.0 --hash=sha256:[0-9a-f]{{64}}", copied)


@pytest.mark.parametrize("path", ["/a/b", "/a/b/", "/a/b/index.html", "/a/b?x=https://elsewhere.example/#q=qwen"])
def test_the_address_in_install_lines(browser: Browser, built: Path, path: str) -> None:
    """Also where a server does not send the browser on to the address with a slash; credentials stay out."""
    page = browser.new_page()
    text = (built / "index.html").read_text("utf-8")
    page.route("**/*", lambda route: route.fulfill(body=text, content_type="text/html"))
    page.goto(f"http://user:secret@caches.example{path}")
    line = page.locator("pre").first.text_content()
    page.close()
    assert line is not None
    assert line.startswith("pip install --index-url http://caches.example/a/b/simple/ model-cache-")


def test_copying_where_there_is_no_clipboard(open_page: Open) -> None:
    """As on a page from plain http: the text is marked, and the browser asked."""
    page = open_page()
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.locator("summary", has_text="Qwen").first.click()
    page.locator("details[open]").get_by_role("button", name="Copy").first.click()
    assert page.evaluate("getSelection().toString()").startswith("pip install --index-url file://")


@pytest.mark.parametrize("viewport", [PHONE, NARROW], ids=["phone", "narrow"])
def test_on_a_phone(open_page: Open, screenshot: Callable[[Page, str], None], viewport: Any, request: Any) -> None:
    name = request.node.callspec.id
    page = open_page(viewport=viewport, has_touch=True, is_mobile=True)
    screenshot(page, name)
    page.locator("summary", has_text="Qwen").first.tap()
    page.locator("details[open] .install").scroll_into_view_if_needed()
    screenshot(page, f"{name}-open")
    page.locator("summary", has_text="onerror").tap()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], "nothing to scroll sideways"
    sizes = page.locator("button:visible, select:visible, summary:visible").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 32, "a finger hits it"
    small = page.locator("main *:visible").evaluate_all(
        "all => all.map(one => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(small) >= 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(open_page: Open, screenshot: Callable[[Page, str], None], scheme: Any) -> None:
    """axe-core looks at names, roles, order and contrast."""
    page = open_page(color_scheme=scheme)
    for text in ("onerror", "Qwen"):
        page.locator("summary", has_text=text).first.click()
    screenshot(page, f"desk-{scheme}-all")
    red, *_ = map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (red < 64) == (scheme == "dark")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_without_scripts_it_is_a_list(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    assert len(shown(page)) == 10
    expect(page.locator("#filters")).to_be_hidden()
    assert page.locator("#count").inner_text().startswith("10 caches of 3 models, ")
    page.locator("summary", has_text="Qwen").first.click()
    expect(page.locator("details[open] pre").first).to_contain_text("--index-url INDEX/simple/")


def test_links_lead_to_the_files(open_page: Open, served: str) -> None:
    page = open_page(served)
    for link in page.locator("main a, footer a").all():
        address = link.evaluate("one => one.href")
        assert page.request.get(address).ok, address


SHOWCASE = [
    ("openai/gpt-oss-120b", "GptOssForCausalLM", H200, "0.34.0", 9.1, 141, True),
    ("openai/gpt-oss-120b", "GptOssForCausalLM", H100, "0.34.0", 8.7, 134, True),
    ("meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM", H100, "0.34.0", 2.7, 46, True),
    ("meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM", H100, "0.33.0", 2.6, 45, True),
    ("meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM", A100, "0.33.0", 2.4, None, False),
    ("Qwen/Qwen3-8B", "Qwen3ForCausalLM", H100, "0.34.0", 3.3, 52, True),
    ("Qwen/Qwen3-8B", "Qwen3ForCausalLM", H200, "0.34.0", 3.4, 53, True),
]


def test_the_picture_of_the_guide(browser: Browser, tmp_path: Path, screenshot: Callable[[Page, str], None]) -> None:
    """docs/guides/catalogue.png is this picture. Sizes and seconds are made up."""
    private, public, _ = generate(tmp_path / "release")
    notes = []
    for index, (model, architecture, target, engine, size, seconds, signed) in enumerate(SHOWCASE):
        wheel = make_wheel(
            tmp_path / "dist",
            {
                f"torch_compile_cache/torch_aot_compile/{index:064x}": {
                    "rank_0_0/model": random.Random(index).randbytes(int(size * 10**6))
                }
            },
            name=f"model-cache-{model.rpartition('/')[2]}-{target['name']}",
            version=f"1.{engine[2:4]}.0",
            targets=(target,),
            changes={
                "model.id": model,
                "model.served_as": [model],
                "entries.0.served_as": model,
                "model.architectures": [architecture],
                "engine.version": engine,
            },
        )
        if signed:
            sign_wheel(wheel, load_key(str(private)))
        if seconds:
            notes.append(f'[wheels."{wheel.name}"]\ncompile-seconds = {seconds}\n')
    (tmp_path / "dist/index.toml").write_text("".join(notes))
    trust = Trust("prefer", Trust.of_files([str(public)]).keyring)
    found = shelf.read([tmp_path / "dist"], trust, {})
    site.build(found, site.Site.at(tmp_path / "site"), url="https://wheels.example/caches/")
    page = browser.new_page(viewport={"width": 1180, "height": 1000}, device_scale_factor=1)
    page.goto(f"{(tmp_path / 'site').as_uri()}/index.html")
    page.locator("summary", has_text="Llama").nth(1).click()
    page.mouse.move(0, 0)
    expect(page.locator("details[open] pre").first).to_contain_text("--index-url https://wheels.example/caches/simple/")
    screenshot(page, "guide")
    page.close()


@pytest.mark.parametrize("seconds", [(5, "5 s"), (60, "1 min"), (83, "1 min 23 s"), (3600, "1 h"), (7500, "2 h 5 min")])
def test_durations(seconds: tuple[int, str]) -> None:
    assert pages.duration(seconds[0]) == seconds[1]
