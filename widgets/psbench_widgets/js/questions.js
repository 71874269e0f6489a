// What the user expects before a run, what would happen otherwise, and a goal to reach.
import { button, h, select } from "./dom.js";
import { Drawing } from "./drawing.js";
import { popover } from "./popover.js";

const LISTED = 64; // more workers than this are typed

export class Prediction {
  constructor(send) {
    this.send = send;
    this.most = h("select", { class: "psb-select psb-predict-most", "aria-label": "who will wait most" });
    this.accuracy = h("input", {
      class: "psb-input psb-predict-accuracy",
      type: "number",
      min: "0",
      max: "100",
      step: "0.5",
      placeholder: "%",
      "aria-label": "final accuracy, percent",
    });
    this.faster = h("input", {
      class: "psb-input psb-predict-faster",
      type: "number",
      min: "0.01",
      step: "0.1",
      placeholder: "×",
      "aria-label": "speed relative to the previous run",
    });
    this.list = h("ul", { class: "psb-gaps" });
    this.gaps = h("div", { role: "status" }, this.list);
    for (const input of [this.most, this.accuracy, this.faster])
      input.onchange = () => this.send(this.values());
    this.drawing = new Drawing(() => this.send(this.values()));
    this.workers(0);
    const form = h(
      "div",
      { class: "psb-predict-form" },
      h("label", {}, "waits most ", this.most),
      h("label", {}, "accuracy ", this.accuracy, " %"),
      h("label", {}, "speed relative to the previous run ", this.faster, " ×"),
    );
    this.fold = popover(
      h(
        "details",
        { class: "psb-predict" },
        h("summary", {}, "Predict first"),
        h(
          "div",
          { class: "psb-popped psb-predict-body" },
          h("div", { class: "psb-predict-words" }, form),
          this.drawing.element,
        ),
      ),
    );
  }

  workers(count) {
    if (count === this.count) return;
    this.count = count;
    const chosen = this.most.value;
    this.most.replaceChildren(
      ...select([
        ["", "–"],
        ["nobody", "nobody"],
        ...Array.from({ length: Math.min(count, LISTED) }, (_, i) => [String(i), `worker ${i}`]),
      ]).options,
    );
    this.most.value = [...this.most.options].some((o) => o.value === chosen) ? chosen : "";
  }

  values() {
    const number = (input, factor = 1) => (input.value === "" ? null : Number(input.value) * factor);
    const most = this.most.value;
    return {
      most_waiting: most === "" ? null : most === "nobody" ? "nobody" : Number(most),
      accuracy: number(this.accuracy, 0.01),
      times_as_fast: number(this.faster),
      curve: this.drawing.values(),
    };
  }

  say(gaps) {
    this.list.replaceChildren(
      ...gaps.map(({ text, right }) => h("li", { class: right ? "psb-right" : "psb-off" }, text)),
    );
    this.drawing.show(gaps.find(({ came }) => came)?.came ?? null);
    if (gaps.length) this.fold.open = false; // the machine and the curve stay in sight
  }
}

// A list of the workers, or a number where there are too many for one.
function workerInput(workers) {
  const attributes = { class: "psb-select psb-what-worker", "aria-label": "worker" };
  if (workers.length > LISTED)
    return h("input", {
      ...attributes,
      type: "number",
      min: "0",
      max: String(workers.length - 1),
      value: "0",
    });
  return select(
    workers.map((w) => [String(w), `worker ${w}`]),
    attributes,
  );
}

const CHANGES = {
  strategy: "the strategy is",
  bound: "the staleness bound is",
  speed: "a worker's speed is",
  link: "a worker's link is",
  kill: "a worker fails:",
  back: "a worker comes back:",
  switch: "it switches now",
};

export class WhatIf {
  constructor(form, fork, refuse) {
    this.fork = fork;
    this.refuse = refuse;
    this.strategies = form.strategies.filter((s) => s.parts);
    this.what = select(Object.entries(CHANGES), {
      class: "psb-select psb-what",
      "aria-label": "what changes from this moment on",
      onchange: () => this.draw(),
    });
    this.strategy = select(
      this.strategies.map((s) => [s.name, s.label]),
      { class: "psb-select psb-what-strategy", "aria-label": "strategy" },
    );
    this.wanted = this.strategy.value = "asp";
    this.strategy.onchange = () => (this.wanted = this.strategy.value);
    this.worker = workerInput([]);
    this.momentum = select(
      [
        ["keep", "and the momentum is kept"],
        ["zero", "and the momentum is reset"],
      ],
      { class: "psb-select psb-what-momentum", "aria-label": "the optimizer's momentum" },
    );
    this.number = h("input", {
      class: "psb-input psb-what-number",
      type: "number",
      value: "2",
      "aria-label": "value",
    });
    this.button = button("Fork here", "psb-button psb-fork", () => this.press(), {
      disabled: true, // until a run is shown
      title: "Simulate again from the same seed: the run is identical until this moment",
    });
    this.place = h("span", { class: "psb-what-values" });
    this.why = h("span", { class: "psb-muted psb-what-why" });
    this.element = h(
      "div",
      { class: "psb-whatif", hidden: true, role: "group", "aria-label": "what if" },
      h("b", {}, "What if from here on"),
      this.what,
      this.place,
      this.button,
      this.why,
    );
    this.draw();
  }

  // What else could be from here on is asked for by a press.
  toggle(open = this.element.hidden) {
    this.element.hidden = !open;
    if (open) this.what.focus();
  }

  // Have the number of what is chosen typed.
  type() {
    this.toggle(true);
    this.number.focus();
  }

  show(about, live) {
    const workers = about.workers ?? [];
    if (this.workers !== String(workers)) {
      this.workers = String(workers);
      this.worker = workerInput(workers);
      this.draw();
    }
    const simulated = about.can_fork !== false;
    const can = simulated || live;
    this.button.disabled = !can;
    this.button.textContent = can && !simulated ? "Do it now" : "Fork here";
    for (const o of this.what.options) {
      if (o.value === "switch") o.disabled = !about.can_switch;
      if (o.value === "bound") o.disabled = !about.bounded || !simulated;
      if (["strategy", "link"].includes(o.value)) o.disabled = !simulated;
    }
    if (can && this.what.selectedOptions[0].disabled) {
      this.what.value = "speed";
      this.draw();
    }
    this.now(this.composition ?? null);
    this.why.textContent = can
      ? simulated
        ? `${live ? "ends this run; " : ""}simulates again from the seed: identical until this moment`
        : "live: applied to the machines now"
      : "only simulated runs can be forked exactly";
  }

  // What is in force at the moment is no change.
  now(composition) {
    this.composition = composition;
    for (const o of this.strategy.options) o.disabled = o.value === composition;
    this.strategy.value = [this.wanted, "asp", "bsp"].find((name) => name !== composition);
  }

  // Show a change of a worker; `press` makes it.
  choose(what, worker, number) {
    this.what.value = what;
    this.worker.value = String(worker);
    if (number !== undefined) this.number.value = String(number);
    this.draw();
  }

  draw() {
    const what = this.what.value;
    const shown = {
      strategy: [this.strategy, this.momentum],
      bound: [this.number, this.momentum],
      speed: [this.worker, this.number, "times as fast"],
      link: [this.worker, this.number, "times as fast"],
      kill: [this.worker],
      back: [this.worker],
      switch: [],
    }[what];
    this.number.min = what === "bound" ? "0" : "0.01";
    this.number.step = what === "bound" ? "1" : "any";
    this.place.replaceChildren(...shown);
  }

  press() {
    if (this.button.disabled)
      return this.refuse(
        "This run was live and cannot be rewound. Simulate it to fork it.",
      );
    const what = this.what.value;
    const worker = Number(this.worker.value);
    const momentum = this.momentum.value;
    this.toggle(false);
    this.fork(
      {
        strategy: { strategy: this.strategy.value, momentum },
        bound: { bound: Number(this.number.value), momentum },
        speed: { worker, speed: Number(this.number.value) },
        link: { worker, link: Number(this.number.value) },
        kill: { worker, kill: true },
        back: { worker, back: true },
        switch: { switch: true },
      }[what],
    );
  }
}

export function goalLine({ text, reached, why }) {
  return text
    ? [
        h("b", {}, reached ? "Reached: " : "Goal: "),
        text,
        why ? h("span", { class: "psb-muted" }, ` – ${why}`) : "",
      ]
    : [];
}
