//! Finds what a client probably meant by an unknown name: a name that is nearly one of this server's, or one that other servers
//! use.
//!
//! Each search takes a bounded number of steps, whatever a client sends, because only short names are compared.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::ndjson;

use crate::protocol::http::headers::{FOREIGN, OURS as HEADERS};

/// The prefix of this server's headers.
const PREFIX: &[u8] = b"crore-";
/// A header of subscriptions that programs, not libraries, often write.
const POSITION: &str = "Last-Event-ID";
/// The maximum number of letters of a header that may be added, missing or different.
const HEADER_EDITS_MAX: u32 = 2;
/// A property of a publish, and the names that people use for it.
struct ForeignName {
    /// Lower case letters only, without `X-`.
    names: &'static [&'static str],
    /// How to write it in a request.
    in_request: &'static str,
    /// How to write it in a line of a batch: the name of a field, or else a description.
    in_batch_line: &'static str,
    /// Whether a header with such a name could mean nothing else.
    is_unambiguous: bool,
}

#[rustfmt::skip]
static FOREIGN_NAMES: [ForeignName; 12] = [
    ForeignName { names: &["ttl", "natsttl", "messagettl", "timetolive"], in_request: "the header Crore-TTL (whole seconds)", in_batch_line: "ttl_s", is_unambiguous: true },
    ForeignName { names: &["expiry", "expires", "expire", "expiration", "maxage", "ttlseconds"], in_request: "the header Crore-TTL (whole seconds)", in_batch_line: "ttl_s", is_unambiguous: false },
    ForeignName { names: &["retain", "retained"], in_request: "the header Crore-Retain (true)", in_batch_line: "the header Crore-Retain (true) of a message that is published by itself, by POST /pub/{topic}", is_unambiguous: true },
    ForeignName { names: &["natsmsgid"], in_request: "the header Idempotency-Key", in_batch_line: "idempotency_key", is_unambiguous: true },
    ForeignName { names: &["idempotencykey", "id", "msgid", "messageid", "eventid"], in_request: "the header Idempotency-Key", in_batch_line: "idempotency_key", is_unambiguous: false },
    ForeignName { names: &["key", "messagekey"], in_request: "the header Crore-Key", in_batch_line: "key", is_unambiguous: true },
    ForeignName { names: &["event", "eventname", "eventsourceevent"], in_request: "the header X-EventSource-Event", in_batch_line: "event", is_unambiguous: true },
    ForeignName { names: &["eventtype"], in_request: "the header X-EventSource-Event", in_batch_line: "event", is_unambiguous: false },
    ForeignName { names: &["property", "properties", "header", "headers"], in_request: "the header Crore-Property (name=value)", in_batch_line: "the header Crore-Property (name=value) of a message that is published by itself, by POST /pub/{topic}", is_unambiguous: false },
    ForeignName { names: &["accesstoken", "auth", "authorization", "jwt", "apikey"], in_request: "the header Authorization (Bearer TOKEN)", in_batch_line: "the header Authorization (Bearer TOKEN) of the batch", is_unambiguous: false },
    ForeignName { names: &["data", "message", "msg", "body", "payload", "text", "value"], in_request: "the body of the request", in_batch_line: "data", is_unambiguous: false },
    ForeignName { names: &["subject", "channel", "destination"], in_request: "the path (/pub/TOPIC)", in_batch_line: "topic", is_unambiguous: false },
];
/// The longest name that may be a mistake, in letters.
const NAME_LETTERS_MAX: usize = 16;
/// The maximum number of bytes of a value that an answer repeats.
const SHOWN_BYTES_MAX: usize = 40;

/// A client's text in an answer: short, and in printable ASCII.
pub(crate) fn quoted(text: &[u8]) -> String {
    let shown = &text[..text.len().min(SHOWN_BYTES_MAX)];
    let ellipsis = if shown.len() < text.len() { "..." } else { "" };
    format!("`{}{ellipsis}`", shown.escape_ascii())
}

/// Whether the header has this server's prefix and is not read. The known ones are read only if a single message is published.
pub(crate) fn is_unread_header(name: &str, publishes: bool) -> bool {
    without_prefix(name).len() < name.len() && !(publishes && is_of_message(name))
}

/// The name of a header without this server's prefix.
fn without_prefix(name: &str) -> &str {
    let begin = name.get(..PREFIX.len());
    match begin.is_some_and(|begin| begin.as_bytes().eq_ignore_ascii_case(PREFIX)) {
        true => &name[PREFIX.len()..],
        false => name,
    }
}

/// Whether this is a header of a publish of a single message.
pub(crate) fn is_of_message(name: &str) -> bool {
    let mut all = HEADERS.iter().chain(&FOREIGN);
    all.any(|known| known.eq_ignore_ascii_case(name))
}

/// Why a header of a message has no effect on a batch, and how to write it there.
pub(crate) fn hint_for_batch(name: &str) -> Option<String> {
    if !is_of_message(name) {
        return None;
    }
    let foreign = find_foreign_name(without_prefix(name).as_bytes())?;
    let how = match ndjson::FIELDS.contains(&foreign.in_batch_line) {
        true => format!("each line has its own {}", foreign.in_batch_line),
        false => format!("write it as {}", foreign.in_batch_line),
    };
    let name = quoted(name.as_bytes());
    Some(format!("the header {name} means nothing on a batch: {how}"))
}

/// The end of the text about an unknown field in a line of a batch.
pub(crate) fn hint_for_line(name: &[u8]) -> String {
    if let Some(foreign) = find_foreign_name(name) {
        return format!("; write it as {}", foreign.in_batch_line);
    }
    let name = letters(name);
    let is_near = |field: &&&str| is_within(&name, &letters(field.as_bytes()), 1);
    let near = ndjson::FIELDS.iter().find(is_near);
    near.map_or(String::new(), |field| format!("; did you mean {field}?"))
}

/// Whether a header of a publish is nearly a known one, or has a name that is used elsewhere.
pub(crate) fn is_wrong_header(name: &str) -> bool {
    match name.as_bytes() {
        // Every request has some headers that begin so, and they are no mistakes.
        [b'c' | b'C', b'o' | b'O', b'n' | b'N', ..] => false,
        [b'c' | b'C' | b'i' | b'I' | b'x' | b'X', ..] => {
            nearest_header(name).is_some() || is_foreign_header(name)
        }
        [
            b'e' | b'E' | b'k' | b'K' | b'm' | b'M' | b'n' | b'N' | b'r' | b'R' | b't' | b'T',
            ..,
        ] => is_foreign_header(name),
        _ => false,
    }
}

fn is_foreign_header(name: &str) -> bool {
    !is_of_message(name) && find_foreign_name(name.as_bytes()).is_some_and(|it| it.is_unambiguous)
}

/// The header of a publish that this name, with or without `X-`, nearly is. `None` if it is that header.
fn nearest_header(name: &str) -> Option<&'static str> {
    if is_of_message(name) {
        return None;
    }
    let name = name.as_bytes();
    let bare = without_x(name);
    let is_near = |header: &&&str| {
        let header = header.as_bytes();
        // Few people mistype the first letter, and most headers begin with another one.
        let has_first_letter = |name: &&[u8]| {
            name.first()
                .is_some_and(|letter| letter.eq_ignore_ascii_case(&header[0]))
        };
        let mut names = [name, bare].into_iter().filter(has_first_letter);
        names.any(|name| is_within(name, header, HEADER_EDITS_MAX))
    };
    HEADERS.iter().chain(&FOREIGN).find(is_near).copied()
}

/// The name without `X-`.
fn without_x(name: &[u8]) -> &[u8] {
    match name {
        [b'x' | b'X', b'-', rest @ ..] => rest,
        name => name,
    }
}

/// Whether a header of a subscription is nearly `Last-Event-ID`, and is not.
pub(crate) fn is_wrong_position(name: &str) -> bool {
    let is_nearly_position = || is_within(name.as_bytes(), POSITION.as_bytes(), HEADER_EDITS_MAX);
    matches!(name.as_bytes(), [b'l' | b'L', ..])
        && !name.eq_ignore_ascii_case(POSITION)
        && is_nearly_position()
}

/// The text about a header that has no meaning, with the header that was probably meant.
pub(crate) fn header_words(name: &str) -> String {
    if is_wrong_position(name) {
        let name = quoted(name.as_bytes());
        return format!("the header {name} means nothing; did you mean {POSITION}?");
    }
    if is_of_message(name) {
        let name = quoted(name.as_bytes());
        return format!(
            "the header {name} means nothing here: a message that is published by itself (POST /pub/{{topic}}) has it"
        );
    }
    let hint = match (
        nearest_header(name),
        find_foreign_name(without_prefix(name).as_bytes()),
    ) {
        (Some(near), _) => format!("; did you mean {near}?"),
        (None, Some(foreign)) => format!("; write it as {}", foreign.in_request),
        (None, None) => String::new(),
    };
    format!(
        "the header {} means nothing; a publish has {}, {}{hint}",
        quoted(name.as_bytes()),
        HEADERS.join(", "),
        listed(&FOREIGN)
    )
}

/// How a request that publishes writes what has this name elsewhere.
pub(crate) fn hint_for_request(name: &[u8]) -> Option<&'static str> {
    find_foreign_name(name).map(|foreign| foreign.in_request)
}

fn find_foreign_name(name: &[u8]) -> Option<&'static ForeignName> {
    let name = without_x(name);
    FOREIGN_NAMES
        .iter()
        .find(|foreign| is_one_of_names(name, foreign.names))
}

/// Whether a name is one of these, comparing only letters.
pub(crate) fn is_one_of_names(name: &[u8], names: &[&str]) -> bool {
    names.iter().any(|known| of_letters(name).eq(known.bytes()))
}

/// The names as an English list.
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).into(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// A name without differences in case, hyphens and underscores.
fn of_letters(name: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let letters = name.iter().filter(|b| !matches!(b, b'-' | b'_'));
    letters.map(u8::to_ascii_lowercase)
}

/// The letters of a name, cut to the longest one that may be a mistake.
pub(crate) fn letters(name: &[u8]) -> Vec<u8> {
    of_letters(name).take(NAME_LETTERS_MAX).collect()
}

/// Whether two names differ in at most `edits` letters that are added, missing, different or swapped with their neighbour. Ignores
/// case.
pub(crate) fn is_within(one: &[u8], other: &[u8], edits: u32) -> bool {
    let pairs = one.iter().zip(other);
    let common = pairs.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let (one, other) = (&one[common..], &other[common..]);
    let length_difference = one.len().abs_diff(other.len());
    let ([a, one_left @ ..], [b, other_left @ ..]) = (one, other) else {
        return length_difference <= edits as usize;
    };
    if edits == 0 || length_difference > edits as usize {
        return false;
    }
    let edits_left = edits - 1;
    let swapped = || match (one_left, other_left) {
        ([c, one @ ..], [d, other @ ..]) => {
            a.eq_ignore_ascii_case(d)
                && b.eq_ignore_ascii_case(c)
                && is_within(one, other, edits_left)
        }
        _ => false,
    };
    is_within(one_left, other_left, edits_left)
        || is_within(one_left, other, edits_left)
        || is_within(one, other_left, edits_left)
        || swapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_begin_as_ours_are_known() {
        for name in [
            "crore-key",
            "CRORE-TTL",
            "Crore-Property",
            "Crore-Retain",
            "Crore",
            "X-Crore",
            "Cror\u{e9}-x",
        ] {
            assert!(!is_unread_header(name, true), "{name}");
        }
        for name in [
            "Crore-Event",
            "crore-keys",
            "CRORE-",
            "Crore-Idempotency-Key",
        ] {
            assert!(is_unread_header(name, true), "{name}");
        }
        assert!(is_unread_header("Crore-TTL", false), "nothing is published");
    }

    #[test]
    fn misspelt_header_gets_a_suggestion() {
        for (slip, words) in [
            ("Idempotency-Kye", "did you mean Idempotency-Key?"),
            ("idempotencykey", "did you mean Idempotency-Key?"),
            ("X-Idempotency-Key", "did you mean Idempotency-Key?"),
            ("Idempotence-Key", "did you mean Idempotency-Key?"),
            ("Core-Key", "did you mean Crore-Key?"),
            ("Corre-TTL", "did you mean Crore-TTL?"),
            ("X-Crore-Key", "did you mean Crore-Key?"),
            ("X-EventSource-Events", "did you mean X-EventSource-Event?"),
            ("TTL", "write it as the header Crore-TTL"),
            ("ttl", "write it as the header Crore-TTL"),
            ("Nats-Msg-Id", "write it as the header Idempotency-Key"),
            ("Retain", "write it as the header Crore-Retain"),
            ("X-Retain", "write it as the header Crore-Retain"),
            ("Event", "write it as the header X-EventSource-Event"),
            ("X-Event", "write it as the header X-EventSource-Event"),
            ("Event-Name", "write it as the header X-EventSource-Event"),
            (
                "EventSource-Event",
                "write it as the header X-EventSource-Event",
            ),
            ("Key", "write it as the header Crore-Key"),
            ("x-key", "write it as the header Crore-Key"),
            ("X-Message-Key", "write it as the header Crore-Key"),
        ] {
            assert!(is_wrong_header(slip), "{slip}");
            assert!(header_words(slip).contains(words), "{}", header_words(slip));
        }
    }

    #[test]
    fn unknown_crore_header_gets_a_suggestion() {
        for (ours, words) in [
            ("Crore-Event", "write it as the header X-EventSource-Event"),
            ("Crore-Keys", "did you mean Crore-Key?"),
            (
                "Crore-Idempotency-Key",
                "write it as the header Idempotency-Key",
            ),
            ("Crore-Expires", "write it as the header Crore-TTL"),
        ] {
            assert!(header_words(ours).contains(words), "{}", header_words(ours));
        }
    }

    #[test]
    fn misspelt_position_header_gets_a_suggestion() {
        for slip in [
            "Last-EventID",
            "LastEventId",
            "last_event_id",
            "Last-Event-Ids",
            "Lats-Event-ID",
        ] {
            assert!(is_wrong_position(slip), "{slip}");
            let words = header_words(slip);
            assert!(words.ends_with("did you mean Last-Event-ID?"), "{words}");
        }
        for other in [
            "Last-Event-ID",
            "last-event-id",
            "Last-Modified",
            "Link",
            "Location",
            "",
        ] {
            assert!(!is_wrong_position(other), "{other}");
        }
    }

    #[test]
    fn headers_of_others_pass() {
        for other in [
            "Host",
            "Accept",
            "Accept-Encoding",
            "Accept-Language",
            "Authorization",
            "Cache-Control",
            "Connection",
            "Content-Encoding",
            "Content-Length",
            "Content-Type",
            "Cookie",
            "CF-Ray",
            "CF-Connecting-IP",
            "CDN-Loop",
            "Date",
            "Event-Type",
            "Expect",
            "Expires",
            "Forwarded",
            "If-Match",
            "If-None-Match",
            "Idempotency-Key",
            "Keep-Alive",
            "Max-Forwards",
            "Message-Id",
            "Origin",
            "Pragma",
            "Referer",
            "Request-Id",
            "Range",
            "Sec-Fetch-Mode",
            "TE",
            "Topic",
            "Trailer",
            "Traceparent",
            "Transfer-Encoding",
            "Tracestate",
            "Urgency",
            "User-Agent",
            "Upgrade",
            "Via",
            "X-Amzn-Trace-Id",
            "X-B3-TraceId",
            "X-Correlation-ID",
            "X-EventSource-Event",
            "X-Event-Key",
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-GitHub-Event",
            "X-Real-IP",
            "X-Request-ID",
            "X-Requested-With",
            "X-Api-Key",
            "Crore-Key",
            "crore-ttl",
            "",
        ] {
            assert!(!is_wrong_header(other), "{other}");
        }
    }

    #[test]
    fn parameters_of_a_publish_that_belong_elsewhere_are_named_with_their_place() {
        for (name, place) in [
            ("ttl", "Crore-TTL"),
            ("Retain", "Crore-Retain"),
            ("idempotency_key", "Idempotency-Key"),
            ("message", "body"),
        ] {
            assert!(
                hint_for_request(name.as_bytes()).is_some_and(|how| how.contains(place)),
                "{name}"
            );
        }
        assert_eq!(hint_for_request(b"_"), None);
    }

    #[test]
    fn unknown_batch_field_gets_a_suggestion() {
        for (field, words) in [
            ("evnet", "did you mean event?"),
            ("topics", "did you mean topic?"),
            ("contentType", "did you mean content_type?"),
            ("idempotency-key", "write it as idempotency_key"),
            ("ttl", "write it as ttl_s"),
            ("ttls", "did you mean ttl_s?"),
            ("payload", "write it as data"),
            ("channel", "write it as topic"),
            (
                "retain",
                "write it as the header Crore-Retain (true) of a message",
            ),
        ] {
            let tip = hint_for_line(field.as_bytes());
            assert!(tip.contains(words), "{field}: {tip}");
        }
        for other in ["x", "_", "priority", "\u{e9}"] {
            assert_eq!(hint_for_line(other.as_bytes()), "", "{other}");
        }
    }

    #[test]
    fn each_message_header_has_a_form_in_a_batch() {
        for name in HEADERS.iter().chain(&FOREIGN) {
            let words = hint_for_batch(name).expect("it means nothing on a batch");
            assert!(words.contains(name), "{words}");
        }
        assert_eq!(hint_for_batch("Content-Type"), None);
        assert_eq!(hint_for_batch("Event"), None);
    }

    #[test]
    fn a_value_in_an_answer_is_short_and_plain() {
        assert_eq!(quoted(b"yes"), "`yes`");
        assert_eq!(quoted(b"\x1b[2J"), r"`\x1b[2J`");
        assert_eq!(
            quoted(&[b'x'; 8_000]).len(),
            SHOWN_BYTES_MAX + "``...".len()
        );
    }
}
