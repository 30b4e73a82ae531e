// Shows new events from the event stream of the task on the open page of a request or a task, after
// `times.js`. Each page is complete without this script. Texts are inserted as text nodes, never as
// markup. Codes replace hidden characters. The box around a text of an agent, a tool or a user, or
// the line above the text, names the author of the text.
"use strict";

(() => {
  const live = document.getElementById("live");
  if (!live || !window.EventSource) return;
  const { events, request, requests, status: initialStatus, answers: initialAnswers } = live.dataset;
  const page = live.dataset.page ?? requests + request;
  const words = JSON.parse(live.dataset.words);
  const [state, connection, others, log, now] = ["state", "connection", "others", "log", "now"].map((part) =>
    document.getElementById(`live-${part}`),
  );
  const meanwhile = document.getElementById("meanwhile");
  // The stored history of a request, hidden once the stream's events are shown.
  const past = document.getElementById("past");
  const MAX_ENTRIES = 200;
  const MAX_TEXT_CHARS = 20_000;
  const MAX_TRIES = 6;

  // --- Display -----------------------------------------------------------------------------------

  const prose = (text) => text.split("\n").map(visible).join("\n");
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
  const word = (name, otherwise) => (Object.hasOwn(words, name) ? words[name] : visible(otherwise));
  const characters = (text) => {
    let count = 0;
    for (const _ of text) count += 1;
    return count;
  };

  const element = (name, text, settings = {}) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return Object.assign(made, settings);
  };

  // `EXACT`, for arguments, keeps the stored order of the characters. `PROSE` follows the writing
  // direction of the text.
  const PROSE = { dir: "auto" };
  const EXACT = { dir: "ltr", className: "exact" };

  // Updates the time left, rounded down like the server's `duration_text`.
  const timeLeft = document.querySelector("#standing[data-left]");
  const countDown = () => {
    const minutes = Math.floor((new Date(timeLeft.dateTime) - Date.now()) / 60_000);
    const [text, count] =
      minutes < 1 ? [words.less_than_a_minute, 0]
      : minutes < 120 ? [words.minutes, minutes]
      : minutes < 2880 ? [words.hours, Math.floor(minutes / 60)]
      : [words.days, Math.floor(minutes / 1440)];
    setText(timeLeft, minutes < 0 ? words.overdue : fill(words.time_left, { time: fill(text, { count }) }));
    timeLeft.classList.toggle("urgent", minutes < 60);
  };

  // Renders a text of an agent, a tool or a user, cut at `MAX_TEXT_CHARS`.
  const quote = (text, settings = PROSE) => {
    const whole = String(text);
    const shown = element("pre", prose(whole.slice(0, MAX_TEXT_CHARS)), settings);
    if (whole.length <= MAX_TEXT_CHARS) return [shown];
    return [shown, element("p", fill(words.live_cut, { count: characters(whole) }), { className: "soft" })];
  };

  const box = (label, ...parts) => {
    const made = element("div", undefined, { className: "agent" });
    made.append(element("p", label, { className: "by" }), ...parts);
    return made;
  };

  const setText = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  // Adds an entry to the log: a line with the time and the agent, and `parts` below it.
  const entry = (data, line, ...parts) => {
    const made = element("li");
    const head = element("p");
    head.append(element("time", moment(data.at), { dateTime: data.at }), " ");
    const path = Array.isArray(data.agent_path) ? data.agent_path : [];
    if (path.length > 1) head.append(element("bdi", path.map(visible).join(" › ")), words.colon);
    head.append(line);
    made.append(head, ...parts);
    log.append(made);
    while (log.childElementCount > MAX_ENTRIES) {
      log.firstElementChild.remove();
      document.getElementById("live-earlier").hidden = false;
    }
  };

  // --- Deltas of models --------------------------------------------------------------------------

  // Maps the id of a task to its unfinished answer: the turn, the box on the page, and for each
  // text the number of characters received.
  const drafts = new Map();

  const removeDraft = (task) => {
    drafts.get(task)?.box.remove();
    drafts.delete(task);
  };

  const draftOf = ({ task_id: task, turn, agent_path: path }) => {
    if (drafts.get(task)?.turn !== turn) removeDraft(task);
    if (!drafts.has(task)) {
      const agent = Array.isArray(path) && path.length > 1 ? `${path.map(visible).join(" › ")}${words.colon}` : "";
      const made = box(agent + words.by_agent);
      now.append(made);
      drafts.set(task, { turn, box: made, texts: new Map() });
    }
    return drafts.get(task);
  };

  const addCallHeading = (draft, call, name) => {
    const { box: made, texts } = draft;
    if (texts.has(call)) return;
    made.append(element("p", fill(words.event_call, { tool: visible(name) }), EXACT));
    texts.set(call, undefined);
  };

  // Appends a delta to its text. A delta after a gap is dropped, because the complete message
  // follows.
  const appendDelta = (data, which, settings = PROSE) => {
    const draft = draftOf(data);
    let text = draft.texts.get(which);
    if (!text || data.offset === 0) {
      if (data.offset !== 0) return;
      text?.shown.remove();
      text = { shown: element("pre", "", settings), count: 0 };
      draft.texts.set(which, text);
      draft.box.append(text.shown);
    }
    if (data.offset !== text.count) return;
    text.count += characters(data.delta);
    if (text.shown.textContent.length < MAX_TEXT_CHARS) text.shown.append(prose(data.delta));
  };

  // --- The page's request and other requests -----------------------------------------------------

  let answerCount = 0;
  const headline = document.getElementById("headline");
  let isRefreshing = false;
  let needsRefresh = false;

  // The open questions on the page of a task.
  const questions = document.getElementById("task-questions");

  // Copies the open questions from the freshly loaded page of a task. If the link of a question had
  // the focus, the new link gets the focus. Removes the form that cancels the task if the task has
  // ended; otherwise the form stays as the reader left it.
  const takeOverTask = (loaded) => {
    const fresh = loaded.getElementById("task-questions");
    if (!questions || !fresh) return;
    if (!questions.isEqualNode(fresh)) {
      const focused = questions.contains(document.activeElement) ? document.activeElement.href : undefined;
      questions.replaceChildren(...document.adoptNode(fresh).childNodes);
      if (focused) [...questions.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
    }
    if (!loaded.getElementById("task-cancel")) document.getElementById("task-cancel")?.remove();
  };

  // Loads the page again, and copies its headline, its title and the changed parts of a task. If an
  // event arrives during the load, loads the page once more.
  const refresh = () => {
    needsRefresh = isRefreshing;
    if (isRefreshing) return;
    isRefreshing = true;
    const xhr = new XMLHttpRequest();
    xhr.open("GET", page);
    xhr.setRequestHeader("accept", "text/html");
    xhr.responseType = "document";
    xhr.addEventListener("loadend", () => {
      const fresh = xhr.responseXML?.getElementById("headline");
      if (fresh && headline) {
        setText(headline, fresh.textContent);
        headline.className = fresh.className;
        headline.hidden = fresh.hidden;
        document.title = xhr.responseXML.title;
        takeOverTask(xhr.responseXML);
      }
      isRefreshing = false;
      if (needsRefresh) refresh();
    });
    xhr.send();
  };

  const announce = (text) => {
    const reloadLink = element("a", words.live_reload, { href: page });
    const message = element("p", undefined, { className: "status" });
    message.append(`${text} `, reloadLink);
    meanwhile.replaceChildren(message);
  };

  // Hides the forms of a request that takes no more answers. If a form had the focus, the link in
  // the message gets the focus.
  const closeForms = (text) => {
    const forms = document.getElementById("answers");
    const hadFocus = forms.contains(document.activeElement);
    forms.hidden = true;
    // The element is missing if the page was rendered after the deadline.
    const standing = document.getElementById("standing");
    if (standing && !standing.hidden) {
      // The text node before the element is a separator.
      standing.previousSibling.remove();
      standing.hidden = true;
    }
    announce(text);
    if (hadFocus) meanwhile.querySelector("a").focus();
  };

  const onOwnRequestEvent = (name, data) => {
    const decision = data.decision ?? {};
    const [what, user] = [word(`has_${decision.action}`, decision.action), visible(decision.by)];
    if (name === "request.decided") answerCount += 1;
    // Skips a change from before the page was rendered, because the page shows it already.
    if (initialStatus !== "pending" || (name === "request.decided" && answerCount <= Number(initialAnswers))) return;
    const values = { what, user, at: moment(decision.at) };
    if (name === "request.expired") closeForms(words.has_expired);
    else if (name === "request.withdrawn") closeForms(words.was_withdrawn);
    else if (data.request?.status === "pending") announce(fill(words.meanwhile_answered, values));
    else closeForms(fill(words.meanwhile_decided, values));
  };

  const open = new Map();

  // The page of a task already lists its open questions (`questions`).
  const addQuestion = (data) => {
    if (data.request_id === request || questions) return;
    const calls = (data.pending_tool_calls ?? []).filter((call) => call.needs_decision);
    const about = [word(`kind_${data.kind}`, data.kind), calls.map((call) => visible(call.name)).join(words.between)];
    const link = element("a", about.filter((part) => part !== "").join(words.colon), {
      href: requests + encodeURIComponent(data.request_id),
    });
    const made = element("li");
    made.append(link);
    open.set(data.request_id, made);
    others.append(made);
  };

  const removeQuestion = (id) => {
    open.get(id)?.remove();
    open.delete(id);
  };

  const onRequestEvent = (name, data) => {
    if (name === "request.created") addQuestion(data);
    else if (data.request_id === request) onOwnRequestEvent(name, data);
    else if (name !== "request.decided" || data.request?.status !== "pending") removeQuestion(data.request_id);
    document.getElementById("live-asked").hidden = open.size === 0;
  };

  // --- The events --------------------------------------------------------------------------------

  let ended = false;
  // Maps the id of a task to its last answer. An output that equals this answer is not shown again.
  const lastAnswers = new Map();

  const onTaskEvent = (name, data) => {
    const [subject, what] = name.split(".");
    const parts = [];
    if (data.output && data.output !== lastAnswers.get(data.task_id)) parts.push(box(words.by_agent, ...quote(data.output)));
    if (data.error) parts.push(element("p", visible(data.error.detail ?? data.error.code), { lang: "en" }));
    if (!["created", "paused", "resumed"].includes(what)) removeDraft(data.task_id);
    entry(data, word(`event_${what}`, what), ...parts);
    if (subject !== "task") return;
    ended = ["Completed", "Failed", "Canceled"].includes(data.status);
    setText(state, word(`live_${String(data.status).toLowerCase()}`, data.status));
  };

  // The message of a sub-agent's task is by the agent that handed the work over.
  const onUserMessage = (_, data) => {
    const texts = data.items.map((item) => (item.content_type === "text" ? item.content : words.event_image));
    const quotes = texts.flatMap((text) => quote(text));
    const caller = Array.isArray(data.agent_path) ? data.agent_path.at(-2) : undefined;
    if (caller === undefined) entry(data, fill(words.event_message, { user: visible(data.by) }), ...quotes);
    else entry(data, fill(words.event_handed, { agent: visible(caller) }), box(words.by_agent, ...quotes));
  };

  const onAgentAnswer = (_, data) => {
    removeDraft(data.task_id);
    lastAnswers.set(data.task_id, data.text);
    const calls = data.tool_calls.flatMap((call) => [
      element("p", fill(words.event_call, { tool: visible(call.name) }), EXACT),
      ...quote(call.arguments_text, EXACT),
    ]);
    entry(data, words.event_answered, box(words.by_agent, ...(data.text ? quote(data.text) : []), ...calls));
  };

  const onToolResult = (name, data) => {
    const line = name === "tool.finished" ? words.event_finished : words.event_late;
    const outcome = word(`outcome_${data.outcome}`, data.outcome);
    const parts = data.content ? [box(words.by_result, ...quote(data.content))] : [];
    entry(data, fill(line, { tool: visible(data.name), outcome }), ...parts);
  };

  const storedEvents = {
    "message.received": onUserMessage,
    "message.completed": onAgentAnswer,
    "request.created": (name, data) => {
      const kind = word(`kind_${data.kind}`, data.kind);
      entry(data, fill(words.event_asked, { kind }));
      onRequestEvent(name, data);
    },
    "request.decided": (name, data) => {
      const what = word(`did_${data.decision.action}`, data.decision.action);
      entry(data, fill(words.event_decided, { what, user: visible(data.decision.by) }));
      onRequestEvent(name, data);
    },
    "request.expired": (name, data) => {
      entry(data, words.has_expired);
      onRequestEvent(name, data);
    },
    "request.withdrawn": (name, data) => {
      entry(data, words.was_withdrawn);
      onRequestEvent(name, data);
    },
    "tool.started": (_, data) => {
      const line = data.attempt > 1 ? words.event_started_again : words.event_started;
      entry(data, fill(line, { tool: visible(data.name), count: data.attempt }));
    },
    "tool.finished": onToolResult,
    "tool.finished_late": onToolResult,
    "sub_agent.started": (_, data) => entry(data, fill(words.event_sub_agent, { agent: visible(data.agent) })),
    "tool_call.judged": () => {},
  };
  for (const what of ["created", "paused", "resumed", "completed", "failed", "canceled"]) {
    storedEvents[`task.${what}`] = onTaskEvent;
    storedEvents[`sub_agent.${what}`] = onTaskEvent;
  }

  const deltaEvents = {
    "output_text.delta": (data) => appendDelta(data, "text"),
    "tool_call.named": (data) => addCallHeading(draftOf(data), `name ${data.tool_call_id}`, data.name),
    "tool_call.arguments.delta": (data) => appendDelta(data, `arguments ${data.tool_call_id}`, EXACT),
    "message.reset": (data) => removeDraft(data.task_id),
  };

  // --- The connection ----------------------------------------------------------------------------

  let source;
  let hasCaughtUp = false;
  let last = Number(live.dataset.after ?? 0);
  let tries = 0;
  let retryTimer;

  const connect = () => {
    source = new EventSource(last > 0 ? `${events}?after=${last}` : events);
    for (const [name, handler] of Object.entries(storedEvents)) {
      source.addEventListener(name, (event) => {
        const number = Number(event.lastEventId);
        if (number <= last) return;
        last = number;
        handler(name, JSON.parse(event.data));
        if (hasCaughtUp) refresh();
      });
    }
    for (const [name, handler] of Object.entries(deltaEvents)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.addEventListener("caught_up", () => {
      tries = 0;
      // Before `caught_up`, events do not refresh the headline, so the first `caught_up` does. An
      // open request that has not changed since the page was rendered has no headline, so it needs
      // no refresh.
      if (!hasCaughtUp && (initialStatus !== "pending" || !meanwhile.matches(":empty"))) refresh();
      hasCaughtUp = true;
      // Entries that are added from now on are new, so screen readers read them out.
      log.parentElement.setAttribute("aria-busy", "false");
      if (past) past.hidden = true;
      setText(connection, words.live_follows);
    });
    source.addEventListener("error", onError);
    // Deltas received before a reconnect may be void, because their `message.reset` may be lost.
    source.addEventListener("open", () => [...drafts.keys()].forEach(removeDraft));
  };

  // After a lost connection, a browser reconnects by itself. If the response is not an event stream
  // (a 204 after the last event, or an error), the browser gives up, and the state is `CLOSED`.
  const onError = () => {
    if (ended) setText(connection, words.live_ended);
    else setText(connection, words.live_reconnecting);
    if (source.readyState !== EventSource.CLOSED || ended) return;
    tries += 1;
    if (tries < MAX_TRIES) retryTimer = setTimeout(connect, 1000 * 2 ** tries);
    else stopFollowing();
  };

  const stopFollowing = () => {
    connection.replaceChildren(`${words.live_stopped} `, element("a", words.live_reload, { href: page }));
  };

  // Browsers limit the connections to a host, so a hidden page closes its stream.
  const onVisibilityChange = () => {
    clearTimeout(retryTimer);
    if (document.visibilityState === "hidden") source?.close();
    else if (!source || source.readyState === EventSource.CLOSED) {
      tries = 0;
      if (!ended) connect();
    }
  };

  live.hidden = false;
  if (timeLeft) setInterval(countDown, 20_000);
  document.addEventListener("visibilitychange", onVisibilityChange);
  onVisibilityChange();
})();
