"""The playground as a visitor uses it: the shipped models, a real Chromium, no mocks."""

import re

import pytest

from tests.e2e.playground.conftest import ENDLESS, TIMEOUT_MS, Visit, expect


def figures(page):
    """The table: name of a row → its cells."""
    rows = page.locator("#numbers tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def parallel_lanes(page):
    """Numbers of the chunks that have a lane."""
    return page.locator("#lanes .lane").evaluate_all(
        "lanes => lanes.map(lane => Number(lane.dataset.thread)).filter(Boolean)"
    )


# -- what a visitor sees -----------------------------------------------------------------------------------


def test_the_first_press_of_run_shows_lanes_and_text(visit):
    page = visit.open()
    visit.run()
    chunks = page.locator("#parallel .chunk")
    assert chunks.count() == 6, "the first example has six independent parts"
    assert sorted(parallel_lanes(page)) == [1, 2, 3, 4, 5, 6]
    text = page.locator("#parallel .text").inner_text()
    named = [text.index(animal) for animal in ("zebra", "koala", "salamander", "wolf", "salmon", "panda")]
    assert named == sorted(named), "reading order"


def test_a_chunk_has_the_colour_and_the_number_of_its_lane(visit):
    page = visit.open()
    visit.run()
    pairs = page.locator("#parallel .chunk").evaluate_all(
        """chunks => chunks.map(chunk => {
            const lane = document.querySelector(`#lanes .lane[data-thread="${chunk.dataset.thread}"]`);
            return {
                lane: getComputedStyle(lane.querySelector(".tokens")).stroke,
                text: getComputedStyle(chunk).borderBottomColor,
                number: lane.querySelector(".number").textContent === chunk.dataset.thread,
            };
        })"""
    )
    assert all(pair["lane"] == pair["text"] and pair["number"] for pair in pairs)
    assert len({pair["lane"] for pair in pairs}) == 6


def test_lines_begin_at_the_right_where_their_script_does(visit):
    def in_hebrew(route):
        body = re.sub(r'("text": ?)"[^"]+"', r'\1"שלום Haifa. "', route.fetch().text())
        route.fulfill(body=body, content_type="text/event-stream")

    page = visit.open("#race=off&max_threads=1&max_tokens=2")
    page.route("**/chat/completions", in_hebrew)
    page.locator("#prompt").fill("ספר לי על Haifa.")
    visit.run()
    assert page.locator("#prompt:dir(rtl)").count() == 1
    text = page.locator("#parallel .text")
    ends = [each.evaluate("e => e.getBoundingClientRect().right") for each in (text, text.locator(".run"))]
    assert abs(ends[0] - ends[1]) < 9, ends


def test_the_race_compares_both_answers(visit):
    page = visit.open()
    visit.run()
    expect(page.locator("#headline")).to_have_text(re.compile(r"^\d+\.\d\d× as fast$"))
    table = figures(page)
    steps = [int(cell) for cell in table["Steps"]]
    assert steps[0] < steps[1]
    assert float(table["Theoretical speedup"][0].rstrip("×")) == round(steps[1] / steps[0], 2)
    assert table["Threads"] == ["7", "1"]
    assert re.fullmatch(r"\d+\.\d\d×", table["Realised speedup"][0])
    assert page.locator("#sequential .chunk").count() == 0
    assert page.locator("#sequential .text").inner_text()


def test_racing_at_once_says_that_it_is_no_measurement(visit):
    page = visit.open("#race=together")
    visit.run()
    expect(page.locator("#explanation")).to_contain_text("not a measurement")


def test_a_model_without_a_twin_is_raced_with_itself(visit):
    """Another model's twin says nothing about this one."""
    page, asked = visit.open(f"#model={ENDLESS}&max_tokens=20"), []
    page.on(
        "request", lambda request: "chat/completions" in request.url and asked.append(request.post_data_json)
    )
    visit.run()
    assert [(body["model"], body["pasta"].get("mode")) for body in asked] == [
        (ENDLESS, None),
        (ENDLESS, "sequential"),
    ]


def test_without_a_race_there_is_one_answer(visit):
    page = visit.open("#race=off")
    visit.run()
    expect(page.locator("#sequential")).to_be_hidden()
    expect(page.locator("#headline")).to_have_text(re.compile(r"^about \d+\.\d\d× as fast$"))
    assert sum("chat/completions" in address for address in visit.requests) == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [("length", "cut at the limit"), ("repetition", "ended, since it repeated itself"), ("stop", "")],
)
def test_an_answer_that_did_not_end_by_itself_says_why(visit, reason, words):
    def ended(route):
        body = route.fetch().text()
        route.fulfill(body=re.sub(r'("finish_reason": ?)"stop"', rf'\1"{reason}"', body))

    page = visit.open("#race=off")
    page.route("**/chat/completions", ended)
    visit.run()
    shown = page.locator("#parallel small").inner_text()
    assert re.fullmatch(rf"[\d.]+ s, 7 threads(, )?{words}", shown), shown


def test_a_prompt_without_independent_parts_says_so(visit):
    page = visit.open()
    page.get_by_role("button", name="nothing independent").click()
    visit.run()
    assert parallel_lanes(page) == []
    expect(page.locator("#explanation")).to_contain_text("nothing to gain")


def test_an_answer_that_may_have_one_thread_only_is_not_said_to_have_no_independent_parts(visit):
    page = visit.open("#race=off&max_threads=1")
    visit.run()
    expect(page.locator("#explanation")).to_contain_text("nothing to gain")
    expect(page.locator("#explanation")).not_to_contain_text("independent")


def test_the_slider_goes_back_to_a_moment_when_several_parts_were_being_written(visit):
    page = visit.open()
    visit.run()
    whole = page.locator("#parallel .text").inner_text()
    end = float(page.locator("#time").get_attribute("max"))
    # The parallel answer takes a part of the race that differs from run to run.
    for moment in range(1, 40):
        page.locator("#time").fill(str(end * moment / 40))
        if page.locator("#parallel .ahead").count() > 0:
            break
    assert page.locator("#parallel .ahead").count() > 0, "written, but not yet its turn"
    assert len(page.locator("#parallel .text").inner_text()) < len(whole)
    page.locator("#time").press("End")
    assert page.locator("#parallel .text").inner_text() == whole
    assert page.locator("#parallel .ahead").count() == 0


def test_a_replay_ends_where_the_answer_ended(visit):
    page = visit.open()
    visit.run()
    whole = page.locator("#parallel .text").inner_text()
    page.locator("#speed").select_option("0.25")  # in real time it may be over before a busy machine looks
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_be_visible(timeout=TIMEOUT_MS)
    assert page.locator("#parallel .text").inner_text() == whole


def test_the_annotated_answer_is_there(visit):
    page = visit.open("#race=off")
    visit.run()
    page.get_by_text("The annotated answer").click()
    expect(page.locator("#document pre")).to_contain_text('<promise topic="')


# -- stopping and failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_request(visit, how):
    page = visit.open(f"#model={ENDLESS}&race=off&max_threads=1")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#parallel .text")).not_to_be_empty()
    with page.expect_event("requestfailed", lambda request: "chat/completions" in request.url):
        if how == "button":
            # At once: Playwright's own click looks first whether the button stays where it is, and a fast machine may
            # have written the whole answer by then.
            page.evaluate("document.querySelector('#stop').click()")
        else:
            page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    expect(page.locator("#parallel small")).to_have_text("stopped")
    expect(page.locator("#error")).to_be_hidden()
    assert page.locator("#parallel .text").inner_text(), "what had come is kept"


def test_a_refusal_is_shown_in_words_at_its_field(visit):
    page = visit.open("#max_tokens=1000000")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("context")
    expect(page.locator("input[name=max_tokens]")).to_be_focused()
    visit.errors[:] = [line for line in visit.errors if "400" not in line]  # the browser logs every 400


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("textarea[name=prompt]", "  ", "no prompt"),
        ("input[name=max_threads]", "many", "whole number from 1 to 64"),
        ("input[name=temperature]", "3", "from 0 to 2"),
        ("input[name=max_tokens]", "1000001", "whole number from 1 to 1000000"),
        ("input[name=seed]", "1e16", "whole number from 0 to 9007199254740991"),
    ],
)
def test_what_cannot_be_sent_is_said_before_it_is_sent(visit, field, value, words):
    page = visit.open()
    page.get_by_text("Settings", exact=True).click()
    page.locator(field).fill(value)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text(words)
    expect(page.locator(field)).to_be_focused()
    expect(page.locator(field)).to_have_attribute("aria-invalid", "true")
    assert not any("chat/completions" in address for address in visit.requests)


@pytest.mark.parametrize("viewport", [{"width": 360, "height": 740}, {"width": 1280, "height": 720}])
def test_what_is_done_and_what_went_wrong_is_in_sight(browser, url, viewport):
    """The page may be at a field above it, or at the end of a long answer below it."""
    visit = Visit(browser, url, viewport=viewport)
    page = visit.open(f"#model={ENDLESS}&race=off&max_threads=1")
    alert, field = page.get_by_role("alert"), page.locator("input[name=seed]")
    page.get_by_text("Settings", exact=True).click()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status")).to_contain_text("link")
    expect(page.get_by_role("status")).to_be_in_viewport(ratio=1)
    field.fill("x")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(field).to_be_focused()
    expect(alert).to_be_in_viewport(ratio=1)
    expect(field).to_be_in_viewport(ratio=1)
    above, below = sorted((field.bounding_box(), alert.bounding_box()), key=lambda box: box["y"])
    assert above["y"] + above["height"] <= below["y"], "the message does not cover the field"
    field.fill("")

    def cut(route):
        asked = route.request.post_data_json | {"logprobs": True, "frequency_penalty": 0.1}  # a token a step
        route.continue_(headers={**route.request.headers, "X-Request-Timeout": "1"}, post_data=asked)

    page.route("**/chat/completions", cut)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(alert).to_contain_text("broke off")
    page.set_viewport_size({**viewport, "height": 400})  # as if the answer were long
    page.locator("footer").scroll_into_view_if_needed()
    expect(alert).to_be_in_viewport(ratio=1)
    visit.context.close()


def test_a_blank_setting_is_none(visit):
    """Number(" ") is 0: a temperature of 0, which nobody asked for."""
    page = visit.open("#race=off&temperature=%20")
    page.get_by_text("Settings", exact=True).click()
    page.locator("input[name=seed]").fill(" ")
    with page.expect_request("**/chat/completions") as asked:
        visit.run()
    assert not {"temperature", "seed"} & asked.value.post_data_json.keys()


def test_a_key_that_the_service_knows_is_no_longer_wrong(visit):
    def guarded(route, request):
        known = request.headers.get("authorization") == "Bearer sk-mine"
        route.continue_() if known else route.fulfill(status=401, json={"error": {"message": "no key"}})

    visit.page.route("**/v1/models", guarded)
    visit.page.goto(visit.url)
    key, alert = visit.page.locator("#key"), visit.page.locator("#error")
    expect(key).to_have_attribute("aria-invalid", "true")
    key.fill("sk-other")
    key.press("Tab")
    expect(alert).to_contain_text("wants an API key")
    key.fill("sk-…")  # copied from where it is shown cut: no header holds it
    key.press("Tab")
    expect(alert).to_contain_text("ASCII")
    expect(key).to_have_attribute("aria-invalid", "true")
    key.fill("sk-mine")
    key.press("Tab")
    expect(visit.page.locator("select[name=model] option").first).to_be_attached()
    expect(alert).to_be_hidden()
    expect(key).not_to_have_attribute("aria-invalid", "true")
    visit.errors[:] = [line for line in visit.errors if "401" not in line]


def test_a_server_that_is_gone_is_said_in_words(visit):
    page = visit.open()
    visit.context.set_offline(True)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    visit.context.set_offline(False)
    visit.run()
    expect(page.locator("#error")).to_be_hidden()
    visit.errors[:] = [line for line in visit.errors if "ERR_INTERNET_DISCONNECTED" not in line]


# -- links -------------------------------------------------------------------------------------------------


def test_settings_survive_a_reload_and_travel_in_the_link(visit):
    page = visit.open()
    page.locator("#prompt").fill("Tell me about <b>France</b> & the 100% “zebra”.")
    page.get_by_text("Settings", exact=True).click()
    page.locator("input[name=max_threads]").fill("3")
    page.locator("input[name=seed]").fill("7")
    page.get_by_label("no race").check()
    page.locator("#key").fill("sk-secret")
    assert "secret" not in page.url
    page.reload()
    expect(page.locator("#prompt")).to_have_value("Tell me about <b>France</b> & the 100% “zebra”.")
    expect(page.locator("input[name=max_threads]")).to_have_value("3")
    expect(page.locator("input[name=seed]")).to_have_value("7")
    expect(page.get_by_label("no race")).to_be_checked()


def test_a_link_keeps_its_model_until_the_service_has_its_key(visit):
    waiting = []  # for the list of models, with the key

    def guarded(route, request):
        known = request.headers.get("authorization") == "Bearer sk-mine"
        waiting.append(route) if known else route.fulfill(status=401, json={"error": {"message": "no key"}})

    visit.page.route("**/v1/models", guarded)
    visit.page.goto(f"{visit.url}/#model={ENDLESS}&seed=7")
    expect(visit.page.locator("#key")).to_be_focused()
    visit.page.locator("#key").fill("sk-mine")
    visit.page.get_by_role("button", name="Run", exact=True).dblclick()
    while len(waiting) < 2:  # the field that was left asks, and the button
        visit.page.wait_for_timeout(50)
    for route in waiting[:2]:
        route.continue_()
    expect(visit.page.locator("select[name=model]")).to_have_value(ENDLESS)
    expect(visit.page.get_by_role("status")).to_contain_text("Writing")
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("status")).to_contain_text("Stopped")
    assert len(waiting) == 2, "the second press waits for nothing: it would begin after the stop"
    asked = [address for address in visit.requests if "chat/completions" in address]
    assert len(asked) == 1, "pressing twice asks once"
    visit.errors[:] = [line for line in visit.errors if "401" not in line]


def test_a_link_that_makes_no_sense_is_said(visit):
    page = visit.open("#max_threads=lots&model=gpt&colour=red")
    alert = page.get_by_role("alert")
    for words in ("max threads", "no model gpt", "colour is no setting"):
        expect(alert).to_contain_text(words)
    visit.run()


# -- everybody ---------------------------------------------------------------------------------------------


def test_a_race_by_keyboard_alone(visit):
    page = visit.open()
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")
        if page.evaluate("document.activeElement.id") == "run":
            break
    page.keyboard.press("Enter")
    visit.wait_for_end()
    assert page.evaluate("document.activeElement.id") == "run", "running does not take the focus away"
    page.locator("#prompt").focus()
    page.keyboard.press("Control+Enter")
    visit.wait_for_end()
    page.locator("#time").focus()
    page.keyboard.press("Home")
    expect(page.locator("#clock")).to_have_text("0.00 s")


def test_every_control_has_a_name(visit):
    page = visit.open()
    visit.run()
    page.get_by_text("Settings", exact=True).click()
    for control in page.locator("button:visible, input:visible, select:visible, textarea:visible").all():
        name = control.evaluate(
            "e => e.getAttribute('aria-label') || [...(e.labels ?? [])].map(l => l.innerText).join() || e.innerText"
        )
        assert name.strip(), control.evaluate("e => e.outerHTML")


def test_the_live_region_speaks_a_few_times_and_not_at_every_token(visit):
    page = visit.open()
    page.evaluate(
        """() => {
            window.said = 0;
            const count = () => { window.said += 1; };
            for (const region of document.querySelectorAll("[role=status], [role=alert], [aria-live]"))
                new MutationObserver(count).observe(region, { childList: true, subtree: true, characterData: true });
        }"""
    )
    visit.run()
    assert 1 <= page.evaluate("window.said") <= 6
    expect(page.locator("#lanes")).to_have_attribute(
        "aria-label", re.compile(r"Parallel: 7 threads.*Chunks: ")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards(browser, url, scheme):
    visit = Visit(
        browser,
        url,
        viewport={"width": 360, "height": 740},
        color_scheme=scheme,
        reduced_motion="reduce",
        has_touch=True,
    )
    page = visit.open()
    page.get_by_text("Settings", exact=True).click()
    visit.run()
    page.get_by_text("The annotated answer").click()
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths == [360, 360]
    small = page.locator("button:visible, select:visible, textarea:visible").evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().height < 32).map(e => e.outerHTML)"
    )
    assert small == [], "fingers need room"
    assert visit.errors == []
    visit.context.close()


def test_light_and_dark_are_two_pages(browser, url):
    backs = []
    for scheme in ("light", "dark"):
        visit = Visit(browser, url, color_scheme=scheme)
        backs.append(visit.open().evaluate("getComputedStyle(document.body).backgroundColor"))
        visit.context.close()
    assert len(set(backs)) == 2


def test_the_page_allows_itself_nothing_inline(visit):
    page = visit.open()
    page.evaluate(
        """() => {
            const button = document.createElement("button");
            try { button.setAttribute("onclick", "window.broken = true"); } catch {}
            document.body.append(button);
            button.click();
        }"""
    )
    assert page.evaluate("window.broken") is None
    assert visit.errors, "the browser reports what the policy has kept from running"
    visit.errors.clear()
