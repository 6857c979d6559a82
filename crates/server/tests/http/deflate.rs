//! Tests permessage-deflate (RFC 7692): negotiation, use, and abuse.

use crate::support::Server;
use crate::support::http::publish;
use crate::support::ws::{CLOSE, CONTINUATION, FIN, Frame, RSV1, TEXT, Ws};
use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress, create_comp_flags_from_zip_params,
};
use miniz_oxide::inflate::decompress_to_vec_with_limit;

const OFFER: &[(&str, &str)] = &[(
    "Sec-WebSocket-Extensions",
    "permessage-deflate; client_max_window_bits",
)];

fn open(server: &Server, target: &str) -> Ws {
    let ws = Ws::open(server, target, OFFER);
    let answer = ws
        .head
        .header("sec-websocket-extensions")
        .expect("the extension is accepted");
    let words: Vec<&str> = answer.split(';').map(str::trim).collect();
    assert_eq!(words[0], "permessage-deflate");
    assert!(
        words.contains(&"server_no_context_takeover"),
        "a broadcast is compressed once: {answer}"
    );
    ws
}

/// Inflates a message. The sender has removed the last four bytes, so they are appended first (RFC 7692 section 7.2.2). An empty final
/// block follows, because this decompressor requires the end of the stream.
fn inflated(payload: &[u8]) -> Vec<u8> {
    let deflate_stream = [payload, &[0, 0, 0xff, 0xff], &[1, 0, 0, 0xff, 0xff]].concat();
    decompress_to_vec_with_limit(&deflate_stream, 1 << 24).expect("deflated data")
}

/// Compresses a message by RFC 7692 section 7.2.1.
fn deflated(data: &[u8]) -> Vec<u8> {
    let mut compressor = CompressorOxide::new(create_comp_flags_from_zip_params(6, 0, 0));
    let mut out = vec![0; data.len() / 2 + 1024];
    let (_, read, written) = compress(&mut compressor, data, &mut out, TDEFLFlush::Sync);
    assert_eq!(read, data.len());
    out.truncate(written);
    assert!(out.ends_with(&[0, 0, 0xff, 0xff]));
    out.truncate(written - 4);
    out
}

#[test]
fn broadcast_is_compressed_once_for_all_subscribers() {
    let server = Server::start();
    let mut first = open(&server, "/sub/news");
    let mut second = open(&server, "/sub/news");
    let mut plain = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 3);
    let text = "the same words again and again, ".repeat(50);
    for _ in 0..3 {
        publish(&server, "news", &text);
        let frame = first.message();
        assert_eq!(frame.first, FIN | RSV1 | TEXT);
        assert!(
            frame.payload.len() < text.len() / 4,
            "{} of {} bytes",
            frame.payload.len(),
            text.len()
        );
        assert_eq!(inflated(&frame.payload), text.as_bytes());
        assert_eq!(second.message(), frame);
        assert_eq!(
            plain.message(),
            Frame {
                first: FIN | TEXT,
                payload: text.clone().into_bytes()
            }
        );
    }
}

#[test]
fn small_messages_are_not_compressed() {
    let server = Server::start();
    let mut ws = open(&server, "/sub/news");
    server.await_subscribers("news", 1);
    publish(&server, "news", "short");
    assert_eq!(
        ws.message(),
        Frame {
            first: FIN | TEXT,
            payload: b"short".to_vec()
        }
    );
}

#[test]
fn message_from_the_log_is_not_compressed() {
    let server = Server::start();
    let text = "the same words again and again, ".repeat(50);
    publish(&server, "news", &text);
    let mut resumed = open(&server, "/sub/news?since=oldest");
    let plain = Frame {
        first: FIN | TEXT,
        payload: text.clone().into_bytes(),
    };
    assert_eq!(resumed.message(), plain);
    publish(&server, "news", &text);
    assert_eq!(
        resumed.message().first,
        FIN | RSV1 | TEXT,
        "what is live is compressed"
    );
}

#[test]
fn a_client_may_compress_whole_or_in_fragments() {
    let server = Server::start();
    let mut ws = open(&server, "/pub/news");
    let mut reader = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let text = "the same words again and again, ".repeat(3000);
    let small = deflated(text.as_bytes());
    ws.send(FIN | RSV1 | TEXT, &small);
    assert_eq!(reader.message().payload, text.as_bytes());
    ws.send(RSV1 | TEXT, &small[..small.len() / 2]);
    ws.send(FIN | CONTINUATION, &small[small.len() / 2..]);
    assert_eq!(reader.message().payload, text.as_bytes());
    ws.send(FIN | TEXT, "not compressed");
    assert_eq!(reader.message().payload, b"not compressed");
    // RFC 7692 section 7.2.3.6: an empty message is one zero byte.
    ws.send(FIN | RSV1 | TEXT, [0]);
    assert_eq!(reader.message().payload, b"");
}

#[test]
fn message_that_inflates_beyond_the_limit_is_1009() {
    let server = Server::start();
    let bytes_before = server.resident_bytes();
    for size in [(1 << 20) + 1, 64 << 20] {
        let mut ws = open(&server, "/pub/news");
        ws.send(FIN | RSV1 | TEXT, deflated(&vec![b'a'; size]));
        assert_eq!(ws.closed(), Some(1009), "{size} bytes");
    }
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(grown < 16 << 20, "it grew by {grown} bytes");
}

#[test]
fn invalid_deflate_data_closes_the_connection() {
    let server = Server::start();
    for bytes in [
        &b"\xff\xff\xff\xff"[..],
        b"\x07",
        b"garbage that is no block",
    ] {
        let mut ws = open(&server, "/pub/news");
        ws.send(FIN | RSV1 | TEXT, bytes);
        let frame = ws.frame();
        assert_eq!(frame.opcode(), CLOSE);
        assert_eq!(frame.close_code(), Some(1007), "{bytes:?}");
    }
    let mut ws = open(&server, "/pub/news");
    ws.send(FIN | RSV1 | TEXT, deflated(b"a\xff no UTF-8 within"));
    assert_eq!(ws.closed(), Some(1007), "UTF-8 is checked after inflating");
}

#[test]
fn rsv1_belongs_to_the_first_fragment_of_a_message_only() {
    let server = Server::start();
    let mut ws = open(&server, "/pub/news");
    ws.send(TEXT, "a");
    ws.send(FIN | RSV1 | CONTINUATION, "b");
    assert_eq!(ws.closed(), Some(1002));
    let mut ws = open(&server, "/pub/news");
    ws.send(FIN | RSV1 | crate::support::ws::PING, "b");
    assert_eq!(ws.closed(), Some(1002));
}

#[test]
fn an_offer_that_cannot_be_met_is_declined() {
    let server = Server::with("[deflate]\nenabled = false\n");
    let off = Ws::open(&server, "/sub/news", OFFER);
    assert_eq!(off.head.header("sec-websocket-extensions"), None);
    let server = Server::start();
    for offer in [
        "x-webkit-deflate-frame",
        "permessage-deflate; unknown_parameter",
        "permessage-deflate; server_max_window_bits=99",
    ] {
        let ws = Ws::open(&server, "/sub/news", &[("Sec-WebSocket-Extensions", offer)]);
        assert_eq!(ws.head.header("sec-websocket-extensions"), None, "{offer}");
    }
}
