// The timeline of one run on a canvas: a row for each worker, spans of what it does, drawn from a recording.
import { Bands } from "./bands.js";
import { h } from "./dom.js";
import { bySpeed, layout, MANY, margins, sharesAlong } from "./layout.js";
import { duration, percent, upTo } from "./recording.js";

const AXIS = 18;
const TICKS = 6; // of the versions alone
// waiting stands out: full and hot; what travels is half as high as what is computed
const THICK = { compute: 0.86, pull: 0.43, send: 0.43, wait: 0.86, switching: 0.43, cancelled: 0.43 };
const COUNTABLE = 5; // pixels from which a span is parted from the next
const BAND = 14; // pixels of a row where there are bands: each has its name
const TOTAL_BAR = 40; // pixels of a total in a row that is lower
const SPELLED = 26; // rows so high have room for words below their totals

export class Timeline {
  // events: at(time) when a moment is picked, brush([from, to] or null), worker(id or null),
  // tell(text or ""), zoom(factor of what is shown)
  constructor(colours, events) {
    this.colours = colours;
    this.bands = new Bands(colours);
    this.events = events;
    this.gutter = this.right = this.axisHeight = 0;
    this.canvas = h("canvas", {
      class: "psb-timeline-canvas",
      role: "img",
      tabindex: "0",
      title:
        "Drag to select a span of time, press a number to select a worker, " +
        "pinch or turn the wheel with Ctrl to zoom; " +
        "keys: up and down select a worker, [ and ] set start and end of a span, Escape clears it",
    });
    this.element = h("div", { class: "psb-timeline" }, this.canvas);
    this.canvas.onpointermove = (event) => this.hover(event);
    this.canvas.onpointerleave = () => this.leave();
    this.canvas.onpointerdown = (event) => this.press(event);
    this.canvas.onpointerup = (event) => this.release(event);
    this.canvas.onkeydown = (event) => this.onKey(event);
    this.canvas.onwheel = (event) => this.wheel(event);
  }

  // row, rows: pixels that a row, and all rows without bands, may have; hasAxis: whether no timeline below it
  // has the same axis
  show(recording, { row, rows, hasAxis }) {
    this.recording = recording;
    this.bands.forget();
    this.axisHeight = hasAxis ? AXIS : TICKS;
    this.order = recording.workers.length > MANY ? bySpeed(recording.steps) : [];
    this.arrange([]);
    const least = this.order.length ? BAND : 3;
    this.row = Math.max(least, Math.min(row, Math.floor(rows / this.shown.length)));
    this.height = this.row * this.shown.length + this.axisHeight;
    this.canvas.style.height = `${this.height}px`;
  }

  // The rows, with some workers drawn in full whatever their speed.
  arrange(named) {
    this.shown = layout(this.recording.workers, this.order, named);
  }

  // Draw from `from` to `to` (s) with the cursor at `now`.
  draw(from, to, now, brush, selected, named = []) {
    this.arrange([...(selected === null || selected === undefined ? [] : [selected]), ...named]);
    this.view = { from, to, now, brush, selected };
    const width = this.element.clientWidth;
    if (!this.recording || !width) return;
    const ratio = window.devicePixelRatio || 1;
    if (
      this.canvas.width !== Math.round(width * ratio) ||
      this.canvas.height !== Math.round(this.height * ratio)
    ) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    const { left, right } = margins(width);
    [this.gutter, this.right] = [left, right];
    this.width = width;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, this.height);
    const style = getComputedStyle(this.element);
    this.ink = {
      text: style.getPropertyValue("--psb-text") || "#222",
      muted: style.getPropertyValue("--psb-muted") || "#666",
      line: style.getPropertyValue("--psb-line") || "#ccc",
      accent: style.getPropertyValue("--psb-accent") || "#1976d2",
      soft: style.getPropertyValue("--psb-soft") || "#eee",
      paper: style.getPropertyValue("--psb-around") || "#fff",
      font: style.fontFamily,
    };
    this.axis(pen);
    if (brush) this.band(pen, brush);
    this.unknown(pen);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, 0, width - this.gutter - this.right, this.height);
    pen.clip();
    const bands = this.shown.map(({ places }, i) => ({ places, top: i * this.row }));
    this.bands.draw(
      pen,
      this.recording,
      bands.filter(({ places }) => places?.length),
      {
        ...{ left: this.gutter, width: width - this.gutter - this.right, height: this.row },
        ...{ from, to, ratio },
      },
    );
    this.shown.forEach(
      ({ worker, place }, i) =>
        place !== undefined &&
        this.spans(pen, place, i, selected !== null && selected !== undefined && worker !== selected),
    );
    this.versions(pen);
    this.joins(pen);
    pen.restore();
    this.cursor(pen, this.x(now));
    this.labels(pen, selected);
    if (this.right > TOTAL_BAR) this.totals(pen);
    this.canvas.setAttribute(
      "aria-label",
      `timeline of ${this.recording.workers.length} workers from ${from.toPrecision(4)} to ` +
        `${to.toPrecision(4)} s; the sentence below explains who waits and why`,
    );
  }

  // The moment: a line with a mark on top, which may stand out at either end.
  cursor(pen, x) {
    pen.fillStyle = this.ink.text;
    pen.fillRect(x - 0.75, 0, 1.5, this.height - this.axisHeight + 4);
    pen.beginPath();
    pen.moveTo(x - 5, 0);
    pen.lineTo(x + 5, 0);
    pen.lineTo(x, 6);
    pen.fill();
  }

  x(time) {
    const { from, to } = this.view;
    return this.gutter + ((time - from) / (to - from)) * (this.width - this.gutter - this.right);
  }

  time(x) {
    const { from, to } = this.view;
    return Math.min(
      to,
      Math.max(from, from + ((x - this.gutter) / (this.width - this.gutter - this.right)) * (to - from)),
    );
  }

  spans(pen, place, i, dim) {
    const { start_s, end_s, phase } = this.recording.tables.spans;
    const [first, stop] = this.recording.rows[place];
    const { from, to } = this.view;
    let k = Math.max(first, upTo(start_s, from, false, first, stop) - 1);
    pen.globalAlpha = dim ? 0.25 : 1;
    for (; k < stop && start_s[k] < to; k++) {
      const name = this.recording.phases[phase[k]];
      const thick = this.thick(phase[k]);
      const left = this.x(start_s[k]);
      const width = Math.max(0.6, this.x(end_s[k]) - left);
      const top = i * this.row + (this.row - thick) / 2;
      pen.fillStyle = this.colours[name];
      pen.fillRect(left, top, width, thick);
      if (width < COUNTABLE) continue;
      pen.fillStyle = this.ink.paper; // one step after the other can be told apart
      pen.fillRect(left + width - 1, top, 1, thick);
    }
    pen.globalAlpha = 1;
  }

  // How high a span of a phase is drawn.
  thick(phase) {
    return Math.max(1.5, this.row * THICK[this.recording.phases[phase]]);
  }

  // A tick at the foot for each new version, as long as they can be distinguished.
  versions(pen) {
    const { time_s } = this.recording.tables.versions;
    const { from, to } = this.view;
    const inside = time_s.subarray(upTo(time_s, from, true), upTo(time_s, to));
    if (inside.length > this.width / 4) return;
    pen.fillStyle = this.ink.muted;
    for (const t of inside) pen.fillRect(this.x(t) - 0.5, this.row * this.shown.length, 1, 4);
  }

  // A wait is joined to the worker that ended it: where the pointer is, else at the moment that is shown.
  joins(pen) {
    const at =
      this.pointed?.span >= 0
        ? [this.pointed]
        : this.shown.map(({ place }, i) => ({
            span: place === undefined ? -1 : this.recording.spanAt(place, this.view.now),
            i,
          }));
    const { spans } = this.recording.tables;
    pen.strokeStyle = pen.fillStyle = this.ink.text;
    for (const { span, i } of at) {
      if (span < 0 || spans.waited_for[span] < 0 || !this.recording.isWait(span)) continue;
      const to = this.shown.findIndex(({ worker }) => worker === spans.waited_for[span]);
      if (to < 0) continue;
      const x = this.x(spans.end_s[span]);
      pen.lineWidth = 1.2;
      pen.beginPath();
      pen.moveTo(x, (i + 0.5) * this.row);
      pen.lineTo(x, (to + 0.5) * this.row);
      pen.stroke();
      pen.beginPath();
      pen.arc(x, (to + 0.5) * this.row, 3, 0, 7);
      pen.fill();
      const [left, thick] = [this.x(spans.start_s[span]), this.thick(spans.phase[span])];
      pen.strokeRect(left, (i + 0.5) * this.row - thick / 2, x - left, thick);
    }
  }

  // What of the view is not here: hatched, so that it is not taken for a time in which nothing happens.
  unknown(pen) {
    const { begin, end, whole } = this.recording;
    const { from, to } = this.view;
    const gaps = [];
    if (begin > from) gaps.push([from, Math.min(begin, to)]);
    if (end < whole && end < to) gaps.push([Math.max(end, from), Math.min(to, whole)]);
    for (const [a, b] of gaps) {
      const [left, width] = [this.x(a), this.x(b) - this.x(a)];
      const height = this.height - this.axisHeight;
      pen.save();
      pen.beginPath();
      pen.rect(left, 0, width, height);
      pen.clip();
      pen.strokeStyle = this.ink.line;
      pen.beginPath();
      for (let x = left - height; x < left + width; x += 8) {
        pen.moveTo(x, height);
        pen.lineTo(x + height, 0);
      }
      pen.stroke();
      pen.fillStyle = this.ink.muted;
      pen.font = `12px ${this.ink.font}`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      if (width > 60) pen.fillText("loading …", left + width / 2, height / 2);
      pen.restore();
    }
  }

  band(pen, [a, b]) {
    pen.fillStyle = this.ink.accent;
    pen.globalAlpha = 0.18;
    pen.fillRect(this.x(a), 0, this.x(b) - this.x(a), this.height - this.axisHeight);
    pen.globalAlpha = 1;
  }

  // Its name, and how fast it is.
  labels(pen, selected) {
    pen.textBaseline = "middle";
    const every = Math.ceil(11 / this.row);
    const { speeds } = this.recording.about;
    this.shown.forEach(({ worker, place, label }, i) => {
      if (i % every) return;
      const y = Math.max(5.5, (i + 0.5) * this.row + 0.5); // letters are higher than a low row
      const isNamed = place !== undefined;
      pen.textAlign = "left";
      pen.font = `${isNamed ? "600 " : ""}12px ${this.ink.font}`;
      pen.fillStyle = isNamed ? this.ink.text : this.ink.muted;
      pen.fillText(label, 0, y);
      const begin = pen.measureText(label).width;
      if (worker !== undefined && worker === selected) pen.fillRect(0, y + 7, begin, 1.5);
      if (!isNamed || !speeds?.length) return;
      pen.font = `11px ${this.ink.font}`;
      pen.fillStyle = this.ink.muted;
      const speed = `speed ${speeds[place]}`;
      if (begin + 6 + pen.measureText(speed).width < this.gutter - 4) pen.fillText(speed, begin + 6, y);
    });
  }

  // The share of its time that a worker waits in the whole run, as a bar and in words: below it, or beside.
  totals(pen) {
    const every = Math.ceil(12 / this.row);
    const isSpelled = this.row >= SPELLED;
    const left = this.width - this.right + 10;
    const width = isSpelled ? this.right - 12 : TOTAL_BAR;
    const high = isSpelled ? 9 : 7;
    pen.font = `11px ${this.ink.font}`;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    this.shown.forEach(({ place }, i) => {
      if (place === undefined || i % every) return;
      const share = this.recording.waiting[place];
      const y = Math.max(5.5, (i + 0.5) * this.row - (isSpelled ? 6 : 0));
      pen.fillStyle = this.ink.soft;
      pen.fillRect(left, y - high / 2, width, high);
      pen.fillStyle = this.colours.wait;
      pen.fillRect(left, y - high / 2, width * share, high);
      pen.fillStyle = this.ink.muted;
      const words = !share ? "never waits" : `${percent(share)} waiting`;
      if (isSpelled) pen.fillText(words, this.width - 2, y + 13);
      else pen.fillText(percent(share), this.width - 2, y + 0.5);
    });
  }

  axis(pen) {
    const { from, to } = this.view;
    const foot = this.row * this.shown.length;
    pen.fillStyle = this.ink.line;
    pen.fillRect(this.gutter, foot, this.width - this.gutter - this.right, 1);
    if (this.axisHeight < AXIS) return;
    pen.font = `11px ${this.ink.font}`;
    pen.textBaseline = "top";
    pen.fillStyle = this.ink.muted;
    pen.textAlign = "center";
    const step = nice((to - from) / Math.max(2, this.width / 110));
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    let unit = " s"; // with the first number
    for (let t = Math.ceil(from / step) * step; t <= to + 1e-12; t += step) {
      const x = this.x(t);
      if (x > this.width - this.right - 8) continue;
      pen.fillText(`${Math.abs(t) < step / 2 ? 0 : t.toFixed(digits)}${unit}`, x, foot + 6);
      unit = "";
    }
  }

  // ---------------------------------------------------------------- pointer

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    // the full height of a row answers
    const i = Math.min(this.shown.length - 1, Math.max(0, Math.floor(y / this.row)));
    const time = this.time(x);
    return {
      x,
      i,
      time,
      label: x < this.gutter - 2,
      below: y > this.row * this.shown.length,
      span: this.shown[i].place === undefined ? -1 : this.recording.spanAt(this.shown[i].place, time),
    };
  }

  hover(event) {
    if (!this.recording || !this.view) return;
    const at = this.under(event);
    if (this.pressed) {
      if (Math.abs(at.x - this.pressed.x) > 4)
        this.events.brush([this.pressed.time, at.time].sort((a, b) => a - b));
      return;
    }
    this.point(at.label || at.below ? null : at);
    this.events.tell(this.pointed ? this.about(at) : "");
    this.canvas.style.cursor = at.label ? "pointer" : "crosshair";
  }

  leave() {
    this.point(null);
    this.events.tell("");
  }

  // A wait under the pointer is joined to the worker that ended it at once, not with the next frame of
  // playing.
  point(at) {
    const changed = this.pointed?.span !== at?.span;
    this.pointed = at;
    if (changed && this.view)
      this.draw(this.view.from, this.view.to, this.view.now, this.view.brush, this.view.selected);
  }

  onKey(event) {
    if (!this.recording || !this.view) return;
    const { now, brush, selected } = this.view;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      const own = this.shown.filter(({ worker }) => worker !== undefined);
      const at = own.findIndex(({ worker }) => worker === selected);
      const next = at < 0 ? (step > 0 ? 0 : own.length - 1) : (at + step + own.length) % own.length;
      this.events.worker(own[next].worker);
    } else if (event.key === "[") this.events.brush([now, Math.max(now, brush?.[1] ?? this.view.to)]);
    else if (event.key === "]") this.events.brush([Math.min(now, brush?.[0] ?? this.view.from), now]);
    else if (event.key === "Escape" && (brush || (selected !== null && selected !== undefined))) {
      this.events.brush(null);
      if (selected !== null && selected !== undefined) this.events.worker(selected);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // A pinch on a touchpad is a wheel with Ctrl; the wheel alone scrolls the page.
  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.events.zoom(2 ** (Math.sign(event.deltaY) * Math.min(1, Math.abs(event.deltaY) / 100)));
  }

  press(event) {
    if (!this.recording || !this.view) return;
    this.pressed = this.under(event);
    this.canvas.setPointerCapture(event.pointerId);
  }

  release(event) {
    const begun = this.pressed;
    this.pressed = null;
    if (!begun) return;
    const at = this.under(event);
    if (begun.label && this.shown[begun.i].worker !== undefined)
      this.events.worker(this.shown[begun.i].worker);
    else if (Math.abs(at.x - begun.x) <= 4) {
      this.events.brush(null);
      this.events.at(begun.time);
    }
  }

  inWords(places, count, time) {
    const { phases, tables } = this.recording;
    const found = sharesAlong(places, this.recording.rows, tables.spans, [time], phases.length);
    const parts = phases
      .map((name, phase) => [name, found[phase]])
      .filter(([, share]) => share >= 0.005);
    const words = parts.map(([name, share]) => `${percent(share)} ${name}`).join(", ");
    return `Of these ${count} workers at ${time.toFixed(3)} s: ${words}`;
  }

  about({ i, span, time }) {
    const { worker, places, count } = this.shown[i];
    if (places) return count ? this.inWords(places, count, time) : "";
    const left = this.recording.gone(time).find((each) => each.worker === worker);
    if (span < 0)
      return left
        ? `Worker ${worker} left at ${left.since.toFixed(3)} s.`
        : `Worker ${worker} had not joined yet.`;
    const { start_s, end_s, phase } = this.recording.tables.spans;
    const why = this.recording.why(span);
    const when = `${start_s[span].toFixed(3)} to ${end_s[span].toFixed(3)} s`;
    if (why) return `${why} (${when})`;
    const lasted = duration(end_s[span] - start_s[span]);
    return `Worker ${worker}: ${this.recording.phases[phase[span]]} for ${lasted} (${when})`;
  }
}

// The nearest of 1, 2, 5 times a power of ten that is not below a step.
function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * ([1, 2, 5, 10].find((each) => each * power >= step * (1 - 1e-9)) ?? 10);
}
