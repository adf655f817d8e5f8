// What a run says in figures: the headline of a race, and the table under it.

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
const times = (ratio) => `${ratio.toFixed(2)}×`;

function done({ answers }) {
  return Object.values(answers).every(({ state }) => state === "done");
}

/** Speedups of an answer: of a race if there was one, else what the service estimates from the answer alone. */
export function speedups({ parallel, sequential }) {
  if (!sequential) {
    const { theoretical_speedup: theoretical, speedup: realised } = parallel.figures;
    return { theoretical, realised, about: "about " };
  }
  return {
    theoretical: sequential.figures.critical_path / parallel.figures.critical_path,
    realised: sequential.wallMs / parallel.wallMs,
    about: "",
  };
}

/** Fill the summary; returns it in one sentence, for those who hear the page. */
export function renderSummary(element, shown) {
  if (!done(shown)) return null;
  const { parallel, sequential } = shown.answers;
  const { theoretical, realised, about } = speedups(shown.answers);
  const alone = parallel.figures.threads === 1;
  const headline = realised ? `${about}${times(realised)} as fast` : `${times(theoretical)} in theory`;
  const notes = [];
  if (sequential) notes.push(`${seconds(parallel.wallMs)} instead of ${seconds(sequential.wallMs)}; in steps ${times(theoretical)}.`);
  else {
    notes.push(`${parallel.figures.critical_path} steps for ${parallel.figures.sequential_tokens} tokens of text, ${times(theoretical)} in theory.`);
    if (realised) notes.push("What the text would take one token after another is the service’s estimate; race it to see.");
  }
  if (alone) notes.push("The answer has a single thread, so there is nothing to gain here.");
  if (sequential) {
    const same = parallel.live.text().trim() === sequential.live.text().trim();
    if (shown.race === "together") notes.push("Both ran at once and shared the machine: not a measurement.");
    if (same) notes.push("Both answers are the same text.");
    else notes.push(`The two answers differ (${parallel.figures.sequential_tokens} and ${sequential.figures.sequential_tokens} tokens).`);
  }
  element.querySelector(".headline").textContent = headline;
  element.querySelector(".headline + p").textContent = notes.join(" ");
  element.hidden = false;
  return `Done. ${parallel.figures.threads} thread${alone ? "" : "s"}, ${headline}.`;
}

/** Fill the table and the annotated document, if there is something to say. */
export function renderNumbers(table, documentBox, shown) {
  const { parallel, sequential } = shown.answers;
  table.hidden = parallel.state !== "done";
  if (table.hidden) return;
  const both = [parallel, ...(sequential?.state === "done" ? [sequential] : [])];
  const { theoretical, realised, about } = both.length > 1 || !sequential ? speedups(shown.answers) : {};
  const rows = [
    ["Time", (answer) => seconds(answer.wallMs)],
    ["Time to first token", (answer) => (answer.firstMs === null ? "–" : `${Math.round(answer.firstMs)} ms`)],
    ["Tokens of text a second", (answer) => Math.round(answer.tokensPerSecond)],
    ["Tokens of text", (answer) => answer.figures.sequential_tokens],
    ["Tokens with tags", (answer) => answer.figures.tokens],
    ["Threads", (answer) => answer.figures.threads],
    ["Steps", (answer) => answer.figures.critical_path],
    ["Theoretical speedup", (answer) => (answer !== parallel ? "1" : theoretical === undefined ? "–" : times(theoretical))],
    ["Realised speedup", (answer) => (answer !== parallel ? "1" : realised ? about + times(realised) : "–")],
  ];
  table.querySelector(".second").hidden = both.length < 2;
  table.querySelector("tbody").replaceChildren(
    ...rows.map(([name, value]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.append(name);
      row.append(head, ...both.map((answer) => Object.assign(document.createElement("td"), { textContent: value(answer) })));
      return row;
    }),
  );
  documentBox.hidden = !parallel.figures.document;
  documentBox.querySelector("pre").textContent = parallel.figures.document ?? "";
}
