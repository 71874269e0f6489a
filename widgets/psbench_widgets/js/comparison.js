// The table of a comparison: what decides first; columns that have no room are in a fold below it.
import { h } from "./dom.js";

// the first column is what a row is about; columns that are not named here stand between these two lists
const FIRST = [
  "time (s)",
  "virtual time (s)",
  "wall time (s)",
  "speed-up",
  "val. accuracy",
  "val. loss",
  "time to target (s)",
  "waiting",
  "seeds",
];
const LONG = 24; // letters: what is longer is in the fold before all others
const LAST = [
  "updates",
  "MB sent",
  "train. accuracy",
  "switch at epoch",
  "staleness mean",
  "staleness max",
  "clock lead max",
];

export class ComparisonTable {
  constructor() {
    this.place = h("div", { class: "psb-scroll psb-comparison-place" });
    this.rest = h("details", { class: "psb-more-columns", hidden: true });
    this.remarks = h("ul", { class: "psb-remarks" });
    this.element = h("div", {}, this.place, this.rest, this.remarks);
    this.observer = new ResizeObserver(() => requestAnimationFrame(() => this.fit()));
    this.observer.observe(this.place);
    this.show({});
  }

  show(table) {
    this.table = table;
    this.width = null;
    this.remarks.replaceChildren(...(table.remarks ?? []).map((text) => h("li", {}, text)));
    if (table.headings) return this.fit();
    this.rest.hidden = true;
    this.place.replaceChildren(h("p", { class: "psb-empty" }, "Tick finished runs to compare them."));
  }

  // Take columns away, the least telling first, until the rest fits.
  fit() {
    const width = this.place.clientWidth;
    if (!this.table.headings || !width || width === this.width) return;
    this.width = width;
    const order = this.table.headings
      .map((_, i) => i)
      .slice(1)
      .sort((a, b) => this.rank(a) - this.rank(b));
    let count = order.length;
    do this.place.replaceChildren(this.draw(order.slice(0, count), "psb-comparison"));
    while (this.place.scrollWidth > this.place.clientWidth && --count > 0);
    const left = order.slice(count);
    this.rest.hidden = !left.length;
    const open = this.rest.open;
    this.rest.replaceChildren(
      h("summary", {}, `${left.length} more: ${left.map((i) => this.table.headings[i]).join(", ")}`),
      h("div", { class: "psb-scroll" }, this.draw(left, "psb-comparison-rest")),
    );
    this.rest.open = open;
  }

  rank(column) {
    const head = this.table.headings[column];
    if (this.table.rows.some((row) => row[column].length > LONG)) return FIRST.length + LAST.length + 1;
    const last = LAST.indexOf(head);
    return FIRST.includes(head) ? FIRST.indexOf(head) : last < 0 ? FIRST.length : FIRST.length + 1 + last;
  }

  draw(columns, name) {
    const { headings, rows, colours } = this.table;
    const shown = [...columns].sort((a, b) => a - b);
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, headings[0]),
      shown.map((i) => h("th", { scope: "col", class: "psb-number" }, headings[i])),
    );
    const body = rows.map((row) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, dot(colours?.[row[0]]), row[0]),
        shown.map((i) => h("td", { class: "psb-number" }, row[i])),
      ),
    );
    return h("table", { class: `psb-table ${name}` }, h("thead", {}, head), h("tbody", {}, body));
  }

  dispose() {
    this.observer.disconnect();
  }
}

function dot(colour) {
  const mark = colour && h("i", { class: "psb-dot" });
  if (mark) mark.style.background = colour;
  return mark;
}
