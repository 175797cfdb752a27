"""Groups that tests launch and end."""

import contextlib


@contextlib.contextmanager
def launched(cluster, **groups):
    """The groups of these names, each given as its class and its strategy; they end with the context."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, (worker_class, strategy) in groups.items():
            made.append(worker_class.create_group().launch(cluster, strategy, name=name))
            stack.callback(made[-1].terminate)
        yield made
