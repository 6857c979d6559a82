//! The apps of Pusher's protocol (`[[pusher_app]]`): their keys, their topics, and the signatures of their backends.
//!
//! A channel of an app is a topic below `pusher/` and the app's id. Presence channels are below a level of their own, since a rule gives them presence, and so are the
//! channels of users.
//! Invariant: the topics of different apps differ, since neither an id nor the name of a channel or the id of a user has a slash.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crore_settings::Rule;
use crore_wire::pusher::ChannelKind;
use crore_wire::topic;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The maximum number of apps. The options of a connection have six bits for the number of its app.
pub const APPS_MAX: usize = 64;
/// The first level of the topics of all apps.
pub const TOPICS: &str = "pusher/";
/// The level of presence channels, after that of the app.
const PRESENCE_LEVEL: &str = "presence/";
/// The level of the channels of users, after that of the app.
const USER_LEVEL: &str = "user/";
/// The names of the channels of users begin with this. The user's id follows. Only connections that have signed in as the user get their events.
pub const USER_CHANNEL: &str = "#server-to-user-";

/// An app.
#[derive(Clone, Debug, PartialEq)]
pub struct PusherApp {
    /// The id, which paths of the server API and topics contain. It has no slash and no wildcard.
    pub id: String,
    /// The key, which clients send. It is public.
    pub key: String,
    /// The secret of the app's backend.
    pub secret: Secret,
    /// Whether clients may publish client events.
    pub client_events: bool,
    /// Whether clients may begin subscriptions at a position.
    pub resume: bool,
}

/// A secret, which is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl PusherApp {
    /// The topic of a channel, whose name is valid.
    pub fn topic_of(&self, channel: &str) -> Vec<u8> {
        let (level, name) = match channel.strip_prefix(USER_CHANNEL) {
            Some(user) => (USER_LEVEL, user),
            None if ChannelKind::of(channel).is_presence => (PRESENCE_LEVEL, channel),
            None => ("", channel),
        };
        [TOPICS, &self.id, "/", level, name].concat().into()
    }

    /// The filter of the topics of all channels of the app.
    pub fn topic_filter(&self) -> Vec<u8> {
        [TOPICS, &self.id, "/#"].concat().into()
    }

    /// Whether this is the signature of the text that consists of these parts: its HMAC-SHA256 with the secret, in hexadecimal digits. The time that the comparison
    /// takes does not depend on the bytes.
    pub fn is_signed(&self, parts: &[&[u8]], signature: &str) -> bool {
        let Some(signature) = digest_of_hex(signature) else {
            return false;
        };
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.secret.0) else {
            return false;
        };
        parts.iter().for_each(|part| mac.update(part));
        mac.verify_slice(&signature).is_ok()
    }
}

/// The operator's rules, by which the presence channels of the apps with these ids have presence. Where a rule without presence governs some of these channels and also
/// other topics, a copy with presence, for these channels only, stands before it.
pub fn with_presence_channels<'a>(
    app_ids: impl Iterator<Item = &'a str>,
    rules: &[Rule],
) -> Vec<Rule> {
    let of_app = |id| [TOPICS, id, "/", PRESENCE_LEVEL, "+"].concat();
    let of_apps: Vec<String> = app_ids.map(of_app).collect();
    let mut all: Vec<Rule> = Vec::new();
    let is_governed = |all: &[Rule], filter: &str| {
        let mut earlier = all.iter().map(|rule| rule.filter.as_bytes());
        earlier.any(|earlier| topic::covers(earlier, filter.as_bytes()))
    };
    for rule in rules {
        for channels in &of_apps {
            let filter = topic::intersection(rule.filter.as_bytes(), channels.as_bytes());
            let filter = filter.and_then(|filter| String::from_utf8(filter).ok());
            let Some(filter) = filter.filter(|filter| !is_governed(&all, filter)) else {
                continue;
            };
            if !rule.presence && filter != rule.filter {
                all.push(Rule {
                    filter,
                    presence: true,
                    ..rule.clone()
                });
            }
        }
        let mut rule = rule.clone();
        let has_channels_only =
            |channels: &String| topic::covers(channels.as_bytes(), rule.filter.as_bytes());
        rule.presence |= of_apps.iter().any(has_channels_only);
        all.push(rule);
    }
    for channels in of_apps {
        if !is_governed(&all, &channels) {
            all.push(Rule {
                filter: channels,
                presence: true,
                ..Rule::default()
            });
        }
    }
    all
}

/// The name of a user of the app with this id, for the operator. Users of two apps may have the same id.
pub fn user_name(app_id: &str, user: &str) -> String {
    [app_id, "/", user].concat()
}

/// The channel of a topic of an app.
pub fn channel_of(topic: &[u8]) -> Cow<'_, str> {
    let levels = topic.strip_prefix(TOPICS.as_bytes()).unwrap_or(topic);
    let slash = memchr::memchr(b'/', levels).map_or(0, |slash| slash + 1);
    let levels = String::from_utf8_lossy(&levels[slash..]);
    if let Some(user) = levels.strip_prefix(USER_LEVEL) {
        return [USER_CHANNEL, user].concat().into();
    }
    match levels.strip_prefix(PRESENCE_LEVEL) {
        Some(channel) => String::from(channel).into(),
        None => levels,
    }
}

/// The 32 bytes that 64 hexadecimal digits stand for.
fn digest_of_hex(text: &str) -> Option<[u8; 32]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut digest = [0; 32];
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> PusherApp {
        PusherApp {
            id: "chat".into(),
            key: "278d425bdf160c739803".into(),
            secret: Secret(b"7ad3773142a6692b25b8".to_vec()),
            client_events: false,
            resume: false,
        }
    }

    /// The examples of Pusher's documentation.
    #[test]
    fn documented_signatures_are_accepted_and_no_other() {
        let text = b"1234.1234:private-foobar";
        let signature = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4";
        assert!(app().is_signed(&[text], signature));
        assert!(app().is_signed(&[b"1234.1234", b":", b"private-foobar"], signature));
        assert!(!app().is_signed(&[b"1234.1235:private-foobar"], signature));
        let other = signature.replacen('5', "6", 1);
        for wrong in [
            "",
            "58",
            &other,
            &signature[1..],
            &[signature, "00"].concat(),
            &"g".repeat(64),
        ] {
            assert!(!app().is_signed(&[text], wrong), "{wrong}");
        }
        let presence =
            br#"1234.1234:presence-foobar:{"user_id":10,"user_info":{"name":"Mr. Pusher"}}"#;
        let signature = "afaed3695da2ffd16931f457e338e6c9f2921fa133ce7dac49f529792be6304c";
        assert!(app().is_signed(&[presence], signature));
    }

    #[test]
    fn topics_tell_the_app_and_the_channel() {
        assert_eq!(app().topic_of("news"), b"pusher/chat/news");
        assert_eq!(
            app().topic_of("presence-a"),
            b"pusher/chat/presence/presence-a"
        );
        assert_eq!(
            app().topic_of("#server-to-user-ann"),
            b"pusher/chat/user/ann"
        );
        for channel in [
            "news",
            "presence-a",
            "private-encrypted-cache-a",
            "#server-to-user-ann",
        ] {
            assert_eq!(channel_of(&app().topic_of(channel)), channel);
        }
        for level in ["", "room/", "x/user/"] {
            let topic = ["pusher/chat/", level, "a"].concat();
            assert_eq!(channel_of(topic.as_bytes()), [level, "a"].concat());
        }
    }

    /// The filter, presence and `log_messages` of each rule.
    fn with_presence(rules: &[(&str, bool)]) -> Vec<(String, bool, u32)> {
        let rule = |(number, (filter, presence)): (u32, &(&str, bool))| Rule {
            filter: (*filter).into(),
            presence: *presence,
            log_messages: number,
            ..Rule::default()
        };
        let rules: Vec<Rule> = (0..).zip(rules).map(rule).collect();
        let all = with_presence_channels(["chat", "shop"].into_iter(), &rules);
        let values = all.into_iter();
        values
            .map(|rule| (rule.filter, rule.presence, rule.log_messages))
            .collect()
    }

    #[test]
    fn presence_channels_have_the_operators_rules_with_presence() {
        let (chat, shop) = ("pusher/chat/presence/+", "pusher/shop/presence/+");
        let room = "pusher/chat/presence/presence-room";
        let default = Rule::default().log_messages;
        let expect = |rules: &[(&str, bool)], expected: &[(&str, bool, u32)]| {
            let found = with_presence(rules);
            let found: Vec<_> = found.iter().map(|it| (&*it.0, it.1, it.2)).collect();
            assert_eq!(found, expected, "{rules:?}");
        };
        expect(&[], &[(chat, true, default), (shop, true, default)]);
        expect(
            &[(room, false), ("pusher/chat/#", false)],
            &[
                (room, true, 0),
                (chat, true, 1),
                ("pusher/chat/#", false, 1),
                (shop, true, default),
            ],
        );
        let everywhere = "+/+/presence/presence-room";
        let shop_room = "pusher/shop/presence/presence-room";
        expect(
            &[(everywhere, false), (room, false), ("#", true)],
            &[
                (room, true, 0),
                (shop_room, true, 0),
                (everywhere, false, 0),
                (room, true, 1),
                ("#", true, 2),
            ],
        );
        expect(
            &[("#", false)],
            &[(chat, true, 0), (shop, true, 0), ("#", false, 0)],
        );
    }

    #[test]
    fn secret_is_not_printed() {
        assert!(!alloc::format!("{:?}", app()).contains("7ad"));
    }
}
