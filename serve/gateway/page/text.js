// An answer's text in reading order, each chunk in its thread's colour and with its number.

import { colour } from "./answer.js";

export class TextView {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.tree = null;
    this.spans = new Map([[0, { span: this.element, shown: 0 }]]);
  }

  /** Show a tree. A tree that only grew since is continued; another one is drawn anew. */
  show(tree, open) {
    if (tree !== this.tree) this.clear();
    this.tree = tree;
    this.#grow(tree, 0);
    // Text behind an unfinished chunk is written already, but a plain client gets it only when its turn comes.
    this.blocked = false;
    this.#mark(tree, 0, open);
  }

  #grow(tree, id) {
    const thread = tree.threads.get(id);
    const view = this.spans.get(id);
    for (; view.shown < thread.parts.length; view.shown += 1) {
      const part = thread.parts[view.shown];
      if (typeof part === "number") {
        const span = chunkSpan(tree.threads.get(part));
        view.span.append(span);
        this.spans.set(part, { span, shown: 0 });
      } else {
        const bare = view.span.lastChild === null && id !== 0;
        const text = bare ? part.trimStart() : part;
        // The space and the newlines before a chunk belong to it, but are not worth a colour.
        if (text !== part) view.span.before(newRun(part.slice(0, part.length - text.length)));
        if (view.span.lastChild?.className.startsWith("run")) view.span.lastChild.firstChild.appendData(text);
        else if (text) view.span.append(newRun(text));
      }
    }
    for (const part of thread.parts) if (typeof part === "number") this.#grow(tree, part);
  }

  #mark(tree, id, open) {
    for (const node of this.spans.get(id).span.children) {
      if (node.dataset.thread) this.#mark(tree, Number(node.dataset.thread), open);
      else node.classList.toggle("ahead", this.blocked);
    }
    if (open && !tree.threads.get(id).finished) this.blocked = true;
  }
}

function newRun(text) {
  const run = document.createElement("span");
  run.className = "run";
  run.append(text);
  return run;
}

function chunkSpan(thread) {
  const span = document.createElement("span");
  span.className = `chunk ${colour(thread.id)}`;
  span.dataset.thread = thread.id;
  span.title = `${thread.id}: ${thread.topic}`;
  return span;
}
