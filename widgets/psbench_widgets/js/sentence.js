// What is said of a moment: who waits for whom, why, and what ends it. It is about the longest wait.
import { duration } from "./recording.js";

const NAMED = 4; // workers; more are counted

// Returns [what is so, more about it]. `chosen`: the worker that is asked about, or null; `ended`: whether
// the moment is after the end (s) of this run; `running`: whether it goes on; `shown(time)`: as the clock
// shows it.
export function sentence(state, { chosen, ended, running, end, shown }) {
  if (ended) return [`This run has ended, at ${shown(end)} s.`, ""];
  const gone = state.gone.slice(0, 3).map(({ worker, since }) => left(worker, shown(since), state));
  const waits = state.workers.filter((w) => w.waits && (chosen === null || w.worker === chosen));
  if (!waits.length) {
    const who = chosen === null ? "No worker" : `Worker ${chosen}`;
    const not = chosen === null ? "" : "not ";
    return [`${who} is ${not}waiting.`, [`The newest version is ${state.version}.`, ...gone].join(" ")];
  }
  const longest = waits.reduce((most, each) => (each.lasts > most.lasts ? each : most));
  const together = waits.filter((each) => each.waitedFor === longest.waitedFor);
  const whom = longest.waitedFor === null ? "" : ` for worker ${longest.waitedFor}`;
  const [who, are] = names(together.map((each) => each.worker));
  const it = together.length > 1 ? `Worker ${longest.worker} waits longest,` : "It waits";
  // what ends with the log of a run under way has not ended
  const isOpen = longest.until >= end;
  const lasts = duration(isOpen && running ? state.time - (longest.until - longest.lasts) : longest.lasts);
  const until = !isOpen ? " in all" : running ? " so far" : ", until the run ends";
  const others = waits.length - together.length;
  const too = others ? [`${others} more worker${others > 1 ? "s wait" : " waits"}.`] : [];
  const then = isOpen ? [] : [ending(longest, together, state.time)];
  return [
    `${who} ${are} waiting${whom}.`,
    [`${it} ${lasts}${until}: ${longest.reason}.`, ...then, ...too, ...gone].join(" "),
  ];
}

// When the longest wait ends, by what, and who of those that wait for the same worker goes on then.
function ending({ until, waitedFor, end }, together, now) {
  const when = `in ${duration(until - now)}`;
  if (!end) return `The wait ends ${when}.`;
  if (!end.arrives) return `Worker ${waitedFor} ends its step ${end.step} ${when}, and the exchange begins.`;
  return `Worker ${waitedFor}'s step ${end.step} arrives ${when}${afterwards(until, together)}.`;
}

function afterwards(until, together) {
  const free = together.filter((each) => each.until === until && each.goesOn);
  if (!free.length || together.length === 1) return " and ends the wait";
  const all = free.length === 2 ? "both" : `all ${free.length}`;
  if (free.length === together.length) return `; then ${all} go on`;
  const [who] = names(free.map((each) => each.worker));
  return `; then ${who.toLowerCase()} go${free.length > 1 ? "" : "es"} on`;
}

function names(workers) {
  if (workers.length === 1) return [`Worker ${workers[0]}`, "is"];
  if (workers.length > NAMED) return [`${workers.length} workers`, "are"];
  return [`Workers ${workers.slice(0, -1).join(", ")} and ${workers.at(-1)}`, "are"];
}

function left(worker, since, state) {
  const others = state.workers.length ? "; the others continue" : "";
  return `Worker ${worker} has been gone since ${since} s${others}.`;
}
