// What came of a run, before all else: four numbers, a sentence, and the question that forks.
import { button, dot, h, inShort } from "./dom.js";
import { amount, percent } from "./recording.js";
import { TERMS } from "./terms.js";

const OTHERS = { asp: "no worker waited (ASP)", bsp: "all waited for all (BSP)" };
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
    const runs = [run, other].filter((each) => each && each.time_s !== undefined);
    const numbers = NUMBERS.map(({ name, value, about }) => {
      const values = runs.map((each) => value(each));
      if (!values.every(Boolean)) return null;
      const shown = values.map((each, i) => numberOf(each, runs.length > 1 && runs[i]));
      const place = { class: `psb-result-${name}`, title: TERMS[name] };
      return h("div", place, shown, h("span", {}, about(runs)));
    });
    const words = runs.length > 1 ? both(run, other) : this.alone(run, recording);
    this.element.replaceChildren(...numbers.filter(Boolean), words);
  }

  // Who waited, and the question.
  alone(run, recording) {
    const waited = whoWaited(recording);
    const next = otherThan(run.strategy, waited !== NONE);
    const ask = next && button(`What if ${OTHERS[next]}?`, "psb-link", () => this.fork(next));
    return h("p", {}, `${waited} `, recording.about.can_fork && ask);
  }
}

// Large numbers: what each is in a run, and the words below it.
const NUMBERS = [
  {
    name: "accuracy",
    value: ({ val_accuracy: share }) => share !== null && percent(share, 1),
    about: () => "accuracy reached",
  },
  { name: "time", value: ({ time_s }) => `${amount(time_s)} s`, about: clockOf },
  {
    name: "waiting",
    value: ({ idle }) => idle !== null && percent(idle),
    about: () => "of time spent waiting",
  },
  {
    name: "staleness",
    value: ({ staleness }) => staleness !== null && staleness.toFixed(1),
    about: () => "updates missed (mean)",
  },
];

// The clock of the runs, and their epochs, if all have as many.
function clockOf(runs) {
  const clock = [...new Set(runs.map(({ backend }) => CLOCKS[backend] ?? "wall-clock time"))].join(" and ");
  const [epochs, other = epochs] = runs.map((run) => amount(run.epochs));
  return epochs === other ? `${clock}, ${epochs} epoch${epochs === "1" ? "" : "s"}` : clock;
}

function numberOf(value, run) {
  const none = /^0\s%/.test(value) ? "psb-none" : undefined;
  return h("b", { class: none, title: run ? run.label : undefined }, run && dot(`run ${run.number}`), value);
}

// The strategy of the question what would have been otherwise; none where it would be no other.
export function otherThan(strategy, anyWaited) {
  const other = anyWaited && strategy !== "asp" ? "asp" : "bsp";
  return other === strategy ? undefined : other;
}

// Which number is whose; of a fork, what is otherwise: what was so before stands beside it.
function both(run, other) {
  const change = other.label.split(" -> ").at(-1);
  const name = ({ number }, text) => h("span", {}, dot(`run ${number}`), text);
  const against = `${inShort(change)}${trade(other, run)}`;
  return h("p", {}, name(run, inShort(run.label)), " ", name(other, against));
}

const AS_STALE = 0.5; // versions; means that differ by less are called the same
const AS_ACCURATE = 1; // percentage points, as far as one run of each can tell

// What came of older or newer gradients.
function trade({ val_accuracy: accuracy, staleness }, beside) {
  if ([accuracy, beside.val_accuracy, staleness, beside.staleness].includes(null)) return "";
  const older = staleness - beside.staleness;
  if (Math.abs(older) < AS_STALE) return "";
  const points = 100 * (accuracy - beside.val_accuracy);
  const by = `${Math.abs(points).toFixed(1)} points ${points < 0 ? "less" : "more"}`;
  return `: ${older > 0 ? "staler" : "fresher"}, and ${Math.abs(points) < AS_ACCURATE ? "as" : by} accurate.`;
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
