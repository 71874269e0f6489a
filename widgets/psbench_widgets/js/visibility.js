// Observes whether an element is visible. Python draws nothing while the panel's tab is closed, the browser's
// tab is hidden, or the panel is scrolled away.
export class Visibility {
  // isOpen(): whether the element's own tab is open; onChange(isVisible): called when the visibility changes
  constructor(element, isOpen, onChange) {
    /** @type {?boolean} */ this.isVisible = null;
    this.isNear = true;
    this.update = () => {
      const isVisible = this.isNear && !document.hidden && isOpen();
      if (isVisible !== this.isVisible) onChange((this.isVisible = isVisible));
    };
    const watch = (entries) => {
      this.isNear = entries.at(-1).isIntersecting;
      this.update();
    };
    this.observer = new IntersectionObserver(watch, { rootMargin: "200px" });
    this.observer.observe(element);
    document.addEventListener("visibilitychange", this.update);
    this.update();
  }

  dispose() {
    this.observer.disconnect();
    document.removeEventListener("visibilitychange", this.update);
  }
}
