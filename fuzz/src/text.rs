//! Fuzz targets for positions (the points from which subscribers read), event streams, topic names and filters.

use crore_broker::position::{self as positions, Position, Since};
use crore_wire::sse::{self as events, Parser};
use crore_wire::topic as topics;

use crate::Input;
use crate::http::halves;

pub const SSE_WORDS: &[&str] = &[
    "data: ",
    "data",
    "id: ",
    "event: ",
    "retry: 10\n",
    ":",
    "\n\n",
    "\r\n",
    "\r",
    "\u{feff}",
    "id: \0\n",
    "id\n",
    "\n",
];

pub const POSITION_WORDS: &[&str] = &[
    "1a-5",
    "27-",
    "live",
    "oldest",
    "newest",
    "-5",
    "1ffffffff-18446744073709551615",
    "AAAA",
    "_w",
    "-",
    "0",
    "f",
];

pub const TOPIC_WORDS: &[&str] = &[
    "a", "/", "+", "#", "/#", "+/", "$", "$SYS/", "%2f", "%", "..", ".", "\u{7f}", "\u{85}",
    "\u{e9}", "\n", "//",
];

/// The set of topics for which positions are parsed.
const SET: u32 = 7;

/// Parses a position. Checked: parsed positions, and positions made of any numbers, can be written and parsed again.
pub fn position(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let count = 1 + usize::from(input.options & 3);
    if let Ok(all) = positions::parse(input.bytes, SET, count) {
        assert_eq!(all.len(), count, "one for each topic");
        let known = all.iter().map_while(|since| match since {
            Since::At(position) => Some(*position),
            _ => None,
        });
        let known: Vec<Position> = known.collect();
        assert!(
            known.len() == count || all.iter().all(|since| *since == all[0]),
            "all topics or none have a position of their own"
        );
        if known.len() == count {
            check_round_trip(&known);
        }
    }
    let any = input.bytes.chunks(12).take(9).map(|piece| {
        let mut bytes = [0; 12];
        bytes[..piece.len()].copy_from_slice(piece);
        let [e0, e1, e2, e3, offset @ ..] = bytes;
        Position {
            epoch: u32::from_le_bytes([e0, e1, e2, e3]),
            offset: u64::from_le_bytes(offset) >> 2,
        }
    });
    let any: Vec<Position> = any.collect();
    if !any.is_empty() {
        check_round_trip(&any);
    }
}

fn check_round_trip(known: &[Position]) {
    let expected: Vec<Since> = known.iter().copied().map(Since::At).collect();
    let mut text = Vec::new();
    positions::write(&mut text, known[0]);
    assert_eq!(positions::parse(&text, SET, 1), Ok(vec![expected[0]]));
    // A position of one topic may have any offset; in a set offsets have 62 bits.
    if known.iter().any(|position| position.offset >> 62 != 0) {
        return;
    }
    text.clear();
    positions::write_set(&mut text, SET, known.iter().copied());
    assert!(events::is_field_safe(&text), "an id is one line");
    assert_eq!(
        positions::parse(&text, SET, known.len()),
        Ok(expected.clone())
    );
    let unknown = vec![Since::Unknown; known.len()];
    assert_eq!(positions::parse(&text, !SET, known.len()), Ok(unknown));
}

/// An event that outlives its parser: id, name, data, reconnection time.
type Got = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<u8>, Option<u32>);

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>, limit: usize) -> (Vec<Got>, bool) {
    let (mut parser, mut got) = (Parser::new(limit), Vec::new());
    for piece in pieces {
        let each = |event: events::Event<'_>| {
            assert!(event.data.len() <= limit);
            got.push((
                event.id.map(<[u8]>::to_vec),
                event.event.map(<[u8]>::to_vec),
                event.data.to_vec(),
                event.retry,
            ));
        };
        if parser.push(piece, each).is_err() {
            return (got, true);
        }
    }
    (got, false)
}

/// Reads an event stream. Checked: the events do not depend on the cuts (the places where the input is split into pieces), and written
/// events can be read.
pub fn sse(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let limit = [10, 100, 1000, 100_000][usize::from(input.options & 3)];
    let whole = read(std::iter::once(input.bytes), limit);
    assert_eq!(read(input.pieces(), limit), whole);

    let (id, rest) = halves(input.bytes);
    let (name, data) = halves(rest);
    if !events::is_field_safe(id) || !events::is_field_safe(name) {
        return;
    }
    let mut text = Vec::new();
    events::write_comment(&mut text, "");
    events::write_retry(&mut text, 12);
    events::write_event(&mut text, Some(id), Some(name), data);
    events::write_event(&mut text, None, None, b"next");
    let some = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
    // A reader turns every line end into a newline.
    let mut lines = Vec::new();
    for (n, &b) in data.iter().enumerate() {
        match b {
            b'\n' if n > 0 && data[n - 1] == b'\r' => {}
            b'\r' => lines.push(b'\n'),
            b => lines.push(b),
        }
    }
    let expected = vec![
        (some(id), some(name), lines, Some(12)),
        (some(id), None, b"next".to_vec(), Some(12)),
    ];
    let most = text.len();
    assert_eq!(
        read(std::iter::once(&text[..]), most),
        (expected.clone(), false)
    );
    assert_eq!(read(text.chunks(3), most), (expected, false));
}

/// Parses a filter and a topic name, each on a line. Checked: the filter matches as the specification says. The name can be encoded in
/// paths and queries, and decoded again.
pub fn topic(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let max = [5, 30, 255, 1000][usize::from(input.options & 3)];
    let (filter, name) = halves(input.bytes);
    let is_name = topics::check_name(name, max).is_ok();
    if is_name {
        assert_eq!(
            topics::check_filter(name, max),
            Ok(()),
            "every name is a filter"
        );
        assert!(topics::matches(name, name));
        assert_eq!(topics::slot(name), (topics::stable_hash(name) >> 56) as u8);
        through_urls(name, max);
    }
    if topics::check_filter(filter, max).is_ok() {
        let wild = filter.iter().any(|b| matches!(b, b'+' | b'#'));
        assert_eq!(topics::check_name(filter, max).is_ok(), !wild);
        if is_name {
            assert_eq!(
                topics::matches(filter, name),
                matches_by_specification(filter, name)
            );
        }
    }
    let mut out = b"before".to_vec();
    for decode in [topics::from_path, topics::from_query] {
        if decode(name, max, &mut out).is_err() {
            assert_eq!(out, b"before", "a refused name leaves nothing");
        } else {
            assert_eq!(topics::check_name(&out[6..], max), Ok(()));
            out.truncate(6);
        }
    }
}

/// Checks that a name can be encoded in a query and in a path.
fn through_urls(name: &[u8], max: usize) {
    let dots = name
        .split(|&b| b == b'/')
        .any(|level| matches!(level, b"." | b".."));
    let gaps = name.split(|&b| b == b'/').any(<[u8]>::is_empty);
    let mut text = String::new();
    for &b in name {
        match b {
            b'/' => text.push('/'),
            b => text.push_str(&format!("%{b:02X}")),
        }
    }
    let mut out = Vec::new();
    assert_eq!(
        topics::from_query(text.as_bytes(), max, &mut out).is_ok(),
        !dots
    );
    assert!(dots || out == name);
    out.clear();
    assert_eq!(
        topics::from_path(text.as_bytes(), max, &mut out).is_ok(),
        !dots && !gaps
    );
    assert!(dots || gaps || out == name);
}

/// Whether a filter matches a name by MQTT 5.0 section 4.7, level by level.
fn matches_by_specification(filter: &[u8], name: &[u8]) -> bool {
    fn levels(filter: &[&[u8]], name: &[&[u8]]) -> bool {
        match (filter, name) {
            ([b"#"], _) | ([], []) => true,
            ([b"+", filter @ ..], [_, name @ ..]) => levels(filter, name),
            ([one, filter @ ..], [other, name @ ..]) => one == other && levels(filter, name),
            _ => false,
        }
    }
    let hidden = name.starts_with(b"$") && matches!(filter.first(), Some(b'+' | b'#'));
    let (filter, name): (Vec<&[u8]>, Vec<&[u8]>) = (
        filter.split(|&b| b == b'/').collect(),
        name.split(|&b| b == b'/').collect(),
    );
    !hidden && levels(&filter, &name)
}
