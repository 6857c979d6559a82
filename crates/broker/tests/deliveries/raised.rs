//! Tests a SUBSCRIBE that raises the QoS of a subscription from 0. The shard must send the SUBACK only when the homes (the parts of shards that keep
//! topics) keep messages for the subscription. Otherwise a message after the SUBACK could be lost while the client has reached its Receive Maximum.

use crore_wire::mqtt::{
    self, PacketId, Properties, Qos, RetainHandling, SubscribeOptions, Version,
};

use super::closing::{far, two_shards};
use super::*;

/// The packet type of a SUBACK.
const SUBACK: u8 = 9;

pub(super) fn connect(client_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let connect = mqtt::Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        properties: Properties::NONE,
        client_id,
        will: None,
        user_name: None,
        password: None,
    };
    mqtt::encode::connect(&mut out, &connect);
    out
}

pub(super) fn subscribe(id: u16, filter: &str, max_qos: Qos) -> Vec<u8> {
    let mut out = Vec::new();
    let options = SubscribeOptions {
        retain_handling: RetainHandling::DoNotSend,
        ..SubscribeOptions::of(max_qos)
    };
    let id = PacketId::new(id).expect("not 0");
    let filters = [(filter, options)].into_iter();
    mqtt::encode::subscribe(&mut out, Version::V5, id, &Properties::NONE, filters);
    out
}

/// Packet type and packet id of the last packet that the client received, which must be a SUBACK with one code.
fn last(server: &TestServer, link: usize) -> (u8, u16) {
    let bytes = server.received(link);
    let suback = &bytes[bytes.len() - 6..];
    (suback[0] >> 4, u16::from_be_bytes([suback[2], suback[3]]))
}

#[test]
fn a_suback_that_raises_the_qos_waits_for_the_homes() {
    for filter in [far(), "t/#".into()] {
        let mut server = two_shards(|_| {});
        let link = server.connect_and_send(connect("it"));
        let settle = |server: &mut TestServer| {
            for _ in 0..3 {
                server.settle();
                server.run_remote_shard();
            }
        };
        settle(&mut server);
        server.send(link, subscribe(1, &filter, Qos::AtMostOnce));
        settle(&mut server);
        assert_eq!(last(&server, link), (SUBACK, 1), "{filter}");
        server.send(link, subscribe(2, &filter, Qos::AtLeastOnce));
        server.settle();
        let before = last(&server, link);
        assert_eq!(before, (SUBACK, 1), "{filter}");
        settle(&mut server);
        assert_eq!(last(&server, link), (SUBACK, 2), "{filter}");
    }
}
