// The table of runs: filtered, sorted, grouped, hidden, and what can be done to each.
import { button, dot, h, select, svg } from "./dom.js";
import { popover } from "./popover.js";
import { amount, percent } from "./recording.js";

const isNone = (value) => value === null || value === undefined;
const share = (value, digits) => (isNone(value) ? "–" : percent(value, digits));
const COLUMNS = [
  { key: "number", head: "#", number: true },
  { key: "label", head: "run" },
  { key: "val_accuracy", head: "accuracy", number: true },
  { key: "time_s", head: "time", number: true },
  { key: "idle", head: "waiting", number: true },
  { key: "about", head: "of", lesser: true },
  { key: "status", head: "status" },
];
const [WIDE, HIGH] = [74, 20]; // pixels of a curve beside its run
const GROUPS = {
  "": "no groups",
  strategy: "by strategy",
  about: "by data and cluster",
  status: "by status",
  backend: "by backend",
};

export class RunsTable {
  constructor(send) {
    this.send = send;
    this.runs = [];
    this.hidden = new Set();
    this.sort = { key: "", down: false };
    this.filter = h("input", {
      type: "search",
      class: "psb-input psb-runs-filter",
      placeholder: "filter",
      "aria-label": "filter runs",
      spellcheck: "false",
      oninput: () => this.draw(),
    });
    this.group = select(Object.entries(GROUPS), {
      class: "psb-select psb-runs-group",
      "aria-label": "group runs",
      onchange: () => this.draw(),
    });
    const unhide = () => {
      this.hidden.clear();
      this.draw();
    };
    this.unhide = button("", "psb-small psb-unhide", unhide, { hidden: true });
    this.tools = h(
      "div",
      { class: "psb-line psb-runs-tools", hidden: true },
      this.filter,
      this.group,
      this.unhide,
    );
    this.place = h("div", { class: "psb-scroll" });
    this.element = h("div", { class: "psb-runs-place" }, this.tools, this.place);
    this.draw();
  }

  show(runs) {
    this.runs = runs;
    // typing a name is not interrupted
    if (
      this.place.contains(document.activeElement) &&
      document.activeElement.classList.contains("psb-name")
    ) {
      this.late = true;
      return;
    }
    this.draw();
  }

  draw() {
    this.late = false;
    this.tools.hidden = !this.runs.length;
    if (!this.runs.length)
      return this.place.replaceChildren(h("p", { class: "psb-empty" }, "Finished runs appear here."));
    this.unhide.hidden = !this.hidden.size;
    this.unhide.textContent = `show ${this.hidden.size} hidden`;
    const words = this.filter.value.trim().toLowerCase();
    let shown = this.runs.filter(
      (run) =>
        !this.hidden.has(run.number) &&
        `${run.label} ${run.about} ${run.strategy} ${run.status} ${run.backend} seed ${run.seed}`
          .toLowerCase()
          .includes(words),
    );
    const { key, down } = this.sort;
    if (key) shown = shown.toSorted((a, b) => (down ? -1 : 1) * compare(a[key], b[key]));
    const group = this.group.value;
    const groups = group ? [...new Set(shown.map((run) => run[group]))] : [null];
    const body = groups.flatMap((name) => [
      ...(name === null
        ? []
        : [
            h(
              "tr",
              { class: "psb-run-group" },
              h("th", { colspan: COLUMNS.length + 2, scope: "rowgroup" }, name),
            ),
          ]),
      ...shown
        .filter((run) => name === null || run[group] === name)
        .flatMap((run) => [this.row(run), ...notes(run, COLUMNS.length + 2)]),
    ]);
    const heads = COLUMNS.map((column) =>
      h(
        "th",
        {
          scope: "col",
          class: `${column.lesser ? "psb-lesser" : ""} ${column.number ? "psb-number" : ""}`,
          "aria-sort": key === column.key ? (down ? "descending" : "ascending") : undefined,
        },
        button(column.head + (key === column.key ? (down ? " ▾" : " ▴") : ""), "psb-sort", () =>
          this.sortBy(column.key),
        ),
      ),
    );
    this.place.replaceChildren(
      h(
        "table",
        { class: "psb-table psb-runs" },
        h("thead", {}, h("tr", {}, h("td", {}), heads, h("td", {}))),
        h("tbody", {}, body),
      ),
    );
  }

  sortBy(key) {
    this.sort =
      this.sort.key !== key
        ? { key, down: false }
        : this.sort.down
          ? { key: "", down: false }
          : { key, down: true };
    this.draw();
  }

  row(run) {
    const over = !["queued", "running"].includes(run.status);
    const tick = h("input", {
      type: "checkbox",
      class: "psb-tick",
      checked: run.ticked,
      disabled: !run.can_compare,
      "aria-label": `compare run ${run.label}`,
    });
    tick.onchange = () => this.send({ kind: "tick", number: run.number, on: tick.checked });
    // text that wraps: a long name is not cut off in a narrow table
    const name = h(
      "span",
      {
        class: "psb-name",
        contenteditable: "plaintext-only",
        role: "textbox",
        "aria-label": `name of run ${run.number}`,
        title: `${run.whole_name ?? run.label}\n(type to rename)`,
        spellcheck: "false",
        tabindex: "0",
      },
      run.label,
    );
    name.onkeydown = (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      name.blur();
    };
    name.onblur = () => {
      if (name.textContent.trim() !== run.label)
        this.send({ kind: "rename", number: run.number, name: name.textContent });
      if (this.late) this.draw();
    };
    const act = (text, kind, title, shownWhen) =>
      shownWhen &&
      button(text, `psb-act psb-do-${kind}`, () => this.send({ kind, number: run.number }), { title });
    const leaveOut = () => {
      this.hidden.add(run.number);
      this.draw();
    };
    const hide = button("hide", "psb-act", leaveOut, {
      title: "Hide this run in the table; it is still compared if it is ticked",
    });
    const what = { role: "group", "aria-label": `actions of run ${run.number}` };
    const acts = popover(
      h(
        "details",
        { class: "psb-acts" },
        h("summary", { "aria-label": `actions of run ${run.number}`, title: "actions" }, "⋯"),
        h(
          "div",
          { class: "psb-popped", ...what },
          h("div", { class: "psb-muted psb-run-about" }, `${run.about}; seed ${run.seed}; ${run.backend}`),
          act("show", "show", "Show this run's charts", run.can_compare),
          act("show beside", "beside", "Show it beside the current run, on one time axis", run.can_compare),
          act("use its settings", "settings", "Use these settings again", true),
          act("its Python", "python", "Show the Python code of this run", true),
          act("stop", "stop", "Stop or cancel this run", !over),
          act("leave", "leave", "Stop following this run; it goes on", !over && run.detached),
          over && hide,
          act("remove", "remove", "Remove this run from the table", over),
        ),
      ),
    );
    return h(
      "tr",
      {
        "data-number": run.number,
        "data-status": run.status,
        title: run.digest ? `seed ${run.seed}, ${run.reason ?? ""}\ndigest ${run.digest}` : "",
      },
      h("td", { class: "psb-tick-cell" }, tick),
      h("td", { class: "psb-number psb-muted" }, run.number),
      h("td", {}, h("div", { class: "psb-named" }, dot(`run ${run.number}`), name, sparkline(run))),
      h("td", { class: "psb-number psb-result-cell" }, share(run.val_accuracy, 1)),
      h("td", { class: "psb-number" }, isNone(run.time_s) ? "–" : `${amount(run.time_s)} s`),
      h("td", { class: "psb-number" }, share(run.idle)),
      h("td", { class: "psb-muted psb-lesser" }, run.about),
      h("td", {}, h("span", { class: `psb-status-word psb-is-${run.status}` }, run.status)),
      h("td", {}, acts),
    );
  }
}

// The accuracy along the run, from 0 to 1.
function sparkline({ curve = [], colour, number }) {
  if (curve.length < 2) return "";
  const at = (value, i) => `${(i / (curve.length - 1)) * WIDE},${(1 - value) * (HIGH - 2) + 1}`;
  const line = svg("polyline", { points: curve.map(at).join(" "), fill: "none", "stroke-width": 1.5 });
  line.style.stroke = colour.includes("--psb-line") ? "var(--psb-muted)" : colour;
  const size = { width: WIDE, height: HIGH, viewBox: `0 0 ${WIDE} ${HIGH}` };
  return svg(
    "svg",
    { class: "psb-sparkline", role: "img", "aria-label": `accuracy along run ${number}`, ...size },
    line,
  );
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

function notes(run, span) {
  const lines = (run.warnings ?? []).map((text) => h("div", { class: "psb-warning" }, text));
  if (run.same_as) lines.unshift(h("div", { class: "psb-muted psb-same" }, `the same run as ${run.same_as}`));
  if (run.error) {
    const last = run.error.trim().split("\n").at(-1);
    const whole = h("pre", { tabindex: "0" }, run.error);
    lines.push(h("details", { class: "psb-traceback" }, h("summary", {}, last), whole));
  }
  return lines.length
    ? [h("tr", { class: "psb-note-row" }, h("td", {}), h("td", { colspan: span - 1 }, lines))]
    : [];
}
