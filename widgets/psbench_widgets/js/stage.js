// One or two runs on one time axis: timelines, the state at a moment, and the controls that move the moment.
import { button, dot, h, inShort, morph, select } from "./dom.js";
import { machine } from "./machine.js";
import { Moment } from "./moment.js";
import { Recording } from "./recording.js";
import { sentence } from "./sentence.js";
import { sequence } from "./sequence.js";
import { Announcer } from "./announcer.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";
import { MANY } from "./layout.js";
import { looks, onThemeChange } from "./theme.js";

const READABLE = 220; // spans that can be distinguished in a timeline
const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
const FILM = "film"; // the whole run in so many seconds
const FILM_S = 10;
const PICTURE_MS = 100;
const KINDS = ["event", "update", "barrier", "epoch", "wait"];
const CALLED = {
  compute: "computing",
  wait: "waiting",
  pull: "model arrives",
  send: "gradient leaves",
  cancelled: "cancelled work",
};
const NEXT = ["compute", "wait", "pull", "send", "cancelled", "switching"]; // as the legend has them
// pixels that the row of a worker and all rows of a run may have: what is below is seen too
const ALONE = { usual: { row: 30, rows: 160 }, low: { row: 24, rows: 125 } };
const BESIDE = { usual: { row: 18, rows: 96 }, low: { row: 12, rows: 72 } };
const isLow = matchMedia("(max-height: 800px)");

export class Stage {
  // ask(time), seek({ step, at, back }): see Moment; moved(time or null): the moment has changed;
  // selected({ brush, worker }): something is selected in every chart; press: see machine; fork(): asks what
  // shall be otherwise from this moment on
  constructor({ ask, seek, moved, selected, press, fork = null }) {
    this.events = { moved, selected, press, fork };
    this.films = [];
    this.moment = new Moment({ ask, seek });
    this.brush = null;
    this.worker = null;
    this.zoom = 1;
    this.build();
    // drawing changes heights
    this.observer = new ResizeObserver(() => requestAnimationFrame(() => this.draw()));
    this.observer.observe(this.element);
    this.endTheme = onThemeChange(() => this.draw());
  }

  build() {
    // words name themselves, signs are named by what they do
    const small = (text, name, title, click) =>
      button(text, `psb-small psb-${name}`, click, {
        title,
        "aria-label": /[a-z]/.test(text) ? undefined : title,
      });
    this.timelines = h("div", { class: "psb-timelines" });
    this.back = small("◂", "back", "step back", () => this.step(true));
    this.play = small("▶ play", "play", "play", () => this.toggle());
    this.forth = small("▸", "forth", "step forward", () => this.step(false));
    this.kind = select(
      KINDS.map((kind) => [kind, kind]),
      { class: "psb-select psb-step", "aria-label": "step by", title: "size of a step" },
    );
    this.strip = new Strip(looks().phases, {
      at: (time) => this.go(time, true),
      key: (event) => this.onKey(event),
    });
    this.clock = h("output", { class: "psb-time" });
    this.speed = select([[FILM, "10 s film"], ...SPEEDS.map((value) => [value, `${value} ×`])], {
      class: "psb-select psb-speed",
      "aria-label": "playback speed",
      title: "seconds of the run per second, or the whole run in ten seconds",
    });
    const toFirst = "go to the first wait of one worker for another";
    this.firstWait = small("⇤ first wait", "first-wait", toFirst, () => this.toFirstWait());
    this.live = small("live", "live", "follow the run", () => this.followAgain());
    const closer = small("+", "closer", "zoom in", () => this.rescale(0.5));
    const wider = small("−", "wider", "zoom out", () => this.rescale(2));
    this.controls = h(
      "div",
      { class: "psb-scrub", role: "group", "aria-label": "rewind and play" },
      this.firstWait,
      h("span", { class: "psb-steps" }, this.back, this.kind, this.forth),
      this.play,
      this.speed,
      this.clock,
      h("span", { class: "psb-steps" }, wider, closer),
      this.live,
      this.events.fork &&
        small("Fork here …", "fork-open", "simulate another future from this moment", this.events.fork),
    );
    this.legend = h("div", { class: "psb-legend", "aria-hidden": "true" });
    this.span = h("span", { class: "psb-chart-note psb-span" });
    // its height is fixed: where fonts are wide, keys scroll it
    const label = "what happens at this moment";
    this.why = h("div", { class: "psb-why", role: "region", tabindex: 0, "aria-label": label });
    this.announcement = h("p", { class: "psb-announcement", "aria-live": "polite" });
    this.announcer = new Announcer((text) => (this.announcement.textContent = text));
    this.places = h("div", { class: "psb-machine-places" });
    this.picture = select(
      ["machines", "messages"].map((picture) => [picture, picture]),
      {
        class: "psb-select psb-drawn-as",
        "aria-label": "view of the moment",
        onchange: () => this.draw(),
      },
    );
    this.machines = h(
      "section",
      { class: "psb-machines", "aria-label": "the machines at this moment" },
      h(
        "div",
        { class: "psb-chart-head" },
        h("span", { class: "psb-chart-title" }, "At this moment"),
        this.events.press && h("span", { class: "psb-chart-note" }, "drag a worker to make it slower"),
        this.picture,
      ),
      this.places,
    );
    this.machines.hidden = true; // until a run is shown
    this.name = h("span", { class: "psb-film-name" });
    this.element = h(
      "section",
      { class: "psb-stage", hidden: true, "aria-label": "what each worker does" },
      h(
        "div",
        { class: "psb-stage-head" },
        h("span", { class: "psb-chart-title" }, "Who works, who waits"),
        this.legend,
        this.span,
        this.name,
      ),
      this.timelines,
      this.strip.element,
      this.controls,
      this.why,
      this.announcement,
    );
  }

  // ---------------------------------------------------------------- recordings

  // Show recordings (plain data, one or two); `live` ones move the moment along unless the user has moved it.
  show(plains, { live = false, at = null, sought = "" } = {}) {
    const recordings = plains.map((plain) => new Recording(plain));
    const wasRunning = this.running;
    const isEnding = wasRunning && this.follow && !live;
    const what = this.moment.take(recordings, { live, at, sought });
    if (what === "run") this.set(recordings);
    if (what === "piece") this.films.forEach((film, i) => (film.recording = recordings[i]));
    if (what === "piece") this.arrange();
    if (what === "piece" && !live) this.explain();
    if (this.announced) this.text = this.announced = "";
    this.strip.take(recordings);
    this.element.hidden = this.machines.hidden = false;
    this.live.hidden = !live;
    if (what === "run") this.rest(this.moment.now === null);
    else if (isEnding) this.rest(true);
    this.draw();
    // sums follow to where a run that is over, or another one, comes to rest
    if (sought || (!live && (wasRunning || what === "run"))) this.events.moved(this.now, true);
  }

  // Runs beside each other share the axis below the last.
  arrange() {
    const most = (this.films.length > 1 ? BESIDE : ALONE)[isLow.matches ? "low" : "usual"];
    this.films.forEach(({ recording, timeline }, i) =>
      timeline.show(recording, { ...most, hasAxis: i === this.films.length - 1 }),
    );
  }

  set(recordings) {
    this.halt(); // the moment is the new run's already, and what is drawn is not
    this.held = false;
    this.text = "";
    this.films = recordings.map((recording) => {
      const timeline = new Timeline(looks().phases, {
        at: (time) => this.go(time, true),
        brush: (brush) => this.select({ brush }),
        worker: (worker) => this.select({ worker: worker === this.worker ? null : worker }),
        tell: (text) => this.tell(text),
        zoom: (factor) => this.rescale(factor),
      });
      return { recording, timeline };
    });
    this.arrange();
    const [{ about }] = recordings;
    this.name.replaceChildren(...(recordings.length > 1 ? named(about) : [about.title ?? about.label]));
    this.brush = this.worker = null;
    this.zoom = 1;
    this.timelines.replaceChildren(
      ...this.films.map(({ recording, timeline }, i) =>
        h(
          "div",
          { class: "psb-film" },
          i > 0 && h("div", { class: "psb-film-name" }, named(recording.about)),
          timeline.element,
        ),
      ),
    );
    this.places.replaceChildren(
      ...this.films.map((film) => (film.place = h("figure", { class: "psb-machine-place" }))),
    );
    this.explain();
  }

  // The legend, of what there is in what is shown.
  explain() {
    const phases = looks().phases;
    const some = (name) =>
      this.films.some(({ recording }) =>
        recording.tables.spans.phase.includes(recording.phases.indexOf(name)),
      );
    const shown = NEXT.filter(
      (name) =>
        !["cancelled", "switching"].includes(name) ||
        some(name) ||
        (name === "switching" && this.films.some((film) => film.recording.about.compositions?.length > 1)),
    );
    this.legend.replaceChildren(
      ...shown.map((name) =>
        h("span", { class: "psb-key" }, swatch(phases[name], name), CALLED[name] ?? name),
      ),
    );
  }

  // What was asked for is on its way: said at once.
  announce(text) {
    this.announced = true;
    this.pause();
    this.tell(text);
  }

  // How fast another run plays; one that is over and not yet looked at is shown
  rest(isNew) {
    this.speed.value = FILM;
    if (!isNew) return;
    // where there is something to see, else where it begins
    this.moment.now = Math.min(this.end, this.films[0].recording.begin + this.window() / 2);
    this.moment.step("wait", false, -1);
  }

  get now() {
    return this.moment.now;
  }

  get end() {
    return this.moment.whole || 1;
  }

  // The name of what is in force at the moment, in the run that a fork would be of.
  get composition() {
    const [film] = this.films;
    return film?.recording.about.compositions?.[film.state?.composition]?.name ?? null;
  }

  // A fork is of the first run that is shown.
  pressOf(film) {
    const { press } = this.events;
    if (!press || film !== this.films[0]) return null;
    // what is held stays as it is, though newer pieces come
    const hold = () => ((this.held = true), this.pause());
    return { ...press, hold, release: () => ((this.held = false), this.draw()) };
  }

  isCollective({ recording, state }) {
    return Boolean(recording.about.compositions?.[state.composition]?.collective);
  }

  get running() {
    return this.moment.running;
  }

  get follow() {
    return this.moment.follow;
  }

  // Seconds that the timelines show.
  window() {
    const width = this.timelines.clientWidth || 640;
    const readable = Math.min(
      ...this.films.map(({ recording }) => recording.readable((READABLE * width) / 640)),
    );
    return Math.min(this.end, Math.max(1e-6, readable * this.zoom)) || 1;
  }

  // ---------------------------------------------------------------- the moment

  go(time, byHand = false) {
    if (!this.films.length) return;
    this.text = "";
    if (byHand) this.moment.follow = false;
    this.moment.go(time);
    this.draw();
    this.events.moved(this.now, !this.playing);
  }

  step(back) {
    this.jump(back);
  }

  toFirstWait() {
    this.kind.value = "wait";
    const none = this.running
      ? "No worker has waited for another so far."
      : "No worker waited for another in this run.";
    this.jump(false, -1, none);
  }

  // Go to the next step of the kind that is chosen, wherever in the run it is.
  jump(back, from = this.now, none = "") {
    this.pause();
    this.text = "";
    this.none = none;
    if (!this.films.length) return;
    const found = this.moment.step(this.kind.value, back, from);
    if (found) this.events.moved(this.now, true);
    this.draw();
    if (found === false) this.nowhere();
  }

  // There is no such step in the whole run.
  nowhere() {
    this.moment.nowhere();
    this.tell(this.none);
  }

  onKey(event) {
    const back = ["ArrowLeft", "ArrowDown"].includes(event.key);
    if (!back && !["ArrowRight", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(back);
  }

  followAgain() {
    this.moment.follow = true;
    this.moment.forget();
    this.text = "";
    this.pause();
    this.events.moved(null, true);
    this.moment.askFor(null);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.now >= this.end) this.moment.go(0);
    this.moment.follow = false;
    this.text = "";
    this.play.textContent = "❚❚ pause";
    this.play.title = "pause";
    let before = performance.now();
    const frame = (at) => {
      if (!this.playing) return;
      // what is not here yet is waited for, and not skipped
      if (this.moment.isLoaded()) this.go(this.now + (Math.min(100, at - before) / 1000) * this.rate);
      else this.moment.ask(this.now);
      before = at;
      if (this.now >= this.end) this.pause();
      else this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    if (!this.halt()) return;
    this.draw();
    this.events.moved(this.now, true);
  }

  // Play no longer; whether it was playing.
  halt() {
    const was = this.playing;
    if (was) cancelAnimationFrame(was);
    this.playing = null;
    this.play.textContent = "▶ play";
    this.play.title = "play";
    return Boolean(was);
  }

  // Seconds of the run in one second of playing.
  get rate() {
    return this.speed.value === FILM ? this.end / FILM_S : Number(this.speed.value);
  }

  rescale(factor) {
    this.zoom = Math.min(64, Math.max(1 / 64, this.zoom * factor));
    this.draw();
  }

  /** @param {{brush?: ?number[], worker?: ?number}} what is selected; the other stays */
  select({ brush, worker }) {
    if (brush !== undefined) this.brush = brush;
    if (worker !== undefined) this.worker = worker;
    this.draw();
    this.events.selected({ brush: this.brush, worker: this.worker });
  }

  tell(text) {
    this.text = text;
    this.say();
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    if (!this.films.length || this.element.hidden || this.held) return;
    const window = this.window();
    let from = this.running && this.follow ? this.end - window : this.now - window / 2;
    from = Math.max(0, Math.min(this.end - window, from));
    const loaded = this.moment.isLoaded();
    this.element.dataset.loaded = String(loaded);
    for (const film of this.films) {
      const { end, whole } = film.recording;
      film.state = loaded ? film.recording.at(Math.min(this.now, end * (1 - 1e-12))) : null;
      // of two runs beside each other, the one that is over does nothing any more
      if (film.state) film.state.ended = !this.running && this.now > whole;
      const first = film.state?.ended ? null : film.state?.workers.find(({ waits }) => waits);
      film.timeline.draw(
        from,
        from + window,
        this.now,
        this.brush,
        this.worker,
        first ? [first.worker, first.waitedFor] : [],
      );
    }
    const shown = (time) => time.toFixed(digits(this.end));
    const clock = `${shown(this.now)} s of ${shown(this.end)} s`;
    const recordings = this.films.map(({ recording }) => recording);
    this.strip.draw(recordings, from, from + window, this.now, this.end, clock);
    // all that measures the page has done so: from here on it changes
    for (const film of this.films) this.drawPicture(film, loaded);
    this.clock.replaceChildren(
      h("b", {}, `${shown(this.now)} s`),
      h("span", { class: "psb-time-of" }, ` of ${shown(this.end)} s`),
    );
    const [from_s, to_s] = this.brush ?? [];
    this.span.textContent = this.brush
      ? `selected: ${from_s.toFixed(digits(this.end))} to ${to_s.toFixed(digits(this.end))} s`
      : "";
    this.live.setAttribute("aria-pressed", String(this.follow));
    this.element.dataset.now = String(this.now);
    this.say();
  }

  // The machines, which of many workers are small and without words: while it plays they follow less often.
  drawPicture(film, loaded) {
    const at = performance.now();
    const isMany = film.recording.workers.length > MANY;
    if (this.playing && isMany && at - (film.picturedAt ?? 0) < PICTURE_MS) return;
    film.picturedAt = at;
    const active = document.activeElement;
    const worker = film.place.contains(active) ? active?.getAttribute("data-worker") : null;
    morph(film.place, h("figure", { class: "psb-machine-place" }, this.picturesOf(film, loaded)));
    // what has the focus keeps it, though it is redrawn
    if (worker && document.activeElement !== active)
      film.place.querySelector(`.psb-node[data-worker="${worker}"]`)?.focus();
  }

  // What stands beside the charts: of the machines or of their messages.
  picturesOf(film, loaded) {
    if (!loaded) return h("p", { class: "psb-loading" }, "loading …");
    const { recording, state } = film;
    const phases = looks().phases;
    return [
      this.films.length > 1 && h("figcaption", { class: "psb-film-name" }, named(recording.about, inShort)),
      this.picture.value === "machines"
        ? machine(state, recording.about, phases, this.worker, this.pressOf(film))
        : sequence(recording, this.now, phases, this.isCollective(film)),
    ];
  }

  say() {
    this.write();
    this.announcer.announce(this.written); // what is seen changes with every frame
  }

  write() {
    const isAsked = this.moment.sought !== null || !this.moment.isLoaded();
    const shown = (time) => time.toFixed(digits(this.end));
    const lines = this.text
      ? [[null, "", "", this.text]]
      : isAsked
        ? [[null, "", "", "Loading …"]]
        : this.films.map(({ state, recording }) => [
            ...(this.films.length > 1 ? calledInShort(recording.about) : [null, ""]),
            ...sentence(state, {
              ...{ chosen: this.worker, ended: state.ended, running: this.running },
              ...{ end: recording.whole, shown },
            }),
          ]);
    const text = lines.map(([, head, bold, rest]) => `${head}${bold} ${rest}`.trim());
    if (text.join("\n") === this.written) return;
    this.written = text.join("\n");
    this.why.replaceChildren(
      ...lines.map(([key, head, bold, rest]) =>
        h("p", {}, key && dot(key), head, bold && h("b", {}, bold), bold && " ", rest),
      ),
    );
    this.why.classList.toggle(
      "psb-waiting",
      lines.some(([, , bold]) => / (is|are) waiting/.test(bold) && !bold.startsWith("No worker")),
    );
  }

  dispose() {
    this.pause();
    this.announcer.dispose();
    this.observer.disconnect();
    this.endTheme();
  }
}

// The name of one of two runs, in its colour.
const named = ({ key, label }, as = (name) => name) => [dot(key), as(label)];

// The same in a sentence, which has to stay in its box.
const calledInShort = ({ key, label }) => [key, `${inShort(label)}: `];

const digits = (end) => Math.max(1, Math.min(4, 5 - Math.ceil(Math.log10(end || 1))));

function swatch(colour, name) {
  const mark = h("i", { class: `psb-swatch psb-swatch-${name}` });
  mark.style.background = colour;
  return mark;
}
