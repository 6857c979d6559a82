//! The parts of the memory account. Each part is one purpose for which the server holds bytes for clients.

use crate::base::labels::labels;

labels! {
    /// A part of the memory account.
    pub enum MemoryPart {
        Received, "received", "received bytes that wait for more: requests, frames, packets";
        Outboxes, "outboxes", "bytes that sockets refused";
        KernelBuffers, "kernel_buffers", "what the kernel holds for clients that have taken nothing for two seconds; the process does not hold it";
        Messages, "messages", "large messages that are no longer in a log, and are still being written or waited for";
        Turns, "turns", "turns that shards have written for each other and for themselves, and the answers that homes still owe";
        Connections, "states", "responses that wait for homes, and state that few connections need: lists, filters, aliases, unacknowledged messages, addresses behind proxies";
        Sessions, "absent_sessions", "MQTT sessions whose clients are away";
        Subscriptions, "subscriptions", "what shards remember of subscriptions: filters, groups, whose messages are kept, and losses for readers by filter";
        Deltas, "deltas", "latest messages of topics with `delta` subscriptions (Centrifugo's protocol), and their differences";
        Presence, "presence", "members of topics and their watchers, where `rule.presence` is set";
        Answers, "answers", "what recognises retries: first answers to idempotency keys, and packet ids of QoS 2 messages";
        Credentials, "credentials", "tokens and passwords that wait to be verified, and calls that wait for a backend";
        ClientLog, "client_log", "addresses and client ids of connections, for the log of clients at `debug`";
        Tls, "tls", "TLS handshakes and incomplete records";
    }
}
