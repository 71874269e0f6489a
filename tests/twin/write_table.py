"""Write the results of `psbench twin --out FOLDER` into the page of measurements and beside the tests.

python -m tests.twin.write_table FOLDER/results.json "24 November 2026, two quiet cores"
"""

import json
import sys
from pathlib import Path

#: the stored results, and the page with the table between two comments
KEPT = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "notebooks/site/measurements.md"
BEGIN, END = "<!-- psbench twin: begin -->\n", "<!-- psbench twin: end -->\n"


def table(found):
    """Return the section of the page: every cell, the verdicts, and the causes of failures."""
    reach = {name: abs(error) for name, error in found["replays"].items()}
    minutes = f"{found['seconds'] / 60:.0f} minutes of live runs"
    lines = [
        f"{found['repeats']} live repeats in turns, {minutes} ({found['when']}). Noise floor "
        f"(deviation of single live runs, over all cells): {found['noise_floor']:.1%}. Replayed with their "
        f"measured times, all {len(reach)} runs agree to {max(reach.values()):.2%}.",
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
        *(_row(cell) for cell in found["cells"]),
        "",
        *(f"- {each}" for each in found["verdicts"]),
        *(f"- not obtained: {name}: {why}" for name, why in found["failed"].items()),
    ]
    return "\n".join(lines).replace("%", " %").replace("  %", " %") + "\n"


_HEADINGS = (
    *("(b) other seeds, (c) not fitted, (d) more workers", "s per update, live", "twin", "error", "allowed"),
    *("noise", "to 90 %", "waiting, points", "staleness, W1", "largest", "bytes", "in the band"),
)


def _row(cell):
    target = "" if cell["target_error"] is None else f"{cell['target_error']:+.1%}"
    parts = [
        f"({cell['part']}) {cell['name']}",
        *(f"{cell[name]:.4f}" for name in ("live_s", "predicted_s")),
        f"{cell['error']:+.1%}{'' if abs(cell['error']) <= cell['allowed'] else ' **!**'}",
        *(f"{cell[name]:.1%}" for name in ("allowed", "noise")),
        *(target, f"{cell['idle_points']:+.1f}", f"{cell['staleness_distance']:.2f}"),
        *(
            f"{cell['staleness_max']:+d}",
            "exact" if cell["bytes_equal"] else "differ",
            f"{cell['covered']:.0%}",
        ),
    ]
    return "| " + " | ".join(parts) + " |"


def main(file, when):
    found = json.loads(Path(file).read_text())
    repeats = max(cell["repeats"] for cell in found["cells"])
    found |= {"when": when, "repeats": repeats}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + BEGIN + table(found) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
