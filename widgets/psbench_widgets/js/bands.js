// The bands of a timeline of many workers: how many of a band's workers do what, as a stack of shares along
// time. What has been drawn is kept as a picture, which moves with time: a frame of a film adds a column or
// two, and none is drawn again.
import { sharesAlong } from "./layout.js";

const BIN = 4; // pixels in which a band's shares are the same
const STACK = ["compute", "pull", "send", "cancelled", "switching", "wait"];
const AHEAD = 3; // times as wide as what is seen: so seldom is it begun anew

export class Bands {
  constructor(colours) {
    this.colours = colours;
    this.canvas = document.createElement("canvas");
    this.first = this.drawn = 0; // columns, counted from the begin of the run
    this.forget();
  }

  // What is drawn next is begun anew.
  forget() {
    this.key = "";
  }

  // rows: [{ places, top }] of the bands; `height` of each; from `left` on `width` pixels show the times
  // `from` to `to` (s); `ratio`: pixels of the screen in one.
  draw(pen, recording, rows, { left, width, height, from, to, ratio }) {
    if (!rows.length) return;
    const step = (BIN / width) * (to - from); // seconds
    const [first, last] = [Math.floor(from / step), Math.ceil(to / step)];
    const count = AHEAD * Math.ceil(width / BIN);
    const key = [width, height, ratio, rows.length, step.toPrecision(9)].join();
    if (key !== this.key || first < this.first || last > this.first + count)
      this.begin(key, first, count, rows.length * height, ratio);
    if (last > this.drawn) this.add(recording, rows, height, step, last);
    const x = left + (this.first * step - from) * (width / (to - from));
    const place = Math.round(x * ratio) / ratio; // its columns stay sharp
    const wide = this.canvas.width;
    rows.forEach(({ top }, i) =>
      pen.drawImage(
        ...[this.canvas, 0, i * height * ratio, wide, height * ratio],
        ...[place, top, wide / ratio, height],
      ),
    );
  }

  begin(key, first, count, height, ratio) {
    Object.assign(this, { key, first, drawn: first });
    [this.canvas.width, this.canvas.height] = [Math.round(count * BIN * ratio), Math.round(height * ratio)];
    this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // The columns up to `last`, as far as they are in the recording, which may be a piece of the run: the
  // first and the last of it may be narrower.
  add({ phases, tables, rows: spans, begin, end }, rows, height, step, last) {
    const pen = this.canvas.getContext("2d");
    const [least, most] = [begin / step, end / step];
    const bins = Array.from({ length: last - this.drawn }, (_, k) => this.drawn + k).filter(
      (bin) => bin + 1 > least && bin < most,
    );
    this.drawn = last;
    if (!bins.length) return;
    const starts = bins.map((bin) => Math.max(bin, least));
    const ends = bins.map((bin) => Math.min(bin + 1, most));
    const times = bins.map((_, k) => ((starts[k] + ends[k]) / 2) * step);
    rows.forEach(({ places }, i) => {
      const found = sharesAlong(places, spans, tables.spans, times, phases.length);
      const tops = bins.map(() => i * height + 1);
      for (const name of STACK) {
        const phase = phases.indexOf(name);
        pen.fillStyle = this.colours[name];
        bins.forEach((_, k) => {
          const share = (height - 2) * found[k * phases.length + phase];
          if (!share) return;
          pen.fillRect((starts[k] - this.first) * BIN, tops[k], (ends[k] - starts[k]) * BIN, share);
          tops[k] += share;
        });
      }
    });
  }
}
