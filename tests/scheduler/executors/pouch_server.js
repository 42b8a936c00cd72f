// CouchDB's interface of PouchDB databases in memory: what a sink uses, and what its tests ask.
"use strict";
const http = require("http");
const PouchDB = require("pouchdb-core").plugin(require("pouchdb-adapter-memory"));

const databases = new Map();
const locals = new Map();

class Missing extends Error {
  constructor() {
    super("Database does not exist.");
    Object.assign(this, { status: 404, name: "not_found" });
  }
}

function database(name) {
  if (!databases.has(name)) throw new Missing();
  return databases.get(name);
}

async function putLocal(name, id, doc) {
  const stored = await database(name).put({ ...doc, _id: id });
  locals.get(name).add(id);
  return stored;
}

async function localDocs(name) {
  const docs = [...locals.get(name)].map((id) => database(name).get(id));
  return { rows: (await Promise.all(docs)).map((doc) => ({ id: doc._id, doc })) };
}

async function answer(method, path, query, body) {
  const [name, ...rest] = path;
  const what = rest.join("/");
  const flags = Object.fromEntries(query.map(([key, value]) => [key, value === "true"]));
  if (method === "PUT" && what === "") {
    if (databases.has(name)) return [412, { error: "file_exists" }];
    databases.set(name, new PouchDB(name, { adapter: "memory", revs_limit: 1000 }));
    locals.set(name, new Set());
    return [201, { ok: true }];
  }
  const db = database(name);
  if (what === "") return [200, await db.info()];
  if (method === "PUT" && rest[0] === "_local") return [201, await putLocal(name, what, body)];
  if (what === "_local_docs") return [200, await localDocs(name)];
  if (what === "_all_docs") return [200, await db.allDocs({ ...flags, ...body })];
  if (what === "_bulk_docs") {
    const { docs, ...options } = body;
    return [201, await db.bulkDocs(docs, options)];
  }
  if (what === "_changes") return [200, { last_seq: (await db.info()).update_seq }];
  if (method === "GET" && query.some(([key]) => key === "open_revs")) {
    return [200, await db.get(what, { open_revs: "all", revs: true })];
  }
  if (method === "GET") return [200, await db.get(what)];
  return [405, { error: "method_not_allowed" }];
}

const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", async () => {
    const url = new URL(request.url, "http://localhost");
    const path = url.pathname.slice(1).split("/").filter(Boolean).map(decodeURIComponent);
    let status, value;
    try {
      const body = parts.length ? JSON.parse(Buffer.concat(parts).toString()) : {};
      [status, value] = await answer(request.method, path, [...url.searchParams], body);
    } catch (error) {
      status = error.status || 500;
      value = { error: error.name, reason: error.message };
    }
    response.writeHead(status, { "Content-Type": "application/json" });
    response.end(JSON.stringify(value));
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
