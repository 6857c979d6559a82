//! A message as `?envelope=json` gives it, and the line that is printed for it.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// One message. Fields that are missing stay out of the output; fields that are new are ignored.
#[derive(Debug, Deserialize, Serialize)]
pub struct Envelope<'a> {
    /// The position after this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    topic: Option<Cow<'a, str>>,
    /// When it was published, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u64>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data: Option<Cow<'a, str>>,
    /// No message, but the notice that some before this position are lost.
    #[serde(skip_serializing)]
    pub gap: Option<IgnoredAny>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data_base64: Option<Cow<'a, str>>,
}

impl<'a> Envelope<'a> {
    /// Reads an envelope.
    ///
    /// # Errors
    /// The bytes are not a JSON object with fields of these types.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The line to print, with its end: the object again, or only the data.
    ///
    /// # Errors
    /// The data is not base64.
    pub fn line(&self, json: bool) -> Result<Vec<u8>, base64::DecodeError> {
        let mut line = match (&self.data_base64, &self.data) {
            _ if json => serde_json::to_vec(self).expect("strings become JSON"),
            (Some(data), _) => STANDARD.decode(data.as_bytes())?,
            (None, data) => data.as_deref().unwrap_or_default().as_bytes().to_vec(),
        };
        line.push(b'\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = br#"{"topic":"a","id":"1:2","time":7,"content_type":"text/plain","data":"x\ny","new":1}"#;
        let envelope = Envelope::parse(text).unwrap();
        assert_eq!(envelope.line(false).unwrap(), b"x\ny\n");
        let json = r#"{"id":"1:2","topic":"a","time":7,"content_type":"text/plain","data":"x\ny"}"#;
        assert_eq!(
            String::from_utf8(envelope.line(true).unwrap()).unwrap(),
            format!("{json}\n")
        );

        let binary = Envelope::parse(br#"{"data_base64":"/wA="}"#).unwrap();
        assert_eq!(binary.line(false).unwrap(), b"\xff\x00\n");
        assert_eq!(binary.line(true).unwrap(), b"{\"data_base64\":\"/wA=\"}\n");
        assert!(
            Envelope::parse(br#"{"data_base64":"?"}"#)
                .unwrap()
                .line(false)
                .is_err()
        );
        assert!(Envelope::parse(b"hello").is_err());
    }
}
