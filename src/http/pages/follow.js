// Shows the events of a task while its page is open, from its event stream. The page is complete without this script,
// which adds later changes. No text is ever inserted as markup: texts become text nodes, hidden characters their codes,
// and text by an agent, a tool or a user stands in a box that says so.
"use strict";

(() => {
  // --- Times in the reader's zone, with UTC beside them ------------------------------------------------------------

  const language = document.documentElement.lang || "en";
  const day = (at, timeZone) => new Intl.DateTimeFormat("sv", { dateStyle: "short", timeZone }).format(at);
  const clock = (at, timeZone) => new Intl.DateTimeFormat("sv", { timeStyle: "short", timeZone }).format(at);
  const date = (at) => new Intl.DateTimeFormat(language, { dateStyle: "medium" }).format(at);

  // A timestamp of the service: "10:31 (09:31 UTC)", with the dates where they are not today's.
  const moment = (text) => {
    const at = new Date(text);
    if (Number.isNaN(at.getTime())) return visible(text);
    const today = day(at) === day(new Date());
    const here = `${today ? "" : `${date(at)}, `}${clock(at)}`;
    if (clock(at) === clock(at, "UTC") && day(at) === day(at, "UTC")) return `${here} UTC`;
    return `${here} (${day(at) === day(at, "UTC") ? "" : `${day(at, "UTC")} `}${clock(at, "UTC")} UTC)`;
  };

  const HIDDEN =
    /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u2800]/gu;
  const visible = (text) =>
    String(text).replace(HIDDEN, (hidden) => (hidden === " " ? " " : `\\u{${hidden.codePointAt(0).toString(16)}}`));

  for (const time of document.querySelectorAll("time[datetime]:not([data-left])")) {
    time.title = time.textContent;
    time.textContent = moment(time.dateTime);
  }

  const live = document.getElementById("live");
  if (!live || !window.EventSource) return;
  const { events, request, requests, status: openAtFirst, answers: answersAtFirst } = live.dataset;
  const page = live.dataset.page ?? requests + request;
  const words = JSON.parse(live.dataset.words);
  const [state, connection, others, log, now] = ["state", "connection", "others", "log", "now"].map((part) =>
    document.getElementById(`live-${part}`),
  );
  const meanwhile = document.getElementById("meanwhile");
  // The stored history of a request, whose place the events take.
  const past = document.getElementById("past");
  const MOST_ENTRIES = 200;
  const LONGEST_TEXT = 20_000;
  const MOST_TRIES = 6;

  // --- Display ----------------------------------------------------------------------------------------------------

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

  // Arguments are shown in the order of their characters, other texts in the direction of their script.
  const PROSE = { dir: "auto" };
  const EXACT = { dir: "ltr", className: "exact" };

  // Counts the time left down, rounded down as on the page without the script.
  const left = document.querySelector("#standing[data-left]");
  const countDown = () => {
    const minutes = Math.floor((new Date(left.dateTime) - Date.now()) / 60_000);
    const [text, count] =
      minutes < 1 ? [words.less_than_a_minute, 0]
      : minutes < 120 ? [words.minutes, minutes]
      : minutes < 2880 ? [words.hours, Math.floor(minutes / 60)]
      : [words.days, Math.floor(minutes / 1440)];
    said(left, minutes < 0 ? words.overdue : fill(words.time_left, { time: fill(text, { count }) }));
    left.classList.toggle("urgent", minutes < 60);
  };

  // A foreign text, cut at a length beyond which no reader would follow.
  const quote = (text, settings = PROSE) => {
    const whole = String(text);
    const shown = element("pre", prose(whole.slice(0, LONGEST_TEXT)), settings);
    if (whole.length <= LONGEST_TEXT) return [shown];
    return [shown, element("p", fill(words.live_cut, { count: characters(whole) }), { className: "soft" })];
  };

  const box = (label, ...parts) => {
    const made = element("div", undefined, { className: "agent" });
    made.append(element("p", label, { className: "by" }), ...parts);
    return made;
  };

  const said = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  // Adds an entry to the log: a line, and its parts.
  const entry = (data, line, ...parts) => {
    const made = element("li");
    const head = element("p");
    head.append(element("time", moment(data.at), { dateTime: data.at }), " ");
    const path = Array.isArray(data.agent_path) ? data.agent_path : [];
    if (path.length > 1) head.append(element("bdi", path.map(visible).join(" › ")), words.colon);
    head.append(line);
    made.append(head, ...parts);
    log.append(made);
    while (log.childElementCount > MOST_ENTRIES) {
      log.firstElementChild.remove();
      document.getElementById("live-earlier").hidden = false;
    }
  };

  // --- Deltas of models -------------------------------------------------------------------------------------------

  // For each task: the turn, its box, and its texts, each with the number of characters received.
  const saying = new Map();

  const hush = (task) => {
    saying.get(task)?.box.remove();
    saying.delete(task);
  };

  const speaker = ({ task_id: task, turn, agent_path: path }) => {
    if (saying.get(task)?.turn !== turn) hush(task);
    if (!saying.has(task)) {
      const agent = Array.isArray(path) && path.length > 1 ? `${path.map(visible).join(" › ")}${words.colon}` : "";
      const made = box(agent + words.by_agent);
      now.append(made);
      saying.set(task, { turn, box: made, texts: new Map() });
    }
    return saying.get(task);
  };

  const heading = (into, call, name) => {
    const { box: made, texts } = into;
    if (texts.has(call)) return;
    made.append(element("p", fill(words.happens_call, { tool: visible(name) }), EXACT));
    texts.set(call, undefined);
  };

  // Adds a delta to its text. A delta after a gap is not shown: the complete message follows.
  const more = (data, which, settings = PROSE) => {
    const into = speaker(data);
    let text = into.texts.get(which);
    if (!text || data.offset === 0) {
      if (data.offset !== 0) return;
      text?.shown.remove();
      text = { shown: element("pre", "", settings), count: 0 };
      into.texts.set(which, text);
      into.box.append(text.shown);
    }
    if (data.offset !== text.count) return;
    text.count += characters(data.delta);
    if (text.shown.textContent.length < LONGEST_TEXT) text.shown.append(prose(data.delta));
  };

  // --- The page's request, and others ------------------------------------------------------------------------------

  let answers = 0;
  const headline = document.getElementById("headline");
  let asksAnew = false;
  let isOld = false;

  // Takes the headline and the tab's title from a fresh copy of the page; loads it once more for events that arrive
  // while a load is in flight.
  const refresh = () => {
    isOld = asksAnew;
    if (asksAnew) return;
    asksAnew = true;
    const asked = new XMLHttpRequest();
    asked.open("GET", page);
    asked.setRequestHeader("accept", "text/html");
    asked.responseType = "document";
    asked.addEventListener("loadend", () => {
      const fresh = asked.responseXML?.getElementById("headline");
      if (fresh && headline) {
        said(headline, fresh.textContent);
        headline.className = fresh.className;
        headline.hidden = fresh.hidden;
        document.title = asked.responseXML.title;
      }
      asksAnew = false;
      if (isOld) refresh();
    });
    asked.send();
  };

  const tell = (text) => {
    const again = element("a", words.live_reload, { href: page });
    const told = element("p", undefined, { className: "status" });
    told.append(`${text} `, again);
    meanwhile.replaceChildren(told);
  };

  // The request takes no more answers: hides its forms, and moves the focus from a form to the message.
  const close = (text) => {
    const forms = document.getElementById("answers");
    const typing = forms.contains(document.activeElement);
    forms.hidden = true;
    document.getElementById("standing").hidden = true;
    tell(text);
    if (typing) meanwhile.querySelector("a").focus();
  };

  const changed = (name, data) => {
    const decision = data.decision ?? {};
    const [what, user] = [word(`has_${decision.action}`, decision.action), visible(decision.by)];
    if (name === "request.decided") answers += 1;
    // The page was rendered with this change.
    if (openAtFirst !== "pending" || (name === "request.decided" && answers <= Number(answersAtFirst))) return;
    const values = { what, user, at: moment(decision.at) };
    if (name === "request.expired") close(words.has_expired);
    else if (name === "request.withdrawn") close(words.was_withdrawn);
    else if (data.request?.status === "pending") tell(fill(words.meanwhile_answered, values));
    else close(fill(words.meanwhile_decided, values));
  };

  const open = new Map();

  const listed = (data) => {
    if (data.request_id === request) return;
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

  const unlisted = (id) => {
    open.get(id)?.remove();
    open.delete(id);
  };

  const ofRequest = (name, data) => {
    if (name === "request.created") listed(data);
    else if (data.request_id === request) changed(name, data);
    else if (name !== "request.decided" || data.request?.status !== "pending") unlisted(data.request_id);
    document.getElementById("live-asked").hidden = open.size === 0;
  };

  // --- The events --------------------------------------------------------------------------------------------------

  let ended = false;
  // The last answer of each task, so that an output equal to it is not shown twice.
  const lastWords = new Map();

  const ofTask = (name, data) => {
    const [whose, what] = name.split(".");
    const parts = [];
    if (data.output && data.output !== lastWords.get(data.task_id)) parts.push(box(words.by_agent, ...quote(data.output)));
    if (data.error) parts.push(element("p", visible(data.error.detail ?? data.error.code), { lang: "en" }));
    if (!["created", "paused", "resumed"].includes(what)) hush(data.task_id);
    entry(data, word(`happens_${what}`, what), ...parts);
    if (whose !== "task") return;
    ended = ["Completed", "Failed", "Canceled"].includes(data.status);
    said(state, word(`live_${String(data.status).toLowerCase()}`, data.status));
  };

  const ofMessage = (_, data) => {
    const texts = data.items.map((item) => (item.content_type === "text" ? item.content : words.happens_image));
    const user = visible(data.by);
    entry(data, fill(words.happens_message, { user }), ...texts.flatMap(quote));
  };

  const ofAnswer = (_, data) => {
    hush(data.task_id);
    lastWords.set(data.task_id, data.text);
    const calls = data.tool_calls.flatMap((call) => [
      element("p", fill(words.happens_call, { tool: visible(call.name) }), EXACT),
      ...quote(call.arguments_text, EXACT),
    ]);
    entry(data, words.happens_answered, box(words.by_agent, ...(data.text ? quote(data.text) : []), ...calls));
  };

  const ofResult = (name, data) => {
    const line = name === "tool.finished" ? words.happens_finished : words.happens_late;
    const outcome = word(`outcome_${data.outcome}`, data.outcome);
    const parts = data.content ? [box(words.by_result, ...quote(data.content))] : [];
    entry(data, fill(line, { tool: visible(data.name), outcome }), ...parts);
  };

  const durable = {
    "message.received": ofMessage,
    "message.completed": ofAnswer,
    "request.created": (name, data) => {
      const kind = word(`kind_${data.kind}`, data.kind);
      entry(data, fill(words.happens_asked, { kind }));
      ofRequest(name, data);
    },
    "request.decided": (name, data) => {
      const what = word(`did_${data.decision.action}`, data.decision.action);
      entry(data, fill(words.happens_decided, { what, user: visible(data.decision.by) }));
      ofRequest(name, data);
    },
    "request.expired": (name, data) => {
      entry(data, words.has_expired);
      ofRequest(name, data);
    },
    "request.withdrawn": (name, data) => {
      entry(data, words.was_withdrawn);
      ofRequest(name, data);
    },
    "tool.started": (_, data) => {
      const line = data.attempt > 1 ? words.happens_started_again : words.happens_started;
      entry(data, fill(line, { tool: visible(data.name), count: data.attempt }));
    },
    "tool.finished": ofResult,
    "tool.finished_late": ofResult,
    "sub_agent.started": (_, data) => entry(data, fill(words.happens_sub_agent, { agent: visible(data.agent) })),
    "tool_call.judged": () => {},
  };
  for (const what of ["created", "paused", "resumed", "completed", "failed", "canceled"]) {
    durable[`task.${what}`] = ofTask;
    durable[`sub_agent.${what}`] = ofTask;
  }

  const passing = {
    "output_text.delta": (data) => more(data, "text"),
    "tool_call.named": (data) => heading(speaker(data), `name ${data.tool_call_id}`, data.name),
    "tool_call.arguments.delta": (data) => more(data, `arguments ${data.tool_call_id}`, EXACT),
    "message.reset": (data) => hush(data.task_id),
  };

  // --- The connection ----------------------------------------------------------------------------------------------

  let source;
  let isNews = false;
  let last = Number(live.dataset.after ?? 0);
  let tries = 0;
  let later;

  const connect = () => {
    source = new EventSource(last > 0 ? `${events}?after=${last}` : events);
    for (const [name, happens] of Object.entries(durable)) {
      source.addEventListener(name, (event) => {
        const number = Number(event.lastEventId);
        if (number <= last) return;
        last = number;
        happens(name, JSON.parse(event.data));
        if (isNews) refresh();
      });
    }
    for (const [name, happens] of Object.entries(passing)) {
      source.addEventListener(name, (event) => happens(JSON.parse(event.data)));
    }
    source.addEventListener("caught_up", () => {
      tries = 0;
      // A change between the rendering and the stream's start has not updated the headline.
      if (!isNews && (openAtFirst !== "pending" || !meanwhile.matches(":empty"))) refresh();
      isNews = true;
      // Entries from now on are new, so screen readers read them out.
      log.parentElement.setAttribute("aria-busy", "false");
      if (past) past.hidden = true;
      said(connection, words.live_follows);
    });
    source.addEventListener("error", lost);
    // Deltas from before the connection may be void by now, and no reset for them would arrive.
    source.addEventListener("open", () => [...saying.keys()].forEach(hush));
  };

  // A browser reconnects by itself until a response is no stream: 204 after the last event, or a refusal.
  const lost = () => {
    if (ended) said(connection, words.live_ended);
    else said(connection, words.live_again);
    if (source.readyState !== EventSource.CLOSED || ended) return;
    tries += 1;
    if (tries < MOST_TRIES) later = setTimeout(connect, 1000 * 2 ** tries);
    else over();
  };

  const over = () => {
    connection.replaceChildren(`${words.live_over} `, element("a", words.live_reload, { href: page }));
  };

  // A browser has few connections to one host, so a hidden page keeps none.
  const seen = () => {
    clearTimeout(later);
    if (document.visibilityState === "hidden") source?.close();
    else if (!source || source.readyState === EventSource.CLOSED) {
      tries = 0;
      if (!ended) connect();
    }
  };

  live.hidden = false;
  if (left) setInterval(countDown, 20_000);
  document.addEventListener("visibilitychange", seen);
  seen();
})();
