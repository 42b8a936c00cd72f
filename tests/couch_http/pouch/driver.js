// A PouchDB that does what it is told: a JSON object on each line in, its answer on a line out.
"use strict";
const readline = require("readline");
const PouchDB = require("pouchdb-core")
  .plugin(require("pouchdb-adapter-http"))
  .plugin(require("pouchdb-adapter-memory"))
  .plugin(require("pouchdb-replication"));

const local = new PouchDB("local", { adapter: "memory" });
const heard = [];
const denied = [];
let following = null;

// PouchDB leaves a promise behind when its server goes away; Node.js would end here.
process.on("unhandledRejection", (error) => heard.push(String(error)));

// Resolves with the first of these events for which `holds` is true, now or later.
function until(emitter, event, holds) {
  return new Promise((resolve) => {
    const listener = (value) => {
      if (holds(value)) {
        emitter.removeListener(event, listener);
        resolve(value);
      }
    };
    emitter.on(event, listener);
  });
}

function summary(done) {
  const { docs_read, docs_written, doc_write_failures, last_seq, ok, errors } = done;
  return { ok, docs_read, docs_written, doc_write_failures, last_seq, errors };
}

const does = {
  put: ({ doc }) => local.put(doc),
  bulk: ({ docs, options }) => local.bulkDocs(docs, options),
  get: ({ id, options }) => local.get(id, options || {}),
  remove: async ({ id }) => local.remove(await local.get(id)),
  all: async () => (await local.allDocs({ include_docs: true })).rows.map((row) => row.doc),
  pull: async ({ url, options }) => summary(await local.replicate.from(url, options)),
  push: async ({ url, options }) => summary(await local.replicate.to(url, options)),
  info: ({ url }) => new PouchDB(url).info(),
  remoteGet: ({ url, id, options }) => new PouchDB(url).get(id, options || {}),
  remotePut: ({ url, doc }) => new PouchDB(url).put(doc),
  remoteChanges: ({ url, options }) => new PouchDB(url).changes(options),
  remoteAll: ({ url, options }) => new PouchDB(url).allDocs(options),
  destroy: ({ url }) => new PouchDB(url).destroy(),

  // Keeps the two in step until `stop`; connects again by itself.
  follow: ({ url }) => {
    const back_off_function = () => 100;
    following = local.sync(url, { live: true, retry: true, back_off_function, heartbeat: 1000 });
    following.on("error", (error) => heard.push(String(error)));
    following.catch(() => {});
    return {};
  },
  // Pushes live until `stop`; what the server refuses for good is `denied`.
  pushLive: ({ url }) => {
    const back_off_function = () => 100;
    following = local.replicate.to(url, { live: true, retry: true, back_off_function });
    following.on("denied", (error) => denied.push(error.id));
    following.on("error", (error) => heard.push(String(error)));
    following.catch(() => {});
    return {};
  },
  denied: () => denied,
  stop: () => {
    following.cancel();
    return { heard };
  },
  // Waits until the local document has this value in `n`.
  arrives: async ({ id, n }) => {
    const feed = local.changes({ since: 0, live: true, include_docs: true });
    const change = await until(feed, "change", (row) => row.id === id && row.doc.n === n);
    feed.cancel();
    return change.doc;
  },
  // Hears changes of the remote database live, until one of this document.
  listen: async ({ url, id }) => {
    const rows = [];
    const feed = new PouchDB(url).changes({ since: "now", live: true, include_docs: true });
    await until(feed, "change", (row) => rows.push(row) && row.id === id);
    feed.cancel();
    return rows;
  },
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const { call, what, ...more } = JSON.parse(line);
  let answer;
  try {
    answer = { call, value: await does[what](more) };
  } catch (error) {
    answer = { call, error: { status: error.status, name: error.name, message: error.message } };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
