"use strict";
// Channels and weights as tables, and the job's events as a list.

const SHOWN_EVENTS = 200;
// Heading, text of a channel, and whether a narrow screen does without it.
const CHANNEL_COLUMNS = [
  ["channel", (channel) => channel.name],
  ["items", (channel) => amount(channel.depth)],
  ["put", (channel) => rate(channel.puts_per_s)],
  ["got", (channel) => rate(channel.gets_per_s)],
  ["bytes put", (channel) => `${bytes(channel.bytes_per_s)}/s`, true],
  ["holds", (channel) => bytes(channel.bytes), true],
  ["bounds", (channel) => channel.max || "none", true],
  ["oldest", (channel) => duration(channel.oldest_age_s), true],
  ["leased", (channel) => amount(channel.leased), true],
  ["waiting", (channel) => waitingText(channel)],
];
const WEIGHTS_COLUMNS = [
  ["weights", (weights) => weights.name],
  ["version", (weights) => (weights.version < 0 ? "none yet" : String(weights.version))],
  ["lag", (weights) => (Object.keys(weights.readers).length ? String(weights.lag) : "–")],
  ["readers", (weights) => readersText(weights)],
];

function waitingText({ waiting }) {
  return waiting.length ? `${numWaiting(waiting.length)}, ${duration(waiting[0].since_s)}` : "–";
}

// How many have which version: "14 have 41, 2 have 40"
function readersText(weights) {
  const counts = new Map();
  for (const version of Object.values(weights.readers)) counts.set(version, (counts.get(version) ?? 0) + 1);
  const newestFirst = [...counts].sort(([a], [b]) => b - a);
  return newestFirst.map(([version, count]) => `${count} ${count === 1 ? "has" : "have"} ${version}`).join(", ") || "–";
}

class Table {
  constructor(table, kind, columns, onSelect) {
    this.table = table;
    this.columns = columns;
    const head = make("tr"), body = make("tbody"), top = make("thead");
    for (const [heading, , isWide] of columns) {
      const cell = make("th", isWide ? "wide" : "", heading);
      cell.scope = "col";
      head.append(cell);
    }
    top.append(head);
    table.append(top, body);
    this.body = body;
    this.kind = kind;
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) onSelect(kind, row.dataset.id);
    });
  }

  show(items) {
    this.table.closest("section").hidden = !items.length;
    keepChildren(this.body, items, (item) => item.name, (item) => this.build(item), (row, item) => {
      this.columns.forEach(([, text], column) => setText(row.texts[column], text(item)));
    });
  }

  build(item) {
    const row = make("tr");
    Object.assign(row.dataset, { kind: this.kind, id: item.name });
    row.texts = this.columns.map(([, , isWide], column) => {
      const cell = make(column ? "td" : "th", isWide ? "wide" : "");
      if (!column) cell.scope = "row";
      const text = column ? cell : make("button");
      if (!column) cell.append(Object.assign(text, { type: "button" }));
      row.append(cell);
      return text;
    });
    return row;
  }
}

function showEvents(list, events) {
  const newestFirst = events.slice(-SHOWN_EVENTS).reverse();
  const known = new Map();
  // The same event may come twice at one moment.
  const keyed = newestFirst.map((event) => {
    const text = JSON.stringify(event);
    known.set(text, (known.get(text) ?? 0) + 1);
    return { event, key: `${text} ${known.get(text)}` };
  });
  keepChildren(list, keyed, ({ key }) => key, ({ event }) => {
    const item = make("li", event.level);
    item.append(make("time", "", clock(event.at_s)), make("b", "", event.kind), make("span", "", event.text));
    return item;
  });
  list.closest("section").querySelector(".none").hidden = events.length > 0;
}
