// Rows of a timeline, and tables by worker, for a few workers and for many.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bySpeed, layout, MANY, sharesAlong } from "../../widgets/psbench_widgets/js/layout.js";
import { columnsOf, legendOf } from "../../widgets/psbench_widgets/js/legend.js";
import { Recording } from "../../widgets/psbench_widgets/js/recording.js";
import { otherThan } from "../../widgets/psbench_widgets/js/result.js";
import { Strip, thinned } from "../../widgets/psbench_widgets/js/strip.js";

const numbers = (count) => Array.from({ length: count }, (_, i) => i);

test("a few workers have a row each", () => {
  const rows = layout(numbers(MANY), numbers(MANY), [3]);
  assert.deepEqual(
    rows.map((row) => row.worker),
    numbers(MANY),
  );
});

test("many are bands by speed, with the fastest, the slowest and those that are named in full", () => {
  const workers = numbers(500).map((i) => 10 + i);
  const steps = workers.map((_, i) => (i * 7) % 500); // place 0 is the fastest
  const rows = layout(workers, bySpeed(steps), [77, 13]);
  assert.equal(rows.length, 13);
  assert.equal(rows[0].label, "fastest: 10");
  assert.equal(rows[9].worker, workers[steps.indexOf(499)]);
  assert.deepEqual(
    rows.slice(10).map((row) => row.label),
    ["worker 77", "worker 13", ""],
  );
  const bands = rows.slice(1, 9);
  assert.equal(
    bands.reduce((sum, band) => sum + band.count, 0),
    500,
  );
  for (const [i, { places }] of bands.entries()) {
    assert.ok(places.length <= 60);
    for (const place of places) assert.ok(steps[place] >= 62 * i && steps[place] < 63 * (i + 1));
  }
  const ten = layout(numbers(10_000), bySpeed(numbers(10_000)));
  assert.equal(ten.length, rows.length);
});

test("shares of a band are of those that are there", () => {
  const spans = { start_s: [0, 2, 0, 5], end_s: [2, 4, 4, 6], phase: [1, 3, 1, 0] };
  const rows = [
    [0, 2],
    [2, 3],
    [3, 4],
  ];
  const found = [...sharesAlong([0, 1, 2], rows, spans, [1, 3, 4.5, 5.5], 4)].map((share) =>
    Math.round(100 * share),
  );
  assert.deepEqual(found, [0, 67, 0, 0, 0, 33, 0, 33, 0, 0, 0, 0, 33, 0, 0, 0]);
});

const pack = (as, Type, values) => ({ as, data: Buffer.from(new Type(values).buffer).toString("base64") });

test("ten thousand workers are read in one pass, not in one each", () => {
  const count = 10_000;
  const spans = 3;
  const each = numbers(count * spans);
  const time_s = pack(
    "f8",
    Float64Array,
    each.map((i) => i % spans),
  );
  const worker = pack(
    "u2",
    Uint16Array,
    each.map((i) => Math.floor(i / spans)),
  );
  const none = { time_s: pack("f8", Float64Array, []) };
  const tables = {
    spans: {
      worker,
      phase: pack(
        "u1",
        Uint8Array,
        each.map((i) => (i % 2 ? 3 : 1)),
      ),
      start_s: time_s,
      end_s: pack(
        "f8",
        Float64Array,
        each.map((i) => (i % spans) + 1),
      ),
      why: pack(
        "u1",
        Uint8Array,
        each.map(() => 0),
      ),
      waited_for: pack(
        "i4",
        Int32Array,
        each.map(() => -1),
      ),
    },
    clocks: {
      time_s,
      worker,
      clock: pack(
        "u1",
        Uint8Array,
        each.map((i) => i % spans),
      ),
    },
    models: {
      time_s,
      worker,
      version: pack(
        "u1",
        Uint8Array,
        each.map((i) => i % spans),
      ),
    },
    pushes: {
      worker: pack("u1", Uint8Array, []),
      sent_s: none.time_s,
      arrived_s: none.time_s,
      left_s: none.time_s,
      base_version: pack("u1", Uint8Array, []),
      version: pack("i4", Int32Array, []),
    },
    versions: {
      ...none,
      version: pack("u1", Uint8Array, []),
      pushes: pack("u1", Uint8Array, []),
      barrier: pack("u1", Uint8Array, []),
    },
    epochs: { ...none, epoch: pack("u1", Uint8Array, []) },
    compositions: { ...none, index: pack("u1", Uint8Array, []) },
    presence: { ...none, worker: pack("u1", Uint8Array, []), here: pack("u1", Uint8Array, []) },
  };
  const begun = process.cpuUsage();
  const recording = new Recording({
    end_s: spans,
    workers: numbers(count),
    phases: ["pull", "compute", "send", "wait", "cancelled", "switching"],
    whys: [""],
    step_s: pack("f8", Float64Array, numbers(count)),
    waiting: pack("f8", Float64Array, numbers(count)),
    tables,
  });
  const made = process.cpuUsage(begun).user / 1e6;
  const state = recording.at(1.5);
  assert.equal(state.workers.length, count);
  assert.equal(recording.at(spans).workers.length, 0); // a span is over at its end
  assert.deepEqual(
    [state.workers[7].clock, state.workers[7].version, state.workers[7].phase],
    [1, 1, state.workers[7].span % 2 ? "wait" : "compute"],
  );
  // not quadratic in the workers: that took minutes
  assert.ok(made < 10, `${made} s`);
});

test("a legend has as many columns as its words have room for", () => {
  const measure = (word) => 6 * word.length;
  const columns = (words, width) => new Function("width", `return ${columnsOf({ words }, measure)}`)(width);
  const phases = ["computing", "waiting", "model arrives", "gradient leaves", "cancelled"];
  // five words of 53 letters and five symbols of 18 pixels
  assert.deepEqual([columns(phases, 420), columns(phases, 400)], [5, 4]);
  assert.equal(columns(["a", "b", "c", "d", "e", "f"], 150), 6); // short words never wrap where there is room
  assert.equal(columns(["a name of some length", "another one of some length"], 200), 1);
  assert.equal(columns(["alone"], 10), 1);
  const encoding = { color: { legend: { symbolSize: 400 }, scale: { domain: ["a", 1] } } };
  assert.deepEqual(legendOf({ layer: [{}, { encoding }] }), { words: ["a", "1"], symbol: 400 });
});

// The strip of a run under way, and its pieces; workers: what each does, as [phase, start, end] in order.
function gathering(workers) {
  const spans = { start_s: [], end_s: [], phase: [] };
  const rows = workers.map((own) => {
    const first = spans.phase.length;
    for (const [phase, start, end] of own) {
      spans.phase.push(phase);
      spans.start_s.push(start);
      spans.end_s.push(end);
    }
    return [first, spans.phase.length];
  });
  const strip = Object.assign(Object.create(Strip.prototype), { gathered: new Map() });
  const piece = (begin, end, whole) => ({
    ...{ begin, end, whole, about: { key: "run 1" }, phases: ["compute", "wait", "switching"] },
    ...{ rows, tables: { spans } },
  });
  return { strip, piece, parts: () => strip.gathered.get("run 1") };
}

test("the strip of a run under way has means, and says what it does not know", () => {
  // each second a worker computes for .2 s, and waits
  const { strip, piece } = gathering([numbers(100).flatMap((t) => [[0, t, t + 0.2], [1, t + 0.2, t + 1]])]);
  const shares = (whole) =>
    numbers(50).map((i) => strip.share(piece(0, 0, whole), (i * whole) / 50, ((i + 1) * whole) / 50));
  strip.gather(piece(0, 50, 50));
  strip.gather(piece(40, 50, 50)); // which is known
  assert.ok(strip.gathered.get("run 1").times.every((time, i, all) => !i || time > all[i - 1]));
  assert.ok(shares(50).every((share) => Math.abs(share - 0.8) < 0.07));
  strip.gather(piece(99, 100, 100)); // the page has not seen what was between
  const found = shares(100);
  assert.ok(found.slice(0, 25).every((share) => Math.abs(share - 0.8) < 0.07));
  assert.deepEqual([...new Set(found.slice(25, 49))], [null]);
  assert.ok(Math.abs(found[49] - 0.8) < 0.2);
  // between pieces that are close to each other it is like what follows
  strip.gathered.clear();
  for (const end of numbers(100).slice(1)) strip.gather(piece(end - 0.9, end - 0.1, 100));
  assert.ok(shares(100).slice(1, 49).every((share) => share > 0.5 && share < 1));
});

test("a part of the strip is its instants' mean, of waits and of switches", () => {
  // of 16 instants in a second, in the middles of sixteenths, three are within a wait, and four in a switch
  const waits = (sixteenths) => (t) => [
    [1, t, t + sixteenths / 16],
    [0, t + sixteenths / 16, t + 0.5],
    [2, t + 0.5, t + 0.75],
    [0, t + 0.75, t + 1],
  ];
  const { strip, piece, parts } = gathering([3.2, 2.7].map((each) => numbers(200).flatMap(waits(each))));
  strip.gather(piece(0, 0, 200)); // nothing yet
  assert.deepEqual(parts().times, []);
  assert.equal(strip.share(piece(0, 0, 200), 0, 1), null);
  strip.gather(piece(0, 100, 200));
  strip.gather(piece(100, 100, 200)); // nothing new
  strip.gather(piece(150, 200, 200));
  const begins = [...numbers(100), ...numbers(50).map((i) => 150 + i)];
  assert.deepEqual(parts().begins.map(Math.round), begins);
  assert.deepEqual(parts().times.map(Math.round), begins.map((begin) => begin + 1));
  assert.ok(parts().shares.every((share) => Math.abs(share - 7 / 16) < 1e-9));
  // within a part it is known, before it only if little is missing
  const within = (at) => strip.share(piece(0, 0, 200), at, at + 0.1);
  assert.deepEqual([within(0.2), within(120), within(148), within(150.2)].map((share) => share !== null), [
    ...[true, false, false, true],
  ]);
});

test("a long strip is thinned to means of neighbours, and what is missing stays so", () => {
  // in the first second both workers wait and compute in turn, a part each; later one waits
  const part = 1 / 200;
  const turns = numbers(200).map((i) => [i % 2 ? 0 : 1, i * part, (i + 1) * part]);
  const { strip, piece, parts } = gathering([0, 1].map((phase) => [...turns, [phase, 1, 128]]));
  strip.gather(piece(0, 1, 1));
  assert.deepEqual([...new Set(parts().shares)].sort(), [0, 1]);
  for (let whole = 2; whole <= 64; whole *= 2) strip.gather(piece(whole / 2, whole, whole));
  strip.gather(piece(127, 128, 128)); // what was before it was not seen
  const { begins, times, shares } = parts();
  assert.equal(times.length, 401); // of 802
  assert.ok(shares.every((share) => Math.abs(share - 0.5) < 1e-9));
  assert.deepEqual([begins[0], begins[1], times.at(-1)], [0, 2 * part, 128]);
  const before = begins.map((begin, i) => [times[i - 1] ?? 0, begin]);
  const gaps = before.filter(([end, begin]) => end !== begin);
  assert.deepEqual(gaps, [[64, 127]]);
  assert.equal(strip.share(piece(0, 0, 128), 90, 91), null);
  // neighbours count by their lengths, both where parts are thinned and where they are drawn
  const uneven = { begins: [0, 1, 3, 10, 11], times: [1, 3, 4, 11, 12], shares: [0.75, 0, 0.5, 1, 0] };
  const fewer = { begins: [0, 3, 10], times: [3, 4, 12], shares: [0.25, 0.5, 0.5] };
  assert.deepEqual(thinned(uneven, 5), fewer);
  strip.gathered.set("run 1", uneven);
  assert.ok(Math.abs(strip.share(piece(0, 0, 12), 0, 3) - 0.25) < 1e-9);
});

test("a run in which no worker waited is not asked what would be if none had", () => {
  const others = (...strategies) => strategies.map((each) => otherThan(each, true));
  assert.deepEqual(others("ssp", "bsp", "asp"), ["asp", "asp", "bsp"]);
  assert.deepEqual([otherThan("ssp", false), otherThan("asp", false)], ["bsp", "bsp"]);
  assert.equal(otherThan("bsp", false), undefined);
});
