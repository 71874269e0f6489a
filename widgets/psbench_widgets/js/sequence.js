// Who sends what to whom around a moment: server and workers are lines, messages are arrows between them.
// The form is that of psbench.charts.sequence_chart.
import { svg as s } from "./dom.js";

const WIDTH = 330;
const LEFT = 54;
const TOP = 48;
const ROW = { least: 15, most: 32 };
const HEIGHT = 150; // of all rows together, if they are not too many for it
const MOST = 12; // workers; of more the evenly thinned
const STEPS = 3; // of each worker, about as many are shown

// Draw what a recording has around `now`; `collective` compositions have no server.
export function sequence(recording, now, colours, collective) {
  const every = Math.ceil(recording.workers.length / MOST);
  const places = recording.workers.map((_, i) => i).filter((i) => i % every === 0);
  const row = Math.max(ROW.least, Math.min(ROW.most, HEIGHT / (places.length + 1)));
  const line = new Map(places.map((place, i) => [place, TOP + row * (collective ? i : i + 1)]));
  const bottom = TOP + row * (collective ? places.length - 1 : places.length);
  const length = recording.readable(STEPS * 3 * recording.workers.length);
  const from = Math.max(recording.begin, Math.min(now - length / 2, recording.end - length));
  const to = from + length;
  const x = (time) => LEFT + ((WIDTH - LEFT - 4) * (Math.min(to, Math.max(from, time)) - from)) / length;
  const picture = s("svg", {
    viewBox: `0 0 ${WIDTH} ${bottom + 26}`,
    class: "psb-machine psb-sequence",
    role: "img",
    "aria-label": `messages between ${from.toPrecision(3)} and ${to.toPrecision(3)} s`,
    "data-from": from,
    "data-to": to,
  });
  const name = (y, text) =>
    picture.append(
      s("text", { x: LEFT - 5, y: y + 3, class: "psb-machine-text", "text-anchor": "end" }, text),
    );
  const lane = (y) => picture.append(s("line", { x1: LEFT, x2: WIDTH - 4, y1: y, y2: y, class: "psb-lane" }));
  if (!collective) {
    name(TOP, "server");
    lane(TOP);
    versions(picture, recording, from, to, x);
  }
  for (const place of places) {
    name(line.get(place), `worker ${recording.workers[place]}`);
    lane(line.get(place));
    for (const span of spansOf(recording, place, from, to))
      picture.append(drawn(recording, span, line.get(place), x, colours, collective));
  }
  picture.append(
    s("line", { x1: x(now), x2: x(now), y1: TOP - 8, y2: bottom + 8, class: "psb-sequence-now" }),
    s("text", { x: LEFT, y: bottom + 21, class: "psb-machine-text" }, `${from.toPrecision(4)} s`),
    s(
      "text",
      { x: WIDTH - 4, y: bottom + 21, class: "psb-machine-text", "text-anchor": "end" },
      `${to.toPrecision(4)} s`,
    ),
  );
  return picture;
}

function* spansOf(recording, place, from, to) {
  const { start_s, end_s } = recording.tables.spans;
  const [first, last] = recording.rows[place];
  for (let i = first; i < last && start_s[i] < to; i++) if (end_s[i] > from) yield i;
}

// A message is a stroke from line to line, what a worker does is a bar on its own.
function drawn(recording, span, y, x, colours, collective) {
  const { start_s, end_s, phase, worker } = recording.tables.spans;
  const what = recording.phases[phase[span]];
  const [begin, end] = [x(start_s[span]), x(end_s[span])];
  const milliseconds = ((end_s[span] - start_s[span]) * 1000).toPrecision(3);
  const lasted = `worker ${worker[span]}: ${what}, ${milliseconds} ms`;
  const title = s("title", {}, recording.why(span) || lasted);
  if (!collective && (what === "send" || what === "pull")) {
    const [y1, y2] = what === "send" ? [y, TOP] : [TOP, y];
    const angle = (Math.atan2(y2 - y1, end - begin) * 180) / Math.PI;
    return s(
      "g",
      { class: "psb-arrow", "data-phase": what, stroke: colours[what], fill: colours[what] },
      s("line", { x1: begin, y1, x2: end, y2, "stroke-width": 1.3 }),
      s("path", { d: "M 0 0 L -6 -2.6 L -6 2.6 Z", transform: `translate(${end} ${y2}) rotate(${angle})` }),
      title,
    );
  }
  const high = ["compute", "wait"].includes(what) ? 9 : 4.5;
  return s(
    "rect",
    { x: begin, y: y - high / 2, width: Math.max(0.5, end - begin - 0.4), height: high, fill: colours[what] },
    title,
  );
}

// Numbers of versions above the server's line, where they have room.
function versions(picture, recording, from, to, x) {
  const { time_s, version } = recording.tables.versions;
  let free = LEFT;
  for (let i = 0; i < time_s.length && time_s[i] < to; i++) {
    if (time_s[i] < from) continue;
    const at = x(time_s[i]);
    picture.append(s("line", { x1: at, x2: at, y1: TOP - 3, y2: TOP + 3, class: "psb-lane" }));
    if (at < free + 12) continue;
    picture.append(
      s("text", { x: at, y: TOP - 7, class: "psb-machine-text", "text-anchor": "middle" }, `v${version[i]}`),
    );
    free = at + 12;
  }
}
