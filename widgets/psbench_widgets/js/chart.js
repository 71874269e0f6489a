// One live chart: a persistent Vega view fed by change-sets, once per animation frame.
import embed from "vega-embed";
import * as vega from "vega";
import { chartConfig, onThemeChange } from "./theme.js";
import { isWrapped, legendOf, lettersIn, withWrappedLegend } from "./legend.js";
import { storeOf } from "./store.js";
import { table } from "./table.js";
import { button, h } from "./dom.js";

const merge = (base, over) => {
  const out = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const plain = value && typeof value === "object" && !Array.isArray(value);
    out[key] = plain && out[key] && typeof out[key] === "object" ? merge(out[key], value) : value;
  }
  return out;
};

// Show the chart of `model` in `el`; returns a function that takes it away.
export function mountChart(model, el, bus = null) {
  const view = new ChartView(model, el, bus);
  return () => view.dispose();
}

class ChartView {
  constructor(model, el, bus) {
    this.model = model;
    this.bus = bus;
    bus?.views.add(this);
    this.store = storeOf(model);
    this.pending = new Map(); // source -> { added, removed }
    this.changed = {}; // signals to set
    this.busy = false;
    this.gone = false;
    this.shown = 0;
    this.figure = el.appendChild(this.frame());
    this.endTheme = onThemeChange(() => this.embed());
    this.onSpec = () => this.embed();
    this.onLook = () => {
      this.look();
      if (this.pending.size) this.schedule();
    };
    model.on("change:spec change:renderer", this.onSpec);
    model.on("change:title change:state change:note change:nothing", this.onLook);
    this.observer = new ResizeObserver(() => requestAnimationFrame(() => this.gone || this.fit()));
    this.observer.observe(this.canvas);
    // while a run goes on, a chart that is out of sight is not drawn: what came follows when it is seen
    this.inSight = true;
    this.visibility = new IntersectionObserver((changes) => {
      this.inSight = changes[changes.length - 1].isIntersecting;
      if (this.inSight) this.schedule();
      if (this.inSight && this.isLate) this.mark();
    });
    this.visibility.observe(this.figure);
    this.embed();
    this.store.open(this);
  }

  frame() {
    this.heading = h("span", { class: "psb-chart-title" });
    this.note = h("span", { class: "psb-chart-note" });
    this.canvas = h("div", { class: "psb-chart-canvas", "aria-hidden": "true" });
    this.marks = h("div", { class: "psb-marks", "aria-hidden": "true" });
    this.text = h("div", { class: "psb-chart-text", hidden: true });
    this.nothing = h("p", { class: "psb-chart-nothing", hidden: true });
    this.toggle = button("table", "psb-chart-toggle", () => this.flip(), {
      title: "Show the numbers",
      "aria-expanded": "false",
    });
    const head = h("figcaption", { class: "psb-chart-head" }, this.heading, this.note, this.toggle);
    const figure = h("figure", {
      class: "psb-chart",
      "data-rows": "0",
      "data-state": "loading",
    });
    const place = h("div", { class: "psb-chart-place" }, this.canvas, this.marks, this.nothing);
    figure.append(head, place, this.text);
    return figure;
  }

  look() {
    const title = this.model.get("title") || "chart";
    this.heading.textContent = title;
    this.note.textContent = this.note.title = this.model.get("note") || "";
    this.toggle.setAttribute("aria-label", `${this.toggle.textContent}: ${title}`);
    this.figure.dataset.rows = String(this.shown);
    this.nothing.textContent = this.model.get("nothing") || "";
    const isEmpty = this.nothing.textContent !== "";
    this.nothing.hidden = !isEmpty || this.canvas.hidden;
    this.canvas.classList.toggle("psb-unseen", isEmpty); // its place is kept
    const isReady = this.view || isEmpty; // of what has never had a row there is no picture
    this.figure.dataset.state = this.failed ? "error" : isReady ? this.model.get("state") : "loading";
    this.figure.setAttribute(
      "aria-label",
      `${title}: chart with ${this.shown} rows; its button "table" shows them as a table`,
    );
  }

  flip() {
    const open = this.text.hidden;
    this.text.hidden = !open;
    this.canvas.hidden = open;
    this.toggle.setAttribute("aria-expanded", String(open));
    this.toggle.textContent = open ? "chart" : "table";
    this.look();
    if (open) this.fillText();
  }

  fillText() {
    this.text.replaceChildren(
      ...[...this.store.sources].filter(([, s]) => s.rows.length).map(([name, s]) => table(name, s.rows)),
    );
  }

  async embed() {
    if (this.gone) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const spec = this.model.get("spec");
    if (!spec || !Object.keys(spec).length) return this.look();
    try {
      const width = (this.embeddedAt = this.canvas.clientWidth);
      const themed = {
        ...withWrappedLegend(spec, lettersIn(width)),
        config: merge(spec.config ?? {}, chartConfig(width, legendOf(spec))),
      };
      const place = h("div", { class: "psb-vega" });
      place.style.position = "absolute"; // measured at full width, but not seen before it is ready
      place.style.visibility = "hidden";
      place.style.width = "100%";
      this.canvas.append(place);
      const made = await embed(place, themed, {
        renderer: this.model.get("renderer"),
        actions: false,
        tooltip: { theme: "custom" },
        ast: false,
        logLevel: vega.Error, // it warns of every scale that has no data yet
      });
      if (this.gone || turn !== this.turn) {
        made.finalize();
        place.remove();
        return;
      }
      this.finalize?.();
      this.canvas.replaceChildren(place);
      place.removeAttribute("style");
      this.finalize = () => made.finalize();
      this.view = made.view;
      this.failed = false;
      this.flushed = false;
      this.pending.clear();
      for (const [name, { rows }] of this.store.sources) if (rows.length) this.note_(name, rows, []);
      this.changed = { ...this.store.signals };
      this.width = 0;
      this.fit();
      this.look();
      this.schedule();
    } catch (error) {
      this.failed = true;
      this.canvas.textContent = `This chart cannot be drawn: ${error.message}`;
      this.look();
      throw error;
    }
  }

  note_(name, added, removed) {
    const waiting = this.pending.get(name) ?? { added: [], removed: new Set() };
    // rows that came and went between two frames never reach the view
    const fresh = new Set(waiting.added);
    for (const row of removed) fresh.delete(row) || waiting.removed.add(row);
    waiting.added = fresh.size === waiting.added.length ? waiting.added : [...fresh];
    waiting.added.push(...added);
    this.pending.set(name, waiting);
  }

  onRows(name, added, removed) {
    if (!this.view) return; // embed() takes all rows of the store
    this.note_(name, added, removed);
    this.schedule();
  }

  onSignals(signals) {
    Object.assign(this.changed, signals);
    this.schedule();
  }

  schedule() {
    if (this.frameAsked || this.busy || !this.view) return;
    if (!this.inSight && this.model.get("state") === "live") return;
    this.frameAsked = true;
    // a page in the background gets no animation frames, but its rows must not pile up
    const run = () => {
      if (!this.frameAsked) return;
      this.frameAsked = false;
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      this.flush();
    };
    const frame = requestAnimationFrame(run);
    const timer = setTimeout(run, 500);
  }

  async flush() {
    const view = this.view;
    if (!view || this.gone) return;
    this.busy = true;
    const pending = this.pending;
    this.pending = new Map();
    try {
      for (const [name, value] of Object.entries(this.changed)) {
        if (name in view.getState().signals) view.signal(name, value);
      }
      this.changed = {};
      let any = false;
      for (const [name, { added, removed }] of pending) {
        if (!hasData(view, name)) continue;
        view.change(
          name,
          vega
            .changeset()
            .remove([...removed])
            .insert(added),
        );
        any = true;
      }
      if (any) view.resize(); // axis labels may have grown wider
      await view.runAsync();
      if (any && !this.flushed) {
        // embedded while empty, legend and axis titles are cut off until the layout is computed again
        this.flushed = true;
        await view.resize().runAsync();
      }
      this.shown = 0;
      for (const name of this.store.sources.keys())
        if (hasData(view, name)) this.shown += view.data(name).length;
      this.look();
      this.mark();
      if (!this.text.hidden) this.fillText();
    } finally {
      this.busy = false;
      if (this.pending.size || Object.keys(this.changed).length) this.schedule();
    }
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (!this.view || !width || Math.abs(width - (this.width ?? 0)) < 2) return;
    this.width = width;
    const spec = this.model.get("spec") ?? {};
    // beside bars, names have a share of the width; in a legend they go on in lines that fill it
    const isCut = fieldOf(spec, "y") === "label" && width > 1.2 * this.embeddedAt;
    const hadLines = isWrapped(spec, lettersIn(this.embeddedAt));
    if (isCut || (width !== this.embeddedAt && (hadLines || isWrapped(spec, lettersIn(width)))))
      return this.embed();
    if (spec.width === "container")
      this.view
        .width(width)
        .runAsync()
        // how many rows a legend has, and so the height, follows from the width
        .then((view) => view.resize().runAsync())
        .then(() => this.mark());
  }

  // Mark the moment, the span of time and the worker that are picked, where this chart shows them: lines over
  // the picture, so that playing a run draws no chart again. A moment that moves is marked where it is in
  // sight.
  mark(isMoment = false) {
    this.isLate = isMoment && !this.inSight;
    if (this.isLate) return;
    const marks = [];
    if (this.bus && this.view && !this.gone && this.model.get("state") !== "empty") {
      const { time, brush, worker } = this.bus;
      const spec = this.model.get("spec");
      const axis = fieldOf(spec, "x");
      if (brush && AXES.includes(axis))
        marks.push(
          this.stretch(
            "x",
            brush.map((t) => this.at(axis, t)),
            "psb-mark-span",
          ),
        );
      if (time !== null && AXES.includes(axis))
        marks.push(this.stretch("x", [this.at(axis, time), null], "psb-mark-now"));
      if (worker !== null)
        for (const channel of ["x", "y"])
          if (fieldOf(spec, channel) === "worker")
            marks.push(this.stretch(channel, [worker, null], "psb-mark-worker"));
    }
    this.marks.replaceChildren(...marks.filter(Boolean));
  }

  // The value of a chart's axis at a time, between the rows that the chart has.
  at(axis, time) {
    if (axis === "time_s") return time;
    const rows =
      this.store.sources
        .get("source")
        ?.rows.filter((row) => Number.isFinite(row.time_s) && row[axis] !== null) ?? [];
    const label = rows.at(-1)?.label;
    let before = null;
    for (const row of rows) {
      if (row.label !== label) continue;
      if (row.time_s > time)
        return before
          ? before[axis] +
              ((row[axis] - before[axis]) * (time - before.time_s)) / (row.time_s - before.time_s)
          : row[axis];
      before = row;
    }
    return before?.[axis];
  }

  stretch(channel, [from, to], kind) {
    let scale;
    try {
      scale = this.view.scale(channel);
    } catch {
      return null; // a chart of several pictures has no scale of that name
    }
    const [low, high] = [...scale.range()].sort((a, b) => a - b);
    const inside = (value) => Math.min(high, Math.max(low, value));
    const begin = scale(from);
    if (begin === undefined || Number.isNaN(begin)) return null;
    if (to === null && (begin < low - 1 || begin > high + 1)) return null;
    const stop = scale.bandwidth ? begin + scale.bandwidth() : to === null ? begin : scale(to);
    const padding = /** @type {{left?: number, top?: number}} */ (this.view.padding());
    const [left, top] = this.view.origin();
    const other = this.view.scale(channel === "x" ? "y" : "x").range();
    const across = [Math.min(...other), Math.max(...other)];
    const mark = h("i", { class: kind });
    const [x, y] =
      channel === "x" ? [[inside(begin), inside(stop)], across] : [across, [inside(begin), inside(stop)]];
    Object.assign(mark.style, {
      left: `${left + (padding.left ?? 0) + x[0]}px`,
      width: `${Math.max(x[1] - x[0], 0)}px`,
      top: `${top + (padding.top ?? 0) + y[0]}px`,
      height: `${y[1] - y[0]}px`,
    });
    return mark;
  }

  dispose() {
    this.gone = true;
    this.bus?.views.delete(this);
    this.observer.disconnect();
    this.visibility.disconnect();
    this.endTheme();
    this.model.off("change:spec change:renderer", this.onSpec);
    this.model.off("change:title change:state change:note change:nothing", this.onLook);
    this.store.close(this);
    this.finalize?.();
    this.figure.remove();
  }
}

const AXES = ["time_s", "epoch", "updates", "bytes"];

// The field that a specification draws along a channel; in a layered one, of the first layer that has one.
function fieldOf(spec, channel) {
  return (
    spec?.encoding?.[channel]?.field ??
    (spec?.layer ?? []).map((layer) => fieldOf(layer, channel)).find(Boolean)
  );
}

function hasData(view, name) {
  return (
    name in view.getState({ data: (n) => n === name, signals: () => false }).data ||
    view._runtime.data[name] !== undefined
  );
}
