// The whole run on one strip: how many workers wait along it, and the window of the timelines as a handle
// that moves the moment. One canvas, redrawn only if there is more to show.
import { h } from "./dom.js";
import { margins, sharesAlong } from "./layout.js";
import { amount, upTo } from "./recording.js";

const HEIGHT = 34;
const PARTS = 200; // of a run under way, of which the shares are gathered piece by piece
const INSTANTS = 16; // in each of them that are looked at
const GAP = 3; // parts that may be missing between two pieces, and are taken to be like what follows
const UNKNOWN = "rgba(128, 128, 128, 0.2)"; // of a run under way, what was in none of its pieces
const GRIP = 10; // pixels that the handle has at least

export class Strip {
  // events: at(time) when the moment is moved, key(event)
  constructor(colours, events) {
    this.colours = colours;
    this.events = events;
    this.canvas = h("canvas", { class: "psb-strip-canvas", "aria-hidden": "true" });
    this.handle = h("div", { class: "psb-strip-window", "aria-hidden": "true" });
    this.now = h("div", { class: "psb-strip-now", "aria-hidden": "true" });
    this.track = h(
      "div",
      {
        class: "psb-slider",
        role: "slider",
        tabindex: "0",
        "aria-label": "moment of the run",
        "aria-valuemin": "0",
        title: "Drag the window along the run; arrow keys step",
      },
      this.canvas,
      this.handle,
      this.now,
    );
    this.about = h("span", {});
    this.element = h(
      "div",
      { class: "psb-strip" },
      h("div", { class: "psb-strip-name" }, h("b", {}, "whole run"), this.about),
      this.track,
      h(
        "div",
        { class: "psb-strip-scale", "aria-hidden": "true" },
        h("span", {}, "100 %"),
        h("span", {}, "0 %"),
      ),
    );
    this.track.onpointerdown = (event) => this.press(event);
    this.track.onkeydown = (event) => this.events.key(event);
    this.gathered = new Map(); // key of a run -> { times, shares }, or { along } of one that is over
  }

  // Take note of what a piece of a run under way shows: Python sends the whole run when it has ended.
  take(recordings) {
    const keys = recordings.map(({ about }) => about.key);
    for (const key of this.gathered.keys()) if (!keys.includes(key)) this.gathered.delete(key);
    for (const each of recordings)
      each.along ? this.gathered.set(each.about.key, { along: each.along }) : this.gather(each);
    this.drawn = "";
  }

  // Of each part of what is new, the mean: at one instant no worker may wait, where all do most of the time.
  gather({ about, begin, end, whole, phases, rows, tables }) {
    const found = this.gathered.get(about.key)?.times
      ? this.gathered.get(about.key)
      : { begins: [], times: [], shares: [] }; // where each part begins and ends, and the mean share in it
    this.gathered.set(about.key, found);
    const from = Math.max(begin, found.times.at(-1) ?? 0);
    if (end <= from) return;
    const count = Math.max(1, Math.round(((end - from) / whole) * PARTS));
    const part = (end - from) / count;
    const times = Array.from({ length: count * INSTANTS }, (_, i) => from + ((i + 0.5) / INSTANTS) * part);
    const every = Math.ceil(rows.length / 60);
    const places = rows.map((_, place) => place).filter((place) => place % every === 0);
    const all = sharesAlong(places, rows, tables.spans, times, phases.length);
    const [wait, switching] = ["wait", "switching"].map((name) => phases.indexOf(name));
    for (let i = 0; i < count; i++) {
      let sum = 0;
      for (let k = i * INSTANTS; k < (i + 1) * INSTANTS; k++)
        sum += all[k * phases.length + wait] + all[k * phases.length + switching];
      found.begins.push(from + i * part);
      found.times.push(from + (i + 1) * part);
      found.shares.push(sum / INSTANTS);
    }
    if (found.times.length > 4 * PARTS)
      this.gathered.set(about.key, thinned(found, (GAP * whole) / PARTS));
  }

  // The share of the workers that wait around a time; null where it is not known.
  share({ about, whole }, from, to) {
    const { along, begins = [], times = [], shares = [] } = this.gathered.get(about.key) ?? {};
    if (along) {
      const [first, stop] = [from, to].map((t) => Math.min(along.length, (t / whole) * along.length));
      let sum = 0;
      const last = Math.max(Math.floor(first) + 1, Math.ceil(stop));
      for (let i = Math.floor(first); i < last; i++) sum += along[i] ?? 0;
      return from >= whole ? 0 : sum / (last - Math.floor(first));
    }
    const [first, stop] = [upTo(times, from), upTo(times, to)];
    if (first === stop) {
      if (begins[first] <= from) return shares[first];
      const gap = begins[first] - times[first - 1]; // no number where one is missing
      return gap <= (GAP * whole) / PARTS ? shares[first] : null;
    }
    let [sum, known] = [0, 0];
    for (let i = first; i < stop; i++) {
      sum += shares[i] * (times[i] - begins[i]);
      known += times[i] - begins[i];
    }
    return sum / known;
  }

  draw(recordings, from, to, now, end, text) {
    const { left, right } = margins(this.element.clientWidth);
    this.element.style.gridTemplateColumns = `${left}px minmax(0, 1fr) ${right}px`;
    const width = this.element.clientWidth - left - right;
    if (width <= 0) return;
    this.end = end;
    const [begin, length] = [(from / end) * width, ((to - from) / end) * width];
    const wide = Math.min(width, Math.max(GRIP, length));
    this.handle.style.left = `${Math.max(0, Math.min(width - wide, begin - (wide - length) / 2))}px`;
    this.handle.style.width = `${wide}px`;
    this.now.style.left = `${(now / end) * width}px`;
    this.track.setAttribute("aria-valuemax", String(end));
    this.track.setAttribute("aria-valuenow", String(now));
    this.track.setAttribute("aria-valuetext", text);
    const key = `${width} ${end} ${this.colours.wait} ${recordings.map(({ about }) => about.key)}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.about.textContent = `who waits, 0–${amount(end)} s`;
    this.paint(recordings, width, end);
  }

  // Of two runs one above the other.
  paint(recordings, width, end) {
    const ratio = window.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(HEIGHT * ratio)];
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const high = HEIGHT / recordings.length;
    const count = Math.min(PARTS, Math.floor(width / 3));
    recordings.forEach((recording, row) => {
      const foot = (row + 1) * high;
      for (let i = 0; i < count; i++) {
        const share = this.share(recording, (i / count) * end, ((i + 1) / count) * end);
        if (share === 0) continue;
        const [x, next] = [i, i + 1].map((each) => Math.round((each / count) * width));
        const part = (share ?? 1) * (high - 2);
        pen.fillStyle = share === null ? UNKNOWN : this.colours.wait;
        pen.fillRect(x, foot - part, next - x, part);
      }
      if (row) pen.clearRect(0, row * high - 0.5, width, 1);
    });
  }

  press(down) {
    const box = this.track.getBoundingClientRect();
    const time = (event) => ((event.clientX - box.left) / box.width) * this.end;
    this.track.setPointerCapture(down.pointerId);
    this.events.at(time(down));
    this.track.onpointermove = (event) => this.events.at(time(event));
    this.track.onlostpointercapture = () => (this.track.onpointermove = null);
  }
}

// Of two neighbours one part, with the mean of both; not of two between which more than `most` seconds are
// missing.
export function thinned({ begins, times, shares }, most) {
  const found = { begins: [], times: [], shares: [] };
  for (let i = 0; i < times.length; i++) {
    const next = begins[i + 1] - times[i] <= most ? i + 1 : i;
    const [own, others] = [times[i] - begins[i], times[next] - begins[next]];
    found.begins.push(begins[i]);
    found.times.push(times[next]);
    found.shares.push((own * shares[i] + others * shares[next]) / (own + others));
    i = next;
  }
  return found;
}
