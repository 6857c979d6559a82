//! A small reader of DER (X.690). It recognizes the form of keys and certificates, and reads the names in a certificate and the size of an
//! RSA key.
//!
//! Invariant: no input causes a panic. This module does not verify keys and certificates; `rustls` and `aws-lc-rs` do.

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// The tag of a certificate's version, which is absent in certificates of version 1.
const VERSION: u8 = 0xa0;

/// The form of a key or a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// X.509.
    Certificate,
    /// X.509 `SubjectPublicKeyInfo`.
    PublicKey,
    /// PKCS #1.
    RsaPublicKey,
    /// PKCS #8.
    PrivateKey,
    /// PKCS #1.
    RsaPrivateKey,
    /// SEC 1.
    EcPrivateKey,
    /// PKCS #8 with a passphrase.
    Encrypted,
    /// PKCS #7: a message with certificates.
    Pkcs7,
    /// PKCS #12: keys and certificates with a passphrase.
    Pkcs12,
}

impl Form {
    /// The name of the form in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Certificate => "an X.509 certificate",
            Form::PublicKey => "a public key",
            Form::RsaPublicKey => "a public key (PKCS #1)",
            Form::PrivateKey => "a private key (PKCS #8)",
            Form::RsaPrivateKey => "a private key (PKCS #1)",
            Form::EcPrivateKey => "a private key (SEC 1)",
            Form::Encrypted => "a private key with a passphrase",
            Form::Pkcs7 => "PKCS #7",
            Form::Pkcs12 => "PKCS #12",
        }
    }

    /// The command that converts a file of this form to PEM.
    pub const fn conversion_command(self) -> &'static str {
        match self {
            Form::Certificate => "openssl x509 -inform DER -in FILE -out FILE.pem",
            Form::PublicKey => "openssl pkey -pubin -inform DER -in FILE -out FILE.pem",
            Form::RsaPublicKey => {
                "openssl rsa -RSAPublicKey_in -inform DER -in FILE -pubout -out FILE.pem"
            }
            Form::Pkcs7 => "openssl pkcs7 -inform DER -in FILE -print_certs -out FILE.pem",
            Form::Pkcs12 => "openssl pkcs12 -in FILE -nodes -out FILE.pem",
            _ => "openssl pkey -inform DER -in FILE -out FILE.pem",
        }
    }
}

/// Reads one value: its tag, its content, and the bytes after it.
fn read_value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // A longer length field does not occur in keys and certificates.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = length
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Reads the first value in `bytes`, if it has this tag. Returns its content, and the bytes after it.
fn read_content(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found_tag, content, rest) = read_value(bytes)?;
    (found_tag == tag).then_some((content, rest))
}

/// Reads the form and the length of the key or certificate at the beginning of `bytes`.
pub fn read_form(bytes: &[u8]) -> Option<(Form, usize)> {
    // PKCS #12 may be in BER, with an indefinite length.
    if bytes.starts_with(&[SEQUENCE, 0x80, INTEGER, 1, 3]) {
        return Some((Form::Pkcs12, bytes.len()));
    }
    let (content, after) = read_content(bytes, SEQUENCE)?;
    let length = bytes.len() - after.len();
    let (first_tag, first_content, rest) = read_value(content)?;
    let second_tag = read_value(rest).map(|(tag, ..)| tag);
    let inner_tag = read_value(first_content).map(|(tag, ..)| tag);
    let form = match (first_tag, second_tag, inner_tag) {
        (INTEGER, Some(SEQUENCE), _) if first_content == [3] => Form::Pkcs12,
        (INTEGER, Some(SEQUENCE), _) => Form::PrivateKey,
        (INTEGER, Some(OCTET_STRING), _) => Form::EcPrivateKey,
        (INTEGER, Some(INTEGER), _) if first_content == [0] => Form::RsaPrivateKey,
        (INTEGER, Some(INTEGER), _) => Form::RsaPublicKey,
        (OBJECT, Some(_), _) => Form::Pkcs7,
        (SEQUENCE, Some(BIT_STRING), Some(OBJECT)) => Form::PublicKey,
        (SEQUENCE, Some(OCTET_STRING), Some(OBJECT)) => Form::Encrypted,
        (SEQUENCE, Some(SEQUENCE), Some(VERSION | INTEGER)) => Form::Certificate,
        _ => return None,
    };
    Some((form, length))
}

/// The encoded names of a certificate's issuer and subject.
pub fn issuer_and_subject(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let (signed, _) = read_content(read_content(certificate, SEQUENCE)?.0, SEQUENCE)?;
    let rest = match read_content(signed, VERSION) {
        Some((_, rest)) => rest,
        None => signed,
    };
    let (_serial, rest) = read_content(rest, INTEGER)?;
    let (_algorithm, rest) = read_content(rest, SEQUENCE)?;
    let (issuer, rest) = read_content(rest, SEQUENCE)?;
    let (_validity, rest) = read_content(rest, SEQUENCE)?;
    let (subject, _) = read_content(rest, SEQUENCE)?;
    Some((issuer, subject))
}

/// The key inside a PKCS #8 structure (RFC 5208 section 5). An RSA key is in PKCS #1 there.
pub fn pkcs8_key(private: &[u8]) -> Option<&[u8]> {
    let (content, _) = read_content(private, SEQUENCE)?;
    let (_version, rest) = read_content(content, INTEGER)?;
    let (_algorithm, rest) = read_content(rest, SEQUENCE)?;
    Some(read_content(rest, OCTET_STRING)?.0)
}

/// The object identifier of RSASSA-PSS (RFC 8017 appendix C). Such a key looks like an RSA key, but can only make PSS signatures, for
/// example PS256.
pub const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];

/// The object identifier of the algorithm of a public key (X.509) or a private key (PKCS #8).
pub fn algorithm(key: &[u8]) -> Option<&[u8]> {
    let (content, _) = read_content(key, SEQUENCE)?;
    let rest = match read_content(content, INTEGER) {
        Some((_version, rest)) => rest,
        None => content,
    };
    let (algorithm, _) = read_content(rest, SEQUENCE)?;
    Some(read_content(algorithm, OBJECT)?.0)
}

/// The number of bits of the modulus of an RSA public key, in either form.
pub fn rsa_bits(public: &[u8]) -> Option<usize> {
    let (content, _) = read_content(public, SEQUENCE)?;
    let numbers = match read_content(content, SEQUENCE) {
        // SubjectPublicKeyInfo: a bit string begins with the number of its unused bits.
        Some((_, rest)) => read_content(read_content(rest, BIT_STRING)?.0.get(1..)?, SEQUENCE)?.0,
        None => content,
    };
    Some(bit_count(read_content(numbers, INTEGER)?.0))
}

/// The number of bits of a big-endian number.
pub fn bit_count(number: &[u8]) -> usize {
    let zero_bytes = number.iter().take_while(|byte| **byte == 0).count();
    let rest = &number[zero_bytes..];
    rest.first()
        .map_or(0, |first| rest.len() * 8 - first.leading_zeros() as usize)
}
