//! Tests of secrets: no key passes, and no random secret is refused.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData};

use super::*;

/// The next pseudo-random byte (xorshift), the same in each run.
fn random(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u8
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes each byte with `write`.
fn each(bytes: &[u8], write: impl Fn(u8) -> String) -> String {
    bytes.iter().map(|byte| write(*byte)).collect()
}

fn base32(bytes: &[u8]) -> String {
    let bits = each(bytes, |byte| format!("{byte:08b}"));
    let digit = |five: &[u8]| {
        let five = five.iter().fold(0, |sum, bit| sum << 1 | (bit - b'0')) << (5 - five.len());
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from(five)])
    };
    bits.as_bytes().chunks(5).map(digit).collect()
}

/// A hex dump: the address, the bytes in groups, and the printable characters.
fn dump(bytes: &[u8], group: impl Fn(&[u8]) -> String, size: usize) -> String {
    let rows = bytes.chunks(16).enumerate();
    let row = |(row, bytes): (usize, &[u8])| {
        let groups: String = bytes.chunks(size).map(&group).collect();
        let shown = each(bytes, |byte| match byte.is_ascii_graphic() {
            true => char::from(byte).to_string(),
            false => ".".to_string(),
        });
        format!("{:08x}: {groups}  {shown}\n", row * 16)
    };
    rows.map(row).collect()
}

fn lines(text: &str, before: &str, behind: &str) -> String {
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    lines
        .map(|line| format!("{before}{line}{behind}"))
        .collect()
}

/// The DER of a public key in other encodings.
fn encodings(der: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let base64 = STANDARD.encode(der);
    let twice = STANDARD.encode(&base64);
    let swapped = |pair: &[u8]| format!("{:02x}{:02x} ", pair[pair.len() - 1], pair[0]);
    let numbers = each(der, |byte| format!("{byte},"));
    let text = [
        ("lines with \\n", lines(&base64, "", "\\n")),
        ("lines with \\r\\n", lines(&base64, "", "\\r\\n")),
        ("lines with <br>", lines(&base64, "", "<br>")),
        ("lines in quotes", lines(&base64, "\"", "\"\n")),
        ("lines put together", lines(&base64, "'", "' +\n")),
        (
            "escaped for a URL",
            base64
                .replace('+', "%2B")
                .replace('/', "%2F")
                .replace('=', "%3D"),
        ),
        ("behind a word", format!("publickey{base64}")),
        ("behind a letter", format!("k{base64}")),
        ("a DKIM record", format!("v=DKIM1; k=ed25519; p={base64}")),
        ("base64 three times", STANDARD.encode(&twice)),
        (
            "base64 without an end",
            base64[..base64.len() - 8].to_string(),
        ),
        ("base32", base32(der)),
        ("xxd", dump(der, |pair| format!("{} ", hex(pair)), 2)),
        ("hexdump -C", dump(der, |byte| format!("{} ", hex(byte)), 1)),
        ("hexdump", dump(der, swapped, 2)),
        ("hex behind a word", format!("key{}", hex(der))),
        ("escapes of a URL", each(der, |byte| format!("%{byte:02X}"))),
        (
            "escapes of JSON",
            each(der, |byte| format!("\\u{byte:04x}")),
        ),
        ("decimal numbers", format!("[{numbers}]")),
        (
            "Node's buffer",
            format!("{{\"type\":\"Buffer\",\"data\":[{numbers}]}}"),
        ),
    ];
    let mut all: Vec<_> = text.map(|(name, text)| (name, text.into_bytes())).into();
    all.push(("behind a line end", [b"\n", der].concat()));
    all.push(("behind a mark", [b"\xef\xbb\xbf", der].concat()));
    all.push(("behind a zero", [b"\0", der].concat()));
    all.push(("without its last bytes", der[..der.len() - 8].to_vec()));
    all.push(("without its first bytes", der[2..].to_vec()));
    let gzip = [b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", der].concat();
    all.push(("gzip in base64", STANDARD.encode(&gzip).into_bytes()));
    all.push(("gzip", gzip));
    all
}

#[test]
fn a_public_key_is_no_secret_in_any_encoding() {
    for of in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519, &PKCS_RSA_SHA256] {
        let pair = KeyPair::generate_for(of).expect("a key");
        for (name, bytes) in encodings(&pair.subject_public_key_info()) {
            let error = parse(&bytes).expect_err(name);
            assert!(error.contains("HS256 takes a secret"), "{name}: {error}");
        }
    }
}

#[test]
fn a_jwk_is_no_secret_however_it_is_written() {
    let jwk = format!(
        "{{\"crv\":\"Ed25519\",\"kty\":\"OKP\",\"x\":\"{}\"}}",
        "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
    );
    let twice = serde_json::Value::String(jwk.clone()).to_string();
    for text in [
        serde_json::Value::String(twice.clone()).to_string(),
        twice,
        each(jwk.as_bytes(), |byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        }),
        jwk.replace("kty", "k\\u0074y"),
        jwk.replace('"', "&quot;"),
        jwk.replace('"', ""),
        jwk.replace([',', '{', '}'], "\n").replace('"', ""),
        jwk.replace("\"x\"", "x")
            .replace("\"kty\"", "kty")
            .replace('"', "'"),
        "<jwk><kty>OKP</kty><crv>Ed25519</crv></jwk>".to_string(),
    ] {
        for text in [STANDARD.encode(STANDARD.encode(&text)), text] {
            let error = parse(text.as_bytes()).expect_err(&text);
            assert!(error.contains("is a key in JSON (JWK)"), "{text}: {error}");
        }
    }
}

#[test]
fn printed_forms_of_a_public_key_are_refused_as_secrets() {
    let numbers = "    8b:1f:4c:30:77:0a\n".repeat(4);
    for text in [
        format!("ED25519 Public-Key:\npub:\n{numbers}"),
        format!("Public-Key: (2048 bit)\n{numbers}"),
        format!("Subject Public Key Info:\n{numbers}"),
        format!("X509v3 extensions:\n{numbers}"),
        format!("Modulus={}", "C0".repeat(40)),
        format!("<Modulus>{}</Modulus>", "wMDA".repeat(20)),
    ] {
        let error = parse(text.as_bytes()).expect_err(&text);
        assert!(error.contains("HS256 takes a secret"), "{text}: {error}");
    }
    // The bare modulus of an RSA key, in bytes and in the shortest text.
    let modulus: Vec<u8> = (0..=255).collect();
    for bytes in [&modulus[..], URL_SAFE_NO_PAD.encode(&modulus).as_bytes()] {
        let error = parse(bytes).expect_err("too long");
        assert!(
            error.contains("255 at most") && error.contains("openssl rand -hex 32"),
            "{error}"
        );
    }
}

#[test]
fn a_point_of_p256_is_no_secret_with_one_coordinate_or_two() {
    let pair = KeyPair::generate().expect("a key");
    let point = pair.der_bytes();
    let compressed = [&[2 + point[64] % 2], &point[1..33]].concat();
    let forms = [point, &point[1..], &compressed];
    for bytes in forms {
        for text in [
            bytes.to_vec(),
            hex(bytes).into_bytes(),
            each(bytes, |byte| format!("{byte:02X}:")).into_bytes(),
        ] {
            let error = parse(&text).expect_err("a point");
            assert!(error.contains("a point of P-256"), "{error}");
        }
    }
}

#[test]
fn bytes_that_are_all_one_are_no_secret() {
    for bytes in [[0; 64], [b'0'; 64], [0xff; 64]] {
        let error = parse(&bytes).expect_err("one byte");
        assert!(error.contains("one byte 64 times"), "{error}");
    }
}

#[test]
fn random_secrets_are_secrets_in_every_encoding() {
    let mut state = 88_172_645_463_325_252;
    for round in 0..400 {
        // The lengths begin at 34, since one in 256 secrets of 33 bytes is a compressed point, which is refused.
        let bytes: Vec<u8> = (0..34 + round % 80).map(|_| random(&mut state)).collect();
        let printable = each(&bytes, |byte| char::from(b' ' + 1 + byte % 94).to_string());
        for secret in [
            &bytes[..],
            hex(&bytes).as_bytes(),
            STANDARD.encode(&bytes).as_bytes(),
            STANDARD_NO_PAD.encode(&bytes[..32]).as_bytes(),
            base32(&bytes).as_bytes(),
            printable.as_bytes(),
        ] {
            assert_eq!(check(secret), Ok(()), "{secret:?}");
        }
    }
    assert_eq!(
        check(&[b"ab".repeat(127), b"c".to_vec()].concat()),
        Ok(()),
        "255 bytes"
    );
}

#[test]
fn byte_order_mark_is_no_part_of_a_secret_and_utf16_is_refused() {
    let text = "0123456789abcdef0123456789abcdef";
    let marked = format!("\u{feff}{text}\r\n");
    assert_eq!(parse(marked.as_bytes()), Ok(text.as_bytes()));
    // Random bytes that begin with the three bytes of the byte order mark keep these bytes.
    let bytes = [&b"\xef\xbb\xbf"[..], &(0x80..0xa8).collect::<Vec<u8>>()].concat();
    assert_eq!(parse(&bytes), Ok(&bytes[..]));
    for line_end in ["", "\r\n"] {
        let units = |mark: &str| {
            format!("{mark}{text}{line_end}")
                .encode_utf16()
                .collect::<Vec<u16>>()
        };
        for mark in ["\u{feff}", ""] {
            let little: Vec<u8> = units(mark).into_iter().flat_map(u16::to_le_bytes).collect();
            let big: Vec<u8> = units(mark).into_iter().flat_map(u16::to_be_bytes).collect();
            for bytes in [little, big] {
                let error = parse(&bytes).expect_err("UTF-16");
                assert!(
                    error.contains("UTF-16") && error.contains("iconv"),
                    "{error}"
                );
            }
        }
    }
}
