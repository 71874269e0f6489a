"""The page of the founding documents: no place that a part cites, and no exhibit, is without a row."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[1] / "notebooks" / "site" / "documents_page.py"
DOCUMENTS = ("thesis", "strategy_switch", "hermes", "adacomm", "dbs_sgd")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documents_page", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["documents_page"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_place_has_one_row(pages: ModuleType, document: str) -> None:
    listed = [place for row in pages.documents()[document]["rows"] for place in row["at"]]
    assert len(listed) == len(set(listed))
    cited, reproduced = pages.cited()[document], pages.reproduced()[document]
    assert cited, "no part cites it: the citations are not read"
    assert {*cited} - {*listed} == set(), "parts cite these places, and no row has them"
    assert {*reproduced} - {*listed} == set(), "numbers of these exhibits are reproduced, and no row has them"
    assert {*pages.exhibits(document)} - {*listed} == set(), "figures and tables without a row"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_row_says_where_it_is_or_why_it_is_left_out(pages: ModuleType, document: str) -> None:
    for row in pages.documents()[document]["rows"]:
        found = pages.entries_of(document, row)  # which refuses what psbench does not have
        assert bool(found) != bool(row.get("left_out")), row


def test_what_psbench_does_not_have_is_named(pages: ModuleType) -> None:
    for where in ("chart nothing", "strategy nothing", "command nothing", "setting recovery.nothing"):
        with pytest.raises(ValueError, match=f"has no '{where}'"):
            pages.described(where)


@pytest.mark.parametrize(
    ("document", "text", "places"),
    [
        ("thesis", "3.2.2, Table 3.2, Fig. 3.3", ["3.2.2", "Table 3.2", "Fig. 3.3"]),
        ("thesis", "Tables 4.2 and 4.3", ["Table 4.2", "Table 4.3"]),
        ("thesis", "ch. 2: 28-15-15-2", ["ch. 2"]),
        ("thesis", "5.2.3, App. B", ["5.2.3", "App. B"]),
        ("thesis", "6.1.2, 6.1.3", ["6.1.2", "6.1.3"]),
        ("hermes", "IV-C, eqs. 5-6, Alg. 2", ["IV-C", "eq. 5", "eq. 6", "Alg. 2"]),
        ("hermes", "sec. V: 110 K parameters", ["sec. V"]),
        ("adacomm", "5: 60 seconds", ["sec. 5"]),
        ("dbs_sgd", "eqs. 8-10", ["eq. 8", "eq. 9", "eq. 10"]),
    ],
)
def test_places_of_a_citation(pages: ModuleType, document: str, text: str, places: list[str]) -> None:
    assert pages.places(document, text) == places


def test_the_page_is_a_table_for_each_document(pages: ModuleType) -> None:
    text = pages.page()
    assert text.count("| place | content | in psbench |") == len(DOCUMENTS)
    assert "*Left out*" in text
    assert "`psbench reproduce thesis`" in text
