//! Names that are nearly ours, and those that people bring from elsewhere: what was probably meant by one that means nothing here.
//!
//! Each question is answered in a bounded number of steps, whatever a client sends: only short names are compared.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::mail::properties;

/// The beginning of the headers that are ours.
const OURS: &[u8] = b"crore-";
/// Those of them that requests may have.
const HEADERS: [&str; 4] = ["Crore-Key", "Crore-TTL", properties::HEADER, "Crore-Retain"];
/// The headers of a publish that have names of others: a slip in one of these is refused too.
const FOREIGN: [&str; 2] = ["Idempotency-Key", "X-EventSource-Event"];
/// The header of a subscription that programs write by themselves.
const POSITION: &str = "Last-Event-ID";
/// So many letters of a header may be too many, missing or another.
const HEADER_EDITS_MAX: u32 = 2;
/// Names that people give to what a publish says in its head or body, in letters; how it is said here; and whether a header of this name could mean
/// nothing else.
#[rustfmt::skip]
const HABITS: [(&[&str], &str, bool); 10] = [
    (&["ttl", "xttl", "natsttl", "messagettl", "timetolive"], "the header Crore-TTL (whole seconds)", true),
    (&["retain", "retained", "xretain"], "the header Crore-Retain (true)", true),
    (&["natsmsgid"], "the header Idempotency-Key", true),
    (&["expiry", "expires", "expire", "expiration", "maxage"], "the header Crore-TTL (whole seconds)", false),
    (&["key", "messagekey"], "the header Crore-Key", false),
    (&["event", "eventname", "eventtype"], "the header X-EventSource-Event", false),
    (&["property", "properties", "header", "headers"], "the header Crore-Property (name=value)", false),
    (&["idempotencykey", "id", "msgid", "messageid", "eventid"], "the header Idempotency-Key", false),
    (&["accesstoken", "auth", "authorization", "jwt", "apikey"], "the header Authorization (Bearer TOKEN)", false),
    (&["data", "message", "msg", "body", "payload", "text"], "the body of the request", false),
];
/// Longest name that may be a slip, in letters.
const NAME_LETTERS_MAX: usize = 16;
/// So many bytes of a value stand in an answer.
const SHOWN_BYTES_MAX: usize = 40;

/// A client's text in an answer: short, and in printable ASCII.
pub(crate) fn quoted(text: &[u8]) -> String {
    let shown = &text[..text.len().min(SHOWN_BYTES_MAX)];
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("`{}{more}`", shown.escape_ascii())
}

pub(crate) fn is_unread_header(name: &str) -> bool {
    let begin = name.as_bytes().get(..OURS.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(OURS))
        && !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether the header of a publish is nearly one that publishes have, or is called as elsewhere.
pub(crate) fn is_wrong_header(name: &str) -> bool {
    match name.as_bytes() {
        // Every request has some of these, and they are no slips.
        [b'c' | b'C', b'o' | b'O', b'n' | b'N', ..] => false,
        [b'c' | b'C' | b'i' | b'I' | b'x' | b'X', ..] => {
            nearest(name).is_some() || is_called_so(name)
        }
        [b'm' | b'M' | b'n' | b'N' | b'r' | b'R' | b't' | b'T', ..] => is_called_so(name),
        _ => false,
    }
}

fn is_called_so(name: &str) -> bool {
    habit(name.as_bytes()).is_some_and(|(_, alone)| alone)
}

/// The header of a publish that this one nearly is, with `X-` before it or without, and is not.
fn nearest(name: &str) -> Option<&'static str> {
    let all = || HEADERS.iter().chain(&FOREIGN);
    if all().any(|known| known.eq_ignore_ascii_case(name)) {
        return None;
    }
    let name = name.as_bytes();
    let bare = name.strip_prefix(b"X-").or(name.strip_prefix(b"x-"));
    let is_near = |known: &&&str| {
        let known = known.as_bytes();
        // Hardly anybody mistakes the first letter, and most headers have another.
        let begins = |name: &&[u8]| {
            name.first()
                .is_some_and(|letter| letter.eq_ignore_ascii_case(&known[0]))
        };
        let mut names = [Some(name), bare].into_iter().flatten().filter(begins);
        names.any(|name| is_within(name, known, HEADER_EDITS_MAX))
    };
    all().find(is_near).copied()
}

/// Whether the header of a subscription is nearly that of its position, and is not.
pub(crate) fn is_wrong_position(name: &str) -> bool {
    let is_near = || is_within(name.as_bytes(), POSITION.as_bytes(), HEADER_EDITS_MAX);
    matches!(name.as_bytes(), [b'l' | b'L', ..])
        && !name.eq_ignore_ascii_case(POSITION)
        && is_near()
}

/// The header to write instead of one that means nothing.
pub(crate) fn header_words(name: &str) -> String {
    if is_wrong_position(name) {
        let name = quoted(name.as_bytes());
        return format!("the header {name} means nothing; did you mean {POSITION}?");
    }
    let ours = name
        .get(..OURS.len())
        .filter(|begin| begin.as_bytes().eq_ignore_ascii_case(OURS));
    let bare = ours.map_or(name, |ours| &name[ours.len()..]);
    let tip = match (nearest(name), habit(bare.as_bytes())) {
        (Some(near), _) => format!("; did you mean {near}?"),
        (None, Some((how, _))) => format!("; write it as {how}"),
        (None, None) => String::new(),
    };
    format!(
        "the header {} means nothing; a publish has {}, {}{tip}",
        quoted(name.as_bytes()),
        HEADERS.join(", "),
        listed(&FOREIGN)
    )
}

/// How a publish says what elsewhere has this name, and whether a header of this name could mean nothing else.
pub(crate) fn habit(name: &[u8]) -> Option<(&'static str, bool)> {
    let is_it = |it: &&(&'static [&'static str], &'static str, bool)| {
        let mut names = it.0.iter();
        names.any(|known| of_letters(name).eq(known.bytes()))
    };
    HABITS
        .iter()
        .find(is_it)
        .map(|(_, how, alone)| (*how, *alone))
}

/// Names as a sentence has them.
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).into(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// A name without what people write in several ways: case, hyphens, underscores.
fn of_letters(name: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let letters = name.iter().filter(|b| !matches!(b, b'-' | b'_'));
    letters.map(u8::to_ascii_lowercase)
}

/// The letters of a name, as many as one may have that is a slip.
pub(crate) fn letters(name: &[u8]) -> Vec<u8> {
    of_letters(name).take(NAME_LETTERS_MAX).collect()
}

/// Whether so many letters at most are too many, missing or another, or neighbours that are swapped; case does not count.
pub(crate) fn is_within(one: &[u8], other: &[u8], edits: u32) -> bool {
    let pairs = one.iter().zip(other);
    let same = pairs.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let (one, other) = (&one[same..], &other[same..]);
    let lacking = one.len().abs_diff(other.len());
    let ([a, one_left @ ..], [b, other_left @ ..]) = (one, other) else {
        return lacking <= edits as usize;
    };
    if edits == 0 || lacking > edits as usize {
        return false;
    }
    let left = edits - 1;
    let swapped = || match (one_left, other_left) {
        ([c, one @ ..], [d, other @ ..]) => {
            a.eq_ignore_ascii_case(d) && b.eq_ignore_ascii_case(c) && is_within(one, other, left)
        }
        _ => false,
    };
    is_within(one_left, other_left, left)
        || is_within(one_left, other, left)
        || is_within(one, other_left, left)
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
            assert!(!is_unread_header(name), "{name}");
        }
        for name in [
            "Crore-Event",
            "crore-keys",
            "CRORE-",
            "Crore-Idempotency-Key",
        ] {
            assert!(is_unread_header(name), "{name}");
        }
    }

    #[test]
    fn slips_in_headers_are_told_what_was_meant() {
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
        ] {
            assert!(is_wrong_header(slip), "{slip}");
            assert!(header_words(slip).contains(words), "{}", header_words(slip));
        }
    }

    #[test]
    fn headers_of_ours_are_told_what_was_meant() {
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
    fn slips_in_the_position_are_told_what_was_meant() {
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
            "Event",
            "Expect",
            "Expires",
            "Forwarded",
            "If-Match",
            "If-None-Match",
            "Idempotency-Key",
            "Key",
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
            "X-Key",
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
                habit(name.as_bytes()).is_some_and(|(how, _)| how.contains(place)),
                "{name}"
            );
        }
        assert_eq!(habit(b"_"), None);
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
