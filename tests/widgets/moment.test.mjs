// The moment in the page: what is answered from the piece that is here, and what is asked for.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Moment } from "../../widgets/psbench_widgets/js/moment.js";
import { Announcer } from "../../widgets/psbench_widgets/js/announcer.js";
import { sentence } from "../../widgets/psbench_widgets/js/sentence.js";

// A run in which something happens every second, as the piece of it from `begin` to `end`.
function piece(begin, end, whole, key = "run 1") {
  const next = (_kind, time, back) => {
    const found = back ? Math.ceil(time) - 1 : Math.floor(time) + 1;
    return found >= Math.max(1, begin) && found <= end && found < whole ? found : null;
  };
  return { about: { key }, begin, end, whole, next };
}

class Asking extends Moment {
  constructor() {
    const questions = [];
    let clock = 0;
    super({ ask: (at) => questions.push(at), seek: (what) => questions.push(what), clock: () => clock });
    this.questions = questions;
    this.wait = (ms) => (clock += ms);
  }
}

test("the newest rows move the moment until the user moves away", () => {
  const moment = new Asking();
  moment.take([piece(0, 10, 10)], { live: true });
  assert.equal(moment.take([piece(10, 20, 20)], { live: true }), "piece");
  assert.deepEqual([moment.now, moment.questions], [20, []]);
  moment.follow = false;
  moment.go(3);
  assert.equal(moment.isLoaded(), false);
  assert.deepEqual(moment.questions, [3]);
  // newer rows come before the answer, and after it
  assert.equal(moment.take([piece(20, 30, 30)], { live: true }), "length");
  assert.equal(moment.isLoaded(), false);
  assert.equal(moment.take([piece(0, 9, 30)], { live: true, at: 3 }), "piece");
  assert.equal(moment.take([piece(30, 40, 40)], { live: true }), "length");
  assert.deepEqual([moment.now, moment.whole, moment.isLoaded()], [3, 40, true]);
  // at the end of the run, too
  assert.equal(moment.take([piece(35, 45, 45)], { live: false }), "length");
  assert.deepEqual([moment.now, moment.isLoaded()], [3, true]);
});

test("the next piece is asked for near an edge, and none before the first or after the last", () => {
  for (const [begin, end, at, asked] of [
    [0, 10, 0.5, []],
    [0, 10, 5, []],
    [0, 10, 9, [9]],
    [50, 60, 51, [51]],
    [90, 100, 99.5, []],
  ]) {
    const moment = new Asking();
    moment.take([piece(begin, end, 100)], { at: 55 });
    moment.questions.length = 0;
    moment.go(at);
    assert.deepEqual(moment.questions, asked);
  }
});

test("a wait that the log ends with goes on, or lasts until the run ends", () => {
  const wait = { worker: 0, waits: true, waitedFor: null, lasts: 2, until: 10, reason: "barrier" };
  const state = { time: 9, version: 3, workers: [wait], gone: [] };
  const said = (options) =>
    sentence(state, {
      ...{ chosen: null, ended: false, running: false, end: 10, shown: (time) => time.toFixed(1) },
      ...options,
    });
  assert.deepEqual(said({ running: true }), ["Worker 0 is waiting.", "It waits 1 s so far: barrier."]);
  assert.equal(said({})[1], "It waits 2 s, until the run ends: barrier.");
  assert.equal(said({ end: 11 })[1], "It waits 2 s in all: barrier. The wait ends in 1 s.");
});

test("who goes on when a push ends waits: those whose wait ends then, and who do not wait again", () => {
  const wait = { waits: true, waitedFor: 3, lasts: 2, until: 10, reason: "bound" };
  const of = (worker, more) => ({ worker, ...wait, ...more });
  const push = { step: 5, arrives: true };
  const ends = (...workers) => {
    const state = { time: 9, version: 3, workers, gone: [] };
    const how = { chosen: null, ended: false, running: false, end: 11, shown: String };
    return sentence(state, how)[1].split("arrives in 1 s")[1];
  };
  const free = (worker) => of(worker, { goesOn: true, end: push });
  assert.equal(ends(free(0)), " and ends the wait.");
  assert.equal(ends(free(0), free(1)), "; then both go on.");
  assert.equal(ends(free(0), free(1), free(2)), "; then all 3 go on.");
  assert.equal(ends(free(0), { ...free(1), until: 10.5 }), "; then worker 0 goes on.");
  assert.equal(ends(free(0), free(1), of(2, { goesOn: false, end: push })), "; then workers 0 and 1 go on.");
  const other = of(4, { waitedFor: 5, goesOn: true });
  assert.equal(ends(free(0), free(1), other), "; then both go on. 1 more worker waits.");
});

test("what the piece does not know is asked of the whole log", () => {
  const moment = new Asking();
  moment.take([piece(50, 60, 100)], {});
  moment.go(55);
  assert.equal(moment.step("event"), true);
  assert.equal(moment.now, 56);
  assert.equal(moment.step("event", false, -1), undefined); // the first of all
  assert.deepEqual(moment.questions, [{ step: "event", at: -1, back: false }]);
  assert.equal(moment.step("event"), undefined); // one question at a time
  moment.take([piece(0, 10, 100)], { at: 1, sought: "event" });
  assert.deepEqual([moment.now, moment.isLoaded()], [1, true]);
  assert.equal(moment.step("event", true), false); // there is none before the first
  const last = new Asking();
  last.take([piece(90, 100, 100)], {});
  last.go(99);
  assert.equal(last.step("event"), false);
});

test("a long run without a wait is shown where the moment is, wherever that was moved to", () => {
  const moment = new Asking();
  moment.take([piece(0, 1, 1)], { live: true });
  // at the end of a run that is followed its last piece is here, and no other is asked for
  assert.equal(moment.take([piece(90, 100, 100)], {}), "piece");
  assert.ok(moment.recordings[0].begin > 0);
  assert.deepEqual([moment.isLoaded(), moment.questions], [true, []]);
  assert.equal(moment.step("wait", false, -1), undefined);
  moment.go(5); // while it is looked for
  assert.deepEqual([moment.isLoaded(), moment.questions.length], [false, 1]);
  moment.nowhere();
  assert.deepEqual(moment.questions.slice(1), [5]);
  moment.take([piece(0, 10, 100)], { at: 5 });
  assert.deepEqual([moment.now, moment.isLoaded()], [5, true]);
  moment.nowhere();
  assert.equal(moment.questions.length, 2);
});

test("the next piece is fetched ahead, once", () => {
  const moment = new Asking();
  moment.take([piece(50, 60, 100)], {});
  moment.go(55);
  assert.deepEqual(moment.questions, []);
  moment.go(58.5);
  moment.go(58.6);
  assert.deepEqual(moment.questions, [58.5]);
  moment.take([piece(54, 64, 100)], { at: 58.5 });
  moment.go(55.5);
  assert.deepEqual(moment.questions, [58.5, 55.5]); // backwards
  moment.wait(5000); // an answer was lost
  moment.go(55.4);
  assert.deepEqual(moment.questions, [58.5, 55.5, 55.4]);
});

test("a long run is stepped through from end to end", () => {
  const moment = new Asking();
  const whole = 20_001;
  const around = (at) => [piece(Math.max(0, at - 50), Math.min(whole, at + 50), whole)];
  moment.take(around(0), {});
  moment.go(0);
  let steps = 0;
  for (let found = true; found !== false; ) {
    found = moment.step("event");
    steps += found === true;
    for (const question of moment.questions.splice(0)) {
      const [at, sought] = question.step ? [Math.floor(question.at) + 1, question.step] : [question, ""];
      moment.take(around(at), { at, sought });
      steps += Boolean(sought);
    }
  }
  assert.equal(steps, whole - 1);
  assert.equal(moment.now, whole - 1);
});

test("a screen reader is given the newest sentence, at most once a second", () => {
  let now = 0;
  let due = null;
  const said = [];
  const later = (call, ms) => (due = { call, at: now + ms });
  const announcer = new Announcer((text) => said.push([now, text]), { clock: () => now, later });
  for (; now <= 3000; now += 16) {
    if (due && now >= due.at) {
      const { call } = due;
      due = null;
      call();
    }
    if (now < 2000) announcer.announce(`${Math.floor(now / 100)}`); // sixty frames a second, ten sentences
  }
  assert.deepEqual(said.map(([, text]) => text), ["0", "9", "19"]);
  assert.ok(said.every(([at], i) => i === 0 || at - said[i - 1][0] >= 1000));
});
