"""A field of config.json is looked at when it is read, and named when it is wrong.

    read_size(raw, "head_dim", default=64)     a whole number from 1 on; without a default it has to be there

Wrong is what has another type or range than transformers would accept. (From level 01.)"""

from collections.abc import Mapping
from typing import Any, cast

from ..checks import check_boolean, check_integer, check_number

Json = Mapping[str, Any]


def read_size(raw: Json, key: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    check_integer(key, value, 1)
    return cast(int, value)


def read_number(raw: Json, key: str, default: float) -> float:
    value = raw.get(key, default)
    check_number(key, value, 0)
    return cast(float, value)


def read_flag(raw: Json, key: str) -> bool:
    value = raw.get(key, False)
    check_boolean(key, value)
    return cast(bool, value)
