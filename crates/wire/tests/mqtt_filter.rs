//! Tests which texts are topic filters, and which protocol is detected in the first bytes of a connection.

use crore_wire::mqtt::{Filter, FilterError, Sniff, sniff};
use crore_wire::topic;

/// The group name (of a shared subscription) and the filter, or the error.
type Parsed = Result<(Option<&'static str>, &'static str), FilterError>;

#[test]
fn filters_are_taken_apart() {
    use FilterError::{Empty, ShareFilter, ShareName, Wildcard};
    let table: [(&str, Parsed); 28] = [
        ("a", Ok((None, "a"))),
        ("/", Ok((None, "/"))),
        ("#", Ok((None, "#"))),
        ("+", Ok((None, "+"))),
        ("+/+/#", Ok((None, "+/+/#"))),
        ("/+", Ok((None, "/+"))),
        ("a//b", Ok((None, "a//b"))),
        ("$SYS/#", Ok((None, "$SYS/#"))),
        ("$shared/a", Ok((None, "$shared/a"))),
        ("$Share/a", Ok((None, "$Share/a"))),
        ("a/$share/b", Ok((None, "a/$share/b"))),
        ("$share/g/a", Ok((Some("g"), "a"))),
        ("$share/g/#", Ok((Some("g"), "#"))),
        ("$share/g//", Ok((Some("g"), "/"))),
        ("$share/g//a", Ok((Some("g"), "/a"))),
        ("$share/g/$SYS/+", Ok((Some("g"), "$SYS/+"))),
        ("", Err(Empty)),
        ("a#", Err(Wildcard)),
        ("#/a", Err(Wildcard)),
        ("a/+b", Err(Wildcard)),
        ("##", Err(Wildcard)),
        ("$share/g/a#", Err(Wildcard)),
        ("$share", Err(ShareName)),
        ("$share/", Err(ShareName)),
        ("$share//a", Err(ShareName)),
        ("$share/a+/b", Err(ShareName)),
        ("$share/g", Err(ShareFilter)),
        ("$share/g/", Err(ShareFilter)),
    ];
    for (text, expected) in table {
        let found = Filter::parse(text).map(|found| (found.share, found.filter));
        assert_eq!(found, expected, "{text:?}");
    }
}

/// The examples of MQTT 5.0 sections 4.7.1 to 4.7.3.
#[test]
fn the_specification_s_examples_match() {
    let table = [
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        (
            "sport/tennis/player1/#",
            "sport/tennis/player1/ranking",
            true,
        ),
        (
            "sport/tennis/player1/#",
            "sport/tennis/player1/score/wimbledon",
            true,
        ),
        ("sport/#", "sport", true),
        ("#", "anything/at/all", true),
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        ("#", "$SYS/uptime", false),
        ("+/monitor/Clients", "$SYS/monitor/Clients", false),
        ("$SYS/#", "$SYS/uptime", true),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
        ("ACCOUNTS", "Accounts", false),
    ];
    for (filter, name, expected) in table {
        let found = topic::matches(filter.as_bytes(), name.as_bytes());
        assert_eq!(found, expected, "{filter} {name}");
    }
}

#[test]
fn a_connect_is_known_by_its_first_bytes() {
    for connect in [
        &b"\x10\x0C\0\x04MQTT\x04\x02\0\0\0\0"[..],
        b"\x10\x8C\x01\0\x04MQTT\x05",
        b"\x10\xFF\xFF\xFF\x7F\0\x04MQTT",
        b"\x10\x12\0\x06MQIsdp\x03",
    ] {
        let needed_bytes = connect
            .windows(2)
            .position(|window| window == b"\0\x04" || window == b"\0\x06");
        let needed_bytes =
            needed_bytes.unwrap() + 2 + if connect.ends_with(b"\x03") { 6 } else { 4 };
        for len in 0..=connect.len() {
            let expected = match len < needed_bytes {
                true => Sniff::More,
                false => Sniff::Mqtt,
            };
            assert_eq!(sniff(&connect[..len]), expected, "{connect:?} {len}");
        }
    }
    for other in [
        &b"G"[..],
        b"\x16",
        b"\x11",
        b"\0",
        b"\x10\x80\x80\x80\x80",
        b"\x10\x0C\x01",
        b"\x10\x0C\0\x05",
        b"\x10\x0C\0\x04M\0",
        b"\x10\x0C\0\x06MQTT",
    ] {
        assert_eq!(sniff(other), Sniff::NotMqtt, "{other:?}");
    }
}
