// An expected learning curve, drawn by pointer or set by keys; afterwards the curve that came is beside it.
import { button, h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, FOOT, TOP] = [300, 116, 40, 18, 6];
const POINTS = 9; // of the curve, at equal shares of the run
const STEPS = { ArrowUp: 0.02, ArrowDown: -0.02, PageUp: 0.1, PageDown: -0.1 };

function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const x = (share) => LEFT + share * (WIDTH - LEFT - 10);
const y = (accuracy) => TOP + (1 - accuracy) * (HEIGHT - TOP - FOOT);
const line = (points) =>
  points
    .map(([share, accuracy], i) => `${i ? "L" : "M"} ${x(share).toFixed(1)} ${y(accuracy).toFixed(1)}`)
    .join(" ");
const share = (i) => i / (POINTS - 1);

export class Drawing {
  constructor(changed) {
    this.changed = changed;
    this.points = null; // accuracies, 0 to 1; none before something is drawn
    this.came = null;
    this.handles = Array.from({ length: POINTS }, (_, i) =>
      s("circle", {
        class: "psb-drawn-point",
        r: 4,
        role: "slider",
        tabindex: "0",
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-label": `expected accuracy after ${Math.round(100 * share(i))} % of the run, percent`,
        cx: x(share(i)),
      }),
    );
    this.path = s("path", { class: "psb-drawn" });
    this.real = s("path", { class: "psb-came" });
    this.gap = s("path", { class: "psb-drawn-gap" });
    const text = (tx, ty, anchor, words) =>
      s("text", { x: tx, y: ty, "text-anchor": anchor, class: "psb-machine-text" }, words);
    const grid = [0, 0.5, 1].flatMap((value) => [
      s("path", {
        class: "psb-drawn-grid",
        d: line([
          [0, value],
          [1, value],
        ]),
      }),
      text(LEFT - 5, y(value) + 3, "end", `${100 * value} %`),
    ]);
    this.svg = s(
      "svg",
      {
        class: "psb-drawing-area",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        width: WIDTH,
        height: HEIGHT,
        role: "group",
        "aria-label": "expected learning curve: draw it, or set its points with the up and down keys",
      },
      ...grid,
      text(LEFT, HEIGHT - 4, "start", "start"),
      text(WIDTH - 10, HEIGHT - 4, "end", "end of the run"),
      this.gap,
      this.real,
      this.path,
      ...this.handles,
    );
    this.svg.onpointerdown = (event) => {
      this.svg.setPointerCapture(event.pointerId);
      this.last = null;
      this.put(event);
    };
    this.svg.onpointermove = (event) => event.buttons && this.put(event);
    this.svg.onpointerup = () => this.changed();
    this.svg.onkeydown = (event) => this.onKey(event);
    this.clear = button("clear", "psb-small psb-drawing-clear", () => this.take(null));
    this.words = h("span", { class: "psb-muted" }, "draw the learning curve that you expect");
    this.element = h(
      "div",
      { class: "psb-drawing" },
      h("div", { class: "psb-drawing-head" }, this.words, this.clear),
      this.svg,
    );
    this.draw();
  }

  values() {
    return this.points;
  }

  take(points) {
    this.points = points;
    this.came = null;
    this.draw();
    this.changed();
  }

  // Show the curve that came: a list of [share of the run, accuracy].
  show(came) {
    this.came = came;
    this.draw();
  }

  put(event) {
    const box = this.svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) * WIDTH) / box.width;
    const down = ((event.clientY - box.top) * HEIGHT) / box.height;
    const place = Math.min(
      POINTS - 1,
      Math.max(0, Math.round(((across - LEFT) / (WIDTH - LEFT - 10)) * (POINTS - 1))),
    );
    const value = round(1 - (down - TOP) / (HEIGHT - TOP - FOOT));
    this.points ??= Array(POINTS).fill(value);
    const from = this.last ?? { place, value };
    const [a, b] = from.place <= place ? [from, { place, value }] : [{ place, value }, from];
    for (let i = a.place; i <= b.place; i++)
      this.points[i] =
        a.place === b.place
          ? value
          : round(a.value + ((b.value - a.value) * (i - a.place)) / (b.place - a.place));
    this.last = { place, value };
    this.came = null;
    this.draw();
  }

  onKey(event) {
    const place = this.handles.indexOf(event.target);
    if (place < 0 || !(event.key in STEPS)) return;
    event.preventDefault();
    event.stopPropagation();
    this.points ??= Array(POINTS).fill(0.5);
    this.points[place] = round(this.points[place] + STEPS[event.key]);
    this.came = null;
    this.draw();
    this.changed();
  }

  draw() {
    const drawn = this.points?.map((value, i) => [share(i), value]) ?? [];
    this.path.setAttribute("d", line(drawn));
    this.real.setAttribute("d", line(this.came ?? []));
    this.gap.setAttribute(
      "d",
      this.came && drawn.length ? `${line(drawn)} ${line([...this.came].reverse()).replace("M", "L")} Z` : "",
    );
    this.clear.hidden = !this.points;
    this.words.textContent = this.came
      ? "dashed: your prediction; solid: the result"
      : "draw the learning curve that you expect";
    this.handles.forEach((handle, i) => {
      const value = this.points?.[i] ?? 0.5;
      handle.setAttribute("cy", y(value));
      handle.setAttribute("aria-valuenow", Math.round(100 * value));
      handle.setAttribute(
        "aria-valuetext",
        this.points ? `${Math.round(100 * value)} %` : "nothing drawn yet",
      );
      handle.classList.toggle("psb-not-drawn", !this.points);
    });
  }
}

const round = (value) => Math.round(100 * Math.min(1, Math.max(0, value))) / 100;
