// Which process of a live run is at what while it starts, with the seconds after which it got there.
import { h } from "./dom.js";

export function startTable({ stages, rows }) {
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "process"),
    stages.map((stage) => h("th", { scope: "col", class: "psb-number" }, stage)),
  );
  const body = rows.map(([name, times]) => {
    const next = times.indexOf(null);
    const cells = times.map((at, i) =>
      h(
        "td",
        { class: "psb-number", "data-at": at === null ? (i === next ? "now" : "later") : "done" },
        at === null ? (i === next ? "…" : "") : `${at.toFixed(1)} s`,
      ),
    );
    return h("tr", { "data-process": name }, h("th", { scope: "row" }, name), cells);
  });
  return h(
    "table",
    { class: "psb-table psb-start" },
    h("caption", {}, "Start-up of each process (seconds since the start)"),
    h("thead", {}, head),
    h("tbody", {}, body),
  );
}
