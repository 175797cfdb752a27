"use strict";
// Numbers and names as people read them. Nothing here knows the page.

const STATES = ["running", "waiting", "idle", "starting", "unresponsive", "lost"];
// A shape for each state: colour alone does not tell them apart for everybody.
const SIGNS = { running: "●", waiting: "◐", idle: "○", starting: "◌", unresponsive: "▲", lost: "✕" };
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }); // making one takes longer than using it
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// With three digits, from the unit in which there is at least one.
function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1000 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  return `${unit && count < 99.95 ? count.toFixed(count < 9.995 ? 2 : 1) : Math.round(count)} ${UNITS[unit]}`;
}

function amount(count) { return WHOLE.format(count); }

function rate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond < 0.1) return `${amount(perSecond * 60 * 10) / 10}/min`;
  return perSecond < 99.95 ? `${perSecond.toFixed(1)}/s` : `${amount(perSecond)}/s`;
}

function counted(count, noun) { return `${amount(count)} ${noun}${count === 1 ? "" : "s"}`; }

function clock(seconds) { return new Date(seconds * 1000).toLocaleTimeString("en-GB"); }

// "rollout:1" is a rank of "rollout"; "driver" stands for itself.
function groupOf(process) { return process.replace(/:\d+$/, ""); }

// A status tells of so many who wait at a channel.
const TOLD_WAITERS = 8;

function numWaiting(count) { return count < TOLD_WAITERS ? String(count) : `${TOLD_WAITERS}+`; }

// Numbers in ascending order as ranges: 0-2, 5
function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

// A job's command without the folders of what runs and what it runs.
function shortCommand(command) {
  return command.split(" ").map((word, place) => (place < 2 ? word.replace(/^.*\//, "") : word)).join(" ");
}

// How many ranks are in each state, of those in which there are any: [["running", 3], ...]
function countStates(ranks) {
  const counts = new Map(STATES.map((state) => [state, 0]));
  for (const rank of ranks) counts.set(rank.state, (counts.get(rank.state) ?? 0) + 1);
  return [...counts].filter(([, count]) => count);
}
