"""The page of measurements has the stored results of `psbench twin`, to the character."""

import json

from tests.twin.write_table import BEGIN, END, KEPT, PAGE, table


def test_the_page_is_what_is_stored():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == table(json.loads(KEPT.read_text(encoding="utf-8")))
