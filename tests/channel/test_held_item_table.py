"""For how long a node's holder keeps an item: what its producer, its channel and their ends say."""

import pytest

from rlinf_scheduler.channel.node_holder import HeldItemTable


@pytest.fixture
def book():
    return HeldItemTable()


def held(book, payload="an item"):
    return book.hold(payload, producer="env", keeper="channel")


def test_an_item_stays_until_its_channel_does_not_need_it(book):
    number = held(book)
    book.claim("channel", [number])
    assert book.lose("env") == []
    book.expire([number])
    assert book.find(number) == "an item"
    book.release("channel", [number])
    assert len(book) == 0


def test_what_a_dead_producer_handed_over_is_kept_for_a_while(book):
    first, second = held(book), held(book)
    assert book.lose("env") == [first, second]
    book.claim("channel", [first])
    book.expire([first, second])
    assert (book.find(first), book.find(second)) == ("an item", None)


def test_the_end_of_a_channels_process_is_that_of_its_items(book):
    number = held(book)
    book.claim("channel", [number])
    other = book.hold("another's", producer="env", keeper="another")
    assert book.lose("channel") == []
    assert (book.find(number), book.find(other)) == (None, "another's")


def test_a_put_that_came_to_nothing_is_dropped_unless_the_channel_has_it(book):
    number, claimed = held(book), held(book)
    book.claim("channel", [claimed])
    book.drop("env", number)
    book.drop("env", claimed)
    assert (book.find(number), book.find(claimed)) == (None, "an item")


def test_what_dead_producers_have_left_is_counted_once_and_until_it_goes(book):
    first = book.hold("one", producer="env", keeper="channel", size_bytes=10)
    second = book.hold("two", producer="env", keeper="channel", size_bytes=20)
    book.hold("another's", producer="env:1", keeper="channel", size_bytes=40)
    book.claim("channel", [first])
    assert book.orphan_bytes == 0
    book.lose("env")
    book.lose("env")
    assert book.orphan_bytes == 30
    book.expire([second])
    assert book.orphan_bytes == 10
    book.release("channel", [first])
    assert book.orphan_bytes == 0


def test_nobody_speaks_for_another(book):
    number = held(book)
    book.claim("another", [number])
    book.release("another", [number])
    book.drop("another", number)
    assert book.find(number) == "an item"
    assert book.lose("env") == [number]


def test_words_about_what_is_gone_do_nothing(book):
    book.claim("channel", [7])
    book.release("channel", [7])
    book.drop("env", 7)
    book.expire([7])
    assert len(book) == 0
