//! `crore token`: makes tokens, shows their claims, and hashes passwords for the settings.
//!
//! A server accepts ordinary JWTs of any issuer whose key it knows. This command mints tokens for tests, devices and the first steps.

use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use argon2::Argon2;
use argon2::password_hash::PasswordHasher;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RsaKeyPair,
};
use clap::{Args, Subcommand};
use crore_broker::access::{Grants, Right};
use crore_net::{clock, der, pem};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Map, Value, json};

use super::values;
use crate::access::algorithm::algorithm;
use crate::access::{credential_verifiers, jwt, keys, public, secret};
use crate::config;
use crate::settings::access::FiltersByRight;
use crate::settings::numbers;
use crate::settings::units::parse_seconds;
use crate::stdout::print;

/// Maximum size of the input, in bytes. It is far above the size of any token or password.
const INPUT_BYTES_MAX: u64 = 64 << 10;
/// The default of `--ttl`.
const TTL_DEFAULT: &str = "1h";

const EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > secret.txt
  crore token mint --key secret.txt --user ann --subscribe 'news/#' --ttl 8h
  openssl genpkey -algorithm ed25519 -out key.pem
  crore token mint --key key.pem --publish 'sensors/17/#' --ttl 30d
  crore token inspect eyJ...                         its contents, not verified
  crore token inspect --config crore.toml eyJ...     what this server makes of it
  crore token hash < password.txt                    a password for [[access.user]]";

/// Arguments of `crore token`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Print a new token
    Mint(Box<MintArgs>),
    /// Print the contents of a token, and verify it with --config
    Inspect(InspectArgs),
    /// Print the hash of a password that is read from stdin
    Hash,
}

#[derive(Clone, Debug, Args)]
struct MintArgs {
    /// The key that signs the token: a file with a secret of 32 bytes or more (HS256), or a private key in PEM (RS256, ES256, EdDSA)
    #[arg(short, long, value_name = "FILE")]
    key: PathBuf,

    /// HS256, RS256, ES256 or EdDSA [default: by the key]
    #[arg(long, value_name = "ALG")]
    alg: Option<String>,

    /// Name of the key, where the server has several
    #[arg(long, value_name = "NAME", value_parser = values::text)]
    kid: Option<String>,

    /// The user (claim `sub`)
    #[arg(short, long, value_name = "NAME", value_parser = values::text)]
    user: Option<String>,

    #[command(flatten)]
    filters: FiltersByRight,

    /// How long the token is valid: 90s, 15m, 8h, 30d; 0 = without end
    #[arg(long, value_name = "TIME", default_value = TTL_DEFAULT, value_parser = parse_seconds::<u64>)]
    ttl: u64,

    /// The audience (claim `aud`)
    #[arg(long, value_name = "NAME", value_parser = values::text)]
    audience: Option<String>,

    /// The issuer (claim `iss`)
    #[arg(long, value_name = "NAME", value_parser = values::text)]
    issuer: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct InspectArgs {
    /// The token; without it, stdin
    token: Option<String>,

    /// Verify the token with the keys of this settings file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &TokenArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::Mint(args) => mint(args),
        Command::Inspect(args) => inspect(args),
        Command::Hash => hash(),
    }
}

fn mint(args: &MintArgs) -> anyhow::Result<()> {
    let (algorithm, key) = signing_key(&args.key, args.alg.as_deref())?;
    let by_right = &args.filters;
    by_right.grants(args.user.as_deref().unwrap_or_default())?;
    let filters = by_right.by_right().into_iter().flat_map(|(_, list)| list);
    for hint in filters.flat_map(|it| values::hints_of_grant(it)) {
        print_note(&hint)?;
    }
    if *by_right == FiltersByRight::default() {
        let flags: Vec<_> = Right::ALL
            .iter()
            .map(|right| format!("--{}", right.name()))
            .collect();
        let (last, others) = flags.split_last().expect("there are rights");
        let others = others.join(", ");
        print_note(&format!(
            "this token grants nothing by itself: {others} and {last} name what its owner may do\n"
        ))?;
    }
    let now_unix_s = clock::unix_s();
    let mut claims = match serde_json::to_value(by_right)? {
        Value::Object(filters) => filters,
        _ => Map::new(),
    };
    claims.insert("iat".to_string(), json!(now_unix_s));
    if args.ttl > 0 {
        claims.insert(
            "exp".to_string(),
            json!(now_unix_s.saturating_add(args.ttl)),
        );
    }
    let named = [
        ("sub", &args.user),
        ("aud", &args.audience),
        ("iss", &args.issuer),
    ];
    for (claim, name) in named {
        if let Some(name) = name {
            claims.insert(claim.to_string(), json!(name));
        }
    }
    let header = Header {
        kid: args.kid.clone(),
        ..Header::new(algorithm)
    };
    let token = jsonwebtoken::encode(&header, &claims, &key)
        .map_err(|error| anyhow!("--key {}: cannot sign: {error}", args.key.display()))?;
    print(format!("{token}\n").as_bytes())
}

/// Reads the key that signs the token, and finds its algorithm.
fn signing_key(path: &Path, alg: Option<&str>) -> anyhow::Result<(Algorithm, EncodingKey)> {
    let wrong = |message: String| anyhow!("--key {}: {message}", path.display());
    let bytes = keys::read_file(path).map_err(|message| {
        let remedy = match path.exists() {
            true => "",
            false => {
                "; --key names a file: `openssl rand -hex 32 > secret.txt` makes a secret, which the server reads too (file in [[access.key]])"
            }
        };
        wrong(format!("{message}{remedy}"))
    })?;
    let wanted = alg
        .map(|name| {
            algorithm(name).with_context(|| {
                format!("`{name}` is not offered; write HS256, RS256, ES256 or EdDSA")
            })
        })
        .transpose()?;
    let is_pem = bytes.windows(PEM_BEGINS.len()).any(|it| it == PEM_BEGINS);
    let secret = !is_pem && wanted.is_none_or(|wanted| wanted == Algorithm::HS256);
    if secret {
        if keys::is_json(&bytes) {
            return Err(wrong("begins with `{`, so the server reads it as a JWKS; for a secret write the output of `openssl rand -hex 32`".to_string()));
        }
        let secret = secret::parse(&bytes).map_err(wrong)?;
        return Ok((Algorithm::HS256, EncodingKey::from_secret(secret)));
    }
    let key = pem::private_key(&bytes).map_err(|message| {
        let by = alg.unwrap_or("it");
        wrong(format!(
            "{message}; {by} signs with a private key in PEM, and only HS256 with a secret"
        ))
    })?;
    if let PrivateKeyDer::Pkcs8(pkcs8) = &key
        && der::algorithm(pkcs8.secret_pkcs8_der()) == Some(der::RSA_PSS)
    {
        return Err(wrong(public::RSA_PSS_MESSAGE.to_string()));
    }
    let offered: [(Algorithm, ReadKey); 3] = [
        (Algorithm::RS256, rsa_key),
        (Algorithm::ES256, ec_key),
        (Algorithm::EdDSA, ed_key),
    ];
    let offered = offered.into_iter();
    let mut offered = offered.filter(|(it, _)| wanted.is_none_or(|wanted| wanted == *it));
    let found = offered.find_map(|(algorithm, read)| Some((algorithm, read(&key)?)));
    found.with_context(|| {
        let by =
            alg.unwrap_or("RS256 (RSA of 2,048 bits or more), ES256 (P-256) or EdDSA (Ed25519)");
        format!(
            "--key {}: its private key does not sign with {by}; name one that does",
            path.display()
        )
    })
}

/// The start of a block in a PEM file.
const PEM_BEGINS: &[u8] = b"-----BEGIN ";

type ReadKey = fn(&PrivateKeyDer<'_>) -> Option<EncodingKey>;

fn rsa_key(key: &PrivateKeyDer<'_>) -> Option<EncodingKey> {
    let pkcs1 = match key {
        PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
        PrivateKeyDer::Pkcs8(key) => der::pkcs8_key(key.secret_pkcs8_der())?,
        _ => return None,
    };
    RsaKeyPair::from_der(pkcs1).ok()?;
    Some(EncodingKey::from_rsa_der(pkcs1))
}

fn ec_key(key: &PrivateKeyDer<'_>) -> Option<EncodingKey> {
    let by = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pair = EcdsaKeyPair::from_private_key_der(by, key.secret_der()).ok()?;
    let pkcs8 = pair.to_pkcs8v1().ok()?;
    Some(EncodingKey::from_ec_der(pkcs8.as_ref()))
}

fn ed_key(key: &PrivateKeyDer<'_>) -> Option<EncodingKey> {
    Ed25519KeyPair::from_pkcs8(key.secret_der()).ok()?;
    Some(EncodingKey::from_ed_der(key.secret_der()))
}

fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let token = match &args.token {
        Some(token) => token.clone(),
        None => String::from_utf8(input()?).context("stdin")?,
    };
    let token = token.trim().as_bytes();
    let broken = "the token is no JWT: three parts with points between, of which the first two are JSON in base64url";
    let header = jwt::part(token, 0).with_context(|| broken.to_string())?;
    let claims = jwt::part(token, 1).with_context(|| broken.to_string())?;
    let shown = json!({ "header": header, "claims": claims });
    let mut text = serde_json::to_string_pretty(&shown)?;
    text.push('\n');
    print(text.as_bytes())?;
    let now_unix_s = clock::unix_s();
    if let Some(end) = claims.get("exp").and_then(Value::as_f64) {
        let left = end - now_unix_s as f64;
        let (word, span) = if left > 0.0 {
            ("holds for another", left)
        } else {
            ("has been over for", -left)
        };
        print_note(&format!(
            "{word} {}",
            numbers::format_duration(span.round() as u64)
        ))?;
    }
    let Some(path) = &args.config else {
        return print_note(
            "the signature was not verified; --config names the settings to do that with",
        );
    };
    let access = config::read_access(path)?;
    let keys = &credential_verifiers(access.as_ref())?.keys;
    keys.fetch();
    let known = keys.verify(token, now_unix_s);
    let known = known
        .map_err(|refusal| anyhow!("refused: {}; {}", refusal.text(), refusal.row().remedy))?;
    print_note(&accepted(&known.grants))
}

/// The rights that a verified token grants, with a line for each filter.
fn accepted(grants: &Grants) -> String {
    let owner = match grants.user() {
        "" => "for nobody by name".to_string(),
        user => format!("for user {user}"),
    };
    if grants.is_empty() {
        return format!("accepted, {owner}; it grants nothing");
    }
    let mut text = format!("accepted, {owner}; it grants");
    for (rights, filter) in grants.iter() {
        let rights: Vec<_> = rights.iter().map(Right::name).collect();
        // A filter may contain control characters, which must not reach the terminal.
        let filter = filter.escape_debug();
        text.push_str(&format!("\n  {filter}: {}", rights.join(", ")));
    }
    text
}

fn hash() -> anyhow::Result<()> {
    let password = input()?;
    let password = secret::without_line_end(&password);
    ensure!(
        !password.is_empty(),
        "stdin: no password; write `crore token hash < FILE`"
    );
    let hash = Argon2::default().hash_password(password);
    let hash = hash.map_err(|error| anyhow!("cannot hash: {error}"))?;
    print(format!("{hash}\n").as_bytes())
}

/// The first line of stdin, without a byte order mark.
fn input() -> anyhow::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut stdin = std::io::stdin().lock().take(INPUT_BYTES_MAX);
    stdin.read_until(b'\n', &mut line).context("stdin")?;
    let is_marked = [[0xff, 0xfe], [0xfe, 0xff]]
        .iter()
        .any(|mark| line.starts_with(mark));
    ensure!(
        !is_marked && !secret::is_utf16(&line),
        "stdin: {}",
        secret::UTF16_ERROR
    );
    ensure!(
        std::str::from_utf8(&line).is_ok(),
        "stdin: is no text in UTF-8; `iconv -t UTF-8 FILE` converts it"
    );
    Ok(secret::without_byte_order_mark(&line).to_vec())
}

/// Prints a note to stderr, since stdout is for data only.
fn print_note(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "{text}").context("stderr")
}
