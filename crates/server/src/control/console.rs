//! Serves the console, a web page at the root of the admin port, with its script, style and icon. `cargo xtask console` builds these files
//! from `console/`.
//!
//! The files hold no data, so requests for them need no token. The page gets its data from the API, with the token that its user enters.
//! Its content security policy allows no foreign code: the page may load from and connect to its own origin only, inline code and styles
//! are forbidden, and no script may turn text into markup (trusted types).

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

/// A file of the page.
struct File {
    path: &'static str,
    content_type: &'static str,
    content: &'static [u8],
}

macro_rules! file {
    ($path:literal, $name:literal, $content_type:literal) => {
        File {
            path: $path,
            content_type: $content_type,
            content: include_bytes!(concat!("console/", $name)),
        }
    };
}

const FILES: &[File] = &[
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!(
        "/console.js",
        "console.js",
        "text/javascript; charset=utf-8"
    ),
    file!("/console.css", "console.css", "text/css; charset=utf-8"),
    file!("/icon.svg", "icon.svg", "image/svg+xml"),
];

/// The content security policy of the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every file. Browsers revalidate each file, since another version of the server may have other files. The entity tag makes the revalidation
/// cheap.
const HEADERS: &[(header::HeaderName, &str)] = &[
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page and its files.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let tag = format!("\"{:016x}\"", xxh3_64(file.content));
        let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes");
        router.route(
            file.path,
            get(async move |headers: HeaderMap| answer(file, &tag, &headers)),
        )
    })
}

fn answer(file: &File, tag: &HeaderValue, request: &HeaderMap) -> Response {
    let mut response = if is_known(tag, request) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Bytes::from_static(file.content).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(file.content_type),
    );
    headers.insert(header::ETAG, tag.clone());
    response
}

/// Whether the browser already has this file (`If-None-Match`, RFC 9110, section 13.1.2).
fn is_known(tag: &HeaderValue, request: &HeaderMap) -> bool {
    let tag = tag.to_str().unwrap_or_default();
    request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| one.trim().trim_start_matches("W/") == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum total size of the page's files, in bytes.
    const BUNDLE_BYTES_MAX: usize = 150_000;

    #[test]
    fn files_of_the_page_are_small() {
        let bytes: usize = FILES.iter().map(|file| file.content.len()).sum();
        assert!(bytes < BUNDLE_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn content_security_policy_permits_neither_inline_code_nor_foreign_origins() {
        for word in ["unsafe", "http:", "https:", "data:", "blob:", "*"] {
            assert!(!POLICY.contains(word), "{word}");
        }
        let page = std::str::from_utf8(FILES[0].content).expect("text");
        for word in ["<style", "style=", "onload", "://"] {
            assert!(!page.contains(word), "{word} in the page");
        }
        assert_eq!(page.matches("<script").count(), 1);
        assert!(page.contains("<script type=\"module\" src=\"console.js\"></script>"));
    }

    #[test]
    fn browser_that_has_the_file_gets_not_modified() {
        let tag = HeaderValue::from_static("\"00\"");
        let is_tag_known = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, text.parse().expect("a header"));
            is_known(&tag, &headers)
        };
        assert!(is_tag_known("\"00\""));
        assert!(is_tag_known("\"11\", W/\"00\""));
        assert!(!is_tag_known("\"0\""));
        assert!(!is_known(&tag, &HeaderMap::new()));
    }
}
