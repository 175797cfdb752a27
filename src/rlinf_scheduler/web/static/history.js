"use strict";
// The states of the last minutes, a sample a second: as this page has seen them, and before, as the processes know them.

const HISTORY_S = 300;

class StateHistory {
  constructor(seconds = HISTORY_S) {
    this.seconds = seconds;
    this.newest = null; // the second of the newest sample
    this.bands = new Map(); // by rank: a ring of numbers, 0 for "not seen", else the state's number in STATES, from 1
  }

  // Add what was seen at a moment: pairs of a rank and its state.
  add(atS, states) {
    const second = Math.floor(atS);
    if (this.newest !== null && second < this.newest - 1) this._forget(); // the clock was set back
    const passed = this.newest === null ? 1 : second - this.newest;
    if (passed <= 0) return; // two looks in one second: the first one counts
    // Looks are a second apart, and a little: a second may have none, and then belongs to the one before.
    const carried = passed === 2 ? this._slot(this.newest) : null;
    for (const band of this.bands.values()) {
      for (let back = Math.min(passed, this.seconds) - 1; back >= 0; back--) band[this._slot(second - back)] = 0;
      if (carried !== null) band[this._slot(second - 1)] = band[carried];
    }
    this.newest = second;
    for (const [name, state] of states) {
      if (!this.bands.has(name)) this.bands.set(name, new Uint8Array(this.seconds));
      this.bands.get(name)[this._slot(second)] = STATES.indexOf(state) + 1;
    }
    for (const [name, band] of this.bands) if (band.every((state) => !state)) this.bands.delete(name);
  }

  // What the processes know of the time before `atS`: of each the states, so many seconds apart, the newest last.
  // What was seen here stays.
  fill(atS, everyS, states) {
    const last = Math.floor(atS);
    this.newest ??= last;
    for (const [name, known] of Object.entries(states)) {
      const band = this.bands.get(name) ?? new Uint8Array(this.seconds);
      for (let back = Math.max(0, this.newest - last); back < this.seconds; back++) {
        const place = known.length - 1 - Math.floor((last - this.newest + back) / everyS);
        if (place < 0) break;
        band[this._slot(this.newest - back)] ||= STATES.indexOf(known[place]) + 1;
      }
      if (known.length) this.bands.set(name, band);
    }
  }

  // The number of the state of a rank so many seconds before the newest sample; 0 if it was not seen then.
  at(name, back) {
    const band = this.bands.get(name);
    return band && back < this.seconds ? band[this._slot(this.newest - back)] : 0;
  }

  // The numbers of the states of a rank, the oldest first; written into an array, to make none.
  copy(name, into) {
    const band = this.bands.get(name);
    if (!band) return into.fill(0);
    const oldest = this._slot(this.newest + 1);
    into.set(band.subarray(oldest));
    into.set(band.subarray(0, oldest), this.seconds - oldest);
    return into;
  }

  // In which states a rank was, as shares of the time in which it was seen: [["running", 0.7], ...]
  shares(name) {
    const counts = new Array(STATES.length + 1).fill(0);
    for (const state of this.bands.get(name) ?? []) counts[state] += 1;
    const seen = counts.slice(1).reduce((sum, count) => sum + count, 0);
    return STATES.map((state, number) => [state, counts[number + 1] / seen]).filter(([, share]) => share > 0);
  }

  _forget() { this.newest = null; this.bands.clear(); }

  _slot(second) { return ((second % this.seconds) + this.seconds) % this.seconds; }
}
