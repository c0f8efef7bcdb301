"""The user's session: the open chat, the profile, the decoding mode and the queued prompts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from localspec.chat.answer_settings import (
    AUTO,
    DRAFT_MODES,
    AnswerOptions,
    SessionRequest,
    TunedLookup,
    followed,
    is_auto,
    nothing_known,
)
from localspec.chat.answer_turns import AnswerTurn
from localspec.chat.answering import AnswerEvent, AnswerSaved, Generate, Summarised, Titling
from localspec.chat.compaction import Compaction, compaction, write_summary
from localspec.chat.messages import ChatSettings, SearchHit
from localspec.chat.open_chat import OpenChat
from localspec.chat.prompting import (
    WARN_ABOVE,
    after_answer,
    question_alone,
    summary_turns,
    tokens_of,
)
from localspec.chat.resources import Resources, resources_named_in
from localspec.chat.shared_session import SharedSession
from localspec.chat.titling import write_title
from localspec.chat.tool_use.answer_tools import AnswerTools
from localspec.chat.tool_use.kit import ToolKit
from localspec.chat.tool_use.offer import ToolOffer, offer_of
from localspec.chat.tool_use.steps import (
    NextStep,
    are_wanted,
    may_be_several,
    next_step,
    step_run,
    write_steps,
)
from localspec.errors import Cancelled, LocalSpecError, StoreError, UserError
from localspec.inference.interface import OpenModels, ShowsPrompts
from localspec.storage.kept_caches import chat_name
from localspec.storage.profiles import DEFAULT_PROFILE, Profile
from localspec.types.models import PlainRate
from localspec.types.request import (
    NO_LIMIT,
    EngineSettings,
    Message,
    Mode,
    Request,
    Sampling,
    TemplateVariables,
    seed_after,
)
from localspec.units import counted

if TYPE_CHECKING:
    from localspec.chat.store import Store
    from localspec.tools.mcp.server import McpServer


Job = Callable[[OpenModels, AnswerTurn], Iterator[AnswerEvent]]
"""What writes into a chat with models whose turns the answer has."""
Start = Literal["last", "new", "aside"]
"""The chat that a session opens. The next start ignores one `aside`, whose answers are not compared."""
TITLED = frozenset({"complete", "length", "circles"})  # states of answers whose chat gets a title
RECENT = 30  # chats that a search without words shows


@dataclass(frozen=True, slots=True)
class AnswerVariant:
    """How one answer differs from what its chat settles: in a mode that stays even if it is slower, a seed.

    `plain` is the speed of plain decoding, if another answer to the same question has shown it.
    """

    mode: Mode | None = None
    seed: int | None = None
    plain: PlainRate | None = None


@dataclass(frozen=True, slots=True)
class _Answering:
    """What the messages of an answer have in common."""

    chat: OpenChat
    options: AnswerOptions
    variant: AnswerVariant
    turn: AnswerTurn | None
    tools: AnswerTools | None


class ChatSession:
    """The user's choices and the chat that they apply to."""

    def __init__(
        self,
        store: Store,
        profiles: Sequence[Profile],
        request: SessionRequest,
        profile: str = "general",
        *,
        start: Start = "last",
        tuned_for: TunedLookup = nothing_known,
    ) -> None:
        """Open the last chat, or an empty one under the profile.

        Raises `UserError` for a profile that does not exist.
        """
        self.shared = SharedSession(store, profiles, request, profile, tuned_for)
        self.store = store
        self._is_aside = start == "aside"
        self.in_use: AnswerOptions | None = None  # of the latest answer
        self.queue: list[str] = []  # prompts that wait, the next one first
        self._weighed: tuple[tuple[object, ...], int] | None = None  # tools, and the tokens that they take
        self._offer: tuple[tuple[object, ...], ToolOffer] | None = None  # the latest, and what it is for
        self.is_beside = False
        last = store.last_chat() if start == "last" else None
        self.chat_beside = store.last_chat(beside=True) if start == "last" else None  # at the last end
        self.chat = self._opened(last) if last is not None else self._fresh()

    def beside(self) -> ChatSession:
        """Return a session for a second open chat, with a queue of its own; open one there first."""
        other = copy(self)
        other.in_use = None
        other.queue = []
        other.is_beside = True
        return other

    def stay(self, *, beside: bool) -> None:
        """Note for the next start that this chat is open, alone or beside the one that was noted before."""
        self.is_beside = beside
        if not self._is_aside and not beside:
            self.store.remember_chat(None, beside=True)
        self._remember(self.chat)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Return the profiles to choose from."""
        return tuple(self.shared.profiles.values())

    @property
    def profile(self) -> Profile:
        """Return the profile of the open chat; the default one if it no longer exists."""
        return self.shared.profile_of(self.chat.info.profile)

    @property
    def followed(self) -> Profile:
        """Return the profile of the next answer; `auto` chooses by the last question."""
        return self._followed_in(self.chat)

    def _followed_in(self, chat: OpenChat) -> Profile:
        questions = [
            (message.content, [file.source for file in message.attachments])
            for message in chat.path
            if message.role == "user"
        ]
        return followed(self.shared.profile_of(chat.info.profile), self.shared.profiles, questions)

    def route_shown(self, name: str) -> str:
        """Return a note that `auto` chose the profile of an answer; empty if the user chose it."""
        return f"profile {AUTO}: {name}" if is_auto(self.profile) and name != AUTO else ""

    def sampling(self, models: OpenModels | None) -> Sampling:
        """Return the sampling of the next answer of these models."""
        return self.asked.sampling_under(self.followed, models)

    @property
    def asked(self) -> SessionRequest:
        """Return the settings of the open chat, over those requested at the start."""
        return self._asked_in(self.chat)

    def _asked_in(self, chat: OpenChat) -> SessionRequest:
        return self.shared.request.over(chat.info.settings)

    @property
    def thinking(self) -> str:
        """Return in words how much the model may think in the next answer."""
        budget = self.asked.answer_under(self.followed).thinking_budget
        if budget is None or budget == NO_LIMIT:
            return "thinking has no limit"
        return f"thinking takes at most {counted(budget, 'token')}" if budget else "thinking is off"

    @property
    def mode(self) -> Mode | None:
        """Return the requested mode of the next answers; None is the fastest."""
        return self.asked.speculation.mode

    def update_settings(self, **settings: object) -> None:
        """Save settings, or `system_prompt`, with the open chat; None removes them from it."""
        chat = self.chat.info
        if "system_prompt" in settings:
            self.store.set_system(chat.id, cast("str | None", settings.pop("system_prompt")))
        self.store.set_settings(chat.id, ChatSettings(**{**asdict(chat.settings), **settings}))
        self.chat.reload()

    def new(self, taken: Collection[int] = ()) -> None:
        """Open the newest chat that has only unsent text, or else an empty one with the default profile.

        Chats that are open beside this one are `taken`.
        """
        unsent = () if self._is_aside else self.store.unsent()
        begun = next((each.id for each in unsent if each.id not in taken), None)
        self.chat = self._fresh() if begun is None else self._opened(begun)

    def unshared(self, chat: OpenChat) -> OpenChat:
        """Return a chat without messages, or one like it if another window has used or dropped it.

        Unsent chats may be open in several windows.
        """
        with suppress(UserError):
            if not self.store.chat(chat.info.id).messages:
                return chat
        info = self.store.new_chat(profile=chat.info.profile, system=chat.info.system)
        self.store.set_settings(info.id, chat.info.settings)
        other = self._opened(info.id)
        if self.chat is chat:
            self.chat = other
        return other

    def open(self, chat_id: int, message_id: int | None = None) -> None:
        """Open a chat, on the branch that a message is in if one is given."""
        chat = self._opened(chat_id)
        if message_id is not None:
            chat.go_to(message_id)
        self.chat = chat

    def open_again(self, chat: OpenChat, message_id: int | None = None) -> None:
        """Open a chat that an answer is being written into; raises `UserError` for one that was deleted."""
        chat.reload_info()
        self._remember(chat)
        if message_id is not None:
            chat.go_to(message_id)
        self.chat = chat

    def choose_profile(self, name: str) -> Profile:
        """Switch this chat to a profile."""
        profile = self.shared.known(name)
        self.store.set_profile(self.chat.info.id, profile.name)
        self.chat.reload()
        return profile

    def search(self, query: str) -> tuple[SearchHit, ...]:
        """Find chats and messages; without a query the latest chats."""
        if query.strip():
            return self.store.search(query)
        return tuple(SearchHit(chat, None, chat.title) for chat in self.store.chats()[:RECENT])

    def answer(
        self,
        models: OpenModels,
        turn: AnswerTurn | None = None,
        *,
        chat: OpenChat | None = None,
        variant: AnswerVariant = AnswerVariant(),
        continues: int | None = None,
        asked_s: float | None = None,
    ) -> Iterator[AnswerEvent]:
        """Answer the last question of a chat, by default the open one.

        With a `turn`, it shares the models with answers in other chats, and may call tools: another message
        follows once their results are saved. A question of several steps may then be split: the next step
        follows the answer to the one before. A second `AnswerSaved` has what is measured afterwards:
        the speed of plain decoding, unless that is known. The time to the first token counts from `asked_s`
        of the monotonic clock, if that is given.
        """
        chat = self.chat if chat is None else chat
        options = self.options(models, chat, variant)
        self.shared.answers += 1
        tools = None if turn is None or variant.mode is not None else self._tools(models, chat, turn, options)
        if tools is not None and turn is not None:
            yield from self._split(models, chat, turn, tools.offer, options)
        while True:
            answering = _Answering(chat, options, variant, turn, tools)
            following = yield from self._write(models, answering, continues, asked_s)
            if following is None or turn is None:
                return
            yield chat.begin_step(following.text, following.run)
            continues = asked_s = None
            tools = self._tools(models, chat, turn, options)

    def _split(
        self,
        models: OpenModels,
        chat: OpenChat,
        turn: AnswerTurn,
        offer: ToolOffer,
        options: AnswerOptions,
    ) -> Iterator[AnswerEvent]:
        """Have the models split the last question of a chat, and ask for the first step if there are some."""
        kit = self.kit
        if kit is None or not are_wanted(kit.steps, models.target) or not may_be_several(chat.path[-1]):
            return
        steps = yield from write_steps(turn.generate, chat.prompt(), offer, options.request)
        if steps:
            yield chat.begin_step(steps[0], step_run(1, steps))

    def _write(
        self, models: OpenModels, answering: _Answering, continues: int | None, asked_s: float | None
    ) -> Generator[AnswerEvent, None, NextStep | None]:
        """Write the messages of an answer, with its calls; return the step that is to follow, if any."""
        chat = answering.chat
        options = answering.options
        turn = answering.turn
        tools = answering.tools
        generate = models.generate if turn is None else turn.generate
        while True:
            offer, is_last = (None, True) if tools is None else (tools.offer, tools.are_over)
            unfinished: AnswerSaved | None = None
            following = None
            for event in chat.answer(
                models,
                options,
                continues=continues,
                asked_s=asked_s,
                generate=generate,
                offer=offer,
            ):
                if isinstance(event, AnswerSaved) and tools is not None and tools.go_on_after(event.message):
                    unfinished = replace(event, goes_on=True)
                    yield unfinished
                    continue
                if isinstance(event, AnswerSaved) and tools is not None:
                    following = self._following(chat)
                if isinstance(event, AnswerSaved) and following is not None:
                    yield replace(event, goes_on=True)
                    continue
                yield event
                if isinstance(event, AnswerSaved) and event.message.state != "failed":
                    yield from self._after(models, chat, event, turn, answering.variant, options.request)
            if unfinished is None or tools is None or turn is None:
                return following
            asked_s = None
            is_silent = unfinished.message.is_silent
            continues = unfinished.message.id if is_silent else None
            if is_silent:
                continue
            with turn.lent():
                yield from chat.save_results(unfinished.message, tools.run(unfinished.message.calls))
                if turn.desk.stopped.is_set() or is_last:
                    yield replace(unfinished, goes_on=False)
                    return None

    def _following(self, chat: OpenChat) -> NextStep | None:
        """Return the step that follows; none, and a notice, if the last one does not allow it."""
        following = next_step(chat.path)
        if following is None or following.can_begin:
            return following
        self.shared.notice(f"“{following.text}” was not begun: the last call before it did not succeed")
        return None

    def _after(
        self,
        models: OpenModels,
        chat: OpenChat,
        saved: AnswerSaved,
        turn: AnswerTurn | None,
        variant: AnswerVariant,
        request: Request,
    ) -> Iterator[AnswerEvent]:
        """Measure what the answer's ratio refers to, and find a title for a chat that has begun."""
        measures = turn is None or turn.is_alone
        has_own_speed = turn is None or not turn.has_company
        if has_own_speed:
            rated = self._rated(models, chat, saved, variant.plain, measures=measures)
            yield from () if rated is None else (rated,)
        is_whole = saved.message.state in TITLED and variant.mode is None
        is_asked_more = chat is self.chat and bool(self.queue)
        if self.shared.titles and is_whole and not is_asked_more:
            generate = models.generate if turn is None else turn.generate
            with suppress(UserError, StoreError, Cancelled):  # the title stays
                yield from self._title(generate, chat, request)

    @property
    def kit(self) -> ToolKit | None:
        """The tools that chats may use; None if there are none."""
        return self.shared.kit

    def servers(self) -> Mapping[str, McpServer]:
        """Return the MCP servers by name; raises `UserError` for a mistake in mcp.json."""
        return {} if self.kit is None else self.kit.servers

    def resources_named_in(self, text: str, stop: threading.Event | None = None) -> Resources:
        """Return the resources that a text may name; without a `stop` they are not waited for."""
        return resources_named_in(text, self.servers, stop)

    def servers_named_in(self, text: str) -> Mapping[str, McpServer]:
        """Return the MCP servers if a text may name one; none where there is a mistake in mcp.json."""
        with suppress(LocalSpecError):
            return self.servers() if text.startswith("/") or "@" in text else {}
        return {}

    def _tools(
        self, models: OpenModels, chat: OpenChat, turn: AnswerTurn, options: AnswerOptions
    ) -> AnswerTools | None:
        """Return the tools of an answer; None if there are none, with a notice where some are on."""
        names = self.tools_on(chat)
        if not names:
            return None
        try:
            kit = self.kit
            if kit is None or not isinstance(models, ShowsPrompts):
                raise UserError("these models cannot use them")
            with turn.lent():  # servers may have to start
                offered = turn.desk.until_stopped(lambda: kit.offered(names))
            for problem in offered.problems:
                self.shared.notice(problem)
            if not offered.owners:
                return None
            offer = self._offer_of(models, offered.functions, options.request.template_variables)
        except UserError as error:
            self.shared.notice(f"this answer goes without tools: {error}")
            return None
        most = models.target.context  # characters, so about a quarter of the context
        if any(message.run is not None and not message.is_step for message in chat.path):
            offer = replace(offer, made=())
        return AnswerTools(kit, offered, offer, turn.desk, most)

    def _offer_of(
        self, models: ShowsPrompts, functions: tuple[str, ...], variables: TemplateVariables
    ) -> ToolOffer:
        """Return the offer of tools to these models; the latest is remembered."""
        for_what = (models, functions, variables)
        if self._offer is None or self._offer[0] != for_what:
            self._offer = (for_what, offer_of(models, functions, variables))
        return self._offer[1]

    def tool_tokens(self, models: OpenModels, chat: OpenChat | None = None) -> int:
        """Return the tokens that the tools of a chat take of each prompt, by default of the open one.

        Those of servers that have not been started are not counted.
        """
        chat = self.chat if chat is None else chat
        names = self.tools_on(chat)
        try:
            kit = self.kit if names else None
        except UserError:  # the answer reports it
            return 0
        if kit is None or not isinstance(models, ShowsPrompts):
            return 0
        waiting = kit.waiting()
        functions = kit.offered(
            [name for name in names if name in kit.boxes and name not in waiting]
        ).functions
        for_what = (models, functions, chat.system)
        if self._weighed is None or self._weighed[0] != for_what:
            request = self._asked_in(chat).answer_under(self._followed_in(chat))
            request = replace(request, prompt=question_alone(chat.system))
            texts = (models.render(replace(request, tools=each)) for each in (functions, ()))
            tokens = [len(models.tokenize(text)) for text in texts]
            self._weighed = (for_what, max(0, tokens[0] - tokens[1]))
        return self._weighed[1]

    def tools_on(self, chat: OpenChat | None = None) -> tuple[str, ...]:
        """Return the names of the tools that are on in a chat, by default the open one."""
        info = (self.chat if chat is None else chat).info
        own = info.settings.tools
        return self.shared.profile_of(info.profile).tools.names_on if own is None else own

    @property
    def tools_profile(self) -> Profile:
        """Return the profile whose tools hold in the open chat; `auto` has those of the default profile."""
        return self.shared.profiles[DEFAULT_PROFILE] if is_auto(self.profile) else self.profile

    def compaction(self, models: OpenModels, chat: OpenChat | None = None) -> tuple[Compaction, str]:
        """Return the part of a chat, by default the open one, that a summary would replace, also in words.

        Raises `UserError` where nothing is left to summarise.
        """
        chat = self.chat if chat is None else chat
        size = models.target.context
        instruction = self.shared.profile_of(chat.info.profile).summary_prompt
        path = chat.path[:-1] if chat.path and chat.path[-1].role == "user" else chat.path
        tools = self.tool_tokens(models, chat)
        wanted = compaction(chat.system, path, size, models.count_tokens, instruction, tools=tools)
        return wanted, wanted.described(filter(None, (chat.outline(message.id) for message in path)))

    def compact(
        self, models: OpenModels, turn: AnswerTurn | None = None, *, chat: OpenChat | None = None
    ) -> Iterator[AnswerEvent]:
        """Have the older part of a chat summarised, by default of the open one.

        Raises `UserError` for a summary that is not used; nothing changes then, nor where this is stopped.
        """
        chat = self.chat if chat is None else chat
        wanted, described = self.compaction(models, chat)
        request = self.options(models, chat).request
        generate = models.generate if turn is None else turn.generate
        count = models.count_tokens
        summary = yield from write_summary(wanted, request, generate, count, described)
        chat.set_summary(wanted.place, summary)
        stays = count(chat.prompt())
        words = f"{counted(wanted.messages, 'message')} summarised: {wanted.replaced:,} tokens became "
        words += f"{tokens_of(summary_turns(summary), count):,}; the next answer reads {stays:,} tokens again"
        yield Summarised(words)

    def answer_in_less(self, job: Job, chat: OpenChat) -> Job:
        """Return a job that summarises the older part of a chat first."""

        def work(models: OpenModels, turn: AnswerTurn) -> Iterator[AnswerEvent]:
            yield from self.compact(models, turn, chat=chat)
            yield from job(models, turn)

        return work

    def is_nearly_full(self, models: OpenModels, chat: OpenChat | None = None) -> bool:
        """Return whether a chat has little room left in the context."""
        chat = self.chat if chat is None else chat
        most = WARN_ABOVE * models.target.context
        answers = (message for message in reversed(chat.path) if message.role == "assistant")
        record = None if (last := next(answers, None)) is None else chat.outline(last.id)
        used = None if record is None else after_answer(record)
        if used is None or used <= most:
            return False
        return models.count_tokens(chat.prompt()) + self.tool_tokens(models, chat) > most

    def options(
        self,
        models: OpenModels,
        chat: OpenChat | None = None,
        variant: AnswerVariant = AnswerVariant(),
    ) -> AnswerOptions:
        """Return the options of the next answer; the first time in `auto` measures call times."""
        chat = self.chat if chat is None else chat
        mode = variant.mode
        seed = variant.seed
        asked = self._asked_in(chat)
        profile = self._followed_in(chat)
        wanted = asked.speculation.mode
        if models.draft is None and wanted in DRAFT_MODES:  # chosen when others had one
            wanted = None
        if seed is None and asked.answer.seed is not None:
            # the same again would write the same again
            seed = seed_after(asked.answer.seed, self.shared.answers)
        speculation = replace(asked.speculation, mode=mode or wanted)
        asked = replace(asked, speculation=speculation, answer=replace(asked.answer, seed=seed))
        options = self.shared.chooser(models).options(profile, asked)
        is_compared = mode is not None
        request = replace(
            options.request,
            steps_down=not is_compared,
            measures_first=is_compared,
            kept_as=self._kept_as(chat),
        )
        self.in_use = replace(options, request=request)
        return self.in_use

    def next_request(self, models: OpenModels, question: str) -> Request:
        """Return the next answer's request as far as its prompt and its mode are known; takes no time."""
        used = None if self.in_use is None else self.in_use.request.settings.mode
        mode = self.mode or used or ("sd" if models.draft is not None else "off")
        prompt = (*self.chat.prompt(), Message("user", question))
        request = self.asked.answer_under(self.followed)
        request = replace(request, prompt=prompt, settings=EngineSettings(mode=mode))
        request = replace(request, kept_as=self._kept_as(self.chat))
        offer = self._offer
        return request if offer is None or not self.tools_on() else offer[1].put_into(request)

    def _kept_as(self, chat: OpenChat) -> str | None:
        """Return the name under which caches of a chat may be on disk; None for one that is not saved."""
        return chat_name(chat.info.id) if self.store.is_saved else None

    def _rated(
        self,
        models: OpenModels,
        chat: OpenChat,
        saved: AnswerSaved,
        plain: PlainRate | None,
        *,
        measures: bool,
    ) -> AnswerSaved | None:
        """Return the saved answer with the plain rate that its ratio refers to, measured if need be."""
        record = saved.record
        if self._is_aside or record is None or not record.summary.tokens:
            return None
        self.shared.rates.learn(record)
        if record.mode == "off":
            return None
        if plain is not None:
            return chat.set_plain(saved.message.id, plain)
        at = record.summary.mean_depth
        if self.shared.rates.at(at) is None and measures and (measured := models.measure_plain()) is not None:
            self.shared.rates.add(measured)
        rate = self.shared.rates.at(at)
        return None if rate is None else chat.set_plain(saved.message.id, PlainRate(at, rate))

    def _title(self, generate: Generate, chat: OpenChat, request: Request) -> Iterator[Titling]:
        """Name a chat after its first answer, unless the user has named it."""
        from localspec.chat.store import title_of

        info = self.store.chat(chat.info.id)
        path = chat.path
        if [each.role for each in path].count("user") != 1 or info.title != title_of(path[0]):
            return
        title = yield from write_title(generate, chat.prompt(), [each.content for each in path], request)
        if title and self.store.chat(info.id).title == info.title:  # not renamed meanwhile
            self.store.rename(info.id, title)
            chat.reload()

    def _fresh(self) -> OpenChat:
        return self._opened(self.store.new_chat(profile=self.shared.usual_profile).id)

    def _opened(self, chat_id: int) -> OpenChat:
        chat = OpenChat(self.store, chat_id, self._usual_system)
        self._remember(chat)
        return chat

    def _remember(self, chat: OpenChat) -> None:
        if not self._is_aside:
            self.store.remember_chat(chat.info.id, beside=self.is_beside)

    def _usual_system(self, profile: str) -> str:
        asked = self.shared.request.system
        return self.shared.profile_of(profile).system_prompt if asked is None else asked
