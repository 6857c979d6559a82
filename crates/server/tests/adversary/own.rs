//! Tests the adversary itself: a seed determines what attackers do, and malformed answers are detected.

use crate::answers::Answers;
use crate::kinds::Kinds;
use crate::script::{Ask, Protocol};
use crore_wire::mqtt::Version;

/// The fault that the judge finds in these bytes, wherever they are cut in two.
fn find_fault(protocol: Protocol, asks: &[Ask], bytes: &[u8]) -> Option<String> {
    let fault = |cut: usize| {
        let mut answers = Answers::new(protocol);
        answers.expect_answers_to(asks);
        let (first, second) = bytes.split_at(cut);
        let first = answers.check(&mut first.to_vec());
        first
            .and_then(|()| answers.check(&mut second.to_vec()))
            .err()
    };
    let verdicts: Vec<bool> = (0..=bytes.len()).map(|cut| fault(cut).is_some()).collect();
    assert!(
        verdicts.iter().all(|bad| *bad == verdicts[0]),
        "the verdict depends on the cut: {verdicts:?}"
    );
    fault(0)
}

#[test]
fn scripts_are_determined_by_their_seed() {
    let (all, some) = (Kinds::new(None), Kinds::new(Some("several,pages")));
    let text = |kinds: &Kinds, seed| -> String {
        let scripts = (0..60).map(|number| kinds.script(seed, number).to_string());
        scripts.collect()
    };
    assert_eq!(text(&all, 7), text(&all, 7));
    assert_ne!(text(&all, 7), text(&all, 8));
    assert_ne!(text(&all, 7), text(&some, 7));
}

#[test]
fn only_malformed_answers_are_reported() {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const LAST: &str =
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
    const SLOW: &str =
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    const UPGRADED: &str = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
    const CLOSE: &str = "\u{8}\u{0}";
    let http = |asks: &[Ask], text: String| {
        // The first byte of a Close frame is no UTF-8 character, so each character stands for one byte here.
        let bytes: Vec<u8> = text
            .bytes()
            .map(|byte| if byte == 8 { 0x88 } else { byte })
            .collect();
        find_fault(Protocol::Http, asks, &bytes)
    };
    let (one_request, two_requests) = ([Ask::Plain], [Ask::Plain; 2]);
    let valid: &[(&[Ask], String)] = &[
        (&two_requests, format!("{OK}{OK}")),
        (&two_requests, format!("{OK}{LAST}")),
        (&one_request, format!("{OK}{SLOW}")),
        (&[], SLOW.to_string()),
        (&[Ask::Plain, Ask::Junk], format!("{CHUNKED}{LAST}")),
        (
            &[Ask::Head, Ask::Plain],
            format!("{}{OK}", OK.trim_end_matches("ok")),
        ),
        (&one_request, format!("HTTP/1.1 100 Continue\r\n\r\n{OK}")),
        (&one_request, format!("{UPGRADED}{CLOSE}")),
    ];
    for (asks, text) in valid {
        assert_eq!(http(asks, text.clone()), None, "{text}");
    }
    let malformed: &[(&[Ask], String)] = &[
        (&one_request, format!("{OK}{OK}")),
        (&one_request, format!("{OK}{LAST}")),
        (&one_request, format!("{OK}more")),
        (&two_requests, format!("{LAST}{OK}")),
        (&[Ask::Head, Ask::Plain], format!("{OK}{OK}")),
        (&[Ask::Junk], OK.to_string()),
        (&one_request, CHUNKED.replace("3\r\n", "x\r\n")),
        (&one_request, format!("{UPGRADED}{CLOSE}{CLOSE}")),
    ];
    for (asks, text) in malformed {
        assert!(http(asks, text.clone()).is_some(), "{text}");
    }
}

/// The port speaks HTTP too. If the server read nothing in time, it cannot know that a CONNECT is under way, so it refuses over HTTP.
#[test]
fn only_a_first_refusal_over_http_is_a_valid_answer_to_mqtt() {
    let mqtt = |text: &str| find_fault(Protocol::Mqtt(Version::V5), &[], text.as_bytes());
    let refusal = |status: &str, connection: &str| {
        format!("HTTP/1.1 {status}\r\nConnection: {connection}\r\nContent-Length: 5\r\n\r\nwords")
    };
    for status in [
        "408 Request Timeout",
        "429 Too Many Requests",
        "503 Service Unavailable",
    ] {
        assert_eq!(mqtt(&refusal(status, "close")), None);
    }
    let late = refusal("408 Request Timeout", "close");
    for malformed in [
        refusal("400 Bad Request", "close"),
        refusal("408 Request Timeout", "keep-alive"),
        format!("{late}more"),
        format!("{late}{late}"),
        format!(" \x03\0\0\0{late}"),
        "HTTQ/1.1 408 Request Timeout\r\n\r\n".to_string(),
    ] {
        assert!(mqtt(&malformed).is_some(), "{malformed:?}");
    }
}

#[test]
fn only_malformed_packets_are_reported() {
    let mqtt = |bytes: &[u8]| find_fault(Protocol::Mqtt(Version::V5), &[], bytes);
    let connack = [0x20, 3, 0, 0, 0];
    let (pong, bye) = ([0xd0, 0], [0xe0, 0]);
    assert_eq!(mqtt(&[&connack[..], &pong, &bye].concat()), None);
    for malformed in [
        pong.to_vec(),
        [&connack[..], &connack].concat(),
        [&connack[..], &bye, &pong].concat(),
        [&connack[..], &[0xc0, 0]].concat(),
        [&connack[..], &[0xd0, 1, 0]].concat(),
        [&connack[..], &[0x40, 2, 0, 0]].concat(),
    ] {
        assert!(mqtt(&malformed).is_some(), "{malformed:02x?}");
    }
}

#[test]
fn malformed_http_2_frames_are_reported() {
    let http2 = |bytes: &[u8]| find_fault(Protocol::Http2, &[], bytes);
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let ping = b"\0\0\x08\x06\x01\0\0\0\0abcdefgh";
    assert_eq!(http2(&[&settings[..], ping].concat()), None);
    assert_eq!(http2(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), None);
    assert!(http2(ping).is_some());
    assert!(http2(&[&settings[..], b"\0\x40\x01\0\0\0\0\0\x01"].concat()).is_some());
}
