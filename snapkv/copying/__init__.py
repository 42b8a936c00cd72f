"""Recording: a source's history is copied to where no compaction of the source can reach it.

`sources` bring steps (a commit's mark, and its changes), `targets` take each once and in order: an
archive, or another store (`store_target`, which makes commits by `store_commits`). `Recording`
moves steps from one to the other while both answer; `Recorder` opens them, and begins again after
failures that pass.

Importing: `import_prefix` commits keys that other programs wrote; `import_source` reads them.
"""
