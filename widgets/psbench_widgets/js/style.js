import sheet from "./style.css";

// Put the style sheet where `el` lives: the document, or a shadow root (some front ends use one).
export function addStyle(el) {
  const root = el.getRootNode();
  const place = root instanceof ShadowRoot ? root : document.head;
  if (place.querySelector("style[data-psbench]")) return;
  const style = document.createElement("style");
  style.dataset.psbench = "";
  style.textContent = sheet;
  place.append(style);
}
