// One or two runs on one time axis: timelines, the state at a moment, and the controls that move the moment.
import { button, h, select } from "./dom.js";
import { machine } from "./machine.js";
import { Moment } from "./moment.js";
import { Recording } from "./recording.js";
import { sentence } from "./sentence.js";
import { sequence } from "./sequence.js";
import { Announcer } from "./announcer.js";
import { Timeline } from "./timeline.js";
import { looks, onThemeChange } from "./theme.js";

const READABLE = 220; // spans that can be told apart in a timeline
const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
const KINDS = ["event", "update", "barrier", "epoch", "wait"];

export class Stage {
  // ask(time), seek({ step, at, back }): see Moment; moved(time or null): the moment has changed;
  // selected({ brush, worker }): something is selected in every chart; press: see machine
  constructor({ ask, seek, moved, selected, press }) {
    this.events = { moved, selected, press };
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
    const small = (text, name, title, click) =>
      button(text, `psb-small psb-${name}`, click, { title, "aria-label": title });
    this.timelines = h("div", { class: "psb-timelines" });
    this.back = small("◂", "back", "step back", () => this.step(true));
    this.play = small("▶", "play", "play", () => this.toggle());
    this.forth = small("▸", "forth", "step forward", () => this.step(false));
    this.kind = select(
      KINDS.map((kind) => [kind, kind]),
      { class: "psb-select psb-step", "aria-label": "step by", title: "size of a step" },
    );
    this.slider = h("input", {
      type: "range",
      class: "psb-slider",
      min: "0",
      max: "1000",
      step: "any",
      value: "0",
      "aria-label": "moment of the run",
    });
    this.slider.oninput = () => this.go((Number(this.slider.value) / 1000) * this.end, true);
    this.slider.onkeydown = (event) => this.onKey(event);
    this.clock = h("output", { class: "psb-time" });
    this.speed = select(
      SPEEDS.map((value) => [value, `${value} ×`]),
      {
        class: "psb-select psb-speed",
        "aria-label": "speed of playing",
        title: "seconds of the run per second",
      },
    );
    const toFirst = "go to the first wait of one worker for another";
    this.firstWait = small("first wait", "first-wait", toFirst, () => this.toFirstWait());
    this.live = small("live", "live", "follow the run", () => this.followAgain());
    const closer = small("+", "closer", "zoom in", () => this.rescale(0.5));
    const wider = small("−", "wider", "zoom out", () => this.rescale(2));
    this.controls = h(
      "div",
      { class: "psb-scrub", role: "group", "aria-label": "rewind and play" },
      this.back,
      this.play,
      this.forth,
      this.kind,
      this.firstWait,
      this.slider,
      this.clock,
      this.speed,
      wider,
      closer,
      this.live,
    );
    this.legend = h("div", { class: "psb-legend", "aria-hidden": "true" });
    this.span = h("span", { class: "psb-chart-note psb-span" });
    this.why = h("div", { class: "psb-why" });
    this.announcement = h("p", { class: "psb-announcement", "aria-live": "polite" });
    this.announcer = new Announcer((text) => (this.announcement.textContent = text));
    this.machines = h("div", { class: "psb-machines" });
    this.picture = select(
      ["machines", "messages"].map((picture) => [picture, picture]),
      {
        class: "psb-select psb-drawn-as",
        "aria-label": "view of the moment",
        onchange: () => this.draw(),
      },
    );
    this.empty = true;
    this.element = h(
      "section",
      { class: "psb-stage", hidden: true, "aria-label": "what each worker does" },
      h(
        "div",
        { class: "psb-stage-head" },
        h("span", { class: "psb-chart-title" }, "What each worker does"),
        this.legend,
        this.span,
      ),
      this.timelines,
      this.controls,
      this.why,
      this.announcement,
    );
  }

  // ---------------------------------------------------------------- recordings

  // Show recordings (plain data, one or two); `live` ones move the moment along unless the user has moved it.
  show(plains, { live = false, at = null, sought = "" } = {}) {
    const recordings = plains.map((plain) => new Recording(plain));
    const what = this.moment.take(recordings, { live, at, sought });
    if (what === "run") this.set(recordings);
    if (what === "piece")
      this.films.forEach((film, i) => film.timeline.show((film.recording = recordings[i])));
    this.element.hidden = false;
    this.live.hidden = !live;
    if (what === "run") this.rest();
    this.draw();
    if (sought) this.events.moved(this.now, true);
  }

  set(recordings) {
    this.pause();
    this.held = false;
    this.told = "";
    this.films = recordings.map((recording) => {
      const timeline = new Timeline(looks().phases, {
        at: (time) => this.go(time, true),
        brush: (brush) => this.select({ brush }),
        worker: (worker) => this.select({ worker: worker === this.worker ? null : worker }),
        tell: (text) => this.tell(text),
      });
      timeline.show(recording);
      return { recording, timeline };
    });
    this.brush = this.worker = null;
    this.zoom = 1;
    this.timelines.replaceChildren(
      ...this.films.map(({ recording, timeline }) =>
        h(
          "div",
          { class: "psb-film" },
          h("div", { class: "psb-film-name" }, recording.about.title ?? recording.about.label),
          timeline.element,
        ),
      ),
    );
    this.machines.replaceChildren(
      this.picture,
      ...this.films.map((film) => (film.place = h("figure", { class: "psb-machine-place" }))),
    );
    const phases = looks().phases;
    const shown = this.films[0].recording.phases.filter(
      (name) =>
        name !== "switching" || this.films.some((film) => film.recording.about.compositions?.length > 1),
    );
    this.legend.replaceChildren(
      ...shown.map((name) => h("span", { class: "psb-key" }, swatch(phases[name], name), name)),
    );
  }

  // Where another run begins to be shown, and how fast it plays.
  rest() {
    const window = this.window();
    const wanted = window / 10;
    const nearest = SPEEDS.reduce((best, each) =>
      Math.abs(Math.log(each / wanted)) < Math.abs(Math.log(best / wanted)) ? each : best,
    );
    this.speed.value = String(nearest);
    this.moment.now ??= Math.min(this.end, this.films[0].recording.begin + window / 2);
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
    const hold = () => (this.pause(), (this.held = true));
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
    this.told = "";
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
    this.told = "";
    this.none = none;
    if (!this.films.length) return;
    const found = this.moment.step(this.kind.value, back, from);
    if (found) this.events.moved(this.now, true);
    this.draw();
    if (found === false) this.nowhere();
  }

  // There is no such step in the whole run.
  nowhere() {
    this.moment.forget();
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
    this.told = "";
    this.pause();
    this.events.moved(null, true);
    this.moment.askFor(null);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.now >= this.end) this.moment.go(0);
    this.moment.follow = false;
    this.told = "";
    this.play.textContent = "❚❚";
    this.play.title = "pause";
    this.play.setAttribute("aria-label", "pause");
    let before = performance.now();
    const frame = (at) => {
      if (!this.playing) return;
      // what is not here yet is waited for, and not skipped
      if (this.moment.isLoaded())
        this.go(this.now + (Math.min(100, at - before) / 1000) * Number(this.speed.value));
      else this.moment.ask(this.now);
      before = at;
      if (this.now >= this.end) this.pause();
      else this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    if (this.playing) cancelAnimationFrame(this.playing);
    const was = this.playing;
    this.playing = null;
    this.play.textContent = "▶";
    this.play.title = "play";
    this.play.setAttribute("aria-label", "play");
    if (was) this.events.moved(this.now, true);
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
    this.told = text;
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
      const active = document.activeElement;
      const at = film.place.contains(active) ? active?.getAttribute("data-worker") : null;
      if (!loaded) film.place.replaceChildren(h("p", { class: "psb-loading" }, "loading …"));
      else
        film.place.replaceChildren(
          this.films.length > 1
            ? h("figcaption", { class: "psb-film-name" }, film.recording.about.label)
            : "",
          this.picture.value === "machines"
            ? machine(film.state, film.recording.about, looks().phases, this.worker, this.pressOf(film))
            : sequence(film.recording, this.now, looks().phases, this.isCollective(film)),
        );
      // what has the focus keeps it, though it is drawn anew
      if (at) film.place.querySelector(`.psb-node[data-worker="${at}"]`)?.focus();
    }
    if (document.activeElement !== this.slider || this.playing || this.running)
      this.slider.value = String((1000 * this.now) / this.end);
    const shown = (time) => time.toFixed(digits(this.end));
    this.clock.textContent = `${shown(this.now)} s of ${shown(this.end)}`;
    const [from_s, to_s] = this.brush ?? [];
    this.span.textContent = this.brush
      ? `selected: ${from_s.toFixed(digits(this.end))} to ${to_s.toFixed(digits(this.end))} s`
      : "";
    this.slider.setAttribute("aria-valuetext", this.clock.textContent);
    this.live.setAttribute("aria-pressed", String(this.follow));
    this.element.dataset.now = String(this.now);
    this.say();
  }

  say() {
    this.write();
    this.announcer.announce(this.written); // what is seen changes with every frame
  }

  write() {
    const isAsked = this.moment.sought !== null || !this.moment.isLoaded();
    const shown = (time) => time.toFixed(digits(this.end));
    const lines = this.told
      ? [["", "", this.told]]
      : isAsked
        ? [["", "", "Loading …"]]
        : this.films.map(({ state, recording }) => [
            this.films.length > 1 ? `${recording.about.label}: ` : "",
            ...sentence(state, {
              ...{ chosen: this.worker, ended: state.ended, running: this.running },
              ...{ end: recording.whole, shown },
            }),
          ]);
    const text = lines.map(([head, bold, rest]) => `${head}${bold} ${rest}`.trim());
    if (text.join("\n") === this.written) return;
    this.written = text.join("\n");
    this.why.replaceChildren(
      ...lines.map(([head, bold, rest]) => h("p", {}, head, bold && h("b", {}, bold), bold && " ", rest)),
    );
    this.why.classList.toggle("psb-waiting", lines.some(([, bold]) => bold.includes(" waiting for ")));
  }

  dispose() {
    this.pause();
    this.announcer.dispose();
    this.observer.disconnect();
    this.endTheme();
  }
}

const digits = (end) => Math.max(1, Math.min(4, 4 - Math.ceil(Math.log10(end || 1))));

function swatch(colour, name) {
  const mark = h("i", { class: `psb-swatch psb-swatch-${name}` });
  mark.style.background = colour;
  return mark;
}
