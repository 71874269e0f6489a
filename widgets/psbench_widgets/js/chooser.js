// A choice among many: the chosen one and, when opened, a search field over a grouped list with a line each.
import { h } from "./dom.js";
import { popover } from "./popover.js";

// groups: [{ title, about, options: [{ name, label, summary, source }] }]; choose(option) is called with the
// picked one; shown: what stands for it, if not the name of the current one.
export function chooser(groups, current, label, choose, shown = null) {
  const all = groups.flatMap((group) => group.options);
  const chosen = all.find((option) => option.name === current) ?? all[0];
  const search = h("input", {
    type: "search",
    class: "psb-input psb-search",
    placeholder: `search ${all.length}`,
    "aria-label": `search ${label}`,
    spellcheck: "false",
  });
  const none = h("p", { class: "psb-empty", hidden: true }, "No match.");
  const list = h("div", { class: "psb-options", role: "group", "aria-label": label });
  const items = [];
  for (const { title, about, options } of groups) {
    const heading = h("div", { class: "psb-option-title", title: about }, title);
    const section = h("div", { class: "psb-option-group" }, heading);
    for (const option of options) {
      const why = h("span", { class: "psb-option-why", hidden: true });
      const item = h(
        "button",
        {
          type: "button",
          class: "psb-option",
          "data-name": option.name,
          "aria-pressed": String(option === chosen),
          title: option.source ? `Source: ${option.source}` : undefined,
          onclick: () => choose(option),
        },
        h("span", { class: "psb-option-name" }, option.label),
        h("span", { class: "psb-option-summary" }, option.title ? `${option.title}: ` : "", option.summary),
        why,
      );
      section.append(item);
      items.push({ option, item, section, why });
    }
    list.append(section);
  }
  search.oninput = () => {
    const wanted = search.value.trim().toLowerCase().split(/\s+/);
    for (const { option, item } of items)
      item.hidden = !wanted.every((word) =>
        [option.name.replaceAll("_", " "), option.name, option.summary, option.source, option.words ?? ""]
          .join(" ")
          .toLowerCase()
          .includes(word),
      );
    for (const { section } of items) section.hidden = !section.querySelector(".psb-option:not([hidden])");
    none.hidden = items.some(({ item }) => !item.hidden);
  };
  search.onkeydown = (event) => {
    if (event.key !== "Escape") event.stopPropagation();
    if (event.key === "Enter") list.querySelector(".psb-option:not([hidden], :disabled)")?.click();
  };
  const head = h(
    "summary",
    { class: "psb-chooser-head psb-pick", title: chosen.summary },
    shown ?? [chosen.label, chosen.short && ` – ${chosen.short}`],
  );
  const element = popover(
    h(
      "details",
      { class: "psb-chooser", "data-value": chosen.name },
      head,
      h("div", { class: "psb-popped" }, search, list, none),
    ),
  );
  element.ontoggle = () => element.open && search.focus({ preventScroll: true });
  // what cannot be chosen now says why, in words that a reader of screens meets too
  const disable = (reasons) => {
    for (const { option, item, why } of items) {
      const text = option === chosen ? "" : (reasons[option.name] ?? "");
      item.disabled = Boolean(text);
      why.hidden = !text;
      why.textContent = text;
    }
  };
  return { element, chosen, disable };
}
