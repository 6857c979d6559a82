//! Tests event streams: written events are read back however the stream is cut, and the parser follows the WHATWG rules.

use crore_wire::sse::{
    Event, Parser, TooLong, is_field_safe, write_comment, write_data, write_event, write_retry,
};
use proptest::prelude::*;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnedEvent {
    id: Option<Vec<u8>>,
    event: Option<Vec<u8>>,
    data: Vec<u8>,
    retry: Option<u32>,
}

fn to_owned_event(event: Event<'_>) -> OwnedEvent {
    OwnedEvent {
        id: event.id.map(<[u8]>::to_vec),
        event: event.event.map(<[u8]>::to_vec),
        data: event.data.to_vec(),
        retry: event.retry,
    }
}

fn run(stream: &[u8], cuts: &[usize], limit: usize) -> (Vec<OwnedEvent>, Result<(), TooLong>) {
    let mut parser = Parser::new(limit);
    let mut events = Vec::new();
    let mut at = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        if parser
            .push(&stream[at..cut], |event| events.push(to_owned_event(event)))
            .is_err()
        {
            return (events, Err(TooLong));
        }
        at = cut;
    }
    (events, Ok(()))
}

fn assert_same_for_every_split(
    stream: &[u8],
    limit: usize,
) -> (Vec<OwnedEvent>, Result<(), TooLong>) {
    let uncut = run(stream, &[], limit);
    for cut in 0..=stream.len() {
        assert_eq!(run(stream, &[cut], limit), uncut, "cut at {cut}");
    }
    let cut_positions: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(
        run(stream, &cut_positions, limit),
        uncut,
        "cut at every byte"
    );
    uncut
}

/// The ids and the data of a stream's events.
fn events(stream: &str) -> Vec<(Option<String>, String)> {
    let (events, result) = assert_same_for_every_split(stream.as_bytes(), 1000);
    assert_eq!(result, Ok(()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    events
        .into_iter()
        .map(|e| (e.id.map(text), text(e.data)))
        .collect()
}

fn data(stream: &str) -> Vec<String> {
    events(stream).into_iter().map(|(_, data)| data).collect()
}

#[test]
fn large_data_is_allocated_at_once() {
    for line in ["\n", "\r\n", "a\r", "a longer line without an end "] {
        let data = line.repeat(100_000);
        let mut out = Vec::new();
        write_data(&mut out, data.as_bytes());
        let lines = data.replace("\r\n", "\n").replace('\r', "\n");
        let expected = format!("data: {}\n", lines.replace('\n', "\ndata: "));
        assert!(out == expected.as_bytes(), "{line:?}");
        let pairs = data.matches("\r\n").count();
        assert!(
            out.capacity() <= out.len() + pairs * "\ndata: ".len(),
            "{line:?}"
        );
    }
}

#[test]
fn events_are_written_line_by_line() {
    let mut out = Vec::new();
    write_event(&mut out, Some(b"7"), Some(b"tick"), b"a\r\nb\rc\nd\n");
    write_event(&mut out, None, None, b"");
    write_comment(&mut out, "");
    write_comment(&mut out, "two\nlines");
    write_retry(&mut out, 0);
    write_retry(&mut out, u32::MAX);
    let expected = "event: tick\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \nid: 7\n\n\
        data: \n\n:\n: two\n: lines\nretry: 0\nretry: 4294967295\n";
    assert_eq!(core::str::from_utf8(&out).unwrap(), expected);
}

#[test]
fn the_examples_of_the_standard_are_read() {
    assert_eq!(data("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    assert_eq!(
        events(
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
        ),
        [
            (Some("1".into()), "first event".into()),
            (None, "second event".into()),
            (None, " third event".into()),
        ]
    );
    assert_eq!(data("data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
    assert_eq!(data("data:test\n\ndata: test\n\n"), ["test", "test"]);
}

#[test]
fn lines_end_with_any_of_the_three_endings() {
    for end in ["\n", "\r", "\r\n"] {
        let stream = "\u{feff}data: a\ndata: b\n\n\ndata: c\n\n".replace('\n', end);
        assert_eq!(data(&stream), ["a\nb", "c"], "{end:?}");
    }
    assert_eq!(data("data: a\n\r\ndata: b\r\r\n"), ["a", "b"]);
}

#[test]
fn fields_follow_the_rules() {
    // A byte order mark is ignored only at the very beginning. An id with NUL is ignored. An id holds for later events too.
    assert_eq!(data("data: a\n\n\u{feff}data: b\n\n"), ["a"]);
    let expected_event = |id: &str, data: &str| (Some(id.to_string()), data.to_string());
    assert_eq!(
        events("id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid: 3\n\ndata: c\n\n"),
        [
            expected_event("1", "a"),
            expected_event("1", "b"),
            expected_event("3", "c")
        ]
    );
    let stream = b"event: x\n\nretry: 12\nretry: 1x\nretry\nData: no\nother: no\ndata: a\n\n";
    let expected = OwnedEvent {
        data: b"a".to_vec(),
        retry: Some(12),
        ..OwnedEvent::default()
    };
    assert_eq!(
        assert_same_for_every_split(stream, 100),
        (vec![expected], Ok(()))
    );
    let (events, _) = run(
        b"retry: 99999999999999999999\nevent: y\ndata:\n\n",
        &[],
        100,
    );
    assert_eq!(events[0].retry, Some(u32::MAX));
    assert_eq!(events[0].event.as_deref(), Some(&b"y"[..]));
}

#[test]
fn the_limit_holds_for_lines_and_for_data() {
    let table: &[(&[u8], bool)] = &[
        (b"data: 7890\n\n", true),
        (b"data: 78901\n\n", false),
        (b":2345678901", false),
        (b"data:12345\ndata:1234\n\n", true),
        (b"data:12345\ndata:12345\n\n", false),
        (b"data:12345\n\ndata:12345\n\n", true),
    ];
    for (stream, is_within_limit) in table {
        assert_eq!(
            assert_same_for_every_split(stream, 10).1.is_ok(),
            *is_within_limit,
            "{stream:?}"
        );
    }
}

#[test]
fn control_characters_are_not_field_safe() {
    for byte in 0..=255_u8 {
        assert_eq!(
            is_field_safe(&[b'a', byte]),
            byte >= 0x20 && byte != 0x7F,
            "{byte:#x}"
        );
    }
    assert!(is_field_safe("text/plain; caf\u{e9}".as_bytes()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn stream_reads_back_for_every_split(
        sent in prop::collection::vec(
            (prop::option::of("[ -~]{1,10}"), prop::option::of("[ -~]{1,10}"), "[a:\u{e9} \r\n]{0,100}"),
            1..5,
        ),
        comment in "[ -~\r\n]{0,10}",
        retry in any::<u32>(),
    ) {
        let mut stream = Vec::new();
        write_retry(&mut stream, retry);
        let mut id = None;
        let mut expected = Vec::new();
        for (new_id, event, data) in &sent {
            id = new_id.clone().or(id);
            let bytes = |text: &String| text.as_bytes().to_vec();
            write_event(
                &mut stream,
                new_id.as_ref().map(String::as_bytes),
                event.as_ref().map(String::as_bytes),
                data.as_bytes(),
            );
            write_comment(&mut stream, &comment);
            expected.push(OwnedEvent {
                id: id.as_ref().map(bytes),
                event: event.as_ref().map(bytes),
                data: data.replace("\r\n", "\n").replace('\r', "\n").into_bytes(),
                retry: Some(retry),
            });
        }
        prop_assert_eq!(assert_same_for_every_split(&stream, 10_000), (expected, Ok(())));
    }

    #[test]
    fn arbitrary_streams_read_alike_for_every_split(
        stream in "(data|id|event|retry|[: \r\n\u{feff}\0a7]){0,30}",
        limit in 0_usize..40,
    ) {
        let _ = assert_same_for_every_split(stream.as_bytes(), limit);
    }

    #[test]
    fn arbitrary_bytes_read_alike_for_every_split(
        stream in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let _ = assert_same_for_every_split(&stream, 20);
    }
}
