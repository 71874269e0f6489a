// Where things stand in a timeline and in the strip of the whole run below it, and which rows it has: every
// worker, or, where there are many, bands of workers of about one speed.

const NAMES = 134; // pixels for the names of the rows
const TOTALS = 84; // pixels for the share of its time that a worker waits
const ROOMY = 520; // a narrower timeline has room for short names and no totals

// Pixels left and right of what is drawn along time, in a picture so wide.
export const margins = (width) => (width > ROOMY ? { left: NAMES, right: TOTALS } : { left: 64, right: 8 });

export const MANY = 25; // more workers than this are bands
const BANDS = 8;
const SAMPLE = 60; // so many of a band are looked at: more would not be seen
const NAMED = 3; // rows at the foot for the workers that the sentence names or the user has selected

// Places from the fastest worker to the slowest; steps: seconds that a step of each takes.
export const bySpeed = (steps) =>
  Array.from(steps, (_, place) => place).sort((a, b) => steps[a] - steps[b] || a - b);

// workers: their numbers; order: see bySpeed; named: workers to be drawn in full. Returns rows, each of one
// worker ({ worker, place, label }) or of many ({ places, count, label }).
export function layout(workers, order, named = []) {
  const single = (place, label) => ({
    worker: workers[place],
    place,
    label: label ?? `worker ${workers[place]}`,
  });
  if (workers.length <= MANY) return workers.map((_, place) => single(place));
  /** @type {{places?: number[], count?: number, worker?: any, place?: any, label: any}[]} */
  const rows = [single(order[0], `fastest: ${workers[order[0]]}`)];
  for (let i = 0; i < BANDS; i++) {
    const [first, stop] = [i, i + 1].map((part) => Math.round((part * order.length) / BANDS));
    const places = order.slice(first, stop);
    const every = Math.ceil(places.length / SAMPLE);
    const share = (part) => Math.round((100 * part) / BANDS);
    const end = { 0: "fastest", [BANDS - 1]: "slowest" }[i];
    const part = `${end ? share(1) : `${share(i)}–${share(i + 1)}`}\u00a0%`;
    rows.push({
      places: places.filter((_, k) => k % every === 0),
      count: places.length,
      label: end ? `${end} ${part}` : part,
    });
  }
  rows.push(single(order.at(-1), `slowest: ${workers[order.at(-1)]}`));
  const below = [...new Set(named)].map((worker) => workers.indexOf(worker)).filter((place) => place >= 0);
  for (let i = 0; i < NAMED; i++)
    rows.push(i < below.length ? single(below[i]) : { places: [], count: 0, label: "" });
  return rows;
}

// The shares of phases among workers at rising times, one list after the other: at [time * phases + phase].
// `rows` are [first, last + 1] of each place's spans, which are in order; a worker that is not there counts
// for no phase.
export function sharesAlong(places, rows, { start_s, end_s, phase }, times, phases) {
  const found = new Float64Array(times.length * phases);
  for (const place of places) {
    const [first, stop] = rows[place];
    let [low, high] = [first, stop]; // the first span that ends after the first time
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end_s[middle] <= times[0]) low = middle + 1;
      else high = middle;
    }
    for (let i = 0, k = low; i < times.length && k < stop; i++) {
      while (k < stop && end_s[k] <= times[i]) k++;
      if (k < stop && start_s[k] <= times[i]) found[i * phases + phase[k]] += 1 / places.length;
    }
  }
  return found;
}
