// Follows the task on the open page of a request or a task, after `times.js`. On an event, the
// script loads the page of the task again and moves the new entries from there into the log. So the
// server writes the text of every entry. Each page is complete without this script. Texts of the
// stream are inserted as text nodes, never as markup. Codes replace hidden characters.
"use strict";

(() => {
  const part = (name) => document.getElementById(name);
  const live = part("live");
  if (!live || !window.EventSource) return;
  const { events, timeline, request, requests, status: initialStatus, answers: initialAnswers } = live.dataset;
  const page = request ? requests + request : timeline;
  const words = JSON.parse(live.dataset.words);
  const [state, connection, log, now] = ["state", "connection", "log", "now"].map((name) => part(`live-${name}`));
  const meanwhile = part("meanwhile");
  const MAX_ENTRIES = 400;
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

  const setText = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  // --- Deltas of models --------------------------------------------------------------------------

  // Maps the id of a task to its unfinished answer: the turn, the box on the page, and for each
  // text its element and the number of characters received.
  const drafts = new Map();

  const removeDraft = (task) => {
    drafts.get(task)?.box.remove();
    drafts.delete(task);
  };

  // The boxes of ended answers. A box stays until the log has the entry of its answer.
  const endedBoxes = [];

  const endDraft = (task) => {
    if (drafts.has(task)) endedBoxes.push(drafts.get(task).box);
    drafts.delete(task);
  };

  const draftOf = ({ task_id: task, turn, agent_path: path }) => {
    if (drafts.get(task)?.turn !== turn) removeDraft(task);
    if (!drafts.has(task)) {
      const agent = Array.isArray(path) && path.length > 1 ? `${path.map(visible).join(" › ")}${words.colon}` : "";
      const made = element("div", undefined, { className: "agent" });
      made.append(element("p", agent + words.by_agent, { className: "by" }));
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

  // --- The loaded pages --------------------------------------------------------------------------

  // Moves the entries of a loaded page of the task to the end of the log, and removes the oldest
  // entries of a long log. Then hides the stored history of a request.
  const addEntries = (loaded) => {
    const added = loaded.getElementById("live-log");
    log.dataset.after = added.dataset.after;
    showTimes(added);
    log.append(...document.adoptNode(added).childNodes);
    let isCut = loaded.getElementById("earlier") !== null;
    for (; log.childElementCount > MAX_ENTRIES; isCut = true) log.firstElementChild.remove();
    if (isCut) part("live-earlier").hidden = false;
    // Entries that are added from now on are new, so screen readers read them out.
    log.setAttribute("aria-busy", "false");
    if (part("past")) part("past").hidden = true;
  };

  // Copies the open questions from a loaded page of the task. The page of a request has its own
  // heading above them, and leaves out the question that it shows itself. If the link of a question
  // had the focus, the new link gets the focus.
  const takeOverQuestions = (loaded) => {
    const [shown, fresh] = [part("task-questions"), loaded.getElementById("task-questions")];
    if (request) {
      fresh.querySelector("h2")?.remove();
      fresh.querySelector(`a[href$="${request}"]`)?.closest("li").remove();
      part("live-asked").hidden = !fresh.querySelector("li");
    }
    if (shown.isEqualNode(fresh)) return;
    const focused = shown.contains(document.activeElement) ? document.activeElement.href : undefined;
    shown.replaceChildren(...document.adoptNode(fresh).childNodes);
    if (focused) [...shown.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
  };

  // Copies the headline and the title. Removes the form that cancels the task if the loaded page
  // has no such form. Otherwise the form stays as the reader left it.
  const takeOverHeadline = (loaded) => {
    const [shown, fresh] = [part("headline"), loaded?.getElementById("headline")];
    if (!fresh || !shown) return;
    setText(shown, fresh.textContent);
    shown.className = fresh.className;
    shown.hidden = fresh.hidden;
    document.title = loaded.title;
    if (!loaded.getElementById("task-cancel")) part("task-cancel")?.remove();
  };

  const load = (address) =>
    new Promise((resolve) => {
      const xhr = new XMLHttpRequest();
      xhr.open("GET", address);
      xhr.setRequestHeader("accept", "text/html");
      xhr.responseType = "document";
      xhr.addEventListener("loadend", () => resolve(xhr.responseXML));
      xhr.send();
    });

  let isRefreshing = false;
  let needsRefresh = false;
  let failures = 0;

  // Loads the page of the task with the entries that the log lacks. Also loads the page of the
  // request, unless the request is open without a new answer: then it still has no headline. An
  // event that arrives during a load causes another load.
  const refresh = async () => {
    needsRefresh = isRefreshing;
    if (isRefreshing) return;
    isRefreshing = true;
    const boxes = endedBoxes.splice(0);
    const mayHaveChanged = request && (initialStatus !== "pending" || !meanwhile.matches(":empty"));
    const addresses = [`${timeline}?after=${log.dataset.after}`, ...(mayHaveChanged ? [page] : [])];
    const [task, own] = await Promise.all(addresses.map(load));
    failures = task?.getElementById("live-log") ? 0 : failures + 1;
    if (failures === 0) {
      addEntries(task);
      takeOverQuestions(task);
      for (const box of boxes) box.remove();
    } else endedBoxes.push(...boxes);
    takeOverHeadline(request ? own : task);
    isRefreshing = false;
    if (failures >= MAX_TRIES) stopFollowing();
    else if (failures > 0) setTimeout(refresh, 1000 * 2 ** failures);
    else if (needsRefresh) refresh();
  };

  // --- The page's request ------------------------------------------------------------------------

  let answerCount = 0;

  const announce = (text) => {
    const reloadLink = element("a", words.live_reload, { href: page });
    const message = element("p", undefined, { className: "status" });
    message.append(`${text} `, reloadLink);
    meanwhile.replaceChildren(message);
  };

  // Hides the forms of a request that takes no more answers. If a form had the focus, the link in
  // the message gets the focus.
  const closeForms = (text) => {
    const forms = part("answers");
    const hadFocus = forms.contains(document.activeElement);
    forms.hidden = true;
    // The element is missing if the page was rendered after the deadline.
    const standing = part("standing");
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

  // --- The events --------------------------------------------------------------------------------

  let ended = false;

  const STORED_EVENTS = `message.received message.completed tool_call.judged tool.started tool.finished tool.finished_late
    task.created task.paused task.resumed task.completed task.failed task.canceled
    sub_agent.created sub_agent.paused sub_agent.resumed sub_agent.completed sub_agent.failed sub_agent.canceled
    sub_agent.started request.created request.decided request.expired request.withdrawn`.split(/\s+/);

  const onStoredEvent = (name, data) => {
    const [subject, what] = name.split(".");
    if (subject === "request") {
      if (data.request_id === request && what !== "created") onOwnRequestEvent(name, data);
      return;
    }
    if (["completed", "failed", "canceled"].includes(what)) endDraft(data.task_id);
    if (!data.status || !timeline.endsWith(data.task_id)) return;
    ended = ["Completed", "Failed", "Canceled"].includes(data.status);
    setText(state, word(`live_${String(data.status).toLowerCase()}`, data.status));
  };

  const deltaEvents = {
    "output_text.delta": (data) => appendDelta(data, "text"),
    "tool_call.named": (data) => addCallHeading(draftOf(data), `name ${data.tool_call_id}`, data.name),
    "tool_call.arguments.delta": (data) => appendDelta(data, `arguments ${data.tool_call_id}`, EXACT),
    "message.reset": (data) => removeDraft(data.task_id),
  };

  // --- The connection ----------------------------------------------------------------------------

  let source;
  let hasCaughtUp = false;
  let last = Number(log.dataset.after);
  let tries = 0;
  let retryTimer;

  const connect = () => {
    source = new EventSource(last > 0 ? `${events}?after=${last}` : events);
    for (const name of STORED_EVENTS) {
      source.addEventListener(name, (event) => {
        const number = Number(event.lastEventId);
        if (number <= last) return;
        last = number;
        onStoredEvent(name, JSON.parse(event.data));
        if (hasCaughtUp || ended) refresh();
      });
    }
    for (const [name, handler] of Object.entries(deltaEvents)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.addEventListener("caught_up", () => {
      tries = 0;
      hasCaughtUp = true;
      setText(connection, words.live_follows);
      refresh();
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
    source.close();
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
  log.setAttribute("aria-busy", String(!log.firstChild));
  if (timeLeft) setInterval(countDown, 20_000);
  document.addEventListener("visibilitychange", onVisibilityChange);
  onVisibilityChange();
})();
