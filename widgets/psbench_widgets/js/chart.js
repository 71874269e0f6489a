// One live chart: a persistent Vega view fed by change-sets, once per animation frame.
import embed from "vega-embed";
import * as vega from "vega";
import { chartConfig, onThemeChange } from "./theme.js";
import { storeOf } from "./store.js";
import { table } from "./table.js";
import { h } from "./dom.js";

const merge = (base, over) => {
  const out = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const plain = value && typeof value === "object" && !Array.isArray(value);
    out[key] = plain && out[key] && typeof out[key] === "object" ? merge(out[key], value) : value;
  }
  return out;
};

// Show the chart of `model` in `el`; returns a function that takes it away.
export function mountChart(model, el) {
  const view = new ChartView(model, el);
  return () => view.dispose();
}

class ChartView {
  constructor(model, el) {
    this.model = model;
    this.store = storeOf(model);
    this.pending = new Map(); // source -> { added, removed }
    this.changed = {}; // signals to set
    this.busy = false;
    this.gone = false;
    this.shown = 0;
    this.figure = el.appendChild(this.frame());
    this.endTheme = onThemeChange(() => this.embed());
    this.onSpec = () => this.embed();
    this.onLook = () => this.look();
    model.on("change:spec change:renderer", this.onSpec);
    model.on("change:title change:state change:note", this.onLook);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.canvas);
    this.embed();
    this.store.open(this);
  }

  frame() {
    this.heading = h("span", { class: "psb-chart-title" });
    this.note = h("span", { class: "psb-chart-note" });
    this.canvas = h("div", { class: "psb-chart-canvas", "aria-hidden": "true" });
    this.text = h("div", { class: "psb-chart-text", hidden: true });
    this.toggle = h("button", { class: "psb-chart-toggle", type: "button", title: "Show the numbers", "aria-expanded": "false" }, "table");
    this.toggle.onclick = () => this.flip();
    const head = h("figcaption", { class: "psb-chart-head" }, this.heading, this.note, this.toggle);
    const figure = h("figure", { class: "psb-chart", "data-rows": "0", "data-state": "loading", role: "group" });
    figure.append(head, this.canvas, this.text);
    return figure;
  }

  look() {
    const title = this.model.get("title") || "chart";
    this.heading.textContent = title;
    this.note.textContent = this.note.title = this.model.get("note") || "";
    this.figure.dataset.rows = String(this.shown);
    this.figure.dataset.state = this.failed ? "error" : this.view ? this.model.get("state") : "loading";
    this.figure.setAttribute("aria-label", `${title}: chart with ${this.shown} rows; a table of them can be shown`);
  }

  flip() {
    const open = this.text.hidden;
    this.text.hidden = !open;
    this.canvas.hidden = open;
    this.toggle.setAttribute("aria-expanded", String(open));
    this.toggle.textContent = open ? "chart" : "table";
    if (open) this.fillText();
  }

  fillText() {
    this.text.replaceChildren(...[...this.store.sources].filter(([, s]) => s.rows.length).map(([name, s]) => table(name, s.rows)));
  }

  async embed() {
    if (this.gone) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const spec = this.model.get("spec");
    if (!spec || !Object.keys(spec).length) return this.look();
    try {
      const themed = { ...spec, config: merge(spec.config ?? {}, chartConfig()) };
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
        view.change(name, vega.changeset().remove([...removed]).insert(added));
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
      for (const name of this.store.sources.keys()) if (hasData(view, name)) this.shown += view.data(name).length;
      this.look();
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
    if (this.model.get("spec")?.width === "container") this.view.width(width).runAsync();
  }

  dispose() {
    this.gone = true;
    this.observer.disconnect();
    this.endTheme();
    this.model.off("change:spec change:renderer", this.onSpec);
    this.model.off("change:title change:state change:note", this.onLook);
    this.store.close(this);
    this.finalize?.();
    this.figure.remove();
  }
}

function hasData(view, name) {
  return name in view.getState({ data: (n) => n === name, signals: () => false }).data || view._runtime.data[name] !== undefined;
}
