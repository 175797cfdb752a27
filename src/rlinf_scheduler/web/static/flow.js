"use strict";
// Who gives what to whom: groups, channels and weights, and the edges between them, from a status.

const SHOWN_CHANNELS = 24;
const LONG_ENOUGH_S = 1; // shorter waits come and go with each item
const PRODUCING = /^(put|ask)/;

function flowOf(status) {
  const nodes = new Map(), edges = new Map();
  const groups = new Map(status.groups.map((group) => [group.name, group]));
  const channels = busiest(status.channels);

  function addNode(kind, name, data) {
    const id = `${kind} ${name}`;
    if (!nodes.has(id)) nodes.set(id, { id, kind, name, data });
    return id;
  }
  function addEdge(from, to, kind, perSecond, numWaiting) {
    const key = JSON.stringify([from, to]);
    const edge = edges.get(key) ?? { from, to, kind, perSecond: 0, numWaiting: 0 };
    edge.perSecond += perSecond;
    edge.numWaiting += numWaiting;
    edges.set(key, edge);
  }
  const groupNode = (process) => addNode("group", groupOf(process), groups.get(groupOf(process)));

  // First the groups, in their order: it decides how what goes in a ring is drawn.
  const users = new Set([
    ...channels.flatMap((channel) => [...usersOf(channel)]),
    ...status.weights.flatMap((weights) => [weights.publisher, ...Object.keys(weights.readers)]),
  ]);
  const using = new Set([...users].filter(Boolean).map(groupOf));
  for (const name of [...groups.keys(), ...using]) if (using.has(name)) groupNode(name);

  for (const channel of channels) {
    const id = addNode("channel", channel.name, channel);
    const put = (process, perSecond, waiting) => addEdge(groupNode(process), id, "put", perSecond, waiting);
    const got = (process, perSecond, waiting) => addEdge(id, groupNode(process), "get", perSecond, waiting);
    for (const [process, each] of Object.entries(channel.putters)) put(process, each, 0);
    for (const [process, each] of Object.entries(channel.getters)) got(process, each, 0);
    for (const { process, operation, since_s } of channel.waiting) {
      (PRODUCING.test(operation) ? put : got)(process, 0, since_s >= LONG_ENOUGH_S ? 1 : 0);
    }
  }
  for (const weights of status.weights) {
    const id = addNode("weights", weights.name, weights);
    if (weights.publisher) addEdge(groupNode(weights.publisher), id, "publish", 0, 0);
    for (const process of Object.keys(weights.readers)) addEdge(id, groupNode(process), "fetch", 0, 0);
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()], numLeftOut: status.channels.length - channels.length };
}

function* usersOf(channel) {
  yield* Object.keys(channel.putters);
  yield* Object.keys(channel.getters);
  for (const { process } of channel.waiting) yield process;
}

// The channels in which most goes on, by name; all of them where there are few.
function busiest(channels) {
  const moved = (channel) => channel.puts_per_s + channel.gets_per_s + channel.waiting.length;
  const shown = [...channels].sort((a, b) => moved(b) - moved(a)).slice(0, SHOWN_CHANNELS);
  return channels.filter((channel) => shown.includes(channel));
}
