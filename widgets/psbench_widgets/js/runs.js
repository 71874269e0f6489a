// The table of runs, with what can be done to each.
import { h } from "./dom.js";

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(4))));

export function runsTable(runs, send) {
  if (!runs.length) return h("p", { class: "psb-empty" }, "Finished runs will stand here.");
  const heads = ["", "run", "", "seed", "status", "epochs", "time (s)", "accuracy", "waiting", ""];
  const rows = runs.flatMap((run) => [row(run, send), ...notes(run, heads.length)]);
  return h("table", { class: "psb-table psb-runs" }, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, rows));
}

function row(run, send) {
  const over = !["queued", "running"].includes(run.status);
  const tick = h("input", { type: "checkbox", class: "psb-tick", checked: run.ticked, disabled: !run.can_compare, "aria-label": `compare run ${run.label}` });
  tick.onchange = () => send({ kind: "tick", number: run.number, on: tick.checked });
  const name = h("input", { class: "psb-name", value: run.label, "aria-label": "name of the run", title: "Type to rename", spellcheck: "false" });
  name.onchange = () => send({ kind: "rename", number: run.number, name: name.value });
  const dot = h("i", { class: "psb-dot" });
  dot.style.background = run.colour;
  const act = (text, title, message, shownWhen) => shownWhen && h("button", { type: "button", class: "psb-small", title, onclick: () => send({ ...message, number: run.number }) }, text);
  return h(
    "tr",
    { "data-number": run.number, "data-status": run.status, title: run.digest ? `digest ${run.digest}\n${run.reason ?? ""}` : "" },
    h("td", {}, tick),
    h("td", {}, h("span", { class: "psb-named" }, dot, name)),
    h("td", { class: "psb-muted" }, run.about),
    h("td", { class: "psb-number" }, run.seed),
    h("td", {}, h("span", { class: `psb-status-word psb-is-${run.status}` }, run.status)),
    h("td", { class: "psb-number" }, number(run.epochs)),
    h("td", { class: "psb-number" }, number(run.time_s)),
    h("td", { class: "psb-number" }, percent(run.val_accuracy)),
    h("td", { class: "psb-number" }, percent(run.idle)),
    h("td", { class: "psb-acts" }, act("show", "Show this run's charts", { kind: "show" }, run.can_compare), act("stop", "Stop or cancel it", { kind: "stop" }, !over), act("remove", "Take it out of the table", { kind: "remove" }, over)),
  );
}

function notes(run, span) {
  const lines = (run.warnings ?? []).map((text) => h("div", { class: "psb-warning" }, text));
  if (run.error) {
    const last = run.error.trim().split("\n").at(-1);
    lines.push(h("details", { class: "psb-traceback" }, h("summary", {}, last), h("pre", {}, run.error)));
  }
  return lines.length ? [h("tr", { class: "psb-note-row" }, h("td", {}), h("td", { colspan: span - 1 }, lines))] : [];
}

export function comparisonTable(table) {
  if (!table.headings) return [h("p", { class: "psb-empty" }, "Tick finished runs to compare them.")];
  const body = table.rows.map((row) => h("tr", {}, row.map((cell, i) => h(i ? "td" : "th", { class: i ? "psb-number" : "", scope: i ? undefined : "row" }, cell))));
  return [
    h("table", { class: "psb-table psb-comparison" }, h("thead", {}, h("tr", {}, table.headings.map((head, i) => h("th", { scope: "col", class: i ? "psb-number" : "" }, head)))), h("tbody", {}, body)),
    h("ul", { class: "psb-remarks" }, (table.remarks ?? []).map((text) => h("li", {}, text))),
  ];
}
