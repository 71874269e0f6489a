"""A panel in a browser without Jupyter: Python's panel in this process, its page in a bare document.

The same script and the same messages as in a notebook, some seconds sooner: what concerns Jupyter itself
(kernels, reloads, cells) is tested in `test_browser_lab`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from psbench_widgets import Lab
from psbench_widgets.assets import STATIC, themes

from .jupyter import LONG_S, PICTURES, ROOT, seldom_asking

AUDIT = (Path(__file__).parent / "audit.js").read_text()
#: where npm has installed it
AXE = ROOT / "widgets" / "psbench_widgets" / "js" / "node_modules" / "axe-core" / "axe.min.js"
VIOLATIONS = """async ([place, rules]) =>
  (await axe.run(place, { rules, resultTypes: ['violations'] })).violations
  .flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 160)}`))"""
#: waits until the page has done what it is at, and drawn it; one that always moves is never idle
IDLE = """() => new Promise((done) =>
  requestIdleCallback(() => requestAnimationFrame(() => done()), { timeout: 200 }))"""
#: pixels that the page is wider than its room
SIDEWAYS = """() => { const { scrollWidth, clientWidth } = document.getElementById('scroll');
  return Math.max(0, scrollWidth - clientWidth); }"""
#: between two looks at a page: each is a message there and back, through three processes
PAUSE_MS = 200
#: about the room that a notebook cell has beside JupyterLab's file browser and the cell's prompt
BESIDE = 380
LOOK = {
    "light": {"--jp-layout-color0": "#fff", "--jp-layout-color1": "#fff", "--jp-layout-color2": "#eee"}
    | {"--jp-ui-font-color1": "rgba(0,0,0,0.87)", "--jp-ui-font-color2": "rgba(0,0,0,0.54)"}
    | {"--jp-border-color2": "#e0e0e0", "--jp-brand-color1": "#1976d2"},
    "dark": {"--jp-layout-color0": "#111", "--jp-layout-color1": "#212121", "--jp-layout-color2": "#424242"}
    | {"--jp-ui-font-color1": "#fff", "--jp-ui-font-color2": "rgba(255,255,255,0.7)"}
    | {"--jp-border-color2": "#616161", "--jp-brand-color1": "#42a5f5"},
}
PAGE = """<!doctype html><meta charset="utf-8"><title>panel</title>
<style>:root { %(look)s } body { margin: 0; background: var(--jp-layout-color0); font: 13px sans-serif; }
#scroll { position: absolute; top: 90px; bottom: 24px; left: %(left)dpx; right: 12px; overflow: auto; }
</style><body data-jp-theme-light="%(light)s"><div id="scroll"><div id="place"></div></div>
<script type="module">
import engine from "/engine.js";
const models = new Map();
class Model {
  constructor(id, state) { this.id = id; this.state = state; this.listeners = new Map(); }
  get(name) { return this.state[name]; }
  on(names, f) {
    for (const n of names.split(" ")) this.listeners.set(n, (this.listeners.get(n) ?? new Set()).add(f));
  }
  off(names, f) { for (const n of names.split(" ")) this.listeners.get(n)?.delete(f); }
  send(message) { window.toPython(this.id, JSON.stringify(message)); }
  fire(name, ...rest) { for (const f of this.listeners.get(name) ?? []) f(...rest); }
  set(state) {
    Object.assign(this.state, state);
    for (const name of Object.keys(state)) this.fire(`change:${name}`);
  }
  get widget_manager() { return { get_model: async (id) => models.get(id) }; }
}
window.errors = [];
addEventListener("error", (e) => errors.push(e.message));
addEventListener("unhandledrejection", (e) => errors.push(String(e.reason?.stack ?? e.reason)));
window.fromPython = (batch) => {
  for (const [id, kind, content] of batch) {
    if (kind === "open") models.set(id, new Model(id, content));
    if (kind === "state") models.get(id).set(content);
    if (kind === "message") models.get(id).fire("msg:custom", content);
  }
};
window.mount = async (id, key) => {
  engine.initialize({ model: models.get("bundle") });
  const view = { model: models.get(id), el: document.getElementById("place") };
  window.end = await globalThis[`psbench-${key}`].engine.render("lab", view);
};
window.ready = true;
</script></body>"""


class Direct:
    """A panel and the browser page that shows it.

    Without `moves` its opening does not play, as for users who want less motion: to draw one frame after the
    other without a graphics card took half the CPU of these tests.
    """

    def __init__(
        self, browser: Any, width: int = 1366, height: int = 768, theme: str = "light", moves: bool = False
    ) -> None:
        self.browser, self._motion = browser, "no-preference" if moves else "reduce"
        self.out: deque[tuple[str, str, Any]] = deque()
        self.widgets: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._open(width, height, theme)

    def _open(self, width: int, height: int, theme: str) -> None:
        """Open a page that is still empty."""
        size = {"width": width, "height": height}
        self.context = self.browser.new_context(viewport=size, reduced_motion=self._motion)
        self.web = seldom_asking(self.context.new_page())
        self.web.set_default_timeout(1000 * LONG_S)
        # half a screen has no room for a file browser
        left = 64 if width < 1000 else BESIDE
        look = "; ".join(f"{name}: {value}" for name, value in LOOK[theme].items())
        page = PAGE % {"look": look, "left": left, "light": str(theme == "light").lower()}
        self.web.route("http://panel.test/", lambda r: r.fulfill(body=page, content_type="text/html"))
        engine = (STATIC / "engine.js").read_text()
        self.web.route(
            "http://panel.test/engine.js", lambda r: r.fulfill(body=engine, content_type="text/javascript")
        )
        self.web.expose_function("toPython", self._receive)
        self.web.goto("http://panel.test/")
        self.web.wait_for_function("() => window.ready")

    def show(self, lab: Lab) -> None:
        """Show a panel."""
        self.lab = lab
        for widget in (*lab._figures.charts.values(), lab._runner.explanation.chart, lab):
            self._add(widget)
        self._mount()

    def _mount(self) -> None:
        with self._lock:
            self.out.clear()  # what is newer than the states that follow comes after them
            self.out.append(("bundle", "open", {"key": "direct", "themes": themes()}))
            self.out.extend((uid, "open", _state(widget)) for uid, widget in self.widgets.items())
        self.flush()
        self.web.evaluate("([id, key]) => window.mount(id, key)", [self.lab.uid, "direct"])
        self.wait("() => document.querySelector('.psb-lab button.psb-run:enabled')")

    def _add(self, widget: Any) -> None:
        self.widgets[widget.uid] = widget
        self._put(widget.uid, "open", _state(widget))
        widget.observe(lambda change: self._changed(widget, change))
        widget.send = lambda content, buffers=None: self._put(widget.uid, "message", content)

    def _changed(self, widget: Any, change: Any) -> None:
        if change["name"] == "overlay":
            for chart in self.lab._runner.comparison.charts:
                if chart.uid not in self.widgets:
                    self._add(chart)
        if change["name"] in widget.trait_names(sync=True) and change["name"] != "engine":
            self._put(widget.uid, "state", {change["name"]: _plain(change["new"])})

    def _put(self, uid: str, kind: str, content: Any) -> None:
        text = json.loads(json.dumps(content))
        with self._lock:
            self.out.append((uid, kind, text))

    def _receive(self, uid: str, text: str) -> None:
        widget = self.widgets[uid]
        message = json.loads(text)
        widget._on_message(widget, message, [])

    def flush(self) -> None:
        """Hand on to the page what Python has sent."""
        with self._lock:
            batch = list(self.out)
            self.out.clear()
        if batch:
            # as text: of what is not, Playwright looks at every number
            self.web.evaluate("(text) => window.fromPython(JSON.parse(text))", json.dumps(batch))

    def wait(self, condition: str, timeout_s: float = LONG_S, argument: Any = None) -> None:
        """Wait until a condition holds in the page, handing on messages meanwhile."""
        until = time.monotonic() + timeout_s
        while True:
            self.flush()
            if self.web.evaluate(condition, argument):
                return
            if time.monotonic() > until:
                raise TimeoutError(condition)
            self.web.wait_for_timeout(PAUSE_MS)

    def settle(self, ms: int = 400) -> None:
        """Let charts draw and answers arrive: for some time, and until a page on a busy machine is idle."""
        until = time.monotonic() + ms / 1000
        while time.monotonic() < until:
            self.flush()
            self.web.wait_for_timeout(PAUSE_MS)
        self.web.evaluate(IDLE)
        self.flush()  # what was answered to what the page has asked for until now
        self.web.evaluate(IDLE)

    def over(self, words: str) -> None:
        """Wait until the panel says what became of a run."""
        self.wait(
            "(w) => document.querySelector('.psb-answer').textContent.includes(w)"
            " && document.querySelector('.psb-lab').dataset.running === ''",
            argument=words,
        )

    def shot(self, path: Path) -> None:
        """Write a screenshot."""
        self.settle()
        if PICTURES:
            self.web.screenshot(path=path)

    def audit(self) -> list[str]:
        """Return the faults of what one sees: in its texts, and by the rules of axe.

        Its rule for contrasts takes as long as all others, and those are looked at in the texts.
        """
        return [*self.web.evaluate(AUDIT), *violations(self.web, ".psb-lab", "color-contrast")]

    def errors(self) -> list[str]:
        """Return what went wrong in the page."""
        return list(self.web.evaluate("() => window.errors"))

    def look(self, width: int, height: int, theme: str) -> None:
        """Show the panel in a page of another size, light or dark.

        Another size is a new page: one that was resized has been seen never to draw again (Chromium 156).
        """
        assert self.errors() == []
        if self.web.viewport_size != {"width": width, "height": height}:
            self.context.close()
            self._open(width, height, theme)
            self._mount()
        self.web.evaluate(
            """([look, light]) => {
              const style = document.documentElement.style;
              for (const [name, value] of Object.entries(look)) style.setProperty(name, value);
              document.body.dataset.jpThemeLight = light;
            }""",
            [LOOK[theme], str(theme == "light").lower()],
        )
        self.settle(900)

    def close(self) -> None:
        """Close the page and the panel."""
        self.context.close()
        self.lab.close()


def violations(web: Any, place: str, *without: str) -> list[str]:
    """Return the faults of a part of a page by the rules of axe but some, if npm has installed it."""
    if not AXE.exists():
        return []
    if not web.evaluate("() => 'axe' in window"):
        web.evaluate(AXE.read_text())
    return list(web.evaluate(VIOLATIONS, [place, {rule: {"enabled": False} for rule in without}]))


def _state(widget: Any) -> dict[str, Any]:
    return {name: _plain(getattr(widget, name)) for name in widget.trait_names(sync=True) if name[0] != "_"}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
