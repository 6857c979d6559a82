//! Reads replies and pushes in both forms, with all that a check needs: ids, positions and whole messages.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::scenario::centrifugo::frames::{FieldValue, Format, read_delimited, read_field};

/// What the server sends.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// The client must answer.
    Ping,
    /// The connect command with this id is carried out.
    Connected(u32),
    /// The subscribe command with this id is carried out.
    Subscribed(u32, Subscribed),
    /// The unsubscribe command with this id is carried out.
    Unsubscribed(u32),
    /// The command with this id is refused.
    Error(u32, Refusal),
    /// A message of a channel.
    Publication(String, Publication),
    /// The server has ended the subscription to a channel, with this code.
    Ended(String, u32),
    /// Another push.
    Other,
}

/// Where a subscription begins.
#[derive(Debug, Default, PartialEq)]
pub struct Subscribed {
    pub epoch: String,
    pub offset: u64,
    pub is_recovered: bool,
    pub publications: Vec<Publication>,
}

/// A message.
#[derive(Debug, Default, PartialEq)]
pub struct Publication {
    pub offset: u64,
    pub data: Vec<u8>,
}

/// Why a command is refused.
#[derive(Debug, Default, PartialEq)]
pub struct Refusal {
    pub code: u32,
    pub message: String,
    pub is_temporary: bool,
}

/// The replies of a frame.
pub fn read_replies(format: Format, payload: &[u8]) -> Result<Vec<Reply>> {
    if format == Format::Json {
        let lines = payload.split(|byte| *byte == b'\n');
        return lines
            .filter(|line| !line.is_empty())
            .map(read_json)
            .collect();
    }
    let (mut rest, mut replies) = (payload, Vec::new());
    while !rest.is_empty() {
        let (message, after) = read_delimited(rest)?;
        replies.push(read_protobuf(message)?);
        rest = after;
    }
    Ok(replies)
}

fn read_json(line: &[u8]) -> Result<Reply> {
    let reply: Value = serde_json::from_slice(line)?;
    let members = reply.as_object().context("a reply that is no object")?;
    if members.is_empty() {
        return Ok(Reply::Ping);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let publication = |value: &Value| -> Result<Publication> {
        Ok(Publication {
            offset: value["offset"].as_u64().unwrap_or(0),
            data: value["data"]
                .as_str()
                .context("data that is no text")?
                .into(),
        })
    };
    if let Some(push) = members.get("push") {
        let channel = text(&push["channel"]);
        return Ok(match (push.get("pub"), push.get("unsubscribe")) {
            (Some(message), _) => Reply::Publication(channel, publication(message)?),
            (_, Some(ended)) => Reply::Ended(channel, ended["code"].as_u64().unwrap_or(0) as u32),
            _ => Reply::Other,
        });
    }
    let id = reply["id"].as_u64().unwrap_or(0) as u32;
    if let Some(error) = members.get("error") {
        let refusal = Refusal {
            code: error["code"].as_u64().unwrap_or(0) as u32,
            message: text(&error["message"]),
            is_temporary: error["temporary"] == true,
        };
        return Ok(Reply::Error(id, refusal));
    }
    if let Some(result) = members.get("subscribe") {
        let publications = result["publications"].as_array().into_iter().flatten();
        let subscribed = Subscribed {
            epoch: text(&result["epoch"]),
            offset: result["offset"].as_u64().unwrap_or(0),
            is_recovered: result["recovered"] == true,
            publications: publications.map(publication).collect::<Result<_>>()?,
        };
        return Ok(Reply::Subscribed(id, subscribed));
    }
    if members.contains_key("unsubscribe") {
        return Ok(Reply::Unsubscribed(id));
    }
    ensure!(members.contains_key("connect"), "an unknown reply {reply}");
    Ok(Reply::Connected(id))
}

/// Passes each field of a message to `on_field`.
fn each_field<'a>(
    mut message: &'a [u8],
    mut on_field: impl FnMut(u64, FieldValue<'a>) -> Result<()>,
) -> Result<()> {
    while !message.is_empty() {
        let (number, value, after) = read_field(message)?;
        on_field(number, value)?;
        message = after;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into()
}

fn read_protobuf(message: &[u8]) -> Result<Reply> {
    use FieldValue::{Bytes, Number};
    if message.is_empty() {
        return Ok(Reply::Ping);
    }
    let (mut id, mut reply) = (0, None);
    each_field(message, |number, value| {
        match (number, value) {
            (1, Number(value)) => id = value as u32,
            (2, Bytes(error)) => reply = Some(Reply::Error(0, read_refusal(error)?)),
            (4, Bytes(push)) => reply = Some(read_push(push)?),
            (5, Bytes(_)) => reply = Some(Reply::Connected(0)),
            (6, Bytes(result)) => reply = Some(Reply::Subscribed(0, read_subscribed(result)?)),
            (7, Bytes(_)) => reply = Some(Reply::Unsubscribed(0)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(match reply.context("an unknown reply")? {
        Reply::Error(_, refusal) => Reply::Error(id, refusal),
        Reply::Connected(_) => Reply::Connected(id),
        Reply::Subscribed(_, subscribed) => Reply::Subscribed(id, subscribed),
        Reply::Unsubscribed(_) => Reply::Unsubscribed(id),
        push => push,
    })
}

fn read_refusal(message: &[u8]) -> Result<Refusal> {
    let mut refusal = Refusal::default();
    each_field(message, |number, value| {
        match (number, value) {
            (1, FieldValue::Number(code)) => refusal.code = code as u32,
            (2, FieldValue::Bytes(bytes)) => refusal.message = text(bytes),
            (3, FieldValue::Number(flag)) => refusal.is_temporary = flag != 0,
            _ => {}
        }
        Ok(())
    })?;
    Ok(refusal)
}

fn read_subscribed(message: &[u8]) -> Result<Subscribed> {
    let mut subscribed = Subscribed::default();
    each_field(message, |number, value| {
        match (number, value) {
            (6, FieldValue::Bytes(bytes)) => subscribed.epoch = text(bytes),
            (7, FieldValue::Bytes(bytes)) => {
                subscribed.publications.push(read_publication(bytes)?);
            }
            (8, FieldValue::Number(flag)) => subscribed.is_recovered = flag != 0,
            (9, FieldValue::Number(offset)) => subscribed.offset = offset,
            _ => {}
        }
        Ok(())
    })?;
    Ok(subscribed)
}

fn read_publication(message: &[u8]) -> Result<Publication> {
    let mut publication = Publication::default();
    each_field(message, |number, value| {
        match (number, value) {
            (4, FieldValue::Bytes(bytes)) => publication.data = bytes.into(),
            (6, FieldValue::Number(offset)) => publication.offset = offset,
            _ => {}
        }
        Ok(())
    })?;
    Ok(publication)
}

fn read_push(message: &[u8]) -> Result<Reply> {
    let (mut channel, mut publication, mut code) = (String::new(), None, None);
    each_field(message, |number, value| {
        match (number, value) {
            (2, FieldValue::Bytes(bytes)) => channel = text(bytes),
            (4, FieldValue::Bytes(bytes)) => publication = Some(read_publication(bytes)?),
            (7, FieldValue::Bytes(ended)) => {
                code = Some(0);
                each_field(ended, |number, value| {
                    if let (2, FieldValue::Number(value)) = (number, value) {
                        code = Some(value as u32);
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(match (publication, code) {
        (Some(publication), _) => Reply::Publication(channel, publication),
        (None, Some(code)) => Reply::Ended(channel, code),
        (None, None) => Reply::Other,
    })
}
