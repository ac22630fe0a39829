"""Results as JSON: dataclasses with their properties, under the name and the version of their form."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

# of every form in docs/json.md: goes up when a field changes its meaning or goes; new fields may come
SCHEMA_VERSION = 1


def document(schema: str, report: Any, **more: Any) -> dict[str, Any]:
    """A report with the name and the version of its form, docs/json.md; rows without a name are `rows`."""
    content = _plain(report)
    fields = content if isinstance(content, dict) else {"rows": content}
    return {"schema": f"ridgeline/{schema}/{SCHEMA_VERSION}", **fields, **more}


def to_json(report: Any) -> str:
    """Dataclasses with their properties; NaN and infinities as null, since JSON has none."""
    return json.dumps(_plain(report), indent=1, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
        computed = {
            name: getattr(value, name)
            for name, what in vars(type(value)).items()
            if isinstance(what, property)
        }
        return {name: _plain(part) for name, part in {**fields, **computed}.items()}
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
