"use strict";
// All that is known of what was chosen: a rank, a group, a channel, weights or a node.

const SHOWN_LINES = 12;
const FINDERS = {
  rank: (status, id) => status.groups.flatMap((group) => group.ranks).find((rank) => rank.address === id),
  group: (status, id) => status.groups.find((group) => group.name === id),
  channel: (status, id) => status.channels.find((channel) => channel.name === id),
  weights: (status, id) => status.weights.find((weights) => weights.name === id),
  node: (status, id) => status.nodes.find((node) => String(node.rank) === id),
};
const DESCRIBERS = { rank: describeRank, group: describeGroup, channel: describeChannel, weights: describeWeights, node: describeNode };

class Details {
  constructor(panel, history) {
    this.panel = panel;
    this.history = history;
    this.chosen = null;
    this.marked = [];
    byId("details-close").addEventListener("click", () => this.choose(null));
  }

  choose(kind, id) {
    this.chosen = kind ? { kind, id } : null;
    for (const element of this.marked) element.removeAttribute("aria-current");
    this.marked = [];
  }

  // What was chosen stands out wherever it is drawn, also when that is drawn anew.
  mark() {
    if (!this.chosen || (this.marked.length && this.marked.every((element) => element.isConnected))) return;
    const { kind, id } = this.chosen;
    this.marked = [...document.querySelectorAll(`[data-id="${CSS.escape(id)}"][data-kind="${kind}"]`)];
    for (const element of this.marked) element.setAttribute("aria-current", "true");
  }

  show(status) {
    this.panel.dataset.open = Boolean(this.chosen);
    byId("details-none").hidden = Boolean(this.chosen);
    if (!this.chosen) { keepChildren(byId("details-facts"), [], (fact) => fact); setText(byId("details-title"), "Details"); return; }
    this.mark();
    const { kind, id } = this.chosen;
    const found = FINDERS[kind](status, id);
    setText(byId("details-title"), kind === "rank" ? id : `${kind} ${id}`);
    const facts = found ? DESCRIBERS[kind](found, status, this.history) : [["state", "it is not part of the job any more"]];
    keepChildren(byId("details-facts"), facts.filter(([, text]) => text !== "" && text !== null), ([name]) => name, buildFact, updateFact);
  }
}

function buildFact([name]) {
  const row = make("div");
  row.append(make("dt", "", name), make("dd"));
  return row;
}

function updateFact(row, [, text]) { setText(row.lastElementChild, text); }

function describeRank(rank, status, history) {
  const node = status.nodes.find((each) => each.rank === rank.node_rank);
  const devices = node?.devices.filter((device) => device.holders.includes(rank.address)) ?? [];
  return [
    ["state", `${SIGNS[rank.state] ?? ""} ${rank.state}`],
    ...callFacts(rank),
    ["carries", rank.items_per_s ? `${rate(rank.items_per_s)}` : ""],
    ["why", rank.detail],
    ["silent", rank.silent_s ? duration(rank.silent_s) : ""],
    ["calls queued", rank.calls_queued ? amount(rank.calls_queued) : ""],
    ["processor", `${Math.round(rank.cpu_percent)} % of a core, ${duration(rank.cpu_s)} in all`],
    ["memory", bytes(rank.rss_bytes)],
    ["device memory", rank.device_memory_bytes === null ? "" : bytes(rank.device_memory_bytes)],
    ["devices", devices.map((device) => `${device.kind} ${device.index}`).join(", ")],
    ["shares them with", sharers(node, rank.address).join(", ")],
    ["node", rank.node_rank < 0 ? rank.host : `${rank.node_rank}${node ? `, ${node.ip}` : ""}${rank.host ? ` (${rank.host})` : ""}`],
    ["process", rank.pid ? String(rank.pid) : ""],
    ["restarts", rank.restarts ? String(rank.restarts) : ""],
    ["last minutes", history.shares(rank.address).map(([state, share]) => `${state} ${Math.round(100 * share)} %`).join(", ")],
  ];
}

// Of several calls each has its own wait.
function callFacts(rank) {
  const one = { method: rank.method, since_s: rank.method_since_s, wait: rank.wait, wait_since_s: rank.wait_since_s };
  const waits = (call) => call.wait && `${duration(call.wait_since_s)} in ${call.wait}`;
  const runs = (call) => call.method && `${call.method}(), for ${duration(call.since_s)}`;
  if (rank.calls.length < 2) return [["call", runs(one)], ["waits", waits(one)]];
  return [[`calls (${rank.calls.length})`, lines(rank.calls.map((call) => [runs(call), waits(call)].filter(Boolean).join(", waits ")))]];
}

function describeGroup(group) {
  const methods = new Map();
  for (const rank of group.ranks) for (const { method } of rank.calls.length ? rank.calls : [rank]) if (method) methods.set(method, (methods.get(method) ?? 0) + 1);
  return [
    ["ranks", countStates(group.ranks).map(([state, count]) => `${SIGNS[state] ?? ""} ${count} ${state}`).join(", ")],
    ["calls", [...methods].map(([method, count]) => `${method}() in ${count}`).join(", ")],
    ["processor", `${amount(group.ranks.reduce((sum, rank) => sum + rank.cpu_percent, 0))} % of a core`],
    ["memory", bytes(group.ranks.reduce((sum, rank) => sum + rank.rss_bytes, 0))],
    ["nodes", ranges([...new Set(group.ranks.map((rank) => rank.node_rank))].sort((a, b) => a - b))],
    ["restarts", amount(group.ranks.reduce((sum, rank) => sum + rank.restarts, 0))],
  ];
}

function describeChannel(channel) {
  return [
    ["items", `${amount(channel.depth)}${channel.leased ? `, and ${amount(channel.leased)} leased` : ""}; ${bytes(channel.bytes)}`],
    ["bounds", channel.max || "none"],
    ["oldest", channel.oldest_age_s === null ? "" : duration(channel.oldest_age_s)],
    ["put", `${rate(channel.puts_per_s)}, ${bytes(channel.bytes_per_s)}/s; ${amount(channel.num_put)} in all`],
    ["got", `${rate(channel.gets_per_s)}; ${amount(channel.num_got)} in all`],
    ["waiting", lines(channel.waiting.map((each) => `${each.process}: ${each.operation} at ${each.queue}, ${duration(each.since_s)}`))],
    ["put by", lines(perProcess(channel.putters))],
    ["got by", lines(perProcess(channel.getters))],
    [channel.num_queues > 1 ? `queues (${channel.num_queues})` : "queue", lines(channel.queues.map((queue) => `${queue.name}: ${counted(queue.depth, "item")}`))],
    ["held by", channel.held_by ? `${channel.held_by}${channel.node_rank < 0 ? "" : `, node ${channel.node_rank}`}` : "nobody now"],
  ];
}

function describeWeights(weights) {
  return [
    ["version", weights.version < 0 ? "none yet" : String(weights.version)],
    ["published by", weights.publisher || "nobody now"],
    ["size", bytes(weights.bytes)],
    ["lag", String(weights.lag)],
    ["readers", lines(Object.entries(weights.readers).sort((a, b) => a[1] - b[1]).map(([process, version]) => `${process}: ${version}`))],
  ];
}

function describeNode(node) {
  return [
    ["state", node.state === "alive" ? "alive" : `${node.state}: ${node.detail}`],
    ["address", node.ip],
    ["id", node.node_id],
    ...node.devices.map((device) => [`${device.kind} ${device.index}`, deviceText(device)]),
  ];
}

function deviceText(device) {
  const memory = device.memory_total_bytes ? `; ${bytes(device.memory_used_bytes)} of ${bytes(device.memory_total_bytes)}` : "";
  return `${device.holders.join(", ") || "free"}${memory}`;
}

function perProcess(rates) { return Object.entries(rates).sort((a, b) => b[1] - a[1]).map(([process, each]) => `${process}: ${rate(each)}`); }

function lines(texts) {
  const left = texts.length - SHOWN_LINES;
  return [...texts.slice(0, SHOWN_LINES), ...(left > 0 ? [`and ${left} more`] : [])].join("\n");
}
