"use strict";
// Which rank stands where on the map: a node has a column for each device, and a row for each rank that shares one.

// Where the ranks of a node stand: bars over the devices that they hold, and those that hold none.
function standing(node, ranks) {
  const columns = new Map(ranks.map((rank) => [rank.address, []]));
  node.devices.forEach((device, column) => {
    for (const holder of device.holders) columns.get(holder)?.push(column);
  });
  const rows = [], bars = [], without = [];
  for (const rank of ranks) {
    const own = columns.get(rank.address);
    if (!own.length) { without.push(rank.address); continue; }
    let row = rows.findIndex((taken) => own.every((column) => !taken.has(column)));
    if (row < 0) row = rows.push(new Set()) - 1;
    for (const column of own) rows[row].add(column);
    for (const [first, span] of runs(own)) bars.push({ address: rank.address, first, span, row });
  }
  return { bars, without, rows: rows.length };
}

// Ascending numbers as runs: [first, how many]
function runs(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[0] + last[1] === number) last[1] += 1;
    else found.push([number, 1]);
  }
  return found;
}

// The ranks of each node, in the order of their groups; those whose node is not known are at -1.
function ranksByNode(status) {
  const found = new Map(status.nodes.map((node) => [node.rank, []]));
  const hosts = nodesByHost(status);
  for (const group of status.groups) {
    for (const rank of group.ranks) {
      const place = found.has(rank.node_rank) ? rank.node_rank : hosts.get(rank.host) ?? -1;
      if (!found.has(place)) found.set(place, []);
      found.get(place).push(rank);
    }
  }
  return found;
}

// The nodes that are the only one on their host, by the host's name: a driver does not know its node.
function nodesByHost(status) {
  const found = new Map();
  for (const rank of status.groups.flatMap((group) => group.ranks)) {
    if (rank.node_rank < 0) continue;
    const isOther = found.has(rank.host) && found.get(rank.host) !== rank.node_rank;
    found.set(rank.host, isOther ? -1 : rank.node_rank);
  }
  return found;
}

// Who holds a device that this rank holds too.
function sharers(node, address) {
  const others = new Set();
  for (const device of node?.devices ?? []) {
    if (device.holders.includes(address)) for (const holder of device.holders) others.add(holder);
  }
  others.delete(address);
  return [...others];
}

// A text that changes whenever the map has to be built anew, and not with what the ranks do.
function shapeOf(status) {
  return JSON.stringify([
    status.nodes.map((node) => [node.rank, node.devices.map((device) => device.holders)]),
    status.groups.map((group) => group.ranks.map((rank) => [rank.address, rank.node_rank])),
  ]);
}
