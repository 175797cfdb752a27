"use strict";
// The placement map: nodes, their devices, and on these a bar for each rank, in the colour and with the sign of its state.

const HUES = 8;
const COLUMNS_WITHOUT_DEVICES = 4;

class MapView {
  constructor(container, legend, onSelect) {
    this.container = container;
    this.legend = legend;
    this.shape = null;
    this.bars = new Map(); // by rank: its elements, one for each run of devices
    this.nodes = new Map();
    this.found = null;
    this.hues = new Map();
    this.nextHue = 0;
    onChoice(container, onSelect);
    onChoice(legend, onSelect);
    roam(container, ".bar");
  }

  // Show what the ranks of a part of the nodes are at; all of them, in one go, take a browser longer than a frame.
  show(status, part = 0, parts = 1) {
    const shape = shapeOf(status);
    if (shape !== this.shape) { this.build(status); this.shape = shape; }
    for (const node of status.nodes) this.showNode(node);
    keepChildren(this.legend, status.groups.filter((group) => group.kind === "workers"), (group) => group.name, (group) => this.buildGroup(group), (item, group) => setText(item.count, amount(group.ranks.length)));
    for (const group of status.groups) {
      for (const rank of group.ranks) if ((rank.node_rank + 1) % parts === part) this.showRank(rank);
    }
  }

  // Let only those stand out of whose texts one has these letters in it; none: let all.
  find(letters) {
    this.found = letters.toLowerCase();
    for (const [address, elements] of this.bars) {
      const hit = this.isFound(address, elements[0]);
      for (const element of elements) element.classList.toggle("dim", !hit);
    }
  }

  isFound(address, element) {
    return !this.found || `${address} ${element.closest(".node").dataset.name}`.toLowerCase().includes(this.found);
  }

  firstFound() {
    for (const [address, elements] of this.bars) if (this.isFound(address, elements[0])) return address;
    return null;
  }

  build(status) {
    // Who comes later changes no other's colour.
    for (const { name, kind } of status.groups) {
      if (kind !== "workers") this.hues.delete(name);
      else if (!this.hues.has(name)) this.hues.set(name, this.nextHue++ % HUES);
    }
    const byNode = ranksByNode(status);
    this.bars.clear();
    this.nodes.clear();
    const widest = Math.max(0, ...status.nodes.map((node) => node.devices.length));
    this.container.style.setProperty("--columns", widest || COLUMNS_WITHOUT_DEVICES);
    const numRanks = status.groups.reduce((sum, group) => sum + group.ranks.length, 0);
    this.size = numRanks > 768 ? "tiny" : numRanks > 96 ? "small" : numRanks > 32 || widest > 8 ? "medium" : "large";
    this.container.dataset.size = this.size;
    const unknown = byNode.has(-1) ? [{ rank: -1, ip: "not known", devices: [], state: "alive" }] : [];
    this.container.replaceChildren(...[...status.nodes, ...unknown].map((node) => this.buildNode(node, byNode.get(node.rank))));
    this.container.querySelector(".bar")?.setAttribute("tabindex", 0);
  }

  buildGroup(group) {
    const item = make("li"), button = make("button", "", group.name);
    Object.assign(button, { type: "button" });
    Object.assign(button.dataset, { kind: "group", id: group.name, hue: this.hues.get(group.name) });
    item.append(button, (item.count = make("span")));
    return item;
  }

  buildNode(node, ranks) {
    const card = make("section", "node"), title = make("button", "title");
    const name = node.rank < 0 ? "node ?" : `node ${node.rank}`;
    card.dataset.name = `${name} ${node.ip}`;
    Object.assign(title, { type: "button" });
    if (node.rank >= 0) Object.assign(title.dataset, { kind: "node", id: node.rank });
    const sign = make("i", "sign"), state = make("em", "trouble");
    title.append(sign, make("span", "", "node "), make("b", "", name.replace("node ", "")), make("small", "", node.ip), state);
    title.title = node.ip;
    card.append(title);
    const { bars, without, rows } = standing(node, ranks);
    if (node.devices.length) {
      const grid = make("div", "devices");
      grid.style.setProperty("--rows", Math.max(1, rows));
      node.devices.forEach((device, column) => grid.append(this.buildDevice(device, column)));
      for (const bar of bars) {
        const element = this.buildBar(bar.address);
        element.style.gridColumn = `${bar.first + 1} / span ${bar.span}`;
        element.style.gridRow = bar.row + 2;
        grid.append(element);
      }
      card.append(grid);
    }
    if (without.length) {
      const list = make("div", "without");
      list.append(...without.map((address) => this.buildBar(address)));
      card.append(list);
    }
    this.nodes.set(node.rank, { card, sign, state });
    return card;
  }

  buildDevice(device, column) {
    const element = make("span", "device", String(device.index));
    element.title = `${device.kind} ${device.index}`.trim();
    element.style.gridColumn = column + 1;
    return element;
  }

  buildBar(address) {
    const element = make("button", "bar");
    const hue = this.hues.get(groupOf(address));
    Object.assign(element, { type: "button", tabIndex: -1 });
    Object.assign(element.dataset, { kind: "rank", id: address });
    if (hue !== undefined) element.dataset.hue = hue;
    element.parts = { sign: make("i", "sign"), at: make("span", "at") };
    const name = make("b"), group = groupOf(address);
    name.append(make("span", "", group), address.slice(group.length));
    element.append(element.parts.sign, name, element.parts.at);
    if (!this.bars.has(address)) this.bars.set(address, []);
    this.bars.get(address).push(element);
    return element;
  }

  showNode(node) {
    const { card, sign, state } = this.nodes.get(node.rank);
    setClass(card, node.state === "alive" ? "node" : `node ${node.state}`);
    setText(sign, node.state === "alive" ? "" : SIGNS[node.state] ?? "▲");
    setText(state, node.state === "alive" ? "" : node.state);
  }

  showRank(rank) {
    for (const element of this.bars.get(rank.address) ?? []) {
      if (element.dataset.state !== rank.state) {
        element.dataset.state = rank.state;
        setText(element.parts.sign, SIGNS[rank.state] ?? "?");
        element.setAttribute("aria-label", `${rank.address}: ${rank.state}`);
        element.title = this.size === "large" ? "" : `${rank.address}: ${rank.state}`;
      }
      if (this.size === "large") setText(element.parts.at, shortly(rank));
    }
  }
}

// What a rank is at, in two or three words.
function shortly(rank) {
  const more = rank.calls.length > 1 ? ` +${rank.calls.length - 1}` : "";
  if (rank.state === "waiting") return `waits ${duration(rank.wait_since_s)}${more}`;
  if (rank.method) return `${rank.method} ${duration(rank.method_since_s)}${more}`;
  return rank.state;
}
