// What is wrong with the text that one sees: pieces over each other, cut off, or with too little contrast.
() => {
  const problems = [];
  const scroll = document.getElementById("scroll").getBoundingClientRect();
  const lab = document.querySelector(".psb-lab");
  const sticky = lab.querySelector(".psb-bar-top");
  // what is opened over the page, and what stays in sight while one scrolls, lie over the rest
  const layer = (element) => element.closest(".psb-popped") ?? (sticky.contains(element) ? sticky : null);
  const texts = [];
  const walker = document.createTreeWalker(lab, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (["OPTION", "TITLE", "STYLE"].includes(element.tagName.toUpperCase()) || element.closest("details:not([open]) > :not(summary)")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0.5 && box.height > 0.5) texts.push({ node, element, box, text: node.textContent.trim() });
  }
  // what is seen of a text in a box that scrolls
  const shown = ({ element, box }) => {
    let { left, right, top, bottom } = box;
    for (let place = element; place !== lab; place = place.parentElement) {
      if (!["auto", "scroll"].includes(getComputedStyle(place).overflowY)) continue;
      const frame = place.getBoundingClientRect();
      left = Math.max(left, frame.left);
      right = Math.min(right, frame.right);
      top = Math.max(top, frame.top);
      bottom = Math.min(bottom, frame.bottom);
    }
    return { left, right, top, bottom };
  };
  for (const each of texts) each.shown = shown(each);
  // over each other: only within what is not scrolled under something that stays in sight
  for (let i = 0; i < texts.length; i++) {
    for (let j = i + 1; j < texts.length; j++) {
      const [a, b] = [texts[i], texts[j]];
      const wide = Math.min(a.shown.right, b.shown.right) - Math.max(a.shown.left, b.shown.left);
      const high = Math.min(a.shown.bottom, b.shown.bottom) - Math.max(a.shown.top, b.shown.top);
      if (wide <= 1.5 || high <= 4 || a.node === b.node || layer(a.element) !== layer(b.element)) continue;
      problems.push(`"${a.text}" over "${b.text}"`);
    }
  }
  for (const { element, box, text } of texts) {
    for (let place = element; place && place !== lab; place = place.parentElement) {
      const { overflowX } = getComputedStyle(place);
      if (overflowX === "visible" || place instanceof SVGElement) continue;
      const frame = place.getBoundingClientRect();
      if (overflowX !== "hidden" && overflowX !== "clip") break; // it can be scrolled to
      if (box.right > frame.right + 1.5 || box.left < frame.left - 1.5) problems.push(`"${text}" is cut off by ${place.className}`);
    }
    const svg = element.closest("svg.marks");
    if (svg) {
      const frame = svg.getBoundingClientRect();
      if (box.right > frame.right + 2 || box.left < frame.left - 2 || box.bottom > frame.bottom + 3 || box.top < frame.top - 3) problems.push(`"${text}" is cut off by its chart`);
    }
  }
  // a mixed colour is written "color(srgb 0.9 0.5 0.1)"
  const numbers = (text) => (text.match(/[\d.]+/g) ?? []).map((each, i) => Number(each) * (text.startsWith("color(") && i < 3 ? 255 : 1));
  const over = (front, back) => front.slice(0, 3).map((v, i) => v * (front[3] ?? 1) + back[i] * (1 - (front[3] ?? 1)));
  const light = (c) => c.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = (element) => {
    const layers = [];
    for (let place = element; place; place = place.parentElement) layers.push(numbers(getComputedStyle(place).backgroundColor));
    return layers.reverse().reduce((back, layer) => (layer.length >= 3 ? over(layer.length === 3 ? [...layer, 1] : layer, back) : back), [255, 255, 255]);
  };
  const seen = new Set();
  for (const { element, text } of texts) {
    if (seen.has(element) || element.closest(":disabled, [aria-disabled=true], .psb-option:disabled")) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const back = paper(element);
    const colour = element instanceof SVGElement ? (style.fill === "none" ? style.color : style.fill) : style.color;
    if (!/^(rgb|color\(srgb )/.test(colour)) continue;
    const front = over(numbers(colour), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.495) problems.push(`"${text.slice(0, 40)}" has a contrast of ${ratio.toFixed(2)} (${element.className?.baseVal ?? element.className})`);
  }
  for (const { element, text } of texts)
    if (element.closest("svg.marks") && /\de[+-]?\d/.test(text)) problems.push(`"${text}" is a number for machines`);
  for (const element of lab.querySelectorAll("button, select, input, summary, .psb-node-hold")) {
    const { width, height } = element.getBoundingClientRect();
    if (width && element.checkVisibility() && Math.min(width, height) < 23.5)
      problems.push(`a target of ${width.toFixed()} x ${height.toFixed()}: ${element.outerHTML.slice(0, 80)}`);
  }
  for (const element of document.querySelectorAll('[role="tablist"] > :not([role="tab"]), figure[role]'))
    problems.push(`a role that axe refuses: ${element.outerHTML.slice(0, 60)}`);
  return [...new Set(problems)];
}
