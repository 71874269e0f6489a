// The computation tree of the page: where arcs begin and end, and the sentence about the last gradient.
import assert from "node:assert/strict";
import { test } from "node:test";
import { treeLayout, treeSentence } from "../../widgets/psbench_widgets/js/tree.js";

const GRADIENTS = {
  node: [5, 6, 7],
  worker: [0, 2, 1],
  base: [5, 3, 4],
  step: [0, 0, 2],
  distance: [0, 3, 3],
  version: [6, 7, 8],
};

test("an arc leads from the model of a gradient to where it is applied", () => {
  const { nodes, arcs } = treeLayout(GRADIENTS);
  assert.deepEqual(
    nodes.map(({ at }) => at),
    [5, 6, 7, 8],
  );
  const steps = nodes.slice(1).map(({ x }, i) => x - nodes[i].x);
  assert.equal(new Set(steps).size, 1);
  assert.equal(arcs[0].from, nodes[0].x); // taken where it is applied
  assert.equal(arcs[0].to, nodes[0].x);
  assert.deepEqual(
    arcs.map(({ before }) => before),
    [false, true, true], // from models that are no longer drawn
  );
  assert.ok(arcs[1].from < nodes[0].x && arcs[1].from >= 0);
  assert.ok(arcs[1].depth > arcs[0].depth);
  assert.deepEqual(treeLayout({}), { nodes: [], arcs: [] });
});

test("the sentence has the worker, its own steps and the distance", () => {
  assert.equal(
    treeSentence(GRADIENTS),
    "Gradient 8 is worker 1's, after 2 local steps. Since the model that it was computed from, " +
      "3 gradients were applied: tree distance 3.",
  );
  const fresh = { node: [4], worker: [0], base: [4], step: [0], distance: [0], version: [5] };
  assert.match(treeSentence(fresh), /computed from the model that it changes: tree distance 0\.$/);
});
