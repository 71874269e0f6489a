"""A twin of a cluster: measured, fitted, used for predictions, and compared with live runs.

Other packages import this module alone. Its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psbench.system.lazy import lazy_names

if TYPE_CHECKING:
    from psbench.twin.attribution import blame
    from psbench.twin.calibration import Calibration
    from psbench.twin.forecast import predict
    from psbench.twin.measures import measures_of
    from psbench.twin.pictures import write_report
    from psbench.twin.prediction_page import check_format
    from psbench.twin.probe import calibrate
    from psbench.twin.recording import Recorded, Sizes, record
    from psbench.twin.trace_files import cluster_of, read_meetings, read_trace
    from psbench.twin.validation import validate

__all__ = [
    "Calibration",
    "Recorded",
    "Sizes",
    "blame",
    "calibrate",
    "check_format",
    "cluster_of",
    "measures_of",
    "predict",
    "read_meetings",
    "read_trace",
    "record",
    "validate",
    "write_report",
]
__getattr__ = lazy_names(
    __name__,
    {
        **{"Calibration": "calibration", "calibrate": "probe", "measures_of": "measures"},
        **{"predict": "forecast", "check_format": "prediction_page", "write_report": "pictures"},
        **dict.fromkeys(("Recorded", "Sizes", "record"), "recording"),
        **dict.fromkeys(("cluster_of", "read_meetings", "read_trace"), "trace_files"),
        **{"blame": "attribution", "validate": "validation"},
    },
)
