// Light or dark, as the page around us says: JupyterLab, VS Code, Colab, else the system.
import { columnsOf, LOOK } from "./legend.js";

const css = (name, fallback) => {
  const value = getComputedStyle(document.body).getPropertyValue(name).trim();
  return value || fallback;
};

function isDark() {
  const body = document.body;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (/vscode-(dark|high-contrast)/.test(body.className))
    return !/vscode-high-contrast-light/.test(body.className);
  if (document.documentElement.getAttribute("theme"))
    return document.documentElement.getAttribute("theme") === "dark";
  return window.matchMedia?.("(prefers-color-scheme: dark)").matches ?? false;
}

let themes = { light: {}, dark: {}, looks: { phases: {} } };

// Colours that are not a chart's configuration: those of the phases.
export const looks = () => themes.looks;

// The configurations that Python gives: those of the report.
export function setThemes(given) {
  themes = given;
  // the style sheet takes its colour of waiting from the same list
  document.documentElement.style.setProperty("--psb-wait", given.looks.phases.wait);
}

let pen = null;

// A function that measures words in the page's font, in pixels.
function measured(font) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${LOOK.labelFontSize}px ${font}`;
  return (word) => pen.measureText(word).width;
}

// What a Vega-Lite configuration needs so that a chart is readable on the page's own background. `width`: of
// the chart; `entries`: of its legend.
export function chartConfig(width = 0, entries = { words: [], symbol: undefined }) {
  const base = isDark() ? themes.dark : themes.light;
  const font = css("--jp-ui-font-family", "system-ui, sans-serif");
  const legend = {
    ...base.legend,
    ...LOOK,
    labelLimit: Math.max(160, width - 60),
    ...(entries.words.length && { columns: { expr: columnsOf(entries, measured(font)) } }),
  };
  const labelLimit = Math.max(180, 0.55 * width);
  const axis = { ...base.axis, labelOverlap: true, labelSeparation: 8, labelLimit };
  return {
    ...base,
    axis,
    legend,
    background: "transparent",
    font,
  };
}

const listeners = new Set();
let observer = null;
let before = null;

function notice() {
  const now = JSON.stringify(chartConfig());
  if (now === before) return;
  before = now;
  for (const listener of listeners) listener();
}

// Call `listener` whenever the theme changes; returns a function that ends it.
export function onThemeChange(listener) {
  listeners.add(listener);
  if (!observer) {
    before = JSON.stringify(chartConfig());
    // the attribute changes before the theme's style sheet is in, so look again a little later
    observer = new MutationObserver(() => [0, 150, 600].forEach((ms) => setTimeout(notice, ms)));
    const watched = {
      attributes: true,
      attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class", "theme"],
    };
    observer.observe(document.body, watched);
    observer.observe(document.documentElement, watched);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0 && observer) {
      observer.disconnect();
      observer = null;
    }
  };
}
