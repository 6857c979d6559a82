//! The subscriber against a server that sends every byte by itself: messages, latencies and
//! sequences must come out the same however the bytes are cut.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crore_bench::measure::payload::Header;

use crate::{subscribe, wait_for};

/// Serves one connection with `script`, which gets what the client sent first.
fn serve(script: fn(&mut TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        script(&mut stream);
        // It stays open until the client has gone.
        while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
    });
    address
}

fn request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

fn drip(stream: &mut TcpStream, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        stream.write_all(&[*byte]).unwrap();
        if index % 7 == 0 {
            // Now and then long enough that the client surely sees the cut.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Message `sequence` of topic 0, of 40 bytes.
fn payload(sequence: u32) -> Vec<u8> {
    let header = Header {
        run: 9,
        sent_ns: 1,
        topic: 0,
        sequence,
    };
    [&header.encode()[..], b"abcdefgh"].concat()
}

/// Subscribes with `protocol`, waits for four messages, of which the third was left out.
fn check(protocol: &str, address: SocketAddr) {
    let flags = format!("--server {address} --connections 1 --topics t --protocol {protocol}");
    let subscriber = subscribe(&flags);
    wait_for(|| subscriber.tally().messages >= 4);
    let tally = subscriber.tally();
    assert_eq!((tally.messages, tally.unmeasured), (4, 0));
    assert_eq!((tally.lost, tally.doubled, tally.misdelivered), (1, 0, 0));
    assert_eq!((tally.connections.closed, tally.connections.failed), (0, 0));
    subscriber.stop();
}

#[test]
fn websocket_frames_survive_every_cut() {
    let address = serve(|stream| {
        assert!(request(stream).starts_with("GET /sub/t HTTP/1.1\r\n"));
        let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            .to_vec();
        for sequence in [1, 2, 4] {
            bytes.extend([0x81, 40]);
            bytes.extend(payload(sequence));
            bytes.extend([0x89, 2, b'h', b'i']);
        }
        // A length in 16 bits.
        bytes.extend([0x82, 126, 0, 140]);
        bytes.extend([payload(5), vec![b'x'; 100]].concat());
        drip(stream, &bytes);
        let mut pong = [0; 8];
        stream.read_exact(&mut pong).unwrap();
        assert_eq!(pong, [0x8a, 0x82, 0, 0, 0, 0, b'h', b'i']);
    });
    check("ws", address);
}

#[test]
fn chunked_events_survive_every_cut() {
    let address = serve(|stream| {
        assert!(request(stream).contains("Accept: text/event-stream\r\n"));
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut events = b": hi\n\n".to_vec();
        for sequence in [1, 2, 4, 5] {
            events.extend(b"id: 7\ndata: ");
            events.extend(payload(sequence));
            events.extend(b"\n\n");
        }
        for chunk in events.chunks(17) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        drip(stream, &bytes);
    });
    check("sse", address);
}

#[test]
fn mqtt_packets_survive_every_cut() {
    let address = serve(|stream| {
        // CONNECT with its client's name, then SUBSCRIBE to `t`, in one write.
        let mut head = [0; 14];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[2..12], *b"\0\x04MQTT\x04\x02\0\0");
        let mut rest = vec![0; usize::from(head[13]) + 8];
        stream.read_exact(&mut rest).unwrap();
        assert!(rest.ends_with(b"\x82\x06\0\x01\0\x01t\0"));
        let mut bytes = b"\x20\x02\0\0\x90\x03\0\x01\0".to_vec();
        for sequence in [1, 2, 4] {
            bytes.extend(*b"\x30\x2b\0\x01t");
            bytes.extend(payload(sequence));
        }
        // A remaining length of two digits.
        bytes.extend(*b"\x30\x8f\x01\0\x01t");
        bytes.extend([payload(5), vec![b'x'; 100]].concat());
        drip(stream, &bytes);
    });
    check("mqtt", address);
}

/// The client says exactly this.
fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut came = vec![0; wanted.len()];
    stream.read_exact(&mut came).unwrap();
    assert_eq!(came, wanted);
}

#[test]
fn mqtt_in_frames_survives_every_cut_and_is_acknowledged() {
    let address = serve(|stream| {
        assert!(request(stream).contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        let head = b"HTTP/1.1 101 Switching Protocols\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        drip(stream, head);
        // The greeting in one frame: a name of 23 bytes, and `t` at quality of service 2.
        let mut greeting = [0; 6 + 38 + 9];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[..8], [0x82, 0x80 | 47, 0, 0, 0, 0, 0x10, 36]);
        assert!(greeting.ends_with(b"\x00\x01t\x02"));
        let mut bytes = b"\x20\x03\0\0\0\x90\x04\0\x01\0\x02".to_vec();
        for (id, sequence) in [(1, 1), (2, 2), (3, 4), (4, 5)] {
            bytes.extend([0x34, 46, 0, 1, b't', 0, id, 0]);
            bytes.extend(payload(sequence));
        }
        for part in bytes.chunks(17) {
            drip(stream, &[&[0x82, part.len() as u8], part].concat());
        }
        let mut receipts = Vec::new();
        while receipts.len() < 4 * 10 {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            receipts.push(byte[0]);
        }
        assert_eq!(receipts[..10], *b"\x82\x84\0\0\0\0\x50\x02\0\x01");
        assert_eq!(receipts[30..], *b"\x82\x84\0\0\0\0\x50\x02\0\x04");
        drip(stream, b"\x82\x04\x62\x02\0\x03");
        expect(stream, b"\x82\x84\0\0\0\0\x70\x02\0\x03");
    });
    check("mqtt-ws --mqtt-version 5 --qos 2", address);
}

#[test]
fn long_polls_survive_every_cut_and_go_on_from_their_position() {
    let address = serve(|stream| {
        assert!(!request(stream).contains("If-None-Match"));
        drip(stream, b"HTTP/1.1 204 No Content\r\n\r\n");
        for sequence in [1, 2, 4, 5] {
            let asked = request(stream);
            let position = format!("If-None-Match: \"p{}\"\r\n", sequence - 1);
            assert_eq!(asked.contains(&position), matches!(sequence, 2 | 5));
            let head =
                format!("HTTP/1.1 200 OK\r\nETag: \"p{sequence}\"\r\nContent-Length: 40\r\n\r\n");
            drip(stream, &[head.as_bytes(), &payload(sequence)].concat());
        }
        request(stream);
    });
    check("poll", address);
}
