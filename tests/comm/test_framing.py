import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.framing import ProtocolError, pack
from rlinf_scheduler.comm.peer import BasePeer
from rlinf_scheduler.comm.requests import PeerRequests, RequestFuture
from rlinf_scheduler.comm.transport.stream_link import StreamReader

messages = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.integers(0, 2**63),
        st.text(max_size=10),
        st.none() | st.integers(-5, 5) | st.lists(st.text(max_size=3), max_size=3),
        st.lists(st.integers(0, 100_000), max_size=4),
    ),
    max_size=6,
)


def plain(message):
    envelope = message.envelope
    head = framing.decode_head(envelope.head)
    return (envelope.kind, envelope.ident, envelope.service, head, [bytes(frame) for frame in message.frames])


@settings(deadline=None)
@given(messages, st.lists(st.integers(1, 90_000), min_size=1, max_size=20))
def test_a_stream_cut_anywhere_gives_the_same_messages(sent, cuts):
    # Frames are generated as sizes: what hypothesis shows of a failure stays readable.
    sent = [(*head, [bytes([size % 251]) * size for size in sizes]) for *head, sizes in sent]
    stream = b"".join(bytes(piece) for message in sent for piece in pack(*message))
    reader, received = StreamReader(), []
    position = turn = 0
    while position < len(stream):
        target = reader.target()
        size = cuts[turn] if turn < len(cuts) else 50_000
        chunk = stream[position : position + (min(size, len(target)) if target is not None else size)]
        if target is not None:
            target[: len(chunk)] = chunk
            reader.advance(len(chunk), received)
        else:
            reader.feed(memoryview(chunk), received)
        position += len(chunk)
        turn += 1
    assert [plain(message) for message in received] == sent


def test_a_small_message_is_one_piece_that_shares_nothing():
    frame = bytearray(b"before")
    (piece,) = pack(framing.NOTIFY, 0, "x", None, [frame])
    frame[:] = b"after!"
    assert b"before" in piece


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\1\0\0\0\xc1",
        b"\1\0\0\0\x01",
        b"\5\0\0\0\x95\1\2\3\4",
        b"\7\0\0\0\x95\2\0\xa0\xc0\x91\xff",  # a frame of -1 bytes
        b"\7\0\0\0\x95\2\0\xa0\xc0\x91\xa0",  # a frame of "" bytes
    ],
)
def test_other_bytes_are_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        StreamReader().feed(memoryview(data), [])


def test_frames_above_four_gibibytes_are_announced_whole():
    head = msgspec.Raw(msgspec.msgpack.encode(None))
    control = framing._encode(framing.Envelope(framing.NOTIFY, 0, "x", head, [5 << 30]))
    reader = StreamReader()
    reader.feed(memoryview(len(control).to_bytes(4, "little") + control + b"begin"), [])
    # Memory that nobody writes to is not there yet.
    assert len(reader.target()) == (5 << 30) - len(b"begin")


def test_a_large_control_part_is_received_into_one_piece_of_memory():
    (piece,) = pack(framing.NOTIFY, 0, "x", "y" * (8 << 20))
    reader, received = StreamReader(), []
    reader.feed(memoryview(piece)[:1000], received)
    position = 1000
    while position < len(piece):
        target = reader.target()
        chunk = piece[position : position + 1000]
        if target is None:
            reader.feed(memoryview(chunk), received)
        else:
            assert len(target) == len(piece) - position
            target[: len(chunk)] = chunk
            reader.advance(len(chunk), received)
        position += len(chunk)
    assert plain(received[0])[3] == "y" * (8 << 20)


@pytest.mark.parametrize("num_begun", [0, 1])
def test_what_nobody_wants_any_more_is_not_written_where_it_was_to_lie(num_begun):
    places = [memoryview(bytearray(100_000)) for _ in range(2)]
    requests = PeerRequests(BasePeer("p", None, None))
    answer = requests.pending[1] = RequestFuture(lambda: None, None)
    answer.places = places
    reader, received = StreamReader(places_for=requests.places_for), []
    stream = b"".join(map(bytes, pack(framing.REPLY, 1, "", None, [b"x" * 100_000] * 2)))
    position = 50_000 + num_begun * 100_000
    reader.feed(memoryview(stream)[:position], received)
    assert b"x" in bytes(places[num_begun])
    answer.cancel()
    for place in places:
        place[:] = bytes(len(place))  # it is another object's by now
    while not received:
        target = reader.target()
        size = 30_000 if target is None else len(target)
        chunk = stream[position : position + size]
        if target is None:
            reader.feed(memoryview(chunk), received)
        else:
            target[:] = chunk
            reader.advance(size, received)
        position += size
    assert not any(map(any, places))


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_large_frame_is_copied_only_if_its_owner_may_change_it(snapshot):
    frame = bytearray(framing.JOIN_BYTES + 1)
    pieces = pack(framing.NOTIFY, 0, "x", None, [frame], snapshot=snapshot)
    frame[0] = 1
    assert pieces[1][0] == (0 if snapshot else 1)


@pytest.mark.parametrize(("size", "is_joined"), [(1000, True), (4000, False)])
def test_many_frames_are_joined_only_where_that_is_cheaper_than_to_send_each(size, is_joined):
    frames = [bytes(size)] * 1000
    pieces = pack(framing.NOTIFY, 0, "x", None, frames, snapshot=False)
    assert len(pieces) == (1 if is_joined else 1 + len(frames))
    received = []
    StreamReader().feed(memoryview(b"".join(pieces)), received)
    assert received[0].frames == frames
