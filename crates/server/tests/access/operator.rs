//! Tests actions of the operator on a running server: a reload that changes keys, and the token of the admin port.

use crate::support::http::{Conn, once};
use crate::support::{Server, until};
use crate::tokens::{SECRET, everything, key_settings, token};

fn publish(server: &Server, token: &str) -> u16 {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    once(server, "POST", "/pub/doors/operator", &headers, "x").status
}

#[test]
fn removed_key_is_refused_and_a_new_one_is_accepted_after_a_reload() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let former = token(everything());
    assert_eq!(publish(&server, &former), 202);
    let settings = std::fs::read_to_string(server.settings_file()).expect("the settings");
    let secret = "fedcba9876543210fedcba9876543210";
    server.reload(&settings.replace(SECRET, secret));
    until("the end of the former key", || {
        publish(&server, &former) == 401
    });
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    let new = jsonwebtoken::encode(&header, &everything(), &key).expect("a token");
    assert_eq!(publish(&server, &new), 202);
    // Settings that are not valid change nothing, for example a file that is only half written.
    server.reload(&settings.replace(SECRET, "short"));
    server.await_log("settings not changed");
    assert_eq!(publish(&server, &new), 202);
}

#[test]
fn the_admin_port_takes_its_own_token_and_no_credentials_of_the_data_port() {
    let admin_token = "0123456789abcdef0123456789abcdef-admin";
    let settings = format!(
        "[admin]\ntoken = '{admin_token}'\n[access]\n{}",
        key_settings()
    );
    let server = Server::with_admin(&settings);
    let host = server.admin().to_string();
    let request = |method: &str, target: &str, headers: &[(&str, &str)]| {
        let stream = std::net::TcpStream::connect(server.admin()).expect("the admin port");
        let mut conn = Conn::from_stream(stream, &server);
        let headers = [&[("Host", host.as_str())], headers].concat();
        conn.ask(method, target, &headers, "");
        conn.head().status
    };
    let token = token(everything());
    let (data, admin) = (format!("Bearer {token}"), format!("Bearer {admin_token}"));
    let cut = format!("Bearer {}", &admin_token[..admin_token.len() - 1]);
    let altered = format!("{cut}x");
    let cookie = format!("crore_token={token}; token={admin_token}");
    let wrong_credentials: [&[(&str, &str)]; 6] = [
        &[],
        &[("Authorization", &altered)],
        &[("Authorization", &data)],
        &[("Authorization", &cut)],
        &[("Authorization", "Bearer ")],
        &[("Cookie", &cookie)],
    ];
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/api/v1/topics"),
        ("GET", "/api/v1/connections"),
        ("GET", "/api/v1/config"),
        ("GET", "/api/v1/tail?filter=%23"),
        ("GET", "/api/v1/stats"),
        ("POST", "/api/v1/reload"),
        ("POST", "/api/v1/drain"),
    ] {
        for headers in wrong_credentials {
            let status = request(method, path, headers);
            assert_eq!(status, 401, "{method} {path} with {headers:?}");
        }
        let by_query = format!(
            "{path}{}token={admin_token}",
            if path.contains('?') { '&' } else { '?' }
        );
        assert_eq!(request(method, &by_query, &[]), 401, "{method} {by_query}");
    }
    for path in [
        "/metrics",
        "/api/v1/topics",
        "/api/v1/connections",
        "/api/v1/stats",
    ] {
        assert_eq!(
            request("GET", path, &[("Authorization", &admin)]),
            200,
            "{path}"
        );
    }
    assert_eq!(
        publish(&server, admin_token),
        401,
        "and the data port does not take the admin's"
    );
}
