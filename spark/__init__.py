"""The loader process: sealed segments become batches of a Spark table, each record once.

Segments. Rows never pass through the supervisor: each worker appends to its own segment (Arrow stream). It seals the
segment by fsync and one rename: by rows, bytes or idle time, or when the supervisor asks because unsealed offsets reach
half the span. A thread does that while the worker runs messages and writes the next segment. A seal never splits a
message. What a dead worker had written is salvaged (the complete prefix), sealed, and counts as done. Key columns are
those of the queue that the record was pulled from (topic `%RETRY%group` for a retry), with the member id when
broadcasting; restored topic, origin message id and reconsumeTimes are columns of their own.

Facts. A message may leave no row: none was returned, or it was filtered, sent back or dead-lettered. The supervisor
seals such offsets as intervals per kind and queue beside the segments (`outcomes/*.facts`), before it sends an offset
that depends on them. When a report mixes messages with and without rows, the segment lists both. The loader takes facts
into the table's ledger, compressed, with the offsets that it loads. So every gap can be explained: `rocketcrew
reconcile` compares table, ledger, segments and brokers, and runs again what is missing. What was finished and is in no
facts, no segment and not in the table (a sealed segment vanished) is unexplained. A kill −9 loses the facts since the
last offset; the next start notes what the journal says of these few seconds as `recovered`, without rows.

Commit. The loader freezes a batch plan (id, segments, which offsets it takes from each), converts the chosen rows to
staged Parquet, and lets one Spark job write them to a folder that nobody reads. The loaded set (intervals per group,
topic, broker and queue; at most 16 for each, see accounts.py and docs/table-records.md) is put into that folder. One
rename to `batch_id=<n>` makes data and loaded set visible together: the rename is the commit, and of two loaders only
one can have it. A done mark follows, then the segments are deleted. Rows that are in the table already are dropped and
counted. That a segment brings nothing new is a warning, once, with the remedy (reports.py).

When a batch is due. When so many rows wait that the commit's fixed cost (learnt, 0.02 to 1.7 s) is below a fifth of the
whole; or by age; or by bytes, before these stop pulling.

Gaps. So that the loaded set stays small, the supervisor notes in the same files of facts what is `settled` (up to a
queue's committable offset). The loader reads them *before* it lists segments, and adds them to the set; what it cannot
add yet, it leaves in a file of its own. What is settled and neither loaded, nor in a segment (with rows or without),
nor in `bad/`, nor in facts is a *gap* (gaps.py): a sealed segment was lost. The loader stops and names queue and
offsets; or, with `spark.on_gap = leave`, it leaves them out of the set, so that `reconcile` names them and can run them
again. Each staging folder answers for what its own supervisors settled; holes between the ranges of two members are no
gaps, since only both folders together show which of them has what. Gaps are not looked for in a queue that has begun
anew, while an unreadable file is in `bad/`, and at the first batch of a new table that is filled from an old folder.

Targets. A Delta table's commit carries an application transaction (its version is the batch's number) and names the
plan whose state file counts. Functions and other formats keep the loaded set in a ledger of their own, and may get a
batch twice under one number; a second loader of such a target is refused on this host, by a lock that no TMPDIR hides.
Supervisors that fill one target run with `spark.load = false`, and one loader has all of their folders (`load --staging
A --staging B`), one after the other, with one ledger (`ledger_of`). A queue whose offsets begin anew (its topic made
again, or `reset --reprocess`) has an *epoch*: part of the key in the loaded set, a column `_epoch` in the table.
`rocketcrew compact` writes small files anew beside the table and exchanges both folders by one system call, between two
batches; who has listed the old one's files finds them gone.

Processes. How far a batch is, and the time left, is logged and in `loader.json` every few seconds (progress.py). A JVM
that does not answer, does not start or does not stop is killed (pulse.py); the loader then ends and is started anew.
With `sc://` there is no JVM of ours (connect.py): the server reads staged files by path, or gets the rows with the
query.
"""
