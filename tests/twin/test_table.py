"""README and the page of measurements have what is stored of `psbench twin`, to the character."""

import json

import pytest

from tests.twin.write_table import BEGIN, END, KEPT, PAGE, README, short_table, table


@pytest.mark.parametrize(("page", "written"), [(PAGE, table), (README, short_table)])
def test_pages_are_what_is_stored(page, written):
    shown = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == written(json.loads(KEPT.read_text(encoding="utf-8")))
