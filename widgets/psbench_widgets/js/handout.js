// Recorded runs on a page of their own, with no kernel behind it: the stage and the charts.
import { h, select } from "./dom.js";
import { Bus } from "./bus.js";
import { mountChart } from "./chart.js";
import { Stage } from "./stage.js";
import { addStyle } from "./style.js";
import { setThemes } from "./theme.js";

// A chart whose rows are all there, with the methods of a widget's model that a chart uses.
class Still {
  constructor(chart, number) {
    this.values = { renderer: "svg", state: "done", max_rows: 1e9, uid: `chart-${number}`, ...chart };
    this.listeners = new Set();
  }

  get(name) {
    return this.values[name];
  }

  on(name, listener) {
    if (name === "msg:custom") this.listeners.add(listener);
  }

  off(name, listener) {
    this.listeners.delete(listener);
  }

  send() {
    const part = { source: "source", era: 0, start: 0, from: 0, columns: this.values.columns };
    queueMicrotask(() => this.listeners.forEach((listener) => listener({ kind: "rows", parts: [part] })));
  }
}

export function mountHandout({ themes, runs }, place) {
  setThemes(themes);
  addStyle(place);
  const shown = h("div", {});
  const choice = select(
    runs.map(({ label }, number) => [String(number), label]),
    { class: "psb-select psb-which", "aria-label": "which run", onchange: () => show(Number(choice.value)) },
  );
  const which = runs.length > 1 && h("label", { class: "psb-line" }, "run ", choice);
  place.append(h("main", { class: "psb-lab psb-handout" }, which, shown));
  let end = () => {};
  const show = (number) => {
    end();
    end = mountRun(runs[number], shown);
    place.dataset.state = "shown";
  };
  show(0);
}

function mountRun({ title, facts, notes, film, charts }, place) {
  const bus = new Bus();
  const stage = new Stage({
    ask: () => {},
    seek: () => {},
    moved: (time) => bus.set({ time }),
    selected: (values) => bus.set(values),
    press: null,
  });
  const first = h("div", { class: "psb-first-curve" });
  const grid = h("div", { class: "psb-grid" });
  place.replaceChildren(
    h("h1", {}, title),
    h("p", { class: "psb-muted" }, facts),
    ...notes.map((text) => h("p", { class: "psb-warning" }, text)),
    stage.element,
    h("div", { class: "psb-first" }, first, stage.machines),
    grid,
  );
  const ends = charts.map((chart, number) =>
    mountChart(
      new Still(chart, number),
      (number ? grid : first).appendChild(h("div", { class: "psb-slot", "data-key": chart.key })),
      bus,
    ),
  );
  stage.show([film], { at: 0 });
  return () => {
    stage.dispose();
    ends.forEach((end) => end?.());
  };
}
