//! Parses keys and certificates in PEM (RFC 7468), as OpenSSL, proxies and people write it.
//!
//! Invariants: a file is read as a whole, or refused. Blocks that often occur together with the wanted one are accepted: the key next to
//! its certificate, or parameters. The error for any other block names the line, the label and the remedy. Text outside of blocks is
//! ignored. Line ends, spaces and a byte order mark have no meaning, and a block may begin on the line where another ends.
//!
//! The caller reads the file. Passphrases and other encodings are deliberately not supported; the error then names the command that
//! converts the file.

use rustls::pki_types::pem::{PemObject as _, SectionKind};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};

use super::der::{self, Form};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const HYPHENS: &str = "-----";
/// The maximum number of characters of a line that an error message shows.
const SHOWN_CHARS: usize = 40;

/// A file of at least this length that has only base64 characters is taken for base64 without boundary lines.
const BASE64_BYTES_MIN: usize = 40;

/// The accepted labels, and the form of the content of each. `None` means parameters, which are ignored because the key has them too.
const LABELS: [(&str, Option<Form>); 10] = [
    ("CERTIFICATE", Some(Form::Certificate)),
    ("X509 CERTIFICATE", Some(Form::Certificate)),
    ("X.509 CERTIFICATE", Some(Form::Certificate)),
    ("PUBLIC KEY", Some(Form::PublicKey)),
    ("RSA PUBLIC KEY", Some(Form::RsaPublicKey)),
    ("PRIVATE KEY", Some(Form::PrivateKey)),
    ("RSA PRIVATE KEY", Some(Form::RsaPrivateKey)),
    ("EC PRIVATE KEY", Some(Form::EcPrivateKey)),
    ("EC PARAMETERS", None),
    ("DH PARAMETERS", None),
];

/// The remedy for a key with a passphrase.
const ENCRYPTED_REMEDY: &str =
    "has a passphrase; `openssl pkey -in FILE -out KEY.pem` writes it without";

/// The refused labels, and the reason and remedy for each.
const REFUSED_LABELS: [(&str, &str); 9] = [
    ("ENCRYPTED PRIVATE KEY", ENCRYPTED_REMEDY),
    (
        "TRUSTED CERTIFICATE",
        "has conditions of OpenSSL's own, which are not read; `openssl x509 -in FILE -out CERT.pem` writes the certificate alone",
    ),
    (
        "OPENSSH PRIVATE KEY",
        "is read by OpenSSH only; `ssh-keygen -p -m PKCS8 -f FILE` converts it",
    ),
    (
        "PKCS7",
        "is a message; `openssl pkcs7 -in FILE -print_certs -out CERTS.pem` writes its certificates",
    ),
    (
        "CMS",
        "is a message; `openssl pkcs7 -in FILE -print_certs -out CERTS.pem` writes its certificates",
    ),
    (
        "CERTIFICATE REQUEST",
        "is a request; write the certificate that the authority made of it",
    ),
    (
        "NEW CERTIFICATE REQUEST",
        "is a request; write the certificate that the authority made of it",
    ),
    (
        "X509 CRL",
        "is a revocation list, and none is observed here; take it out",
    ),
    (
        "DSA PRIVATE KEY",
        "is a key that nothing here signs with; make one of another kind",
    ),
];

/// A block of a file.
#[derive(Debug)]
pub struct Block {
    /// The form of the content; `None` for parameters.
    pub form: Option<Form>,
    /// The number of the block's first line, counted from 1.
    pub line: usize,
    /// The content.
    pub der: Vec<u8>,
}

/// A block whose end has not been read yet.
struct OpenBlock<'t> {
    label: &'t str,
    line: usize,
    base64: String,
}

/// Parses all blocks of a file, at least one.
///
/// # Errors
/// If a block is wrong: the line, its content and the remedy. If the file has no blocks: the form of the file.
pub fn parse_blocks(file: &[u8]) -> Result<Vec<Block>, String> {
    let text = decode_text(file)?;
    // Lines may also end in CR alone.
    let line_end = if text.contains('\n') { '\n' } else { '\r' };
    let mut blocks = Vec::new();
    let mut open: Option<OpenBlock<'_>> = None;
    for (index, line) in text.split(line_end).enumerate() {
        let mut rest = line.trim();
        while !rest.is_empty() {
            rest = match open.take() {
                None => read_line_outside(rest, index + 1, &mut open)?,
                Some(block) => read_line_in_block(block, rest, index + 1, &mut open, &mut blocks)?,
            };
        }
    }
    if let Some(open) = open {
        return Err(unended_error(&open));
    }
    match blocks.is_empty() {
        true => Err(no_block_error(file)),
        false => Ok(blocks),
    }
}

/// Decodes the file as text.
fn decode_text(file: &[u8]) -> Result<std::borrow::Cow<'_, str>, String> {
    let has_utf16_mark = file.starts_with(&[0xff, 0xfe]) || file.starts_with(&[0xfe, 0xff]);
    let is_utf16_without_mark = || {
        let without_zeros = file.iter().copied().filter(|byte| *byte != 0).collect();
        file.iter().take(2).any(|byte| *byte == 0)
            && String::from_utf8(without_zeros).is_ok_and(|text| text.contains(BEGIN))
    };
    if has_utf16_mark || is_utf16_without_mark() {
        return Err(
            "line 1: is text in UTF-16; `iconv -f UTF-16 -t UTF-8 FILE` converts it".to_string(),
        );
    }
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    Ok(String::from_utf8_lossy(file))
}

/// Reads a line outside of blocks. If a block begins there, returns the rest of the line.
fn read_line_outside<'t>(
    rest: &'t str,
    line: usize,
    open: &mut Option<OpenBlock<'t>>,
) -> Result<&'t str, String> {
    if let Some((label, rest)) = rest
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.split_once(HYPHENS))
    {
        *open = Some(OpenBlock {
            label,
            line,
            base64: String::new(),
        });
        return Ok(rest.trim_start());
    }
    // Text is ignored, and so is a block that is commented out with `#`.
    if rest.starts_with('#') || !is_boundary(rest) {
        return Ok("");
    }
    let escaped_line = escape(rest);
    Err(match rest.starts_with(END) {
        true => {
            format!(
                "line {line}: `{escaped_line}` ends a block that has not begun; write the whole block"
            )
        }
        false => format!(
            "line {line}: `{escaped_line}` is no beginning of a block; write -----BEGIN CERTIFICATE----- or the like, with five hyphens on each side and nothing before them"
        ),
    })
}

/// Whether a line outside of blocks was probably meant to begin or end one.
fn is_boundary(line: &str) -> bool {
    if line.contains(BEGIN) || line.contains(END) {
        return true;
    }
    let upper = line.to_uppercase();
    let contains_any = |words: &[&str]| words.iter().any(|word| upper.contains(word));
    // Hyphens, and the dashes into which word processors change them.
    line.starts_with([
        '-', '\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}',
    ]) && contains_any(&["BEGIN ", "END "])
        && contains_any(&["CERTIFICATE", "KEY"])
}

/// Reads a line within a block. If the block ends there, returns the rest of the line.
fn read_line_in_block<'t>(
    mut block: OpenBlock<'t>,
    rest: &'t str,
    line: usize,
    open: &mut Option<OpenBlock<'t>>,
    blocks: &mut Vec<Block>,
) -> Result<&'t str, String> {
    let end = rest.find(HYPHENS).unwrap_or(rest.len());
    let (base64, boundary) = rest.split_at(end);
    let label = escape(block.label);
    if let Some((name, _)) = base64.split_once(':') {
        // A header as in the format before RFC 7468. It nearly always means that the key has a passphrase.
        return Err(match matches!(name, "Proc-Type" | "DEK-Info") {
            true => format!("line {line}: {label} {ENCRYPTED_REMEDY}"),
            false => {
                format!("line {line}: {label} has a header, which no reader needs; take it out")
            }
        });
    }
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let mut other_chars = base64
        .chars()
        .filter(|c| !c.is_whitespace() && !is_base64(*c));
    if let Some(wrong_char) = other_chars.next() {
        return Err(match wrong_char {
            '\\' => format!("line {line}: {label} has a backslash; write line ends, not \\n"),
            wrong_char => format!(
                "line {line}: {label} has {wrong_char:?}, which is no base64; write the file anew"
            ),
        });
    }
    block
        .base64
        .extend(base64.chars().filter(|c| !c.is_whitespace()));
    if boundary.is_empty() {
        *open = Some(block);
        return Ok("");
    }
    let end_label = boundary
        .strip_prefix(END)
        .and_then(|rest| rest.split_once(HYPHENS));
    let Some((_, rest)) = end_label.filter(|(label, _)| *label == block.label) else {
        return Err(unended_error(&block));
    };
    blocks.push(decode(&block)?);
    Ok(rest.trim_start())
}

fn unended_error(open: &OpenBlock<'_>) -> String {
    let (line, label) = (open.line, escape(open.label));
    format!("line {line}: {label} has no end -----END {label}-----; write the whole block")
}

/// Decodes a complete block.
fn decode(open: &OpenBlock<'_>) -> Result<Block, String> {
    let (line, label) = (open.line, escape(open.label));
    let known_label = LABELS
        .iter()
        .find(|(known_label, _)| *known_label == open.label);
    let Some((_, form)) = known_label else {
        let refusal = REFUSED_LABELS
            .iter()
            .find(|(known_label, _)| *known_label == open.label);
        let reason = refusal.map_or(
            "is nothing that is read here; take it out",
            |(_, reason)| reason,
        );
        return Err(format!("line {line}: {label} {reason}"));
    };
    // The decoder takes constant time only for private keys, so each block is decoded as if it was a private key.
    let as_private_key = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        open.base64
    );
    let (_, der) = <(SectionKind, Vec<u8>)>::from_pem_slice(as_private_key.as_bytes())
        .map_err(|_| format!("line {line}: {label} is no base64; write the file anew"))?;
    if let Some(form) = form {
        let content = der::read_form(&der);
        if !content.is_some_and(|(found, length)| found == *form && length == der.len()) {
            let expected = form.name();
            let found_name = content.map(|(found, _)| found.name());
            return Err(format!(
                "line {line}: {label} is cut off, or is not {expected}{}; write the file anew",
                found_name.map_or(String::new(), |name| format!(" (it holds {name})"))
            ));
        }
    }
    Ok(Block {
        form: *form,
        line,
        der,
    })
}

/// The error for a file without any block.
fn no_block_error(file: &[u8]) -> String {
    if let Some((form, _)) = der::read_form(file) {
        let (name, conversion_command) = (form.name(), form.conversion_command());
        return format!(
            "is {name} in DER, and PEM is read here; `{conversion_command}` converts it"
        );
    }
    let text = String::from_utf8_lossy(file);
    let text = text.trim_start_matches('\u{feff}').trim();
    let no_line_message = "has no line such as -----BEGIN CERTIFICATE-----";
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=\r\n".contains(c);
    match () {
        () if text.is_empty() => "is empty".to_string(),
        () if file.starts_with(&[0xfe, 0xed, 0xfe, 0xed]) => {
            "is a keystore of Java; `keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12` and `openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem` convert it".to_string()
        }
        () if text.starts_with("ssh-") || text.starts_with("ecdsa-") => {
            "line 1: is a public key of OpenSSH; `ssh-keygen -e -m PKCS8 -f FILE` converts it".to_string()
        }
        () if text.starts_with("PuTTY-") => {
            "line 1: is a key of PuTTY; `puttygen FILE -O private-openssh-new -o KEY` and `ssh-keygen -p -m PKCS8 -f KEY` convert it".to_string()
        }
        () if text.len() >= BASE64_BYTES_MIN && text.chars().all(is_base64) => {
            format!("{no_line_message}, only base64; write the lines -----BEGIN ...----- and -----END ...----- around it")
        }
        () => format!("{no_line_message}, and is no PEM"),
    }
}

/// The beginning of a text from the file, escaped for an error message.
fn escape(text: &str) -> String {
    let text: String = text.chars().take(SHOWN_CHARS).collect();
    text.escape_debug().to_string()
}

/// The certificates of a file, at least one.
///
/// # Errors
/// Those of [`parse_blocks`]; a file without a certificate.
pub fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let blocks = parse_blocks(file)?;
    let block_list = list_blocks(&blocks);
    let certificates = blocks
        .into_iter()
        .filter(|block| block.form == Some(Form::Certificate));
    let certificates: Vec<_> = certificates.map(|block| block.der.into()).collect();
    match certificates.is_empty() {
        true => Err(format!("has no certificate, only {block_list}")),
        false => Ok(certificates),
    }
}

/// The private key of a file.
///
/// # Errors
/// Those of [`parse_blocks`]; a file without a private key, or with several.
pub fn private_key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let blocks = parse_blocks(file)?;
    let block_list = list_blocks(&blocks);
    let is_private = |block: &Block| {
        let private = [Form::PrivateKey, Form::RsaPrivateKey, Form::EcPrivateKey];
        block.form.is_some_and(|form| private.contains(&form))
    };
    let mut keys = blocks.into_iter().filter(is_private);
    let key = keys
        .next()
        .ok_or_else(|| format!("has no private key, only {block_list}"))?;
    if let Some(other) = keys.next() {
        let (first, second) = (key.line, other.line);
        return Err(format!(
            "line {second}: is a second private key after that of line {first}; leave one"
        ));
    }
    Ok(match key.form {
        Some(Form::RsaPrivateKey) => PrivatePkcs1KeyDer::from(key.der).into(),
        Some(Form::EcPrivateKey) => PrivateSec1KeyDer::from(key.der).into(),
        _ => PrivatePkcs8KeyDer::from(key.der).into(),
    })
}

/// Lists the blocks of a file for an error message.
pub fn list_blocks(blocks: &[Block]) -> String {
    let names = blocks.iter().map(|block| {
        let name = block.form.map_or("parameters", Form::name);
        format!("{name} (line {})", block.line)
    });
    let mut list: Vec<String> = names.take(4).collect();
    if blocks.len() > list.len() {
        list.push("others".to_string());
    }
    list.join(", ")
}
