// The moment that is shown: where it is, whether the recording of it is here, and what must be asked for.
//
// A page has one piece of a long run, or the newest rows of one under way. What is next is answered from the
// piece if the answer is certain there, else from the whole log, by Python.

const AHEAD = 0.2; // of a piece: so close to its edge the next one is fetched
const PATIENCE_MS = 3000; // for an answer

export class Moment {
  // ask(time): wants the recording around a time, the newest if null; seek({ step, at, back }): wants the
  // next instant of a kind, looked for in the whole log; clock(): milliseconds
  constructor({ ask, seek, clock = () => performance.now() }) {
    this.askFor = ask;
    this.seek = seek;
    this.clock = clock;
    this.recordings = [];
    this.now = 0;
    this.whole = 1;
    this.running = false;
    this.follow = true;
    this.forget();
  }

  forget() {
    /** @type {?number | undefined} */ this.asked = null;
    /** @type {?string} */ this.sought = null;
    this.since = -Infinity;
  }

  // One question at a time, unless the last one has had no answer for long.
  get isAsking() {
    return (this.asked !== null || this.sought !== null) && this.clock() - this.since < PATIENCE_MS;
  }

  // What is shown, as one word for what follows: another run, another piece of it, or only its length.
  take(recordings, { live = false, at = null, sought = "" }) {
    const keys = (all) => all.map((each) => each.about.key).join();
    const fresh = keys(recordings) !== keys(this.recordings);
    const before = this.recordings;
    const wasRunning = this.running;
    this.running = live;
    this.whole = Math.max(...recordings.map((each) => each.whole));
    if (fresh) {
      Object.assign(this, { recordings, follow: at === null });
      this.forget();
      this.now = at ?? (live ? this.whole : null);
      return "run";
    }
    const answered = at !== null && (at === this.asked || sought);
    if (answered) this.asked = null;
    if (sought) Object.assign(this, { now: at, sought: null });
    const kept = !answered && !this.follow && !(wasRunning && !live && this.isIn(recordings, this.now));
    recordings.forEach((each, i) => before[i] && (before[i].whole = each.whole));
    if (kept && before.length) return "length";
    this.recordings = recordings;
    if (this.follow && (live || wasRunning)) this.now = this.whole;
    this.now = Math.min(this.now, this.whole);
    if (!this.isLoaded(this.now)) this.ask(this.now);
    return "piece";
  }

  isIn(recordings, time) {
    return recordings.every((each) => time >= each.begin && (time <= each.end || each.end >= each.whole));
  }

  isLoaded(time = this.now) {
    return this.isIn(this.recordings, time);
  }

  // Move to a time; asks for what is not here, and for what will be needed soon.
  go(time) {
    this.now = Math.min(this.whole, Math.max(0, time));
    if (!this.isLoaded()) return this.ask(this.now);
    if (this.recordings.some((each) => this.isNearEdge(each))) this.ask(this.now);
  }

  isNearEdge({ begin, end, whole }) {
    const near = AHEAD * (end - begin);
    return (end < whole && this.now > end - near) || (begin > 0 && this.now < begin + near);
  }

  ask(time) {
    if (this.isAsking) return;
    Object.assign(this, { asked: time, since: this.clock() });
    this.askFor(time);
  }

  // The nearest instant of a kind in all recordings: a time, null if there is none, undefined if it is not
  // known.
  next(kind, from, back = false) {
    const times = [];
    for (const each of this.recordings) {
      const time = each.next(kind, from, back);
      if (!isCertain(each, from, time, back)) return undefined;
      if (time !== null) times.push(time);
    }
    if (!times.length) return null;
    return back ? Math.max(...times) : Math.min(...times);
  }

  // Go to the next instant of a kind; returns whether there is one, undefined if Python is asked.
  step(kind, back = false, from = this.now) {
    this.follow = false;
    if (this.sought !== null && this.isAsking) return undefined;
    const time = this.next(kind, from, back);
    if (time === undefined) {
      Object.assign(this, { sought: kind, since: this.clock() });
      this.seek({ step: kind, at: from, back });
      return undefined;
    }
    if (time !== null) this.go(time);
    return time !== null;
  }

  // What Python was asked to look for is nowhere in the run: the moment stays, and is asked for if the piece
  // of it is not here.
  nowhere() {
    this.forget();
    if (!this.isLoaded()) this.ask(this.now);
  }
}

// Whether what a piece says is next is so in the whole run.
function isCertain({ begin, end, whole }, from, time, back) {
  if (back) return (from <= end || end >= whole) && (time === null ? begin <= 0 : time >= begin);
  if (from < begin && begin > 0) return false;
  return time === null ? end >= whole : time <= end;
}
