"""Draw the pictures of texts that no test takes: `python -m tests.pictures`, a part of `make pictures`."""

from __future__ import annotations

import io

import altair as alt
import pandas as pd
import vl_convert
from PIL import Image

import psbench as ps
from psbench import metrics
from psbench.charts import timeline_chart
from psbench.charts.theme import theme
from psbench.charts.workers import around
from psbench_papers.figures import figures
from psbench_papers.session import stored_reproduction
from tests.fresh_notebooks import FOLDER

#: spans that have room in a picture as wide as a page of the site
SPANS = 48


def overlap() -> Image.Image:
    """Return the timeline of a live run in which workers compute while they send."""
    network = {"name": "mlp", "hidden": [512, 512]}  # large, so that sends take a visible part of a step
    strategy = {"name": "streaming_diloco", "local_steps": 6}
    done = ps.run(
        ps.Experiment(
            strategy=strategy, backend="dask", model=network, cluster={"workers": 2}, stop={"updates": 40}
        )
    )
    spans, beside = metrics.timeline(done.log), metrics.sends_beside(done.log)
    spans = pd.concat([spans, beside]).sort_values(["worker", "start_s"], kind="stable")
    piece = around(spans, float(beside["start_s"].median()), limit=SPANS)
    title = "A live run of streaming_diloco: what each worker does"
    return _picture(timeline_chart(piece, title, height=84).properties(width=960))


def stale_momentum() -> Image.Image:
    """Return the map of momentum with staleness, one chart for each problem."""
    drawn = figures(stored_reproduction("stale_momentum"))
    return _picture(alt.hconcat(*(each.chart.properties(width=380, height=320) for each in drawn)))


def _picture(chart: alt.TopLevelMixin) -> Image.Image:
    spec = chart.to_dict() | {"config": theme(background="white")}
    return Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec))).convert("RGB")


if __name__ == "__main__":
    overlap().quantize(64).save(FOLDER / "site" / "live-streaming-timeline.png", optimize=True)
    stale_momentum().save(FOLDER / "pictures" / "stale_momentum.webp", quality=80)
