//! Error messages for TLS faults. They replace the messages of `rustls`, which contain names from its source code.

use rustls::{AlertDescription, CertificateError, Error, InconsistentKeys};

/// A message for the error, without a remedy.
pub fn message(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::AlertReceived(alert) => format!("the peer ends it: {}", alert_message(*alert)),
        Error::PeerIncompatible(why) => format!("the peer does not fit: {}", spell_out(why)),
        Error::PeerMisbehaved(why) => format!("the peer breaks the protocol: {}", spell_out(why)),
        Error::InvalidMessage(why) => format!("the peer speaks no TLS: {}", spell_out(why)),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "the peer breaks the protocol: a message that has no place there".to_string()
        }
        Error::NoCertificatesPresented => "the peer shows no certificate".to_string(),
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the key is not that of the certificate".to_string()
        }
        Error::InconsistentKeys(_) => "the key and the certificate cannot be compared".to_string(),
        other => other.to_string(),
    }
}

fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            let is_for = match &names[..] {
                [] => "no name at all".to_string(),
                names => names.join(", "),
            };
            format!(
                "the certificate is for {is_for}, not for {}",
                expected.to_str()
            )
        }
        CertificateError::NotValidForName => "the certificate is not for this name".to_string(),
        CertificateError::ExpiredContext { time, not_after } => {
            let ago_s = time.as_secs().saturating_sub(not_after.as_secs());
            format!("the certificate expired {} ago", span(ago_s))
        }
        CertificateError::Expired => "the certificate has expired".to_string(),
        CertificateError::NotValidYetContext { time, not_before } => {
            let in_s = not_before.as_secs().saturating_sub(time.as_secs());
            format!("the certificate is not valid yet, but in {}", span(in_s))
        }
        CertificateError::NotValidYet => "the certificate is not valid yet".to_string(),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the certificate leads to no root that is trusted here".to_string()
        }
        CertificateError::Revoked => "the certificate is revoked".to_string(),
        CertificateError::InvalidPurposeContext { .. } => format!("the {error}"),
        CertificateError::Other(other) => {
            format!("the certificate is refused: {}", spell_out(&other.0))
        }
        other => format!("the certificate is refused: {}", spell_out(other)),
    }
}

/// The meaning of a received alert (RFC 8446 section 6.2). "It" in these messages is the peer that sent the alert.
pub fn alert_message(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => "it does not trust the root of the certificate",
        AlertDescription::BadCertificate => "it finds the certificate broken",
        AlertDescription::UnsupportedCertificate => "it does not take a certificate of this kind",
        AlertDescription::CertificateRevoked => "it says that the certificate is revoked",
        AlertDescription::CertificateExpired => {
            "it says that the certificate is not valid at this time"
        }
        AlertDescription::CertificateUnknown => "it does not accept the certificate",
        AlertDescription::CertificateRequired => "it wants a certificate",
        AlertDescription::ProtocolVersion => "it speaks no such version of TLS",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "it offers no cipher that both have"
        }
        AlertDescription::NoApplicationProtocol => "it speaks no protocol that both have (ALPN)",
        AlertDescription::UnrecognisedName => "it does not know this name",
        AlertDescription::AccessDenied => "it denies access",
        AlertDescription::DecryptError | AlertDescription::BadRecordMac => {
            "it cannot verify what it got"
        }
        AlertDescription::InternalError => "it has a fault of its own",
        AlertDescription::UserCanceled => "it was told to",
        _ => "it finds what it got malformed",
    }
}

/// The name inside `DnsName("a.example")` or `IpAddress(127.0.0.1)`.
fn bare(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// The words of a name from source code, for example `NoCipherSuitesInCommon { .. }`.
pub(super) fn spell_out(name: &dyn core::fmt::Debug) -> String {
    let text = format!("{name:?}");
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(text.len());
    let name = &text.as_bytes()[..end];
    let mut out = String::new();
    for (at, byte) in name.iter().enumerate() {
        let begins = byte.is_ascii_uppercase() && at > 0 && !name[at - 1].is_ascii_uppercase();
        if begins {
            out.push(' ');
        }
        out.push(char::from(byte.to_ascii_lowercase()));
    }
    out
}

/// A duration in the largest unit that fits.
fn span(seconds: u64) -> String {
    let (number, unit) = match seconds {
        86_400.. => (seconds / 86_400, "day"),
        3_600.. => (seconds / 3_600, "hour"),
        60.. => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {unit}{plural}")
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{InvalidMessage, PeerIncompatible};

    use super::*;

    #[test]
    fn faults_are_sentences_without_names_of_the_source() {
        let at = |s| UnixTime::since_unix_epoch(Duration::from_secs(s));
        let name = ServerName::try_from("localhost").unwrap();
        for (error, expected) in [
            (
                CertificateError::NotValidForNameContext {
                    expected: name.to_owned(),
                    presented: vec![
                        "DnsName(\"b.example\")".into(),
                        "IpAddress(10.0.0.1)".into(),
                    ],
                }
                .into(),
                "the certificate is for b.example, 10.0.0.1, not for localhost",
            ),
            (
                CertificateError::ExpiredContext {
                    time: at(200_000),
                    not_after: at(10_000),
                }
                .into(),
                "the certificate expired 2 days ago",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "the peer ends it: it does not trust the root of the certificate",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "the peer does not fit: no cipher suites in common",
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "the peer speaks no TLS: invalid content type",
            ),
        ] {
            assert_eq!(message(&error), expected);
        }
    }
}
