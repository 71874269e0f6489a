// Small pictures beside the controls: the workers' speeds (to be edited) and who has which labels.
import { h } from "./dom.js";
import { MANY } from "./layout.js";

const EDITABLE = 16; // more bars than this are too thin to take hold of

const STEPS = 40; // of the curve that the speeds of many workers are

export function speeds(values, edit) {
  if (!values.length) return [];
  if (values.length > MANY) return curve(values, edit);
  const most = Math.max(...values, 1);
  const few = values.length <= EDITABLE;
  const bars = values.map((speed, worker) => {
    const bar = h("div", { class: "psb-bar-fill" });
    const show = (v) => (bar.style.height = `${Math.max(3, (100 * v) / most)}%`);
    show(speed);
    const track = h(
      "div",
      { class: "psb-bar-track", title: `worker ${worker}: speed ${Number(speed.toPrecision(3))}` },
      bar,
    );
    if (few) drag(track, most, show, (v) => edit(values.map((old, i) => (i === worker ? v : old))));
    const number =
      few &&
      h("input", {
        type: "number",
        min: "0.01",
        step: "0.05",
        value: Number(speed.toPrecision(3)),
        "aria-label": `speed of worker ${worker}`,
      });
    if (number)
      number.onchange = () =>
        Number(number.value) > 0 && edit(values.map((old, i) => (i === worker ? Number(number.value) : old)));
    return h("div", { class: "psb-bar" }, track, number, few && h("span", {}, String(worker)));
  });
  const caption = few ? "speed of each worker: drag a bar or type" : `speeds of ${values.length} workers`;
  return [
    h("div", { class: "psb-bars", role: "group", "aria-label": caption }, bars),
    h("div", { class: "psb-caption" }, caption),
  ];
}

// The speeds of many workers from the fastest to the slowest; a part that is dragged makes its workers faster
// or slower.
function curve(values, edit) {
  const most = Math.max(...values, 1);
  const order = values.map((_, worker) => worker).sort((a, b) => values[b] - values[a] || a - b);
  const count = Math.min(STEPS, values.length);
  const bars = Array.from({ length: count }, (_, i) => {
    const own = order.slice(
      Math.round((i * order.length) / count),
      Math.round(((i + 1) * order.length) / count),
    );
    const mean = own.reduce((sum, worker) => sum + values[worker], 0) / own.length;
    const bar = h("div", { class: "psb-bar-fill" });
    const show = (v) => (bar.style.height = `${Math.max(3, (100 * v) / most)}%`);
    show(mean);
    const title = `${own.length} workers of speed ${Number(mean.toPrecision(3))}: drag`;
    const track = h("div", { class: "psb-bar-track", title }, bar);
    const members = new Set(own);
    const scaled = (speed, v) => Number(((speed * v) / mean).toPrecision(3));
    drag(track, most, show, (v) =>
      edit(values.map((old, worker) => (members.has(worker) ? scaled(old, v) : old))),
    );
    return h("div", { class: "psb-bar" }, track);
  });
  const caption = `speeds of ${values.length} workers, fastest first: drag a part`;
  const attributes = { class: "psb-bars psb-curve", role: "group", "aria-label": caption };
  return [h("div", attributes, bars), h("div", { class: "psb-caption" }, caption)];
}

function drag(track, most, show, done) {
  const at = (event) => {
    const box = track.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (box.bottom - event.clientY) / box.height));
    return Math.max(0.05, Math.round(part * most * 20) / 20);
  };
  track.onpointerdown = (event) => {
    track.setPointerCapture(event.pointerId);
    show(at(event));
    track.onpointermove = (move) => show(at(move));
    track.onpointerup = (up) => {
      track.onpointermove = track.onpointerup = null;
      done(at(up));
    };
  };
}

export function labels(counts, classes) {
  if (!counts?.length || counts.length > 64 || classes.length > 40) return [];
  const most = Math.max(...counts.flat(), 1);
  const size = Math.max(7, Math.min(15, Math.floor(210 / classes.length)));
  const grid = h("div", {
    class: "psb-labels",
    role: "img",
    "aria-label": `samples of ${classes.length} classes on ${counts.length} workers, at most ${most}`,
  });
  grid.style.gridTemplateColumns = `repeat(${classes.length}, ${size}px)`;
  counts.forEach((row, worker) =>
    row.forEach((count, c) => {
      const cell = h("i", { title: `worker ${worker}, class ${classes[c]}: ${count}` });
      cell.style.opacity = String(count ? 0.12 + (0.88 * count) / most : 0.04);
      cell.style.height = `${size - 2}px`;
      grid.append(cell);
    }),
  );
  return [
    grid,
    h(
      "div",
      { class: "psb-caption" },
      "a row for each worker, a column for each class; darker: more samples",
    ),
  ];
}
