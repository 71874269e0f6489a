// Make an element: h("div", { class: "x", onclick: f, hidden: true }, "text", child)
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** @returns {HTMLButtonElement} */
export function button(text, name, click, attributes = {}) {
  return h("button", { type: "button", class: name, onclick: click, ...attributes }, text);
}

// A choice among options, each a value and its text.
/** @returns {HTMLSelectElement} */
export function select(options, attributes = {}) {
  return h(
    "select",
    attributes,
    options.map(([value, text]) => h("option", { value }, text)),
  );
}

// A dot in the colour that a run has in every chart. `key`: of its recording, as "run 3".
export function dot(key) {
  const mark = h("i", { class: "psb-dot" });
  mark.style.background = `var(--psb-${key.replace(" ", "-")})`;
  return mark;
}

const SHORT = 44; // letters

// A name where there is little room; the whole name stands above the timeline.
export const inShort = (name) => (name.length > SHORT ? `${name.slice(0, SHORT - 1)}…` : name);

// The same as `h` for an element of a picture.
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const HANDLERS = ["onpointerdown", "onkeydown"];

// Make an element look and answer like a fresh one, touching only what differs: what is drawn anew with every
// frame costs a page little more than what has changed.
export function morph(old, fresh) {
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const handler of HANDLERS) old[handler] = fresh[handler];
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  if (before.length !== after.length || before.some((each, i) => each.nodeName !== after[i].nodeName))
    return old.replaceChildren(...after);
  before.forEach((each, i) => {
    if (each instanceof Element) morph(each, after[i]);
    else if (each.nodeValue !== after[i].nodeValue) each.nodeValue = after[i].nodeValue;
  });
}

// What stays in sight while one scrolls does so within the notebook, not within the cell's output, which
// clips.
export function freeToStick(el) {
  for (
    let place = el;
    place && !place.classList?.contains("jp-Notebook") && place !== document.body;
    place = place.parentElement
  ) {
    if (place.classList?.contains("jp-WindowedPanel-outer")) break;
    const { overflowX, overflowY } = getComputedStyle(place);
    if (place.closest(".jp-OutputArea") && (overflowX !== "visible" || overflowY !== "visible"))
      place.style.overflow = "visible";
  }
}
