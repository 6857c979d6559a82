//! Tests chunked bodies.

use crore_wire::http::body::{BodyError, ChunkedDecoder, MAX_EXTENSION_BYTES, MAX_TRAILER_BYTES};
use proptest::prelude::*;

/// The data, the bytes after the end, and whether the body has ended; or the error.
type Outcome = Result<(Vec<u8>, Vec<u8>, bool), BodyError>;

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Outcome {
    let mut chunked = ChunkedDecoder::default();
    let (mut data, mut trailing, mut is_done) = (Vec::new(), Vec::new(), false);
    for piece in pieces {
        let mut buf = piece.to_vec();
        let progress = chunked.decode(&mut buf, limit)?;
        assert!(progress.written <= progress.consumed && progress.consumed <= buf.len());
        assert!(progress.done || progress.consumed == buf.len());
        assert_eq!(
            buf[progress.consumed..],
            piece[progress.consumed..],
            "what follows is untouched"
        );
        data.extend_from_slice(&buf[..progress.written]);
        trailing.extend_from_slice(&buf[progress.consumed..]);
        is_done |= progress.done;
    }
    Ok((data, trailing, is_done))
}

#[test]
fn chunks_are_joined_in_place() {
    let text = b"4\r\nWiki\r\n06;name=\"v;x\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n000;last\r\nA: b\r\nC:\r\n\r\nGET /";
    let (data, trailing, is_done) = decode([&text[..]], 100).unwrap();
    assert_eq!(data, b"Wikipedia in \r\n\r\nchunks.");
    assert_eq!((&trailing[..], is_done), (&b"GET /"[..], true));
}

#[test]
fn malformed_framing_is_refused() {
    for text in [
        "\r\n",
        ";x\r\n",
        " 1\r\na",
        "1 \r\na\r\n",
        "g\r\n",
        "+1\r\n",
        "-1\r\n",
        "0x1\r\n",
        "1\na",
        "1\rx",
        "1;a\nb",
        "1;a\0b",
        "1\r\naX",
        "1\r\na\n",
        "1\r\na\rX",
        "1\r\nab\r\n",
        "0\r\nA: b\n\r\n",
        "0\r\nA: b\r\r\n",
        "0\r\n\n",
        "0\r\n\rX",
        "00000000000000000",
        "0\r\n\0",
    ] {
        assert!(
            matches!(decode([text.as_bytes()], 100), Err(BodyError::Malformed(_))),
            "{text:?}"
        );
    }
}

#[test]
fn extensions_are_names_with_or_without_values() {
    for (text, is_valid) in [
        // Chunk extensions: RFC 9112 section 7.1.1.
        ("5;a", true),
        ("5;a=b", true),
        ("5;a=\"\"", true),
        ("5;a=\"b;c\\\"\\\\d\u{e9}\"", true),
        ("5;a;b=c;d", true),
        // Superfluous whitespace is accepted and ignored (RFC 9110 section 5.6.3).
        ("5 ;a", true),
        ("5\t; a = b ; c", true),
        ("5;", false),
        ("5;;a", false),
        ("5;=b", false),
        ("5;a=", false),
        ("5;a=b=c", false),
        ("5;a b", false),
        ("5;a=b c", false),
        ("5;a ", false),
        ("5;a=b ", false),
        ("5 ", false),
        ("5;bad[=x", false),
        ("5;a=[", false),
        ("5;a=\"b", false),
        ("5;a=\"b\"c", false),
        ("5;a=\"\u{7f}\"", false),
        ("5;a=\"\\\u{1}\"", false),
    ] {
        let whole = format!("{text}\r\nhello\r\n0\r\n\r\n");
        let result = decode([whole.as_bytes()], 100);
        assert_eq!(
            result.is_ok_and(|(_, _, is_done)| is_done),
            is_valid,
            "{text:?}"
        );
    }
}

#[test]
fn trailers_are_fields() {
    for (text, is_valid) in [
        // Trailer fields: RFC 9112 sections 5 and 7.1.2.
        ("A: b\r\n", true),
        ("A:\r\nB:c:d \r\n", true),
        ("A\r\n", false),
        ("A b\r\n", false),
        ("A : b\r\n", false),
        (": b\r\n", false),
        ("A[: b\r\n", false),
        (" A: b\r\n", false),
        ("A: b\r\n c\r\n", false),
    ] {
        let whole = format!("0\r\n{text}\r\n");
        let result = decode([whole.as_bytes()], 100);
        assert_eq!(
            result.is_ok_and(|(_, _, is_done)| is_done),
            is_valid,
            "{text:?}"
        );
    }
}

#[test]
fn the_limit_counts_announced_data() {
    assert!(
        decode([&b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n"[..]], 10)
            .unwrap()
            .2
    );
    assert_eq!(
        decode([&b"5\r\nhello\r\n6\r\n"[..]], 10),
        Err(BodyError::TooLarge)
    );
    assert_eq!(
        decode([&b"ffffffffffffffff\r\n"[..]], usize::MAX).map(|o| o.2),
        Ok(false)
    );
    assert_eq!(
        decode([&b"1\r\na\r\nffffffffffffffff\r\n"[..]], usize::MAX),
        Err(BodyError::TooLarge)
    );
    assert_eq!(BodyError::TooLarge.status(), 413);
}

#[test]
fn framing_is_bounded_over_the_whole_body() {
    let chunk = format!("1;{}\r\na\r\n", "x".repeat(1024));
    let times = MAX_EXTENSION_BYTES as usize / 1024;
    assert!(decode([chunk.repeat(times).as_bytes()], 1000).is_ok());
    assert!(decode([chunk.repeat(times + 1).as_bytes()], 1000).is_err());

    let trailers = |n: usize| format!("0\r\n{}\r\n", "A: 45678\r\n".repeat(n));
    let fields_max = MAX_TRAILER_BYTES as usize / 8;
    assert!(decode([trailers(fields_max).as_bytes()], 0).unwrap().2);
    assert!(decode([trailers(fields_max + 1).as_bytes()], 0).is_err());
}

fn coded() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..40),
        "0{0,2}",
        "( ?; ?[a-z]{1,4}( ?= ?([a-z]{1,4}|\"([ -!#-Z]|\\\\[ -~]){0,4}\"))?){0,3}",
    );
    (
        prop::collection::vec(chunk, 0..6),
        "(X: [ -~]{0,9}\r\n){0,2}",
    )
        .prop_map(|(chunks, trailers)| {
            let (mut data, mut coded) = (Vec::new(), Vec::new());
            for (chunk, zeros, extension) in chunks {
                coded.extend_from_slice(
                    format!("{zeros}{:X}{extension}\r\n", chunk.len()).as_bytes(),
                );
                coded.extend_from_slice(&chunk);
                coded.extend_from_slice(b"\r\n");
                data.extend_from_slice(&chunk);
            }
            coded.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
            (data, coded)
        })
}

proptest! {
    #[test]
    fn any_split_equals_the_whole((data, mut coded) in coded()) {
        let end = coded.len();
        coded.extend_from_slice(b"next");
        let expected = Ok((data, b"next".to_vec(), true));
        prop_assert_eq!(&decode([&coded[..]], 1000), &expected);
        prop_assert_eq!(&decode(coded.chunks(1), 1000), &expected);
        for at in 0..=coded.len() {
            let (a, b) = coded.split_at(at);
            prop_assert_eq!(&decode([a, b], 1000), &expected, "split at {}", at);
            prop_assert_eq!(decode([a], 1000).map(|o| o.2), Ok(at >= end), "an end at {}", at);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"0123af\r\n;".to_vec())], 0..80), limit in 0usize..40) {
        let expected = decode([&bytes[..]], limit);
        prop_assert_eq!(&decode(bytes.chunks(1), limit), &expected);
        if let Ok((data, _, _)) = expected {
            prop_assert!(data.len() <= limit);
        }
    }
}
