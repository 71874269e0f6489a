// Wait for the notebook's one engine, then let it show this widget.
export default {
  async render(context) {
    const { model } = context;
    const slot = (globalThis[`psbench-${model.get("key")}`] ??= {});
    slot.ready ??= new Promise((arrived) => (slot.engine ? arrived(slot.engine) : (slot.arrived = arrived)));
    // asking for the engine's model makes a page that was reloaded fetch it from the kernel
    await model.widget_manager.get_model(model.get("engine").slice("IPY_MODEL_".length));
    const engine = await slot.ready;
    return engine.render(model.get("kind"), context);
  },
};
