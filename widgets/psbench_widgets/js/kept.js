// What a notebook keeps of the panel for readers without a kernel: the second output of its cell. JupyterLab
// replaces it at the kernel's word, but not once its page was loaded anew; so the page does it too.

const VIEW = "application/vnd.jupyter.widget-view+json";

export function keep(model) {
  const { data, metadata } = model.get("kept") ?? {};
  if (!data) return;
  // other front ends have no such document, and replace the output themselves
  for (const { outputs } of model.widget_manager.context?.model?.cells ?? [])
    for (let i = 1; i < (outputs?.length ?? 0); i++) {
      const isBelow = outputs.get(i - 1).data[VIEW]?.model_id === model.get("uid");
      if (isBelow && outputs.get(i).data["image/png"] !== data["image/png"])
        outputs.set(i, { output_type: "display_data", data, metadata });
    }
}
