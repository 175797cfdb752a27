"use strict";
// The last minutes: for each group a picture with a column for each second, of a band for each rank, or of shares.

const MANY_RANKS = 48;
const BAND_PX = 12;
const SHARES_PX = 36;

class TimelineView {
  constructor(container, history) {
    this.container = container;
    this.history = history;
    this.expanded = new Set();
    this.colours = null;
    container.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-group]");
      if (button) this.toggle(button.dataset.group);
    });
    container.addEventListener("pointermove", (event) => this.tell(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.show(this.status); });
  }

  show(status) {
    if (!status) return;
    this.status = status;
    this.colours ??= stateColours();
    keepChildren(this.container, this.groups(status), (group) => group.name, (group) => this.build(group), (row, group) => this.showGroup(row, group));
  }

  // The groups that there are, and then those of which something was seen in the last minutes, with all such ranks.
  groups(status) {
    const found = new Map(status.groups.map((group) => [group.name, { name: group.name, ranks: [...group.ranks] }]));
    const there = new Set(status.groups.flatMap((group) => group.ranks.map((rank) => rank.address)));
    for (const address of this.history.bands.keys()) {
      if (there.has(address)) continue;
      const name = groupOf(address);
      if (!found.has(name)) found.set(name, { name, ranks: [] });
      found.get(name).ranks.push({ address, state: "ended" });
    }
    return [...found.values()];
  }

  toggle(name) {
    if (!this.expanded.delete(name)) this.expanded.add(name);
    this.show(this.status);
  }

  build(group) {
    const row = make("div", "lane"), label = make("div", "label"), canvas = make("canvas");
    const title = make("button", "", group.name), names = make("ol");
    Object.assign(title, { type: "button" });
    title.dataset.group = group.name;
    label.append(title, names);
    canvas.width = this.history.seconds;
    canvas.setAttribute("role", "img");
    row.append(label, canvas);
    row.parts = { canvas, title, names };
    return row;
  }

  showGroup({ parts: { canvas, title, names } }, group) {
    const isMany = group.ranks.length > MANY_RANKS;
    const asBands = isMany === this.expanded.has(group.name);
    title.disabled = group.ranks.length === 1;
    setAttribute(title, "aria-expanded", asBands);
    setText(title, group.ranks.length === 1 ? group.ranks[0].address : `${group.name} (${group.ranks.length})`);
    const named = asBands && !isMany && group.ranks.length > 1;
    keepChildren(names, named ? group.ranks : [], (rank) => rank.address, (rank) => make("li", "", rank.address));
    const bandPx = isMany ? 2 : BAND_PX;
    const height = asBands ? group.ranks.length * bandPx : SHARES_PX;
    if (canvas.height !== height) { canvas.height = height; canvas.style.height = `${height}px`; }
    setClass(canvas, named ? "named" : "");
    setAttribute(canvas, "aria-label", `${group.name}: now ${countStates(group.ranks).map(([state, count]) => `${count} ${state}`).join(", ")}`);
    canvas.ranks = group.ranks.map((rank) => rank.address);
    canvas.asBands = asBands;
    this.paint(canvas, (pixels) => (asBands ? this.paintBands(pixels, canvas.ranks, bandPx) : this.paintShares(pixels, canvas.ranks)));
  }

  paint(canvas, fill) {
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    fill(new Uint32Array(image.data.buffer));
    context.putImageData(image, 0, 0);
  }

  paintBands(pixels, ranks, bandPx) {
    const seconds = this.history.seconds, states = new Uint8Array(seconds), colours = this.colours;
    const filled = bandPx > 2 ? bandPx - 1 : bandPx;
    ranks.forEach((rank, number) => {
      const start = number * bandPx * seconds;
      this.history.copy(rank, states);
      for (let x = 0; x < seconds; x++) pixels[start + x] = colours[states[x]];
      for (let line = 1; line < filled; line++) pixels.copyWithin(start + line * seconds, start, start + seconds);
    });
  }

  // From below, the working ones first.
  paintShares(pixels, ranks) {
    const seconds = this.history.seconds, states = new Uint8Array(seconds), kinds = STATES.length + 1;
    const counts = new Uint32Array(seconds * kinds), colours = this.colours;
    for (const rank of ranks) {
      this.history.copy(rank, states);
      for (let x = 0; x < seconds; x++) counts[x * kinds + states[x]] += 1;
    }
    for (let x = 0; x < seconds; x++) {
      let sum = 0, y = SHARES_PX;
      for (let state = 1; state < kinds; state++) {
        sum += counts[x * kinds + state];
        const top = SHARES_PX - Math.round((SHARES_PX * sum) / ranks.length);
        while (y > top) pixels[--y * seconds + x] = colours[state];
      }
    }
  }

  tell(event) {
    const canvas = event.target;
    if (!canvas.ranks) return;
    const box = canvas.getBoundingClientRect();
    const back = this.history.seconds - 1 - Math.floor(((event.clientX - box.x) / box.width) * this.history.seconds);
    const at = clock(this.history.newest - back);
    const rank = canvas.ranks[Math.floor(((event.clientY - box.y) / box.height) * canvas.ranks.length)];
    const counts = countStates(canvas.ranks.map((name) => ({ state: STATES[this.history.at(name, back) - 1] ?? "not seen" })));
    const state = STATES[this.history.at(rank, back) - 1] ?? "not seen";
    canvas.title = canvas.asBands ? `${rank} at ${at}: ${state}` : `${at}: ${counts.map(([each, count]) => `${count} ${each}`).join(", ")}`;
  }
}

// The states' colours as pixels, by their numbers; 0 is nothing.
function stateColours() {
  const style = getComputedStyle(document.documentElement);
  return Uint32Array.from([0, ...STATES.map((state) => pixel(style.getPropertyValue(`--${state}`).trim()))]);
}

// "#rrggbb" as the bytes of a pixel.
function pixel(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return new Uint32Array(new Uint8ClampedArray([red, green, blue, 255]).buffer)[0];
}
