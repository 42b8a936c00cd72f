// The live view: commits as they happen, newest first. Everything is added as text, never as HTML.
"use strict";

(() => {
  const SHOWN_MAX = 200;
  const list = document.getElementById("live");
  const state = document.getElementById("live-state");
  const button = document.getElementById("live-pause");
  if (!list || !window.EventSource) return;

  let paused = false, dropped = 0;
  const held = [];

  function made(name, kind, text) {
    const found = document.createElement(name);
    if (kind) found.className = kind;
    if (text !== undefined) found.textContent = text;
    return found;
  }

  // Characters that do not print are shown as escapes, so that none turns the direction of text.
  function visible(text) {
    return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (char) => {
      const code = char.codePointAt(0);
      return code >= 0xdc80 && code <= 0xdcff
        ? `\\x${(code - 0xdc00).toString(16)}`
        : `\\u{${code.toString(16)}}`;
    });
  }

  // Links keep the prefix and the zone; as they are, since not every prefix is text.
  const shared = location.search.slice(1).split("&").filter((each) => /^(prefix|tz|members?)=/.test(each));

  function urlOf(path, fields) {
    const named = Object.entries(fields).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    return `${path}?${[...named, ...shared].join("&")}`;
  }

  function keysOf(commit, several) {
    const names = made("div", "names");
    for (const { key, size, revision } of commit.keys) {
      const each = made("span"), name = made("code", "", visible(key).slice(0, 300));
      each.append(made("span", size === null ? "sign del" : "sign mod", size === null ? "−" : "="), " ");
      if (several) {
        const link = made("a");
        link.href = urlOf("/commit", { at: `rev:${revision}` });
        link.append(name);
        each.append(link);
      } else each.append(name);
      names.append(each);
    }
    if (commit.more) names.append(made("span", "dim", `and ${commit.more} more`));
    return names;
  }

  // A tick stamps all writes of other programs since the last one: each has a page of its own.
  function commitItem(commit) {
    const item = made("li"), what = made("div", "what");
    const observed = list.dataset.observed === "1", several = observed && commit.first < commit.revision;
    const name = several ? `Revisions ${commit.first} to ${commit.revision}` : `Revision ${commit.revision}`;
    const link = made("a", "title", visible(commit.note || name));
    link.href = several
      ? urlOf("/changes", { from: `rev:${commit.first - 1}`, at: `rev:${commit.revision}` })
      : urlOf("/commit", { at: observed ? `rev:${commit.revision}` : commit.timestamp });
    what.append(link, keysOf(commit, several));
    const when = made("div", "when"), time = made("time", "", commit.time.slice(0, 23).replace("T", " "));
    time.dateTime = commit.time;
    when.append(time, made("span", "dim", `rev ${commit.revision}`));
    item.append(what, made("div", "who", visible(commit.writer || "")), when);
    item.append(made("div", "n counts", String(commit.keys.length + commit.more)));
    return item;
  }

  function add(item) {
    if (paused) {
      held.push(item);
      if (held.length > SHOWN_MAX) {
        held.shift();
        dropped += 1;
      }
      button.textContent = `Resume (${held.length + dropped})`;
      return;
    }
    list.prepend(item);
    window.snapkv.showLocal(item);
    while (list.children.length > SHOWN_MAX) list.lastElementChild.remove();
  }

  function gap(reason) {
    const item = made("li", "gap"), what = made("div", "what");
    what.append(made("strong", "", "Gap: "), visible(reason));
    item.append(what);
    return item;
  }

  window.snapkv.events(
    list.dataset.url,
    { commit: (commit) => add(commitItem(commit)), gap: ({ reason }) => add(gap(reason)) },
    (text) => { state.textContent = visible(text); },
  );

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume" : "Pause";
    if (paused) return;
    const items = held.splice(0);
    if (dropped) items[0] = gap(`${dropped + 1} commits are left out: the pause was too long; open the list of commits`);
    dropped = 0;
    items.forEach(add);
  });
})();
