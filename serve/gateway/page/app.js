// The page: form, requests, and what is shown at each moment.

import { Answer } from "./answer.js";
import { describeLanes, drawLanes } from "./lanes.js";
import { renderNumbers, renderSummary } from "./numbers.js";
import { bodyOf, fromFragment, problem, readForm, toFragment } from "./settings.js";
import { ApiError, authorization, refusal, streamChat } from "./sse.js";
import { TextView } from "./text.js";

const $ = (id) => document.getElementById(id);
const form = $("form");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const RACE_NOTES = {
  apart: "One at a time, so that neither takes the other’s time and the times compare. Replay shows them side by side.",
  together: "Both share the machine: on a few cores each takes the other’s time, so what you see is no measurement.",
  off: "Only the parallel answer, against an estimate of what its own text would take sequentially.",
};
const defaults = { prompt: $("examples").querySelector("button").dataset.prompt, model: "", race: "apart" };
for (const name of ["max_threads", "promise_bias", "temperature", "seed", "max_tokens"]) defaults[name] = "";

const texts = { parallel: new TextView($("parallel").querySelector(".text")), sequential: new TextView($("sequential").querySelector(".text")) };
const shown = { answers: {}, race: "off", time: null, marked: null }; // time: the replay's moment; null is the newest
let models = [];
let running = null; // the AbortController of the requests under way
let replaying = null; // the moment and the wall clock at which the replay began

// -- asking -----------------------------------------------------------------------------------------------

async function run() {
  if (running) return;
  running = new AbortController(); // before anything is awaited: whoever presses twice asks once
  showError(null);
  if (!models.length) {
    await loadModels();
    recall();
  }
  const settings = models.length && !running.signal.aborted ? settingsToSend() : null;
  if (settings) await race(settings);
  else running = null;
}

/** What the form asks for, or null after it was said what cannot be sent. */
function settingsToSend() {
  const settings = readForm(form);
  if (!settings.model) settings.model = form.elements.model.value;
  return check(settings) ? settings : null;
}

async function race(settings) {
  stopReplay();
  const parallel = new Answer("Parallel", settings.model);
  const sequential = settings.race === "off" ? null : new Answer("Sequential", baselineOf(settings.model));
  Object.assign(shown, { answers: sequential ? { parallel, sequential } : { parallel }, race: settings.race, time: null, marked: null });
  keepHeights(false);
  setRunning(true);
  draw();
  const top = $("results").getBoundingClientRect().top;
  if (top > innerHeight * 0.6) $("status").parentElement.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  scheduleDraw();
  const { signal } = running;
  const first = () => ask(parallel, bodyOf(settings, parallel.model, "parallel"), signal);
  const second = () => ask(sequential, bodyOf(settings, sequential.model, "sequential"), signal);
  try {
    if (!sequential) {
      say("Writing the answer …");
      await first();
    } else if (settings.race === "together") {
      say("Writing both answers at once …");
      await Promise.all([first(), second()]);
    } else {
      say("Writing the parallel answer …");
      await first();
      say("Now the same prompt, one token after another …");
      await second();
    }
    say(renderSummary($("summary"), shown) ?? "Done.");
  } catch (error) {
    const stopped = running.signal.aborted;
    running.abort(); // of a race, the other half
    if (!stopped) showError(error);
    say(stopped ? "Stopped. What had come is shown." : "");
  } finally {
    for (const answer of Object.values(shown.answers)) if (["waiting", "running"].includes(answer.state)) answer.state = "stopped";
    running = null;
    setRunning(false);
    draw();
    renderNumbers($("numbers"), $("document"), shown);
  }
}

async function ask(answer, body, signal) {
  answer.start();
  try {
    for await (const chunk of streamChat(body, { key: $("key").value, signal })) answer.push(chunk);
  } catch (error) {
    if (answer.state === "running") answer.state = signal.aborted ? "stopped" : "failed";
    throw error;
  }
}

function stop() {
  running?.abort();
  stopReplay();
}

/** Whether everything can be sent; says the first thing that cannot, and goes there. */
function check(settings) {
  const wrong = (name, message) => {
    showError(new ApiError(message, name));
    return false;
  };
  if (!settings.prompt.trim()) return wrong("prompt", "There is no prompt yet: type one, or pick an example.");
  for (const [name, value] of Object.entries(settings)) {
    const why = problem(name, value);
    if (why) return wrong(name, `${why[0].toUpperCase()}${why.slice(1)}.`);
  }
  return true;
}

async function loadModels() {
  try {
    const response = await fetch("v1/models", { headers: authorization($("key").value) }).catch(() => {
      throw new ApiError("The server does not answer. Is it still running, and is this device still connected to it?");
    });
    if (!response.ok) throw await refusal(response);
    models = (await response.json()).data.map(({ id, pasta }) => ({ id, mode: pasta?.mode ?? "parallel" }));
  } catch (error) {
    showError(error);
    return;
  }
  const parallel = models.filter(({ mode }) => mode === "parallel");
  const names = (parallel.length ? parallel : models).map(({ id }) => id);
  form.elements.model.replaceChildren(...names.map((name) => new Option(name, name)));
  defaults.model = names[0] ?? "";
}

/**
 * Whom to race: the model's sequential twin if one is served, else the model itself without promises. A twin's name
 * begins with its model's; in a service with one model of each kind, it may be any.
 */
function baselineOf(name) {
  const ofMode = (wanted) => models.filter(({ mode }) => mode === wanted).map(({ id }) => id);
  const [sequential, parallel] = [ofMode("sequential"), ofMode("parallel")];
  // "atlas-2-sequential" is the twin of "atlas-2", not of "atlas".
  const closer = (id) => parallel.some((other) => other.length > name.length && id.startsWith(other));
  const only = sequential.length === 1 && parallel.length === 1 ? sequential[0] : name;
  return sequential.find((id) => id.startsWith(name) && !closer(id)) ?? only;
}

// -- showing ----------------------------------------------------------------------------------------------

function draw() {
  const answers = Object.values(shown.answers);
  $("results").hidden = answers.length === 0;
  $("answers").classList.toggle("race", answers.length > 1);
  $("sequential").hidden = !shown.answers.sequential;
  const end = Math.max(...answers.map((answer) => answer.live.time), 0);
  const span = running ? roomFor(end) : Math.max(end * 1.01, 0.1);
  const groups = [];
  for (const [name, answer] of Object.entries(shown.answers)) {
    const tree = shown.time === null ? answer.live : answer.at(shown.time);
    texts[name].show(tree, answer.open(tree));
    $(name).querySelector("small").textContent = caption(answer);
    groups.push({ label: answer.label, tree });
  }
  drawLanes($("lanes"), groups, { span, now: shown.time, marked: shown.marked });
  if (!running) $("lanes").setAttribute("aria-label", describeLanes(groups));
  for (const chunk of document.querySelectorAll(".chunk")) chunk.classList.toggle("marked", Number(chunk.dataset.thread) === shown.marked);
  $("time").max = end;
  $("time").value = shown.time ?? end;
  $("clock").textContent = `${(shown.time ?? end).toFixed(2)} s`;
  $("time").setAttribute("aria-valuetext", `${(shown.time ?? end).toFixed(2)} seconds`);
}

/** An axis that need not change with every token. */
function roomFor(seconds) {
  return [0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256].find((room) => room > seconds) ?? seconds * 1.2;
}

function caption(answer) {
  const count = answer.live.threads.size;
  const threads = `${count} thread${count === 1 ? "" : "s"}`;
  if (answer.state === "waiting") return "waits for its turn";
  if (answer.state === "running") return answer.events.length ? `writing, ${threads}` : "reading the prompt";
  if (answer.state !== "done") return answer.state;
  const why = { length: ", cut at the limit", repetition: ", ended, since it repeated itself" };
  const cut = why[answer.finishReason] ?? "";
  return `${(answer.wallMs / 1000).toFixed(2)} s, ${threads}${cut}`;
}

function scheduleDraw() {
  const next = () => {
    if (!running) return;
    const begun = performance.now();
    draw();
    // A long answer takes longer to draw: buttons and keys get as much of the time as the pictures.
    const spent = performance.now() - begun;
    if (calm.matches || spent > 8) setTimeout(scheduleDraw, calm.matches ? 400 : spent);
    else scheduleDraw();
  };
  requestAnimationFrame(next);
}

function setRunning(on) {
  $("run").setAttribute("aria-disabled", on);
  if (!on && document.activeElement === $("stop")) $("run").focus({ preventScroll: true });
  $("stop").hidden = !on;
  $("results").setAttribute("aria-busy", on);
  for (const id of ["replay", "time", "speed"]) $(id).disabled = on;
  if (on) for (const id of ["summary", "numbers", "document"]) $(id).hidden = true;
}

function say(text) {
  $("status").textContent = text;
}

function showError(error) {
  for (const field of form.elements) field.ariaInvalid = null;
  $("error").hidden = error === null;
  $("error").textContent = error === null ? "" : error instanceof ApiError ? error.message : `This page failed: ${error.message}`;
  const name = error?.param?.replace("pasta.", "").replace("messages", "prompt");
  const field = name === "key" ? $("key") : name ? form.elements[name] : null;
  if (!(field instanceof HTMLElement)) return;
  field.closest("details")?.setAttribute("open", "");
  field.ariaInvalid = "true";
  field.focus();
}

// -- replaying --------------------------------------------------------------------------------------------

function toggleReplay() {
  if (replaying) return stopReplay();
  if (running) return;
  keepHeights(true);
  const end = Number($("time").max);
  const from = shown.time === null || shown.time >= end ? 0 : shown.time;
  replaying = { from, since: performance.now() };
  $("replay").textContent = "Pause";
  requestAnimationFrame(replayStep);
}

function replayStep() {
  if (!replaying) return;
  const end = Number($("time").max);
  const time = replaying.from + ((performance.now() - replaying.since) / 1000) * Number($("speed").value);
  shown.time = time < end ? time : null;
  draw();
  if (shown.time === null) {
    keepHeights(false);
    stopReplay();
  } else requestAnimationFrame(replayStep);
}

function stopReplay() {
  replaying = null;
  $("replay").textContent = "Replay";
}

/** While time is moved about, what lies below a growing text stays where it is. */
function keepHeights(on) {
  for (const { element } of Object.values(texts)) {
    if (!on) element.style.minHeight = "";
    else if (shown.time === null) element.style.minHeight = `${element.offsetHeight}px`;
  }
}

function changeSpeed() {
  if (replaying) Object.assign(replaying, { from: shown.time ?? 0, since: performance.now() });
}

function seek() {
  stopReplay();
  keepHeights(true);
  const time = Number($("time").value);
  shown.time = time < Number($("time").max) ? time : null;
  draw();
  if (shown.time === null) keepHeights(false);
}

// -- settings and events ----------------------------------------------------------------------------------

function remember() {
  const settings = readForm(form);
  // The form cannot hold the link's model before there is a list: the service may want a key first.
  if (!models.length) settings.model = new URLSearchParams(location.hash.slice(1)).get("model") ?? "";
  const fragment = toFragment(settings, defaults);
  history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  $("race-note").textContent = RACE_NOTES[form.elements.race.value];
  for (const button of $("examples").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button.dataset.prompt === form.elements.prompt.value);
  }
}

function recall() {
  const problems = fromFragment(location.hash, form, defaults);
  if (!models.length) return; // nothing to choose from yet: the link stays as it is
  if (problems.length) showError(new ApiError(`This link holds something that this page cannot use: ${problems.join("; ")}.`));
  remember();
}

async function share() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied: it holds the prompt and the settings.");
  } catch {
    say("The address bar holds the link: it has the prompt and the settings.");
  }
}

function mark(event) {
  const id = Number(event.target.closest?.("[data-thread]")?.dataset.thread ?? 0);
  const marked = id > 0 ? id : null;
  if (marked === shown.marked) return;
  shown.marked = marked;
  if (!running && !replaying) draw();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
form.addEventListener("input", remember);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
$("stop").addEventListener("click", stop);
$("share").addEventListener("click", share);
$("replay").addEventListener("click", toggleReplay);
$("speed").addEventListener("change", changeSpeed);
$("time").addEventListener("input", seek);
$("key").addEventListener("change", () => {
  // Later: an error goes back to the field, and while the focus is leaving it, that would end its change events.
  setTimeout(() => {
    showError(null);
    loadModels().then(recall);
  });
});
$("results").addEventListener("mouseover", mark);
$("examples").addEventListener("click", (event) => {
  const { prompt } = event.target.dataset;
  if (prompt === undefined) return;
  form.elements.prompt.value = prompt;
  remember();
});
addEventListener("hashchange", recall);
new ResizeObserver(() => {
  if (!running && !$("results").hidden) draw();
}).observe($("answers"));

await loadModels();
recall();
