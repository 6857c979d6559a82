//! Records: what is written is read again, and nothing else is.

use alloc::format;

use proptest::prelude::*;

use super::*;
use crate::mail::message::Headers;

fn encoded(write: &Write<'_>, behind: u32) -> Vec<u8> {
    let mut record = Vec::new();
    write.encode(&mut record, behind);
    record
}

/// A written record reads as the same write.
fn is_read_again(write: &Write<'_>, behind: u32) {
    let record = encoded(write, behind);
    let (place, again) = Write::decode(&record).expect("it is whole");
    assert_eq!(place, behind);
    assert_eq!(format!("{again:?}"), format!("{write:?}"));
    for len in 0..record.len() {
        let cut = Write::decode(&record[..len]);
        assert!(cut.is_err(), "{write:?} cut to {len} bytes");
    }
    let longer = [&record[..], &[0]].concat();
    assert!(Write::decode(&longer).is_err());
}

#[test]
fn all_kinds_are_read_again() {
    for write in [
        Write::Topic(Verb::Create, b"t"),
        Write::Topic(Verb::Delete, b"t"),
        Write::Topic(Verb::Purge, b"t"),
        Write::Purge(b"t", u64::MAX, 4096),
        Write::ForgetLatest(b"$SYS/x"),
    ] {
        is_read_again(&write, 4095);
    }
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut record = encoded(&Write::ForgetLatest(b"t"), 1);
    record[0] = 200;
    assert!(Write::decode(&record).is_err());
}

proptest! {
    #[test]
    fn messages_are_read_again(
        fields in prop::array::uniform6(prop::collection::vec(any::<u8>(), 0..40)),
        qos in 0u8..3,
        flags in any::<[bool; 2]>(),
        ttl_s in any::<Option<u32>>(),
        retry in prop::option::of((prop::collection::vec(any::<u8>(), 1..20), any::<u64>())),
        behind in any::<u32>(),
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
        is_read_again(&Write::Publish(message), behind);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        _ = Write::decode(&bytes);
    }
}
