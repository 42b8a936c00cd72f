// The time bar by mouse and keys, local time, and following. All state is in the URL.
"use strict";

(() => {
  const root = document.documentElement;
  const DRAG_PX = 4, RENEW_MS = 500, RETRY_MS = 3000, AGO_MS = 1000;
  const ISO = /\d{4}-\d\d-\d\dT[\d:.]+Z/g;
  const TYPED = /^(\d{4}-\d\d-\d\d|today|yesterday)?(?:t|\s+)?(\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)?$/;

  function goTo(changes) {
    const url = new URL(location.href);
    for (const name of ["after", "older", "follow"]) url.searchParams.delete(name);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    location.assign(url);
  }

  // --- local time ---

  function pad(number, length = 2) {
    return String(number).padStart(length, "0");
  }

  function localText(date, form) {
    const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    const parts = [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => pad(n));
    if (form === "minute") return `${day} ${parts.slice(0, 2).join(":")}`;
    if (form === "second") return parts.join(":");
    if (form === "clock") return parts.slice(0, 2).join(":");
    if (form === "day") return day;
    const ms = date.getMilliseconds();
    if (form === "ms") return `${parts.join(":")}.${pad(ms, 3)}`;
    return `${day} ${parts.join(":")}${ms ? `.${pad(ms, 3)}` : ""}`;
  }

  function offsetText(date) {
    const minutes = -date.getTimezoneOffset(), size = Math.abs(minutes);
    return `${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
  }

  const local = () => root.dataset.tz === "local";
  const exact = (date) => `${localText(date)} ${offsetText(date)}`;

  // The ticks of the axis move to times that are round here.
  function showAxis(axis) {
    const { start, end } = document.querySelector("svg.bar").dataset, step = Number(axis.dataset.step);
    for (const each of axis.querySelectorAll("text")) {
      const date = new Date(each.dataset.time), off = date.getTimezoneOffset() * 60000;
      date.setTime(date.getTime() + (off % step));
      const share = (date.getTime() - start) / (end - start);
      each.setAttribute("x", `${100 * share}%`);
      each.textContent = share >= 0 && share <= 1 ? localText(date, each.dataset.form) : "";
    }
  }

  function showLocal(within) {
    if (!local()) return;
    for (const each of within.querySelectorAll("time[datetime]")) {
      const date = new Date(each.dateTime);
      if (Number.isNaN(date.getTime())) continue;
      if (each.dataset.form !== "ago") each.textContent = localText(date, each.dataset.form);
      if (each.title) each.title = `${exact(date)}, ${each.title}`;
    }
    for (const each of within.querySelectorAll("svg.axis")) showAxis(each);
    const turned = (text) => text.replace(ISO, (found) => exact(new Date(found)));
    for (const each of within.querySelectorAll("svg.bar, svg.bar a")) {
      const label = each.getAttribute("aria-label");
      if (label) each.setAttribute("aria-label", turned(label));
    }
    for (const each of within.querySelectorAll("svg.bar title")) each.textContent = turned(each.textContent);
    const zone = within.querySelector("#zone");
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zone) zone.textContent = `${name}, now ${offsetText(new Date())}`;
  }

  // What a person types without an offset is in the zone that the page shows: a URL has UTC.
  function utcText(text) {
    const match = TYPED.exec(text.trim().toLowerCase());
    if (!match || !(match[1] || match[2])) return text;
    const day = new Date();
    if (match[1] === "yesterday") day.setDate(day.getDate() - 1);
    const named = /^\d/.test(match[1] || "") ? match[1] : localText(day).slice(0, 10);
    const date = new Date(`${named}T${(match[2] || "00:00").padStart(5, "0").replace(/^(\d):/, "0$1:")}`);
    return Number.isNaN(date.getTime()) ? text : date.toISOString();
  }

  function watchField() {
    const form = document.querySelector("form.goto");
    if (!form || !local()) return;
    form.addEventListener("submit", () => {
      for (const field of form.querySelectorAll("input[id]")) field.value = utcText(field.value);
    });
  }

  // --- how long ago times were, while the page is open; by the server's clock ---

  const OPENED_MS = Date.now();
  const UNITS = Object.entries({ years: 365 * 86400, months: 30 * 86400, d: 86400, h: 3600, min: 60, s: 1 });

  // As `ago_text` of the server.
  function agoText(seconds) {
    const found = UNITS.find(([name, size]) => seconds >= (name.length > 3 ? 2 : 1) * size);
    return found ? `${Math.floor(seconds / found[1])} ${found[0]} ago` : "just now";
  }

  function showAgo() {
    const now = Number(root.dataset.now) + Date.now() - OPENED_MS;
    for (const each of document.querySelectorAll("time[data-form=ago]")) {
      const text = agoText((now - new Date(each.dateTime)) / 1000);
      if (each.textContent !== text) each.textContent = text;
    }
  }

  // --- the bar: a click is a moment, a drag is a range ---

  let watching = new AbortController();

  function watchBar() {
    const bar = document.querySelector("svg.bar");
    if (!bar) return;
    const start = Number(bar.dataset.start), end = Number(bar.dataset.end);
    const drag = bar.querySelector(".drag");
    let from = null, moved = false;
    watching.abort();
    watching = new AbortController();
    const { signal } = watching;

    const part = (event) => {
      const box = bar.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    const iso = (share) => new Date(Math.round(start + share * (end - start))).toISOString();

    bar.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = { share: part(event), x: event.clientX };
      bar.dataset.held = "1";
      moved = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (from === null) return;
      if (!moved && Math.abs(event.clientX - from.x) < DRAG_PX) return;
      moved = true;
      const to = part(event);
      drag.setAttribute("x", 1000 * Math.min(from.share, to));
      drag.setAttribute("width", 1000 * Math.abs(to - from.share));
    }, { signal });
    window.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const first = from.share, last = part(event);
      from = null;
      delete bar.dataset.held;
      if (moved) goTo({ from: iso(Math.min(first, last)), at: iso(Math.max(first, last)) });
      else if (bar.contains(event.target)) {
        const bucket = event.target.closest("a.bucket");
        if (bucket) location.assign(bucket.getAttribute("href"));
        else goTo({ at: iso(last) });
      }
    }, { signal });
    window.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || from === null) return;
      from = null;
      delete bar.dataset.held;
      drag.setAttribute("width", 0);
    }, { signal });
    bar.addEventListener("click", (event) => event.preventDefault());
    bar.addEventListener("dragstart", (event) => event.preventDefault());
    rove([...bar.querySelectorAll("a.bucket")]);
  }

  // One stop for the Tab key; the arrows go from bucket to bucket, Enter opens one.
  function rove(buckets) {
    buckets.forEach((each, at) => {
      each.setAttribute("tabindex", at === buckets.length - 1 ? "0" : "-1");
      each.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buckets.length - 1 }[event.key];
        if (event.key === "Enter") {
          location.assign(each.getAttribute("href"));
        } else if (to !== undefined && buckets[to]) {
          event.preventDefault();
          each.setAttribute("tabindex", "-1");
          buckets[to].setAttribute("tabindex", "0");
          buckets[to].focus();
        }
      });
    });
  }

  // --- j and k: the commit before and after ---

  function watchKeys() {
    window.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, select, textarea")) return;
      const rel = { j: "prev", k: "next" }[event.key];
      const link = rel && document.querySelector(`a[rel=${rel}]`);
      if (link) link.click();
      if (event.key === "/") {
        event.preventDefault();
        document.getElementById("jump").focus();
      }
    });
  }

  // --- events: a server that sends none for now is asked again, from the last one on ---

  // `said(text)` is called with what the connection does.
  function events(address, handlers, said) {
    const url = new URL(address, location.origin);
    const source = new EventSource(url);
    let trouble = null;
    const say = () => said(trouble === null ? "following" : `no commits come now: ${trouble}`);
    source.addEventListener("open", () => { trouble = null; say(); });
    source.addEventListener("trouble", (event) => { trouble = JSON.parse(event.data).reason; say(); });
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return said("connecting again");
      said("the server does not take this page now; asking again");
      setTimeout(() => events(url, handlers, said), RETRY_MS);
    });
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        if (event.lastEventId) url.searchParams.set("since", event.lastEventId);
        handle(JSON.parse(event.data));
      });
    }
  }

  // --- following: the page is fetched again when something was committed ---

  // What a person does stays: what is typed, the focus, which rows are open.
  function kept(region) {
    const has = document.activeElement, inside = region.contains(has) && has !== region;
    return {
      fields: [...region.querySelectorAll("input[id]")]
        .filter((each) => each.value !== each.defaultValue || each === has)
        .map((each) => ({ id: each.id, value: each.value, from: each.selectionStart, to: each.selectionEnd })),
      rows: new Map([...region.querySelectorAll("details.row")].map((each) => [rowOf(each), each.open])),
      focus: inside ? { same: alike(has), id: has.id } : null,
    };
  }

  const rowOf = (row) => row.querySelector("summary .key")?.textContent;

  function alike(element) {
    const row = element.closest("details.row"), key = row && rowOf(row);
    const named = (each) => each.rel || (each.tagName === "SUMMARY" ? "" : each.textContent);
    return (each) => each.tagName === element.tagName && named(each) === named(element)
      && (!key || rowOf(each.closest("details.row") || each) === key);
  }

  function restored(region, { fields, rows, focus }) {
    for (const each of region.querySelectorAll("details.row")) {
      if (rows.has(rowOf(each))) each.open = rows.get(rowOf(each));
    }
    for (const { id, value } of fields) {
      const field = region.querySelector(`#${CSS.escape(id)}`);
      if (field) field.value = value;
    }
    if (!focus) return;
    const found = focus.id
      ? region.querySelector(`#${CSS.escape(focus.id)}`)
      : [...region.querySelectorAll("a, button, summary, input, select")].find(focus.same);
    (found || document.getElementById("content")).focus({ preventScroll: true });
    const field = fields.find(({ id }) => id === focus.id);
    if (found && field && field.from !== null) found.setSelectionRange(field.from, field.to);
  }

  function renew(found) {
    for (const selector of ["section.time", "main", "footer"]) {
      const now = document.querySelector(selector), then = found.querySelector(selector);
      if (!now || !then) continue;
      const state = kept(now);
      document.adoptNode(then);
      now.replaceWith(then);
      showLocal(then);
      restored(then, state);
    }
    watchBar();
    watchField();
  }

  function follow() {
    if (!root.dataset.follow || !window.EventSource) return;
    const url = new URL("/live/events", location.origin);
    const fields = new URL(location.href).searchParams;
    url.searchParams.set("since", root.dataset.follow);
    for (const name of ["prefix", "member"]) {
      if (fields.get(name)) url.searchParams.set(name, fields.get(name));
    }
    let waiting = false;
    const fetchAgain = async () => {
      waiting = false;
      if (document.querySelector("svg.bar[data-held]")) return changed();
      let answer = null;
      try {
        answer = await fetch(location.href);
        if (answer.ok) renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } catch { answer = null; }
      if (!answer || !answer.ok) changed(RETRY_MS);
    };
    const changed = (ms = RENEW_MS) => {
      if (waiting) return;
      waiting = true;
      setTimeout(fetchAgain, ms);
    };
    const state = document.getElementById("follow-state");
    const said = (text) => { state.textContent = text === "following" ? "" : text; };
    events(url, { commit: () => changed(), gap: () => changed() }, said);
  }

  // --- a restore: the words to type have the number of keys that are ticked ---

  function watchTicks() {
    const phrase = document.getElementById("phrase");
    if (!phrase) return;
    const ticks = [...document.querySelectorAll("input[name^=tick]")];
    const [verb, all] = phrase.textContent.split(" "), rest = Number(all) - ticks.length;
    const show = () => {
      const chosen = rest + ticks.filter((each) => each.checked).length;
      phrase.textContent = `${verb} ${chosen} ${chosen === 1 ? "key" : "keys"}`;
    };
    for (const each of ticks) each.addEventListener("change", show);
    show();
  }

  window.snapkv = { showLocal, events };
  showLocal(document);
  watchBar();
  watchField();
  watchKeys();
  watchTicks();
  follow();
  if (root.dataset.now) setInterval(showAgo, AGO_MS);
})();
