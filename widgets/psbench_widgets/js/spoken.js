// What a screen reader is given: the newest sentence, at most once in so many milliseconds.
export class Spoken {
  // say(text): has it read out; clock(): milliseconds; later(f, ms): calls f then
  constructor(
    say,
    { every = 1000, clock = () => performance.now(), later = (call, ms) => setTimeout(call, ms) } = {},
  ) {
    this.say = say;
    this.every = every;
    this.clock = clock;
    this.later = later;
    this.text = this.said = "";
    this.at = -Infinity;
    this.waiting = null;
  }

  give(text) {
    this.text = text;
    if (text === this.said) return;
    const left = this.at + this.every - this.clock();
    if (left <= 0) this.speak();
    else this.waiting ??= this.later(() => this.speak(), left);
  }

  speak() {
    this.dispose();
    this.at = this.clock();
    if (this.text !== this.said) this.say((this.said = this.text));
  }

  dispose() {
    clearTimeout(this.waiting);
    this.waiting = null;
  }
}
