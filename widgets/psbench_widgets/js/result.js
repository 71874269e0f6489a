// What came of a run, before all else: four numbers, a sentence, and the question that forks.
import { button, h } from "./dom.js";
import { amount } from "./recording.js";

const CLOCKS = { simulated: "virtual time" };

export class Result {
  // fork(strategy): asks what the run would have been under another strategy from its beginning
  constructor(fork) {
    this.fork = fork;
    this.element = h("section", { class: "psb-result", hidden: true, "aria-label": "result of the run" });
  }

  // run: a line of the table of runs, or none; recording: what is shown of it
  show(run, recording) {
    this.element.hidden = !run || run.time_s === undefined;
    if (this.element.hidden) return;
    const clock = CLOCKS[run.backend] ?? "wall-clock time";
    const epochs = `${amount(run.epochs)} epoch${amount(run.epochs) === "1" ? "" : "s"}`;
    const percent = (share, digits) => `${(100 * share).toFixed(digits)} %`;
    const numbers = [
      run.val_accuracy !== null && ["accuracy", percent(run.val_accuracy, 1), "accuracy reached"],
      ["time", `${amount(run.time_s)} s`, `${clock}, ${epochs}`],
      run.idle !== null && ["waiting", percent(run.idle, 0), "of all time was waiting"],
      run.staleness !== null && ["staleness", run.staleness.toFixed(1), "versions stale (mean)"],
    ];
    const other = run.strategy === "asp" ? "bsp" : "asp";
    const ask = button(`What would ${other.toUpperCase()} have done?`, "psb-link", () => this.fork(other));
    this.element.replaceChildren(
      ...numbers
        .filter(Boolean)
        .map(([name, value, about]) =>
          h("div", { class: `psb-result-${name}` }, h("b", {}, value), h("span", {}, about)),
        ),
      h("p", {}, `${whoWaited(recording)} `, recording.about.can_fork ? ask : ""),
    );
  }
}

function whoWaited({ waiting, workers }) {
  const order = workers.map((_, place) => place).sort((a, b) => waiting[b] - waiting[a] || a - b);
  const [most, least] = [order[0], order.at(-1)];
  const share = (place) => Math.round(100 * waiting[place]);
  if (!share(most)) return "No worker waited.";
  if (share(most) === share(least)) return `Every worker waited ${share(most)} % of its time.`;
  const other = `worker ${workers[least]}`;
  const others = share(least) ? `${other} least, ${share(least)} %` : `${other} never`;
  return `Worker ${workers[most]} waited most, ${share(most)} % of its time; ${others}.`;
}
