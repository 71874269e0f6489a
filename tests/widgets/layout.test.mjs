// Rows of a timeline, and tables by worker, for a few workers and for many.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bySpeed, layout, MANY, sharesAlong } from "../../widgets/psbench_widgets/js/layout.js";
import { columnsOf, legendOf } from "../../widgets/psbench_widgets/js/legend.js";
import { Recording } from "../../widgets/psbench_widgets/js/recording.js";
import { otherThan } from "../../widgets/psbench_widgets/js/result.js";
import { Strip } from "../../widgets/psbench_widgets/js/strip.js";

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

test("the strip of a run under way has means, and says what it does not know", () => {
  // each second a worker computes for .2 s, and waits
  const seconds = numbers(100).flatMap((t) => [t, t + 0.2]);
  const spans = { start_s: seconds, end_s: [...seconds.slice(1), 100], phase: seconds.map((_, i) => i % 2) };
  const strip = Object.assign(Object.create(Strip.prototype), { gathered: new Map() });
  const piece = (begin, end, whole) => ({
    ...{ begin, end, whole, about: { key: "run 1" }, phases: ["compute", "wait", "switching"] },
    ...{ rows: [[0, seconds.length]], tables: { spans } },
  });
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

test("a run in which no worker waited is not asked what would be if none had", () => {
  const others = (...strategies) => strategies.map((each) => otherThan(each, true));
  assert.deepEqual(others("ssp", "bsp", "asp"), ["asp", "asp", "bsp"]);
  assert.deepEqual([otherThan("ssp", false), otherThan("asp", false)], ["bsp", "bsp"]);
  assert.equal(otherThan("bsp", false), undefined);
});
