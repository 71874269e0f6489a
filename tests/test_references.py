"""Every citation resolves to an entry of `REFERENCES.md`, and every entry can be told from the others."""

import inspect
import re

import pytest

from psbench import clusters, data, models, sharding
from psbench.core.part import REGISTRY
from psbench.optimization import losses, optimizer, own_functions, scores
from psbench.references import references, resolve
from psbench.strategies import CATALOGUE, codecs

_ = (
    clusters,
    codecs,
    data,
    losses,
    models,
    optimizer,
    own_functions,
    scores,
    sharding,
)  # these register parts

#: what a source says where nothing was published
OURS = re.compile(
    r"\b(ours?|by hand|manual|your own|measured|(any|equal) machines|worked examples"
    r"|data that is already on the workers)\b"
)
#: software whose behaviour is cited, by the name of its object
SOFTWARE = re.compile(r"\b(torch(vision)?\.[\w.]+|sklearn\.[\w.]+|pydoc_data\.topics|Apache Parquet)")
YEAR = re.compile(r"\b(19|20)\d\d\b")
SOURCE_SECTION = re.compile(r"Source\n-+\n(.*?)(?:\n\n\w|\Z)", re.DOTALL)


def sources():
    """Return every source of a part, a parameter or a published strategy, by where it stands."""
    found = {f"strategy {entry.name}": entry.source for entry in CATALOGUE.values()}
    for domain, parts in REGISTRY.items():
        for name, cls in parts.items():
            if not cls.__module__.startswith("psbench."):
                continue  # of another test
            found[f"{domain} {name}"] = cls.source
            for field, info in cls.model_fields.items():
                found[f"{domain} {name}.{field}"] = (info.json_schema_extra or {}).get("source", "")
            section = SOURCE_SECTION.search(inspect.getdoc(cls) or "")
            found[f"{domain} {name}, docstring"] = section.group(1) if section else ""
    return {place: source for place, source in found.items() if source}


def unresolved(source):
    """Return what of a source is no known citation; empty if all of it is."""
    found, rest = resolve(source)
    if YEAR.search(rest):
        return rest
    return "" if found or OURS.search(source) or SOFTWARE.search(source) else source


def test_every_citation_is_in_the_list():
    missing = {place: unresolved(source) for place, source in sources().items()}
    assert {place: rest for place, rest in missing.items() if rest} == {}


@pytest.mark.parametrize("source", ["Nobody et al. 2031", "Ho et al. 2013; Li et al. 2031", "protocols 1.6"])
def test_what_is_not_in_the_list_is_found(source):
    assert unresolved(source)


def test_keys_and_aliases_are_used_once():
    names = [name.lower() for each in references() for name in (each.key, *each.aliases)]
    assert len(names) == len(set(names))


def test_every_line_of_the_list_is_an_entry():
    from importlib.resources import files

    text = files("psbench").joinpath("REFERENCES.md").read_text(encoding="utf-8")
    assert len(references()) == sum(line.startswith("-") for line in text.splitlines())
