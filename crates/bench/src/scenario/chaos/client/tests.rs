//! Tests that a client understands a server's bytes, however the network splits them or cuts them off.

use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::client::subscription::Transport;
use crate::scenario::centrifugo::frames::Format;
use crate::scenario::chaos::shared_state::{Protocol, write_payload};

/// A client of the first two topics. The publish of three messages of each topic has begun.
fn client(transport: Transport) -> (SharedState, Client) {
    let shared = SharedState::new(1, 200);
    shared
        .begun_counts
        .iter()
        .for_each(|count| count.store(3, Relaxed));
    let plan = ClientPlan {
        number: 0,
        protocol: Protocol::Http(transport),
        starts_live: false,
        topics: vec![0, 1],
    };
    let client = Client::new(plan, &shared);
    (shared, client)
}

fn position_of(client: &Client) -> Option<&str> {
    match &client.connection {
        Connection::Http(subscription) => subscription.position.as_deref(),
        Connection::Centrifugo(_) => None,
    }
}

fn payload(topic: u32, number: u32) -> String {
    let mut text = String::new();
    write_payload(topic, number, 60, &mut text);
    text
}

/// The bytes of a server that sends the messages of both topics, without the last message of the second topic.
fn response_bytes(transport: Transport) -> Vec<u8> {
    let order = [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)];
    let messages =
        order.map(|(topic, number)| (format!("p{topic}{number}"), payload(topic, number)));
    let mut out = Vec::new();
    match transport {
        Transport::Poll => {
            for (id, data) in messages {
                let length = data.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nETag: \"{id}\"\r\nContent-Length: {length}\r\n\r\n"
                );
                out.extend_from_slice((head + &data).as_bytes());
            }
        }
        Transport::Sse => {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for (id, data) in messages {
                let text = format!("id: {id}\ndata: {data}\n\n");
                out.extend_from_slice(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
            }
        }
        Transport::Ws => {
            out.extend_from_slice(
                b"HTTP/1.1 101 S\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            );
            for (id, data) in messages {
                let text = format!("id: {id}\n\n{data}");
                out.extend_from_slice(&[0x81, text.len() as u8]);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    out
}

proptest! {
    /// Tests that the client gets the same messages and the same position, and misses one message, however the bytes are split.
    #[test]
    fn torn_bytes_are_whole_messages(cuts in prop::collection::vec(0usize..1200, 0..12)) {
        for transport in [Transport::Ws, Transport::Sse, Transport::Poll] {
            let (shared, mut client) = client(transport);
            let mut totals = ClientTotals::default();
            client.start_connection();
            let bytes = response_bytes(transport);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut start = 0;
            for end in cuts {
                let piece = &bytes[std::mem::replace(&mut start, end)..end];
                prop_assert_eq!(client.handle_bytes(piece, &shared, &mut totals), Ok(NextAction::KeepConnection));
            }
            prop_assert_eq!(position_of(&client).map(|id| id.trim_matches('"')), Some("p03"));
            client.check_missing(&shared, &mut totals);
            let counts = Counts { messages: 5, silent_losses: 1, ..Counts::default() };
            prop_assert_eq!(&totals.counts, &counts);
            prop_assert_eq!(totals.descriptions.len(), 1);
            prop_assert_eq!(totals.corrupt + totals.misdelivered, 0);
        }
    }

    /// Tests that the client gets only complete messages, wherever the bytes are cut off. Its position is that of the last complete
    /// message.
    #[test]
    fn truncated_records_leave_only_complete_messages(cut in 0usize..1200) {
        for transport in [Transport::Ws, Transport::Sse, Transport::Poll] {
            let (shared, mut client) = client(transport);
            let mut totals = ClientTotals::default();
            client.start_connection();
            let bytes = response_bytes(transport);
            let part = &bytes[..cut % (bytes.len() + 1)];
            prop_assert_eq!(client.handle_bytes(part, &shared, &mut totals), Ok(NextAction::KeepConnection));
            client.start_connection();
            let ids = ["p01", "p11", "p02", "p12", "p03"];
            let whole = totals.counts.messages as usize;
            let newest = whole.checked_sub(1).map(|index| ids[index]);
            prop_assert_eq!(position_of(&client).map(|id| id.trim_matches('"')), newest);
        }
    }
}

/// Appends a frame of JSON replies.
fn reply_frame(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x81, 126]);
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The totals of a client of Centrifugo's protocol that subscribes to the first topic and gets these messages.
fn totals_after(numbers: &[u32]) -> ClientTotals {
    let (shared, _) = client(Transport::Ws);
    let plan = ClientPlan {
        number: 0,
        protocol: Protocol::Centrifugo(Format::Json),
        starts_live: true,
        topics: vec![0],
    };
    let name = &shared.topics[0].name;
    let mut client = Client::new(plan, &shared);
    let mut totals = ClientTotals::default();
    client.start_connection();
    let mut bytes =
        Vec::from(b"HTTP/1.1 101 S\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
    reply_frame(r#"{"id":1,"connect":{"client":"c"}}"#, &mut bytes);
    let subscribed = r#"{"id":2,"subscribe":{"epoch":"0000abcd","offset":1}}"#;
    reply_frame(subscribed, &mut bytes);
    for number in numbers {
        let data = payload(0, *number);
        let text = format!(
            r#"{{"push":{{"channel":"{name}","pub":{{"data":"{data}","offset":{number}}}}}}}"#
        );
        reply_frame(&text, &mut bytes);
    }
    let action = client.handle_bytes(&bytes, &shared, &mut totals);
    assert_eq!(action, Ok(NextAction::KeepConnection));
    client.check_missing(&shared, &mut totals);
    totals
}

#[test]
fn a_client_of_centrifugo_notices_losses_and_doubles() {
    let whole = totals_after(&[1, 2, 3]);
    assert_eq!(whole.counts.messages, 3);
    assert!(whole.counts.is_clean());
    assert_eq!(whole.answered_connections, 1);
    let lost = totals_after(&[1, 3]);
    assert_eq!(lost.counts.silent_losses, 1);
    assert_eq!(lost.descriptions.len(), 1);
    let last_lost = totals_after(&[1, 2]);
    assert_eq!(last_lost.counts.silent_losses, 1);
    let doubled = totals_after(&[1, 2, 2, 3]);
    assert_eq!(doubled.counts.doubles, 1);
}
