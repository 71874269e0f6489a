// The rows of one chart, kept once however many views show them.
//
// Python numbers rows within an era (a new era begins when they are replaced). A message says which rows it
// carries: known ones are cut off, a gap is asked for. So a page that was reloaded in the middle of a run
// has every row once.

const stores = new Map();

export function storeOf(model) {
  const id = model.get("uid");
  let store = stores.get(id);
  if (!store) stores.set(id, (store = new Store(id, model)));
  return store;
}

class Store {
  constructor(id, model) {
    this.id = id;
    this.model = model;
    this.sources = new Map();
    this.signals = {};
    this.views = new Set();
    this.receive = (message) => this.onMessage(message);
  }

  open(view) {
    this.views.add(view);
    if (this.views.size === 1) {
      this.model.on("msg:custom", this.receive);
      this.ask();
    }
  }

  close(view) {
    this.views.delete(view);
    if (this.views.size) return;
    this.model.off("msg:custom", this.receive);
    stores.delete(this.id);
  }

  source(name) {
    let found = this.sources.get(name);
    if (!found) this.sources.set(name, (found = { era: -1, next: 0, rows: [] }));
    return found;
  }

  get total() {
    let count = 0;
    for (const { rows } of this.sources.values()) count += rows.length;
    return count;
  }

  ask() {
    const have = {};
    for (const [name, { era, next }] of this.sources) have[name] = [era, next];
    this.model.send({ kind: "hello", have });
  }

  onMessage(message) {
    if (message?.kind !== "rows") return;
    if (message.signals) {
      Object.assign(this.signals, message.signals);
      for (const view of this.views) view.onSignals(message.signals);
    }
    for (const part of message.parts) this.take(part);
  }

  take({ source: name, era, start, from, columns }) {
    const source = this.source(name);
    const names = Object.keys(columns);
    const length = names.length ? columns[names[0]].length : 0;
    if (era < source.era) return; // overtaken by a replacement
    if (era > source.era) {
      if (from !== start) return this.ask(); // its beginning is missing
      this.reset(name, source, era, start);
    }
    if (from > source.next) {
      if (from !== start) return this.ask();
      this.reset(name, source, era, start); // what lay between was thinned out in Python
    }
    const added = [];
    for (let i = Math.max(0, source.next - from); i < length; i++) {
      const row = {};
      for (const column of names) row[column] = columns[column][i];
      added.push(row);
    }
    source.next = Math.max(source.next, from + length);
    const limit = this.model.get("max_rows");
    const spare = Math.max(0, source.rows.length + added.length - limit);
    const removed = source.rows.splice(0, spare);
    source.rows.push(...added);
    for (const view of this.views) view.onRows(name, added, removed);
  }

  reset(name, source, era, start) {
    const removed = source.rows;
    Object.assign(source, { era, next: start, rows: [] });
    if (removed.length) for (const view of this.views) view.onRows(name, [], removed);
  }
}
