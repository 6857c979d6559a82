//! Tests access with the client programs that people use: `curl`, `mosquitto_pub` and `mosquitto_sub`.

use crate::support::Server;
use crate::support::tools::has;
use std::process::{Command, Output};

use crate::tokens::{everything, key_settings, token};
use crate::users::entry;

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn settings() -> String {
    format!("[access]\n{}{}", key_settings(), entry("ann", "right"))
}

#[test]
fn curl_is_accepted_with_a_token_a_password_or_a_cookie() {
    let server = Server::with(&settings());
    let token = token(everything());
    let (bearer, cookie) = (
        format!("Authorization: Bearer {token}"),
        format!("crore_token={token}"),
    );
    let url = server.url("/pub/doors/curl");
    let in_url = format!("{url}?token={token}");
    let status = |args: &[&str], url: &str| {
        let fixed = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", "x"];
        let output = run("curl", &[&fixed, args, &[url]].concat());
        String::from_utf8(output.stdout).expect("a status")
    };
    for (args, url, expected) in [
        (&["-H", &bearer][..], &url, "202"),
        (&["-b", &cookie], &url, "202"),
        (&["-u", "ann:right"], &url, "202"),
        (&[], &in_url, "202"),
        (&[], &url, "401"),
        (&["-u", "ann:wrong"], &url, "401"),
        (&["-H", "Authorization: Bearer x"], &url, "401"),
        (&["--oauth2-bearer", &token], &url, "202"),
    ] {
        assert_eq!(status(args, url), expected, "{args:?}");
    }
}

#[test]
fn mosquitto_clients_are_accepted_with_a_password_or_a_token_and_learn_why_not() {
    if !has("mosquitto_pub") {
        return;
    }
    let server = Server::with(&settings());
    let (port, token) = (server.address().port().to_string(), token(everything()));
    for version in ["311", "5"] {
        let publish = |arguments: &[&str]| {
            let fixed = [
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-V",
                version,
                "-q",
                "1",
                "-t",
                "doors/m",
                "-r",
                "-m",
                "kept",
            ];
            run("mosquitto_pub", &[&fixed, arguments].concat())
        };
        assert!(
            publish(&["-u", "ann", "-P", "right"]).status.success(),
            "{version}"
        );
        assert!(
            publish(&["-u", "any", "-P", &token]).status.success(),
            "{version}"
        );
        for wrong in [
            &["-u", "ann", "-P", "wrong"][..],
            &["-u", "any", "-P", "eyJ0.e30.x"],
        ] {
            let output = publish(wrong);
            assert!(!output.status.success(), "{version} {wrong:?}");
            let stderr = String::from_utf8_lossy(&output.stderr).to_lowercase();
            assert!(
                stderr.contains("not authori") || stderr.contains("bad user name"),
                "{stderr}"
            );
        }
        let args = [
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-V",
            version,
            "-C",
            "1",
            "-W",
            "10",
            "-t",
            "doors/m",
            "-u",
            "ann",
            "-P",
            "right",
        ];
        assert_eq!(run("mosquitto_sub", &args).stdout, b"kept\n", "{version}");
    }
}
