//! A message in the server's JSON envelope (`?envelope=json`), and the line that is printed for it.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::format::{Format, Part, Piece};

/// A message and its fields. Missing fields are left out of the output, and unknown fields are ignored.
#[derive(Debug, Deserialize, Serialize)]
pub struct Envelope<'a> {
    /// The message's id, which is also the position after the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    topic: Option<Cow<'a, str>>,
    /// Unix second of the publish.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u64>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    publisher: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<Vec<(String, String)>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data: Option<Cow<'a, str>>,
    /// Set if this is not a message, but the notice that messages before `id` are lost.
    #[serde(skip_serializing)]
    pub gap: Option<IgnoredAny>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data_base64: Option<Cow<'a, str>>,
}

impl<'a> Envelope<'a> {
    /// Parses an envelope.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Whether the envelope has no message but only a position.
    pub fn is_position(&self) -> bool {
        self.data.is_none() && self.data_base64.is_none() && self.gap.is_none()
    }

    /// The line to print, with a line end, in this format. Without a format, as JSON.
    pub fn line(&self, format: Option<&Format>) -> Result<Vec<u8>, base64::DecodeError> {
        let mut line = Vec::new();
        match format {
            None => line = serde_json::to_vec(self).expect("strings become JSON"),
            Some(format) => {
                for piece in &format.0 {
                    match piece {
                        Piece::Text(text) => line.extend_from_slice(text.as_bytes()),
                        Piece::Part(part) => line.extend_from_slice(&self.part(*part)?),
                    }
                }
            }
        }
        // A message that was published from a file or a pipe often ends with a line end already.
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        Ok(line)
    }

    fn part(&self, part: Part) -> Result<Cow<'_, [u8]>, base64::DecodeError> {
        let text = match part {
            Part::Payload => match &self.data_base64 {
                Some(data) => return Ok(STANDARD.decode(data.as_bytes())?.into()),
                None => self.data.as_deref(),
            },
            Part::Topic => self.topic.as_deref(),
            Part::Id => self.id.as_deref(),
            Part::Key => self.key.as_deref(),
            Part::Event => self.event.as_deref(),
            Part::ContentType => self.content_type.as_deref(),
        };
        Ok(text.unwrap_or_default().as_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = br#"{"topic":"a","id":"1:2","time":7,"content_type":"text/plain","data":"x\ny","new":1}"#;
        let envelope = Envelope::parse(text).unwrap();
        let data = Format::data();
        assert_eq!(envelope.line(Some(&data)).unwrap(), b"x\ny\n");
        let ended = Envelope::parse(br#"{"data":"x\n"}"#).unwrap();
        assert_eq!(ended.line(Some(&data)).unwrap(), b"x\n");
        let with_topic = envelope.line(Some(&Format::with_topic())).unwrap();
        assert_eq!(with_topic, b"a x\ny\n");
        let json = r#"{"id":"1:2","topic":"a","time":7,"content_type":"text/plain","data":"x\ny"}"#;
        assert_eq!(
            String::from_utf8(envelope.line(None).unwrap()).unwrap(),
            format!("{json}\n")
        );

        let binary = Envelope::parse(br#"{"data_base64":"/wA="}"#).unwrap();
        assert_eq!(binary.line(Some(&data)).unwrap(), b"\xff\x00\n");
        assert_eq!(binary.line(None).unwrap(), b"{\"data_base64\":\"/wA=\"}\n");
        assert!(
            Envelope::parse(br#"{"data_base64":"?"}"#)
                .unwrap()
                .line(Some(&data))
                .is_err()
        );
        assert!(Envelope::parse(b"hello").is_err());
    }
}
