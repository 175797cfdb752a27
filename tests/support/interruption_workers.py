"""A worker that notes which calls reached it."""

from rlinf.scheduler import Worker


class Notes(Worker):
    """Keeps the numbers of its calls."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def note(self, number, _item=None):
        self.numbers.append(number)
        return number

    def noted(self):
        return self.numbers
