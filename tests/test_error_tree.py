"""Every error: it is drawn in the tree below its own root, and arrives in another process as it was."""

import inspect
import pickle
import re

from effort import case
from rlinf_scheduler import errors

# These are loaded when somebody asks for them.
LATER = errors.ChannelEmpty, errors.ChannelFull
CLASSES = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, errors.SchedulerError)
]
# What a parameter is given, by the beginning of its annotation.
SAMPLES = {
    "str": "what",
    "int": 3,
    "float": 1.5,
    "bool": True,
    "object": "'default'",
    "BaseException": ValueError("cause"),
    "tuple[int, int]": (0, 2),
    "Sequence[str]": ["one", "two"],
    "Sequence[int]": [0, 1],
    "Sequence[tuple[int, str]]": [(1, "it is cut off")],
    "Sequence[object]": ["an item"],
    "Sequence[ConfigError]": [errors.ConfigError("one"), errors.UnknownKey("two", hint="this")],
}


def made(kind):
    if "__init__" not in {
        name for base in kind.__mro__ if issubclass(base, errors.SchedulerError) for name in vars(base)
    }:
        return kind("what it says")
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return kind(*(SAMPLES[each.annotation.removesuffix(" | None")] for each in parameters))


def test_every_error_arrives_in_another_process_as_it_was():
    for kind in CLASSES:
        with case(kind.__name__):
            error = made(kind)
            if isinstance(error, errors.WaitTimeout) and hasattr(error, "why"):
                error.explain("actor:0 is stopped")
            came = pickle.loads(pickle.dumps(error))
            assert (type(came), str(came), repr(came.args)) == (kind, str(error), repr(error.args))
            assert vars(came).keys() == vars(error).keys()


def test_the_tree_has_every_error_below_the_one_that_it_is_of():
    above, drawn = [], {}
    for bars, name in re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__, re.MULTILINE):
        above[len(bars) // 4 :] = [name]
        drawn[name] = above[-2] if len(above) > 1 else ""
    assert drawn.keys() == {each.__name__ for each in CLASSES}
    for each in CLASSES:
        assert drawn[each.__name__] in {"", *(base.__name__ for base in each.__bases__)}
