//! `[[pusher_app]]`: the apps of Pusher's protocol.

use std::path::PathBuf;

use crore_broker::pusher::APPS_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::problems::Problems;

/// The maximum bytes of an id and of a key: both are parts of paths, and the id of topics.
const NAME_BYTES_MAX: usize = 64;

/// An app.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PusherApp {
    /// The id of the app. Its channels are the topics below `pusher/` and this id.
    #[schemars(extend("format" = "letters, digits, `-`, `_`", "examples" = ["chat"]))]
    pub id: String,
    /// The key of the app, which its clients send. It is no secret.
    #[schemars(extend("format" = "letters, digits, `-`, `_`", "examples" = ["chat-key"]))]
    pub key: String,
    /// The file with the secret of the app, with which its backend signs.
    #[schemars(extend("format" = "a file"))]
    pub secret_file: PathBuf,
    /// Whether clients may publish [client events](PUSHER.md#client-events) in private and presence channels.
    pub client_events: bool,
    /// Whether clients may [begin a subscription at a position](PUSHER.md#resume), and so read what the topic's log has, also from before their first subscription.
    pub resume: bool,
}

/// Checks the values. The files are checked when they are read.
pub fn check(apps: &[PusherApp], problems: &mut Problems) {
    if apps.len() > APPS_MAX {
        let message = format!("{} apps; write at most {APPS_MAX}", apps.len());
        problems.fail("pusher_app", message);
    }
    for (index, app) in apps.iter().enumerate() {
        let earlier = &apps[..index];
        for (key, name, is_taken) in [
            ("id", &app.id, earlier.iter().any(|it| it.id == app.id)),
            ("key", &app.key, earlier.iter().any(|it| it.key == app.key)),
        ] {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            let message = if name.is_empty() {
                "is missing; write a name, such as \"chat\"".to_string()
            } else if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
                format!(
                    "`{name}` is not valid; write 1 to {NAME_BYTES_MAX} letters, digits, - and _"
                )
            } else if is_taken {
                format!("`{name}` is of an earlier app too; write another")
            } else {
                continue;
            };
            problems.fail(format!("pusher_app[{}].{key}", index + 1), message);
        }
    }
}
