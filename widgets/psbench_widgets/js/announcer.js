// Passes sentences to a screen reader: only the newest one, and at most one per interval.
export class Announcer {
  // write(text): puts the text where the screen reader reads it; clock(): milliseconds;
  // later(f, ms): calls f after ms
  constructor(
    write,
    { every = 1000, clock = () => performance.now(), later = (call, ms) => setTimeout(call, ms) } = {},
  ) {
    this.write = write;
    this.every = every;
    this.clock = clock;
    this.later = later;
    this.text = this.written = "";
    this.at = -Infinity;
    this.timer = null;
  }

  announce(text) {
    this.text = text;
    if (text === this.written) return;
    const left = this.at + this.every - this.clock();
    if (left <= 0) this.flush();
    else this.timer ??= this.later(() => this.flush(), left);
  }

  flush() {
    this.dispose();
    this.at = this.clock();
    if (this.text !== this.written) this.write((this.written = this.text));
  }

  dispose() {
    clearTimeout(this.timer);
    this.timer = null;
  }
}
