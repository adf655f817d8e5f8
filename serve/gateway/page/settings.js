// The form's settings, and the URL's fragment that shares them. The API key is none of them: it is never in a URL.

const FIELDS = {
  prompt: { most: 20000 },
  model: {},
  race: { values: ["apart", "together", "off"] },
  max_threads: { number: [1, 64], whole: true },
  promise_bias: { number: [-100, 100] },
  temperature: { number: [0, 2] },
  seed: { number: [0, Number.MAX_SAFE_INTEGER], whole: true },
  max_tokens: { number: [1, 1000000], whole: true },
};

/** Why a value cannot be used, in words, or null. */
export function problem(name, value) {
  const field = FIELDS[name];
  if (!field) return `${name} is no setting of this page`;
  if (field.values && !field.values.includes(value)) return `${name} is one of ${field.values.join(", ")}`;
  if (field.most && value.length > field.most) return `${name} is longer than ${field.most} characters`;
  if (field.number && value !== "") {
    const [least, most] = field.number;
    const number = Number(value);
    const fits = Number.isFinite(number) && number >= least && number <= most && (!field.whole || Number.isInteger(number));
    if (!fits) return `${name.replace("_", " ")} is a ${field.whole ? "whole number" : "number"} from ${least} to ${most}`;
  }
  return null;
}

/** What the form says. A blank is no number. */
export function readForm(form) {
  const value = (name) => (FIELDS[name].number ? form.elements[name].value.trim() : form.elements[name].value);
  return Object.fromEntries(Object.keys(FIELDS).map((name) => [name, value(name)]));
}

/** The settings as a URL's fragment; what is as it was at first is left out. */
export function toFragment(settings, defaults) {
  const changed = Object.entries(settings).filter(([name, value]) => value !== defaults[name]);
  return new URLSearchParams(changed).toString();
}

/** Fill the form from a fragment; returns what it could not use, in words. */
export function fromFragment(fragment, form, defaults) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const problems = [...given].map(([name, value]) => problem(name, value)).filter(Boolean);
  for (const name of Object.keys(FIELDS)) {
    const value = given.get(name);
    form.elements[name].value = value !== null && problem(name, value) === null ? value : defaults[name];
  }
  const model = given.get("model");
  if (model !== null && form.elements.model.value !== model) {
    form.elements.model.value = defaults.model;
    problems.push(`this service has no model ${model} that answers in parallel`);
  }
  return problems;
}

/** A request's body. */
export function bodyOf(settings, model, mode) {
  // Parallel is what the model does by itself, if it can; one without control tokens refuses to be asked for it.
  const pasta = { mode: mode === "parallel" ? undefined : mode, events: true, document: true };
  const body = { model, messages: [{ role: "user", content: settings.prompt }], stream: true, pasta };
  const number = (name) => (settings[name] === "" ? undefined : Number(settings[name]));
  body.temperature = number("temperature");
  body.seed = number("seed");
  body.max_tokens = number("max_tokens");
  if (mode === "parallel") {
    pasta.max_threads = number("max_threads");
    pasta.promise_bias = number("promise_bias");
  }
  return body;
}
