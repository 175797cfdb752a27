"use strict";
// Draws a graph in layers, as Sugiyama does: what feeds stands before what is fed; the same graph gives the same drawing.

// Places nodes of {id, along, across} (their sizes) and routes edges of {from, to}.
// `along` runs from layer to layer, `across` within a layer. Gives the middles of the nodes, and each edge's points.
function layOut(nodes, edges, { layerGap = 60, nodeGap = 22 } = {}) {
  const links = withoutRings(nodes, edges);
  const cells = new Map(nodes.map((node) => [node.id, { ...node, before: [], after: [] }]));
  const depth = depths(nodes, links);
  for (const [id, layer] of depth) cells.get(id).layer = layer;
  const chains = links.map((link, number) => chain(link, number, cells));
  const layers = [];
  for (const cell of cells.values()) (layers[cell.layer] ??= []).push(cell);
  sortLayers(layers);
  place(layers, layerGap, nodeGap);
  return {
    at: new Map(nodes.map(({ id }) => [id, { along: cells.get(id).a, across: cells.get(id).c }])),
    routes: chains.map((ids, number) => route(ids.map((id) => cells.get(id)), links[number].turned)),
    along: Math.max(0, ...[...cells.values()].map((cell) => cell.a + cell.along / 2)),
    across: Math.max(0, ...[...cells.values()].map((cell) => cell.c + cell.across / 2)),
  };
}

// The edges without rings: those that would close one, as met from the nodes that nobody feeds, are turned round.
function withoutRings(nodes, edges) {
  const fed = new Set(edges.map((edge) => edge.to));
  const state = new Map(), turned = new Set();
  const out = new Map(nodes.map(({ id }) => [id, []]));
  for (const edge of edges) out.get(edge.from).push(edge);
  function visit(id) {
    state.set(id, "open");
    for (const edge of out.get(id)) {
      if (state.get(edge.to) === "open") turned.add(edge);
      else if (!state.has(edge.to)) visit(edge.to);
    }
    state.set(id, "done");
  }
  for (const { id } of [...nodes.filter((node) => !fed.has(node.id)), ...nodes]) if (!state.has(id)) visit(id);
  return edges.map((edge) => (turned.has(edge) ? { from: edge.to, to: edge.from, turned: true } : { ...edge, turned: false }));
}

// In which layer each node stands: after all that feed it.
function depths(nodes, links) {
  const feeders = new Map(nodes.map(({ id }) => [id, []]));
  for (const link of links) feeders.get(link.to).push(link.from);
  const found = new Map();
  function depth(id) {
    if (!found.has(id)) found.set(id, Math.max(-1, ...feeders.get(id).map(depth)) + 1);
    return found.get(id);
  }
  for (const { id } of nodes) depth(id);
  return found;
}

// The cells that an edge goes through: one without size in each layer between its ends.
function chain(link, number, cells) {
  const ids = [link.from];
  for (let layer = cells.get(link.from).layer + 1; layer < cells.get(link.to).layer; layer++) {
    const id = `\0${number} ${layer}`;
    cells.set(id, { id, along: 0, across: 14, layer, before: [], after: [] });
    ids.push(id);
  }
  ids.push(link.to);
  for (let step = 1; step < ids.length; step++) {
    cells.get(ids[step - 1]).after.push(cells.get(ids[step]));
    cells.get(ids[step]).before.push(cells.get(ids[step - 1]));
  }
  return ids;
}

// Orders each layer by the mean place of its neighbours, to and fro, so that few edges cross.
function sortLayers(layers) {
  const number = (layer) => layer.forEach((cell, order) => { cell.order = order; });
  layers.forEach(number);
  for (let sweep = 0; sweep < 8; sweep++) {
    const side = sweep % 2 ? "after" : "before";
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      for (const cell of layer) cell.wanted = mean(cell[side].map((other) => other.order), cell.order);
      layer.sort((a, b) => a.wanted - b.wanted || a.order - b.order);
      number(layer);
    }
  }
}

function place(layers, layerGap, nodeGap) {
  let along = 0;
  for (const layer of layers) {
    const thick = Math.max(...layer.map((cell) => cell.along));
    let across = 0;
    for (const cell of layer) {
      cell.a = along + thick / 2;
      cell.c = across + cell.across / 2;
      across += cell.across + nodeGap;
    }
    along += thick + layerGap;
  }
  // Each cell goes where its neighbours are, as far as the others of its layer let it.
  for (let sweep = 0; sweep < 12; sweep++) {
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      const wanted = layer.map((cell) => mean([...cell.before, ...cell.after].map((other) => other.c), cell.c));
      pushApart(layer, wanted, nodeGap);
    }
  }
  const cells = layers.flat();
  const first = Math.min(...cells.map((cell) => cell.c - cell.across / 2));
  for (const cell of cells) cell.c -= first;
}

// Cells as near as can be to where they want to be, in order and apart: neighbours that collide move together.
function pushApart(layer, wanted, nodeGap) {
  const blocks = [];
  layer.forEach((cell, at) => {
    let block = { cells: [cell], size: cell.across, start: wanted[at] - cell.across / 2, weight: 1 };
    while (blocks.length && blocks[blocks.length - 1].start + blocks[blocks.length - 1].size + nodeGap > block.start) {
      const before = blocks.pop(), shift = before.size + nodeGap;
      const start = (before.start * before.weight + (block.start - shift) * block.weight) / (before.weight + block.weight);
      block = { cells: [...before.cells, ...block.cells], size: shift + block.size, start, weight: before.weight + block.weight };
    }
    blocks.push(block);
  });
  for (const { cells, start } of blocks) {
    let at = start;
    for (const cell of cells) { cell.c = at + cell.across / 2; at += cell.across + nodeGap; }
  }
}

// The points of an edge, from the side of its first cell to that of its last; each edge has a place of its own there.
function route(cells, turned) {
  const first = cells[0], last = cells[cells.length - 1];
  const points = [
    { along: first.a + first.along / 2, across: port(first, "after", cells[1]) },
    ...cells.slice(1, -1).map((cell) => ({ along: cell.a, across: cell.c })),
    { along: last.a - last.along / 2, across: port(last, "before", cells[cells.length - 2]) },
  ];
  return turned ? points.reverse() : points;
}

function port(cell, side, other) {
  cell.ports ??= {};
  cell.ports[side] ??= [...cell[side]].sort((a, b) => a.c - b.c);
  const ports = cell.ports[side], place = ports.indexOf(other);
  ports[place] = null; // two edges between the same cells have two places
  return cell.c + cell.across * ((place + 1) / (ports.length + 1) - 0.5);
}

function mean(numbers, otherwise) {
  return numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : otherwise;
}
