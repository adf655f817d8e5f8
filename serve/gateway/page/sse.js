// A streamed chat completion: JSON chunks as they come, and every way it can fail in words.

/** A failure that can be shown as it stands. */
export class ApiError extends Error {
  constructor(message, param = null) {
    super(message);
    this.param = param;
  }
}

/** Data of server-sent events, from pieces of text cut anywhere. */
export class EventParser {
  #rest = "";

  /** The data of every event that is complete now. */
  push(text) {
    const blocks = (this.#rest + text).split(/\r\n\r\n|\n\n|\r\r/);
    this.#rest = blocks.pop();
    return blocks.map(dataOf).filter((data) => data !== "");
  }
}

function dataOf(block) {
  const lines = block.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

/** The headers that send a key; none without one. Throws ApiError for a key that no header can hold. */
export function authorization(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  try {
    new Headers(headers); // fetch would fail alike, as if the server did not answer
  } catch {
    throw new ApiError("An API key has letters, digits and signs of ASCII only: enter it again.", "key");
  }
  return headers;
}

/** POST a chat completion and yield its chunks. Throws ApiError, or AbortError where the signal was raised. */
export async function* streamChat(body, { key = "", signal } = {}) {
  const headers = { "Content-Type": "application/json", ...authorization(key) };
  let response;
  try {
    response = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running, and is this device still connected to it?");
  }
  if (!response.ok) throw await refusal(response);
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  for (;;) {
    const { value, done } = await read(reader);
    if (done) break;
    for (const data of parser.push(decoder.decode(value, { stream: true }))) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(`The service broke off: ${chunk.error.message}`);
      yield chunk;
    }
  }
  throw new ApiError("The connection ended before the answer did. What came is shown; run it again for the rest.");
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server was lost in the middle of the answer.");
  }
}

/** A response that is not 200, as an ApiError. */
export async function refusal(response) {
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // Not every proxy answers in JSON: the status alone must do.
  }
  const said = error?.message ?? `It answered with status ${response.status}.`;
  const param = error?.param ?? null;
  if (response.status === 401 || (response.status === 403 && error?.code !== "no_keys_configured")) {
    return new ApiError(`This service wants an API key that it knows: enter one under Settings. (${said})`, "key");
  }
  if (response.status === 429) {
    const wait = Number(response.headers.get("Retry-After"));
    const when = wait > 0 ? `in ${wait} second${wait === 1 ? "" : "s"}` : "in a moment";
    return new ApiError(`The service is busy; try again ${when}. (${said})`);
  }
  if (response.status >= 500) return new ApiError(`The service failed, not you; try again. (${said})`);
  return new ApiError(`The service refuses this request: ${said}`, param);
}
