"""The number of pods that KEDA would set."""

from math import ceil
from typing import Any

import httpx


def wanted_pods(scaled: dict[str, Any]) -> int | None:
    """Return the number by the one trigger of a ScaledObject, or None while its query has no value.

    KEDA's HorizontalPodAutoscaler also divides the value by the target for a pod, rounds up, and keeps both bounds.
    """
    [trigger] = scaled["spec"]["triggers"]
    server, query, target = (trigger["metadata"][name] for name in ("serverAddress", "query", "threshold"))
    values = _ask(server, query)
    if not values and trigger["metadata"]["ignoreNullValues"] == "false":
        return None  # KEDA keeps the number
    [found] = values  # KEDA refuses several
    wanted = ceil(float(found["value"][1]) / float(target))
    least, most = (int(scaled["spec"][name]) for name in ("minReplicaCount", "maxReplicaCount"))
    return max(least, min(wanted, most))


def _ask(server: str, query: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server}/api/v1/query", params={"query": query}, timeout=30, trust_env=False)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
    return found
