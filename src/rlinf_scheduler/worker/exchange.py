"""What a worker exchanges data by: messages, weights and channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

from rlinf_scheduler.addresses import Rank, worker_name
from rlinf_scheduler.channel.deadlines import CONNECT_TIMEOUT_S
from rlinf_scheduler.checks import called_directly, check_options
from rlinf_scheduler.comm import WAIT_S, AsyncHandle
from rlinf_scheduler.comm.directory import DEFAULT_TIMEOUT_S
from rlinf_scheduler.comm.handle import Later, Now, Seconds
from rlinf_scheduler.errors import ClusterError, CommError
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.session import Session, current_session

if TYPE_CHECKING:  # each is loaded by those who use it only: a rank is to start at once
    import torch

    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.channel.channel import ChannelOptions
    from rlinf_scheduler.mailbox import Groups, Mailbox
    from rlinf_scheduler.weights import Weights
    from rlinf_scheduler.weights.plan import FetchOptions, Fuse, Keys, Rename
    from rlinf_scheduler.weights.stream import WeightsStream

Source: TypeAlias = tuple[str, Rank] | None


class Exchange:
    """Sends and receives, publishes and fetches, opens channels; the part of `Worker` that is about others.

    Classes of users may have any names: what the library keeps in a worker begins with `_rlinf_`, and no function of it
    asks a worker for anything else.
    """

    _rlinf_session: Session | None

    @overload
    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        piggyback_payload: Any = ...,
        options: Any = ...,
    ) -> None: ...

    @overload
    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: Later,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        piggyback_payload: Any = ...,
        options: Any = ...,
    ) -> AsyncHandle[None]: ...

    @overload
    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: bool,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        piggyback_payload: Any = ...,
        options: Any = ...,
    ) -> AsyncHandle[None] | None: ...

    @called_directly("Worker")
    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        wait_for_return: bool = False,
        piggyback_payload: Any = None,
        options: Any = None,
    ) -> AsyncHandle[None] | None:
        """Send an object to another worker; its `recv` gets the objects of one sender in the order of their sends.

        Args:
            object: a picklable one; tensors and arrays in it travel as bytes, not through pickle. With `async_op` it is
                sent as it is during this call, whatever becomes of it afterwards.
            dst_group_name: the receiver's group.
            dst_rank: its rank there.
            async_op: return a handle at once; else return when the receiver's process holds the object.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            wait_for_return: if the receiver dies before it holds the object, and is started again (`on_failure` of its
                launch), send it to its successor; False: raise PeerDied.
            piggyback_payload: what goes with the object, unless it is None: `recv` returns `(object, payload)` then.
            options: accepted, and without effect: how bytes go is chosen for each pair of workers.

        Raises:
            PeerNotFound: no such worker at the deadline.
            PeerDied: the receiver is gone.
            CommTimeout: the receiver had no room at the deadline.
        """
        handle = _mailbox_of(self).send(
            object if piggyback_payload is None else (object, piggyback_payload),
            _name(dst_group_name, dst_rank),
            timeout_s=timeout_s,
            wait_s=_room_s(async_op),
            wait_for_return=wait_for_return,
        )
        return handle if async_op else handle.wait()

    @overload
    def recv(
        self,
        src_group_name: str,
        src_rank: Rank,
        async_op: Later,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv(
        self,
        src_group_name: str,
        src_rank: Rank,
        async_op: bool = ...,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> Any: ...

    @called_directly("Worker")
    def recv(
        self,
        src_group_name: str,
        src_rank: Rank,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        wait_for_return: bool = False,
        options: Any = None,
    ) -> Any:
        """The next object that a worker sent to this one.

        Args:
            src_group_name: the sender's group.
            src_rank: its rank there.
            async_op: return a handle at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            wait_for_return: if the sender dies, and is started again (`on_failure` of its launch), wait for what its
                successor sends; False: raise PeerDied.
            options: as of `send`.

        Raises:
            PeerDied: the sender is gone, and nothing of it is left to receive.
            CommTimeout: nothing came before the deadline.
        """
        handle = _mailbox_of(self).recv(
            _name(src_group_name, src_rank), timeout_s=timeout_s, wait_for_return=wait_for_return
        )
        return handle if async_op else handle.wait()

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> None: ...

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: Later,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> AsyncHandle[None]: ...

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: bool,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> AsyncHandle[None] | None: ...

    @called_directly("Worker")
    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: Rank,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        wait_for_return: bool = False,
        options: Any = None,
    ) -> AsyncHandle[None] | None:
        """Send one tensor to a worker that calls `recv_tensor`; options and errors as of `send`."""
        handle = _mailbox_of(self).send_tensor(
            tensor,
            _name(dst_group_name, dst_rank),
            timeout_s=timeout_s,
            wait_s=_room_s(async_op),
            wait_for_return=wait_for_return,
        )
        return handle if async_op else handle.wait()

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: Rank,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> torch.Tensor: ...

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: Rank,
        async_op: Later,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> AsyncHandle[torch.Tensor]: ...

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: Rank,
        async_op: bool,
        timeout_s: Seconds = ...,
        *,
        wait_for_return: bool = ...,
        options: Any = ...,
    ) -> torch.Tensor | AsyncHandle[torch.Tensor]: ...

    @called_directly("Worker")
    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: Rank,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        wait_for_return: bool = False,
        options: Any = None,
    ) -> Any:
        """Receive one tensor into `tensor`, in place, from a worker that calls `send_tensor`.

        Args:
            tensor: where the values go: a plain dense tensor of the shape and dtype that the sender sends.
            src_group_name: the sender's group.
            src_rank: its rank there.
            async_op: return a handle at once; `tensor` is complete when the handle is done and waited for.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            wait_for_return: as of `recv`.
            options: as of `send`.

        Raises:
            CommError: shape or dtype differ, or `tensor` cannot be written to (it is expanded, sparse, a DTensor ...);
                nothing is taken.
            PeerDied: the sender is gone.
            CommTimeout: nothing came before the deadline.
        """
        handle = _mailbox_of(self).recv_tensor(
            tensor, _name(src_group_name, src_rank), timeout_s=timeout_s, wait_for_return=wait_for_return
        )
        return handle if async_op else handle.wait()

    def publish_weights(
        self,
        name: str,
        weights: Any,
        version: int,
        *,
        ranks: int | Sequence[int] | None = None,
        delta: Literal["auto"] | bool = "auto",
    ) -> None:
        """Make new weights the ones that `fetch_weights` gets from now on, in any worker of the job.

        Each rank publishes what it has: all of them, or its shards. The version is there when every tensor is there as
        a whole. What is published is written once, on this node, and stays until the next version replaces it. This
        waits for no reader and for no other rank, and no reader sees a mixture of versions.

        Args:
            name: what they are called; the ranks of one living group publish under a name.
            weights: a `torch.nn.Module`, whose `state_dict()` is published, or by key tensors (DTensors of any mesh
                among them, on any device), numpy arrays, or `Slice`s of them; free to be changed after this call.
            version: a whole number, larger than that of this rank's version before.
            ranks: which ranks publish (4: ranks 0 to 3; of a group that is resized `self.members.ranks`), where that
                does not follow from their shards: pipeline stages have whole tensors each; None: nobody else has to.
            delta: whether other machines that have the version before get only what has changed: "auto", where that is
                quicker by what was measured; True, wherever it is shorter; False, never.

        Raises:
            WeightsError: the version does not grow; some value is none of these, or its elements are not plain ones; or
                the shards of ranks overlap and are not the same.
            NameTaken: a worker of another living group publishes under that name.
        """
        _weights().publish(name, weights, version, ranks=ranks, delta=delta)

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        version: int | None = ...,
        **options: Unpack[FetchOptions],
    ) -> int: ...

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        version: int | None = ...,
        **options: Unpack[FetchOptions],
    ) -> AsyncHandle[int]: ...

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = ...,
        *,
        async_op: bool,
        timeout_s: Seconds = ...,
        version: int | None = ...,
        **options: Unpack[FetchOptions],
    ) -> int | AsyncHandle[int]: ...

    @called_directly("Worker")
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        version: int | None = None,
        keys: Keys = None,
        rename: Rename = None,
        fuse: Fuse = None,
        strict: bool = True,
    ) -> Any:
        """Copy the newest published weights into tensors that are there already; the version's number.

        Each tensor gets what it has of the whole one, from whichever ranks have that, however they have cut it.

        Args:
            name: what they were published as.
            into: a `torch.nn.Module`, or a dict of tensors (also DTensors of this worker's own mesh), numpy arrays, or
                `Slice`s of them: they are overwritten in place, and keep their dtypes and devices.
            min_version: wait for this version or a newer one; None: for any.
            async_op: return a handle at once. It is done when such a version is there; `into` is overwritten, in the
                thread that does so, when the handle is waited for.
            timeout_s: how long to wait, in seconds; None: as long as it takes; 0: take what is there now.
            version: wait for this version, and take no newer one.
            keys: fetch these of `into` only: a key, a pattern ("*.lora_A.*", "model.layers.3.*"), or several.
            rename: from a key of `into` to the key that was published: a function, or a dict, whose entries stand for
                whole names between dots: `{"model": "actor.model"}`.
            fuse: what a tensor of `into` is made of, one after the other along the first dimension:
                `{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}`; entries as of `rename`. `Rows` are a part of a published
                tensor: `{"up_proj.weight": Rows("gate_up_proj.weight", 4096)}`.
            strict: False: leave out what is not both in `into` and published; a warning names it.

        Raises:
            WeightsMismatch: keys, shapes or dtypes differ from those of `into`, or a tensor of it cannot be written to
                (it is expanded, sparse, on the meta device ...); nothing was written.
            WeightsError: there is a newer version than `version` already; or `into` has no key of `keys`.
            WeightsReplaced: `min_version` or `version` is asked for, and what this process has is of a launch before;
                once.
            PeerNotFound: nobody publishes under that name at the deadline.
            PeerDied: the worker that published is gone.
            CommTimeout: no such version at the deadline; it says which one is there.
        """
        handle = _weights().fetch(
            name,
            into,
            min_version=min_version,
            version=version,
            timeout_s=timeout_s,
            keys=keys,
            rename=rename,
            fuse=fuse,
            strict=strict,
        )
        return handle if async_op else handle.wait()

    def stream_weights(
        self,
        name: str,
        *,
        min_version: int | None = None,
        version: int | None = None,
        keys: Keys = None,
        bucket_bytes: int = 16 << 20,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> WeightsStream:
        """Iterate over whole published tensors with their keys: `engine.load_weights(self.stream_weights("policy"))`.

        It waits for a version and its bytes, as `fetch_weights` does. All tensors are of that version, the iterator's
        `version`, and come in the order in which they were published. They are the caller's, to keep or to change.

        Args:
            name: what they were published as.
            min_version: wait for this version or a newer one; None: for any.
            version: wait for this version, and take no newer one.
            keys: published keys, or patterns ("*.lora_A.*"); None: all.
            bucket_bytes: how much is put together at a time. Two such buckets are used, and what the caller keeps.
            timeout_s: how long to wait, in seconds; None: as long as it takes.

        Raises:
            WeightsError: nothing that is published has one of `keys`; all others are those of `fetch_weights`.
        """
        return _weights().stream(
            name,
            min_version=min_version,
            version=version,
            keys=keys,
            bucket_bytes=bucket_bytes,
            timeout_s=timeout_s,
        )

    @overload
    def broadcast(
        self,
        object: Any = ...,
        groups: Groups = ...,
        src: Source = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        options: Any = ...,
    ) -> AsyncHandle[Any]: ...

    @overload
    def broadcast(
        self,
        object: Any = ...,
        groups: Groups = ...,
        src: Source = ...,
        async_op: bool = ...,
        timeout_s: Seconds = ...,
        *,
        options: Any = ...,
    ) -> Any: ...

    @called_directly("Worker")
    def broadcast(
        self,
        object: Any = None,
        groups: Groups = (),
        src: tuple[str, Rank] | None = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        options: Any = None,
    ) -> Any:
        """Give one object to every member of `groups`; each of them calls this, with the same `groups` and `src`.

            weights = self.broadcast(weights, groups=[("actor", [0]), ("rollout", [0, 1, 2])], src=("actor", 0))

        Members may call in any order. Broadcasts of one source to the same members are received in the order of
        its calls; those to other members, and `send`, do not mix with them. On every node the object is written
        once, however many members run there; the arrays and tensors that a member gets are its own all the same.

        Args:
            object: what to send; looked at on the source only, and not changed until the call returns. With `async_op`
                it is sent as it is during this call.
            groups: the members, the source among them: groups' names with a rank, or a list of ranks.
            src: the source's group and rank; None: the first member in `groups`.
            async_op: return an `AsyncHandle` of the object at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            options: accepted, and without effect, as of `send`.

        Returns:
            The object: on the source `object` itself, once every member's process holds it.

        Raises:
            CommError: a member is named twice, or this worker or the source is none.
            PeerDied: the source is gone, and nothing of it is left to receive; on the source: the members named
                in it are gone, and the others have the object.
            PeerNotFound: the source, or on the source the one member that is missing, was not there at the deadline.
            CommTimeout: the source had not called at the deadline; on the source: the members named in it had not
                started, or had no room, and the others have the object.
        """
        handle = _mailbox_of(self).broadcast(
            object, groups, src, timeout_s=timeout_s, wait_s=_room_s(async_op)
        )
        return handle if async_op else handle.wait()

    @classmethod
    def create_channel(
        cls,
        channel_name: str,
        group_affinity: str | int | None = None,
        group_rank_affinity: int | None = None,
        maxsize: int = 0,
        **options: Unpack[ChannelOptions],
    ) -> Channel:
        """Create a channel and return this process's end of it.

        Args:
            channel_name: its name in the job.
            group_affinity: the group beside whose worker the channel is held; None: this worker's group. A number in
                its place is `maxsize`, and `distributed` and `node_rank` may follow it.
            group_rank_affinity: the rank in that group; None: this worker's rank, or 0 of another group.
            maxsize: how many items each of its queues holds before `put` waits; 0: no limit.
            options: as of `Channel.create` (`ChannelOptions`).

        Raises:
            ChannelExists: a channel of that name is there already.
            CheckpointError: what it is restored from cannot be read, or breaks its bounds.
        """
        from rlinf_scheduler.channel import Channel  # noqa: PLC0415 - see above

        check_options(f"{cls.__name__}.create_channel", cls.create_channel, Channel.create, options)
        if isinstance(group_affinity, int):
            if isinstance(group_rank_affinity, bool):
                if options.get("node_rank") is None:
                    options["node_rank"] = maxsize
                group_rank_affinity = None
            maxsize, group_affinity = group_affinity, None
        return Channel.create(channel_name, maxsize, group_affinity, group_rank_affinity, **options)

    @classmethod
    def connect_channel(cls, channel_name: str, timeout_s: float | None = CONNECT_TIMEOUT_S) -> Channel:
        """This process's end of a channel that someone created, or creates before the deadline.

        Args:
            channel_name: its name in the job.
            timeout_s: how long to wait for that, in seconds; None: as long as it takes.

        Raises:
            ChannelNotFound: no channel of that name at the deadline.
        """
        from rlinf_scheduler.channel import Channel  # noqa: PLC0415 - see above

        return Channel.connect(channel_name, timeout_s=timeout_s)


def _mailbox_of(worker: Exchange) -> Mailbox:
    session = worker._rlinf_session
    if session is None:
        raise ClusterError(_why_alone())
    return session.service(open_mailbox)


def _name(group: str, rank: Rank) -> str:
    try:
        return worker_name(group, rank)
    except ValueError as error:
        raise CommError(f"a worker of '{group}': {error}") from None


def _why_alone() -> str:
    """Why a worker has no part in a job."""
    from rlinf_scheduler.host.joining import parent_above  # noqa: PLC0415 - for this error alone

    why = "this worker was constructed directly: launch its group to communicate"
    parent = parent_above()
    return (
        f"{why}; this process was started by '{parent}', and joins below it by Worker.join_parent()"
        if parent
        else why
    )


def _weights() -> Weights:
    from rlinf_scheduler.weights import open_weights  # noqa: PLC0415 - see above

    return current_session().service(open_weights)


def _room_s(async_op: bool) -> float:
    """How long a call may wait for shared memory: one that returns a handle not at all."""
    return 0.0 if async_op else WAIT_S
