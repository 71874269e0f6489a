"use strict";
(() => {
  const { light, dark, specs } = JSON.parse(document.getElementById("data").textContent);
  const inDark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  // the same chart against another column: every x that shows the old one shows the new one
  function against(spec, x) {
    const { x: old, axes } = spec.usermeta;
    const copy = structuredClone(spec);
    const change = (part) => {
      if (x !== old && part.encoding?.x?.field === old) {
        const axis = { grid: false, tickCount: 8, format: x.endsWith("_s") ? "~r" : "~s" };
        Object.assign(part.encoding.x, { field: x, title: axes[x], axis });
      }
      for (const name of ["align", "dx"]) {
        const side = part.mark?.[name];
        if (side?.expr) side.expr = side.expr.replaceAll(`['${old}']`, `['${x}']`);
      }
      for (const tip of [part.encoding?.tooltip].flat()) if (tip?.field === old) tip.field = x;
      (part.layer ?? []).forEach(change);
    };
    change(copy);
    return copy;
  }

  async function draw(number) {
    const choice = document.querySelector(`select[data-chart="${number}"]`);
    const spec = choice ? against(specs[number], choice.value) : specs[number];
    const config = inDark.matches ? dark : light;
    const place = document.getElementById(`chart-${number}`);
    const old = views.get(number);
    const theme = inDark.matches ? "dark" : "light";
    const options = { config, renderer: "svg", actions: false, tooltip: { theme } };
    const { finalize } = await vegaEmbed(place, spec, options);
    old?.();
    views.set(number, finalize);
    place.dataset.state = "drawn";
  }

  const drawAll = () => Promise.all(specs.map((_, number) => draw(number)));
  for (const choice of document.querySelectorAll("select[data-chart]"))
    choice.addEventListener("change", () => draw(Number(choice.dataset.chart)));
  inDark.addEventListener("change", drawAll);
  drawAll().then(() => { document.body.dataset.state = "drawn"; });
})();
