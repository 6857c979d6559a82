//! Tests the server's HTTP, SSE and WebSocket interface over raw sockets, against its documentation and the RFCs.
//!
//! A test expects an exact value only if a text fixes it: RFC 9110, 9112, 6455, 7692, the HTML standard's event streams, Nchan's
//! documentation, or the project's own. The clients here are written from those texts and share no code with the server.

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod admission;
mod bodies;
mod bounds;
mod branches;
mod budget;
mod caches;
mod chaos;
mod checkpoints;
mod clock;
mod cross_site;
mod deflate;
mod delete;
mod directory;
mod durable;
mod failing_disk;
mod fairness;
mod filters;
mod foreign_forms;
mod framing;
mod history;
mod hostile;
mod idempotency;
mod interest;
mod latest;
mod life;
mod longpoll;
mod mounted;
mod names;
mod origins;
mod parameters;
mod progress;
mod proxies;
mod publish;
mod purge;
mod readable;
mod refusals;
mod requests;
mod returns;
mod several;
mod shares;
mod slow;
mod small_disk;
mod sse;
mod stalled;
mod standards;
mod tool;
mod ttl;
mod websocket;
mod ws_violations;
