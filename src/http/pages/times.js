// Shows the times of a page in the reader's zone, with UTC beside them. Without this script, the
// times are in UTC. The script `follow.js` uses the same functions.
"use strict";

const HIDDEN =
  /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u2800]/gu;
const visible = (text) =>
  String(text).replace(HIDDEN, (hidden) => (hidden === " " ? " " : `\\u{${hidden.codePointAt(0).toString(16)}}`));

const day = (at, timeZone) => new Intl.DateTimeFormat("sv", { dateStyle: "short", timeZone }).format(at);
const clock = (at, timeZone) => new Intl.DateTimeFormat("sv", { timeStyle: "short", timeZone }).format(at);
const date = (at) => new Intl.DateTimeFormat(document.documentElement.lang || "en", { dateStyle: "medium" }).format(at);

// Formats a timestamp, such as "10:31 (09:31 UTC)". The local time has a date if the date is not
// today's. The UTC time has a date if the date differs from the local date.
const moment = (text) => {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return visible(text);
  const today = day(at) === day(new Date());
  const here = `${today ? "" : `${date(at)}, `}${clock(at)}`;
  if (clock(at) === clock(at, "UTC") && day(at) === day(at, "UTC")) return `${here} UTC`;
  return `${here} (${day(at) === day(at, "UTC") ? "" : `${day(at, "UTC")} `}${clock(at, "UTC")} UTC)`;
};

// Converts the times below `root`, except a time that `follow.js` counts down.
const showTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]:not([data-left])")) {
    time.title = time.textContent;
    time.textContent = moment(time.dateTime);
  }
};

showTimes(document);
