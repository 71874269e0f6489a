// The computation tree around the moment: each of the last gradients applied, and the model that it is of.
import { h, svg as s } from "./dom.js";

const STEP = 54; // between two nodes
const LEFT = 30;
const TOP = 26;
const DEEPEST = 92; // of an arc

// What is drawn of columns of gradients: nodes of the main branch, and an arc for each gradient.
export function treeLayout({ node, worker, base, step, distance, version }) {
  if (!node?.length) return { nodes: [], arcs: [] };
  const first = node[0];
  const most = Math.max(1, ...distance);
  const x = (at) => LEFT + STEP * (at - first);
  const nodes = Array.from({ length: node.length + 1 }, (_, i) => ({ at: first + i, x: x(first + i) }));
  const arcs = node.map((at, i) => ({
    ...{ at, worker: worker[i], distance: distance[i], version: version[i], step: step[i] },
    from: Math.max(x(base[i]), LEFT / 2), // earlier than what is drawn: to the edge
    to: x(at),
    before: base[i] < first,
    depth: 8 + ((DEEPEST - 8) * distance[i]) / most,
  }));
  return { nodes, arcs };
}

// The last gradient in words.
export function treeSentence({ worker, step, distance, node }) {
  const last = node.length - 1;
  const who = `Gradient ${node[last] + 1} is worker ${worker[last]}'s`;
  const own = step[last] ? `, after ${step[last]} local step${step[last] > 1 ? "s" : ""}` : "";
  const far = distance[last];
  if (!far) return `${who}${own}, computed from the model that it changes: tree distance 0.`;
  const many = far === 1 ? "1 gradient was" : `${far} gradients were`;
  return `${who}${own}. Since the model that it was computed from, ${many} applied: tree distance ${far}.`;
}

export class Tree {
  constructor() {
    this.picture = h("div", { class: "psb-scroll", tabindex: "0", role: "region" });
    this.picture.setAttribute("aria-label", "computation tree, scrolls sideways");
    this.words = h("p", { class: "psb-tree-words" });
    this.element = h(
      "details",
      { class: "psb-tree", hidden: true },
      h("summary", {}, "Computation tree at this moment"),
      this.words,
      this.picture,
    );
  }

  show({ gradients, radius, applied, why }) {
    this.element.hidden = false;
    const drawn = !why && gradients.node?.length;
    this.element.dataset.applied = applied;
    if (!drawn) {
      this.words.textContent = why ? `There is none: ${why}.` : "No gradient has been applied yet.";
      this.picture.replaceChildren();
      return;
    }
    this.words.textContent = `${treeSentence(gradients)} The largest of the run is R = ${radius}.`;
    this.picture.replaceChildren(draw(treeLayout(gradients)));
  }
}

function draw({ nodes, arcs }) {
  const width = nodes.at(-1).x + LEFT;
  const picture = s("svg", {
    ...{ class: "psb-tree-picture", role: "img", width, height: TOP + DEEPEST + 26 },
    "aria-label": `the last ${arcs.length} gradients applied, each from the model that it was computed from`,
  });
  picture.append(
    s("line", { class: "psb-tree-branch", x1: nodes[0].x, x2: nodes.at(-1).x, y1: TOP, y2: TOP }),
  );
  arcs.forEach((arc, i) => picture.append(...drawArc(arc, nodes[i + 1].x, i === arcs.length - 1)));
  for (const { at, x } of nodes)
    picture.append(
      s("circle", { class: "psb-tree-node", cx: x, cy: TOP, r: 4 }),
      s("text", { class: "psb-tree-number", x, y: TOP - 10, "text-anchor": "middle" }, String(at)),
    );
  return picture;
}

// Down from the model, along to where the gradient is applied, and up to the model that it makes.
function drawArc({ worker, distance, version, from, to, before, depth }, made, isLast) {
  const low = TOP + depth;
  const begin = before ? `M ${from} ${low}` : `M ${from} ${TOP} L ${from} ${low}`;
  const about = `worker ${worker}, tree distance ${distance}, makes version ${version}`;
  const name = `psb-tree-arc${isLast ? " psb-tree-last" : ""}${before ? " psb-tree-before" : ""}`;
  const title = () => s("title", {}, about);
  return [
    s("path", { class: name, d: `${begin} L ${to} ${low} L ${made} ${TOP}` }, title()),
    s("text", { class: "psb-tree-worker", x: made - 4, y: low + 12, "text-anchor": "end" }, `w${worker}`),
  ];
}
