// What is shown or selected in all charts of a panel at once: a moment, a span of time, a worker.
export class Bus {
  constructor() {
    Object.assign(this, { time: null, brush: null, worker: null, views: new Set() });
  }

  set(values) {
    Object.assign(this, values);
    for (const view of this.views) view.mark();
  }
}
