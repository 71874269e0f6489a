// What came of a run, before all else: four numbers, a sentence, and the question that forks.
import { button, h } from "./dom.js";
import { amount, percent } from "./recording.js";
import { TERMS } from "./terms.js";

const OTHERS = { asp: "no worker waited (ASP)", bsp: "all waited for all (BSP)" };
const IN_SHORT = { asp: "no waiting", bsp: "all wait for all" };
const CLOCKS = { simulated: "virtual time" };

export class Result {
  // fork(strategy): asks what the run would have been under another strategy from its beginning
  constructor(fork) {
    this.fork = fork;
    this.element = h("section", { class: "psb-result", hidden: true, "aria-label": "result of the run" });
  }

  // run: a line of the table of runs, or none; recording: what is shown of it; other: the line of the run
  // beside it, or none
  show(run, recording, other) {
    this.element.hidden = !run || run.time_s === undefined;
    if (this.element.hidden) return;
    const clock = CLOCKS[run.backend] ?? "wall-clock time";
    const epochs = `${amount(run.epochs)} epoch${amount(run.epochs) === "1" ? "" : "s"}`;
    const numbers = [
      run.val_accuracy !== null && ["accuracy", percent(run.val_accuracy, 1), "accuracy reached"],
      ["time", `${amount(run.time_s)} s`, `${clock}, ${epochs}`],
      run.idle !== null && ["waiting", percent(run.idle), "of time spent waiting"],
      run.staleness !== null && ["staleness", run.staleness.toFixed(1), "updates missed (mean)"],
    ];
    const waited = whoWaited(recording);
    const next = otherThan(run.strategy, waited !== NONE);
    const ask = next && button(`What if ${OTHERS[next]}?`, "psb-link", () => this.fork(next));
    this.element.replaceChildren(
      ...numbers
        .filter(Boolean)
        .map(([name, value, about]) => {
          const none = /^0\s%/.test(value) ? " psb-none" : "";
          const place = { class: `psb-result-${name}${none}`, title: TERMS[name] };
          return h("div", place, h("b", {}, value), h("span", {}, about));
        }),
      other && other.time_s !== undefined
        ? h("p", {}, h("b", {}, called(other)), ` ${inShort(other, run)}`)
        : h("p", {}, `${waited} `, recording.about.can_fork && ask),
    );
  }
}

// The strategy of the question what would have been otherwise; none where it would be no other.
export function otherThan(strategy, anyWaited) {
  const other = anyWaited && strategy !== "asp" ? "asp" : "bsp";
  return other === strategy ? undefined : other;
}

// Of a fork, what is otherwise: what was so before stands beside it.
function called({ label }) {
  const change = label.split(" -> ").at(-1);
  const words = IN_SHORT[change.split(" ")[0]];
  return `${change}${words ? ` (${words})` : ""}:`;
}

// The same numbers of the run beside it, in one sentence, and what came of older or newer gradients.
function inShort(run, beside) {
  const { val_accuracy: accuracy, time_s: time, idle, staleness } = run;
  const numbers = [
    accuracy !== null && `${percent(accuracy, 1)} in`,
    `${amount(time)}\u00a0s,`,
    idle !== null && `${percent(idle)} of all time waiting,`,
    staleness !== null && `${staleness.toFixed(1)} updates missed per gradient${trade(run, beside)}`,
  ];
  return `${numbers.filter(Boolean).join(" ").replace(/,$/, "")}.`;
}

const AS_STALE = 0.5; // versions; means that differ by less are called the same
const AS_ACCURATE = 1; // percentage points, as far as one run of each can tell

function trade({ val_accuracy: accuracy, staleness }, beside) {
  const older = staleness - beside.staleness;
  if (accuracy === null || beside.val_accuracy === null || beside.staleness === null) return "";
  if (Math.abs(older) < AS_STALE) return "";
  const points = 100 * (accuracy - beside.val_accuracy);
  const by = `${Math.abs(points).toFixed(1)} points ${points < 0 ? "less" : "more"}`;
  return `: ${older > 0 ? "staler" : "fresher"}, and ${Math.abs(points) < AS_ACCURATE ? "as" : by} accurate`;
}

const ALIKE = 0.1; // shares of waiting that differ by less are reported together
const NAMED = 4; // workers; more are counted
const NONE = "No worker waited.";

function whoWaited({ waiting, workers }) {
  const order = workers.map((_, place) => place).sort((a, b) => waiting[b] - waiting[a] || a - b);
  const rounded = (place) => Math.round(100 * waiting[place]);
  const [most, least] = [order[0], order.at(-1)];
  if (!rounded(most)) return NONE;
  const together = order.filter((place) => waiting[place] > waiting[most] - ALIKE).sort((a, b) => a - b);
  const lowest = Math.min(...together.map(rounded));
  const highest = percent(waiting[most]);
  const range = lowest < rounded(most) ? `${lowest} to ${highest}` : highest;
  const all = together.length === workers.length;
  const many = `${together.length} of ${workers.length} workers`;
  const named = names(together.map((place) => workers[place]));
  const who = all ? "Every worker" : together.length > NAMED ? many : named;
  const sentence = `${who} waited ${range} of ${all || together.length === 1 ? "its" : "their"} time`;
  if (all) return `${sentence}.`;
  const other = `worker ${workers[least]}`;
  return `${sentence}; ${other} ${rounded(least) ? `least, ${percent(waiting[least])}` : "never"}.`;
}

function names(workers) {
  if (workers.length === 1) return `Worker ${workers[0]}`;
  return `Workers ${workers.slice(0, -1).join(", ")} and ${workers.at(-1)}`;
}
