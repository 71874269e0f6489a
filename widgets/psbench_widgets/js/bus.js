// What is shown or selected in all charts of a panel at once: a moment, a span of time, a worker.
export class Bus {
  constructor() {
    /** @type {?number} */ this.time = null;
    /** @type {?number[]} seconds from and to */ this.brush = null;
    /** @type {?number} */ this.worker = null;
    /** @type {Set<{mark: (isMoment?: boolean) => void}>} */ this.views = new Set();
  }

  set(values) {
    Object.assign(this, values);
    const isMoment = Object.keys(values).join() === "time" && values.time !== null;
    for (const view of this.views) view.mark(isMoment);
  }
}
