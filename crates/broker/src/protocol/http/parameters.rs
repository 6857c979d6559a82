//! Checks the parameters and headers of a request that this server defines: which of them each path reads, and the refusal of
//! others. Probable mistakes are refused, so that no wish of a client is silently ignored. The code that reads a parameter decides
//! its meaning.
//!
//! Invariant: parameters that clients, caches and proxies add to the URL of a reading request (`_=1700000000`, `t=`, tokens) are
//! accepted. Such a request is refused only for a name that is nearly one of this server's, or that another path reads. A request
//! that changes something is refused for any unknown parameter. Headers that begin with `Crore-` belong to this server, so each
//! unknown one is refused.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::form;
use crore_wire::http::head::{Head, Method};

use crate::base::reason::Reason;
use crate::protocol::front::{Context, Work};
use crate::protocol::http::suggestions::{
    header_words, hint_for_request, is_of_message, is_one_of_names, is_unread_header, is_within,
    is_wrong_header, is_wrong_position, letters, listed, quoted,
};
use crate::protocol::http::task::Endpoint;

/// The parameter with a last event id, which polyfills of `EventSource` add to any URL.
const EVENT_ID: &str = "last_event_id";
/// Names of parameters in other servers (lower case letters only), this server's parameter for the same purpose, and how to write
/// it.
#[rustfmt::skip]
static FOREIGN_PARAMETERS: [(&[&str], &str, &str); 8] = [
    (&["count", "last", "lastn", "tail", "rewind", "history", "max"], "limit", "limit=N"),
    (&["limit", "count", "last", "lastn", "tail", "rewind", "history", "max"], "since", "since=-N (the newest N messages)"),
    (&["from", "offset", "start", "startat", "startfrom", "position", "pos", "cursor", "after", "replay", "sinceid", "seq", "sequence", "startseq"],
        "since", "since= with oldest, live, -N or the id of a message"),
    (&["filter", "match", "pattern", "subject"], "limit", "GET /sub?filter= with since=-N, since a history is that of one topic"),
    (&["topic", "channel", "filter", "pattern", "subject"], "match", "match= (a filter, or the name of a topic)"),
    (&["format", "output"], "envelope", "envelope=json"),
    (&["match", "pattern", "subject", "wildcard"], "filter", "filter="),
    (&["timeout", "polltimeout"], "since", "the setting rule.poll_timeout_s, which says how long a long-poll waits"),
];
/// The maximum number of unknown parameters in which mistakes are searched, since the client chooses their number.
const UNREAD_MAX: usize = 32;
/// The parameters that each path reads. `last_event_id` is accepted on every reading path.
pub const PARAMETERS: [(&str, &[&str]); 7] = [
    ("`/pub`", &["topic", "channel"]),
    ("`/pub`, with `DELETE`", &["topic", "channel", "purge"]),
    (
        "`/sub`",
        &["topic", "channel", "filter", "since", "envelope", EVENT_ID],
    ),
    (
        "`/pubsub`, and `/pub` with an upgrade (there `envelope` has no effect)",
        &["topic", "channel", "since", "envelope", EVENT_ID],
    ),
    // Messages of a history are envelopes, whether or not the client asks for them.
    (
        "`/history`",
        &["topic", "channel", "since", "limit", "envelope", EVENT_ID],
    ),
    ("`/interest`", &["match"]),
    (
        "`/presence`",
        &["topic", "channel", "stats", "after", "since", EVENT_ID],
    ),
];

/// The parameters that are read on a path.
fn parameters(endpoint: Endpoint, method: Method) -> &'static [&'static str] {
    let row = match endpoint {
        Endpoint::Publish => usize::from(method == Method::Delete),
        Endpoint::Subscribe => 2,
        Endpoint::PubSub => 3,
        Endpoint::History => 4,
        Endpoint::Interest => 5,
        Endpoint::Presence => 6,
    };
    PARAMETERS[row].1
}

/// Whether some path reads this parameter.
fn is_parameter(key: &[u8]) -> bool {
    let mut all = PARAMETERS.iter().flat_map(|(_, names)| *names);
    all.any(|name| name.as_bytes() == key)
}

/// Checks that all parameters and headers that may be meant for this server are read on this path.
///
/// # Errors
/// One is not read, or has an invalid value.
pub(crate) fn check_all_read(
    work: &Work,
    ctx: &Context,
    head: &Head<'_>,
    endpoint: Endpoint,
) -> Result<(), (Reason, String)> {
    let is_publish = endpoint == Endpoint::Publish && head.method == Method::Post;
    let is_subscription = matches!(
        endpoint,
        Endpoint::Subscribe | Endpoint::PubSub | Endpoint::History
    );
    // Frames have no headers, and the headers of the upgrade do not apply to each frame.
    let publishes_frames = !is_publish
        && matches!(endpoint, Endpoint::Publish | Endpoint::PubSub)
        && head.is_websocket_upgrade();
    let is_mistake = |name: &&str| {
        is_unread_header(name, is_publish)
            || publishes_frames && is_of_message(name)
            || is_publish && is_wrong_header(name)
            || is_subscription && is_wrong_position(name)
    };
    if let Some(name) = head.names().find(is_mistake) {
        return Err((Reason::Unread, header_words(name)));
    }
    if head.query.is_empty() {
        return Ok(());
    }
    // A client often opens all its sockets with the same query.
    let endpoint = match endpoint == Endpoint::Publish && head.is_websocket_upgrade() {
        true => Endpoint::PubSub,
        false => endpoint,
    };
    let read_here = parameters(endpoint, head.method);
    let token = ctx.world.settings.access.query.as_bytes();
    // Nothing adds parameters to such requests by itself, and a change that ignored a parameter cannot be undone.
    let is_change = matches!(head.method, Method::Post | Method::Put | Method::Delete);
    let is_known = |key: &[u8]| {
        let is_read = read_here.iter().any(|name| name.as_bytes() == key);
        is_read || key.is_empty() || key == token || !is_change && is_event_id(key)
    };
    let mut unread_count = 0;
    for (key, value) in form::pairs(head.query) {
        if is_known(key) {
            if key == b"envelope" && !matches!(&*decode_value(value), b"" | b"json") {
                let text = Reason::BadEnvelope.text();
                let words = format!("{text}, and not {}", quoted(value));
                return Err((Reason::BadEnvelope, words));
            }
            continue;
        }
        if unread_count == UNREAD_MAX {
            continue;
        }
        unread_count += 1;
        work.steps.add(1);
        let meant = nearest_parameter(read_here, key);
        let is_of_other_path = is_parameter(key);
        let advice = match is_change {
            true => hint_for_request(key),
            false => hint_for_reader(read_here, key),
        };
        if !is_change && meant.or(advice).is_none() && !is_of_other_path {
            continue;
        }
        let hint = match (meant, advice) {
            (Some(name), _) => format!("; did you mean {name}=?"),
            (None, Some(advice)) => format!("; write it as {advice}"),
            (None, None) => String::new(),
        };
        let words = format!(
            "the parameter {} means nothing here: this request reads {}{hint}",
            quoted(key),
            listed(read_here)
        );
        return Err((Reason::Unread, words));
    }
    Ok(())
}

/// The decoded value of a parameter. `None` if it is missing or empty. A value with a bad escape is returned as received, and will
/// be invalid.
pub(crate) fn parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<Cow<'q, [u8]>> {
    let mut pairs = form::pairs(query).filter(|(key, value)| *key == name && !value.is_empty());
    pairs.next().map(|(_, value)| decode_value(value))
}

fn decode_value(value: &[u8]) -> Cow<'_, [u8]> {
    let mut text = Vec::new();
    match memchr::memchr(b'%', value).map(|_| form::decode(value, &mut text)) {
        Some(Ok(())) => text.into(),
        _ => value.into(),
    }
}

/// The position in a query, as written there, and whether it is a last event id.
pub(crate) fn query_position(query: &[u8]) -> Option<(bool, &[u8])> {
    let pairs = || form::pairs(query).filter(|(_, value)| !value.is_empty());
    let event_id = pairs().filter(|(key, _)| is_event_id(key)).last();
    let (_, value) = event_id.or_else(|| pairs().find(|(key, _)| *key == b"since"))?;
    Some((event_id.is_some(), value))
}

/// Whether a key of the query names the last event id: `last_event_id`, or a name that polyfills of `EventSource` and other servers
/// use (`lastEventId`, `lastEventID`, `Last-Event-ID`, `evs_last_event_id`).
fn is_event_id(key: &[u8]) -> bool {
    let key = key.strip_prefix(b"evs_").unwrap_or(key);
    let letters = key.iter().filter(|b| !matches!(b, b'-' | b'_'));
    letters.map(u8::to_ascii_lowercase).eq(*b"lasteventid")
}

/// The text of a reason about a value in the query, with the value.
pub(crate) fn value_words(reason: Reason, query: &[u8]) -> Cow<'static, str> {
    let value = match reason {
        Reason::BadPosition => query_position(query).map(|(_, value)| value),
        Reason::BadLimit => {
            let mut pairs = form::pairs(query);
            let limit = pairs.find(|(key, value)| *key == b"limit" && !value.is_empty());
            limit.map(|(_, value)| value)
        }
        _ => None,
    };
    match value {
        Some(value) => {
            // Probably not a position: seconds, a period or a date.
            let is_time = reason == Reason::BadPosition && value[0].is_ascii_digit();
            let hint = match is_time {
                true => "; a date is said by the header If-Modified-Since",
                false => "",
            };
            format!("{}, and not {}{hint}", reason.text(), quoted(value)).into()
        }
        None => reason.text().into(),
    }
}

/// The advice for a parameter `key` of other servers: how to write it on a path with these parameters.
fn hint_for_reader(read_here: &[&str], key: &[u8]) -> Option<&'static str> {
    let mut rows = FOREIGN_PARAMETERS
        .iter()
        .filter(|(_, ours, _)| read_here.contains(ours));
    let (.., advice) = rows.find(|(names, ..)| is_one_of_names(key, names))?;
    Some(*advice)
}

/// The parameter that was probably meant by a key.
fn nearest_parameter(read_here: &[&'static str], key: &[u8]) -> Option<&'static str> {
    let key = letters(key);
    let mut names = read_here.iter().copied();
    names.find(|name| is_within(&key, &letters(name.as_bytes()), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_parameters_are_distinguished_from_added_ones() {
        let known = parameters(Endpoint::Subscribe, Method::Get);
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
            assert_eq!(
                nearest_parameter(known, slip.as_bytes()),
                Some(name),
                "{slip}"
            );
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
            for endpoint in [
                Endpoint::Publish,
                Endpoint::Subscribe,
                Endpoint::PubSub,
                Endpoint::History,
                Endpoint::Interest,
                Endpoint::Presence,
            ] {
                assert_eq!(
                    nearest_parameter(parameters(endpoint, Method::Delete), other.as_bytes()),
                    None,
                    "{other}"
                );
            }
        }
        let long = [b'e'; 8_000];
        assert_eq!(nearest_parameter(known, &long), None);
    }

    #[test]
    fn parameters_of_other_servers_get_the_name_here() {
        for (endpoint, key, how) in [
            (Endpoint::Subscribe, "from", "since="),
            (Endpoint::Subscribe, "Start_Seq", "since="),
            (Endpoint::Subscribe, "limit", "since=-N"),
            (Endpoint::PubSub, "count", "since=-N"),
            (Endpoint::History, "count", "limit=N"),
            (Endpoint::History, "offset", "since="),
            (Endpoint::History, "filter", "/sub?filter="),
            (Endpoint::Interest, "topic", "match="),
            (Endpoint::Subscribe, "match", "filter="),
            (Endpoint::Subscribe, "timeout", "rule.poll_timeout_s"),
        ] {
            let said = hint_for_reader(parameters(endpoint, Method::Get), key.as_bytes());
            assert!(
                said.is_some_and(|said| said.contains(how)),
                "{key}: {said:?}"
            );
        }
        for (endpoint, key) in [
            (Endpoint::Interest, "from"),
            (Endpoint::Publish, "count"),
            (Endpoint::Subscribe, "t"),
        ] {
            let said = hint_for_reader(parameters(endpoint, Method::Get), key.as_bytes());
            assert_eq!(said, None, "{key}");
        }
    }
}
