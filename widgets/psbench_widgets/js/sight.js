// Whether an element can be seen. Python draws nothing that cannot be seen: on another tab of the panel or of
// the browser, or scrolled away.
export class Sight {
  // isOpen(): whether the element's own tab is shown; tell(on): called when it comes into sight or leaves it
  constructor(element, isOpen, tell) {
    /** @type {?boolean} */ this.was = null;
    this.near = true;
    this.look = () => {
      const on = this.near && !document.hidden && isOpen();
      if (on !== this.was) tell((this.was = on));
    };
    const watch = (entries) => {
      this.near = entries.at(-1).isIntersecting;
      this.look();
    };
    this.observer = new IntersectionObserver(watch, { rootMargin: "200px" });
    this.observer.observe(element);
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  dispose() {
    this.observer.disconnect();
    document.removeEventListener("visibilitychange", this.look);
  }
}
