"""The first module that every Python runs below `python -m rlinf_scheduler`: its folder stands first on PYTHONPATH.

It loads nothing of the library: most of these processes never import RLinf. What it hides is run, too.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARY = os.path.dirname(os.path.dirname(_HERE))
_NAME = os.path.basename(_LIBRARY)


class UntilRLinf:
    """A finder that loads the real one, of `rlinf_scheduler.face`, when RLinf is imported."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the package `rlinf` as the real finder does.

        Raises:
            ImportError: this process finds another copy of the library than the one that has started the program.
        """
        if name != "rlinf":
            return None
        sys.meta_path.remove(cls)
        if find_spec(_NAME) is None:
            sys.path.append(os.path.dirname(_LIBRARY))
        finder = import_module(f"{_NAME}.face.finder")
        found = os.path.dirname(os.path.dirname(os.path.abspath(str(finder.__file__))))
        if not os.path.samefile(found, _LIBRARY):
            sys.meta_path.insert(0, cls)  # the next import says so, too
            raise ImportError(
                f"two copies of rlinf-scheduler: that of {_LIBRARY} has started this program, and its path leads to "
                f"that of {found} first; start it with that one, or take it off the path",
                name=name,
            )
        return finder.install().find_spec(name, None, target)  # type: ignore[no-any-return]


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    hidden = PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is not None and hidden.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(hidden)
        hidden.loader.exec_module(module)


# Another copy of this file that is hidden by the first one has no say.
if all(getattr(finder, "__name__", "") != UntilRLinf.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, UntilRLinf)
_run_hidden()
