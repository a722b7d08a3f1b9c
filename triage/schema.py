"""The JSON Schema (2020-12) of a report, made from the model's type hints; `triage schema` prints it.

Names and order are those of the dataclasses (a field may carry another name in metadata `json`). Every key is always
there; unknown is null; lists are always lists. Readers ignore keys they do not know: a minor version only adds.
The mitigation is a plain dict (triage/cost/plans.py), so its shape is written down here by hand.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from triage.model import Report

SCHEMA_VERSION = "triage.report/1"
COST_VERSION = "triage.cost/1"

Schema = dict[str, Any]


def schema() -> Schema:
    """The whole schema as a dict."""
    definitions: dict[str, Schema] = {}
    body = _dataclass(Report, definitions)
    properties = body["properties"]
    properties["schema_version"] = {"const": SCHEMA_VERSION}
    properties["mitigation"] = {"$ref": "#/$defs/Mitigation"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:triage:report:1",
        "title": SCHEMA_VERSION,
        "description": "What triage found out about one job: verdict, evidence, what was ruled out, the priced step.",
        **body,
        "$defs": {**dict(sorted(definitions.items())), "Mitigation": _mitigation()},
    }


def schema_text() -> str:
    """The committed and printed form."""
    return json.dumps(schema(), indent=2) + "\n"


def _dataclass(kind: type[Any], definitions: dict[str, Schema]) -> Schema:
    hints = get_type_hints(kind)
    properties = {
        field.metadata.get("json", field.name): _type(hints[field.name], definitions)
        for field in dataclasses.fields(kind)
    }
    out: Schema = {"type": "object"}
    # A dataclass without a docstring of its own gets one from Python, which is its signature and says nothing.
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
        out["description"] = kind.__doc__.strip().splitlines()[0]
    out["required"] = list(properties)
    out["properties"] = properties
    return out


_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}


def _type(hint: Any, definitions: dict[str, Schema]) -> Schema:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # holds the place while its own fields are read
            definitions[hint.__name__] = _dataclass(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return _union([_type(argument, definitions) for argument in arguments])
    if origin in (tuple, list):
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin in (dict, Mapping) or origin is getattr(types, "MappingProxyType", None):
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    raise TypeError(f"the model holds a type that the schema cannot say: {hint}")


def _union(options: list[Schema]) -> Schema:
    """`str | None` as one type list, anything else as anyOf."""
    if all(set(option) == {"type"} for option in options):
        return {"type": [option["type"] for option in options]}
    return {"anyOf": options}


# ---------------------------------------------------------------- mitigation, by hand

_NUMBER = {"type": ["number", "null"]}
_TEXT = {"type": ["string", "null"]}
_STRATEGY = {"enum": ["S1", "S2", "S3", "S4"]}
_SOURCE = {"enum": ["measured", "log", "scheduler", "filesystem", "history", "flag", "profile", "default"]}


def _object(properties: Schema, description: str = "", nullable: bool = False) -> Schema:
    out: Schema = {"type": ["object", "null"] if nullable else "object"}
    if description:
        out["description"] = description
    return {**out, "required": list(properties), "properties": properties}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _plan() -> Schema:
    numbers = {"type": ["array", "null"], "items": {"type": "integer"}}
    move = _object(
        {
            "node": {"type": "string"},
            "from": {"type": "integer"},
            "to": {"type": "integer"},
            "stage": {"type": "integer"},
        }
    )
    return _object(
        {
            "micro_batches": numbers,
            "micro_batches_now": {"type": ["integer", "null"]},
            "slow_groups": numbers,
            "slow_group_known": {"type": ["boolean", "null"]},
            "node_order": {"type": ["array", "null"], "items": {"type": "string"}},
            "moves": {"type": ["array", "null"], "items": move},
            "layers": numbers,
            "slow_stages": numbers,
            "predicted_step_s": _NUMBER,
            "text": {"type": "string"},
        },
        "S2: micro-batches of each data-parallel group. S3: the order of the nodes, the layers of each stage.",
        nullable=True,
    )


def cost_schema() -> Schema:
    """What `triage cost --output json` prints: the mitigation of a report alone."""
    body = _mitigation()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:triage:cost:1",
        "title": COST_VERSION,
        "description": body["description"],
        "type": "object",
        "required": ["schema_version", *body["required"]],
        "properties": {"schema_version": {"const": COST_VERSION}, **body["properties"]},
    }


def cost_schema_text() -> str:
    return json.dumps(cost_schema(), indent=2) + "\n"


def _mitigation() -> Schema:
    recommended = _object(
        {
            "strategy": _STRATEGY,
            "action": {
                "enum": [
                    "none",
                    "wait",
                    "collect",
                    "repair",
                    "rebalance",
                    "change_topology",
                    "restart",
                    "restart_excluding",
                    "fix_then_restart",
                ]
            },
            "urgency": {"enum": ["now", "when_due", "none"]},
            "fix_first": _TEXT,
            "wait_until": {"type": ["string", "null"], "format": "date-time"},
            "command_hint": _TEXT,
            "summary": {"type": "string"},
        },
        "S1 do nothing, S2 re-balance micro-batches, S3 change the topology, S4 checkpoint-and-restart.",
    )
    loss = _object(
        {
            "healthy_step_s": _NUMBER,
            "slow_step_s": _NUMBER,
            "step_increase": _NUMBER,
            "speed_ratio": _NUMBER,
            "lost_fraction": _NUMBER,
            "onset": {"type": ["string", "null"], "format": "date-time"},
            "elapsed_min": _NUMBER,
            "accumulated_job_min": _NUMBER,
            "gpu_hours": _NUMBER,
            "usd": _NUMBER,
            "job_min_per_hour": _NUMBER,
        },
        "One job-minute is all GPUs of the job for one minute. lost_fraction = x / (1 + x), x = step_increase.",
    )
    strategy = _object(
        {
            "id": _STRATEGY,
            "applicable": {"type": "boolean"},
            "reason": {"type": "string"},
            "overhead_job_min": _object({"low": _NUMBER, "mid": _NUMBER, "high": _NUMBER}, nullable=True),
            "residual_lost_fraction": _NUMBER,
            "break_even_incident_min": _NUMBER,
            "justified": {"type": "boolean"},
            "justified_at": {"type": ["string", "null"], "format": "date-time"},
            "plan": _plan(),
        }
    )
    restart = _object(
        {
            "last_checkpoint_step": {"type": ["integer", "null"]},
            "age_min": _NUMBER,
            "interval_min": _NUMBER,
            "choice": {"enum": ["dump_now", "from_last", "wait_next", None]},
            "work_lost_min": _NUMBER,
            "ways": _array(
                _object(
                    {
                        "choice": {"enum": ["dump_now", "from_last", "wait_next"]},
                        "overhead_job_min": _NUMBER,
                        "break_even_incident_min": _NUMBER,
                        "assumed": {"type": "boolean"},
                    }
                )
            ),
            "exclude_nodes": _array({"type": "string"}),
            "not_excluded_because": _TEXT,
            "spares": _object({"needed": {"type": "integer"}, "idle": {"type": ["integer", "null"]}, "source": _TEXT}),
        }
    )
    flip = {
        "type": "object",
        "required": ["input", "text"],
        "properties": {
            "input": {"type": "string"},
            "at": {"type": "number"},
            "unit": {"type": "string"},
            "becomes": _STRATEGY,
            "text": {"type": "string"},
        },
    }
    asked = _object(
        {
            "value": {"type": ["number", "boolean", "null"]},
            "low": _NUMBER,
            "high": _NUMBER,
            "unit": {"type": "string"},
            "source": _SOURCE,
        }
    )
    escalation = _object(
        {
            "strategy": _STRATEGY,
            "in_min": _NUMBER,
            "at": {"type": ["string", "null"], "format": "date-time"},
            "condition": {"type": "string"},
        },
        nullable=True,
    )
    return _object(
        {
            "policy": {"enum": ["ski_rental", "prefer_restart"]},
            "failure_class": {"type": "string"},
            "recommended": recommended,
            "loss": loss,
            "strategies": {**_array(strategy), "minItems": 4, "maxItems": 4},
            "next_escalation": escalation,
            "restart": restart,
            "sensitivity": _object({"flips_if": _array(flip), "corners_agree": {"type": "boolean"}}),
            "inputs": {"type": "object", "additionalProperties": asked},
            "confidence": {"enum": ["high", "medium", "low"]},
            "arithmetic": _array({"type": "string"}),
        },
        "The step that the arithmetic justifies, and the arithmetic. Unknown is null, never 0.",
    )
