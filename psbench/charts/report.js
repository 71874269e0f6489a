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

  // pixels of each entry of a chart's legend
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${light.legend.labelFontSize}px ${light.font}`;
  function entriesOf(spec) {
    const channels = [spec, ...(spec.layer ?? [])].flatMap((part) => Object.values(part.encoding ?? {}));
    const found = channels.find((channel) => channel?.legend && channel.scale?.domain);
    const symbol = Math.sqrt(found?.legend.symbolSize ?? light.legend.symbolSize);
    return (found?.scale.domain ?? []).map((name) => pen.measureText(String(name)).width + symbol + 20);
  }
  // names in as many columns as there is room for, and none of them cut; on paper, too
  function withLegend(config, spec) {
    const entries = entriesOf(spec);
    const room = (columns) => {
      const widest = (first) => Math.max(...entries.filter((_, place) => place % columns === first));
      return Array.from({ length: columns }, (_, first) => widest(first)).reduce((sum, each) => sum + each);
    };
    const counts = entries.map((_, place) => entries.length - place).filter((count) => count > 1);
    const expr = `${counts.map((count) => `width >= ${Math.ceil(room(count))} ? ${count} : `).join("")}1`;
    return { ...config, legend: { ...config.legend, columns: { expr }, labelLimit: 400 } };
  }

  async function draw(number) {
    const choice = document.querySelector(`select[data-chart="${number}"]`);
    const spec = choice ? against(specs[number], choice.value) : specs[number];
    const config = withLegend(inDark.matches ? dark : light, spec);
    const place = document.getElementById(`chart-${number}`);
    const old = views.get(number);
    const theme = inDark.matches ? "dark" : "light";
    const options = { config, renderer: "svg", actions: false, tooltip: { theme } };
    const found = await vegaEmbed(place, spec, options);
    old?.finalize();
    // how many rows a legend has, and so the height, follows from the width: a scroll bar changes it, too
    found.view.addSignalListener("width", () => found.view.runAfter((view) => view.resize().run()));
    views.set(number, found);
    place.dataset.state = "drawn";
  }

  // on paper charts are drawn as wide as they are there: shrunk, their letters could not be read
  const PAPER = 680;
  const INSIDE = 38; // what a figure's padding and border take
  const hasLongNames = Math.max(0, ...specs.flatMap(entriesOf)) > 240; // for half of it
  document.body.classList.toggle("long-names", hasLongNames);
  const widthOnPaper = (place) => {
    const half = !hasLongNames && place.closest(".grid figure:not(:first-child:nth-last-child(odd))");
    return Math.floor(half ? (PAPER - 16) / 2 : PAPER) - INSIDE;
  };
  // twice: how many rows a legend has, and so the height, follows from the width
  const resize = (width) =>
    views.forEach(({ view }, number) => {
      view.width(width(document.getElementById(`chart-${number}`))).run();
      view.resize().run();
    });
  const folds = document.querySelectorAll(".fold");
  // a chart that was folded away finds its width when it is opened, and paper has all of it
  const refit = () => resize((place) => place.clientWidth);
  for (const fold of folds) fold.addEventListener("toggle", () => fold.open && refit());
  addEventListener("beforeprint", () => {
    for (const fold of folds) fold.open = true;
    resize(widthOnPaper);
  });
  addEventListener("afterprint", refit);

  const drawAll = () => Promise.all(specs.map((_, number) => draw(number)));
  for (const choice of document.querySelectorAll("select[data-chart]"))
    choice.addEventListener("change", () => draw(Number(choice.dataset.chart)));
  inDark.addEventListener("change", drawAll);
  drawAll().then(() => { document.body.dataset.state = "drawn"; });
})();
