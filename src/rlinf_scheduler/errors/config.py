"""Mistakes in a config file or in arguments, with their places."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_scheduler.errors.base import SchedulerError

_MAX_LINE = 2000


def _on_one_line(text: str) -> str:
    """Text of a config within an error: it can neither begin a line of its own nor steer the terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_MAX_LINE])
    return shown if len(text) <= _MAX_LINE else f"{shown} ..."


class ConfigError(SchedulerError, ValueError):
    """A mistake in a config file or an argument.

    Args:
        problem: one sentence: what was asked and what is there.
        path: where in the config, e.g. `cluster.component_placement.actor.placement`; "" when not from a config.
        component: the component whose placement is at fault, or "".
        text: the text that holds the mistake, for the caret line; "" when there is none.
        span: start and end (exclusive) of the mistake in `text`, in characters.
        hint: what to write instead, or "".
        file: the file the config was read from, or "".
    """

    def __init__(
        self,
        problem: str,
        path: str = "",
        component: str = "",
        text: str = "",
        span: tuple[int, int] | None = None,
        hint: str = "",
        file: str = "",
    ) -> None:
        super().__init__(problem, path, component, text, span, hint, file)
        self.problem = problem
        self.path = path
        self.component = component
        self.text = text
        self.span = span
        self.hint = hint
        self.file = file

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.path) if part)
        subject = f"component '{self.component}'" if self.component else ""
        head = ": ".join(part for part in (where, subject, self.problem) if part)
        lines = [_on_one_line(head)]
        if self.text:
            lines.append(f"  {self.text}")
            if self.span is not None:
                start, end = self.span
                lines.append("  " + " " * start + "^" * max(1, end - start))
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def each(self) -> tuple[ConfigError, ...]:
        """The single mistakes that it reports: itself, or those that it holds."""
        return (self,)

    def pointing(self, text: str, span: tuple[int, int]) -> ConfigError:
        """The same mistake with a caret under a spot of a text."""
        return type(self)(self.problem, self.path, self.component, text, span, self.hint, self.file)

    def at(self, *, path: str = "", component: str = "", file: str = "") -> ConfigError:
        """The same mistake with its place filled in, where it says nothing of it yet."""
        return type(self)(
            self.problem,
            self.path or path,
            self.component or component,
            self.text,
            self.span,
            self.hint,
            self.file or file,
        )


class UnknownKey(ConfigError):
    """A key that means nothing where it stands; the hint has the nearest one that does."""


class PlacementError(ConfigError, AssertionError):
    """A placement that cannot be: bad text, resources that are not there, a process that spans nodes."""


class ConfigErrors(ConfigError):
    """Several independent mistakes of one config, in the order in which they stand in the file."""

    def __init__(self, errors: Sequence[ConfigError], file: str = "") -> None:
        super().__init__(f"{len(errors)} mistakes", file=file)
        self.args = (tuple(errors), file)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        head = f"{self.file}: " if self.file else ""
        return f"{head}{len(self.errors)} mistakes\n" + "\n".join(f"- {error}" for error in self.errors)

    def each(self) -> tuple[ConfigError, ...]:
        """The single mistakes that it reports."""
        return tuple(single for error in self.errors for single in error.each())

    def pointing(self, text: str, span: tuple[int, int]) -> ConfigErrors:
        """The same mistakes, each with a caret under that spot."""
        return type(self)([error.pointing(text, span) for error in self.errors], self.file)

    def at(self, *, path: str = "", component: str = "", file: str = "") -> ConfigErrors:
        """The same mistakes of the same file, each with its place filled in, where it says nothing of it yet."""
        located = [error.at(path=path, component=component, file=file) for error in self.errors]
        return type(self)(located, self.file)


class PlacementErrors(ConfigErrors, PlacementError):
    """Several mistakes, at least one of them in a placement: caught as either."""


def raise_config_errors(errors: Sequence[ConfigError]) -> None:
    """Raise what was found: nothing, the only mistake itself, or `ConfigErrors` with all of them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        in_placement = any(isinstance(error, PlacementError) for error in errors)
        raise (PlacementErrors if in_placement else ConfigErrors)(errors)
