//! Lists the headers of requests and answers, one row each. From these rows come the lists for browsers (CORS), the known headers
//! for suggestions (`suggestions`), and the tables of `docs/PROTOCOLS.md`. The code that reads or writes a header decides the meaning of
//! its value.

/// A header, and its meaning in Markdown.
pub type Row = (&'static str, &'static str);

/// One row is one line: the name and its meaning.
macro_rules! headers {
    (ours { $($ours:literal, $ours_help:literal;)* } foreign { $($foreign:literal, $foreign_help:literal;)* }
     message { $($message:literal, $message_help:literal;)* } request { $($request:literal;)* }
     answer { $first:literal, $first_help:literal; $($answer:literal, $answer_help:literal;)* }) => {
        /// The publish headers with this server's prefix.
        pub(crate) const OURS: [&str; [$($ours),*].len()] = [$($ours),*];
        /// The other publish headers, whose names come from standards and other servers.
        pub(crate) const FOREIGN: [&str; [$($foreign),*].len()] = [$($foreign),*];
        /// All headers of a publish.
        pub const OF_PUBLISH: &[Row] = &[
            $(($message, $message_help),)* $(($ours, $ours_help),)* $(($foreign, $foreign_help),)*
        ];
        /// The headers of answers that scripts of other origins may read.
        pub const OF_ANSWERS: &[Row] = &[($first, $first_help), $(($answer, $answer_help),)*];
        /// The headers that scripts of other origins may send. The star stands for all headers except `Authorization`. Older
        /// browsers understand only names.
        pub(crate) const ALLOWED: &str = concat!(
            $($request, ", ",)* $($message, ", ",)* $($ours, ", ",)* $($foreign, ", ",)* "*"
        );
        pub(crate) const EXPOSED: &str = concat!($first $(, ", ", $answer)*);
    };
}

#[rustfmt::skip]
headers! {
    ours {
        "Crore-Key", "the message's [key](#latest-values): UTF-8, at most 255 bytes, no control characters. Subscribers read it as `Crore-Key` on long-poll, `key:` in `ws+meta.nchan`, `key` in envelopes; plain SSE and plain frames do not have it";
        "Crore-TTL", "whole seconds after which the message expires ([time to live](#time-to-live))";
        "Crore-Property", "`name=value`, repeatable, as far as the 64 header fields of a request allow: a user property for [MQTT](MQTT.md) clients. Envelopes have all of them in `properties`, long-poll as many as fit 2 KiB, in the same form";
        "Crore-Retain", "`true`: the message becomes the topic's [retained message](MQTT.md#retained-messages), which a new subscriber gets first. An empty message removes it";
    }
    foreign {
        "Idempotency-Key", "identifies this publish, so that it can be [retried](#retries)";
        "X-EventSource-Event", "the message's event name: `event:` on SSE, `Crore-Event` on long-poll. UTF-8, at most 255 bytes, no control characters, not beginning with `crore.`";
    }
    message {
        "Content-Type", "kept with the message; the answer to a long-poll has it again. UTF-8, at most 255 bytes, no control characters ([two types mean more](#content-types))";
        "Content-Encoding", "`identity` or none. A compressed body (`gzip`, `br`) is 415, in a batch too, because subscribers would get bytes that they cannot read. To publish compressed bytes, give them a type such as `application/gzip` and no `Content-Encoding`";
        "Accept", "`application/json` or `text/json`: info as JSON; anything else: text";
    }
    request {
        "Authorization"; "Cache-Control"; "If-None-Match"; "If-Modified-Since"; "Last-Event-ID"; "X-Requested-With"; "Pragma";
    }
    answer {
        "ETag", "the position of a long-poll, with a message or without: send it back as `If-None-Match`";
        "Last-Modified", "the second of the message";
        "Crore-Topic", "the topic, when there are several";
        "Crore-Event", "the event name";
        "Crore-Key", "the key";
        "Crore-Publisher", "the user who [published](#the-publisher-of-a-message) it";
        "Crore-TTL", "the seconds that are left of the message's time to live";
        "Crore-Property", "a user property, one in each header, 2 KiB of them at most so that the head stays small";
        "Crore-Properties-Left-Out", "the number of other user properties; [envelopes](#envelopes) have all";
        "Crore-Gap", "messages before this one, or before this position, are lost";
        "Crore-More", "a [history](#history) has further messages";
        "Retry-After", "the seconds to wait before the next try";
        "Idempotency-Replayed", "`true`: the publish was done before";
    }
}
