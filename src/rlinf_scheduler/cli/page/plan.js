"use strict";
// Draws the map from the data on the page. Every text goes in as text: nothing of a config becomes markup.
const plan = JSON.parse(document.getElementById("plan").textContent);
const { nodes, components, kinds, groups, lists } = plan;
const byId = (id) => document.getElementById(id);
const map = byId("map"), tip = byId("tip");
const SHOWN_RANKS = 6;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Numbers as ranges, in ascending order: 0-2,5
function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}

// One cell a device: who uses it.
const cells = new Map();
const cellsOfNode = nodes.map(() => []);

function addCells(node, kind, count) {
  for (let index = 0; index < count; index++) {
    const cell = { node, kind, index, uses: [], element: null };
    cells.set(`${node} ${kind} ${index}`, cell);
    cellsOfNode[node].push(cell);
  }
}

nodes.forEach((node, rank) => {
  if (node.count) addCells(rank, node.type, node.count);
  for (const [kind, count] of node.attached) addCells(rank, kind, count);
});
components.forEach((component, number) => {
  component.number = number;
  component.runs = component.runs.map(([firstRank, node, firstLocal, localSize, kind, group, shift, list, inGroup]) =>
    ({ firstRank, node, firstLocal, localSize, kind: kinds[kind], group: groups[group], shift, lists: lists[list],
       inGroup: inGroup < 0 ? null : lists[inGroup] }));
  for (const run of component.runs) {
    const [kind] = run.kind;
    if (!kind && !cells.has(`${run.node}  0`)) addCells(run.node, "", 1);
    run.lists.forEach((own, at) => {
      for (const index of kind ? own : [0]) cells.get(`${run.node} ${kind} ${index}`).uses.push({ component, run, at });
    });
  }
});
// A node without devices that nobody uses is a cell too.
cellsOfNode.forEach((own, rank) => { if (!own.length) addCells(rank, "", 1); });

function deviceName(cell) { return cell.kind ? `${cell.kind} ${cell.index}` : "the node itself"; }

function draw(cell) {
  const element = make("div", cell.kind ? "cell" : "cell wide");
  element.tabIndex = -1;
  element.cell = cell;
  const told = [];
  const perComponent = new Map();
  for (const use of cell.uses) {
    if (!perComponent.has(use.component)) perComponent.set(use.component, []);
    perComponent.get(use.component).push(use.run.firstRank + use.at);
  }
  for (const [component, ranks] of perComponent) {
    const band = make("i", `c${component.number}`, "");
    band.dataset.rank = ranges(ranks);
    band.dataset.name = `${component.name} ${band.dataset.rank}`;
    band.style.background = component.colour;
    band.style.color = component.ink;
    element.append(band);
    told.push(band.dataset.name);
  }
  element.setAttribute("aria-label", `node ${cell.node}, ${deviceName(cell)}: ${told.join(", ") || "idle"}`);
  cell.element = element;
  return element;
}

function drawNode(rank) {
  const node = nodes[rank], card = make("div", "node");
  const head = make("h3", "", `node ${rank} `);
  head.append(make("span", "", node.hostname || node.ip));
  card.append(head);
  let strip = null, kind = null;
  for (const cell of cellsOfNode[rank]) {
    if (cell.kind !== kind) {
      kind = cell.kind;
      strip = make("div", "strip");
      if (kind !== node.type || !kind) strip.append(make("b", "", kind || "node"));
      card.append(strip);
    }
    strip.append(draw(cell));
  }
  node.card = card;
  node.components = new Set(cellsOfNode[rank].flatMap((cell) => cell.uses.map((use) => use.component.number)));
  return card;
}

function drawMap() {
  const parts = document.createDocumentFragment();
  for (const { title, text, ranks } of plan.sections) {
    const section = make("section"), flow = make("div", "nodes"), heading = make("h2", "", title);
    heading.append(make("small", "", text));
    for (const rank of ranks) flow.append(drawNode(rank));
    section.append(heading, flow);
    parts.append(section);
  }
  map.replaceChildren(parts);
}

const WIDEST = { s: 11, m: 64, l: 150 };
function setZoom(zoom) {
  document.body.className = `zoom-${zoom}`;
  const key = { s: "", m: "rank", l: "name" }[zoom];
  let longest = 0;
  for (const band of map.getElementsByTagName("i")) {
    band.textContent = key ? band.dataset[key] : "";
    if (!band.parentElement.classList.contains("wide")) longest = Math.max(longest, band.textContent.length);
  }
  // As wide as the longest text needs: a character of the map's font is 6.7 pixels.
  map.style.setProperty("--cell", `${Math.max(zoom === "s" ? 11 : 28, Math.min(WIDEST[zoom], Math.ceil(longest * 6.7) + 8))}px`);
  for (const button of byId("zoom").children) button.setAttribute("aria-pressed", button.dataset.zoom === zoom);
}

// What a cell says about itself.
function line(className, ...parts) {
  const paragraph = make("p", className);
  paragraph.append(...parts);
  return paragraph;
}

function describe(cell) {
  const node = nodes[cell.node], parts = [];
  const model = cell.kind && cell.kind === node.type ? node.model : "";
  parts.push(line("", make("b", "", `node ${cell.node}, ${deviceName(cell)}`), model ? ` ${model}` : ""));
  const where = [node.hostname, node.ip, `id ${node.id}`, plan.labels[node.groups].join(", ")];
  parts.push(line("soft", where.filter(Boolean).join(" · ")));
  for (const use of cell.uses.slice(0, SHOWN_RANKS)) parts.push(describeUse(cell, use));
  if (cell.uses.length > SHOWN_RANKS) parts.push(line("soft", `and ${cell.uses.length - SHOWN_RANKS} ranks more`));
  if (!cell.uses.length) parts.push(line("", "idle"));
  return parts;
}

function describeUse(cell, { component, run, at }) {
  const swatch = make("span", "swatch", component.letter);
  swatch.style.background = component.colour;
  swatch.style.color = component.ink;
  const [kind, isAccelerator] = run.kind, own = run.lists[at];
  const inGroup = run.inGroup ? run.inGroup[at] : own.map((index) => index + run.shift);
  const facts = [`local rank ${run.firstLocal + at} of ${run.localSize}`];
  if (kind) facts.push(`${kind} ${ranges(own)} of the node, ${ranges(inGroup)} of '${run.group}'`);
  const visible = isAccelerator ? own.map((index) => visibleName(run.node, index)).join(",") : "no accelerator";
  facts.push(`sees ${visible}`);
  const others = new Set();
  for (const index of kind ? own : [0])
    for (const use of cells.get(`${run.node} ${kind} ${index}`).uses)
      if (use.component !== component) others.add(use.component.name);
  if (others.size) facts.push(`shares with ${[...others].join(", ")}`);
  const paragraph = line("rank", swatch, make("b", "", `${component.name} rank ${run.firstRank + at}`));
  paragraph.append(make("br"), facts.join("; "));
  return paragraph;
}

function visibleName(rank, index) { const { visible } = nodes[rank]; return visible ? visible[index] : index; }

let marked = [];
function mark(cell) {
  for (const other of marked) other.element.classList.remove("same");
  marked = [];
  for (const { run, at } of cell ? cell.uses.slice(0, SHOWN_RANKS) : [])
    if (run.kind[0]) for (const index of run.lists[at]) marked.push(cells.get(`${run.node} ${run.kind[0]} ${index}`));
  for (const other of marked) other.element.classList.add("same");
}

function showTip(cell) {
  mark(cell);
  tip.hidden = !cell;
  if (!cell) return;
  tip.replaceChildren(...describe(cell));
  const box = cell.element.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 12);
  const below = box.bottom + 8, above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight && above > 0 ? above : below}px`;
}

const cellAt = (target) => target.closest ? target.closest(".cell") : null;
map.addEventListener("mouseover", (event) => { const found = cellAt(event.target); showTip(found ? found.cell : null); });
map.addEventListener("mouseleave", () => showTip(null));
map.addEventListener("focusin", (event) => { const found = cellAt(event.target); if (found) showTip(found.cell); });
map.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8 }[event.key];
  const every = [...map.getElementsByClassName("cell")], now = every.indexOf(document.activeElement);
  if (!step || now < 0) return;
  event.preventDefault();
  (every[now + step] || every[now]).focus();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") showTip(null); });

// The legend: which components are shown.
const boxes = [...byId("legend").getElementsByTagName("input")];
function applyFilter() {
  const off = boxes.map((box, number) => (box.checked ? "" : `.cell .c${number}{display:none}`));
  byId("hidden").textContent = off.join("");
  const hide = byId("inuse").checked;
  for (const node of nodes) {
    const used = [...node.components].some((number) => boxes[number].checked);
    node.card.classList.toggle("unused", hide && !used);
  }
}
function check(wanted) { boxes.forEach((box, number) => { box.checked = wanted(number); }); applyFilter(); }
byId("legend").addEventListener("change", applyFilter);
byId("inuse").addEventListener("change", applyFilter);
byId("all").addEventListener("click", () => check(() => true));
byId("none").addEventListener("click", () => check(() => false));
[...byId("legend").getElementsByClassName("only")].forEach((button, number) =>
  button.addEventListener("click", () => check((other) => other === number)));
byId("zoom").addEventListener("click", (event) => { if (event.target.dataset.zoom) setZoom(event.target.dataset.zoom); });

// A warning shows its nodes.
[...byId("warnings").children].forEach((item, number) => {
  const warning = plan.warnings[number];
  if (!warning) return;
  item.tabIndex = 0;
  item.setAttribute("role", "button");
  const show = () => {
    const on = item.getAttribute("aria-pressed") !== "true";
    for (const other of byId("warnings").children) other.setAttribute("aria-pressed", other === item && on);
    for (const node of nodes) node.card.classList.remove("hit");
    if (on) for (const rank of warning) nodes[rank].card.classList.add("hit");
    if (on && warning.length) nodes[warning[0]].card.scrollIntoView({ block: "nearest" });
  };
  item.addEventListener("click", show);
  item.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
});

// Find a rank ("actor 12") or a node ("node 3", its address, name or id).
function findCell(text) {
  const match = /^(.*?)[\s:]+(\d+)$/.exec(text);
  if (match) {
    const component = components.find((one) => one.name === match[1]), rank = Number(match[2]);
    const run = component && component.runs.find((one) => rank >= one.firstRank && rank < one.firstRank + one.lists.length);
    if (run) return cells.get(`${run.node} ${run.kind[0]} ${run.kind[0] ? run.lists[rank - run.firstRank][0] : 0}`);
  }
  const number = /^(?:node\s*)?(\d+)$/.exec(text);
  const rank = number ? Number(number[1])
    : nodes.findIndex((node) => [node.ip, node.hostname, node.id].includes(text));
  return cellsOfNode[rank] && cellsOfNode[rank][0];
}
function find(text) {
  const cell = text ? findCell(text) : null;
  byId("found").textContent = !text || cell ? "" : `nothing is called '${text}'`;
  if (!cell) return;
  cell.element.scrollIntoView({ block: "center" });
  cell.element.focus({ preventScroll: true });
  showTip(cell);
}
byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter") find(event.target.value.trim()); });

drawMap();
setZoom(nodes.length <= 4 ? "l" : nodes.length <= 64 ? "m" : "s");
const first = map.querySelector(".cell");
if (first) first.tabIndex = 0;
applyFilter();
// A link may name what to show: plan.html#actor:12
function findLinked() { try { find(decodeURIComponent(location.hash.slice(1)).trim()); } catch { /* no text */ } }
addEventListener("hashchange", findLinked);
findLinked();
