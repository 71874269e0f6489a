// A run as tables (psbench.metrics.recording), and the state at any of its moments, which is a search in
// them. The same rules as tests/oracles/moment.py; a test compares the two.

import { MANY } from "./layout.js";

const TYPES = { f8: Float64Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array };

function unpack({ as, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[as](bytes.buffer);
}

// Number of entries of a sorted column that are <= value (or < value), in a part of it: where that ends.
export function upTo(column, value, strictly = false, low = 0, high = column.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (strictly ? column[middle] < value : column[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export const duration = (seconds) =>
  seconds < 0.0009995
    ? `${shortest(1e6 * seconds)} µs`
    : seconds < 0.9995
      ? `${shortest(1000 * seconds)} ms`
      : `${shortest(seconds)} s`;
export const amount = (value) => shortest(value);
// a no-break space: the sign never begins a line
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;
const shortest = (value) => String(Number(value.toPrecision(3)));

export class Recording {
  constructor(plain) {
    const { workers, phases, whys, step_s, waiting, along } = plain;
    const { end_s: end, begin_s: begin = 0, whole_s: whole = end } = plain;
    /** @type {number} seconds, as are `end` and `whole` */ this.begin = begin;
    /** @type {number} */ this.end = end;
    /** @type {number} */ this.whole = whole;
    /** @type {number[]} */ this.workers = workers;
    /** @type {string[]} */ this.phases = phases;
    /** @type {string[]} */ this.whys = whys;
    // seconds that a step of each worker takes, on average over the whole run: what sorts them by speed
    /** @type {Float64Array} */ this.steps = unpack(step_s);
    /** @type {Float64Array} share of its time that each worker waits */ this.waiting = unpack(waiting);
    /** @type {?Float64Array} share of the workers that wait in each of equal parts of the whole run */
    this.along = along ? unpack(along) : null; // of a run under way it is not known in advance
    this.about = plain.about ?? {}; // label, compositions, collective, stored by the sender
    this.tables = Object.fromEntries(
      Object.entries(plain.tables).map(([name, table]) => [
        name,
        Object.fromEntries(Object.entries(table).map(([column, packed]) => [column, unpack(packed)])),
      ]),
    );
    const { spans, clocks, models, versions } = this.tables;
    this.wait = this.phases.indexOf("wait");
    this.switching = this.phases.indexOf("switching");
    // [first, last + 1] of each worker's spans
    this.rows = this.workers.map((worker) => [upTo(spans.worker, worker, true), upTo(spans.worker, worker)]);
    this.clocks = byWorker(clocks, "clock");
    this.models = byWorker(models, "version");
    const first = this.rows.reduce(
      (least, [a, b]) => (b > a ? Math.min(least, spans.start_s[a]) : least),
      this.end,
    );
    this.firstShown = Math.max(this.begin, first);
    this.instants = {
      update: versions.time_s,
      barrier: versions.time_s.filter((_, i) => versions.barrier[i]),
      epoch: this.tables.epochs.time_s,
      wait: spans.start_s.filter((_, i) => spans.phase[i] === this.wait && spans.waited_for[i] >= 0).sort(),
    };
    const events = new Set([...spans.start_s, ...versions.time_s, ...this.tables.pushes.arrived_s]);
    this.instants.event = Float64Array.from(events).sort();
  }

  // Place of the span that a worker (by its place among the workers) is in; -1 if it is not there.
  spanAt(place, time) {
    const [first, last] = this.rows[place];
    const { start_s, end_s } = this.tables.spans;
    const found = upTo(start_s, time, false, first, last) - 1;
    return found >= first && time < end_s[found] ? found : -1;
  }

  at(time) {
    const { pushes, versions, compositions } = this.tables;
    const workers = [];
    this.workers.forEach((worker, place) => {
      const span = this.spanAt(place, time);
      if (span < 0) return;
      workers.push(new Seen(this, worker, place, span, time));
    });
    const buffer = [];
    for (let i = 0, stop = upTo(pushes.arrived_s, time); i < stop; i++)
      if (time < pushes.left_s[i]) buffer.push([pushes.worker[i], pushes.base_version[i]]);
    return {
      time,
      workers,
      gone: this.gone(time),
      buffer,
      version: last({ times: versions.time_s, values: versions.version }, time),
      composition: last({ times: compositions.time_s, values: compositions.index }, time),
    };
  }

  // Whether a worker does nothing but wait, be it for a switch.
  isWait(span) {
    const phase = this.tables.spans.phase[span];
    return phase === this.wait || phase === this.switching;
  }

  // The workers that are gone at a time, and since when.
  gone(time) {
    const { time_s, worker, here } = this.tables.presence;
    const left = new Map();
    for (let i = 0; i < time_s.length && time_s[i] <= time; i++)
      here[i] ? left.delete(worker[i]) : left.set(worker[i], time_s[i]);
    return [...left].map(([each, since]) => ({ worker: each, since }));
  }

  why(span) {
    const { spans } = this.tables;
    if (!this.isWait(span)) return "";
    const whom = spans.waited_for[span] >= 0 ? ` for worker ${spans.waited_for[span]}` : "";
    const lasts = duration(spans.end_s[span] - spans.start_s[span]);
    return `Worker ${spans.worker[span]} waits ${lasts}${whom}: ${this.whys[spans.why[span]]}`;
  }

  // What ends a wait for a worker: its push of which step, which arrives then, or is ready to be sent if a
  // collective operation follows. Null if it is no push.
  endOf(span) {
    if (this.ended?.span !== span) this.ended = { span, by: this.pushThatEnds(span) }; // asked every frame
    return this.ended.by;
  }

  pushThatEnds(span) {
    const { spans, pushes } = this.tables;
    const [worker, end] = [spans.waited_for[span], spans.end_s[span]];
    for (const column of worker < 0 ? [] : ["arrived_s", "sent_s"]) {
      const isIt = (time, i) => pushes.worker[i] === worker && Math.abs(time - end) <= 1e-9 * end;
      const push = pushes[column].findIndex(isIt);
      if (push < 0) continue;
      const { times, values } = this.clocks.get(worker) ?? NEVER;
      // its own clock, before what a switch makes of it at that instant
      const own = upTo(times, pushes.arrived_s[push], true);
      return { step: values[own] ?? values.at(-1), arrives: column === "arrived_s" };
    }
    return null;
  }

  // The next (or previous) instant of a kind: event, update, barrier, epoch, wait; null if there is none.
  next(kind, time, back = false) {
    const times = this.instants[kind];
    const place = back ? upTo(times, time, true) - 1 : upTo(times, time);
    return place >= 0 && place < times.length ? times[place] : null;
  }

  // Seconds in which about `count` spans begin: as much as can be distinguished.
  readable(count) {
    // of many workers bands are drawn, in which single spans need not be distinguished
    const spans = this.tables.spans.start_s.length / Math.max(1, this.workers.length / MANY);
    const length = this.end - this.firstShown;
    return spans > count ? (length * count) / spans : length;
  }
}

// A worker at a moment. What it is asked for it looks up: of ten thousand a picture shows some forty.
class Seen {
  constructor(recording, worker, place, span, time) {
    this.worker = worker;
    this.place = place;
    this.span = span;
    this.recording = recording;
    this.time = time;
  }

  get spans() {
    return this.recording.tables.spans;
  }

  get phase() {
    return this.recording.phases[this.spans.phase[this.span]];
  }

  get progress() {
    const [start, end] = [this.spans.start_s[this.span], this.spans.end_s[this.span]];
    return (this.time - start) / (end - start);
  }

  get clock() {
    return last(this.recording.clocks.get(this.worker) ?? NEVER, this.time);
  }

  get version() {
    return last(this.recording.models.get(this.worker) ?? NEVER, this.time);
  }

  get waitedFor() {
    const whom = this.spans.waited_for[this.span];
    return whom >= 0 ? whom : null;
  }

  get waits() {
    return this.recording.isWait(this.span);
  }

  get why() {
    return this.recording.why(this.span);
  }

  get reason() {
    return this.recording.whys[this.spans.why[this.span]];
  }

  get until() {
    return this.spans.end_s[this.span];
  }

  get end() {
    return this.recording.endOf(this.span);
  }

  // Whether what follows at once is no other wait.
  get goesOn() {
    const next = this.span + 1;
    if (next >= this.recording.rows[this.place][1] || this.recording.isWait(next)) return false;
    return Math.abs(this.spans.start_s[next] - this.until) <= 1e-9 * this.until;
  }

  get lasts() {
    return this.until - this.spans.start_s[this.span];
  }
}

// Each worker's rows of a table: times and values.
function byWorker(table, column) {
  const places = new Map();
  table.worker.forEach((worker, i) =>
    places.has(worker) ? places.get(worker).push(i) : places.set(worker, [i]),
  );
  const own = (kept) => ({
    times: Float64Array.from(kept, (i) => table.time_s[i]),
    values: Int32Array.from(kept, (i) => table[column][i]),
  });
  return new Map([...places].map(([worker, kept]) => [worker, own(kept)]));
}

const NEVER = { times: new Float64Array(), values: new Int32Array() };

function last({ times, values }, time) {
  const place = upTo(times, time) - 1;
  return place >= 0 ? values[place] : 0;
}
