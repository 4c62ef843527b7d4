"""``docs/parts.md`` has every kind of its families, with the title and the keys that the models have."""

from pathlib import Path

import pytest

import fedsim
from fedsim.federation.codecs import CODECS
from fedsim.federation.malicious import ATTACKS
from fedsim.language.registry import Registry
from fedsim.strategies.parts.aggregation import AGGREGATIONS
from fedsim.strategies.parts.server import OPTIMISERS

PAGE = Path(fedsim.__file__).parent.parent / "docs" / "parts.md"


def keys(family: Registry, kind: str) -> str:
    """The keys of a kind and their defaults, as TOML says them; a key alone has none, or stands for nothing."""
    shown = []
    for name, field in family.spec(kind).model_fields.items():
        value = None if field.is_required() else field.default
        written = f'"{value}"' if isinstance(value, str) else str(value).lower()
        shown += [] if name == "kind" else [f"`{name}`" if value is None else f"`{name} = {written}`"]
    return ", ".join(shown)


@pytest.mark.parametrize("family", [OPTIMISERS, AGGREGATIONS, CODECS, ATTACKS], ids=lambda family: family.called)
def test_the_page_says_what_the_models_say(family: Registry) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {family.called.capitalize()}")[1].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    assert all(source for _, _, source, _ in rows)
    found = [(kind, title, said) for kind, title, _, said in rows]
    assert found == [(f"`{kind}`", title, keys(family, kind)) for kind, title in family.titles.items()]
