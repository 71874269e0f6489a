// What opens over the page at a press of its summary: it closes at a press elsewhere, and at Escape.

export function popover(details) {
  details.classList.add("psb-pop");
  const outside = (event) => event.composedPath().includes(details) || (details.open = false);
  details.addEventListener("toggle", () => {
    const change = details.open ? document.addEventListener : document.removeEventListener;
    change.call(document, "pointerdown", outside, true);
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    event.stopPropagation();
    details.open = false;
    details.querySelector("summary").focus();
  });
  return details;
}
