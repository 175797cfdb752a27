"""A rank of a rollout service: an engine, and the requests of a channel that it answers as it has room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from rlinf_scheduler import Channel, Worker
from rlinf_scheduler.engines.protocol import (
    EngineLoad,
    Generation,
    GenerationRequest,
    PauseMode,
    RolloutEngine,
    Tokens,
)
from rlinf_scheduler.errors import (
    ChannelClosed,
    ChannelError,
    EngineDead,
    EngineError,
    PeerDied,
    UpdateFailed,
    WeightsReplaced,
)

if TYPE_CHECKING:
    from rlinf.scheduler.channel import ChannelRequest


# So many requests a rank waits for at a time: the samples of a prompt find it waiting.
ASKED = 16
# So often weights are asked for whose publisher is away, and it is looked whether this rank is to leave.
_AWAY_S = 0.1


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How a rank of a rollout service takes requests.

    Attributes:
        max_tokens: how many tokens the requests that run may have together, prompts and `max_tokens` of their outputs;
            None: any number.
        max_requests: how many requests run at a time.
        weights: the name of weights that an engine gets before its first request, and newer ones where a request's
            `min_version` wants them; None: it begins with its own.
        takes_turns: its devices are others' too (`device_lock`): the engine is awake on them, and has them, while it
            has requests, and sleeps when the last one has ended.
        ready_timeout_s: how long a request waits for this turn, and for weights of its version.
        keep_every: after so many tokens of a request what it has so far is kept in the channel, so that another rank
            goes on there if this one dies; None: another one begins anew.
        max_attempts: how many ranks and engines may die with a request before it is answered with `EngineError`; its
            last attempt runs alone, so that no other request is lost with it. None: any number.
        max_engine_restarts: how often `serve` makes a new engine for one that has died, in `engine_restart_window_s`;
            at one death more it raises.
    """

    max_tokens: int | None = None
    max_requests: int = 64
    weights: str | None = None
    takes_turns: bool = False
    ready_timeout_s: float = 600.0
    keep_every: int | None = None
    max_attempts: int | None = 3
    max_engine_restarts: int = 3
    engine_restart_window_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_requests", "keep_every", "max_attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: it is at least 1")
        if self.max_engine_restarts < 0:
            raise ValueError(f"max_engine_restarts={self.max_engine_restarts} is negative; 0 for none")


@dataclass(frozen=True, slots=True)
class RolloutAnswer:
    """The answer of a rank to a request.

    Attributes:
        generation: the output; if its finish reason is "abort", the rank was drained, and `RolloutClient` goes on.
        answered_by: the rank's name, e.g. "rollout:3".
        attempt: how often the request was given out, 1 the first time.
    """

    generation: Generation
    answered_by: str
    attempt: int


@dataclass(frozen=True, slots=True)
class WeightsUpdate:
    """The outcome of an update: the version in use, and for how long the engine generated nothing."""

    version: int
    paused_s: float


@dataclass(slots=True)
class Served:
    """Counts of the requests that a rank has answered.

    Attributes:
        num_handed_back: requests that were answered with what they had, to go on elsewhere.
        num_resumed: requests that went on where a rank that died had kept them.
        most_tokens: the most tokens that the requests running at one time were counted with.
        num_engine_restarts: engines that were made for one that had died.
    """

    num_answered: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    num_handed_back: int = 0
    num_resumed: int = 0
    most_tokens: int = 0
    num_engine_restarts: int = 0


class RolloutWorker(Worker):
    """A rank that has an engine, and answers the requests of a channel.

        rollout = RolloutWorker.create_group(make_engine).launch(cluster, strategy, name="rollout")
        serving = rollout.serve(channel)
        answers = RolloutClient(channel).generate([1, 2, 3], Sampling(max_tokens=32), n=8)

    A request belongs to the channel until it is answered: if this process or its engine dies, another rank gets it.

    Args:
        make_engine: makes the engine, in the rank; picklable, such as `functools.partial(TransformersEngine, config)`.
        options: limits, and what is done for requests whose rank dies.
    """

    def __init__(
        self, make_engine: Callable[[], RolloutEngine], options: RolloutOptions | None = None
    ) -> None:
        super().__init__()
        self._make_engine = make_engine
        self._options = options or RolloutOptions()
        self._weights = self._options.weights
        self._engine: RolloutEngine | None = None
        self._starting = asyncio.Lock()
        self._updating = asyncio.Lock()
        self._turn: AbstractContextManager[object] | None = None
        self._num_users = 0
        self._service: _Serving | None = None

    async def start(self) -> int:
        """Start the engine, with the newest `weights`, if that is not done; the version in use."""
        async with self._use() as engine:
            return engine.version

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[RolloutEngine]:
        """Have the engine, started and, where it takes turns, awake: it sleeps when the last one has left it."""
        self._num_users += 1
        try:
            async with self._starting:
                await self._begin_turn()
                engine = self._engine or await self._started()
            yield engine
        finally:
            self._num_users -= 1
            if self._turn is not None:
                await asyncio.shield(self._end_turn())

    async def _started(self) -> RolloutEngine:
        engine = self._make_engine()
        try:
            with self.timer("start"):
                await engine.start()
            if self._weights is not None:
                await engine.update_weights(self._weights)
        except BaseException:
            await engine.close()
            raise
        self._engine = engine
        return engine

    async def _begin_turn(self) -> None:
        if not self._options.takes_turns or self._turn is not None:
            return
        turn = self.device_lock(self._options.ready_timeout_s)
        entering = asyncio.ensure_future(asyncio.to_thread(turn.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:  # it gets its turn all the same
            entering.add_done_callback(lambda done: done.exception() or turn.__exit__(None, None, None))  # type: ignore[func-returns-value]
            raise
        self._turn = turn
        if self._engine is not None:
            with self.timer("wake"):
                await self._engine.wake()

    async def _end_turn(self) -> None:
        async with self._starting:
            turn = self._turn
            if turn is None or self._num_users:
                return
            try:
                if self._engine is not None:
                    with self.timer("sleep"), suppress(EngineError):  # it has died, and is ended soon
                        await self._engine.sleep()
            finally:
                self._turn = None
                turn.__exit__(None, None, None)

    async def _follow(self, version: int) -> None:
        """Have weights of at least a version; a publisher that is away is waited for."""
        until = monotonic() + self._options.ready_timeout_s
        async with self._updating:
            while self._running.version < version:
                if self._weights is None:
                    raise EngineError(
                        f"{self.address} has no weights to take version {version} of: RolloutOptions(weights=)"
                    )
                try:
                    await self.update_weights(self._weights, version, timeout_s=max(until - monotonic(), 0.0))
                except UpdateFailed as error:
                    if not isinstance(error.__cause__, PeerDied | WeightsReplaced) or monotonic() > until:
                        raise
                    await asyncio.sleep(_AWAY_S)

    async def serve(self, channel: Channel | str, queue_name: str = "default") -> Served:
        """Answer the requests of a queue until it ends, its channel is closed, this rank leaves, or `drain` is called.

        If the engine dies, others get its requests, and this rank goes on with a new one, with the newest weights.

        Raises:
            EngineDead: engines died more often than `max_engine_restarts`.
            EngineError: this rank serves already, or an engine does not start.
        """
        if self._service is not None:
            raise EngineError(f"{self.address} serves channel '{self._service.channel.name}' already")
        where = self.connect_channel(channel) if isinstance(channel, str) else channel
        service = self._service = _Serving(self, self._options, where, queue_name)
        leaving = asyncio.ensure_future(self._leave(service))
        try:
            await self._serve_on(service)
        finally:
            leaving.cancel()
            self._service = None
            service.over.set()
        return service.served

    async def _leave(self, service: _Serving) -> None:
        """Drain when this rank leaves its group; what runs after half of its time is handed back."""
        while (left_s := self.draining_left_s) is None:
            await asyncio.sleep(_AWAY_S)
        await service.end(finish=True, timeout_s=left_s / 2)

    async def _serve_on(self, service: _Serving) -> None:
        """Serve to the end, with new engines for those that die."""
        most, window_s = self._options.max_engine_restarts, self._options.engine_restart_window_s
        restarts = list[float]()
        while True:
            try:
                await self._start_for(service)
                if service.ending.is_set():
                    return None
                return await service.run(self._running)
            except EngineError as error:
                await self._end_engine()
                if service.ending.is_set():
                    return self.log_warning(f"{self.address}: {error}; what ran goes on elsewhere")
                restarts = [each for each in restarts if each > monotonic() - window_s]
                if len(restarts) >= most:
                    raise
                restarts.append(monotonic())
                service.served.num_engine_restarts += 1
                self.log_warning(
                    f"{self.address}: {error}; a new engine is made "
                    f"(restart {len(restarts)} of at most {most} in {window_s:.0f} s)"
                )

    async def _start_for(self, service: _Serving) -> None:
        """Start the engine. A service that is to end does not wait for that; who needs an engine next does."""
        starting = asyncio.ensure_future(self.start())
        starting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it has been seen
        ending = asyncio.ensure_future(service.ending.wait())
        try:
            await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if starting.done():
            starting.result()

    async def drain(self, *, finish: bool = True, timeout_s: float | None = None) -> None:
        """Take no further request, and wait until `serve` has ended.

        Args:
            finish: generate what runs to its end; False: hand it back with what it has, to go on elsewhere.
            timeout_s: after so long what still runs is handed back, in seconds; None: as long as it takes.
        """
        if self._service is not None:
            await self._service.end(finish=finish, timeout_s=timeout_s)

    async def update_weights(
        self,
        name: str,
        min_version: int | None = None,
        *,
        mode: PauseMode = "keep",
        timeout_s: float | None = None,
    ) -> WeightsUpdate:
        """Take the newest published weights while requests run; they go on with these.

        Args:
            name: what they were published as.
            min_version: wait for this version or a newer one; None: for any.
            mode: what becomes of requests that run: "keep": they wait; "finish": they are finished first; "abort": they
                begin again after the tokens that they have, with nothing in the engine's cache of older weights.
            timeout_s: how long it may take, in seconds.

        Raises:
            UpdateFailed: the version before is in use.
            EngineDead: the engine cannot go on.
        """
        async with self._use() as engine:
            before_s = (await engine.load()).paused_s
            with self.timer("update weights"):
                if mode != "keep":
                    await engine.pause(mode)
                try:
                    version = await engine.update_weights(name, min_version=min_version, timeout_s=timeout_s)
                finally:
                    if mode != "keep":
                        await engine.resume()
            self._weights = name
            return WeightsUpdate(version, (await engine.load()).paused_s - before_s)

    async def load(self) -> EngineLoad:
        """Return how much the engine has to do."""
        if self._engine is None:
            await self.start()
        return await self._running.load()

    async def sleep(self) -> None:
        """Give the engine's memory back; requests that run go on after `wake`."""
        await self.start()
        await self._running.sleep()

    async def wake(self) -> None:
        """Take the memory again, and generate."""
        await self._running.wake()

    async def close(self) -> None:
        """End the engine. What runs is handed back first; `serve` ends. It is made anew when it is needed again."""
        await self.drain(finish=False)
        await self._end_engine()

    async def _end_engine(self) -> None:
        async with self._starting:  # its memory is free before there is another one
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.close()

    @property
    def _running(self) -> RolloutEngine:
        if self._engine is None:
            raise EngineError(f"{self.address} has no engine that runs: call start() first")
        return self._engine


@dataclass(slots=True)
class _Serving:
    """The requests of one queue in a rank's engine; on the event loop.

    Attributes:
        over: set when it has ended.
        ending: set when it is to take no further request.
        engine: the one that generates; None before there is one.
    """

    worker: RolloutWorker
    options: RolloutOptions
    channel: Channel
    queue_name: str
    served: Served = field(default_factory=Served)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    engine: RolloutEngine | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Answers whose engine has other weights yet, or no turn; their requests go back as they are.
    _preparing: set[asyncio.Task[None] | None] = field(default_factory=set)
    _asked: list[asyncio.Future[ChannelRequest]] = field(default_factory=list)
    _num_running: int = 0
    _num_tokens: int = 0
    _must_wait: bool = False
    _hands_back: bool = False

    async def run(self, engine: RolloutEngine) -> None:
        """Take requests and answer them, until none come and the last one is answered; may be called again."""
        self.engine = engine
        self._num_running = self._num_tokens = 0
        self._must_wait = False
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                while (request := await self._next()) is not None:
                    if size := self._reserve(request):
                        tasks.create_task(self._answer(engine, request, size))
                    # One that finds no room goes back to the head of its queue: others may have some.
                    del request
                self._ask_no_more()
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]
        finally:
            self._ask_no_more()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # a cycle would keep requests that are to go back

    async def end(self, *, finish: bool, timeout_s: float | None) -> None:
        """Take no further request; see `RolloutWorker.drain`."""
        self.ending.set()
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s if finish else 0):
                await self.over.wait()
        if not self.over.is_set():
            self._hands_back = True
            # While this waits no variable has a task, whose error keeps a request.
            list(map(asyncio.Task[None].cancel, filter(None, self._preparing)))
            if self.engine is not None:
                with suppress(EngineError):  # it has died
                    await self.engine.abort()
            await self.over.wait()

    async def _next(self) -> ChannelRequest | None:
        """Wait for room, and for a request; None if no more come."""
        while not self.ending.is_set():
            self._ask()
            # While this waits no variable has one: the error that ends the wait keeps this frame.
            if (asked := next((each for each in self._asked if each.done()), None)) is not None:
                self._asked.remove(asked)
                with suppress(ChannelClosed):
                    return asked.result()
                return None
            self._changed.clear()
            await self._changed.wait()
        return None

    def _ask(self) -> None:
        """Ask for so many requests as there is room for, and for none where a rank is full: others get them."""
        if self._must_wait:
            self._ask_no_more()
            return
        while len(self._asked) < min(ASKED, self.options.max_requests - self._num_running):
            asked = self.channel.next_request(self.queue_name, async_op=True, sticky=True)
            self._asked.append(asyncio.ensure_future(asked.async_wait()))
            self._asked[-1].add_done_callback(lambda _: self._changed.set())

    def _ask_no_more(self) -> None:
        for asked in self._asked:
            if not asked.cancel() and not asked.cancelled():
                asked.exception()  # it has been seen; a request goes back
        self._asked.clear()

    def _reserve(self, request: ChannelRequest) -> int:
        """Make room for a request, and return how many tokens that is; 0 if it is refused, or there is none now."""
        wanted, limit = request.item, self.options.max_tokens
        if not isinstance(wanted, GenerationRequest):
            request.fail(EngineError(f"a request is a GenerationRequest, not {type(wanted).__name__}"))
            return 0
        size = len(wanted.prompt_ids) + wanted.sampling.max_tokens
        if limit is not None and size > limit:
            problem = (
                f"a prompt of {len(wanted.prompt_ids)} tokens with max_tokens={wanted.sampling.max_tokens}"
            )
            request.fail(
                EngineError(f"{problem} is more than the {limit} tokens that {self.worker.address} takes")
            )
            return 0
        most = self.options.max_attempts
        if most is not None and request.attempt > most:
            told = f"'{wanted.request_id}' was given out {most} times, and each time who had it died"
            request.fail(EngineError(f"request {told}"))
            return 0
        is_alone = request.attempt == most and most > 1
        has_room = limit is None or self._num_tokens + size <= limit
        if not has_room or (is_alone and self._num_running):
            self._must_wait = True
            return 0
        self._must_wait = is_alone
        self._num_running += 1
        self._num_tokens += size
        self.served.most_tokens = max(self.served.most_tokens, self._num_tokens)
        return size

    async def _answer(self, engine: RolloutEngine, request: ChannelRequest, size: int) -> None:
        try:
            async with self._prepared(request.item.min_version):
                generation = await self._generate(engine, request)
        except EngineDead as error:
            if request.attempt == self.options.max_attempts:
                told = f"'{request.item.request_id}' was given out {request.attempt} times; the last time {error}"
                await self._fail(request, EngineError(f"request {told}"))
            else:
                request.abandon(str(error))
            raise
        except Exception as error:  # noqa: BLE001 - it is the asker's
            self.served.num_failed += 1
            await self._fail(request, error)
        else:
            self.served.num_answered += 1
            self.served.num_handed_back += generation.finish_reason == "abort"
            self.served.num_tokens += len(generation.token_ids)
            request.reply(RolloutAnswer(generation, str(self.worker.address), request.attempt))
        finally:
            self._num_running -= 1
            self._num_tokens -= size
            self._must_wait = False
            self._changed.set()

    async def _fail(self, request: ChannelRequest, error: Exception) -> None:
        request.fail(error)
        if self.options.keep_every is not None:
            with suppress(ChannelError):
                await _KeptOutput(self.channel, request.item.request_id, None, _is_there=True).forget()

    @asynccontextmanager
    async def _prepared(self, min_version: int) -> AsyncIterator[None]:
        """Have the engine's turn, and weights of at least a version."""
        # No variable has the task: its error would keep this frame, and the request is to go back.
        self._preparing.add(asyncio.current_task())
        try:
            async with self.worker._use() as engine:
                if engine.version < min_version:
                    await self.worker._follow(min_version)
                self._preparing.discard(asyncio.current_task())
                yield
        finally:
            self._preparing.discard(asyncio.current_task())

    async def _generate(self, engine: RolloutEngine, request: ChannelRequest) -> Generation:
        """Generate the output, on through pauses that abort; with "abort" what is handed back."""
        wanted: GenerationRequest = request.item
        kept = _KeptOutput(self.channel, wanted.request_id, self.options.keep_every)
        if request.attempt > 1 and (found := await kept.find()) is not None:
            self.served.num_resumed += 1
            wanted = wanted.after(found)
        # A rank that was given up for lost too early may have a request of the same name still.
        wanted = replace(wanted, request_id=f"{wanted.request_id}/{request.attempt}")
        generation = _so_far(wanted, [])
        while not self._hands_back:
            parts: list[Tokens] = []
            async for tokens in engine.generate(wanted):
                parts.append(tokens)
                if kept.is_due(len(tokens.token_ids)) and tokens.finish_reason is None:
                    await kept.keep(_so_far(wanted, parts))
            generation = Generation.of(wanted, parts)
            if generation.finish_reason != "abort":
                break
            if len(generation.token_ids) >= wanted.sampling.max_tokens:
                generation = replace(generation, finish_reason="length")
                break
            wanted = wanted.after(generation)
        await kept.forget()
        return generation


def _so_far(wanted: GenerationRequest, parts: list[Tokens]) -> Generation:
    return Generation.of(wanted, [*parts, Tokens((), (), 0, "abort")])


@dataclass(slots=True)
class _KeptOutput:
    """The output of a request so far, in a queue of its own: one item, the newest, that other ranks find."""

    channel: Channel
    request_id: str
    every: int | None
    _num_new: int = 0
    _is_there: bool = False

    @property
    def _queue(self) -> tuple[str, str]:
        return ("partial", self.request_id)

    def is_due(self, num_tokens: int) -> bool:
        """Count further tokens; whether they are to be kept."""
        self._num_new += num_tokens
        return self.every is not None and self._num_new >= self.every

    async def keep(self, generation: Generation) -> None:
        """Put what there is, then take what was there before: whoever looks finds one of them, whole."""
        self._num_new = 0
        with suppress(ChannelError):  # one that is closed takes nothing any more, and what runs is answered
            await self.channel.put(generation, queue_name=self._queue, async_op=True)
            if self._is_there:
                await self.channel.get(queue_name=self._queue, async_op=True)
            self._is_there = True

    async def find(self) -> Generation | None:
        """Return the most that a rank before has kept."""
        found = await asyncio.to_thread(self.channel.drain, self._queue)
        if not found:
            return None
        most: Generation = max(found, key=lambda each: len(each.token_ids))
        await self.keep(most)
        return most

    async def forget(self) -> None:
        """Leave nothing behind."""
        if self._is_there:
            self._is_there = False
            await asyncio.to_thread(self.channel.drain, self._queue)
