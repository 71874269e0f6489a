// Updates the static picture that a notebook saves below the panel: the second output of its cell. JupyterLab
// updates outputs at the kernel's request, but not after a reload of its page; so this page does it too.

const VIEW = "application/vnd.jupyter.widget-view+json";

export function updateSavedOutput(model) {
  const { data, metadata } = model.get("saved_output") ?? {};
  if (!data) return;
  // other front ends have no such document, and update the output themselves
  for (const { outputs } of model.widget_manager.context?.model?.cells ?? [])
    for (let i = 1; i < (outputs?.length ?? 0); i++) {
      const isBelow = outputs.get(i - 1).data[VIEW]?.model_id === model.get("uid");
      if (isBelow && outputs.get(i).data["image/png"] !== data["image/png"])
        outputs.set(i, { output_type: "display_data", data, metadata });
    }
}
