"use strict";
// Puts the page together: the stream comes in, and what has changed is shown, once a frame at most.

const token = new URLSearchParams(location.search).get("token") ?? "";
const past = new StateHistory();
const page = { status: null, shown: null, isPaused: false, isAsked: false, brokenAt: null, why: "", hasEnded: false, isRefused: false, frame: 0 };

async function ask(path, signal) {
  const response = await fetch(path, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", signal }).catch((error) => {
    // Browsers do not say why.
    throw error instanceof TypeError ? new Error("nobody answers at this address") : error;
  });
  if (response.status === 403) throw new Refused("this address is not that of a page that is served here now: the job has another one");
  if (response.ok) return response;
  const body = await response.text();
  throw new Error(body.startsWith("{") ? JSON.parse(body).error : `${response.status} ${body.trim()}`);
}

const details = new Details(byId("details"), past);
const map = new MapView(byId("map"), byId("groups"), choose);
const flow = new FlowView(byId("flow"), byId("flow-note"), choose);
const timeline = new TimelineView(byId("timeline"), past);
const why = new WhyView(async () => (await ask("why.json")).json());
const channels = new Table(byId("channels"), "channel", CHANNEL_COLUMNS, choose);
const weights = new Table(byId("weights"), "weights", WEIGHTS_COLUMNS, choose);

function choose(kind, id) {
  details.choose(kind, id);
  requestShow();
}

function onEvent(kind, data) {
  if (kind === "status") {
    if (page.brokenAt !== null || !page.status) fillPast();
    page.status = data;
    page.brokenAt = null;
    page.hasEnded = false;
    past.add(data.at_s, data.groups.flatMap((group) => group.ranks.map((rank) => [rank.address, rank.state])));
  } else {
    page.hasEnded ||= kind === "end";
    broken(data);
  }
  requestShow();
}

// What this page was not there to see: before it was opened, or while there was no news.
async function fillPast() {
  try {
    const { at_s: atS, every_s: everyS, states } = await (await ask("past.json")).json();
    past.fill(atS, everyS, states);
    requestShow();
  } catch { /* then it begins empty */ }
}

function broken(text, isRefused = false) {
  page.brokenAt ??= Date.now() / 1000;
  page.isRefused = isRefused;
  page.why = text;
  requestShow();
}

function requestShow() {
  if (page.isAsked || document.hidden) return;
  page.isAsked = true;
  requestAnimationFrame(() => { page.isAsked = false; show(); });
}

function show() {
  showStream();
  if (!page.isPaused) page.shown = page.status;
  if (page.shown) showParts(PARTS);
}

// A part a frame: all of them together would keep who scrolls or types waiting.
const MAP_PARTS = 2;
const PARTS = [showHeading, (status) => map.show(status, 0, MAP_PARTS), (status) => map.show(status, 1, MAP_PARTS), showFlow, showTimeline, showLists];

function showParts([first, ...others]) {
  first(page.shown);
  cancelAnimationFrame(page.frame);
  if (others.length) page.frame = requestAnimationFrame(() => showParts(others));
}

function showHeading(status) {
  const job = shortCommand(status.job);
  document.title = `${job} – rlinf`;
  const ranks = status.groups.flatMap((group) => group.ranks);
  const numDevices = status.nodes.reduce((sum, node) => sum + node.devices.length, 0);
  setText(byId("job"), job);
  setAttribute(byId("job"), "title", status.job);
  setText(byId("summary"), `process ${status.driver_pid} · ${counted(status.nodes.length, "node")} · ${counted(numDevices, "device")} · ${amount(ranks.length)} process${ranks.length === 1 ? "" : "es"}`);
  showLegend(ranks);
  details.show(status);
}

function showFlow(status) { flow.show(status); }

function showTimeline(status) { timeline.show(status); }

function showLists(status) {
  channels.show(status.channels);
  weights.show(status.weights);
  showEvents(byId("events"), status.events);
  why.show(status, performance.now() / 1000);
}

// The states with their numbers; each lets those in it stand out.
function showLegend(ranks) {
  const counts = new Map(countStates(ranks));
  keepChildren(byId("legend"), STATES, (state) => state, (state) => {
    const item = make("li"), button = make("button");
    Object.assign(button, { type: "button" });
    button.dataset.state = state;
    button.append(make("i", "sign", SIGNS[state]), make("b"), make("span", "", state));
    item.append(button);
    return item;
  }, (item, state) => {
    setText(item.querySelector("b"), amount(counts.get(state) ?? 0));
    setAttribute(item.firstChild, "aria-pressed", byId("map").dataset.only === state);
    setAttribute(item, "class", counts.get(state) ? "" : "none");
  });
}

function showStream() {
  const isBroken = page.brokenAt !== null;
  document.body.classList.toggle("stale", isBroken);
  byId("broken").hidden = !isBroken;
  if (isBroken) {
    const since = `since ${clock(page.brokenAt)}, ${duration(Math.round(Date.now() / 1000 - page.brokenAt))}`;
    const what = page.hasEnded ? `The job has ended, or who served its page has (${since}).` : `No news of the job (${since}): ${page.why}.`;
    setText(byId("broken"), `${what}${page.status ? " Below is what was last seen." : ""}${page.isRefused ? "" : " Trying again."}`);
  }
  const status = page.status;
  setText(byId("live"), page.isPaused ? "paused" : isBroken ? "no news" : status ? `live, ${clock(status.at_s)}` : "connecting");
  setAttribute(byId("live"), "class", page.isPaused ? "paused" : isBroken ? "broken" : "live");
}

byId("legend").addEventListener("click", (event) => {
  const state = event.target.closest("button")?.dataset.state;
  if (!state) return;
  if (byId("map").dataset.only === state) delete byId("map").dataset.only;
  else byId("map").dataset.only = state;
  requestShow();
});
byId("pause").addEventListener("click", () => {
  page.isPaused = !page.isPaused;
  setAttribute(byId("pause"), "aria-pressed", page.isPaused);
  requestShow();
});
byId("find").addEventListener("input", (event) => map.find(event.target.value.trim()));
byId("find").addEventListener("keydown", (event) => {
  const found = event.key === "Enter" && map.firstFound();
  if (found) choose("rank", found);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
  if (event.key === "/" && document.activeElement !== byId("find")) { event.preventDefault(); byId("find").focus(); }
});
document.addEventListener("visibilitychange", requestShow);
addEventListener("resize", requestShow);
setInterval(() => { if (page.brokenAt !== null) requestShow(); }, 1000);
follow((signal) => ask("events", signal), onEvent, broken);
