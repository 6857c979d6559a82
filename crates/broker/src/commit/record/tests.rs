//! Records: what is written is read again, and nothing else is.

use proptest::prelude::*;

use super::*;
use crate::base::settings::Settings;
use crate::mail::message::Headers;

fn admission() -> Admission {
    Admission::new(&Settings::default(), 42)
}

/// A written record reads as the same write. Payloads and wills have no equality: their text tells.
fn is_read_again(write: &Write<'_>, unix_s: u32) {
    let record = write.encode(unix_s);
    let (second, again) = Write::decode(&record, &admission()).expect("it is whole");
    assert_eq!(second, unix_s);
    assert_eq!(format!("{again:?}"), format!("{write:?}"));
    for len in 0..record.len() {
        let cut = Write::decode(&record[..len], &admission());
        assert!(cut.is_err(), "{write:?} cut to {len} bytes");
    }
    let longer = [&record[..], &[0]].concat();
    assert!(Write::decode(&longer, &admission()).is_err());
}

use alloc::format;

#[test]
fn all_kinds_are_read_again() {
    let share = Share {
        filter: b"a/+",
        name: b"workers",
    };
    let payload = Shared::new(b"payload".as_slice().into(), &admission());
    let kept = Kept {
        expiry_s: u32::MAX,
        state: Written {
            bytes: [1, 2, 3].into(),
            payloads: alloc::vec![payload.slice(0..7), payload.slice(2..4)],
        },
    };
    let will = Will {
        delay_s: 9,
        topic: b"gone".as_slice().into(),
        data: b"farewell".as_slice().into(),
        headers: Headers {
            ttl_s: Some(0),
            qos: 2,
            retain: true,
            ..Headers::default()
        },
        client: Client::from_number(7),
    };
    let id = SessionId {
        row: 70_000,
        serial: 65_535,
        life: 255,
        partition: 3,
    };
    let unacked = Unacked {
        topic: b"a/1".as_slice().into(),
        offset: 1 << 40,
    };
    for write in [
        Write::Topic(Verb::Create, b"t"),
        Write::Topic(Verb::Delete, b"t"),
        Write::Topic(Verb::Purge, b"t"),
        Write::Purge(b"t", u64::MAX, 4096),
        Write::ForgetLatest(b"$SYS/x"),
        Write::KeepLog(b"a/#", true),
        Write::KeepLog(b"a", false),
        Write::JoinGroup(share, true),
        Write::LeaveGroup(share, alloc::vec![unacked.clone(), unacked], false),
        Write::ReleaseGroup(share),
        Write::OpenSession(b"client", true),
        Write::CloseSession(id, None, None),
        Write::CloseSession(id, Some(kept), Some(Box::new(will))),
        Write::EndSession,
    ] {
        is_read_again(&write, 1_700_000_000);
    }
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut record = Write::EndSession.encode(1).to_vec();
    record[0] = 200;
    assert!(Write::decode(&record, &admission()).is_err());
}

proptest! {
    #[test]
    fn messages_are_read_again(
        fields in prop::array::uniform6(prop::collection::vec(any::<u8>(), 0..40)),
        qos in 0u8..3,
        flags in any::<[bool; 2]>(),
        ttl_s in any::<Option<u32>>(),
        retry in prop::option::of((prop::collection::vec(any::<u8>(), 1..20), any::<u64>())),
        unix_s in any::<u32>(),
    ) {
        let [name, data, content_type, event, key, attributes] = &fields;
        let message = Publish {
            hash: 0,
            name,
            data,
            headers: Headers {
                content_type,
                event,
                key,
                attributes,
                ttl_s,
                qos,
                retain: flags[0],
                binary: flags[1],
            },
            retry: retry.as_ref().map(|(key, publisher)| Retry {
                key: &key[..],
                publisher: Party::from_number(*publisher),
            }),
            client: Client::NOBODY,
        };
        is_read_again(&Write::Publish(message), unix_s);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        _ = Write::decode(&bytes, &admission());
    }
}
