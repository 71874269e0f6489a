// The controls, drawn from what Python says about each field. Nothing here knows a strategy or a part.
import { button, h } from "./dom.js";
import { chooser } from "./chooser.js";
import { popover } from "./popover.js";
import { TERMS } from "./terms.js";

const hint = (item) =>
  [item.description || item.summary, item.source && `Source: ${item.source}`].filter(Boolean).join("\n");
const shown = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return "$yaml" in value ? value.$yaml : JSON.stringify(value);
  return String(value);
};
const lastWord = (path) => path.split(".").at(-1).replaceAll("_", " ");
const defaults = (fields) =>
  Object.fromEntries(
    fields
      .filter((f) => f.default !== null)
      .map((f) => [f.name, f.kind === "yaml" ? { $yaml: f.default } : structuredClone(f.default)]),
  );

// parameters of a strategy that a beginner never touches
const RARE = new Set([
  "large_tensor",
  "servers",
  "assignment",
  "reassignment",
  "codec",
  "codec_down",
  "error_feedback",
  "momentum",
  "ramp_updates",
  "cost_s",
  "lr_scaling",
  "weights",
]);
// what every optimizer has, and what one comes for
const NEAR = new Set(["lr"]);
// numbers of a strategy that the sentence has room for
const SAID = 2;
// and those that count for some graphs or rings only
const UNSAID = new Set(["graph_seed", "group_size"]);
const SIMPLE = new Set(["integer", "number"]);
// workers whose speeds are listed
const LISTED = 6;
const DOMAINS = {
  consistency: "Consistency: when workers wait for each other",
  aggregation: "Aggregation: how pushes become the next model",
  communication: "Communication: content and time of messages",
  stragglers: "Stragglers: amount of work for each worker",
  placement: "Placement: location of the parameters",
  switching: "Switching: one strategy, then another",
};

export class Form {
  // form: see controls.form(); values: what the controls show; changed(): called after every change
  constructor(form, values, changed) {
    this.form = form;
    this.values = values;
    this.changed = changed;
    this.sections = new Map();
    this.disabled = {};
    this.selects = []; // [select, choice] whose options may be disabled
    this.choosers = []; // [chooser, choice] of the same kind
    this.typed = new Map();
    this.opened = new Set(); // what was typed for an option that is not chosen any more, by choice and name
    // the set-up in one sentence, and all else
    this.sentence = h("div", { class: "psb-ask" });
    this.train = h("span", { class: "psb-ask-part" });
    this.element = h("div", { class: "psb-form", hidden: true });
    this.more = button("", "psb-link psb-all-settings", () => this.unfold(this.element.hidden));
    this.unfold(false);
    this.draw();
  }

  unfold(open) {
    this.element.hidden = !open;
    this.more.textContent = open ? "all settings ▾" : "all settings ▸";
    this.more.setAttribute("aria-expanded", String(open));
  }

  draw() {
    const open = new Set([...this.sections].filter(([, s]) => s.element.open).map(([key]) => key));
    this.sections.clear();
    this.selects = [];
    this.choosers = [];
    const sections = [...this.form.sections, { key: "rest", title: "Seed, batch, backend" }];
    const order = ["strategy", "sharding", "data", "model", "stop"]; // what is changed most comes first
    sections.sort((x, y) => ((order.indexOf(x.key) + 99) % 99) - ((order.indexOf(y.key) + 99) % 99));
    const cluster = this.cluster();
    this.element.replaceChildren(
      ...sections
        .filter(({ key }) => key !== "cluster")
        .map((section) => this.section(section, open.has(section.key))),
    );
    this.sentence.replaceChildren(
      "Train with ",
      this.train,
      h("span", { class: "psb-ask-part" }, "on ", cluster),
    );
    this.applyDisabled();
    this.summarise();
  }

  // The machines, in words that open their fields.
  cluster() {
    const body = h("div", { class: "psb-section-body" });
    const error = h("div", { class: "psb-error", role: "alert", hidden: true });
    const picture = h("div", { class: "psb-picture" });
    const chosen = h("span", {}, this.machines ?? "…");
    const element = popover(
      h(
        "details",
        { class: "psb-section psb-section-cluster" },
        h("summary", { class: "psb-pick", title: "the machines: press to change them" }, chosen),
        h("div", { class: "psb-popped" }, body, picture, error),
      ),
    );
    this.sections.set("cluster", { element, body, chosen, error, picture });
    this.fill("cluster");
    return element;
  }

  // Say how fast the workers of the cluster are.
  speeds(values) {
    const { chosen } = this.sections.get("cluster");
    if (!values.length) return;
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const count = `${values.length} worker${values.length > 1 ? "s" : ""}`;
    const isEqual = least === most;
    const each = values.length <= LISTED ? values.join(", ") : `${least} to ${most}`;
    this.machines = isEqual ? `${count}, equally fast` : `${count}: ${each} ×`;
    chosen.textContent = this.machines;
  }

  section({ key, title }, open) {
    const chosen = h("span", { class: "psb-chosen" });
    const body = h("div", { class: "psb-section-body" });
    const error = h("div", { class: "psb-error", role: "alert", hidden: true });
    const picture = h("div", { class: "psb-picture" });
    const element = h(
      "details",
      { class: `psb-section psb-section-${key}`, open },
      h("summary", {}, h("span", { class: "psb-section-title" }, title), chosen),
      body,
      picture,
      error,
    );
    this.sections.set(key, { element, body, chosen, error, picture });
    this.fill(key);
    return element;
  }

  fill(key) {
    const { body } = this.sections.get(key);
    this.selects = this.selects.filter(([select]) => !body.contains(select));
    if (key === "strategy") this.choosers = [];
    body.replaceChildren(...this.content(key));
  }

  content(key) {
    if (key === "strategy") return this.strategy();
    if (key === "stop" || key === "rest") {
      this.values[key] ??= {};
      return this.fields(this.form[key], this.values[key], key);
    }
    return this.part(key, this.values[key], (value) => (this.values[key] = value), key, key);
  }

  // ---------------------------------------------------------------- parts and strategies

  part(domain, value, put, key, choice) {
    return this.choose(this.form.domains[domain] ?? [], value, put, key, choice);
  }

  choose(options, value, put, key, choice) {
    const current = options.find((o) => o.name === value?.name) ?? options[0];
    const select = h("select", {
      class: "psb-select",
      title: hint(current),
      "aria-label": choice.replaceAll(".", " "),
    });
    for (const o of options)
      select.append(
        h(
          "option",
          { value: o.name, title: hint(o), selected: o === current },
          o.title ?? o.name.replaceAll("_", " "),
        ),
      );
    select.onchange = () =>
      this.take(
        options.find((o) => o.name === select.value),
        value,
        put,
        key,
        choice,
      );
    this.selects.push([select, choice]);
    const summary = h("p", { class: "psb-summary", title: hint(current) }, current.summary);
    return [select, summary, ...this.fields(current.fields, value ?? {}, key, options)];
  }

  // Choose an option; what was typed for the one before comes back with it.
  take(option, before, put, key, choice) {
    if (before?.name) this.typed.set(`${choice} ${before.name}`, before);
    put(this.typed.get(`${choice} ${option.name}`) ?? { name: option.name, ...defaults(option.fields) });
    this.fill(key);
    this.touched(true);
  }

  // The strategies of the catalogue by domain, with a search field.
  chooser(current, value, shown = null) {
    const options = this.form.strategies;
    const groups = Object.entries(DOMAINS).map(([domain, title]) => ({
      title,
      about: TERMS[domain],
      options: options.filter((o) => o.domain === domain),
    }));
    const take = (option) =>
      this.take(option, value, (v) => (this.values.strategy = v), "strategy", "strategy");
    const found = chooser(groups, current, "strategies", take, shown);
    this.choosers.push([found, "strategy"]);
    return found;
  }

  published(value) {
    const options = this.form.strategies;
    const current = options.find((o) => o.name === value.name) ?? options[0];
    const found = this.chooser(current.name, value);
    const summary = h("p", { class: "psb-summary", title: hint(current) }, current.summary);
    const { near, far, which } = this.sorted(current.fields, "strategy", options);
    const said = near.filter((f) => SIMPLE.has(f.kind) && !UNSAID.has(f.name)).slice(0, SAID);
    this.say(found.element, said, value);
    const others = near.filter((f) => !said.includes(f)).map((f) => this.field(f, value, "strategy"));
    return [summary, ...others, ...this.rare(far, which, value, "strategy")];
  }

  // The strategy and its first numbers, as the sentence has them.
  say(chosen, fields, value) {
    const called = ({ label }) => label.replace(/^staleness /, "");
    const isPlural = (f) => /[^s]s$/.test(called(f));
    const article = (f) => (isPlural(f) ? "" : /^[aeiou]/.test(called(f)) ? "an " : "a ");
    this.train.replaceChildren(
      chosen,
      ...fields.flatMap((f, i) => {
        const input = this.input(f, value);
        input.classList.add("psb-input");
        input.dataset.field = f.name;
        input.setAttribute("aria-label", f.label);
        const unit = f.unit && f.unit !== f.label ? ` ${f.unit}` : "";
        return [
          h(
            "label",
            { class: "psb-ask-part", title: hint(f) },
            `and ${i ? "" : article(f)}${called(f)} of `,
            input,
            unit,
          ),
        ];
      }),
    );
  }

  strategy() {
    const value = this.values.strategy;
    const composed = "consistency" in value;
    const mode = (label, on, click) => button(label, "psb-mode", click, { "aria-pressed": String(on) });
    const modes = h(
      "div",
      { class: "psb-modes", role: "group", "aria-label": "how to choose a strategy" },
      mode("published", !composed, () => composed && this.setStrategy(this.named("ssp"))),
      mode("composed", composed, () => !composed && this.setStrategy(this.compose(value))),
    );
    if (!composed) {
      return [...this.published(value), modes];
    }
    const rows = this.form.compose.map((domain) =>
      h(
        "div",
        { class: "psb-domain" },
        h("div", { class: "psb-domain-name" }, domain),
        ...this.part(domain, value[domain], (v) => (value[domain] = v), "strategy", `strategy.${domain}`),
      ),
    );
    this.say(this.chooser(null, value, "a composition of my own").element, [], value);
    return [...this.fields([this.form.lr_scaling], value, "strategy"), ...rows, modes];
  }

  named(name) {
    const entry = this.form.strategies.find((s) => s.name === name) ?? this.form.strategies[0];
    return { name: entry.name, ...defaults(entry.fields) };
  }

  // Take a published strategy apart, with its parameters, as the beginning of one's own.
  compose(value) {
    let entry = this.form.strategies.find((s) => s.name === value.name);
    if (!entry?.parts) entry = this.form.strategies.find((s) => s.parts);
    const made = { name: "custom", lr_scaling: entry.lr_scaling };
    for (const domain of this.form.compose) {
      const option = this.form.domains[domain].find((o) => o.name === entry.parts[domain]);
      made[domain] = { name: option.name, ...defaults(option.fields) };
      for (const f of option.fields)
        if (entry.name === value.name && f.name in value) made[domain][f.name] = value[f.name];
    }
    return made;
  }

  setStrategy(value) {
    this.values.strategy = value;
    this.fill("strategy");
    this.touched(true);
  }

  // ---------------------------------------------------------------- fields

  fields(fields, values, key, rivals = []) {
    const { near, far, which } = this.sorted(fields, key, rivals);
    return [...near.map((f) => this.field(f, values, key)), ...this.rare(far, which, values, key)];
  }

  // What one comes for, and what goes below.
  sorted(fields, key, rivals = []) {
    // what every option has in common is rarely what one came for, nor are codecs: they go below
    const every =
      rivals.length > 1 && fields.length > 6
        ? new Set(
            fields.map((f) => f.name).filter((n) => rivals.every((r) => r.fields.some((f) => f.name === n))),
          )
        : new Set();
    const rare = (f) =>
      !NEAR.has(f.name) &&
      (every.has(f.name) || (f.kind === "part" && f.domain === "codec") || RARE.has(f.name));
    const near = fields
      .filter((f) => !rare(f))
      .sort((a, b) => Number(b.name === "rule") - Number(a.name === "rule"));
    return { near, far: fields.filter(rare), which: `${key} ${fields.find(rare)?.name}` };
  }

  // What is folded away; a choice within it draws it again, and it stays open.
  rare(fields, which, values, key) {
    if (!fields.length) return [];
    const rows = fields.map((f) => this.field(f, values, key));
    const remember = (event) => (event.target.open ? this.opened.add(which) : this.opened.delete(which));
    const open = this.opened.has(which);
    return [
      h(
        "details",
        { class: "psb-more", open, ontoggle: remember },
        h("summary", {}, `advanced (${rows.length})`),
        rows,
      ),
    ];
  }

  field(f, values, key) {
    const label = h(
      "span",
      { class: "psb-label" },
      f.label,
      f.unit && f.unit !== f.label && h("span", { class: "psb-unit" }, f.unit),
    );
    if (f.kind === "part" || f.kind === "strategy") {
      const options =
        f.kind === "part" ? (this.form.domains[f.domain] ?? []) : this.form.strategies.filter((s) => s.parts);
      values[f.name] ??= structuredClone(f.default);
      return h(
        "div",
        { class: "psb-nested", title: hint(f) },
        label,
        this.choose(options, values[f.name], (v) => (values[f.name] = v), key, `${key}.${f.name}`),
      );
    }
    const input = this.input(f, values);
    input.classList.add("psb-input");
    input.dataset.field = f.name;
    return h("label", { class: "psb-field", title: hint(f) }, label, input);
  }

  input(f, values) {
    const put = (value) => {
      values[f.name] = value;
      this.touched();
    };
    const value = f.name in values ? values[f.name] : f.default;
    if (f.kind === "bool")
      return h("input", {
        type: "checkbox",
        checked: Boolean(value),
        onchange: (e) => put(e.target.checked),
      });
    if (f.kind === "choice") {
      const select = h("select", { onchange: (e) => put(f.choices[e.target.selectedIndex]) });
      for (const c of f.choices)
        select.append(h("option", { selected: c === value }, String(c).replaceAll("_", " ")));
      return select;
    }
    if (f.kind === "integer" || f.kind === "number") return this.number(f, value, put);
    const text = f.kind === "yaml" ? (v) => ({ $yaml: v }) : (v) => v;
    return h("input", {
      type: "text",
      value: shown(value),
      placeholder: f.optional ? "none" : "",
      spellcheck: "false",
      oninput: (e) => put(e.target.value === "" ? null : text(e.target.value)),
    });
  }

  number(f, value, put) {
    const limit = { min: f.min ?? f.above, max: f.max ?? f.below };
    const input = h("input", {
      type: "number",
      step: f.kind === "integer" ? "1" : "any",
      value: shown(value),
      placeholder: f.optional ? "none" : "",
      ...limit,
    });
    input.oninput = () => {
      const given = input.value === "" ? (input.validity.badInput ? "?" : null) : Number(input.value);
      input.classList.toggle(
        "psb-wrong",
        !input.validity.valid ||
          (f.above !== undefined && given !== null && given <= f.above) ||
          (f.below !== undefined && given !== null && given >= f.below),
      );
      put(given);
    };
    return input;
  }

  // ---------------------------------------------------------------- what Python says about it

  touched(redraw = false) {
    if (redraw) this.applyDisabled();
    this.summarise();
    this.changed();
  }

  summarise() {
    for (const [key, { chosen }] of this.sections) {
      if (key === "cluster") continue; // see speeds
      const value = this.values[key] ?? {};
      let text = value.name?.replaceAll("_", " ") ?? "";
      if (key === "strategy" && value.first)
        text = `${value.first.name} → ${value.second.name}`.replaceAll("_", " ");
      else if (key === "strategy")
        text = this.form.strategies.find((s) => s.name === value.name)?.label ?? text;
      if (key === "stop")
        text = Object.entries(value)
          .filter(([, v]) => v !== null)
          .map(([k, v]) => `${v} ${k.replaceAll("_", " ")}`)
          .join(", ");
      if (key === "rest") text = `seed ${value.seed}, ${value.backend}`;
      chosen.textContent = text;
    }
  }

  // Messages beside the controls; returns whether there are none.
  errors(errors) {
    for (const [key, { error, element }] of this.sections) {
      const text = errors[key] ?? "";
      error.textContent = text;
      error.hidden = !text;
      element.classList.toggle("psb-bad", Boolean(text));
      if (text && key !== "cluster") element.open = true;
      if (text && !["cluster", "strategy"].includes(key)) this.unfold(true);
    }
    return !Object.keys(errors).length;
  }

  // Mark what differs from the run that is shown (dotted paths of the experiment).
  differs(paths) {
    for (const [key, { element, chosen }] of this.sections) {
      const own = paths.filter((path) =>
        path.includes(".") || this.sections.has(path) ? path.split(".")[0] === key : key === "rest",
      );
      element.classList.toggle("psb-differs", own.length > 0);
      chosen.title = own.length ? `differs from the displayed run: ${own.map(lastWord).join(", ")}` : "";
      const inputs = [element, key === "strategy" ? this.train : null].filter(Boolean);
      for (const input of inputs.flatMap((place) => [...place.querySelectorAll("[data-field]")]))
        input.classList.toggle(
          "psb-differs",
          own.some((path) => path.split(".").includes(input.dataset.field)),
        );
    }
  }

  disable(disabled) {
    Object.assign(this.disabled, disabled);
    this.applyDisabled();
  }

  applyDisabled() {
    for (const [found, choice] of this.choosers) found.disable(this.disabled[choice] ?? {});
    for (const [select, choice] of this.selects) {
      const reasons = this.disabled[choice] ?? {};
      for (const option of select.options) {
        const why = reasons[option.value];
        option.disabled = Boolean(why) && !option.selected;
        option.textContent = option.value.replaceAll("_", " ") + (option.disabled ? ` – ${why}` : "");
        if (why) option.title = why;
      }
    }
  }
}
