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

/// The rule of the presence channels of the app with this id: that which the operator has for them, with presence.
pub fn presence_rule(app_id: &str, rules: &[Rule]) -> Rule {
    let level = [TOPICS, app_id, "/", PRESENCE_LEVEL].concat();
    let topic = [&level, "presence-"].concat();
    let governs = |rule: &&Rule| {
        rule.filter == "#" || topic::matches(rule.filter.as_bytes(), topic.as_bytes())
    };
    Rule {
        filter: [&level, "+"].concat(),
        presence: true,
        ..rules.iter().find(governs).cloned().unwrap_or_default()
    }
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

    #[test]
    fn presence_channels_have_the_operators_rule_with_presence() {
        let rules = [Rule {
            filter: "pusher/chat/#".into(),
            log_messages: 7,
            ..Rule::default()
        }];
        let rule = presence_rule("chat", &rules);
        let expected = ("pusher/chat/presence/+", true, 7);
        assert_eq!((&*rule.filter, rule.presence, rule.log_messages), expected);
        assert_eq!(
            presence_rule("chat", &[]).log_messages,
            Rule::default().log_messages
        );
    }

    #[test]
    fn secret_is_not_printed() {
        assert!(!alloc::format!("{:?}", app()).contains("7ad"));
    }
}
