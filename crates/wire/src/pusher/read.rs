//! Reads the events of clients.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use crate::json::Fault;
use crate::json::scan::{Scan, Text};

/// Why a frame was refused. The text in a variant is the name of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Error {
    /// The frame is not JSON.
    #[display("not JSON: {_0}")]
    Json(Fault),
    /// A field is missing.
    #[display("{_0} is missing")]
    Missing(&'static str),
    /// A value whose type is wrong for this field.
    #[display("{_0} has a value of a wrong type")]
    WrongType(&'static str),
    /// The event is one that only the server sends, or that this server does not know.
    #[display("the event is not known")]
    UnknownEvent,
}

impl core::error::Error for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Json(fault)
    }
}

/// The data of a client event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// A string, decoded.
    Text(Cow<'a, str>),
    /// Another JSON value, as it was sent.
    Value(&'a [u8]),
}

impl Data<'_> {
    /// The bytes of the string, or of the JSON text.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::Text(text) => text.as_bytes(),
            Data::Value(json) => json,
        }
    }
}

/// An event of a client. A string is empty if its field is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `pusher:ping`.
    Ping,
    /// `pusher:pong`.
    Pong,
    /// `pusher:subscribe`.
    Subscribe {
        /// The name of the channel, not checked.
        channel: Cow<'a, str>,
        /// The signature, after the key and a colon.
        auth: Cow<'a, str>,
        /// The user of a presence channel, as JSON.
        channel_data: Cow<'a, str>,
        /// The position where the subscription begins. An extension of this server's.
        since: Option<Cow<'a, str>>,
    },
    /// `pusher:unsubscribe`.
    Unsubscribe {
        /// The name of the channel, not checked.
        channel: Cow<'a, str>,
    },
    /// `pusher:signin`.
    Signin {
        /// The signature, after the key and a colon.
        auth: Cow<'a, str>,
        /// The user, as JSON.
        user_data: Cow<'a, str>,
    },
    /// An event whose name begins with `client-`.
    ClientEvent {
        /// The name.
        event: Cow<'a, str>,
        /// The name of the channel, not checked.
        channel: Cow<'a, str>,
        /// The data. An event without data has the text `null`.
        data: Data<'a>,
    },
}

impl<'a> Request<'a> {
    /// Reads an event.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn read(frame: &'a [u8]) -> Result<Request<'a>, Error> {
        let (mut event, mut channel, mut data) = (None, None, None);
        read_object(frame, "the event", |name, scan| {
            match name {
                "event" => event = read_text(scan, "event")?,
                "channel" => channel = read_text(scan, "channel")?,
                "data" => data = Some(read_data(scan)?),
                _ => scan.value()?,
            }
            Ok(())
        })?;
        let event = event.ok_or(Error::Missing("event"))?;
        let data = data.unwrap_or(Data::Value(b"null"));
        match &*event {
            "pusher:ping" => Ok(Request::Ping),
            "pusher:pong" => Ok(Request::Pong),
            "pusher:subscribe" => {
                let [channel, auth, channel_data, since] =
                    read_fields(&data, ["channel", "auth", "channel_data", "since"])?;
                Ok(Request::Subscribe {
                    channel: channel.ok_or(Error::Missing("data.channel"))?,
                    auth: auth.unwrap_or_default(),
                    channel_data: channel_data.unwrap_or_default(),
                    since,
                })
            }
            "pusher:unsubscribe" => {
                let [channel] = read_fields(&data, ["channel"])?;
                Ok(Request::Unsubscribe {
                    channel: channel.ok_or(Error::Missing("data.channel"))?,
                })
            }
            "pusher:signin" => {
                let [auth, user_data] = read_fields(&data, ["auth", "user_data"])?;
                Ok(Request::Signin {
                    auth: auth.unwrap_or_default(),
                    user_data: user_data.ok_or(Error::Missing("data.user_data"))?,
                })
            }
            name if name.starts_with("client-") => Ok(Request::ClientEvent {
                channel: channel.ok_or(Error::Missing("channel"))?,
                event,
                data,
            }),
            _ => Err(Error::UnknownEvent),
        }
    }
}

/// The user in the data of a presence channel or of a sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User<'a> {
    /// The id. A number is its text.
    pub id: Cow<'a, str>,
    /// What others may know of the user, as JSON; empty for nothing.
    pub info: &'a [u8],
}

impl<'a> User<'a> {
    /// Reads the data of a presence channel: an object with `user_id` and perhaps `user_info`.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn read_member(json: &'a str) -> Result<User<'a>, Error> {
        Self::read(json, "user_id", "channel_data.user_id", "user_info")
    }

    /// Reads the data of a sign-in: an object with `id` and perhaps `user_info`.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn read_signed_in(json: &'a str) -> Result<User<'a>, Error> {
        Self::read(json, "id", "user_data.id", "user_info")
    }

    fn read(
        json: &'a str,
        id_name: &str,
        id_path: &'static str,
        info_name: &str,
    ) -> Result<User<'a>, Error> {
        let (mut id, mut info) = (None, &b""[..]);
        read_object(json.as_bytes(), "the user", |name, scan| {
            if name == id_name {
                id = match read_data(scan)? {
                    Data::Text(text) => Some(text),
                    Data::Value(number) if matches!(number[0], b'-' | b'0'..=b'9') => {
                        Some(String::from_utf8_lossy(number))
                    }
                    Data::Value(_) => return Err(Error::WrongType(id_path)),
                };
            } else if name == info_name {
                let start = scan.at();
                scan.value()?;
                info = scan.slice(start, scan.at()).trim_ascii();
            } else {
                scan.value()?;
            }
            Ok(())
        })?;
        match id {
            Some(id) if !id.is_empty() => Ok(User { id, info }),
            _ => Err(Error::Missing(id_path)),
        }
    }
}

/// Reads these text fields of the data of an event. The data are an object, or a string with the text of one.
fn read_fields<'a, const N: usize>(
    data: &Data<'a>,
    names: [&'static str; N],
) -> Result<[Option<Cow<'a, str>>; N], Error> {
    match data {
        Data::Value(json) => fields_of(json, names),
        Data::Text(Cow::Borrowed(text)) => fields_of(text.as_bytes(), names),
        Data::Text(Cow::Owned(text)) => {
            let fields = fields_of(text.as_bytes(), names)?;
            Ok(fields.map(|field| field.map(|text| Cow::Owned(text.into_owned()))))
        }
    }
}

fn fields_of<'a, const N: usize>(
    json: &'a [u8],
    names: [&'static str; N],
) -> Result<[Option<Cow<'a, str>>; N], Error> {
    let mut fields = [const { None }; N];
    read_object(json, "data", |name, scan| {
        match names.iter().position(|wanted| *wanted == name) {
            Some(index) => fields[index] = read_text(scan, names[index])?,
            None => scan.value()?,
        }
        Ok(())
    })?;
    Ok(fields)
}

/// Reads one object. Calls `field` with the name of each field; it must read the value. Of fields with the same name, the last one counts.
fn read_object<'a>(
    json: &'a [u8],
    what: &'static str,
    mut field: impl FnMut(&str, &mut Scan<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut scan = Scan::new(json);
    if scan.peek().ok_or(Fault::Incomplete)? != b'{' {
        scan.value()?;
        scan.end()?;
        return Err(Error::WrongType(what));
    }
    scan.step();
    if scan.peek() == Some(b'}') {
        scan.step();
        return Ok(scan.end()?);
    }
    loop {
        scan.quote()?;
        let name = read_string(&mut scan)?;
        scan.colon()?;
        field(&name, &mut scan)?;
        match scan.peek().ok_or(Fault::Incomplete)? {
            b',' => scan.step(),
            b'}' => break,
            _ => return Err(Fault::ExpectedComma.into()),
        }
    }
    scan.step();
    Ok(scan.end()?)
}

/// Reads the value of a text field; `None` for `null`.
fn read_text<'a>(scan: &mut Scan<'a>, name: &'static str) -> Result<Option<Cow<'a, str>>, Error> {
    match scan.peek().ok_or(Fault::Incomplete)? {
        b'"' => {
            scan.step();
            Ok(Some(read_string(scan)?))
        }
        b'n' => {
            scan.value()?;
            Ok(None)
        }
        _ => {
            scan.value()?;
            Err(Error::WrongType(name))
        }
    }
}

fn read_data<'a>(scan: &mut Scan<'a>) -> Result<Data<'a>, Error> {
    if scan.peek().ok_or(Fault::Incomplete)? == b'"' {
        scan.step();
        return Ok(Data::Text(read_string(scan)?));
    }
    let start = scan.at();
    scan.value()?;
    Ok(Data::Value(scan.slice(start, scan.at())))
}

/// Reads a string after its opening quote.
fn read_string<'a>(scan: &mut Scan<'a>) -> Result<Cow<'a, str>, Error> {
    let mut decoded = Vec::new();
    let Text {
        start,
        end,
        escaped,
    } = scan.string(&mut decoded)?;
    match escaped {
        true => Ok(Cow::Owned(
            String::from_utf8(decoded).map_err(|_| Fault::NotUtf8)?,
        )),
        false => core::str::from_utf8(scan.slice(start, end))
            .map(Cow::Borrowed)
            .map_err(|_| Fault::NotUtf8.into()),
    }
}
