// Keeps an open inbox up to date, from its event stream. The page is complete without this script. No row moves by
// itself: a request that is over greys out in its place, and new ones wait behind a button. No key decides anything,
// and no text is inserted as markup.
"use strict";

(() => {
  const live = document.getElementById("inbox-live");
  const rows = document.getElementById("inbox-rows");
  if (!live || !rows || !window.EventSource) return;
  const words = JSON.parse(live.dataset.words);
  const part = (name) => document.getElementById(name);
  const [state, heading, nav, news, tell, note] = ["inbox-state", "open-heading", "open-count", "inbox-new", "inbox-tell", "inbox-tell-note"].map(part);
  const title = document.title;
  const MOST_COUNTED = 1000;
  const MOST_TRIES = 6;
  const SAID_EVERY = 10_000;

  const HIDDEN =
    /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u2800]/gu;
  const visible = (text) =>
    String(text).replace(HIDDEN, (hidden) => (hidden === " " ? " " : `\\u{${hidden.codePointAt(0).toString(16)}}`));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
  const word = (name, otherwise) => (Object.hasOwn(words, name) ? words[name] : visible(otherwise));
  const moment = (at) => `${String(at).slice(0, 19).replace("T", " ")} UTC`;
  const clock = () => `${new Date().toISOString().slice(11, 19)} UTC`;
  const rowOf = (id) => [...rows.children].find((row) => row.dataset.request === id);

  // --- The count ---------------------------------------------------------------------------------------------------

  let mayBeMore = "more" in live.dataset;

  const counted = (open) => {
    const shown = mayBeMore || open >= MOST_COUNTED ? `${open}+` : String(open);
    heading.textContent = shown;
    nav.textContent = ` ${shown}`;
    document.title = open > 0 ? `(${shown}) ${title}` : title;
    navigator.setAppBadge?.(open).catch(() => {});
  };

  // --- Rows that are over, and new ones ----------------------------------------------------------------------------

  const told = (row, text) => {
    const line = row.querySelector(".told");
    if (line.textContent !== text) line.textContent = text;
  };

  const over = (id, reason, decision) => {
    fresh.delete(id);
    announce();
    const row = rowOf(id);
    if (!row) return;
    row.classList.add("over");
    const what = decision && word(`did_${decision.action}`, decision.action);
    const values = { what, user: visible(decision?.by ?? ""), at: moment(decision?.at ?? "") };
    if (reason === "decided" && decision) told(row, fill(words.row_decided, values));
    else if (reason === "expired") told(row, words.row_expired);
    else if (reason === "answered") told(row, words.row_answered);
    else if (reason === "withdrawn") told(row, words.row_withdrawn);
    else told(row, words.row_over);
  };

  const back = (row) => {
    row.classList.remove("over");
    told(row, "");
  };

  // The ids of requests that are open and have no row yet.
  const fresh = new Set();
  const button = document.createElement("button");
  button.type = "button";
  button.className = "second";
  let saidAt = 0;
  let sayLater;

  // A screen reader hears of new questions at most once in ten seconds.
  const announce = () => {
    clearTimeout(sayLater);
    if (fresh.size === 0) {
      if (!button.contains(document.activeElement)) button.remove();
      return;
    }
    const wait = saidAt + SAID_EVERY - Date.now();
    if (button.isConnected && wait > 0) {
      sayLater = setTimeout(announce, wait);
      return;
    }
    saidAt = Date.now();
    button.textContent = fresh.size === 1 ? words.new_one : fill(words.new_many, { count: fresh.size });
    if (!button.isConnected) news.append(button);
  };

  // Takes the rows of new requests from a fresh copy of the page, below the rows that are there.
  const show = () => {
    const asked = new XMLHttpRequest();
    asked.open("GET", location.href);
    asked.setRequestHeader("accept", "text/html");
    asked.responseType = "document";
    asked.addEventListener("loadend", () => {
      const found = [...(asked.responseXML?.querySelectorAll("#inbox-rows > li") ?? [])];
      const added = found.filter((row) => !rowOf(row.dataset.request));
      if (added.length === 0) {
        location.reload();
        return;
      }
      rows.append(...added.map((row) => document.adoptNode(row)));
      part("inbox-empty")?.remove();
      for (const row of added) fresh.delete(row.dataset.request);
      added[0].querySelector("a").focus();
      saidAt = 0;
      announce();
    });
    asked.send();
  };
  button.addEventListener("click", show);

  // --- The events --------------------------------------------------------------------------------------------------

  const isLastPage = !part("inbox-next");

  const begin = ({ open, more, requests }) => {
    const ids = new Set(requests.map((request) => request.request_id));
    const whole = !more && open === requests.length;
    for (const row of rows.children) {
      if (ids.has(row.dataset.request)) back(row);
      else if (whole && !row.classList.contains("over")) over(row.dataset.request);
    }
    fresh.clear();
    if (isLastPage) for (const id of ids) if (!rowOf(id)) fresh.add(id);
    mayBeMore = more;
    counted(open);
    announce();
  };

  const happens = {
    inbox: begin,
    "request.created": ({ request, open }) => {
      const row = rowOf(request.request_id);
      if (row) back(row);
      else fresh.add(request.request_id);
      counted(open);
      announce();
      notify(request);
    },
    "request.changed": ({ request, open }) => {
      const row = rowOf(request.request_id);
      const approved = row?.querySelector(".approved");
      const values = { have: request.approvals, required: request.approvers.required };
      if (approved) approved.textContent = fill(words.have_approved, values);
      counted(open);
    },
    "request.gone": ({ request_id: id, reason, decision, open }) => {
      over(id, reason, decision);
      counted(open);
    },
  };

  // --- Notices of the browser --------------------------------------------------------------------------------------

  const TOLD = "holdpoint-tell";
  let releases;
  let mayTell = false;

  const wantsNotices = () => window.Notification?.permission === "granted" && localStorage.getItem(TOLD) === "yes";

  // Of several tabs, the one that holds the lock shows the notices.
  const settle = () => {
    tell.textContent = wantsNotices() ? words.tell_no_more : words.tell;
    tell.setAttribute("aria-pressed", String(wantsNotices()));
    if (!wantsNotices()) {
      releases?.();
      releases = undefined;
      mayTell = false;
    } else if (!releases) {
      const held = new Promise((resolve) => {
        releases = resolve;
      });
      if (!navigator.locks) mayTell = true;
      else
        navigator.locks.request("holdpoint-inbox", () => {
          mayTell = wantsNotices();
          return held;
        });
    }
  };

  // Neither a summary nor an argument is in a notice: it may be shown on a locked screen.
  const notify = (request) => {
    if (!mayTell) return;
    const body = [word(`short_${request.kind}`, request.kind), visible(request.agent_path.at(-1) ?? "")].join(" · ");
    new Notification(words.tell_title, { body, tag: request.request_id });
  };

  if (window.Notification) {
    tell.addEventListener("click", async () => {
      note.textContent = "";
      if (wantsNotices()) localStorage.removeItem(TOLD);
      else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(TOLD, "yes");
      else note.textContent = words.tell_refused;
      settle();
    });
    settle();
  } else tell.remove();

  // --- Moving between the rows -------------------------------------------------------------------------------------

  // Only while a link of the list has the focus.
  rows.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    const links = [...rows.querySelectorAll("a")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  // --- The connection ----------------------------------------------------------------------------------------------

  let source;
  let tries = 0;
  let later;

  const connect = () => {
    source = new EventSource(live.dataset.events);
    for (const [name, take] of Object.entries(happens)) {
      source.addEventListener(name, (event) => {
        tries = 0;
        state.textContent = words.live;
        take(JSON.parse(event.data));
      });
    }
    source.addEventListener("error", lost);
  };

  // A browser reconnects by itself until an answer is no stream.
  const lost = () => {
    if (state.textContent === words.live) state.textContent = fill(words.not_live, { at: clock() });
    if (source.readyState !== EventSource.CLOSED) return;
    tries += 1;
    if (tries < MOST_TRIES) later = setTimeout(connect, 1000 * 2 ** tries);
  };

  // A browser has few connections to one host, so a hidden page keeps none, unless it shows notices.
  const seen = () => {
    clearTimeout(later);
    if (document.visibilityState === "hidden" && !wantsNotices()) source?.close();
    else if (!source || source.readyState === EventSource.CLOSED) {
      tries = 0;
      connect();
    }
  };

  live.hidden = false;
  counted(Number(live.dataset.open));
  document.addEventListener("visibilitychange", seen);
  seen();
})();
