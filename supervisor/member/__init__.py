"""The edge to brokers: what makes this process a member of the group.

Nothing of `pool/`, nothing of the process above it.

Pull. At most one pull outstanding per process queue, held by the broker until something arrives. The response body is
received straight into a slab of shared memory that only the supervisor writes. On the success path the supervisor
never decodes a message: it walks size, magic, queue offset, physical offset and sysFlag (an inner batch is one unit
that ends at its last offset); tag check, CRC and decompression are the worker's. The failure path may decode that one
record. The loop is uvloop's: it costs a fifth to a third less CPU by message than asyncio's own (its clock ticks in
milliseconds).
- *Flow control* by count, bytes and span counts unfinished messages only. There is no sleeping: a queue held back is
  looked at again when something of it finishes. One byte budget per supervisor (two on a machine have two) counts
  capacity held; a dispatched slice is never moved or reused before its report is in or its worker's death is
  certain. When bytes run short, slots are cut down in place to the units that a waiting run or a chunk still needs
  (pulling.py): a slow message holds up its own units, not those of all that was pulled with it.
- *A connection is never left unread.* A pull reserves its bytes before it is sent; a response that finds no room goes
  to a small fixed overflow, else it is read, dropped and pulled again after a completion, counted. Otherwise the
  send-back answers that would free slots wait after a pull response for ever. The slab is never smaller than two of
  the largest frames, and one that was dropped twice waits for the whole slab, so that every message gets through.
"""
