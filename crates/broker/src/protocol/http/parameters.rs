//! The parameters and headers of a request that are ours: which of them each path reads, and what is said of the others. Probable slips are refused,
//! so that no wish of a client passes in silence. What a parameter means is decided where it is read.
//!
//! Invariant: whatever clients, caches and proxies add to a URL of their own (`_=1700000000`, `t=`, tokens) passes: only a name that is nearly one of
//! ours is refused, and one that another path reads. Headers that begin with `Crore-` are ours alone, so that each unknown one is refused.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::form;
use crore_wire::http::head::{Head, Method};

use crate::base::reason::Reason;
use crate::mail::properties;
use crate::protocol::front::{Context, Work};
use crate::protocol::http::task::Door;

/// The beginning of the headers that are ours.
const OURS: &[u8] = b"crore-";
/// Those of them that requests may have.
const HEADERS: [&str; 4] = ["Crore-Key", "Crore-TTL", properties::HEADER, "Crore-Retain"];
/// The parameters of all doors.
const ALL: [&str; 8] = [
    "topic", "channel", "filter", "since", "envelope", "limit", "match", "purge",
];
/// The parameter of a last event id, which `EventSource` polyfills add to any URL.
const EVENT_ID: &str = "last_event_id";
/// In so many parameters that are not read a slip is looked for: the client chooses how many there are.
const UNREAD_MAX: usize = 32;
/// Longest name that may be a slip, in letters.
const NAME_LETTERS_MAX: usize = 16;
/// So many bytes of a value stand in an answer.
const SHOWN_BYTES_MAX: usize = 40;

/// The parameters that are read at a door, besides [`EVENT_ID`].
fn parameters(door: Door, method: Method) -> &'static [&'static str] {
    match door {
        Door::Publish if method == Method::Delete => &["topic", "channel", "purge"],
        Door::Publish => &["topic", "channel"],
        Door::Subscribe => &["topic", "channel", "filter", "since", "envelope"],
        Door::PubSub => &["topic", "channel", "since", "envelope"],
        // Its messages are envelopes, whether or not they are asked for.
        Door::History => &["topic", "channel", "since", "limit", "envelope"],
        Door::Interest => &["match"],
    }
}

/// Whether all parameters and headers that are meant for us are read at this door.
///
/// # Errors
/// One is not, or has a value that means nothing.
pub(crate) fn is_read(
    work: &Work,
    ctx: &Context,
    head: &Head<'_>,
    door: Door,
) -> Result<(), (Reason, String)> {
    if let Some(name) = head.names().find(|name| is_unread_header(name)) {
        let words = format!(
            "the header {} means nothing; those that begin with Crore- are {}, and the event name is X-EventSource-Event",
            quoted(name.as_bytes()),
            HEADERS.join(", ")
        );
        return Err((Reason::Unread, words));
    }
    if head.query.is_empty() {
        return Ok(());
    }
    // One client often opens all its sockets with one query.
    let door = match door == Door::Publish && head.is_websocket_upgrade() {
        true => Door::PubSub,
        false => door,
    };
    let known = parameters(door, head.method);
    let token = ctx.world.settings.access.query.as_bytes();
    let is_known = |key: &[u8]| {
        let is_ours = known.iter().any(|name| name.as_bytes() == key);
        is_ours || is_event_id(key) || key == token
    };
    let pairs = form::pairs(head.query);
    let unread = pairs.filter(|(key, _)| !is_known(key)).take(UNREAD_MAX);
    for (key, _) in unread {
        work.steps.add(1);
        let slip = meant(known, key);
        if slip.is_none() && !ALL.iter().any(|name| name.as_bytes() == key) {
            continue;
        }
        let tip = slip.map_or(String::new(), |name| format!("; did you mean {name}=?"));
        let words = format!(
            "the parameter {} means nothing here: this request reads {} and {EVENT_ID}{tip}",
            quoted(key),
            known.join(", ")
        );
        return Err((Reason::Unread, words));
    }
    let mut envelopes = form::pairs(head.query).filter(|(key, _)| *key == b"envelope");
    match envelopes.find(|(_, value)| !matches!(*value, b"" | b"json")) {
        Some((_, value)) => {
            let text = Reason::BadEnvelope.text();
            Err((
                Reason::BadEnvelope,
                format!("{text}, and not {}", quoted(value)),
            ))
        }
        None => Ok(()),
    }
}

/// The position that a query names, as it is written there, and whether as a last event id.
pub(crate) fn query_position(query: &[u8]) -> Option<(bool, &[u8])> {
    let pairs = || form::pairs(query).filter(|(_, value)| !value.is_empty());
    let event_id = pairs().filter(|(key, _)| is_event_id(key)).last();
    let (_, value) = event_id.or_else(|| pairs().find(|(key, _)| *key == b"since"))?;
    Some((event_id.is_some(), value))
}

/// Whether a key of the query names the last event id: `last_event_id`, and what polyfills of `EventSource` and other servers call
/// it (`lastEventId`, `lastEventID`, `Last-Event-ID`, `evs_last_event_id`).
fn is_event_id(key: &[u8]) -> bool {
    let key = key.strip_prefix(b"evs_").unwrap_or(key);
    let letters = key.iter().filter(|b| !matches!(b, b'-' | b'_'));
    letters.map(u8::to_ascii_lowercase).eq(*b"lasteventid")
}

/// The words of a reason about a value in the query, with the value.
pub(crate) fn value_words(reason: Reason, query: &[u8]) -> Cow<'static, str> {
    let value = match reason {
        Reason::BadPosition => query_position(query).map(|(_, value)| value),
        Reason::BadLimit => {
            let mut pairs = form::pairs(query);
            pairs
                .find(|(key, _)| *key == b"limit")
                .map(|(_, value)| value)
        }
        _ => None,
    };
    match value {
        Some(value) => format!("{}, and not {}", reason.text(), quoted(value)).into(),
        None => reason.text().into(),
    }
}

/// A client's text in an answer: short, and in printable ASCII.
pub(crate) fn quoted(text: &[u8]) -> String {
    let shown = &text[..text.len().min(SHOWN_BYTES_MAX)];
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("`{}{more}`", shown.escape_ascii())
}

fn is_unread_header(name: &str) -> bool {
    let begin = name.as_bytes().get(..OURS.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(OURS))
        && !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The parameter that a key nearly is.
fn meant(known: &[&'static str], key: &[u8]) -> Option<&'static str> {
    let key = letters(key);
    let mut names = known.iter().copied().chain([EVENT_ID]);
    names.find(|name| is_slip(&key, &letters(name.as_bytes())))
}

/// A name without what people write in several ways: case, hyphens, underscores.
fn letters(name: &[u8]) -> Vec<u8> {
    let letters = name.iter().filter(|b| !matches!(b, b'-' | b'_'));
    let letters = letters.map(u8::to_ascii_lowercase);
    letters.take(NAME_LETTERS_MAX).collect()
}

/// Whether one letter at most is too many, missing or another, or two neighbours are swapped.
fn is_slip(one: &[u8], other: &[u8]) -> bool {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same..], &other[same..]);
    let ends = one.iter().rev().zip(other.iter().rev());
    let same = ends.take_while(|(a, b)| a == b).count();
    match (&one[..one.len() - same], &other[..other.len() - same]) {
        ([] | [_], [] | [_]) => true,
        ([a, b], [c, d]) => (a, b) == (d, c),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_from_what_clients_and_caches_add() {
        let known = parameters(Door::Subscribe, Method::Get);
        for (slip, name) in [
            ("envelop", "envelope"),
            ("enevlope", "envelope"),
            ("Envelope", "envelope"),
            ("sine", "since"),
            ("sicne", "since"),
            ("sinces", "since"),
            ("topics", "topic"),
            ("filters", "filter"),
            ("last-event-ids", EVENT_ID),
        ] {
            assert_eq!(meant(known, slip.as_bytes()), Some(name), "{slip}");
        }
        for other in [
            "_",
            "t",
            "ts",
            "v",
            "r",
            "cb",
            "rnd",
            "nonce",
            "once",
            "time",
            "token",
            "access_token",
            "auth",
            "jwt",
            "key",
            "apikey",
            "sid",
            "EIO",
            "transport",
            "utm_source",
            "fbclid",
            "cf_connect",
            "authorization",
            "",
        ] {
            for door in [
                Door::Publish,
                Door::Subscribe,
                Door::PubSub,
                Door::History,
                Door::Interest,
            ] {
                assert_eq!(
                    meant(parameters(door, Method::Delete), other.as_bytes()),
                    None,
                    "{other}"
                );
            }
        }
        let long = [b'e'; 8_000];
        assert_eq!(meant(known, &long), None);
    }

    #[test]
    fn each_parameter_of_a_door_is_known() {
        for door in [
            Door::Publish,
            Door::Subscribe,
            Door::PubSub,
            Door::History,
            Door::Interest,
        ] {
            assert!(
                parameters(door, Method::Delete)
                    .iter()
                    .all(|name| ALL.contains(name))
            );
        }
    }

    #[test]
    fn headers_that_begin_as_ours_are_known() {
        for name in [
            "crore-key",
            "CRORE-TTL",
            "Crore-Property",
            "Crore-Retain",
            "Crore",
            "X-Crore-Key",
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
    fn a_value_in_an_answer_is_short_and_plain() {
        assert_eq!(quoted(b"yes"), "`yes`");
        assert_eq!(quoted(b"\x1b[2J"), r"`\x1b[2J`");
        assert_eq!(
            quoted(&[b'x'; 8_000]).len(),
            SHOWN_BYTES_MAX + "``...".len()
        );
    }
}
