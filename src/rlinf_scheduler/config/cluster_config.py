"""`ClusterConfig`: the `cluster:` section, checked, in the planner's own types."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from rlinf_scheduler.checks import is_text_or_number, whole_number
from rlinf_scheduler.config.findings import check, shown, unknown_key
from rlinf_scheduler.config.metrics import MetricsConfig, read_metrics
from rlinf_scheduler.config.net_emulation import NetEmulation, read_net_emulation
from rlinf_scheduler.config.network import NetworkConfig, read_network
from rlinf_scheduler.config.nodes import NodeLimits, check_one_number, read_nodes
from rlinf_scheduler.config.profiling import read_profiling
from rlinf_scheduler.config.rules import read_rules
from rlinf_scheduler.config.schema import HardwareSection, NodeGroupSection, TracerSection
from rlinf_scheduler.config.source import SECTION, SECTION_KEYS, ConfigSource, read_source
from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType
from rlinf_scheduler.hardware.profilers import ProfilingConfig
from rlinf_scheduler.hardware.registry import hardware_type
from rlinf_scheduler.planning import (
    HardwareUnit,
    NodeEnvironment,
    NodeGroup,
    PlacementRule,
    PlacementWish,
    Topology,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

    ConfigInput: TypeAlias = Mapping[str, Any] | DictConfig | str | os.PathLike[str]

Value = TypeVar("Value")
# The first settings of each piece of hardware that can be told from others, and where they stand.
_Named: TypeAlias = dict[tuple[str, Hashable], tuple[HardwareConfig, str]]
# How channels are held.
ChannelProcess = Literal["shared", "own"]
DEFAULT_CHANNEL_PROCESS: ChannelProcess = "shared"
# How groups are to grow and shrink; the last three only matter where the first is on.
_SWITCHES = (
    "fail_fast",
    "auto_scheduler",
    "use_pre_process_policy",
    "use_wait_before_last_iter_policy",
    "recreate_nccl_groups",
)
# In the folder in which the driver runs.
DEFAULT_TRACE_FILE = "trace_events.jsonl"
# Longer than a switch takes to start anew.
DEFAULT_UNREACHABLE_AFTER_S = 30.0
_EACH_ONCE = "every piece stands in its group once; a setting that differs tells two apart"
_NO_ENTRIES = "there must be at least one entry"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The `cluster:` section.

    Attributes:
        num_nodes: how many nodes the job uses; None: all there are.
        nodes: how many it may have as they come and go; None: it takes none by itself.
        simulate: the pretend cluster to run on, e.g. "2x8"; None: a real one.
        node_groups: the groups it declares, in its order.
        rules: the entries of `component_placement`, in its order.
        channel_process: "shared": the channels of a node share processes; "own": each has one for itself.
        network: how its processes talk from machine to machine.
        unreachable_after_s: how long a process may be unreachable before it is dead, in seconds.
        fail_fast: whether a call that fails ends the driver that made it; None: only that of a program which
            `python -m rlinf_scheduler` runs.
        profiling: which ranks are started under a profiler; None: none.
        auto_scheduler: whether groups are to grow and shrink while they run.
        trace_file: the file of a trace of the whole job; None: none is written.
        net_emulation: the network that the job is to see; None: the one that there is.
        metrics: where what ranks log is written; None: nowhere.
        source: where it comes from; it puts file and line into errors.
        mistakes: what is wrong with the section, without file and line; the rest of these is what is right.
    """

    num_nodes: int | None = None
    simulate: str | None = None
    node_groups: tuple[NodeGroup, ...] = ()
    rules: tuple[PlacementRule | PlacementWish, ...] = ()
    source: ConfigSource = field(default_factory=lambda: ConfigSource({}), compare=False, repr=False)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    channel_process: ChannelProcess = DEFAULT_CHANNEL_PROCESS
    unreachable_after_s: float = DEFAULT_UNREACHABLE_AFTER_S
    fail_fast: bool | None = None
    profiling: ProfilingConfig | None = None
    auto_scheduler: bool = False
    trace_file: str | None = None
    net_emulation: NetEmulation | None = None
    metrics: MetricsConfig | None = None
    nodes: NodeLimits | None = None
    mistakes: tuple[ConfigError, ...] = field(default=(), compare=False, repr=False)

    def raise_mistakes(self, others: Iterable[ConfigError] = ()) -> None:
        """Raise the section's mistakes and others, each with its file and line, in the order of the section.

        Raises:
            ConfigError: there is one mistake; `ConfigErrors` for several.
        """
        raise_config_errors(self.source.in_order((*self.mistakes, *others)))

    def check_emulated_nodes(self, topology: Topology) -> None:
        """Make sure that the nodes are there between which a network is emulated.

        Raises:
            ConfigError: one is not.
        """
        problem = None if self.net_emulation is None else self.net_emulation.missing_node(topology)
        if problem is not None:
            raise_config_errors(self.source.in_order([problem]))


def read_cluster_config(config: ConfigInput | ClusterConfig) -> ClusterConfig:
    """The checked `cluster:` section of a config.

    Args:
        config: a whole config, or its `cluster` section: a dict, a DictConfig or the path of a YAML file.

    Raises:
        ConfigError: a mistake; its text says where, and names the nearest key for one that is unknown.
        ConfigErrors: several mistakes.
    """
    checked = try_read_cluster_config(config)
    checked.raise_mistakes()
    return checked


def try_read_cluster_config(config: ConfigInput | ClusterConfig) -> ClusterConfig:
    """The section without what is wrong with it; its `mistakes` say what that is.

    Raises:
        ConfigError: there is no section to read.
    """
    if isinstance(config, ClusterConfig):
        return config
    source = read_source(config)
    section = source.section
    errors: list[ConfigError] = [
        unknown_key(key, list(SECTION_KEYS), f"{SECTION}.{key}") for key in section if key not in SECTION_KEYS
    ]
    num_nodes = _attempt(errors, _num_nodes, section.get("num_nodes"))
    nodes: NodeLimits | None = _attempt(errors, read_nodes, section.get("nodes"))
    _attempt(errors, partial(check_one_number, nodes), num_nodes)
    simulate = _attempt(errors, _simulate, section.get("simulate"))
    node_groups = _node_groups(section.get("node_groups"), errors)
    rules = read_rules(
        section.get("component_placement"),
        f"{SECTION}.component_placement",
        errors,
        numbers_as_written=source.numbers_as_written,
    )
    network = _attempt(errors, read_network, section.get("network"))
    channel_process: ChannelProcess | None = _attempt(
        errors, _channel_process, section.get("channel_process")
    )
    unreachable_after_s: float | None = _attempt(
        errors, _unreachable_after_s, section.get("unreachable_after_s")
    )
    profiling = _attempt(errors, read_profiling, section.get("profiling"))
    metrics = _attempt(errors, read_metrics, section.get("metrics"))
    switches = {key: _attempt(errors, partial(_switch, key), section.get(key)) for key in _SWITCHES}
    trace_file = _attempt(errors, _trace_file, section.get("tracer"))
    net_emulation = read_net_emulation(
        section.get("net_emulation"),
        errors,
        components=[component for rule in rules for component in rule.components],
        node_groups={each.label: None if each.all_nodes else each.node_ranks for each in node_groups},
    )
    return ClusterConfig(
        num_nodes,
        simulate,
        tuple(node_groups),
        tuple(rules),
        source,
        network or NetworkConfig(),
        channel_process or DEFAULT_CHANNEL_PROCESS,
        unreachable_after_s or DEFAULT_UNREACHABLE_AFTER_S,
        switches["fail_fast"],
        profiling,
        bool(switches["auto_scheduler"]),
        trace_file,
        net_emulation,
        metrics,
        nodes,
        tuple(errors),
    )


def _attempt(errors: list[ConfigError], read: Callable[[Any], Value | None], value: Any) -> Value | None:
    try:
        return read(value)
    except ConfigError as error:
        errors.append(error)
        return None


def _num_nodes(value: Any) -> int | None:
    if value is None:
        return None
    number = whole_number(value, lowest=1, from_text=True)
    if number is None:
        raise ConfigError(
            f"this must be a whole number from 1, not {shown(value)}", path=f"{SECTION}.num_nodes"
        )
    return number


def _simulate(value: Any) -> str | None:
    if value is None:
        return None
    path = f"{SECTION}.simulate"
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(map(is_text_or_number, parts)):
        raise ConfigError(f"this must be text such as 2x8, not {shown(value)}", path=path)
    text = ",".join(map(str, parts))
    try:
        Topology.parse(text)
    except ConfigError as error:
        raise error.at(path=path) from None
    return text


def _unreachable_after_s(value: Any) -> float:
    path = f"{SECTION}.unreachable_after_s"
    if value is None:
        return DEFAULT_UNREACHABLE_AFTER_S
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise ConfigError(f"this must be a number of seconds from 1, not {shown(value)}", path=path)
    return float(value)


def _switch(key: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise ConfigError(f"this must be true or false, not {shown(value)}", path=f"{SECTION}.{key}")


def _trace_file(value: Any) -> str | None:
    path = f"{SECTION}.tracer"
    if value is None:
        return None
    section, found = check(TracerSection, value, path)
    raise_config_errors(found)
    if section is None or not section.enable:
        return None
    return section.output_file or DEFAULT_TRACE_FILE


def _channel_process(value: Any) -> ChannelProcess:
    known: tuple[ChannelProcess, ...] = get_args(ChannelProcess)
    if value is None:
        return DEFAULT_CHANNEL_PROCESS
    for mode in known:
        if value == mode:
            return mode
    path = f"{SECTION}.channel_process"
    raise ConfigError(f"this must be {' or '.join(known)}, not {shown(value)}", path=path)


def _node_groups(value: Any, errors: list[ConfigError]) -> list[NodeGroup]:
    path = f"{SECTION}.node_groups"
    if value is None:
        return []
    if not isinstance(value, list):
        hint = "begin every group with '- '" if isinstance(value, dict) else ""
        errors.append(
            ConfigError(f"this must be a list of node groups, not {shown(value)}", path=path, hint=hint)
        )
        return []
    groups: list[NodeGroup] = []
    named: _Named = {}
    for index, entry in enumerate(value):
        place = f"{path}[{index}]"
        section, found = check(NodeGroupSection, entry, place)
        errors.extend(found)
        if section is not None:
            groups.append(_node_group(section, place, errors, named))
    return groups


def _node_group(section: NodeGroupSection, path: str, errors: list[ConfigError], named: _Named) -> NodeGroup:
    environments = [
        NodeEnvironment(
            entry.node_ranks, entry.env_vars, entry.python_interpreter_path or "", entry.path_variables
        )
        for entry in section.env_configs or ()
    ]
    kind = _kind(section.hardware, f"{path}.hardware", errors)
    return NodeGroup(
        label=section.label,
        node_ranks=section.node_ranks or (),
        all_nodes=section.node_ranks is None,
        hardware=tuple(_hardware(kind, section.hardware, f"{path}.hardware", errors, named)),
        ignore_hardware=section.ignore_hardware,
        environments=tuple(environments),
        path=path,
        hardware_type=kind.name if kind is not None else "",
    )


def _kind(section: HardwareSection | None, path: str, errors: list[ConfigError]) -> HardwareType | None:
    if section is None:
        return None
    try:
        return hardware_type(section.type)
    except ConfigError as error:
        errors.append(error.at(path=f"{path}.type"))
        return None


def _hardware(
    kind: HardwareType | None,
    section: HardwareSection | None,
    path: str,
    errors: list[ConfigError],
    named: _Named,
) -> list[HardwareUnit]:
    if kind is None or section is None:
        return []
    if not section.configs and not kind.fills_in:
        errors.append(ConfigError(_NO_ENTRIES, path=f"{path}.configs"))
    units: list[HardwareUnit] = []
    at_place: dict[tuple[int, str], list[tuple[int, HardwareConfig]]] = {}
    for index, entry in enumerate(section.configs):
        place = f"{path}.configs[{index}]"
        checked, found = check(kind.config_model, entry, place)
        errors.extend(found)
        if checked is None:
            continue
        units.append(HardwareUnit(section.type, checked.node_rank, checked))
        # Entries that say nothing but their node are as many pieces.
        if checked.model_fields_set == {"node_rank"}:
            continue
        address = kind.address(checked)
        others = at_place.setdefault((checked.node_rank, address), [])
        first = next((other for other, settings in others if settings == checked), None)
        if first is not None:
            problem = f"entries {first} and {index} are the same {kind.name}"
            problem += f", at {address}" if address else ""
            errors.append(ConfigError(problem, path=place, hint=_EACH_ONCE))
        elif twice := _named_before(kind, checked, place, named):
            errors.append(twice)
        others.append((index, checked))
    return units


def _named_before(
    kind: HardwareType, settings: HardwareConfig, path: str, named: _Named
) -> ConfigError | None:
    """The mistake that a piece was named before with other settings; it is noted that it is named here."""
    identity = kind.identity(settings)
    if identity is None:
        return None
    before, there = named.setdefault((kind.name, identity), (settings, path))
    if there == path or before == settings:
        return None
    problem = f"{there} is the same {kind.name}, at {kind.address(settings)}, with other settings"
    return ConfigError(problem, path=path, hint="a piece of hardware is named once")
