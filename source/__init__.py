"""Topics as Spark's tables and streams: `format("rocketmq")`.

`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("rocketmq")` (room `source/`), a Python
data source that PySpark finds after the installation. Nothing of a supervisor is needed or touched.

- Plan on the driver, pull on executors. The driver asks brokers for the ends of queues and makes ranges (queue,
  start, end); a task pulls one range with `client/` and gives Arrow batches (4,096 rows or 8 MiB of bodies). Up to four
  pulls go ahead of the one that is awaited, at guessed offsets (progress.py, `Window`). Connections are kept per Python
  worker process, which Spark uses again and again, and closed after a minute unused.
- A range decides its rows. Pulls ask for everything, tags are compared here. So a batch that Spark runs again has the
  same rows. The checkpoint (offsets by topic, broker, queue) is the truth of a stream; brokers hear the group's
  offset for lag tools only, when the next batch is looked for, because then the last one is complete.
- Queues that appear enter the checkpoint at their first offset, or where the group or the options say (`newQueues`), with
  nothing read yet, so that a replay begins at the same place. Queues that no route names stay where they are until they
  come back; so do those whose broker leaves the route while it is asked (looking.py, AwayError).
- Data loss is an offset that is not there: below the first, above the end, or missing in between (queue offsets have
  no gaps). It is asked for again first, then it is an error, or with `failOnDataLoss=false` a line in the log. Only a
  master's word proves it: what a replica lacks is waited for, and is an unreachable broker in the end, never a loss.
- A queue that is not what was read any more moves the stream back with no row in that batch (positions.py, `known_ends`); the
  next batches read from there, within their limits. It is known by its mark in the checkpoint, offset and store time of the
  last message that was read (marks.py): a topic made anew is read from its first message, and where a broker's crash or
  failover cost a queue its end, reading goes on at the first message stored after the mark.
- A planned batch that another process runs again is compared with its marks first. What is other messages by now has no
  row in it; the next batch goes back and reads these.
- The first batch of a stream that begins where another look may not (latest, group, a time) is empty: Spark keeps where a
  batch ends, and not where the first one begins, so that end is what fixes the beginning. One that begins at the earliest
  is not: it is an error when it is run again and a queue of its end is away.
- Times are exact. A broker's search is taken as a hint and the neighbours are looked at (searching.py): 4.9 answers
  with the closest message, before or after.
- Limits of a batch are shared among queues by what each has to read, at least one offset each, and never more than
  the limit; Kafka's source may exceed it. `minPartitions` cuts the longest ranges.
- No predicate is pushed down: Spark would keep the narrowed plan for every other use of the DataFrame (batch_reader.py).
  Options choose topics, queues, offsets and times; `where` filters the rows that were read.
- Writing is at least once. SPARK_ROW_KEY, made of query or job, batch, partition and what the row says, is the same when a
  batch is written again (outgoing_rows.py). Tasks learn query and batch from Spark's local properties, as a streaming writer
  is not told. Rows with a sharding key or queue id are sent one after the other in each queue (sending.py).
- A stream moves offsets of a group that nobody consumes by: not of one with members, nor, unless it is told to, of the one
  at whose offsets it begins. Consumers would go on from there.
- Pulls are in the name of TOOLS_CONSUMER, which brokers know; so a read leaves no group behind, and does not take
  away an operator's reset that is meant for a living consumer. A group that is reported to and never had a member
  says hello and goodbye once, as lag tools know a group by its retry topic.
"""
