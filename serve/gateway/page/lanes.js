// Threads over time as one SVG picture: a lane each, forks and joins between them, both answers on one axis.

import { colour } from "./answer.js";

const SVG = "http://www.w3.org/2000/svg";
const AXIS = 26;

function make(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A round step that cuts `span` into at most `most` parts. */
export function niceStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

/** Draw groups ({label, tree}) into `svg`; `span` is the axis's length in seconds, `now` where the playhead stands. */
export function drawLanes(svg, groups, { span, now, marked }) {
  const width = Math.max(svg.clientWidth, 240);
  const narrow = width < 560;
  // On a phone the label stands above its lane and leaves it the whole width.
  const left = narrow ? 4 : 168;
  const row = narrow ? 34 : 22;
  const x = (time) => left + (Math.min(time, span) / span) * (width - left - 12);
  const parts = [];
  const forks = []; // below the lanes, whose names they cross
  const lanes = [];
  let y = AXIS;
  for (const { label, tree } of groups) {
    const order = [...tree.inOrder()];
    const middle = new Map(order.map(({ thread }, index) => [thread.id, y + index * row + row - 11]));
    for (const { thread, depth } of order) {
      const at = middle.get(thread.id);
      const from = middle.get(thread.parent);
      if (from !== undefined) forks.push(fork(thread, from, at, x, marked));
      lanes.push(lane({ thread, depth, label, at, x, left, narrow, marked, pitch: x(0.004) - left }));
    }
    y += order.length * row + 14;
  }
  const height = y - 4;
  const step = niceStep(span, narrow ? 4 : 10);
  for (let tick = 0; tick <= span * 1.0001; tick += step) {
    const at = x(tick);
    const label = tick === 0 ? "0" : `${Number(tick.toPrecision(3))} s`;
    const anchor = tick === 0 ? "start" : at > width - 30 ? "end" : "middle";
    parts.push(make("line", { class: "grid", x1: at, x2: at, y1: 18, y2: height }));
    parts.push(make("text", { class: "tick", x: at, y: 11, "text-anchor": anchor }, label));
  }
  if (now !== null) parts.push(make("line", { class: "playhead", x1: x(now), x2: x(now), y1: 18, y2: height }));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(...parts, ...forks, ...lanes);
}

function fork(thread, from, at, x, marked) {
  const dim = marked === null || marked === thread.id ? "" : " dim";
  const start = x(thread.start);
  return make("g", { class: `${colour(thread.id)}${dim}` }, make("path", { class: "fork", d: `M${start} ${from + 6}V${at - 4}q0 4 4 4` }));
}

function lane({ thread, depth, label, at, x, left, narrow, marked, pitch }) {
  const state = marked === null || marked === thread.id ? "" : " dim";
  const group = make("g", { class: `lane ${colour(thread.id)}${state}`, "data-thread": thread.id });
  const name = thread.id === 0 ? label : thread.topic || "chunk";
  group.append(make("title", {}, thread.id === 0 ? label : `${thread.id}: ${thread.topic}`));
  group.append(...caption(thread, name, depth, at, left, narrow));

  const start = x(thread.start);
  group.append(make("rect", { class: "bar", x: start, y: at - 6, width: Math.max(x(thread.end) - start, 1), height: 12, rx: 3 }));
  for (const wait of thread.waits) {
    const to = x(wait.to ?? thread.end);
    group.append(make("rect", { class: "wait", x: x(wait.from), y: at - 6, width: Math.max(to - x(wait.from), 0), height: 12 }));
    group.append(make("line", { class: "waiting", x1: x(wait.from), x2: to, y1: at, y2: at }));
  }
  const stroke = Math.min(Math.max(pitch * 0.55, 0.8), 3);
  const ticks = (times, top, size) => apart(times, x).map((at) => `M${at.toFixed(1)} ${top}v${size}`).join("");
  group.append(make("path", { class: "tokens", d: ticks(thread.tokens, at - 6, 12), "stroke-width": stroke }));
  group.append(make("path", { class: "tags", d: ticks(thread.tags, at - 3, 6), "stroke-width": stroke }));
  for (const join of thread.joins) {
    group.append(make("path", { class: "join", d: `M${x(join.time)} ${at - 8}l6 8l-6 8l-6 -8z` }));
  }
  return group;
}

/** Where times stand, but no two nearer than a pixel: a long answer costs no more to draw than a short one. */
function apart(times, x) {
  const places = [];
  for (const time of times) if (!places.length || x(time) - places.at(-1) >= 1) places.push(x(time));
  return places;
}

function caption(thread, name, depth, at, left, narrow) {
  const indent = Math.min(depth, 4) * 12 + 2;
  const y = narrow ? at - 10 : at + 4;
  const room = narrow ? 40 : Math.floor((left - indent - (thread.id ? 26 : 8)) / 6.7);
  const text = name.length > room ? `${name.slice(0, room - 1)}…` : name;
  if (thread.id === 0) return [make("text", { class: "name main", x: indent, y }, text)];
  return [
    make("text", { class: "number", x: indent, y }, String(thread.id)),
    make("text", { class: "name", x: indent + (thread.id > 9 ? 20 : 13), y }, text),
  ];
}

/** The same in words, for those who do not see the picture. */
export function describeLanes(groups) {
  return groups
    .map(({ label, tree }) => {
      const chunks = [...tree.threads.values()].filter((thread) => thread.id > 0);
      const end = `${tree.time.toFixed(2)} seconds`;
      if (!chunks.length) return `${label}: one thread, ${end}.`;
      const topics = chunks.map((thread) => thread.topic).join(", ");
      return `${label}: ${chunks.length + 1} threads, ${end}. Chunks: ${topics}.`;
    })
    .join(" ");
}
