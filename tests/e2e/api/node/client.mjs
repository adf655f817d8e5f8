// What a program with OpenAI's own JavaScript client does with the service at argv[2]; says what it saw as JSON.

import OpenAI, { BadRequestError, NotFoundError } from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = "pasta-atlas";
const messages = [{ role: "user", content: "Tell me about France" }];
const seen = {};

seen.models = (await client.models.list()).data.map(({ id }) => id);

const whole = await client.chat.completions.create({ model, messages, max_tokens: 40, temperature: 0 });
seen.whole = { text: whole.choices[0].message.content, reason: whole.choices[0].finish_reason, usage: whole.usage };

const stream = await client.chat.completions.create({
  model,
  messages,
  max_tokens: 40,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
seen.streamed = { text: "", reason: null, usage: null };
for await (const chunk of stream) {
  seen.streamed.text += chunk.choices[0]?.delta.content ?? "";
  seen.streamed.reason = chunk.choices[0]?.finish_reason ?? seen.streamed.reason;
  seen.streamed.usage = chunk.usage ?? seen.streamed.usage;
}

// The client's own assembly of a stream.
const runner = client.chat.completions.stream({ model, messages, max_tokens: 40, temperature: 0 });
seen.assembled = (await runner.finalChatCompletion()).choices[0].message.content;

const aborted = await client.chat.completions.create({ model, messages, max_tokens: 3000, stream: true });
for await (const _ of aborted) break; // leaving the loop aborts the request
seen.aborted = aborted.controller.signal.aborted;

const text = await client.completions.create({ model, prompt: "The capital of France", max_tokens: 5, n: 2 });
seen.completions = text.choices.map(({ index, finish_reason }) => ({ index, finish_reason }));

const refused = async (fields) => {
  try {
    await client.chat.completions.create({ model, messages, ...fields });
  } catch (error) {
    return { status: error.status, param: error.param, code: error.code, bad: error instanceof BadRequestError, unknown: error instanceof NotFoundError };
  }
};
seen.unsupported = await refused({ tools: [{ type: "function", function: { name: "f" } }] });
seen.unknown = await refused({ model: "nobody" });

console.log(JSON.stringify(seen));
