"use strict";
// The data flow as a picture: groups, channels with their items, weights with their versions, and rates on the edges.

const BOX = { group: [112, 50], channel: [126, 58], weights: [112, 50] };
const LONG_NAME = 13;
// Less is not to be read; then layers go downwards.
const LEAST_SCALE = 0.8;

class FlowView {
  constructor(container, note, onSelect) {
    this.container = container;
    this.note = note;
    this.shape = null;
    this.room = container.clientWidth; // to ask each time would have the page laid out each time
    new ResizeObserver(([entry]) => { this.room = entry.contentRect.width; }).observe(container);
    onChoice(container, onSelect);
    container.addEventListener("keydown", (event) => {
      const at = event.target.closest("[data-kind]");
      if (at && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); onSelect(at.dataset.kind, at.dataset.id); }
    });
    roam(container, ".box");
  }

  show(status) {
    const flow = flowOf(status);
    const shape = JSON.stringify([this.room, flow.nodes.map((node) => node.id), flow.edges.map((edge) => [edge.from, edge.to])]);
    if (shape !== this.shape) { this.build(flow, this.room); this.shape = shape; }
    for (const node of flow.nodes) this.showNode(node);
    flow.edges.forEach((edge, number) => this.showEdge(edge, this.edges[number]));
    setText(this.note, noteOf(flow));
  }

  build(flow, room) {
    let plan = planOf(flow, false);
    const down = plan.along * LEAST_SCALE > room;
    if (down) plan = planOf(flow, true);
    const point = ({ along, across }) => (down ? [across, along] : [along, across]);
    const [width, height] = point(plan).map((size) => Math.max(1, Math.ceil(size)));
    this.boxes = new Map();
    this.edges = [];
    const svg = draw("svg", { viewBox: `-6 -6 ${width + 12} ${height + 12}`, width: width + 12, role: "group", "aria-label": "data flow" });
    svg.append(draw("defs", {}, draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, draw("path", { d: "M0 0.5 L8 4 L0 7.5 z" }))));
    const labels = draw("g", {});
    plan.routes.forEach((points, number) => {
      const curve = curveThrough(points.map(point), down);
      const line = draw("path", { d: curve.path, class: `edge ${flow.edges[number].kind}`, "marker-end": "url(#arrow)" });
      const [x, y] = curve.middle;
      const rates = draw("text", { x, y: y - 5, class: "rate" }), waits = draw("text", { x, y: y + 13, class: "rate waiting" });
      svg.append(line);
      labels.append(rates, waits);
      this.edges.push({ line, rates, waits });
    });
    svg.append(labels);
    for (const node of flow.nodes) svg.append(this.buildBox(node, point(plan.at.get(node.id))));
    svg.querySelector(".box")?.setAttribute("tabindex", 0);
    this.container.replaceChildren(...(flow.nodes.length ? [svg] : []));
  }

  buildBox(node, [x, y]) {
    const [width, height] = BOX[node.kind];
    const left = -width / 2, top = -height / 2;
    const corner = { group: 6, channel: height / 2, weights: 2 }[node.kind];
    const name = draw("text", { class: "name", y: top + 20 }), facts = draw("text", { class: "facts", y: top + 36 });
    const frame = draw("rect", { class: "frame", x: left, y: top, width, height, rx: corner });
    const meter = draw("g", { class: "meter" });
    const box = draw("g", { class: `box ${node.kind}`, transform: `translate(${x} ${y})`, tabindex: -1, role: "button", "data-kind": node.kind, "data-id": node.name }, frame, name, facts, meter);
    name.textContent = node.name.length > LONG_NAME ? `${node.name.slice(0, LONG_NAME - 1)}…` : node.name;
    this.boxes.set(node.id, { box, facts, meter, width, top: top + height });
    return box;
  }

  showNode(node) {
    const { box, facts, meter, width, top } = this.boxes.get(node.id);
    const text = factsOf(node);
    setText(facts, text);
    setAttribute(box, "aria-label", `${node.kind} ${node.name}: ${text}`);
    setClass(box, `box ${node.kind}${isStuck(node) ? " stuck" : ""}`);
    if (node.kind === "weights") return;
    const shares = node.kind === "group" ? stateShares(node.data) : fillShares(node.data);
    const inner = width - (node.kind === "channel" ? 56 : 20);
    const key = JSON.stringify(shares);
    if (meter.shares === key) return;
    meter.shares = key;
    let x = -inner / 2;
    meter.replaceChildren(...shares.map(([state, share]) => {
      const part = draw("rect", { class: `part ${state}`, x, y: top - 10, width: Math.max(0, inner * share), height: 4, rx: 1 });
      x += inner * share;
      return part;
    }));
  }

  showEdge(edge, { line, rates, waits }) {
    const moves = edge.perSecond > 0;
    setAttribute(line, "stroke-width", (1.2 + (moves ? Math.min(4, Math.log10(1 + edge.perSecond)) : 0)).toFixed(1));
    setClass(line, `edge ${edge.kind}${moves ? " moves" : ""}${edge.numWaiting ? " waits" : ""}`);
    setText(rates, edge.kind === "put" || edge.kind === "get" ? rate(edge.perSecond) : "");
    setText(waits, edge.numWaiting ? `${numWaiting(edge.numWaiting)} wait${edge.numWaiting === 1 ? "s" : ""}` : "");
  }
}

function planOf(flow, down) {
  const sized = flow.nodes.map(({ id, kind }) => {
    const [width, height] = BOX[kind];
    return { id, along: down ? height : width, across: down ? width : height };
  });
  return layOut(sized, flow.edges, down ? { layerGap: 46, nodeGap: 14 } : { layerGap: 60, nodeGap: 22 });
}

function noteOf(flow) {
  if (!flow.nodes.length) return "No channel and no published weights yet.";
  return flow.numLeftOut ? `The busiest channels; ${flow.numLeftOut} more are in the table below.` : "";
}

function factsOf({ kind, data }) {
  if (kind === "channel") return `${counted(data.depth, "item")}${data.leased ? `, ${amount(data.leased)} leased` : ""}`;
  if (kind === "weights") return data.version < 0 ? "no version yet" : `version ${data.version}${data.lag ? `, lag ${data.lag}` : ""}`;
  return data ? counted(data.ranks.length, "rank") : "gone";
}

function isStuck({ kind, data }) {
  if (kind === "channel") return !data.held_by;
  return kind === "group" && (data?.ranks ?? []).some((rank) => rank.state === "lost" || rank.state === "unresponsive");
}

function stateShares(group) {
  const ranks = group?.ranks ?? [];
  return countStates(ranks).map(([state, count]) => [state, count / ranks.length]);
}

// How full a channel is, of the bound on its items if there is one.
function fillShares(channel) {
  const bound = Number(/^([\d,]+) items?\b/.exec(channel.max)?.[1].replaceAll(",", "") ?? 0);
  if (!bound) return [];
  const share = Math.min(1, (channel.depth + channel.leased) / bound);
  return [["filled", share], ["free", 1 - share]];
}

// A smooth line through points, which leaves and comes in the direction of the layers; and its middle.
function curveThrough(points, down) {
  let path = `M${points[0]}`;
  for (let at = 1; at < points.length; at++) {
    const [x0, y0] = points[at - 1], [x1, y1] = points[at];
    const bends = down ? [[x0, (y0 + y1) / 2], [x1, (y0 + y1) / 2]] : [[(x0 + x1) / 2, y0], [(x0 + x1) / 2, y1]];
    path += ` C${bends[0]} ${bends[1]} ${x1},${y1}`;
  }
  const at = Math.floor(points.length / 2), [a, b] = [points[at - 1], points[at]];
  return { path, middle: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] };
}
