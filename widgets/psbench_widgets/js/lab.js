// The panel: situations, the set-up as a sentence, the result, the stage, charts and the table of runs.
import { button, freeToStick, h, select } from "./dom.js";
import { Bus } from "./bus.js";
import { Form } from "./form.js";
import { WhatIf, goalLine, Prediction } from "./questions.js";
import { labels, speeds } from "./pictures.js";
import { ComparisonTable } from "./comparison.js";
import { Explanation } from "./explanation.js";
import { Result } from "./result.js";
import { RunsTable } from "./runs.js";
import { ClusterRuns } from "./cluster_runs.js";
import { mountChart } from "./chart.js";
import { updateSavedOutput } from "./saved_output.js";
import { Visibility } from "./visibility.js";
import { Stage } from "./stage.js";
import { startTable } from "./start.js";
import { Tree } from "./tree.js";

const GROUPS = {
  learn: "Learning",
  workers: "Workers",
  updates: "Updates, staleness and traffic",
  data: "Data",
};
const PACES = [
  ["watchable", "watchable"],
  ["10", "10 ×"],
  ["fast", "as fast as possible"],
];
const SETTLE_MS = 120; // typing is not checked letter by letter
const SILENT_MS = 6000; // a kernel that does not answer a press for so long is busy or gone
const PLACE_MS = 1500; // charts of a run that is over have been drawn
const REST_MS = 250; // the moment has stopped moving: charts that are sums follow it

export function mountLab(model, el) {
  const lab = new Lab(model, el);
  return () => lab.dispose();
}

class Lab {
  constructor(model, el) {
    this.model = model;
    this.view = crypto.randomUUID?.() ?? String(Math.random());
    this.charts = new Map(); // uid -> { slot, end }
    this.seq = 0;
    this.ok = true;
    this.bus = new Bus();
    this.send = (message) => model.send({ view: this.view, ...message });
    this.build(el);
    this.handlers = [
      ["msg:custom", (message) => this.onMessage(message)],
      ["change:status", () => this.onStatus()],
      ["change:runs", () => this.onRuns()],
      ["change:table", () => this.onTable()],
      ["change:cluster", () => this.cluster.show(this.model.get("cluster") ?? {})],
      ["change:goal", () => this.onGoal()],
      ["change:pace", () => (this.pace.value = this.model.get("pace"))],
      ["change:watch", () => this.place("watch")],
      ["change:overlay", () => this.place("overlay")],
      ["change:why", () => this.onWhy()],
      ["change:why_charts", () => this.place("why_charts")],
      ["change:saved_output", () => updateSavedOutput(model)],
      ["comm_live_update", () => this.onKernel()],
    ];
    for (const [name, handler] of this.handlers) model.on(name, handler);
    this.send({ kind: "hello" });
    this.onStatus();
    this.onRuns();
    this.onTable();
    this.onGoal();
    updateSavedOutput(model);
    this.onWhy();
    this.place("watch");
    this.place("overlay");
    this.place("why_charts");
    this.visibility = new Visibility(
      this.element,
      () => this.tab === "watch",
      (on) => this.send({ kind: "seen", on }),
    );
    this.ask();
    this.send({ kind: "film", at: null }); // a page that was opened or reloaded later shows the recording too
    this.open(this.model.get("opening") ?? {});
  }

  // A panel without a run opens with a recorded one, which plays: no kernel is asked.
  open({ film, sentences }) {
    if (!film || this.model.get("runs").length || this.stage.films.length) return;
    this.opening = h(
      "ol",
      { class: "psb-opening" },
      sentences.map((text) => h("li", {}, text)),
    );
    this.head.append(this.opening);
    this.hint.hidden = true;
    this.stage.show([film], { at: 0 });
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.stage.toFirstWait();
    else this.stage.toggle();
  }

  endOpening() {
    this.opening?.remove();
    this.opening = null;
  }

  // ---------------------------------------------------------------- the frame

  build(el) {
    const act = (text, name, title, click) => button(text, `psb-button psb-${name}`, click, { title });
    this.run = act("▶ Run", "run", "Run the selected experiment", () => this.press());
    this.stop = act("■ Stop", "stop", "Stop the run; completed work is kept", () =>
      this.send({ kind: "stop" }),
    );
    this.switch = act("⇄ Switch now", "switch", "Change to the other strategy now", () =>
      this.send({ kind: "switch" }),
    );
    this.pace = select(PACES, {
      class: "psb-select psb-pace",
      "aria-label": "pace of a simulated run",
      title: "how fast a simulated run advances while you watch",
      onchange: () => this.send({ kind: "pace", pace: this.pace.value }),
    });
    this.pace.value = this.model.get("pace");
    this.answer = h("span", { class: "psb-answer", role: "status" });
    this.words = h("span", { class: "psb-words" });
    this.left = h("span", { class: "psb-left" });
    this.echo = h("div", { class: "psb-echo" });
    this.meter = h("div", { class: "psb-meter-fill" });
    this.progress = h(
      "div",
      {
        class: "psb-meter",
        role: "progressbar",
        "aria-valuemin": "0",
        "aria-valuemax": "100",
        "aria-label": "progress of the run",
      },
      this.meter,
    );
    this.trouble = h("details", { class: "psb-traceback", hidden: true });
    this.goal = h("div", { class: "psb-goal", role: "status", hidden: true });
    this.starting = h("div", {
      ...{ class: "psb-starting", hidden: true, tabindex: "0" }, // keys scroll it
      ...{ role: "region", "aria-label": "processes that start" },
    });
    this.prediction = new Prediction((values) => this.send({ kind: "predict", values }));
    this.form = new Form(this.model.get("form"), structuredClone(this.model.get("values")), () =>
      this.changed(),
    );
    this.result = new Result((strategy) => this.send({ kind: "fork", at: 0, strategy, momentum: "keep" }));
    this.state = h(
      "div",
      { class: "psb-state", hidden: true },
      h("div", { class: "psb-state-words" }, this.words, this.left),
      this.progress,
      this.echo,
    );
    const { bar, pages } = this.tabs();
    this.head = h("div", { class: "psb-head" }, this.result.element, this.state);
    this.bar = h(
      "div",
      { class: "psb-bar-top" },
      h("div", { class: "psb-buttons" }, this.form.sentence, this.run),
      h(
        "div",
        { class: "psb-quiet" },
        bar,
        this.answer,
        this.stop,
        this.switch,
        this.pace,
        this.prediction.fold,
        this.form.more,
      ),
      this.head,
    );
    this.main = h(
      "main",
      { class: "psb-main" },
      this.cards(),
      this.bar,
      this.form.element,
      this.goal,
      this.prediction.gaps,
      this.starting,
      this.trouble,
      pages,
    );
    this.selectTab("watch");
    this.element = h(
      "div",
      { class: "psb-lab", "data-view": this.view, "data-lm-suppress-shortcuts": "true" },
      this.main,
    );
    el.append(this.element);
    this.element.addEventListener("keydown", (event) => save(event, el));
    this.element.stage = this.stage; // what is shown can be asked for from outside, as tests do
    freeToStick(el);
  }

  // Situations to begin with, each with its question.
  cards() {
    const presets = this.model.get("presets") ?? [];
    const begin = h("div", {
      class: "psb-presets",
      role: "group",
      "aria-label": "situations to begin with",
      hidden: !presets.length,
    });
    for (const { name, title, question, about } of presets)
      begin.append(
        h(
          "button",
          {
            type: "button",
            class: "psb-preset",
            "data-preset": name,
            title: about,
            onclick: () => this.send({ kind: "preset", name }),
          },
          h("b", {}, title[0].toUpperCase() + title.slice(1)),
          h("span", {}, question),
        ),
      );
    this.markCard(begin);
    return begin;
  }

  // The card of the situation that is picked.
  markCard(place = this.element.querySelector(".psb-presets")) {
    for (const { name, title } of this.model.get("presets") ?? [])
      place
        .querySelector(`[data-preset="${name}"]`)
        .setAttribute("aria-pressed", String(title === this.form.values.rest?.name));
  }

  tabs() {
    const pages = {
      watch: ["Watch", this.watchPage()],
      compare: ["Runs", this.comparePage()],
      take: ["Take away", this.takePage()],
    };
    const bar = h("div", { class: "psb-tab-list", role: "tablist", "aria-label": "pages" });
    const choose = (key) => {
      this.tab = key;
      for (const [name, [, page]] of Object.entries(pages)) {
        page.hidden = name !== key;
        const tab = bar.querySelector(`.psb-tab-${name}`);
        tab.setAttribute("aria-selected", String(name === key));
        tab.tabIndex = name === key ? 0 : -1;
      }
      // what is drawn along an axis stands on both pages; the result is of the run that one watches
      if (key !== "take") this.axisPlaces[key].append(this.against);
      this.head.classList.toggle("psb-elsewhere", key !== "watch");
      this.showGaps();
      this.visibility?.update();
    };
    for (const [key, [title]] of Object.entries(pages)) {
      bar.append(button(title, `psb-tab psb-tab-${key}`, () => choose(key), { role: "tab" }));
    }
    bar.onkeydown = (event) => {
      const keys = Object.keys(pages);
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.stopPropagation();
      choose(keys[(keys.indexOf(this.tab) + step + keys.length) % keys.length]);
      bar.querySelector('[aria-selected="true"]').focus();
    };
    this.selectTab = choose;
    const called = { time_s: "time", epoch: "epochs" };
    this.axis = select(
      Object.keys(this.model.get("axes")).map((name) => [name, called[name] ?? name.replaceAll("_", " ")]),
      { class: "psb-axis", "aria-label": "horizontal axis of the curves" },
    );
    this.axis.onchange = () => this.send({ kind: "axis", x: this.axis.value });
    this.against = h("label", { class: "psb-axis-label" }, "against ", this.axis);
    return {
      bar,
      pages: h(
        "div",
        {},
        Object.values(pages).map(([, page]) => page),
      ),
    };
  }

  watchPage() {
    this.watch = h("div", { class: "psb-page psb-watch", role: "tabpanel" });
    this.hint = h("p", { class: "psb-empty" }, "Press Run: the charts appear here and follow the run.");
    this.stage = new Stage({
      ask: (at) => this.send({ kind: "film", at }),
      seek: (what) => this.send({ kind: "seek", ...what }),
      moved: (time, resting) => this.onMoment(time, resting),
      selected: (values) => this.onSelected(values),
      press: {
        choose: (what, worker, factor) => {
          this.sayNothingWrong();
          this.whatIf.choose(what, worker, factor);
          if (factor === undefined) this.whatIf.type();
        },
        now: (what, worker) => (this.whatIf.choose(what, worker), this.whatIf.press()),
        fork: () => this.whatIf.press(),
      },
      fork: () => this.whatIf.toggle(),
    });
    this.whatIf = new WhatIf(
      this.model.get("form"),
      (change) => this.send({ kind: "fork", at: inMicroseconds(this.stage.now), ...change }),
      (why) => this.say(why, true),
    );
    this.tree = new Tree();
    this.grids = { first: h("div", { class: "psb-first-curve" }) };
    const axis = h("div", { class: "psb-axis-place" });
    this.axisPlaces = { watch: axis };
    this.watch.append(
      this.hint,
      this.stage.element,
      this.whatIf.element,
      h(
        "div",
        { class: "psb-first" },
        h("div", { class: "psb-first-left" }, axis, this.grids.first),
        this.stage.machines,
      ),
      this.tree.element,
    );
    for (const [group, title] of Object.entries(GROUPS)) {
      this.grids[group] = h("div", { class: "psb-grid" });
      this.watch.append(h("section", { class: "psb-group" }, h("h3", {}, title), this.grids[group]));
    }
    return this.watch;
  }

  comparePage() {
    this.runs = new RunsTable((message) => this.onRunAction(message));
    this.cluster = new ClusterRuns((message) => this.send(message));
    this.cluster.show(this.model.get("cluster") ?? {});
    this.table = new ComparisonTable();
    this.explanation = new Explanation((message) => this.onExplain(message));
    this.overlay = h("div", { class: "psb-grid" });
    this.grids.compare = this.overlay;
    this.grids.why = this.explanation.charts;
    this.target = h("input", {
      class: "psb-input psb-target",
      type: "number",
      min: "0",
      max: "1",
      step: "0.01",
      placeholder: "best reached by all",
      "aria-label": "target accuracy",
    });
    this.target.onchange = () => this.send({ kind: "target", value: this.target.value });
    this.folder = h("input", {
      class: "psb-input psb-folder",
      value: this.model.get("folder"),
      "aria-label": "folder for runs",
      spellcheck: "false",
    });
    const act = (text, kind, title) =>
      button(text, `psb-button psb-${kind}`, () => this.send({ kind, folder: this.folder.value }), { title });
    const files = h(
      "div",
      { class: "psb-line" },
      h("label", {}, "folder ", this.folder),
      act("Save ticked", "save", "Write each ticked run to its own folder"),
      act("Load", "load", "Read the runs in the folder"),
      h("label", {}, "target accuracy ", this.target),
    );
    const axis = h("div", { class: "psb-axis-place" });
    this.axisPlaces.compare = axis;
    return h(
      "div",
      { class: "psb-page psb-compare", role: "tabpanel" },
      this.runs.element,
      this.cluster.element,
      files,
      this.table.element,
      this.explanation.element,
      axis,
      this.overlay,
    );
  }

  takePage() {
    this.repeats = h("span", { class: "psb-repeats" });
    this.python = h("pre", { class: "psb-code psb-python", tabindex: "0" });
    this.yaml = h("pre", { class: "psb-code psb-yaml", tabindex: "0" });
    const copy = (place, what) =>
      button("copy", "psb-small", () => navigator.clipboard?.writeText(place.textContent), {
        "aria-label": `copy the ${what}`,
      });
    const write = (text, kind, about) =>
      h(
        "div",
        { class: "psb-line" },
        button(text, `psb-button psb-${kind}`, () => this.send({ kind })),
        h("span", { class: "psb-muted" }, about),
      );
    this.pythonOf = h("span", {}, "of the selected experiment");
    return h(
      "div",
      { class: "psb-page psb-take", role: "tabpanel" },
      write("Write report", "report", "one HTML file of the ticked runs that opens without internet"),
      write("Write page", "export", "one HTML file of the ticked runs, with timelines to rewind"),
      h("h3", {}, "Python ", this.pythonOf, ": ", this.repeats, " ", copy(this.python, "Python")),
      this.python,
      h("h3", {}, "YAML ", copy(this.yaml, "YAML")),
      this.yaml,
    );
  }

  // ---------------------------------------------------------------- the controls

  changed() {
    this.sayNothingWrong();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), SETTLE_MS);
  }

  ask() {
    clearTimeout(this.timer);
    this.seq += 1;
    this.send({ kind: "check", seq: this.seq, values: this.form.values });
  }

  press() {
    if (this.run.disabled) return;
    this.sayNothingWrong();
    // one message with everything: what takes effect is what is shown now
    this.send({ kind: "run", values: this.form.values, prediction: this.prediction.values() });
    clearTimeout(this.silent);
    this.silent = setTimeout(
      () =>
        this.say(
          "No answer: the kernel is busy, or was restarted. If it was restarted, run this cell again.",
          true,
        ),
      SILENT_MS,
    );
    this.selectTab("watch");
    this.form.unfold(false); // what one wants to see now is the run
  }

  // A kernel that was restarted knows nothing of this panel: nothing can be asked of it any more.
  onKernel() {
    if (this.model.comm_live) return;
    for (const button of [this.run, this.stop, this.switch, this.whatIf.button]) button.disabled = true;
    this.say("The kernel was restarted: run this cell again.", true);
  }

  onMessage(message) {
    clearTimeout(this.silent);
    if (message.kind === "who") this.send({ kind: "hello" });
    if (message.kind === "answer") this.say(message.text, message.wrong);
    if (message.kind === "values") {
      this.form.values = structuredClone(message.values);
      this.form.draw();
      this.markCard();
      this.ask();
    }
    if (message.kind === "films" && (!message.view || message.view === this.view)) this.onFilms(message);
    if (message.kind === "nowhere" && message.view === this.view) this.stage.nowhere();
    if (message.kind === "tree") this.tree.show(message);
    if (message.kind === "python") this.onPython(message);
    if (message.seq !== this.seq) return; // about values that have changed since
    if (message.kind === "verdict") this.onVerdict(message);
    if (message.kind === "probe") this.onProbe(message);
  }

  onVerdict({ errors, disabled, differs, speeds: values, yaml, python, repeats }) {
    this.allow(this.form.errors(errors), errors);
    this.form.differs(differs ?? []);
    this.form.disable(disabled);
    this.form.speeds(values);
    this.form.sections
      .get("cluster")
      .picture.replaceChildren(...speeds(values, (edited) => this.editSpeeds(edited)));
    this.prediction.workers(values.length);
    this.pace.hidden = this.form.values.rest.backend !== "simulated"; // machines have their own
    this.pythonOf.textContent = "of the selected experiment";
    this.python.textContent = python ?? "";
    this.repeats.textContent = repeats ?? "";
    this.yaml.textContent = yaml ?? "";
  }

  onProbe({ errors, disabled, label_counts: counts, classes }) {
    if (Object.keys(errors).length) this.allow(this.form.errors(errors), errors);
    this.form.disable(disabled);
    this.form.sections.get("sharding").picture.replaceChildren(...labels(counts, classes ?? []));
  }

  // The reason why nothing can be run stands beside the button.
  allow(ok, errors = {}) {
    const [first, ...others] = Object.values(errors);
    if (!ok) this.say(`${first}${others.length ? ` (and ${others.length} more)` : ""}`, true);
    else if (!this.ok) this.say("");
    this.ok = ok;
    this.run.disabled = !ok;
    this.run.title = ok ? "Run the selected experiment" : "Correct the marked fields first";
  }

  // A cluster whose speeds were changed by hand is no longer the published one, but a custom one.
  editSpeeds(values) {
    const { name: _, ...kept } = this.form.values.cluster;
    const custom = this.form.form.domains.cluster.find((option) => option.name === "custom");
    const own = new Set(custom.fields.map((field) => field.name));
    const carried = Object.fromEntries(
      Object.entries(kept).filter(([key]) => own.has(key) && key !== "memory_gb"),
    );
    this.form.values.cluster = {
      ...carried,
      name: "custom",
      workers: values.length,
      speed: { $yaml: `[${values.join(", ")}]` },
    };
    this.form.fill("cluster");
    this.form.touched(true);
  }

  // ---------------------------------------------------------------- the moment

  onFilms({ films, live, at, sought }) {
    this.endOpening();
    const key = films.map(({ about }) => about.key).join();
    this.stage.show(films, { live, at, sought });
    if (live) this.tree.element.hidden = true; // of the run before
    if (key !== this.shownKey) this.ask(); // other picks differ from it
    this.shownKey = key;
    this.hint.hidden = true;
    this.whatIf.show(films[0].about, live);
    if (!live) this.whatIf.now(this.stage.composition);
    else if (this.stage.follow && this.bus.time !== null) this.bus.set({ time: null }); // of the run before
    this.showResult();
  }

  // What was expected was expected of one run.
  showGaps() {
    this.prediction.gaps.hidden = this.tab !== "watch" || this.stage.films.length > 1;
  }

  // Of the run that is shown first, once it is over and no other is under way.
  showResult() {
    this.showGaps();
    const [recording, beside] = this.stage.films.map((film) => film.recording);
    const line = (shown) => this.model.get("runs").find(({ number }) => `run ${number}` === shown?.about.key);
    const isOver = !this.stage.running && !this.element.dataset.running;
    this.result.show(isOver ? line(recording) : null, recording, line(beside));
  }

  // Lines over the charts follow at once; what is a sum up to the moment follows when it rests.
  onMoment(time, resting) {
    this.whatIf.now(this.stage.composition);
    this.bus.set({ time: this.stage.running && this.stage.follow ? null : time });
    if (!this.stage.brush) this.sum(resting, { at: time });
  }

  // What is a sum is that of the span of time which is selected, if one is.
  onSelected({ brush, worker }) {
    const changed = String(brush) !== String(this.bus.brush);
    this.bus.set({ brush, worker });
    if (changed) this.sum(true, brush ? { since: brush[0], at: brush[1] } : { at: this.stage.now });
  }

  sum(resting, moment) {
    clearTimeout(this.rest);
    if (resting && !this.opening)
      this.rest = setTimeout(() => this.send({ kind: "moment", ...moment }), REST_MS);
  }

  onRunAction(message) {
    this.send(message);
    if (!["show", "beside"].includes(message.kind)) return;
    this.selectTab("watch");
    if (!this.element.dataset.running) this.stage.announce(`Loading run ${message.number} …`);
  }

  onPython({ text, label }) {
    this.python.textContent = text;
    this.pythonOf.textContent = `of run ${label}`;
    this.selectTab("take");
  }

  // ---------------------------------------------------------------- the state

  onStatus() {
    const status = this.model.get("status");
    const running = status.running !== null && status.running !== undefined;
    this.stop.disabled = !running;
    this.state.hidden = !running;
    this.switch.disabled = !(running && status.can_switch);
    this.switch.title =
      running && !status.can_switch
        ? "This run has a single strategy: pick strategy_switch for two"
        : "Change to the other strategy now";
    const queued = status.queued?.length ? `, ${status.queued.length} queued` : "";
    this.words.textContent = this.words.title = running ? status.words + queued : "";
    this.left.textContent = running ? (status.left ?? "") : "";
    this.echo.textContent = this.echo.title = running ? `running ${status.running}: ${status.echo}` : "";
    const fraction = running ? status.fraction : null;
    this.meter.style.width = `${100 * (fraction ?? 0)}%`;
    this.progress.classList.toggle("psb-unknown", running && fraction === null);
    this.progress.setAttribute("aria-valuenow", String(Math.round(100 * (fraction ?? 0))));
    this.keepPlace(running);
    this.element.dataset.running = running ? String(status.running) : "";
    this.showResult();
    this.starting.hidden = !(running && status.starting?.rows?.length);
    if (!this.starting.hidden) this.starting.replaceChildren(startTable(status.starting));
    this.watch.classList.toggle("psb-put-away", Boolean(running && status.beginning));
    this.trouble.hidden = !status.trouble;
    if (status.trouble)
      this.trouble.replaceChildren(
        h("summary", {}, `Error in the panel: ${status.trouble.trim().split("\n").at(-1)}`),
        h("pre", { tabindex: "0" }, status.trouble),
      );
    if (running) this.endOpening();
    if (running) this.hint.hidden = true;
    if (running && /^(queued run|run \d+ queued)/.test(this.answer.textContent)) this.say("");
    this.sayLast();
  }

  // While charts are put away and come back, the page stays as long as it was: a reader who has scrolled down
  // stays there.
  keepPlace(running) {
    clearTimeout(this.place_);
    if (running && !this.element.dataset.running) this.watch.style.minHeight = `${this.watch.offsetHeight}px`;
    if (!running) this.place_ = setTimeout(() => (this.watch.style.minHeight = ""), PLACE_MS);
  }

  // An error is there as long as what it is about; the next verdict says it again if it still holds.
  sayNothingWrong() {
    if (this.answer.classList.contains("psb-wrong")) this.say("");
  }

  say(text, wrong = false) {
    this.answer.textContent = text;
    this.answer.classList.toggle("psb-wrong", wrong);
  }

  // What became of the newest run, once nothing runs.
  sayLast() {
    const last = this.model.get("runs")[0];
    if (!last || this.element.dataset.running || this.said === `${last.number} ${last.status}`) return;
    this.said = `${last.number} ${last.status}`;
    const isAsPlanned = last.status === "finished"; // the result says what came of it
    const why = last.status === "failed" ? last.error.trim().split("\n").at(-1) : !isAsPlanned && last.reason;
    const what = why && why.startsWith(last.status) ? why : `${last.status}${why ? `: ${why}` : ""}`;
    this.say(
      `run ${last.number} ${what}`,
      ["failed", "diverged"].includes(last.status),
    );
  }

  onRuns() {
    const runs = this.model.get("runs");
    for (const { number, colour } of runs) this.element.style.setProperty(`--psb-run-${number}`, colour);
    this.runs.show(runs);
    this.explanation.offer(runs);
    this.showResult();
    const tab = this.element.querySelector(".psb-tab-compare");
    tab.textContent = runs.length ? `Runs (${runs.length})` : "Runs";
    this.sayLast();
    if (runs.some((run) => run.can_compare)) this.hint.hidden = true;
  }

  onWhy() {
    this.explanation.show(this.model.get("why") ?? {});
  }

  onExplain(message) {
    this.sayNothingWrong();
    this.send(message);
    if (message.kind === "why-open") this.selectTab("watch");
  }

  onTable() {
    this.table.show(this.model.get("table"));
  }

  onGoal() {
    const goal = this.model.get("goal") ?? {};
    this.goal.hidden = !goal.text;
    this.goal.replaceChildren(...goalLine(goal));
    this.prediction.say(goal.gaps ?? []);
  }

  // ---------------------------------------------------------------- charts

  async place(trait) {
    const wanted = this.model.get(trait);
    const uids = new Set(wanted.map(({ uid }) => uid));
    for (const [uid, chart] of this.charts) {
      if (chart.trait === trait && !uids.has(uid)) {
        chart.end?.();
        chart.slot.remove();
        this.charts.delete(uid);
      }
    }
    for (const { uid, group, key } of wanted) {
      if (this.charts.has(uid)) continue;
      const slot = h("div", { class: "psb-slot", "data-key": key ?? "" });
      const chart = { trait, slot };
      this.charts.set(uid, chart);
      this.grids[group].append(slot);
      const child = await this.model.widget_manager.get_model(uid);
      if (this.charts.get(uid) === chart)
        chart.end = mountChart(child, slot, trait === "watch" ? this.bus : null);
    }
  }

  dispose() {
    clearTimeout(this.silent);
    clearTimeout(this.timer);
    clearTimeout(this.rest);
    clearTimeout(this.place_);
    this.visibility.dispose();
    this.stage.dispose();
    this.table.dispose();
    for (const [name, handler] of this.handlers) this.model.off(name, handler);
    for (const chart of this.charts.values()) chart.end?.();
    this.charts.clear();
    try {
      this.send({ kind: "bye" });
    } catch {
      // the kernel or the page is gone: it would not be received
    }
    this.element.remove();
  }
}

// in whole microseconds, not before the moment: what had happened then has happened in the fork too
const inMicroseconds = (time) => Math.ceil(time * 1e6) / 1e6;

// Keys that are pressed in the panel are the panel's (JupyterLab would cut a cell at "x"), but Ctrl+S saves
// the notebook.
function save(event, outside) {
  if (event.key.toLowerCase() !== "s" || !(event.ctrlKey || event.metaKey)) return;
  if (!outside.dispatchEvent(new KeyboardEvent("keydown", event))) event.preventDefault();
}
