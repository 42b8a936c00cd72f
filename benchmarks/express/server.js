// express-pouchdb on LevelDB in a folder: `node server.js FOLDER sync|nosync`; prints its port.
const leveldown = require('leveldown')
const PouchDB = require('pouchdb-core')
  .plugin(require('pouchdb-adapter-leveldb'))
  .plugin(require('pouchdb-adapter-http'))
  .plugin(require('pouchdb-mapreduce'))
  .plugin(require('pouchdb-replication'))

const [folder, durability] = process.argv.slice(2)
if (durability === 'sync') {
  // PouchDB never asks LevelDB to wait for the disk: so every batch does here.
  const batch = leveldown.prototype._batch
  leveldown.prototype._batch = function (operations, options, callback) {
    batch.call(this, operations, { ...options, sync: true }, callback)
  }
}
const app = require('express')()
app.use(require('express-pouchdb')(PouchDB.defaults({ prefix: `${folder}/` }), {
  mode: 'minimumForPouchDB',
  inMemoryConfig: true
}))
const server = app.listen(0, '127.0.0.1', () => console.log(server.address().port))
