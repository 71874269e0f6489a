// The detached runs of the panel's cluster: listed when the fold is opened, and attached by a button.
import { button, h } from "./dom.js";

export class ClusterRuns {
  // send(message): to the panel, of kinds "cluster" and "attach"
  constructor(send) {
    this.send = send;
    this.words = h("p", { class: "psb-cluster-words psb-muted", role: "status" });
    this.place = h("div", { class: "psb-scroll" });
    const again = button("list again", "psb-small", () => this.send({ kind: "cluster" }));
    this.element = h(
      "details",
      { class: "psb-cluster-runs", ontoggle: () => this.element.open && this.send({ kind: "cluster" }) },
      h("summary", {}, "Detached runs of the cluster"),
      h("div", { class: "psb-line" }, this.words, again),
      this.place,
    );
  }

  show({ words, error, at, runs = [] }) {
    const count = `${runs.length} detached run${runs.length === 1 ? "" : "s"}`;
    this.words.textContent = error ?? words ?? (at ? `${at} lists ${count}` : "");
    this.words.classList.toggle("psb-wrong", Boolean(error));
    this.place.replaceChildren(...(runs.length ? [this.table(runs)] : []));
  }

  table(runs) {
    const attach = ({ name }) =>
      button("attach", "psb-small psb-attach", () => this.send({ kind: "attach", name }), {
        "aria-label": `attach to ${name}`,
        title: "Follow and control this run in the panel",
      });
    const row = (run) =>
      h(
        "tr",
        { "data-name": run.name },
        h("th", { scope: "row" }, run.name),
        [run.state, run.words, run.folder].map((text) => h("td", {}, text)),
        h("td", {}, attach(run)),
      );
    const heads = ["run", "state", "progress", "folder"].map((text) => h("th", { scope: "col" }, text));
    return h(
      "table",
      { class: "psb-table" },
      h("thead", {}, h("tr", {}, heads, h("td", {}))),
      h("tbody", {}, runs.map(row)),
    );
  }
}
