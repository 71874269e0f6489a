// Light or dark, as the page around us says: JupyterLab, VS Code, Colab, else the system.

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

// In how many columns a legend has room for its longest word; 0 where there is room for all.
export function legendColumns(width, longest) {
  return longest > 12 && width > 0 ? Math.max(1, Math.floor(width / (6.3 * longest + 34))) : 0;
}

// What a Vega-Lite configuration needs so that a chart is readable on the page's own background.
export function chartConfig(narrow = false, width = 0, longest = 0) {
  const base = isDark() ? themes.dark : themes.light;
  // five words of a legend must fit above the narrowest chart
  const legend = {
    ...base.legend,
    labelFontSize: 11,
    symbolSize: 60,
    columnPadding: 5,
    labelOffset: 3,
    labelLimit: Math.max(160, width - 60),
    ...(narrow && { columns: 3 }),
  };
  const columns = legendColumns(width, longest);
  if (columns) legend.columns = columns;
  const labelLimit = Math.max(180, 0.55 * width);
  const axis = { ...base.axis, labelOverlap: true, labelSeparation: 8, labelLimit };
  return {
    ...base,
    axis,
    legend,
    background: "transparent",
    font: css("--jp-ui-font-family", "system-ui, sans-serif"),
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
