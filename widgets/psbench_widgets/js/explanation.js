// "Why is B worse?": a question about two runs, its progress, and the answer with the runs behind it.
import { button, h, select } from "./dom.js";

const SEEDS = 5; // one seed is no answer

export class Explanation {
  // send(message): to the panel, of kinds "why", "why-cancel" and "why-open"
  constructor(send) {
    this.send = send;
    this.mine = select([], { class: "psb-select psb-explain-run", "aria-label": "run to explain" });
    const other = { class: "psb-select psb-explain-other", "aria-label": "run to compare it with" };
    this.other = select([], other);
    this.seeds = h("input", {
      ...{ class: "psb-input psb-explain-seeds", type: "number", min: "1", max: "50", value: SEEDS },
      "aria-label": "number of seeds",
      title: "the runs of further seeds are made; one seed is no answer",
    });
    const ask = () =>
      this.send({
        ...{ kind: "why", number: Number(this.mine.value), against: Number(this.other.value) },
        seeds: Number(this.seeds.value),
      });
    this.ask = button("Explain", "psb-button psb-explain-ask", ask, {
      title: "Train the first run's schedule again, with one cause at a time taken from the second",
    });
    this.cancel = button("Cancel", "psb-button psb-explain-cancel", () => this.send({ kind: "why-cancel" }), {
      title: "Stop answering",
      hidden: true,
    });
    this.meter = h("div", { class: "psb-meter-fill" });
    const bar = { role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" };
    this.progress = h(
      "div",
      { class: "psb-meter", hidden: true, "aria-label": "progress of the explanation", ...bar },
      this.meter,
    );
    this.words = h("p", { class: "psb-explain-words psb-muted", role: "status" });
    this.sentence = h("div", { class: "psb-explain-sentence" });
    this.charts = h("div", { class: "psb-explain-chart" });
    this.tables = h("div", { class: "psb-explain-tables" });
    this.element = h(
      "section",
      { class: "psb-explain", hidden: true },
      h("h3", {}, "Why is a run worse than another?"),
      h(
        "div",
        { class: "psb-line" },
        h("label", {}, "Why is ", this.mine),
        h("label", {}, " not like ", this.other),
        h("label", {}, "seeds ", this.seeds),
        this.ask,
        this.cancel,
      ),
      this.progress,
      this.words,
      this.sentence,
      this.charts,
      this.tables,
    );
  }

  // Runs that are over can be asked about; the picks stay as long as their runs are there.
  offer(runs) {
    const over = runs.filter((run) => run.can_compare && run.strategy).sort((a, b) => a.number - b.number);
    this.element.hidden = over.length < 2;
    const picked = [this.mine.value, this.other.value];
    for (const [place, field] of [this.mine, this.other].entries()) {
      field.replaceChildren(
        ...over.map(({ number, label }) => h("option", { value: number }, `${number}: ${label}`)),
      );
      // a run is not compared with itself, as the first one would be that was there alone
      const free = !place || picked[place] !== this.mine.value;
      const kept = free && over.some(({ number }) => String(number) === picked[place]);
      field.value = kept ? picked[place] : String(over[Math.min(place, over.length - 1)]?.number ?? "");
    }
  }

  show({ state, words, fraction, question, sentence, causes, joint, remarks, runs }) {
    const running = state === "running";
    this.ask.disabled = running;
    this.cancel.hidden = !running;
    this.progress.hidden = !running;
    this.meter.style.width = `${100 * (fraction ?? 0)}%`;
    this.progress.setAttribute("aria-valuenow", String(Math.round(100 * (fraction ?? 0))));
    this.words.textContent = words ?? "";
    this.words.classList.toggle("psb-wrong", state === "refused");
    this.element.dataset.state = state ?? "";
    const answered = state === "answered";
    this.sentence.replaceChildren(...(answered ? [h("b", {}, question), " ", sentence] : []));
    this.tables.replaceChildren(...(answered ? this.below(causes, joint, remarks, runs) : []));
  }

  below(causes, joint, remarks, [headings, rows]) {
    const open = (_, place) =>
      button("open", "psb-small", () => this.send({ kind: "why-open", place }), {
        "aria-label": `open ${rows[place][0]}`,
        title: "Add this run to the table, and show it",
      });
    return [
      h("div", { class: "psb-scroll" }, grid(...causes)),
      h(
        "ul",
        { class: "psb-remarks" },
        remarks.map((text) => h("li", {}, text)),
      ),
      joint[1].length ? h("div", { class: "psb-scroll" }, grid(...joint)) : "",
      h(
        "details",
        { class: "psb-explain-runs" },
        h("summary", {}, `The ${rows.length} runs behind it`),
        h(
          "div",
          { class: "psb-scroll" },
          grid(
            [...headings, ""],
            rows.map((row, place) => [...row, open(row, place)]),
          ),
        ),
      ),
    ];
  }
}

function grid(headings, rows) {
  const cell = (text, i) =>
    i ? h("td", { class: "psb-number" }, text) : h("th", { scope: "row" }, text);
  return h(
    "table",
    { class: "psb-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        headings.map((text, i) => h("th", { scope: "col", class: i ? "psb-number" : null }, text)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) => h("tr", {}, row.map(cell))),
    ),
  );
}
