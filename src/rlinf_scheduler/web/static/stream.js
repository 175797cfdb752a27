"use strict";
// The stream of what the job does, for as long as it takes: when it breaks, it is opened again.

const SILENT_S = 10; // a server that is there sends every second
const RETRY_S = [1, 2, 5];

// Whole server-sent events at the beginning of a text, and what is left of it.
function splitEvents(text) {
  const parts = text.split("\n\n"), rest = parts.pop();
  const events = parts.map((part) => {
    const event = { kind: "message", data: "" };
    for (const line of part.split("\n")) {
      if (line.startsWith("event: ")) event.kind = line.slice(7);
      if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    return event;
  });
  return { events, rest };
}

class Refused extends Error {}

// `onEvent(kind, data)` for each event; `onBroken(text, isRefused)` whenever the stream has broken: it ends if it is refused.
async function follow(open, onEvent, onBroken) {
  for (let failed = 0; ; failed += 1) {
    try {
      await readStream(open, (kind, data) => { failed = 0; onEvent(kind, data); });
      onBroken("it was closed");
    } catch (error) {
      const isRefused = error instanceof Refused;
      onBroken(error.message, isRefused);
      if (isRefused) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 * RETRY_S[Math.min(failed, RETRY_S.length - 1)]));
  }
}

async function readStream(open, onEvent) {
  const abort = new AbortController();
  let timer = null;
  const expect = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(new Error(`nothing came for ${SILENT_S} s`)), 1000 * SILENT_S);
  };
  expect();
  try {
    const response = await open(abort.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      expect();
      const { events, rest } = splitEvents(text + value);
      text = rest;
      for (const { kind, data } of events) onEvent(kind, JSON.parse(data));
    }
  } finally {
    clearTimeout(timer);
  }
}
