//! A client that asks homes for more than they can answer at once waits for them; the requests of others pass.

use crore_broker::settings::Settings;
use crore_wire::mqtt::encode;
use crore_wire::mqtt::{PacketId, Properties, Qos, RetainHandling, SubscribeOptions, Version};

use crate::{client, town};

/// Filters of a packet, and packets of a read.
const FILTERS: usize = 1_000;
const PACKETS: u16 = 20;
/// Turns in which a request is answered.
const TURNS: usize = 4;

/// Packets that subscribe to the same filter again and again, with QoS 1 and 0 in turn.
fn changes(filter: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in 0..PACKETS {
        let filters = (0..FILTERS).map(|n| {
            let qos = [Qos::AtLeastOnce, Qos::AtMostOnce][n % 2];
            let mut options = SubscribeOptions::of(qos);
            options.retain_handling = RetainHandling::DoNotSend;
            (filter, options)
        });
        let id = PacketId::new(100 + id).expect("not 0");
        encode::subscribe(&mut bytes, Version::V5, id, &Properties::NONE, filters);
    }
    bytes
}

#[test]
fn a_client_that_changes_its_subscription_all_the_time_delays_no_request_of_others() {
    for filter in ["+/a", "a"] {
        let mut town = town(Settings::default());
        let conn = client(&mut town, [filter.to_owned()].into_iter(), Qos::AtMostOnce);
        let before = town.received(conn).len();
        town.say(conn, changes(filter));
        let other = town.open(0);
        town.say(other, "GET /pub/none HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let waits = |_: &usize| {
            town.flush(0);
            town.received(other).is_empty()
        };
        let turns = (1..1_000).take_while(waits).count() + 1;
        assert!(turns <= TURNS, "{turns} turns with {filter}");
        town.settle();
        // Each SUBACK has a code for each filter.
        let answers = town.received(conn).len() - before;
        assert!(answers > FILTERS * usize::from(PACKETS), "{answers} bytes");
    }
}
