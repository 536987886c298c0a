"""What every user of a cluster needs: name servers, routes, connections, requests, heartbeats, producers, admin calls.

Whatever a cluster wants of its clients is in one frozen value, `client/access.py`, made from `[cluster]` and
`[security]` by `supervisor/member/access.py`. The member, producers, and every command take it in place of a list of
name servers, so that none of them can forget a part.

- Name servers: a list (`cluster.name_servers`, `NAMESRV_ADDR`), shuffled once, kept to while it answers, gone through
  in a circle when it does not; or an HTTP address server (`cluster.namesrv_domain`), asked at the start, every two
  minutes, and when no name server answers.
- Routes are renewed every 30 s and asked for at once when one is missing. A member keeps them in `routes.json` in its
  slot (versioned, at most 16 MiB, replaced by a rename), so that a start finds the brokers while every name server is
  away. A broker that no route names any more gets no heartbeats, and its connection ends when its requests are
  answered.
- A slave is read when the master says so, and while there is no master: then offsets are committed there too, and
  failed messages are retried locally, since slaves accept no send-back. Commits inside pulls go to the master only.
- Heartbeats go to masters and slaves every 30 s, at once when subscriptions change, and at once on every new
  connection, because a broker forgets us with the old one. SQL filters are checked with a broker before the first
  (46). A member that every broker refuses does not start. At the stop every broker is sent, consumer and producer
  group in one request.
- Every request passes `client/request_rules.py` before it leaves: the header fields of a namespace of the second
  version, then the ACL signature over all fields and the body; the port of the vip channel where that is on. A
  request that is sent again is signed again.
- TLS wraps the same connections; bodies still land in the slab, one copy later. Failures are one line that names the
  setting to look at.
- Namespaces of the first version are part of the names: inside, group and topics are the brokers' (also in slots,
  journals and key columns of results, so that two namespaces never mix); handlers, send results, hooks and `lag` show
  the plain ones.
- GO_AWAY from a 5.x server that shuts down: the request goes out once more on a new connection, and the old one ends
  when the rest of its requests are answered. We announce V5_5_0, as only clients above V5_3_1 are notified.
"""
