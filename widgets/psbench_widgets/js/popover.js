// What opens over the page at a press of its summary: it closes at a press elsewhere, and at Escape.

export function popover(details) {
  details.classList.add("psb-pop");
  const outside = (event) => event.composedPath().includes(details) || (details.open = false);
  details.addEventListener("toggle", () => {
    const change = details.open ? document.addEventListener : document.removeEventListener;
    change.call(document, "pointerdown", outside, true);
    if (details.open) moveInside(details.querySelector(".psb-popped"), details.closest(".psb-lab"));
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    event.stopPropagation();
    details.open = false;
    details.querySelector("summary").focus();
  });
  return details;
}

// Where a panel is narrow, what opens beside its summary would reach over the edge.
function moveInside(popped, panel) {
  popped.style.translate = "";
  const [box, room] = [popped, panel].map((element) => element.getBoundingClientRect());
  const by = Math.max(0, room.left - box.left) || Math.min(0, room.right - box.right);
  popped.style.translate = `${by}px 0`;
}
