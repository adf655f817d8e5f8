// One answer: its events as they come, and the tree of threads that they describe at any moment.

/** Threads at one moment. Thread 0 is the main one; a chunk's place in its parent is a number among its parts. */
export class Tree {
  constructor() {
    this.threads = new Map([[0, newThread(0, null, "", 0)]]);
    this.time = 0;
  }

  feed(event) {
    const thread = this.threads.get(event.thread);
    this.time = Math.max(this.time, event.time);
    thread.end = Math.max(thread.end, event.time);
    if (event.type === "token") {
      (event.tag ? thread.tags : thread.tokens).push(event.time);
      if (event.text) thread.parts.push(event.text);
    } else if (event.type === "fork") {
      const child = newThread(event.child, thread, event.topic, event.time);
      this.threads.set(event.child, child);
      thread.parts.push(event.child);
      thread.forks.push(event.time);
    } else if (event.type === "wait") {
      thread.waits.push({ from: event.time, to: null });
    } else if (event.type === "join") {
      const wait = thread.waits.at(-1);
      if (wait && wait.to === null) wait.to = event.time;
      thread.joins.push({ time: event.time, children: event.children });
    } else if (event.type === "finish") {
      thread.finished = true;
    }
  }

  /** Threads in reading order, each with its depth. */
  *inOrder(id = 0, depth = 0) {
    const thread = this.threads.get(id);
    yield { thread, depth };
    for (const part of thread.parts) if (typeof part === "number") yield* this.inOrder(part, depth + 1);
  }

  /** The whole text in reading order. */
  text(id = 0) {
    return this.threads.get(id).parts.map((part) => (typeof part === "number" ? this.text(part) : part)).join("");
  }
}

function newThread(id, parent, topic, start) {
  const lists = { parts: [], tokens: [], tags: [], forks: [], waits: [], joins: [] };
  return { id, parent: parent?.id ?? null, topic, start, end: start, finished: false, ...lists };
}

/** A thread's colour class: the main thread's is neutral, chunks take turns among six. */
export function colour(id) {
  return id === 0 ? "thread-main" : `thread-${((id - 1) % 6) + 1}`;
}

/** One request's answer. `state` is waiting, running, done, stopped or failed. */
export class Answer {
  constructor(label, model) {
    Object.assign(this, { label, model, state: "waiting", events: [], figures: null, finishReason: null });
    Object.assign(this, { started: 0, firstMs: null, wallMs: null });
    this.live = new Tree();
  }

  start() {
    this.state = "running";
    this.started = performance.now();
  }

  /** Take a chunk of the stream. */
  push(chunk) {
    const now = performance.now() - this.started;
    for (const event of chunk.pasta?.events ?? []) {
      if (event.type === "token" && this.firstMs === null) this.firstMs = now;
      this.events.push(event);
      this.live.feed(event);
    }
    const reason = chunk.choices[0]?.finish_reason;
    if (reason) {
      this.finishReason = reason;
      this.figures = chunk.pasta;
      this.wallMs = now;
      this.state = "done";
    }
  }

  /** The tree as it was `time` seconds after the request arrived. */
  at(time) {
    if (time >= this.live.time) return this.live;
    const tree = new Tree();
    for (const event of this.events) {
      if (event.time > time) break;
      tree.feed(event);
    }
    return tree;
  }

  /** Whether text behind unfinished chunks still waits for its turn at this moment. */
  open(tree) {
    return tree !== this.live || this.state === "running";
  }

  get tokensPerSecond() {
    return this.figures ? (this.figures.sequential_tokens / this.wallMs) * 1000 : null;
  }
}
