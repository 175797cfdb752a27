"""What a process starts with: the variables and the interpreter that its node groups set on its node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.node_groups import RESERVED_LABELS, NodeGroup, PathMerge
from rlinf_scheduler.planning.record import Placement

# What every process finds about itself, for `env://` of torch.distributed; a value of the user's would be overwritten.
LAUNCH_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# Lists of folders in which programs look: what a group sets is put beside what the node has.
PATH_VARIABLES = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CMAKE_PREFIX_PATH",
    "PKG_CONFIG_PATH",
    "CPATH",
)
# Of the program that launches: where those folders go for whom no `path_variables` says it. The words of RLinf are
# known too: what it calls "append" puts them in front.
PATH_MERGE_VARIABLE = "RLINF_PATH_ENV_MERGE_MODE"
_PATH_MERGES: dict[str, PathMerge] = {
    "prepend": "prepend",
    "append": "prepend",
    "replace": "replace",
    "override": "replace",
}


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """What one process starts with.

    Attributes:
        env_vars: names and values, in the order written. `${NAME}` in a value stands for what the node has under that
            name, and for nothing where it has none: the value of a path variable ends with it.
        python_interpreter_path: the interpreter, or "" for the node's own.
    """

    env_vars: tuple[tuple[str, str], ...] = ()
    python_interpreter_path: str = ""


class EnvironmentTable:
    """What the processes on a topology start with.

    A process starts with what the node groups that it was placed by set on its node, and with nothing of other
    groups: two groups may lay different software over one node. `cluster` and `node` set nothing themselves; a process
    placed by them belongs to no group more than to another, and starts with what all groups of its node set.

    Args:
        node_groups: the groups that were declared.
        path_merge: where the folders of path variables go for whom no entry says it.
    """

    def __init__(self, node_groups: Iterable[NodeGroup], path_merge: PathMerge = "prepend") -> None:
        self._path_merge = path_merge
        self._settings = {
            group.label: by_node for group in node_groups if (by_node := _settings_by_node(group))
        }
        self._known: dict[tuple[str, int], ProcessEnvironment] = {}

    def __bool__(self) -> bool:
        """Whether any group sets anything."""
        return bool(self._settings)

    def of(self, placement: Placement) -> ProcessEnvironment:
        """What a process starts with.

        Raises:
            ConfigError: two settings for its node contradict each other; the text names both places.
        """
        return self.on_node(placement.node_group, placement.node_rank)

    def on_node(self, node_group: str, node_rank: int) -> ProcessEnvironment:
        """What processes placed by a node group (several, with commas) start with on a node.

        Raises:
            ConfigError: two settings for the node contradict each other; the text names both places.
        """
        key = (node_group, node_rank)
        if key not in self._known:
            self._known[key] = _merged(self._settings_for(*key), node_rank, self._path_merge)
        return self._known[key]

    def _settings_for(self, node_group: str, node_rank: int) -> Iterator[_Setting]:
        labels = node_group.split(",")
        if any(label in RESERVED_LABELS for label in labels):
            labels = list(self._settings)
        for label in labels:
            yield from self._settings.get(label, {}).get(node_rank, ())


def path_merge_of(variables: Mapping[str, str]) -> PathMerge:
    """What the variables of the program that launches say of path variables: they go in front if they say nothing.

    Raises:
        ConfigError: it is none of the words that are known.
    """
    told = variables.get(PATH_MERGE_VARIABLE, "").strip().lower()
    if told and told not in _PATH_MERGES:
        problem = f"{PATH_MERGE_VARIABLE} is '{told}'; it is one of {', '.join(_PATH_MERGES)}"
        raise ConfigError(problem, hint="`path_variables: append` of a node group puts folders behind")
    return _PATH_MERGES.get(told, "prepend")


def environment_errors(group: NodeGroup) -> list[ConfigError]:
    """The contradictions among a group's own entries, each once however many nodes it is true of."""
    found: dict[str, ConfigError] = {}
    for node_rank, settings in _settings_by_node(group).items():
        try:
            _merged(settings, node_rank)
        except ConfigError as error:
            found.setdefault(error.path or str(error), error)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Setting:
    """A variable, or the interpreter where the name is empty; and the entry that sets it."""

    name: str
    value: str
    group: NodeGroup
    entry: int
    path_merge: PathMerge | None = None

    @property
    def path(self) -> str:
        key = "env_vars" if self.name else "python_interpreter_path"
        return self.group.path_of(f"env_configs[{self.entry}].{key}")


def _settings_by_node(group: NodeGroup) -> Mapping[int, list[_Setting]]:
    by_node: dict[int, list[_Setting]] = {}
    for index, entry in enumerate(group.environments):
        settings = [
            _Setting(name, value, group, index, entry.path_variables) for name, value in entry.env_vars
        ]
        if entry.python_interpreter_path:
            settings.append(_Setting("", entry.python_interpreter_path, group, index))
        for node_rank in group.nodes_of(entry) if settings else ():
            by_node.setdefault(node_rank, []).extend(settings)
    return by_node


def _merged(
    settings: Iterable[_Setting], node_rank: int, path_merge: PathMerge = "prepend"
) -> ProcessEnvironment:
    chosen: dict[str, _Setting] = {}
    for setting in settings:
        before = chosen.setdefault(setting.name, setting)
        if before.value != setting.value:
            raise _contradiction(before, setting, node_rank)
    interpreter = chosen.pop("", None)
    variables = tuple(
        (setting.name, _beside_what_is_there(setting, setting.path_merge or path_merge))
        for setting in chosen.values()
    )
    return ProcessEnvironment(variables, interpreter.value if interpreter else "")


def _beside_what_is_there(setting: _Setting, path_merge: PathMerge) -> str:
    there = f"${{{setting.name}}}"
    if setting.name not in PATH_VARIABLES or there in setting.value or path_merge == "replace":
        return setting.value
    parts = (setting.value, there) if path_merge == "prepend" else (there, setting.value)
    return ":".join(filter(None, parts))


def _contradiction(before: _Setting, setting: _Setting, node_rank: int) -> ConfigError:
    what = setting.name or "the interpreter"
    if before.group is setting.group:
        there = before.path or f"entry {before.entry} of node group '{before.group.label}'"
        hint = "give the two entries node_ranks that have no node in common"
    else:
        there = before.path or f"node group '{before.group.label}'"
        hint = (
            f"a component placed by '{before.group.label}' or '{setting.group.label}' alone gets one of them"
        )
    problem = f"on node {node_rank} {what} is '{setting.value}' here and '{before.value}' in {there}"
    return ConfigError(problem, path=setting.path, hint=hint)
