//! `rumqttc`, Rust's client, inside the test program: TCP, both versions.

use crate::broker::Broker;
use rumqttc::{Client, Connection, Event, LastWill, MqttOptions, Packet, QoS, v5};
use std::time::{Duration, Instant};

/// Whoever waits longer has found a defect.
const PATIENCE: Duration = Duration::from_secs(15);
/// Requests that its queue holds.
const QUEUE: usize = 100;

/// A client of 3.1.1; `clean` says whether its session ends with it.
fn old(broker: &Broker, id: &str, clean: bool, will: Option<LastWill>) -> (Client, Connection) {
    let mut options = MqttOptions::new(id, "127.0.0.1", broker.tcp());
    options.set_clean_session(clean);
    if let Some(will) = will {
        options.set_last_will(will);
    }
    Client::new(options, QUEUE)
}

/// The next packet for which `take` has an answer.
fn await_old<T>(connection: &mut Connection, take: impl Fn(Packet) -> Option<T>) -> T {
    let started = Instant::now();
    while let Some(left) = PATIENCE.checked_sub(started.elapsed()) {
        let event = connection.recv_timeout(left).expect("an event");
        if let Event::Incoming(packet) = event.expect("no error")
            && let Some(found) = take(packet)
        {
            return found;
        }
    }
    panic!("it did not come");
}

fn message(packet: Packet) -> Option<(String, u8, bool)> {
    match packet {
        Packet::Publish(publish) => {
            let text = String::from_utf8(publish.payload.to_vec()).expect("text");
            Some((text, publish.qos as u8, publish.retain))
        }
        _ => None,
    }
}

fn is_subscribed(packet: Packet) -> Option<()> {
    matches!(packet, Packet::SubAck(_)).then_some(())
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn every_quality_in_3_1_1() {
    let broker = Broker::start();
    let (client, mut connection) = old(&broker, "it", true, None);
    client.subscribe("t", QoS::ExactlyOnce).expect("room");
    await_old(&mut connection, is_subscribed);
    for (number, qos) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
        .into_iter()
        .enumerate()
    {
        let text = format!("of {number}");
        client
            .publish("t", qos, false, text.as_bytes())
            .expect("room");
        let came = await_old(&mut connection, message);
        assert_eq!(came, (text, number as u8, false));
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn retained_and_will_in_3_1_1() {
    let broker = Broker::start();
    let (watcher, mut watching) = old(&broker, "watcher", true, None);
    watcher
        .publish("t", QoS::AtLeastOnce, true, "kept")
        .expect("room");
    watcher.subscribe("t", QoS::AtLeastOnce).expect("room");
    let kept = await_old(&mut watching, |packet| message(packet).filter(|it| it.2));
    assert_eq!(kept, ("kept".into(), 1, true));
    let will = LastWill::new("t", "gone", QoS::AtLeastOnce, false);
    let (mortal, mut connection) = old(&broker, "mortal", true, Some(will));
    mortal.subscribe("other", QoS::AtMostOnce).expect("room");
    await_old(&mut connection, is_subscribed);
    // Its socket goes with the connection, without a DISCONNECT.
    drop(connection);
    assert_eq!(await_old(&mut watching, message).0, "gone");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_in_3_1_1() {
    let broker = Broker::start();
    let (client, mut connection) = old(&broker, "it", false, None);
    client.subscribe("t", QoS::AtLeastOnce).expect("room");
    await_old(&mut connection, is_subscribed);
    drop((client, connection));
    let (publisher, mut publishing) = old(&broker, "publisher", true, None);
    for text in ["one", "two"] {
        publisher
            .publish("t", QoS::AtLeastOnce, false, text)
            .expect("room");
        let is_acknowledged = |packet| matches!(packet, Packet::PubAck(_)).then_some(());
        await_old(&mut publishing, is_acknowledged);
    }
    let (_client, mut connection) = old(&broker, "it", false, None);
    for text in ["one", "two"] {
        assert_eq!(await_old(&mut connection, message).0, text);
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn every_quality_and_properties_in_5() {
    use v5::mqttbytes::v5::{Packet, PublishProperties};
    let broker = Broker::start();
    let mut options = v5::MqttOptions::new("it", "127.0.0.1", broker.tcp());
    options.set_clean_start(true);
    let (client, mut connection) = v5::Client::new(options, QUEUE);
    let mut next = |wanted: fn(&Packet) -> bool| loop {
        let event = connection.recv_timeout(PATIENCE).expect("an event");
        match event.expect("no error") {
            v5::Event::Incoming(packet) if wanted(&packet) => return packet,
            _ => {}
        }
    };
    let qualities = [
        v5::mqttbytes::QoS::AtMostOnce,
        v5::mqttbytes::QoS::AtLeastOnce,
        v5::mqttbytes::QoS::ExactlyOnce,
    ];
    client.subscribe("t", qualities[2]).expect("room");
    next(|packet| matches!(packet, Packet::SubAck(_)));
    let properties = PublishProperties {
        content_type: Some("text/x".into()),
        user_properties: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
        ..PublishProperties::default()
    };
    for qos in qualities {
        client
            .publish_with_properties("t", qos, false, "x", properties.clone())
            .expect("room");
        let Packet::Publish(publish) = next(|packet| matches!(packet, Packet::Publish(_))) else {
            unreachable!("it was asked for");
        };
        assert_eq!((publish.qos, publish.payload.as_ref()), (qos, &b"x"[..]));
        let came = publish.properties.expect("properties");
        assert_eq!(came.content_type, properties.content_type);
        assert_eq!(came.user_properties, properties.user_properties);
    }
}
