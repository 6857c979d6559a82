//! Reads the secrets of the apps of Pusher's protocol (`[[pusher_app]]`).

use crore_broker::pusher::{PusherApp, Secret};

use crate::access::secret;
use crate::settings::pusher;

/// Limit of the size of a file with a secret.
const SECRET_BYTES_MAX: usize = 4 << 10;
/// A shorter secret can be guessed. Those of Pusher have 20 characters.
const SECRET_BYTES_MIN: usize = 16;

/// The apps with their secrets.
///
/// # Errors
/// All faults of the files, each with the path of the settings key and the remedy.
pub fn read(apps: &[pusher::PusherApp]) -> Result<Vec<PusherApp>, Vec<(String, String)>> {
    let (mut read, mut faults) = (Vec::new(), Vec::new());
    for (index, app) in apps.iter().enumerate() {
        match read_secret(app) {
            Ok(secret) => read.push(PusherApp {
                id: app.id.clone(),
                key: app.key.clone(),
                secret: Secret(secret),
                client_events: app.client_events,
                resume: app.resume,
            }),
            Err(message) => {
                faults.push((format!("pusher_app[{}].secret_file", index + 1), message))
            }
        }
    }
    match faults.is_empty() {
        true => Ok(read),
        false => Err(faults),
    }
}

fn read_secret(app: &pusher::PusherApp) -> Result<Vec<u8>, String> {
    let path = &app.secret_file;
    if path.as_os_str().is_empty() {
        return Err(
            "is missing; name a file with a secret, such as the output of `openssl rand -hex 20`"
                .to_string(),
        );
    }
    let named = |message: &str| format!("{}: {message}", path.display());
    let read = std::fs::read(path).map_err(|error| named(&error.to_string()))?;
    let secret = secret::without_line_end(secret::without_byte_order_mark(&read));
    match secret.len() {
        SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(secret.to_vec()),
        len => Err(named(&format!(
            "has a secret of {len} bytes; write {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}"
        ))),
    }
}
