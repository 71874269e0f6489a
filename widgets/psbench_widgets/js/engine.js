// The one script of a notebook: charts and panel. The widgets' own scripts are two lines that wait for it.
import { mountChart } from "./chart.js";
import { mountHandout } from "./handout.js";
import { mountLab } from "./lab.js";
import { addStyle } from "./style.js";
import { setThemes } from "./theme.js";

const mounts = { chart: mountChart, lab: mountLab };

// Show the widget `model` of some kind; the model is asked for by its id, because the proxy that anywidget
// hands to a view forgets its listeners when that one view goes.
async function render(kind, { model, el }) {
  addStyle(el);
  const whole = await model.widget_manager.get_model(model.get("uid"));
  return mounts[kind](whole, el);
}

// in a file that was handed out the run is in the page itself
const handout = document.getElementById("psbench-handout");
if (handout) mountHandout(JSON.parse(handout.textContent), document.getElementById("psbench-place"));

export default {
  initialize({ model }) {
    setThemes(model.get("themes"));
    // several notebooks of one page may run different versions: each waits for its own
    const key = `psbench-${model.get("key")}`;
    const slot = (globalThis[key] ??= {});
    slot.engine = { render };
    slot.arrived?.(slot.engine);
  },
};
