// Updates an open inbox page from its event stream. Each row stays in its place: the row of a
// request that is over turns grey, and new rows appear at a click. No keystroke decides a request,
// and no text is inserted as markup.
"use strict";

(() => {
  const part = (name) => document.getElementById(name);
  const live = part("inbox-live");
  const rows = part("inbox-rows");
  if (!live || !rows || !window.EventSource) return;
  const words = JSON.parse(live.dataset.words);
  const [state, heading, nav, news, notifyButton, note] = ["inbox-state", "open-heading", "open-count", "inbox-new", "inbox-tell", "inbox-tell-note"].map(part);
  const title = document.title;
  const MAX_COUNTED = 1000;
  const MAX_LISTED = 200;
  const MAX_TRIES = 6;
  const ANNOUNCE_MS = 10_000;

  const HIDDEN =
    /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u2800]/gu;
  const visible = (text) =>
    String(text).replace(HIDDEN, (hidden) => (hidden === " " ? " " : `\\u{${hidden.codePointAt(0).toString(16)}}`));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
  const word = (name, otherwise) => (Object.hasOwn(words, name) ? words[name] : visible(otherwise));
  const moment = (at) => `${String(at).slice(0, 19).replace("T", " ")} UTC`;
  const rowOf = (id) => [...rows.children].find((row) => row.dataset.request === id);
  const isLastPage = !part("inbox-next");
  // The first id of this page, but "" on the first page, and "g" (above every id) without rows.
  const pageStart = new URL(location).searchParams.get("cursor") ? (rows.firstElementChild?.dataset.request ?? "g") : "";

  const load = (address, accept, type, handler) => {
    const xhr = new XMLHttpRequest();
    xhr.open("GET", address);
    xhr.setRequestHeader("accept", accept);
    xhr.responseType = type;
    xhr.addEventListener("loadend", () => handler(xhr.status === 200 ? xhr.response : null));
    xhr.send();
  };

  // --- The count ---

  let mayBeMore = "more" in live.dataset;

  const showCount = (open) => {
    const shown = open >= MAX_COUNTED ? "1,000+" : mayBeMore ? `${open}+` : String(open);
    heading.textContent = shown;
    nav.textContent = ` ${shown}`;
    document.title = open > 0 ? `(${shown}) ${title}` : title;
    navigator.setAppBadge?.(open).catch(() => {});
  };

  // --- The rows ---

  const setRowNote = (row, text) => {
    const line = row.querySelector(".told");
    if (line.textContent !== text) line.textContent = text;
  };

  const markOver = (id, reason, decision) => {
    newRequests.delete(id);
    announce();
    const row = rowOf(id);
    if (!row) return;
    row.classList.add("over");
    const what = decision && word(`did_${decision.action}`, decision.action);
    const values = { what, user: `\u2068${visible(decision?.by ?? "")}\u2069`, at: moment(decision?.at ?? "") };
    const outcome = reason === "decided" && !decision ? "over" : reason;
    setRowNote(row, fill(words[`row_${outcome}`] ?? words.row_over, values));
  };

  const markOpen = (row) => {
    row.classList.remove("over");
    setRowNote(row, "");
  };

  // Reads the outcome of a request whose change was missed.
  const readOutcome = (row) => {
    load(live.dataset.requests + row.dataset.request, "application/json", "json", (request) => {
      if (!request || request.can_decide) return;
      const isLate = Date.parse(request.expires_at) <= Date.now();
      const hasVote = request.tool_calls.some((call) => call.approvals[0]);
      const reasons = { pending: isLate ? "expired" : hasVote ? "answered" : "over", responded: "decided", resumed: "decided" };
      markOver(row.dataset.request, reasons[request.status] ?? request.status, request.decision);
    });
  };

  // The ids of new open requests without a row here.
  const newRequests = new Set();
  const button = document.createElement("button");
  button.className = "second";
  let announcedAt = 0;
  let announceTimer;

  // Counts the new requests on the button: for screen readers, at most once in ten seconds.
  const announce = () => {
    clearTimeout(announceTimer);
    if (newRequests.size === 0) {
      if (button !== document.activeElement) button.remove();
      return;
    }
    const wait = announcedAt + ANNOUNCE_MS - Date.now();
    if (button.isConnected && wait > 0) {
      announceTimer = setTimeout(announce, wait);
      return;
    }
    announcedAt = Date.now();
    button.textContent = newRequests.size === 1 ? words.new_one : fill(words.new_many, { count: newRequests.size });
    if (!button.isConnected) news.append(button);
  };

  // The cursor of the page that begins with a request: its id minus 1, as 16 bytes in base64.
  const cursorBefore = (id) => {
    const hex = (BigInt(`0x${id.replaceAll("-", "")}`) - 1n).toString(16).padStart(32, "0");
    const bytes = hex.match(/../g).map((byte) => Number.parseInt(byte, 16));
    return btoa(String.fromCharCode(...bytes)).slice(0, 22).replaceAll("+", "-").replaceAll("/", "_");
  };

  // Appends the rows of the new requests to the last page of the list. On any other page, opens the
  // page that begins with the first new request.
  const showNewRows = () => {
    const address = new URL(location);
    address.searchParams.set("cursor", cursorBefore([...newRequests].sort()[0]));
    if (!isLastPage) return location.assign(address);
    load(address, "text/html", "document", (loaded) => {
      const found = [...(loaded?.querySelectorAll("#inbox-rows > li") ?? [])];
      const added = found.filter((row) => !rowOf(row.dataset.request));
      if (added.length === 0) return location.reload();
      rows.append(...added.map((row) => document.adoptNode(row)));
      part("inbox-empty")?.remove();
      for (const row of added) newRequests.delete(row.dataset.request);
      added[0].querySelector("a").focus();
      announcedAt = 0;
      announce();
    });
  };
  button.addEventListener("click", showNewRows);

  // --- The events ---

  // The ids of the requests that are not new; undefined until an event lists all open requests.
  let known;
  let isFirstEvent = true;

  const onInbox = ({ open, more, requests }) => {
    const ids = new Set(requests.map((request) => request.request_id));
    // The event lists the oldest requests, so an unlisted request older than a listed one is over.
    const isComplete = !more && open <= MAX_LISTED;
    const isOver = (id) => !ids.has(id) && (isComplete || id < requests.at(-1)?.request_id);
    for (const row of rows.children) {
      const id = row.dataset.request;
      if (ids.has(id)) markOpen(row);
      else if (isOver(id) && !row.classList.contains("over")) {
        markOver(id);
        readOutcome(row);
      }
    }
    const isNew = (id) => (known ? !known.has(id) : isFirstEvent && isLastPage && id > pageStart);
    for (const id of newRequests) if (isOver(id)) newRequests.delete(id);
    for (const request of requests) {
      const id = request.request_id;
      if (rowOf(id) || !isNew(id)) continue;
      newRequests.add(id);
      if (known) notify(request);
    }
    if (isComplete || known) known = new Set([...(known ?? []), ...ids]);
    isFirstEvent = false;
    mayBeMore = more;
    showCount(open);
    announce();
  };

  const handlers = {
    inbox: onInbox,
    "request.created": ({ request, open }) => {
      const row = rowOf(request.request_id);
      if (row) markOpen(row);
      else newRequests.add(request.request_id);
      known?.add(request.request_id);
      showCount(open);
      announce();
      notify(request);
    },
    "request.changed": ({ request, open }) => {
      const approved = rowOf(request.request_id)?.querySelector(".approved");
      const values = { have: request.approvals, required: request.approvers.required };
      if (approved) approved.textContent = fill(words.have_approved, values);
      showCount(open);
    },
    "request.gone": ({ request_id: id, reason, decision, open }) => {
      markOver(id, reason, decision);
      showCount(open);
    },
  };

  // --- Notices ---

  const NOTIFY_KEY = "holdpoint-tell";
  const NOTIFIED_KEY = "holdpoint-told";
  // Undefined until this tab asks for the lock.
  let hasLock;

  const wantsNotices = () => window.Notification?.permission === "granted" && localStorage.getItem(NOTIFY_KEY) === "yes";
  const mayNotify = () => hasLock && wantsNotices();

  // The tab with the lock shows the notices, and keeps the lock until it is closed.
  const updateNotices = () => {
    notifyButton.textContent = wantsNotices() ? words.notify_stop : words.notify;
    notifyButton.setAttribute("aria-pressed", wantsNotices());
    if (wantsNotices() && hasLock === undefined) {
      hasLock = !navigator.locks;
      navigator.locks?.request("holdpoint-inbox", () => {
        hasLock = true;
        onVisibilityChange();
        return new Promise(() => {});
      });
    }
    onVisibilityChange();
  };

  // A notice may appear on a locked screen, so it has no summary and no argument. The stored ids
  // keep the next holder of the lock from repeating a notice.
  const notify = ({ request_id: id, kind, agent_path: path }) => {
    if (!mayNotify()) return;
    const ids = (localStorage.getItem(NOTIFIED_KEY) ?? "").split(" ");
    if (ids.includes(id)) return;
    localStorage.setItem(NOTIFIED_KEY, [...ids, id].slice(-MAX_COUNTED).join(" "));
    const body = [word(`short_${kind}`, kind), visible(path.at(-1) ?? "")].join(" · ");
    try {
      new Notification(words.notify_title, { body, tag: id });
    } catch {
      // Chrome on Android throws.
      localStorage.removeItem(NOTIFY_KEY);
      note.textContent = words.notify_refused;
      updateNotices();
    }
  };

  if (window.Notification) {
    notifyButton.addEventListener("click", async () => {
      note.textContent = "";
      if (wantsNotices()) localStorage.removeItem(NOTIFY_KEY);
      else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(NOTIFY_KEY, "yes");
      else note.textContent = words.notify_refused;
      updateNotices();
    });
    window.addEventListener("storage", updateNotices);
  } else notifyButton.remove();

  // --- The keys ---

  rows.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    const links = [...rows.querySelectorAll("a")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  // --- The connection ---

  let source;
  let tries = 0;
  let retryTimer;

  const connect = () => {
    source = new EventSource(live.dataset.events);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        tries = 0;
        state.textContent = words.live;
        handler(JSON.parse(event.data));
      });
    }
    source.addEventListener("error", onError);
  };

  // A browser reconnects by itself. If the response is not an event stream, the state is `CLOSED`.
  const onError = () => {
    if (state.textContent === words.live) state.textContent = fill(words.not_live, { at: moment(new Date().toISOString()).slice(11) });
    if (source.readyState !== EventSource.CLOSED) return;
    if (++tries < MAX_TRIES) retryTimer = setTimeout(connect, 1000 * 2 ** tries);
  };

  // Browsers limit the connections to a host, so a hidden page without notices closes its stream.
  const onVisibilityChange = () => {
    clearTimeout(retryTimer);
    if (document.visibilityState === "hidden" && !mayNotify()) source?.close();
    else if (!source || source.readyState === EventSource.CLOSED) {
      tries = 0;
      connect();
    }
  };

  live.hidden = false;
  showCount(Number(live.dataset.open));
  document.addEventListener("visibilitychange", onVisibilityChange);
  updateNotices();
})();
