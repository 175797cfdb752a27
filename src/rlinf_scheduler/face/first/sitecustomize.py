"""The first module that every Python runs below `python -m rlinf_scheduler`: its folder stands first on PYTHONPATH.

It loads nothing of the library: most of these processes never import RLinf. What it hides is run, too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as of `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Put together, since no module of this package imports the face.
_PACKAGE = "rlinf"
_SCHEDULER = f"{_PACKAGE}.scheduler"
_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARY = os.path.dirname(os.path.dirname(_HERE))
_NAME = os.path.basename(_LIBRARY)


class UntilRLinf:
    """A finder that loads the real one, of `rlinf_scheduler.face`, when RLinf is imported."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the package `rlinf`, or what is asked for first below it, as the real finder does.

        Raises:
            ImportError: this process finds another copy of the library than the one that has started the program.
        """
        return cls.real(name).find_spec(name, path, target) if f"{name}.".startswith(f"{_PACKAGE}.") else None

    @classmethod
    def real(cls, name: str) -> Any:
        """Put the real finder in the place of this one, for an import of that name."""
        # Here, since most processes never come here.
        from importlib import import_module  # noqa: PLC0415
        from importlib.util import find_spec  # noqa: PLC0415

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
        return finder.install()


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


# Another copy of this file that is hidden by the first one has no say.
if all(getattr(finder, "__name__", "") != UntilRLinf.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, UntilRLinf)
    if _SCHEDULER in sys.modules:  # of a .pth file, which is read before this
        try:
            UntilRLinf.real(_SCHEDULER)
        except ImportError as error:
            # An error of this module would only be a line, and the program would go on.
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
_run_hidden()
