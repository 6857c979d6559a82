//! Any packet of either version, as an owned value: a proptest strategy, the encoding, and a comparison with a decoded packet.

use crate::props::{self, Props};
use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, PacketType, Properties, Publish,
    Qos, ReasonCode, RetainHandling, SubscribeOptions, Version, Will, encode,
};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub struct OwnedWill {
    qos: Qos,
    retain: bool,
    props: Props,
    topic: String,
    payload: Vec<u8>,
}

#[derive(Clone, Debug)]
pub enum Owned {
    Connect {
        clean: bool,
        keep_alive_s: u16,
        props: Props,
        client_id: String,
        will: Option<OwnedWill>,
        user_name: Option<String>,
        password: Option<Vec<u8>>,
    },
    ConnAck(bool, ReasonCode, Props),
    Publish(bool, bool, Option<(Qos, PacketId)>, String, Props, Vec<u8>),
    Ack(PacketType, PacketId, ReasonCode, Props),
    Subscribe(PacketId, Props, Vec<(String, SubscribeOptions)>),
    Unsubscribe(PacketId, Props, Vec<String>),
    Acks(PacketType, PacketId, Props, Vec<ReasonCode>),
    Ping(bool),
    Disconnect(ReasonCode, Props),
    Auth(ReasonCode, Props),
}

impl Owned {
    /// The encoded packet.
    pub fn encoded(&self, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Owned::Connect { props, will, .. } => {
                let props = props.built();
                let of_will = will.as_ref().map(|will| will.props.built());
                let will = will.as_ref().zip(of_will.as_ref());
                let will = will.map(|(will, props)| will.borrowed(props.properties()));
                encode::connect(&mut out, &self.connect(version, props.properties(), will));
            }
            Owned::ConnAck(session_present, reason, props) => {
                let built = props.built();
                let connack = ConnAck {
                    session_present: *session_present,
                    reason: *reason,
                    properties: built.properties(),
                };
                encode::connack(&mut out, version, &connack);
            }
            Owned::Publish(.., props, _) => {
                let props = props.built();
                encode::publish(&mut out, version, &self.publish(props.properties()));
            }
            Owned::Ack(kind, packet_id, reason, props) => {
                let built = props.built();
                let ack = Ack {
                    packet_id: *packet_id,
                    reason: *reason,
                    properties: built.properties(),
                };
                match kind {
                    PacketType::PubAck => encode::puback(&mut out, version, &ack),
                    PacketType::PubRec => encode::pubrec(&mut out, version, &ack),
                    PacketType::PubRel => encode::pubrel(&mut out, version, &ack),
                    _ => encode::pubcomp(&mut out, version, &ack),
                }
            }
            Owned::Subscribe(id, props, filters) => {
                let filters = filters.iter().map(|(f, options)| (f.as_str(), *options));
                let props = props.built();
                encode::subscribe(&mut out, version, *id, &props.properties(), filters);
            }
            Owned::Unsubscribe(id, props, filters) => {
                let (props, filters) = (props.built(), filters.iter().map(String::as_str));
                encode::unsubscribe(&mut out, version, *id, &props.properties(), filters);
            }
            Owned::Acks(kind, id, props, reasons) => {
                let (props, reasons) = (props.built(), reasons.iter().copied());
                let props = props.properties();
                match kind {
                    PacketType::SubAck => encode::suback(&mut out, version, *id, &props, reasons),
                    _ => encode::unsuback(&mut out, version, *id, &props, reasons),
                }
            }
            Owned::Ping(true) => encode::pingreq(&mut out),
            Owned::Ping(false) => encode::pingresp(&mut out),
            Owned::Disconnect(reason, props) => {
                let built = props.built();
                let disconnect = Disconnect {
                    reason: *reason,
                    properties: built.properties(),
                };
                encode::disconnect(&mut out, version, &disconnect);
            }
            Owned::Auth(reason, props) => {
                let built = props.built();
                let auth = Auth {
                    reason: *reason,
                    properties: built.properties(),
                };
                encode::auth(&mut out, &auth);
            }
        }
        out
    }

    fn connect<'a>(
        &'a self,
        version: Version,
        properties: Properties<'a>,
        will: Option<Will<'a>>,
    ) -> Connect<'a> {
        let Owned::Connect {
            clean,
            keep_alive_s,
            client_id,
            user_name,
            password,
            ..
        } = self
        else {
            unreachable!()
        };
        Connect {
            version,
            bridge: false,
            clean_start: *clean,
            keep_alive_s: *keep_alive_s,
            properties,
            client_id,
            will,
            user_name: user_name.as_deref(),
            password: password.as_deref(),
        }
    }

    fn publish<'a>(&'a self, properties: Properties<'a>) -> Publish<'a> {
        let Owned::Publish(dup, retain, qos, topic, _, payload) = self else {
            unreachable!()
        };
        Publish {
            dup: *dup,
            qos: qos.map_or(Qos::AtMostOnce, |(qos, _)| qos),
            retain: *retain,
            topic,
            packet_id: qos.map(|(_, id)| id),
            properties,
            payload,
        }
    }

    /// Panics unless `packet` is the same packet.
    pub fn assert_is(&self, packet: &Packet<'_>) {
        match (self, packet) {
            (Owned::Connect { props, will, .. }, Packet::Connect(connect)) => {
                props.assert_is(&connect.properties);
                assert_eq!(will.is_some(), connect.will.is_some());
                let will = will.as_ref().zip(connect.will).map(|(will, actual)| {
                    will.props.assert_is(&actual.properties);
                    will.borrowed(actual.properties)
                });
                assert_eq!(
                    self.connect(connect.version, connect.properties, will),
                    *connect
                );
            }
            (Owned::ConnAck(present, reason, props), Packet::ConnAck(connack)) => {
                props.assert_is(&connack.properties);
                assert_eq!(*present, connack.session_present);
                assert_eq!(*reason, connack.reason);
            }
            (Owned::Publish(.., props, _), Packet::Publish(publish)) => {
                props.assert_is(&publish.properties);
                assert_eq!(self.publish(publish.properties), *publish);
            }
            (
                Owned::Ack(kind, id, reason, props),
                Packet::PubAck(ack)
                | Packet::PubRec(ack)
                | Packet::PubRel(ack)
                | Packet::PubComp(ack),
            ) => {
                props.assert_is(&ack.properties);
                assert_eq!(
                    (*kind, *id, *reason),
                    (packet.kind(), ack.packet_id, ack.reason)
                );
            }
            (Owned::Subscribe(id, props, filters), Packet::Subscribe(subscribe)) => {
                props.assert_is(&subscribe.properties);
                assert_eq!(*id, subscribe.packet_id);
                assert_eq!(filters.len(), subscribe.filters.len());
                let expected = filters.iter().map(|(f, options)| (f.as_str(), *options));
                assert!(expected.eq(subscribe.filters.iter()));
            }
            (Owned::Unsubscribe(id, props, filters), Packet::Unsubscribe(unsubscribe)) => {
                props.assert_is(&unsubscribe.properties);
                assert_eq!(*id, unsubscribe.packet_id);
                assert_eq!(filters.len(), unsubscribe.filters.len());
                let expected = filters.iter().map(String::as_str);
                assert!(expected.eq(unsubscribe.filters.iter()));
            }
            (Owned::Acks(PacketType::SubAck, id, props, reasons), Packet::SubAck(acks)) => {
                props.assert_is(&acks.properties);
                assert_eq!(*id, acks.packet_id);
                assert!(acks.reasons.iter().eq(reasons.iter().copied()));
            }
            (Owned::Acks(PacketType::UnsubAck, id, props, reasons), Packet::UnsubAck(acks)) => {
                props.assert_is(&acks.properties);
                assert_eq!(*id, acks.packet_id);
                assert!(acks.reasons.iter().eq(reasons.iter().copied()));
            }
            (Owned::Ping(true), Packet::PingReq) | (Owned::Ping(false), Packet::PingResp) => {}
            (Owned::Disconnect(reason, props), Packet::Disconnect(disconnect)) => {
                props.assert_is(&disconnect.properties);
                assert_eq!(*reason, disconnect.reason);
            }
            (Owned::Auth(reason, props), Packet::Auth(auth)) => {
                props.assert_is(&auth.properties);
                assert_eq!(*reason, auth.reason);
            }
            _ => panic!("{self:?} became {packet:?}"),
        }
    }
}

impl OwnedWill {
    fn borrowed<'a>(&'a self, properties: Properties<'a>) -> Will<'a> {
        Will {
            qos: self.qos,
            retain: self.retain,
            properties,
            topic: &self.topic,
            payload: &self.payload,
        }
    }
}

pub fn versions() -> impl Strategy<Value = Version> {
    prop_oneof![Just(V311), Just(V5)]
}

/// Any packet that may be sent in this version.
pub fn packets(version: Version) -> BoxedStrategy<Owned> {
    let mut kinds = vec![
        connects(version),
        connacks(version),
        publishes(version),
        acks(version),
        subscribes(version),
        unsubscribes(version),
        lists_of_reasons(version),
        any::<bool>().prop_map(Owned::Ping).boxed(),
        disconnects(version),
    ];
    if version == V5 {
        kinds.push(auths());
    }
    proptest::strategy::Union::new(kinds).boxed()
}

fn connects(version: Version) -> BoxedStrategy<Owned> {
    let will = (
        qos(),
        any::<bool>(),
        props::any_of(version, props::WILL),
        topics(),
        bytes(),
    )
        .prop_map(|(qos, retain, props, topic, payload)| OwnedWill {
            qos,
            retain,
            props,
            topic,
            payload,
        });
    (
        any::<(bool, u16)>(),
        props::any_of(version, props::CONNECT),
        texts(),
        option::of(will),
        option::of(texts()),
        option::of(bytes()),
    )
        .prop_map(
            move |((clean, keep_alive_s), props, client_id, will, user_name, password)| {
                Owned::Connect {
                    clean,
                    keep_alive_s,
                    props,
                    client_id,
                    will,
                    password: password.filter(|_| version == V5 || user_name.is_some()),
                    user_name,
                }
            },
        )
        .boxed()
}

fn connacks(version: Version) -> BoxedStrategy<Owned> {
    let code = match version {
        V311 => (0_u8..6)
            .prop_map(|code| ReasonCode::from_connect_return_code(code).unwrap())
            .boxed(),
        V5 => reasons(PacketType::ConnAck),
    };
    (any::<bool>(), code, props::any_of(version, props::CONNACK))
        .prop_map(|(present, code, props)| {
            Owned::ConnAck(present && code == ReasonCode::SUCCESS, code, props)
        })
        .boxed()
}

fn publishes(version: Version) -> BoxedStrategy<Owned> {
    let qos = option::of((1_u8..3, ids()).prop_map(|(qos, id)| (Qos::from_repr(qos).unwrap(), id)));
    (
        any::<(bool, bool)>(),
        qos,
        topics(),
        props::any_of(version, props::PUBLISH),
        bytes(),
    )
        .prop_map(|((dup, retain), qos, topic, props, payload)| {
            Owned::Publish(dup && qos.is_some(), retain, qos, topic, props, payload)
        })
        .boxed()
}

fn acks(version: Version) -> BoxedStrategy<Owned> {
    use PacketType::{PubAck, PubComp, PubRec, PubRel};
    prop::sample::select(vec![PubAck, PubRec, PubRel, PubComp])
        .prop_flat_map(move |kind| {
            let reason = match version {
                V311 => Just(ReasonCode::SUCCESS).boxed(),
                V5 => reasons(kind),
            };
            let props = props::any_of(version, props::ACK);
            (Just(kind), ids(), reason, props)
        })
        .prop_map(|(kind, id, reason, props)| Owned::Ack(kind, id, reason, props))
        .boxed()
}

fn subscribes(version: Version) -> BoxedStrategy<Owned> {
    let options = (qos(), any::<(bool, bool)>(), 0..3_u8).prop_map(
        move |(max_qos, (no_local, retain_as_published), handling)| match version {
            V311 => SubscribeOptions::of(max_qos),
            V5 => SubscribeOptions {
                max_qos,
                no_local,
                retain_as_published,
                retain_handling: match handling {
                    0 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            },
        },
    );
    let filter = (filters(), options).prop_map(|(filter, mut options)| {
        options.no_local &= !filter.starts_with("$share");
        (filter, options)
    });
    (
        ids(),
        props::any_of(version, props::SUBSCRIBE),
        vec(filter, 1..5),
    )
        .prop_map(|(id, props, filters)| Owned::Subscribe(id, props, filters))
        .boxed()
}

fn unsubscribes(version: Version) -> BoxedStrategy<Owned> {
    (
        ids(),
        props::any_of(version, props::UNSUBSCRIBE),
        vec(filters(), 1..5),
    )
        .prop_map(|(id, props, filters)| Owned::Unsubscribe(id, props, filters))
        .boxed()
}

fn lists_of_reasons(version: Version) -> BoxedStrategy<Owned> {
    any::<bool>()
        .prop_flat_map(move |sub| {
            let kind = match sub {
                true => PacketType::SubAck,
                false => PacketType::UnsubAck,
            };
            let codes = match (version, sub) {
                (V5, _) => vec(reasons(kind), 1..5).boxed(),
                (V311, true) => {
                    let v311_reasons =
                        reasons(kind).prop_filter("of 3.1.1", |code| code.value() <= 0x80);
                    vec(v311_reasons, 1..5).boxed()
                }
                (V311, false) => Just(Vec::new()).boxed(),
            };
            (Just(kind), ids(), props::any_of(version, props::ACK), codes)
        })
        .prop_map(|(kind, id, props, codes)| Owned::Acks(kind, id, props, codes))
        .boxed()
}

fn disconnects(version: Version) -> BoxedStrategy<Owned> {
    let reason = match version {
        V311 => Just(ReasonCode::NORMAL_DISCONNECTION).boxed(),
        V5 => reasons(PacketType::Disconnect),
    };
    (reason, props::any_of(version, props::DISCONNECT))
        .prop_map(|(reason, props)| Owned::Disconnect(reason, props))
        .boxed()
}

fn auths() -> BoxedStrategy<Owned> {
    (reasons(PacketType::Auth), props::auth())
        .prop_map(|(reason, props)| Owned::Auth(reason, props))
        .boxed()
}

fn reasons(kind: PacketType) -> BoxedStrategy<ReasonCode> {
    let known_reasons: Vec<ReasonCode> = (0..=255)
        .filter_map(|code| ReasonCode::for_packet(code, kind))
        .collect();
    prop::sample::select(known_reasons).boxed()
}

fn qos() -> impl Strategy<Value = Qos> {
    (0_u8..3).prop_map(|bits| Qos::from_repr(bits).unwrap())
}

fn ids() -> impl Strategy<Value = PacketId> {
    (1_u16..=u16::MAX).prop_map(|id| PacketId::new(id).unwrap())
}

pub fn texts() -> impl Strategy<Value = String> {
    "[^\0]{0,9}"
}

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..20)
}

pub fn topics() -> impl Strategy<Value = String> {
    "[^\0+#]{1,20}"
}

fn filters() -> impl Strategy<Value = String> {
    prop_oneof![
        "([a-c]{0,3}/|\\+/){0,3}(x|\\+|#)",
        "\\$share/[a-z]{1,4}/(a/|\\+/){0,2}(x|\\+|#)",
    ]
}
