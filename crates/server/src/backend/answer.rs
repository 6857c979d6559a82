//! The answers of backends.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::access::{Grants, INFO_BYTES_MAX};
use crore_broker::backend::{
    BackendError, BackendResult, CallKind, ConnectGrant, PublishGrant, SubscribeGrant,
};
use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::json::is_json;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The codes of a backend's own errors, as Centrifugo documents them.
const OWN_ERRORS: std::ops::Range<u32> = 400..2_000;
/// The codes with which a backend may end a connection.
const OWN_DISCONNECTS: std::ops::Range<u16> = 4_000..5_000;

/// The limit of what a backend tells of a connection for later calls. The server keeps it while the connection lasts.
const META_BYTES_MAX: usize = 16 << 10;

/// An answer: one of its members.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    result: Option<CallResult<'a>>,
    error: Option<CallError>,
    disconnect: Option<CallDisconnect>,
}

/// The result of a call of any kind. Members that a kind does not have are ignored, as other unknown members are.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CallResult<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    b64data: Option<String>,
    expire_at: Option<i64>,
    expired: bool,
    skip_history: bool,
    user: Option<String>,
    info: Option<&'a RawValue>,
    b64info: Option<String>,
    meta: Option<&'a RawValue>,
    channels: Option<Vec<String>>,
    subs: Option<BTreeMap<String, SubResult<'a>>>,
}

/// A channel to which the server subscribes a client that connects.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SubResult<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    b64data: Option<String>,
    expire_at: Option<i64>,
}

#[derive(Deserialize)]
struct CallError {
    code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    temporary: bool,
}

#[derive(Deserialize)]
struct CallDisconnect {
    code: u16,
    #[serde(default)]
    reason: String,
}

/// The result in an answer's body.
///
/// # Errors
/// What is wrong with the body, for the log. The text quotes nothing of it, since an answer may be secret.
pub fn read(kind: CallKind, body: &[u8], is_protobuf: bool) -> Result<BackendResult, String> {
    let answer: Answer<'_> = serde_json::from_slice(body)
        .map_err(|error| format!("its answer is malformed at column {}", error.column()))?;
    match answer {
        Answer {
            disconnect: Some(end),
            ..
        } => read_disconnect(end),
        Answer {
            error: Some(error), ..
        } => read_error(error),
        Answer {
            result: Some(result),
            ..
        } => read_result(kind, &result, is_protobuf),
        _ => Err("its answer has none of `result`, `error` and `disconnect`".into()),
    }
}

fn read_result(
    kind: CallKind,
    result: &CallResult<'_>,
    is_protobuf: bool,
) -> Result<BackendResult, String> {
    let encoded = result.b64data.as_deref();
    Ok(match kind {
        CallKind::Rpc => BackendResult::Data(read_data(result.data, encoded, is_protobuf)?),
        CallKind::Subscribe => BackendResult::Subscribe(SubscribeGrant {
            until_unix_s: read_end(result.expire_at)?,
            data: read_data(result.data, encoded, is_protobuf)?,
        }),
        CallKind::Publish => {
            // A message may be any bytes. Clients of JSON then get it as text or in base64.
            let data = read_data(result.data, encoded, true)?;
            BackendResult::Publish(PublishGrant {
                data: Some(data).filter(|data| !data.is_empty()),
                skips_history: result.skip_history,
            })
        }
        CallKind::Connect => BackendResult::Connect(Box::new(read_connect(result, is_protobuf)?)),
        CallKind::Refresh | CallKind::SubRefresh => {
            BackendResult::Extension(match (result.expired, result.expire_at) {
                (true, _) => None,
                // Without a new end, nobody would ever ask the backend again.
                (false, None | Some(0)) => {
                    return Err("its result has neither `expired` nor a new `expire_at`".into());
                }
                (false, expire_at) => Some(read_end(expire_at)?),
            })
        }
    })
}

fn read_connect(result: &CallResult<'_>, is_protobuf: bool) -> Result<ConnectGrant, String> {
    let user = result.user.as_deref().unwrap_or_default();
    let grants = Grants::new(user, [])
        .map_err(|_| "its `user` is longer than 255 bytes, or has control characters")?;
    // Clients of both forms are told it.
    let info = read_data(result.info, result.b64info.as_deref(), false)?;
    let grants = match core::str::from_utf8(&info) {
        Ok("") => grants,
        Ok(info) if info.len() <= INFO_BYTES_MAX => grants.with_info(info),
        _ => return Err(format!("its `info` has more than {INFO_BYTES_MAX} bytes")),
    };
    let meta: Box<[u8]> = result.meta.map_or("", RawValue::get).as_bytes().into();
    if meta.len() > META_BYTES_MAX {
        return Err(format!("its `meta` has more than {META_BYTES_MAX} bytes"));
    }
    let names = result.channels.iter().flatten();
    let mut subs: BTreeMap<&str, SubscribeGrant> = names
        .map(|name| {
            let grant = SubscribeGrant {
                until_unix_s: u32::MAX,
                data: Box::default(),
            };
            (name.as_str(), grant)
        })
        .collect();
    for (name, sub) in result.subs.iter().flatten() {
        let grant = SubscribeGrant {
            until_unix_s: read_end(sub.expire_at)?,
            data: read_data(sub.data, sub.b64data.as_deref(), is_protobuf)?,
        };
        subs.insert(name, grant);
    }
    Ok(ConnectGrant {
        grants,
        until_unix_s: read_end(result.expire_at)?,
        data: read_data(result.data, result.b64data.as_deref(), is_protobuf)?,
        meta,
        subs: subs
            .into_iter()
            .map(|(name, sub)| (name.into(), sub))
            .collect(),
    })
}

/// The Unix second of an end. Without one, or with 0, there is no end.
fn read_end(expire_at: Option<i64>) -> Result<u32, String> {
    match expire_at {
        None | Some(0) => Ok(u32::MAX),
        Some(second) if second < 0 => Err("its `expire_at` is before 1970".into()),
        Some(second) => Ok(u32::try_from(second).unwrap_or(u32::MAX)),
    }
}

/// Data as JSON or in base64. Data for a client of JSON must be what the writer of replies takes, which is stricter than serde.
fn read_data(
    data: Option<&RawValue>,
    encoded: Option<&str>,
    is_protobuf: bool,
) -> Result<Box<[u8]>, String> {
    let data = match (data, encoded) {
        (_, Some(encoded)) if !encoded.is_empty() => {
            let decoded = STANDARD.decode(encoded);
            decoded.map_err(|_| "`b64data` is no base64")?
        }
        (Some(data), _) => data.get().into(),
        _ => Vec::new(),
    };
    match is_protobuf || data.is_empty() || is_json(&data) {
        true => Ok(data.into()),
        false => Err("its data is no JSON that a client of JSON could read".into()),
    }
}

fn read_error(error: CallError) -> Result<BackendResult, String> {
    let CallError {
        code,
        message,
        temporary,
    } = error;
    if !OWN_ERRORS.contains(&code) && ErrorCode::of(code).is_none() {
        return Err(format!(
            "its error has the code {code}; write 400 to 1999, or one of Centrifugo's"
        ));
    }
    Ok(BackendResult::Error(BackendError {
        code,
        message: message.into(),
        is_temporary: temporary,
    }))
}

fn read_disconnect(end: CallDisconnect) -> Result<BackendResult, String> {
    let CallDisconnect { code, reason } = end;
    if !OWN_DISCONNECTS.contains(&code) {
        return Err(format!(
            "its disconnect has the code {code}; write 4000 to 4999"
        ));
    }
    Ok(BackendResult::Disconnect {
        code,
        reason: reason.into(),
    })
}

/// The result of a call that the backend has not answered as it should. The client may retry.
pub fn failure() -> BackendResult {
    let error = ErrorCode::INTERNAL;
    BackendResult::Error(BackendError {
        code: error.code,
        message: error.text.into(),
        is_temporary: error.temporary(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_needs_a_new_end() {
        for kind in [CallKind::Refresh, CallKind::SubRefresh] {
            let read = |body: &str| read(kind, body.as_bytes(), false);
            for result in ["{}", r#"{"expire_at":0}"#, r#"{"expired":false}"#] {
                assert!(
                    read(&format!(r#"{{"result":{result}}}"#)).is_err(),
                    "{result}"
                );
            }
            assert_eq!(
                read(r#"{"result":{"expire_at":70}}"#),
                Ok(BackendResult::Extension(Some(70)))
            );
            assert_eq!(
                read(r#"{"result":{"expired":true}}"#),
                Ok(BackendResult::Extension(None))
            );
        }
    }
}
