//! Reads public keys, from PEM or from the numbers of a JWK. A key that cannot verify any token is refused when the settings are read: each key
//! is parsed here by the library that verifies tokens with it later.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    VerificationAlgorithm,
};
use crore_net::der::{self, Form};
use crore_net::pem::{self, Block};
use curve25519_dalek::edwards::CompressedEdwardsY;
use jsonwebtoken::{Algorithm, DecodingKey};
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;

/// Supported sizes of RSA keys, in bits.
pub const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// The error message for an RSA-PSS key.
pub const RSA_PSS_MESSAGE: &str = "is an RSA-PSS key (1.2.840.113549.1.1.10), and RS256 needs a plain RSA key (rsaEncryption); make one with `openssl genrsa -out KEY.pem 2048`";

/// The key in a PEM file: a public key, or the key of the first certificate of a chain.
///
/// # Errors
/// The fault, with its line and the remedy if there is one.
pub fn from_pem(algorithm: Algorithm, file: &[u8]) -> Result<DecodingKey, String> {
    let blocks = pem::parse_blocks(file)?;
    let blocks_of = |forms: &[Form]| -> Vec<&Block> {
        let has_form = |block: &&Block| block.form.is_some_and(|form| forms.contains(&form));
        blocks.iter().filter(has_form).collect()
    };
    let private_forms = [Form::PrivateKey, Form::RsaPrivateKey, Form::EcPrivateKey];
    if let Some(private) = blocks_of(&private_forms).first() {
        return Err(format!(
            "line {}: is a private key; the server needs the public one alone (`openssl pkey -in KEY -pubout`)",
            private.line
        ));
    }
    let public = blocks_of(&[Form::PublicKey, Form::RsaPublicKey, Form::Certificate]);
    let Some((first, others)) = public.split_first() else {
        return Err(format!(
            "has no public key, only {}",
            pem::list_blocks(&blocks)
        ));
    };
    let mut previous = first;
    for block in others {
        if !is_issued_by(previous, block) {
            return Err(format!(
                "line {}: is a second key after that of line {}; write each to a file and an [[access.key]] of its own",
                block.line, first.line
            ));
        }
        previous = block;
    }
    let key = match first.form {
        Some(Form::Certificate) => key_of_certificate(&first.der),
        _ => Ok(first.der.clone()),
    };
    key.and_then(|key| decoding_key(algorithm, &key))
        .map_err(|message| format!("line {}: {message}", first.line))
}

/// Whether both blocks are certificates, and the second one belongs to the issuer of the first.
fn is_issued_by(certificate: &Block, issuer: &Block) -> bool {
    let certificates = [certificate, issuer].map(|block| block.form == Some(Form::Certificate));
    let names = (
        der::issuer_and_subject(&certificate.der),
        der::issuer_and_subject(&issuer.der),
    );
    certificates == [true, true]
        && matches!(names, (Some((issuer, _)), Some((_, subject))) if issuer == subject)
}

fn key_of_certificate(der: &[u8]) -> Result<Vec<u8>, String> {
    let certificate = CertificateDer::from(der);
    let parsed = ParsedCertificate::try_from(&certificate)
        .map_err(|error| format!("the certificate does not parse ({error}); write its public key (`openssl x509 -in FILE -pubkey -noout`)"))?;
    Ok(parsed.subject_public_key_info().to_vec())
}

/// Checks a key for this algorithm and returns it. `key` is DER, or the raw key of a JWK: a point of P-256 or the 32 bytes of an Ed25519 key.
pub fn decoding_key(algorithm: Algorithm, key: &[u8]) -> Result<DecodingKey, String> {
    type Decode = fn(&[u8]) -> DecodingKey;
    let (verifier, needs, decode): (&'static dyn VerificationAlgorithm, &str, Decode) =
        match algorithm {
            Algorithm::RS256 if der::algorithm(key) == Some(der::RSA_PSS) => {
                return Err(RSA_PSS_MESSAGE.to_string());
            }
            Algorithm::RS256 => (
                &RSA_PKCS1_2048_8192_SHA256,
                "an RSA key",
                DecodingKey::from_rsa_der,
            ),
            Algorithm::ES256 => (
                &ECDSA_P256_SHA256_FIXED,
                "a point of P-256",
                DecodingKey::from_ec_der,
            ),
            Algorithm::EdDSA => (&ED25519, "an Ed25519 key", DecodingKey::from_ed_der),
            other => return Err(format!("{other:?} has no public keys")),
        };
    ParsedPublicKey::new(verifier, key)
        .map_err(|_| format!("is no public key for {algorithm:?}, which needs {needs}"))?;
    if algorithm == Algorithm::RS256 {
        let bits = der::rsa_bits(key).unwrap_or_default();
        if !RSA_BITS.contains(&bits) {
            let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
            return Err(format!(
                "is an RSA key of {bits} bits, and RS256 needs {least} to {most}; make a new key"
            ));
        }
    }
    if algorithm == Algorithm::EdDSA {
        check_ed25519_point(key)?;
    }
    Ok(decode(key))
}

/// Checks the point of an Ed25519 key (RFC 8032 section 5.1.3). `aws-lc-rs` checks it only when it verifies.
fn check_ed25519_point(key: &[u8]) -> Result<(), String> {
    // The point is at the end of the key, also in DER.
    let encoded = key.last_chunk().map(|point| CompressedEdwardsY(*point));
    let point = encoded.and_then(|encoded| Some((encoded, encoded.decompress()?)));
    match point {
        // If compressing gives other bytes, the encoding was not canonical, and the key is refused.
        Some((encoded, point)) if point.compress() == encoded => match point.is_small_order() {
            true => Err(
                "is a point of small order, for which anybody can sign; make a new key".to_string(),
            ),
            false => Ok(()),
        },
        _ => Err(
            "is no point of Ed25519, so nothing can be verified with it; write the key anew"
                .to_string(),
        ),
    }
}
