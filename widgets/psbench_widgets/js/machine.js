// The state at a moment as a picture: workers and the server, with messages on their way between them.
import { svg as s } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 172;
const WITHOUT_FOOT = 160; // the same without a line at the bottom
const MIDDLE = 72; // of a ring, from above
const BEND = 26; // pixels that a line between two workers of a ring is bent
const NO_COMPOSITION = { name: "", collective: false, peers: false };
const NAMED = 12; // more workers than this have no room for words under them
const SPELLED = 4; // so many have room for whole words
const LETTER = 6.2; // of the words under a worker
const OCTAVE = 40; // pixels that a worker is dragged to be twice or half as fast
const MOST = 40; // and more than this are drawn evenly thinned

// Draw `state` (Recording.at) of a run; `about` names its compositions and says which have no server. Workers
// and their links can be pressed if `press` is given: { hold(), release(), choose(what, worker, factor),
// now(what, worker), fork() }, where what is speed, link, kill or back.
export function machine(state, about, colours, selected, press = null) {
  const composition = about.compositions?.[state.composition] ?? NO_COMPOSITION;
  const { peers } = composition;
  const all = about.workers ?? state.workers.map((w) => w.worker);
  const every = Math.ceil(all.length / MOST);
  const shown = all.filter((_, i) => i % every === 0);
  const places = composition.collective ? ring(shown.length) : row(shown.length);
  const place = new Map(shown.map((worker, i) => [worker, places[i]]));
  const here = new Map(state.workers.filter((w) => place.has(w.worker)).map((w) => [w.worker, w]));
  const radius = Math.max(4, Math.min(17, (WIDTH - 30) / (2.9 * shown.length)));
  const svg = s("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    class: "psb-machine",
    role: press ? "group" : "img",
    "aria-label": inWords(state, composition),
  });
  const links = s("g", { class: shown.length > NAMED ? "psb-links psb-dense" : "psb-links" });
  const messages = s("g", {});
  const nodes = s("g", {});
  svg.append(links, nodes, messages);
  if (composition.collective)
    nodes.append(
      words(WIDTH / 2, HEIGHT / 2 - 3, peers ? "no server" : `version ${state.version}`, "psb-strong"),
      words(WIDTH / 2, HEIGHT / 2 + 12, peers ? "each has its own model" : "with every worker"),
    );
  else server(nodes, state, composition);
  const clocks = state.workers.map((w) => w.clock);
  const [slowest, furthest] = [Math.min(...clocks), Math.max(...clocks)];
  const longest = `${furthest}`.length;
  const fits = (letters) => (letters * LETTER * shown.length) / (WIDTH - 36) < 1;
  const spelled = shown.length <= SPELLED && !composition.collective && fits(longest + " done".length);
  const named = shown.length <= NAMED && fits(longest + " +".length + `${furthest - slowest}`.length);
  const order = (clock) => {
    const lead = clock - slowest;
    if (spelled) return lead ? `${lead} ahead` : furthest > slowest ? "last" : "";
    return lead ? `+${lead}` : "";
  };
  if (every > 1)
    nodes.append(words(WIDTH / 2, HEIGHT - 3, `${shown.length} of ${all.length} workers, evenly chosen`));
  if (!spelled && named)
    nodes.append(words(WIDTH / 2, HEIGHT - 3, "under each worker: steps done, lead over the slowest"));
  if (spelled) svg.setAttribute("viewBox", `0 0 ${WIDTH} ${WITHOUT_FOOT}`);
  const awaited = new Set(state.ended ? [] : state.workers.map((w) => w.waitedFor));
  shown.forEach((worker, i) => {
    const at = places[i];
    const found = state.ended ? undefined : here.get(worker);
    const to = composition.collective ? places[(i + 1) % places.length] : { x: WIDTH / 2, y: 40 };
    const ends = { x1: at.x, y1: at.y, x2: to.x, y2: to.y };
    links.append(s("line", ends));
    if (press && found && !composition.collective) links.append(pressableLink(ends, worker, press, at));
    if (found && (found.phase === "send" || found.phase === "pull"))
      messages.append(message(at, to, found, composition.collective, colours));
    if (found?.waitedFor !== null && place.has(found?.waitedFor))
      links.append((composition.collective ? waitsInRing : waits)(at, place.get(found.waitedFor), radius));
    const drawn = node(
      worker,
      found,
      at,
      radius,
      colours,
      named,
      worker === selected,
      spelled,
      found ? order(found.clock) : "",
      state.ended ? "ended" : "gone",
    );
    if (awaited.has(worker)) drawn.classList.add("psb-awaited");
    if (press && !state.ended)
      found ? pressable(drawn, worker, press, at) : returning(drawn, worker, press);
    nodes.append(drawn);
  });
  return svg;
}

const row = (count) =>
  Array.from({ length: count }, (_, i) => ({ x: 18 + ((WIDTH - 36) * (i + 0.5)) / count, y: 112 }));
// what stands under the lowest worker keeps clear of the line at the bottom
const ring = (count) =>
  Array.from({ length: count }, (_, i) => ({
    x: WIDTH / 2 + 152 * Math.sin((2 * Math.PI * i) / count),
    y: MIDDLE - 50 * Math.cos((2 * Math.PI * i) / count),
  }));
const words = (x, y, text, kind = "") =>
  s("text", { x, y, class: `psb-machine-text ${kind}`, "text-anchor": "middle" }, text);

function server(nodes, state, composition) {
  const name = composition.servers > 1 ? `${composition.servers} servers` : "server";
  const waiting = state.buffer.length;
  const buffer = waiting ? `${waiting} push${waiting > 1 ? "es" : ""} in the buffer` : "buffer empty";
  const about = `model version ${state.version}, ${buffer}`;
  const width = Math.max(196, LETTER * about.length);
  const box = { x: (WIDTH - width) / 2, y: 4, width, height: 36, rx: 6, class: "psb-server" };
  nodes.append(s("rect", box));
  nodes.append(words(WIDTH / 2, 18, name, "psb-strong"));
  nodes.append(words(WIDTH / 2, 33, about));
}

function node(worker, found, at, radius, colours, named, selected, spelled, ahead, otherwise) {
  const colour = found ? colours[found.phase] : "none";
  const group = s("g", {
    class: `psb-node${found ? "" : " psb-gone"}${selected ? " psb-selected" : ""}`,
    "data-phase": found?.phase ?? otherwise,
    "data-worker": worker,
  });
  group.append(s("circle", { cx: at.x, cy: at.y, r: Math.max(radius, 14), class: "psb-node-hold" }));
  group.append(s("circle", { cx: at.x, cy: at.y, r: radius, stroke: colour, class: "psb-node-ring" }));
  if (found && found.phase === "compute") group.append(pie(at, radius, found.progress, colour));
  if (radius > 6) group.append(words(at.x, at.y + 4, String(worker), "psb-strong"));
  if (named) {
    // of many, on one line
    const steps = spelled ? `${found?.clock} done` : `${found?.clock} ${ahead}`.trim();
    group.append(words(at.x, at.y + radius + 14, found ? steps : otherwise));
    if (found && spelled)
      group.append(words(at.x, at.y + radius + 27, ahead, found.waits ? "psb-hot" : "psb-clock"));
  }
  group.append(
    s(
      "title",
      {},
      found
        ? `worker ${worker}: ${found.phase}, clock ${found.clock}, works on version ${found.version}`
        : `worker ${worker}: ${otherwise}`,
    ),
  );
  return group;
}

// A worker is dragged up or down to be faster or slower, and lost by Delete: each is another future.
function pressable(group, worker, press, at) {
  group.classList.add("psb-pressable");
  group.setAttribute("tabindex", "0");
  group.setAttribute("role", "button");
  group.setAttribute("aria-description", "a worker: press Enter to change its speed, Delete to make it fail");
  group.onkeydown = (event) => {
    if (!["Enter", " ", "Delete"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    event.key === "Delete" ? press.now("kill", worker) : press.choose("speed", worker);
  };
  dragged(group, "speed", worker, press, at);
}

// What is dragged up or down becomes faster or slower, by a factor that stands beside it; the factor of what
// is only pressed can be typed.
function dragged(element, what, worker, press, at) {
  element.onpointerdown = (down) => {
    const held = down.currentTarget;
    press.hold();
    held.setPointerCapture(down.pointerId);
    let factor = 1;
    const text = words(0, 0, "", "psb-strong");
    const sign = s("g", { class: "psb-factor" }, s("rect", { width: 52, height: 18, rx: 4 }), text);
    text.setAttribute("x", "26");
    text.setAttribute("y", "13");
    held.onpointermove = (event) => {
      factor = 2 ** ((down.clientY - event.clientY) / OCTAVE);
      factor = Number(Math.min(10, Math.max(0.1, factor)).toPrecision(2));
      press.choose(what, worker, factor);
      text.textContent = `${factor} ×`;
      const x = at.x + 70 > WIDTH ? at.x - 72 : at.x + 20;
      sign.setAttribute("transform", `translate(${x} ${at.y - 9})`);
      held.ownerSVGElement.append(sign);
    };
    held.onpointerup = () => (factor === 1 ? press.choose(what, worker) : press.fork());
    held.onlostpointercapture = () => {
      held.onpointermove = held.onpointerup = held.onlostpointercapture = null;
      press.release();
    };
  };
}

// A worker that is gone is brought back.
function returning(group, worker, press) {
  group.classList.add("psb-pressable");
  group.setAttribute("tabindex", "0");
  group.setAttribute("role", "button");
  group.setAttribute("aria-description", "a lost worker: press Enter to bring it back");
  // no click: while a run goes on, the pressed element is redrawn before its release
  group.onpointerdown = () => press.now("back", worker);
  group.onkeydown = (event) => {
    if (!["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    press.now("back", worker);
  };
}

// The link of a worker, wide enough to take hold of: dragged down it is throttled.
function pressableLink(ends, worker, press, at) {
  const link = s(
    "line",
    { ...ends, class: "psb-link-hold", "data-worker": worker },
    s("title", {}, `the link of worker ${worker}: drag down to throttle it`),
  );
  dragged(link, "link", worker, press, at);
  return link;
}

// How much of a step is done, as a ring that fills.
function pie(at, radius, progress, colour) {
  const around = 2 * Math.PI * (radius - 3);
  return s("circle", {
    cx: at.x,
    cy: at.y,
    r: radius - 3,
    stroke: colour,
    class: "psb-progress",
    "stroke-dasharray": `${around * progress} ${around}`,
    transform: `rotate(-90 ${at.x} ${at.y})`,
  });
}

function message(from, to, { phase, progress, version }, collective, colours) {
  const part = collective || phase === "send" ? progress : 1 - progress;
  const at = { x: from.x + (to.x - from.x) * part, y: from.y + (to.y - from.y) * part };
  const text = phase === "send" ? `gradient of version ${version}` : `model, version ${version}`;
  return s(
    "rect",
    {
      x: at.x - 4.5,
      y: at.y - 4.5,
      width: 9,
      height: 9,
      rx: phase === "send" ? 0 : 4.5,
      fill: colours[phase],
      class: "psb-message",
    },
    s("title", {}, text),
  );
}

function waits(from, to, radius) {
  const high = Math.min(from.y, to.y) - 48; // above the nodes: below them are words
  return s("path", {
    d: `M ${from.x} ${from.y - radius} Q ${(from.x + to.x) / 2} ${high} ${to.x} ${to.y - radius}`,
    class: "psb-waits",
  });
}

// Between two workers of a ring: bent away from its middle, where words are.
function waitsInRing(from, to, radius) {
  const [wide, high] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(wide, high);
  const [x, y] = [(radius * wide) / length, (radius * high) / length]; // from the middle of one to its edge
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const out = { x: middle.x - WIDTH / 2, y: middle.y - MIDDLE - 1 }; // up, if it is the middle
  const far = Math.hypot(out.x, out.y);
  const bent = `${middle.x + (BEND * out.x) / far} ${middle.y + (BEND * out.y) / far}`;
  const d = `M ${from.x + x} ${from.y + y} Q ${bent} ${to.x - x} ${to.y - y}`;
  return s("path", { d, class: "psb-waits" });
}

function inWords(state, composition) {
  const some = state.workers.slice(0, NAMED).map((w) => `worker ${w.worker} ${w.phase}, clock ${w.clock}`);
  const more = state.workers.length - some.length;
  const what = some.join("; ") + (more > 0 ? `; and ${more} more` : "");
  const buffered = `${state.buffer.length} pushes in the buffer`;
  return `${composition.name}, version ${state.version}, ${buffered}; ${what}`;
}
