// The text alternative of a chart: its rows as a table, thinned to what can be read.
import { h } from "./dom.js";

const MOST = 60; // rows; a screen reader walks through them one by one

const format = (value) => {
  if (value === null || value === undefined) return "";
  return typeof value === "number" && !Number.isInteger(value)
    ? String(Number(value.toPrecision(5)))
    : String(value);
};

export function table(name, rows) {
  const step = Math.max(1, Math.ceil(rows.length / MOST));
  const kept = rows.filter((_, i) => i % step === 0 || i === rows.length - 1);
  const columns = Object.keys(rows[0]);
  const thinned = step > 1 ? `, every ${step}th shown` : "";
  return h(
    "table",
    { class: "psb-table" },
    h("caption", {}, `${rows.length} rows of ${name}${thinned}`),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((column) => h("th", { scope: "col" }, column.replaceAll("_", " "))),
      ),
    ),
    h(
      "tbody",
      {},
      kept.map((row) =>
        h(
          "tr",
          {},
          columns.map((column) => h("td", {}, format(row[column]))),
        ),
      ),
    ),
  );
}
