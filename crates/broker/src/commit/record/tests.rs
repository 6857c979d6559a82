//! Tests of records: an encoded record decodes to the same fact or control record, and other bytes are refused.

use proptest::prelude::*;

use super::*;

fn hash_of(name: &[u8]) -> u32 {
    name.len() as u32 + 7
}

fn encoded(fact: &Fact<'_>, offset_delta: u32) -> Vec<u8> {
    let mut record = Vec::new();
    fact.encode(&mut record, offset_delta);
    record
}

fn decoded<T>(record: &[u8], then: impl FnOnce(u32, &Fact<'_>) -> T) -> Result<T, Damaged> {
    Fact::decode(record, hash_of, Client::NOBODY, then)
}

fn is_read(record: &[u8]) -> bool {
    decoded(record, |_, _| ()).is_ok()
}

fn change(change: Change, name: &[u8]) -> Fact<'_> {
    Fact::Topic {
        change,
        hash: hash_of(name),
        name,
        client: Client::NOBODY,
    }
}

/// Checks that an encoded fact decodes to the same fact, and that a shorter or longer record is refused.
fn is_read_again(fact: &Fact<'_>, offset_delta: u32) {
    let record = encoded(fact, offset_delta);
    let is_same = decoded(&record, |place, again| {
        (place, again) == (offset_delta, fact)
    });
    assert_eq!(is_same, Ok(true));
    for len in 0..record.len() {
        assert!(!is_read(&record[..len]), "{fact:?} cut to {len} bytes");
    }
    let longer = [&record[..], &[0]].concat();
    assert!(!is_read(&longer));
}

#[test]
fn all_kinds_are_read_again() {
    for kind in [
        Change::Create,
        Change::Delete,
        Change::Purge,
        Change::PurgeSome(u64::MAX, 4096),
        Change::ForgetLatest,
    ] {
        is_read_again(&change(kind, b"$SYS/x"), 4095);
    }
}

/// Tests that the bytes of this format do not change. Nodes of the previous and the next version must be able to read the records that a
/// node of a cluster writes. If these bytes change, [`FORMAT`](crate::commit::batch::FORMAT) must change too.
#[test]
fn records_of_format_1_are_these_bytes() {
    let message = Publish {
        hash: 0,
        name: b"a/b",
        data: b"data",
        headers: Headers {
            content_type: &b"t"[..],
            event: b"ev",
            key: b"key",
            attributes: b"",
            ttl_s: Some(300),
            qos: 2,
            retain: true,
            binary: true,
        },
        dedup: Some(DedupKey {
            key: b"k",
            publisher: Party::from_number(0x0102_0304_0506_0708),
        }),
        client: Client::NOBODY,
    };
    let plain = Publish {
        headers: Headers::default(),
        dedup: None,
        ..message
    };
    let facts: [(Fact<'_>, &[u8]); 7] = [
        (
            Fact::Publish(&message),
            b"\x01\xac\x02\x03a/b\x3e\x01t\x02ev\x03key\x00\x04data\xac\x02\x01k\x08\x07\x06\x05\x04\x03\x02\x01",
        ),
        (
            Fact::Publish(&plain),
            b"\x01\xac\x02\x03a/b\x00\x00\x00\x00\x00\x04data",
        ),
        (change(Change::Create, b"t"), b"\x02\xac\x02\x01t"),
        (change(Change::Delete, b"t"), b"\x03\xac\x02\x01t"),
        (change(Change::Purge, b"t"), b"\x04\xac\x02\x01t"),
        (
            change(Change::PurgeSome(7, 300), b"t"),
            b"\x05\xac\x02\x01t\x07\0\0\0\0\0\0\0\xac\x02",
        ),
        (change(Change::ForgetLatest, b"t"), b"\x06\xac\x02\x01t"),
    ];
    for (fact, bytes) in facts {
        assert_eq!(encoded(&fact, 300), bytes, "{fact:?}");
    }
    let beat = Heartbeat {
        name: b"one",
        admin_address: b"l",
        connections: 300,
    };
    let release = |claim| {
        let key = SessionKey::new(9, 300);
        ControlRecord::Release(Release { key, claim })
    };
    let group = |offset| {
        ControlRecord::Group(GroupPosition {
            filter: b"a/#",
            name: b"g",
            offset,
        })
    };
    let controls: [(ControlRecord<'_>, &[u8]); 9] = [
        (ControlRecord::Mark(300), b"\x07\x05\xac\x02"),
        (
            ControlRecord::Heartbeat(beat),
            b"\x08\x05\x03one\x01l\xac\x02",
        ),
        (ControlRecord::Dead(9), b"\x09\x05\x09\0\0\0\0\0\0\0"),
        (ControlRecord::Steward(9), b"\x0a\x05\x09\0\0\0\0\0\0\0"),
        (release(0), b"\x0e\x05\x09\0\0\0\0\0\0\x20\xac\x02"),
        (
            release(300),
            b"\x0e\x05\x09\0\0\0\0\0\0\x20\xac\x02\xac\x02",
        ),
        (group(Some(300)), b"\x0f\x05\x03a/#\x01g\x01\xac\x02"),
        (group(None), b"\x0f\x05\x03a/#\x01g\0\0"),
        (ControlRecord::Start, b"\x91\x05"),
    ];
    for (control, bytes) in controls {
        let mut record = Vec::new();
        control.encode(&mut record, 5);
        assert_eq!(record, bytes, "{control:?}");
    }
    // Only the kinds 1 to 16 are known, and one that earlier versions may skip.
    assert!(
        (1..=16)
            .chain([0x91])
            .all(|kind| may_skip_unknown(&[kind]).is_none())
    );
    assert!((17..OPTIONAL).all(|kind| may_skip_unknown(&[kind]) == Some(false)));
    assert_eq!(crate::commit::batch::FORMAT, 1);
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut record = encoded(&change(Change::Create, b"t"), 1);
    record[0] = 200;
    assert!(!is_read(&record));
}

proptest! {
    #[test]
    fn messages_are_read_again(
        fields in prop::array::uniform6(prop::collection::vec(any::<u8>(), 0..40)),
        qos in 0u8..3,
        flags in any::<[bool; 2]>(),
        ttl_s in any::<Option<u32>>(),
        dedup in prop::option::of((prop::collection::vec(any::<u8>(), 1..20), any::<u64>())),
        offset_delta in any::<u32>(),
    ) {
        let [name, data, content_type, event, key, attributes] = &fields;
        let message = Publish {
            hash: hash_of(name),
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
            dedup: dedup.as_ref().map(|(key, publisher)| DedupKey {
                key: &key[..],
                publisher: Party::from_number(*publisher),
            }),
            client: Client::NOBODY,
        };
        is_read_again(&Fact::Publish(&message), offset_delta);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        _ = is_read(&bytes);
    }
}

#[test]
fn notes_are_read_again_and_a_sign_of_life_may_say_more() {
    let beat = ControlRecord::Heartbeat(Heartbeat {
        name: b"one",
        admin_address: b"",
        connections: 300,
    });
    for control in [
        ControlRecord::Mark(1 << 40),
        beat,
        ControlRecord::Dead(7),
        ControlRecord::Steward(u64::MAX),
        ControlRecord::Release(Release {
            key: SessionKey::new(7, u16::MAX),
            claim: 0,
        }),
    ] {
        let mut record = Vec::new();
        control.encode(&mut record, 4095);
        assert_eq!(ControlRecord::decode(&record), Ok(Some((4095, control))));
        for len in 1..record.len() {
            assert!(
                ControlRecord::decode(&record[..len]).is_err(),
                "{control:?} cut to {len} bytes"
            );
        }
        record.push(0);
        assert_eq!(ControlRecord::decode(&record).is_ok(), control == beat);
        assert_eq!(may_skip_unknown(&record), None);
    }
    assert_eq!(
        [may_skip_unknown(&[100]), may_skip_unknown(&[200])],
        [Some(false), Some(true)]
    );
}
