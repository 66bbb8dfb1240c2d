"""The table of sinks: from a configuration's type to what makes one."""

from __future__ import annotations

from collections.abc import Callable

from pgtide.config import DeltaSink as DeltaConfig
from pgtide.sinks.base import Sink


def _delta(config: DeltaConfig, pipeline: str) -> Sink:
    from pgtide.sinks.delta import DeltaSink

    return DeltaSink(config, pipeline)


SINKS: dict[str, Callable[[DeltaConfig, str], Sink]] = {"delta": _delta}


def make_sink(config: DeltaConfig, pipeline: str) -> Sink:
    """The sink that a pipeline's configuration names."""
    return SINKS[config.type](config, pipeline)
